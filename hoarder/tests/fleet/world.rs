//! A few controllers on a tiny network under virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use crdt::testing::{FakeSigner, FakeVerifier};
use crdt::{DatabaseId, DatabaseName, Dot, Ed25519Signer, Key, ReplicaId, RequestId, Signer as _, VersionVector};
use hoarder::claims::Readiness;
use hoarder::controller::{Options, RecordDone, RegistryError, Start};
use hoarder::registry::registry_id;
use hoarder::wire::{Answer, Code, Frame, Operation};
use hoarder::{Controller, Durability, Input, Output, PeerId, StoreId};

use crate::disk::{Block, Disk, Replica};

/// Milliseconds.
pub(crate) type Time = u64;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Clone)]
enum Message {
    Beat(Bytes),
    Frame(Frame),
    /// What the sender has merged and has on disk of a database that it has open.
    Have(DatabaseId, VersionVector, VersionVector),
    Blocks(DatabaseId, Vec<Block>),
}

#[derive(Debug, Clone)]
enum Event {
    Deliver(usize, usize, Message),
    Tick(usize, u64),
    /// The disk of a node has synced a database up to here.
    Synced(usize, u64, DatabaseId, VersionVector),
    /// The store has done what the controller asked for.
    Done(usize, u64, Input),
    Start(usize),
    Resume(usize),
}

pub(crate) struct Node {
    pub(crate) peer: PeerId,
    key: [u8; 32],
    pub(crate) disk: Disk,
    pub(crate) controller: Option<Controller>,
    /// Counts starts, so that events of an earlier one are void.
    boot: u64,
    pub(crate) born: Time,
    replica: ReplicaId,
    frozen: BTreeSet<DatabaseId>,
    pub(crate) paused: Option<Vec<Event2>>,
    /// The wall clock's error.
    pub(crate) skew: i64,
    pub(crate) ready: BTreeSet<DatabaseId>,
}

/// An event that waits until a paused node goes on.
pub(crate) struct Event2(Event);

pub(crate) struct Write {
    pub(crate) database: DatabaseId,
    pub(crate) dot: Dot,
    /// The least number of holders since it was confirmed, and no more than it asked for.
    pub(crate) k: u8,
    /// It asked for as many holders as the database then had.
    pub(crate) full: bool,
    pub(crate) at: Time,
    /// Copies that faults have destroyed since.
    pub(crate) losses: usize,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) random: Random,
    events: BTreeMap<(Time, u64), Event>,
    count: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) options: Options,
    /// Directed links that are cut.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    pub(crate) loss: u64,
    pub(crate) writes: Vec<Write>,
    pub(crate) replies: BTreeMap<u64, (Code, Answer)>,
    pub(crate) records: BTreeMap<u64, Result<RecordDone, RegistryError>>,
    asked: BTreeMap<u64, (DatabaseId, u8)>,
    pub(crate) dropped: BTreeSet<DatabaseId>,
    pub(crate) least: BTreeMap<DatabaseId, u8>,
    /// Nodes that no block reaches.
    pub(crate) deaf: BTreeSet<usize>,
    /// What was on disks that faults destroyed, and what was there instead.
    lost: Vec<(DatabaseId, VersionVector, VersionVector)>,
    pub(crate) destroyed: usize,
    pub(crate) fallen: usize,
    pub(crate) trace: bool,
}

pub(crate) const SECOND: Time = 1_000;

pub(crate) fn name(text: &str) -> DatabaseName {
    DatabaseName::parse(text).unwrap()
}

