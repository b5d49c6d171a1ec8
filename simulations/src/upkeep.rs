//! What a node does by itself now and then: dropping history by the engine's rule, deleting what has expired, forgetting
//! requests. The rules are kvdb's; here is only what asks them.

use crdt::{DatabaseId, Durability, RequestId, Stamp, Store as _, VersionVector, View as _};
use kvdb::engine::history::{Known, plan};
use kvdb::engine::machine::{Reply, Work};
use kvdb::expiry;
use kvdb::limits::{COMPACT_PIECE_BLOCKS, UPKEEP_REQUESTS};

use crate::node::Sender;
use crate::observe::{NodeId, Observation};
use crate::script::SCRIPT_CLIENT;
use crate::time::Time;
use crate::world::{Event, World};

/// A compaction under way.
#[derive(Debug, Clone, Copy)]
pub struct Compaction {
    database: DatabaseId,
    max_bytes: u64,
    /// The last revision to drop, once the log was looked at.
    through: Option<u64>,
}

impl World {
    /// Looks after a node that has just been started.
    pub(crate) fn arm_upkeep(&mut self, id: NodeId) {
        let incarnation = self.incarnation(id);
        let (history, upkeep) = (self.scenario.history.interval_ms, self.scenario.upkeep.interval_ms);
        if history > 0 {
            let pause = self.random.between(history * 750, history * 1_250);
            self.after(Time(pause), Event::History(id, incarnation));
        }
        if upkeep > 0 {
            self.after(Time::ms(upkeep), Event::Upkeep(id, incarnation));
        }
    }

    pub(crate) fn look_at_history(&mut self, id: NodeId, incarnation: u64) {
        if !self.lives(id, incarnation) {
            return;
        }
        let max_bytes = self.scenario.history.max_bytes;
        for database in self.nodes.get(id).map(|node| node.databases.clone()).unwrap_or_default() {
            self.compact(id, database, max_bytes);
        }
        let interval = self.scenario.history.interval_ms;
        let pause = self.random.between(interval * 750, interval * 1_250);
        self.after(Time(pause), Event::History(id, incarnation));
    }

    /// Begins to drop what nobody needs, or is more than so many bytes. What is here must be on disk first: others keep it
    /// until they hear that.
    pub(crate) fn compact(&mut self, id: NodeId, database: DatabaseId, max_bytes: u64) {
        let compaction = Compaction { database, max_bytes, through: None };
        self.submit(id, Work::Sync, Sender::Compaction(compaction));
    }

    /// The engine's answer to a part of a compaction.
    pub(crate) fn compacted(&mut self, id: NodeId, compaction: Compaction, reply: &Reply) {
        let Compaction { database, through, .. } = compaction;
        let through = match (reply, through) {
            (Reply::Done(Ok(())), None) => self.droppable(id, &compaction),
            (Reply::Truncated(Ok(done)), Some(through)) if done.blocks > 0 => {
                self.count("history_dropped");
                (done.log_floor < through).then_some(through)
            }
            _ => None,
        };
        if let Some(through) = through {
            let work = Work::Truncate { database, through, limit: COMPACT_PIECE_BLOCKS };
            self.submit(id, work, Sender::Compaction(Compaction { through: Some(through), ..compaction }));
        }
    }

    /// The last revision that may be dropped, if any may.
    fn droppable(&mut self, id: NodeId, compaction: &Compaction) -> Option<u64> {
        let (now, history) = (self.now, &self.scenario.history);
        let (min_age, holders) = (Time::ms(history.min_age_ms).duration(), history.holders);
        let process = self.nodes.get_mut(id)?.process_mut()?;
        let uptime = now.since(process.started).duration();
        let meta = *process.engine.replica(&compaction.database)?.meta();
        let marks = process.ages.entry(compaction.database).or_default();
        marks.note(uptime, meta.revision, min_age);
        let aged = marks.older_than(uptime, min_age);
        let peers: Vec<VersionVector> = process.machine.holders(&compaction.database).into_values().collect();
        let pinned = process.machine.pinned(&compaction.database);
        let (history_bytes, max_bytes) = (meta.history_bytes, compaction.max_bytes);
        let known = Known { peers: &peers, holders, aged, history_bytes, max_bytes, pinned };
        let view = process.engine.store().contents().view(&compaction.database).ok()?;
        let plan = plan(view.log(0), &known).ok()?;
        (plan.blocks > 0).then_some(plan.through)
    }

    pub(crate) fn look_after(&mut self, id: NodeId, incarnation: u64) {
        if !self.lives(id, incarnation) {
            return;
        }
        for database in self.nodes.get(id).map(|node| node.databases.clone()).unwrap_or_default() {
            self.tidy(id, database);
        }
        self.after(Time::ms(self.scenario.upkeep.interval_ms), Event::Upkeep(id, incarnation));
    }

    /// Deletes what has expired and is this node's to delete, forgets old requests.
    fn tidy(&mut self, id: NodeId, database: DatabaseId) {
        let upkeep = self.scenario.upkeep.clone();
        let Some(node) = self.nodes.get(id) else { return };
        let (now, me) = (node.clock.read(self.now), node.peer);
        let Some(process) = node.process() else { return };
        let mine = expiry::is_mine(&database, &me, process.machine.durable(&database).into_iter().map(|(peer, _)| peer));
        let until = expiry::cutoff(now, Time::ms(upkeep.grace_ms).duration(), mine);
        let Ok(view) = process.engine.store().view(&database) else { return };
        let Ok(due) = expiry::due(&view, until) else { return };
        let tidies = Observation::Tidies {
            node: id,
            database,
            ops: &due.ops,
            now,
            mine,
            keep: (Stamp(now.0.saturating_sub(upkeep.retention_ms) << 16), upkeep.keep_requests),
        };
        self.observe(&tidies);
        if !due.ops.is_empty() {
            self.count("expired_deleted");
            let (ops, durability) = (due.ops, Durability::Buffered);
            let request = RequestId([0; 16]);
            let asked = Observation::Asked { client: SCRIPT_CLIENT, node: id, database, request, ops: &ops, durability };
            self.observe(&asked);
            self.submit(id, Work::Write { database, ops, request: None, durability }, Sender::Nobody);
        }
        let before = Stamp(now.0.saturating_sub(upkeep.retention_ms) << 16);
        let work = Work::Forget { database, before, keep: upkeep.keep_requests, limit: UPKEEP_REQUESTS };
        self.submit(id, work, Sender::Nobody);
    }
}
