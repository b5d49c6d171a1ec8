//! What is around the engine of a node: its inbox, the time that turns and syncs take, its clients' and sessions' answers.

use kvdb::engine::machine::{Entries, Reply, TurnEnv, Work};
use kvdb::engine::port::{SnapshotOutcome, WriteError};
use kvdb::engine::queue::{inbox_cost, work_bytes};
use kvdb::limits::{INBOX_WAIT, MAX_INBOX_BYTES, SYNC_DELAY};
use kvdb::net::lanes;
use kvdb::net::machine::Input;
use kvdb::net::port::{PlainLog, read};

use crdt::{Durability, Store as _};

use crate::disk::Batch;
use crate::node::Sender;
use crate::observe::{End, NodeId, Observation};
use crate::time::Time;
use crate::world::{Event, ReadJob, World};

/// A buffered commit, in microseconds: at least, and on average beyond that.
const COMMIT: (u64, u64) = (20, 40);
/// A commit that syncs, or a sync, beyond that on average.
const SYNC: u64 = 1_500;

fn snapshot_mark(outcome: &SnapshotOutcome) -> &'static str {
    match outcome {
        SnapshotOutcome::Joined => "snapshots_joined",
        SnapshotOutcome::Invalid { .. } => "snapshots_invalid",
        SnapshotOutcome::Lacking { .. } => "snapshots_lacking",
        SnapshotOutcome::Failed => "snapshots_failed",
    }
}

impl World {
    pub(crate) fn boot(&mut self, id: NodeId) {
        let mut random = self.random.split();
        let fleet = self.fleet.is_there().then(|| self.databases_at_start(id));
        let Some(node) = self.nodes.get_mut(id).filter(|node| !node.gone && node.process().is_none()) else { return };
        if let Some(databases) = fleet {
            node.databases = databases;
        }
        node.start(self.now, self.scenario.history.join_rows, &mut random);
        let databases = node.databases.clone();
        self.observe(&Observation::Booted { node: id });
        self.count("boots");
        for database in databases {
            self.submit(id, Work::Open(database), Sender::Nobody);
        }
        self.begin_member(id);
        self.arm_upkeep(id);
        self.arm(id);
    }

    /// Whoever looks after the node starts it again, if it is that process still or none.
    pub(crate) fn restart(&mut self, id: NodeId, incarnation: u64) {
        if self.incarnation(id) == incarnation {
            self.end_process(id, End::Process);
            self.boot(id);
        }
    }

    /// Hands work to the engine; waits in the lobby when the inbox is full.
    pub(crate) fn submit(&mut self, id: NodeId, work: Work, sender: Sender) {
        let deadline = self.now + Time::from_duration(INBOX_WAIT);
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        let bytes = work_bytes(&work);
        let cost = inbox_cost(bytes);
        if !process.lobby.is_empty() || process.inbox_used + cost > MAX_INBOX_BYTES {
            process.lobby.push_back((deadline, work, bytes, sender));
            let incarnation = self.incarnation(id);
            self.count("inbox_full");
            self.at(deadline, Event::Lobby(id, incarnation));
            return;
        }
        process.inbox_used += cost;
        process.queue.push(work, bytes, (cost, sender));
        self.begin_turn(id);
    }

    /// Starts a turn if the engine is idle and something waits.
    fn begin_turn(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let (incarnation, factor) = (node.incarnation, node.sync_factor);
        let Some(process) = node.process_mut() else { return };
        if process.busy || (process.queue.is_empty() && !process.engine.joining()) {
            return;
        }
        process.busy = true;
        let (works, senders) = process.queue.take();
        let syncs = |work: &Work| matches!(work, Work::Sync | Work::Write { durability: Durability::Sync, .. });
        let mut takes = COMMIT.0 + self.random.exponential(COMMIT.1);
        if works.iter().any(syncs) {
            takes += self.random.exponential(SYNC) * factor;
        }
        self.after(Time(takes), Event::Turn(id, incarnation, works, senders));
    }