impl World {
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        let mut random = Random::new(seed);
        let mut nodes = Vec::new();
        for number in 0..size {
            let seed = [u8::try_from(number).unwrap() + 1; 32];
            let key = Ed25519Signer::from_seed(seed).public_key();
            let disk = empty_disk(&mut random);
            nodes.push(Node {
                peer: kvdb::net::gossip::peer_of(&key).unwrap(),
                key,
                disk,
                controller: None,
                boot: 0,
                born: 0,
                replica: ReplicaId([0; 16]),
                frozen: BTreeSet::new(),
                paused: None,
                skew: 0,
                ready: BTreeSet::new(),
            });
        }
        nodes.sort_by_key(|node| node.peer);
        let members = nodes.iter().map(|node| node.peer).collect();
        let mut options = Options { members, ..Options::default() };
        options.claims.quiet_time = Duration::from_secs(5);
        options.claims.dead_claim_grace = Duration::from_secs(40);
        Self {
            now: 0,
            random,
            events: BTreeMap::new(),
            count: 0,
            nodes,
            options,
            cut: BTreeSet::new(),
            loss: 0,
            writes: Vec::new(),
            replies: BTreeMap::new(),
            records: BTreeMap::new(),
            asked: BTreeMap::new(),
            dropped: BTreeSet::new(),
            least: BTreeMap::new(),
            deaf: BTreeSet::new(),
            lost: Vec::new(),
            destroyed: 0,
            fallen: 0,
            trace: std::env::var("TRACE").is_ok(),
        }
    }

    /// All nodes up, settled and equal.
    pub(crate) fn up(seed: u64, size: usize) -> Self {
        let mut world = Self::new(seed, size);
        (0..size).for_each(|node| world.start(node));
        world.run(15 * SECOND);
        world
    }

    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>8} {}", self.now, text());
        }
    }

    fn after(&mut self, delay: Time, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    pub(crate) fn run(&mut self, duration: Time) {
        let end = self.now + duration;
        while let Some(((at, _), event)) = self.events.first_key_value().map(|(at, event)| (*at, event.clone())) {
            if at > end {
                break;
            }
            self.events.pop_first();
            self.now = at;
            self.event(event);
        }
        self.now = end;
    }

    /// Runs until the condition holds.
    pub(crate) fn until(&mut self, what: &str, seconds: u64, condition: impl Fn(&Self) -> bool) {
        for _ in 0..seconds * 10 {
            if condition(self) {
                return;
            }
            self.run(SECOND / 10);
        }
        assert!(condition(self), "not within {seconds} s: {what}\n{}", self.picture());
    }

    fn target(event: &Event) -> usize {
        match event {
            Event::Deliver(to, ..) => *to,
            Event::Tick(node, _) | Event::Synced(node, ..) | Event::Done(node, ..) | Event::Start(node) | Event::Resume(node) => {
                *node
            }
        }
    }

    fn event(&mut self, event: Event) {
        let node = Self::target(&event);
        if let (Some(waiting), false) = (&mut self.nodes[node].paused, matches!(event, Event::Resume(_))) {
            waiting.push(Event2(event));
            return;
        }
        match event {
            Event::Deliver(to, from, message) => self.deliver(to, from, message),
            Event::Tick(node, boot) => self.tick(node, boot),
            Event::Synced(node, boot, database, vv) if boot == self.nodes[node].boot => self.synced(node, database, &vv),
            Event::Done(node, boot, input) if boot == self.nodes[node].boot => self.input(node, input),
            Event::Synced(..) | Event::Done(..) => {}
            Event::Start(node) => self.start(node),
            Event::Resume(node) => {
                for waiting in self.nodes[node].paused.take().unwrap_or_default() {
                    self.event(waiting.0);
                }
            }
        }
    }

    // Nodes.

    pub(crate) fn start(&mut self, number: usize) {
        if self.nodes[number].controller.is_some() {
            return;
        }
        let (boot, replica, seed) = (self.random.next() >> 1, self.random.next(), self.random.next());
        let node = &mut self.nodes[number];
        node.disk.opening += 1;
        node.boot = boot;
        node.born = self.now;
        node.replica = ReplicaId([u8::try_from(number).unwrap(); 16].map(|byte| byte));
        node.replica.0[..8].copy_from_slice(&replica.to_be_bytes());
        node.frozen.clear();
        node.disk.replicas.entry(registry_id()).or_default();
        let databases = node.disk.replicas.keys().copied().filter(|database| *database != registry_id()).collect();
        let start = Start { me: node.peer, boot, store: node.disk.store, opening: node.disk.opening, databases };
        let mut random = Random::new(seed);
        let random = Box::new(move || random.next());
        let signer = Box::new(FakeSigner(node.key));
        let options = self.options.clone();
        node.controller = Some(Controller::new(start, options, signer, Box::new(FakeVerifier), random, Duration::ZERO));
        let registry = &node.disk.replicas[&registry_id()];
        let entries = registry.rows.keys().map(|key| (key.clone(), registry.winner(key))).collect();
        let durable: Vec<_> = node.disk.replicas.iter().map(|(database, replica)| (*database, replica.durable.clone())).collect();
        self.trace(|| format!("start {number}"));
        self.input(number, Input::Registry(entries));
        for (database, vv) in durable {
            let peer = self.nodes[number].peer;
            self.input(number, Input::Durable(database, peer, vv));
        }
        self.after(0, Event::Tick(number, boot));
    }

    /// The process dies; what was not on disk is gone.
    pub(crate) fn crash(&mut self, number: usize) {
        self.trace(|| format!("crash {number}"));
        let node = &mut self.nodes[number];
        node.controller = None;
        node.boot = 0;
        node.paused = None;
        node.ready.clear();
        node.disk.replicas.values_mut().for_each(|replica| *replica = replica.crash());
        self.check_copies();
    }

    pub(crate) fn restart_after(&mut self, number: usize, delay: Time) {
        self.after(delay, Event::Start(number));
    }

    /// The process dies and its disk with it.
    pub(crate) fn wipe(&mut self, number: usize) {
        let disk = empty_disk(&mut self.random);
        self.replace(number, disk);
    }

    /// The process dies, and its disk becomes what it was once.
    pub(crate) fn replace(&mut self, number: usize, disk: Disk) {
        let before = std::mem::replace(&mut self.nodes[number].disk, disk);
        for write in &mut self.writes {
            let had = before.replicas.get(&write.database).is_some_and(|replica| replica.durable.covers(&write.dot));
            let has =
                self.nodes[number].disk.replicas.get(&write.database).is_some_and(|replica| replica.durable.covers(&write.dot));
            write.losses += usize::from(had && !has);
        }
        self.trace(|| format!("disk of {number} replaced"));
        self.crash(number);
    }

    pub(crate) fn pause(&mut self, number: usize, duration: Time) {
        if self.nodes[number].controller.is_some() && self.nodes[number].paused.is_none() {
            self.trace(|| format!("pause {number} for {duration}"));
            self.nodes[number].paused = Some(Vec::new());
            self.after(duration, Event::Resume(number));
        }
    }

    fn tick(&mut self, number: usize, boot: u64) {
        if self.nodes[number].boot != boot {
            return;
        }
        let wall = self.wall(number);
        self.input(number, Input::Tick(wall));
        // Now and then everybody says what it has, whether it changed or not.
        if self.random.chance(50) {
            let databases: Vec<DatabaseId> = self.nodes[number].disk.replicas.keys().copied().collect();
            for database in databases {
                self.have(number, database);
            }
        }
        self.after(SECOND / 4, Event::Tick(number, boot));
    }

    fn wall(&self, number: usize) -> u64 {
        (1_000_000 + self.now).saturating_add_signed(self.nodes[number].skew)
    }

    pub(crate) fn input(&mut self, number: usize, input: Input) {
        let node = &mut self.nodes[number];
        let now = Duration::from_millis(self.now - node.born);
        let Some(controller) = &mut node.controller else { return };
        let outputs = controller.handle(input, now);
        self.note_ready(number);
        for output in outputs {
            self.output(number, output);
        }
    }

    fn output(&mut self, number: usize, output: Output) {
        let boot = self.nodes[number].boot;
        match output {
            Output::Publish(data) => self.all(number, &Message::Beat(data)),
            Output::Send(to, frame) => {
                assert_eq!(Frame::decode(frame.encode()).as_ref(), Ok(&frame));
                self.fallen += usize::from(matches!(frame, Frame::Fallen { .. }));
                let to = self.number(&to);
                self.send(number, to, Message::Frame(frame));
            }
            Output::Open(database) => {
                self.nodes[number].disk.replicas.entry(database).or_default();
                self.have(number, database);
            }
            Output::Freeze(database) => {
                self.nodes[number].frozen.insert(database);
                let vv = self.nodes[number].disk.replicas.get(&database).map(|replica| replica.vv.clone()).unwrap_or_default();
                self.synced(number, database, &vv);
                self.after(1, Event::Done(number, boot, Input::Frozen(database)));
            }
            Output::Thaw(database) => drop(self.nodes[number].frozen.remove(&database)),
            Output::Destroy(database) => self.destroy(number, database),
            Output::WriteRegistry(token, changes) => {
                let wall = self.wall(number);
                let node = &mut self.nodes[number];
                let replica = node.disk.replicas.entry(registry_id()).or_default();
                let block = replica.write(node.replica, wall, None, &changes);
                self.registry_changed(number, changes.into_iter().map(|(key, _)| key).collect());
                self.sync_later(number, registry_id());
                self.have(number, registry_id());
                // Synced: the answer comes after the disk.
                self.after(60, Event::Done(number, boot, Input::RegistryWritten(token, Some(block.dot))));
            }
            Output::SetStore(store) => {
                self.nodes[number].disk.store = store;
                self.nodes[number].disk.opening = 1;
            }
            Output::Commit(call, database, request, payload) => self.commit(number, call, database, request, payload),
            Output::Read(call, _, _) => self.after(1, Event::Done(number, boot, Input::Answered(call, Code::Done, Bytes::new()))),
            Output::Reply(token, code, answer) => self.reply(token, code, answer),
            Output::Record(token, outcome) => drop(self.records.insert(token, outcome)),
        }
    }

    fn commit(&mut self, number: usize, call: u64, database: DatabaseId, request: RequestId, payload: Bytes) {
        let wall = self.wall(number);
        let node = &mut self.nodes[number];
        let boot = node.boot;
        assert!(!node.frozen.contains(&database), "a write into a database that is let go of");
        let Some(replica) = node.disk.replicas.get_mut(&database) else {
            return self.after(1, Event::Done(number, boot, Input::Answered(call, Code::NotReady, Bytes::new())));
        };
        let dot = replica.requests.get(&request).copied().unwrap_or_else(|| {
            let key = Key::parse(&format!("/{}", payload.first().copied().unwrap_or(0))).unwrap();
            replica.write(node.replica, wall, Some(request), &[(key, Some(payload.clone()))]).dot
        });
        self.sync_later(number, database);
        self.have(number, database);
        self.after(1, Event::Done(number, boot, Input::Committed(call, Some(dot), payload)));
    }

    fn destroy(&mut self, number: usize, database: DatabaseId) {
        self.trace(|| format!("node {number} destroys {database:?}"));
        self.nodes[number].disk.replicas.remove(&database);
        self.nodes[number].frozen.remove(&database);
        self.destroyed += 1;
        self.check_copies();
        let boot = self.nodes[number].boot;
        self.after(1, Event::Done(number, boot, Input::Destroyed(database)));
    }

    fn sync_later(&mut self, number: usize, database: DatabaseId) {
        let node = &self.nodes[number];
        let Some(replica) = node.disk.replicas.get(&database) else { return };
        let (boot, vv) = (node.boot, replica.vv.clone());
        let delay = 1 + self.random.below(50);
        self.after(delay, Event::Synced(number, boot, database, vv));
    }

    fn synced(&mut self, number: usize, database: DatabaseId, vv: &VersionVector) {
        let node = &mut self.nodes[number];
        let Some(replica) = node.disk.replicas.get_mut(&database) else { return };
        vv.iter().for_each(|(writer, seq)| replica.durable.raise(writer, seq));
        let (peer, durable) = (node.peer, replica.durable.clone());
        self.input(number, Input::Durable(database, peer, durable));
        self.have(number, database);
    }

    fn registry_changed(&mut self, number: usize, keys: BTreeSet<Key>) {
        let registry = &self.nodes[number].disk.replicas[&registry_id()];
        let entries = keys.into_iter().map(|key| (key.clone(), registry.winner(&key))).collect();
        self.input(number, Input::Registry(entries));
    }

    // Network.

    pub(crate) fn number(&self, peer: &PeerId) -> usize {
        self.nodes.iter().position(|node| node.peer == *peer).unwrap()
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if self.cut.contains(&(from, to)) || self.random.below(100) < self.loss {
            return;
        }
        let delay = 1 + self.random.below(10);
        self.after(delay, Event::Deliver(to, from, message));
    }

    fn all(&mut self, from: usize, message: &Message) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            self.send(from, to, message.clone());
        }
    }

    fn have(&mut self, number: usize, database: DatabaseId) {
        let Some(replica) = self.nodes[number].disk.replicas.get(&database) else { return };
        let message = Message::Have(database, replica.vv.clone(), replica.durable.clone());
        self.all(number, &message);
    }

    fn deliver(&mut self, to: usize, from: usize, message: Message) {
        if self.nodes[to].controller.is_none() {
            return;
        }
        let peer = self.nodes[from].peer;
        match message {
            Message::Beat(data) => self.input(to, Input::Beat(data)),
            Message::Frame(frame) => self.input(to, Input::Frame(peer, frame)),
            Message::Have(database, vv, durable) => {
                // Sync exists only between two that both have the database open.
                let Some(replica) = self.nodes[to].disk.replicas.get(&database) else { return };
                let lacking = replica.lacking(&vv, 64);
                if !lacking.is_empty() {
                    self.send(to, from, Message::Blocks(database, lacking));
                }
                self.input(to, Input::Durable(database, peer, durable));
            }
            Message::Blocks(database, blocks) => self.merge(to, database, &blocks),
        }
    }

    fn merge(&mut self, number: usize, database: DatabaseId, blocks: &[Block]) {
        let node = &mut self.nodes[number];
        if node.frozen.contains(&database) || self.deaf.contains(&number) {
            return;
        }
        let Some(replica) = node.disk.replicas.get_mut(&database) else { return };
        let touched: Vec<BTreeSet<Key>> = blocks.iter().filter_map(|block| replica.merge(block)).collect();
        if touched.is_empty() {
            return;
        }
        if database == registry_id() {
            self.registry_changed(number, touched.into_iter().flatten().collect());
        }
        self.sync_later(number, database);
        self.have(number, database);
    }

    // Callers.

    pub(crate) fn create(&mut self, number: usize, token: u64, text: &str, holders: u8) -> DatabaseId {
        let patience = Duration::from_secs(20);
        let durability = Durability::Require(holders);
        self.input(number, Input::Create { token, name: name(text), holders, durability, patience });
        let generation = self.records.get(&token).map_or(0, |_| 0);
        DatabaseId::of(&name(text), generation)
    }

    pub(crate) fn write(&mut self, number: usize, token: u64, request: u64, database: DatabaseId, durability: Durability) {
        if let Durability::Require(k) = durability {
            self.asked.insert(token, (database, k));
        }
        let payload = Bytes::copy_from_slice(&request.to_be_bytes()[7..]);
        let operation =
            Operation::Write { durability: Some(durability), conditional: false, attempt: false, stale: true, payload };
        self.call(number, token, request, database, operation);
    }

    pub(crate) fn call(&mut self, number: usize, token: u64, request: u64, database: DatabaseId, operation: Operation) {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&request.to_be_bytes());
        let patience = Duration::from_secs(8);
        self.input(number, Input::Call { token, request: RequestId(id), database, operation, patience });
    }

    fn reply(&mut self, token: u64, code: Code, answer: Answer) {
        if let (Code::Done, Some((database, k)), Some(dot)) = (code, self.asked.remove(&token), answer.dot) {
            assert!(answer.holders.len() >= usize::from(k), "confirmed with too few holders");
            for holder in &answer.holders {
                let node = &self.nodes[self.number(holder)];
                let has = node.disk.replicas.get(&database).is_some_and(|replica| replica.durable.covers(&dot));
                // A holder may have let go, or lost its disk, after it acknowledged and before the answer arrived.
                if !has {
                    self.trace(|| format!("holder {holder} no longer has {dot}"));
                }
            }
            self.trace(|| {
                format!("confirmed {dot} k={k} by {:?}", answer.holders.iter().map(|peer| self.number(peer)).collect::<Vec<_>>())
            });
            let server = self.nodes[self.number(&answer.served_by)].controller.as_ref();
            let full = server.is_some_and(|server| k >= server.holders_of(&database));
            // Somebody may act on a lower number already.
            let others = self.nodes.iter().filter_map(|node| node.controller.as_ref());
            let lowest = others.map(|controller| {
                let live = controller.registry().live(&database);
                live.map_or(u8::MAX, |live| live.settings.holders.min(controller.holders_of(&database)))
            });
            let k = k.min(lowest.min().unwrap_or(u8::MAX));
            // The answer may have been under way when a disk was lost.
            let losses = self.losses(&database, &dot);
            self.writes.push(Write { database, dot, k, full, at: self.now, losses });
        }
        self.replies.insert(token, (code, answer));
    }

    // Checks.

    fn losses(&self, database: &DatabaseId, dot: &Dot) -> usize {
        let lost = self.lost.iter().filter(|(of, had, has)| of == database && had.covers(dot) && !has.covers(dot));
        lost.count()
    }

    fn copies(&self, write: &Write) -> usize {
        let has =
            |node: &&Node| node.disk.replicas.get(&write.database).is_some_and(|replica| replica.durable.covers(&write.dot));
        self.nodes.iter().filter(has).count()
    }

    fn needed(write: &Write) -> usize {
        usize::from(write.k).saturating_sub(write.losses)
    }

    /// A confirmed write is on k disks, less those that faults have destroyed.
    pub(crate) fn check_copies(&self) {
        for write in self.writes.iter().filter(|write| !self.dropped.contains(&write.database)) {
            let (copies, needed) = (self.copies(write), Self::needed(write));
            assert!(
                copies >= needed,
                "{} of {:?} is on {copies} disks, needs {needed}\n{}",
                write.dot,
                write.database,
                self.picture()
            );
        }
    }

    /// Whoever becomes ready has all that was confirmed before it began to catch up.
    fn note_ready(&mut self, number: usize) {
        let node = &self.nodes[number];
        let Some(controller) = &node.controller else { return };
        let databases: Vec<DatabaseId> = node.disk.replicas.keys().copied().collect();
        let mut ready = BTreeSet::new();
        for database in databases {
            let Some(since) = controller.caught_up(&database) else { continue };
            ready.insert(database);
            if node.ready.contains(&database) {
                continue;
            }
            let since = node.born + u64::try_from(since.as_millis()).unwrap();
            self.trace(|| format!("node {number} is ready for {database:?}"));
            let replica = &node.disk.replicas[&database];
            for write in self.writes.iter().filter(|write| write.database == database && write.at < since && write.full) {
                let lost = write.losses >= usize::from(write.k);
                assert!(
                    lost || replica.vv.covers(&write.dot) || self.dropped.contains(&database),
                    "node {number} is ready without {} confirmed at {}, caught up from {since}\n{}",
                    write.dot,
                    write.at,
                    self.picture()
                );
            }
        }
        self.nodes[number].ready = ready;
    }

    pub(crate) fn readiness(&self, number: usize, database: &DatabaseId) -> Readiness {
        self.nodes[number].controller.as_ref().map_or(Readiness::None, |controller| controller.readiness(database))
    }

    pub(crate) fn ready(&self, database: &DatabaseId) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.readiness(*node, database) == Readiness::Ready).collect()
    }

    pub(crate) fn replica(&self, number: usize, database: &DatabaseId) -> Option<&Replica> {
        self.nodes[number].disk.replicas.get(database)
    }

    pub(crate) fn picture(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!("at {}, cut {:?}\n", self.now, self.cut);
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(controller) = &node.controller else {
                writeln!(text, "{number}: down, has {:?}", node.disk.replicas.keys().collect::<Vec<_>>()).unwrap();
                continue;
            };
            writeln!(
                text,
                "{number}: store {:?} live {} paused {}",
                node.disk.store,
                controller.membership().live().len(),
                node.paused.is_some()
            )
            .unwrap();
            for (database, live) in controller.registry().all() {
                let claims: Vec<String> = controller
                    .registry()
                    .claims(&database)
                    .iter()
                    .map(|(peer, claim)| {
                        format!(
                            "{}:{:?}{}{}",
                            self.number(peer),
                            claim.state,
                            if claim.was_ready { "+" } else { "" },
                            if claim.ever_ready { "!" } else { "" }
                        )
                    })
                    .collect();
                let desired: Vec<usize> = controller.desired(&database).iter().map(|peer| self.number(peer)).collect();
                let vv = self.replica(number, &database).map(|replica| replica.vv.iter().map(|(_, seq)| seq).sum::<u64>());
                writeln!(
                    text,
                    "   {} k{} least {}: {:?} has {vv:?} desired {desired:?} claims {claims:?}",
                    live.name,
                    live.settings.holders,
                    live.settings.least,
                    controller.readiness(&database)
                )
                .unwrap();
            }
        }
        text
    }

    pub(crate) fn registry_seen(&self, number: usize, database: &DatabaseId) -> bool {
        self.nodes[number].controller.as_ref().is_some_and(|controller| controller.registry().live(database).is_some())
    }
}

pub(crate) fn empty_disk(random: &mut Random) -> Disk {
    let mut store = [0; 16];
    store[..8].copy_from_slice(&random.next().to_be_bytes());
    Disk { store: StoreId(store), opening: 0, replicas: BTreeMap::new() }
}