    pub(crate) fn turn(&mut self, id: NodeId, incarnation: u64, works: Vec<Work>, senders: Vec<(usize, Sender)>) {
        if !self.lives(id, incarnation) {
            return;
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let (wall, signer) = (node.clock.read(now), node.author);
        let (after, within) = (node.end_after_turn, node.end_in_commit);
        node.disk_mut().faults.end_in_commit = within.is_some();
        let Some(process) = node.process_mut() else { return };
        let before = process.engine.store().history().len();
        let said = process.engine.store().said_synced();
        let mut random = process.random.clone();
        let mut draw = || random.next();
        let mut env = TurnEnv { now: wall, signer: &signer, random: &mut draw };
        let outcome = process.engine.turn(works, &mut env);
        process.random = random;
        process.busy = false;
        let disk = process.engine.store();
        let committed: Vec<Batch> = disk.history().get(before..).unwrap_or_default().to_vec();
        let synced = disk.synced() == disk.history().len();
        let ended = within.is_some() && !disk.faults.end_in_commit;
        let durability = if synced { Durability::Sync } else { Durability::Buffered };
        for writes in &committed {
            for set in writes.iter() {
                self.mark(set.meta.revision);
                self.mark(u64::try_from(set.meta.digest.0 >> 64).unwrap_or(0));
            }
            self.observe(&Observation::Committed { node: id, writes, durability });
        }
        for set in committed.iter().flat_map(|writes| writes.iter()).filter(|set| crate::checkers::switches(set)) {
            self.observe(&Observation::Switched { node: id, database: set.database });
        }
        self.say_synced(id, said);
        if let Some(how) = within.filter(|_| ended).or(after.filter(|_| !committed.is_empty())) {
            self.count("ended_at_commit");
            self.crash(id, how);
            return;
        }
        if let Some(node) = self.nodes.get_mut(id) {
            node.disk_mut().faults.end_in_commit = false;
        }
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        process.gathering.turn(&process.engine, &outcome);
        process.tell_watchers(&outcome);
        for (_, joined) in &outcome.snapshots {
            *self.counters.entry(snapshot_mark(joined)).or_default() += 1;
        }
        let owes = outcome.owes_sync && !std::mem::replace(&mut process.sync_due, outcome.owes_sync);
        for ((cost, sender), reply) in senders.into_iter().zip(outcome.replies) {
            if let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) {
                process.inbox_used = process.inbox_used.saturating_sub(cost);
            }
            self.replied(id, sender, reply);
        }
        if owes {
            self.after(Time::from_duration(SYNC_DELAY), Event::BeginSync(id, incarnation));
        }
        self.after_engine(id);
        self.lobby(id, incarnation);
        self.begin_turn(id);
    }

    /// News to be looked at, a store to be opened anew.
    fn after_engine(&mut self, id: NodeId) {
        let incarnation = self.incarnation(id);
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        let news = !process.gathering.is_empty() && !std::mem::replace(&mut process.news_due, true);
        let poisoned = process.engine.poison().is_some() && !std::mem::replace(&mut process.poisoned, true);
        if news {
            let delay = Time(10 + self.random.exponential(50));
            self.after(delay, Event::News(id, incarnation));
        }
        if poisoned {
            self.count("poisoned");
            let delay = Time::ms(self.random.between(500, 20_000));
            self.after(delay, Event::Restart(id, incarnation));
        }
    }

    fn replied(&mut self, id: NodeId, sender: Sender, reply: Reply) {
        match (sender, reply) {
            (Sender::Client(client, attempt), Reply::Written(answer)) => self.answered(client, attempt, id, &answer),
            (Sender::Crowd(client, database, request, ops), Reply::Written(answer)) => {
                self.crowd_answered(id, (client, database, request), &ops, &answer);
            }
            (Sender::Session { session, bytes, count, room, database }, Reply::Delivered(answer)) => {
                self.session_delivered(id, session, (bytes, count), room, database, answer);
            }
            (Sender::Gossip(database, from, author), Reply::Delivered(answer)) => {
                let delivery = answer.ok();
                if let Some(delivery) = &delivery {
                    self.observe(&Observation::Delivered { node: id, database, delivery });
                }
                self.input(id, Input::GossipDelivered { database, from, author, delivery });
            }
            (Sender::Stage(database, snapshot, write), Reply::Done(answer)) => {
                self.input(id, Input::Staged(database, snapshot, answer.is_ok().then_some(write)));
            }
            (Sender::Compaction(compaction), reply) => self.compacted(id, compaction, &reply),
            (Sender::Fleet(crate::fleet::FleetWork::Opened(_)) | Sender::Nobody, Reply::Done(Err(_))) => {
                // A database that cannot be opened: started anew a little later.
                let incarnation = self.incarnation(id);
                self.count("opens_failed");
                self.after(Time::ms(1_000), Event::Restart(id, incarnation));
            }
            (Sender::Fleet(work), reply) => self.member_replied(id, work, reply),
            _ => {}
        }
    }

    fn session_delivered(
        &mut self,
        id: NodeId,
        session: kvdb::net::sync::SessionId,
        (bytes, count): (u64, usize),
        room: Vec<crate::node::Room>,
        database: crdt::DatabaseId,
        answer: Result<kvdb::engine::port::Delivery, WriteError>,
    ) {
        if let Ok(delivery) = &answer {
            self.observe(&Observation::Delivered { node: id, database, delivery });
        }
        let stream = room.first().map(|room| room.stream);
        drop(room);
        self.input(id, Input::Delivered(session, bytes, lanes::outcome(answer, count)));
        if let Some(stream) = stream {
            self.read_on_of(stream, id);
        }
    }

    /// Lets in what waits for room, turns away what has waited too long.
    pub(crate) fn lobby(&mut self, id: NodeId, incarnation: u64) {
        if !self.lives(id, incarnation) {
            return;
        }
        loop {
            let now = self.now;
            let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
            let Some((deadline, _, bytes, _)) = process.lobby.front() else { break };
            let (late, cost) = (*deadline <= now, inbox_cost(*bytes));
            if !late && process.inbox_used + cost > MAX_INBOX_BYTES {
                break;
            }
            let Some((_, work, bytes, sender)) = process.lobby.pop_front() else { break };
            if late {
                let full = WriteError::QueueFull { limit: MAX_INBOX_BYTES, waited: INBOX_WAIT };
                let reply = match &work {
                    Work::Write { .. } => Reply::Written(Err(full)),
                    Work::Blocks { .. } => Reply::Delivered(Err(full)),
                    _ => Reply::Done(Err(full)),
                };
                self.replied(id, sender, reply);
            } else {
                process.inbox_used += cost;
                process.queue.push(work, bytes, (cost, sender));
            }
        }
        self.begin_turn(id);
    }

    pub(crate) fn begin_sync(&mut self, id: NodeId, incarnation: u64) {
        if !self.lives(id, incarnation) {
            return;
        }
        let Some(node) = self.nodes.get_mut(id) else { return };
        let factor = node.sync_factor;
        let Some(process) = node.process_mut() else { return };
        process.sync_due = false;
        let entries = process.engine.unsynced();
        if entries.is_empty() {
            return;
        }
        let mark = process.engine.store().begin_sync();
        let takes = Time(COMMIT.0 + self.random.exponential(SYNC) * factor);
        self.after(takes, Event::EndSync(id, incarnation, entries, mark));
    }

    pub(crate) fn end_sync(&mut self, id: NodeId, incarnation: u64, entries: &Entries, mark: usize) {
        if !self.lives(id, incarnation) {
            return;
        }
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        let said = process.engine.store().said_synced();
        match process.engine.store_mut().end_sync(mark) {
            Ok(()) => {
                let synced = process.engine.synced(entries.clone());
                process.gathering.synced(&synced);
                self.say_synced(id, said);
            }
            Err(error) => process.engine.set_poison(error.to_string()),
        }
        self.after_engine(id);
    }

    /// Tells the checkers if the disk has said to have synced more than before.
    fn say_synced(&mut self, id: NodeId, before: usize) {
        let Some(disk) = self.nodes.get(id).map(crate::node::Node::disk) else { return };
        let (batches, lied) = (disk.said_synced(), disk.said_synced() > disk.synced());
        if batches > before {
            self.observe(&Observation::Synced { node: id, batches, lied });
        }
    }

    pub(crate) fn news(&mut self, id: NodeId, incarnation: u64) {
        if !self.lives(id, incarnation) {
            return;
        }
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        process.news_due = false;
        for news in process.gathering.take() {
            self.input(id, Input::News(news));
        }
    }

    pub(crate) fn read_log(&mut self, id: NodeId, incarnation: u64, job: &ReadJob) {
        if !self.lives(id, incarnation) {
            return;
        }
        let Some(process) = self.nodes.get(id).and_then(|node| node.process()) else { return };
        let logs = PlainLog(process.engine.store());
        let chunk = read(&logs, &job.database, &job.from, job.max_bytes, &job.skip).ok();
        if chunk.is_none() {
            self.count("log_reads_failed");
        }
        let delay = Time(10 + self.random.exponential(30));
        self.after(delay, Event::HaveRead(id, incarnation, job.session, chunk));
    }

    /// Ends the process, and brings it back later, unless it is gone for ever.
    pub(crate) fn crash(&mut self, id: NodeId, how: End) {
        self.end_process(id, how);
        if how != End::Gone {
            let delay = Time::ms(self.random.between(50, 15_000));
            self.after(delay, Event::Boot(id));
        }
    }

    /// Ends the process. What becomes of its disk depends on how.
    pub(crate) fn end_process(&mut self, id: NodeId, how: End) {
        let kept = self.random.between(0, 1_000);
        let image = self.random.next();
        let was_up = self.nodes.get(id).is_some_and(|node| node.process().is_some());
        if !was_up && matches!(how, End::Process | End::Power) {
            return;
        }
        self.cut_connections(id, how != End::Power);
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.stop();
        node.gone |= how == End::Gone;
        let disk = node.disk_mut();
        let batches = disk.history().len();
        disk.faults.end_in_commit = false;
        disk.faults.failing_reads.set(0);
        let lost = match how {
            End::Process | End::Gone => 0,
            End::Power => disk.lose_power(kept),
            End::Restored if disk.state().is_some() => disk.restore_opening(image),
            End::Restored => disk.cut(usize::try_from(image % (disk.synced() as u64 + 1)).unwrap_or(0)),
            End::Disk => {
                disk.wipe();
                batches
            }
        };
        if lost > 0 {
            self.watchers_list_again(id);
        }
        self.note(Some(id), "ended", || format!("{how:?}, {lost} batches lost"));
        self.observe(&Observation::Ended { node: id, how, lost });
    }

    /// Whether the disk of a node has the database, so that a view can be had.
    pub(crate) fn has(&self, id: NodeId, database: &crdt::DatabaseId) -> bool {
        self.nodes.get(id).is_some_and(|node| node.disk().contents().view(database).is_ok())
    }
}
