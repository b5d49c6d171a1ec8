//! What must always hold, each rule in a file of its own, against a naive model of what each node must have.
//!
//! [`Checkers`] feeds the model ([`Truth`]) with the blocks that the simulated disks take, and asks every [`Check`] at each
//! step. A checker trusts nothing that the code under test says of itself: it compares that with the model.

mod acks;
mod agreement;
mod answers;
mod batches;
#[cfg(test)]
mod bites;
mod closure;
mod conditions;
mod confirmed;
mod deleted;
mod equality;
mod expected;
mod figures;
mod fleet;
mod heads;
mod history;
mod honest;
mod memory;
mod names;
mod order;
mod outcome;
mod rows;
mod seen;
mod stamps;
mod tidy;
mod truth;
mod visible;
mod watch;

use std::collections::BTreeSet;

use crdt::{
    Block, DatabaseId, Key, KeyRange, Order, Prefix, Projection, ReplicaState, Row, Store as _, View as _, WallTime, WriteSet,
};

use crate::fleet::FleetSeen;
use crate::observe::{Checker, End, NodeId, Observation, WorldView};
use crate::scenario::Scenario;
use crate::script::Script;
use crate::time::Time;

pub use truth::{Copy, Put, Truth, needs, switches};

/// What a checker says: nothing, or what is wrong.
pub type Verdict = Result<(), String>;

/// A block that a node's disk is about to take.
#[derive(Debug, Clone, Copy)]
pub struct Merging<'a> {
    /// The node.
    pub node: NodeId,
    /// The database into which it is merged.
    pub database: DatabaseId,
    /// The block.
    pub block: &'a Block,
    /// What the node had before it.
    pub before: &'a Copy,
    /// When.
    pub at: Time,
    /// The node's clock.
    pub wall: WallTime,
    /// Whether the block was made at this node.
    pub local: bool,
}

/// A rule. Every part has the truth as it is at that moment.
pub trait Check {
    /// Its name, in reports.
    fn name(&self) -> &'static str;

    /// A node's disk is about to take a block.
    ///
    /// # Errors
    /// What is wrong.
    fn merging(&mut self, _: &Merging<'_>, _: &Truth) -> Verdict {
        Ok(())
    }

    /// A node's disk took a batch; the truth has its blocks.
    ///
    /// # Errors
    /// What is wrong.
    fn committed(&mut self, _: NodeId, _: &WriteSet, _: &Truth) -> Verdict {
        Ok(())
    }

    /// A node's disk took a batch; the truth has its blocks, and still what it drops of history and requests.
    ///
    /// # Errors
    /// What is wrong.
    fn trimming(&mut self, _: NodeId, _: &WriteSet, _: &Truth) -> Verdict {
        Ok(())
    }

    /// Something else was seen.
    ///
    /// # Errors
    /// What is wrong.
    fn seen(&mut self, _: &Observation<'_>, _: &Truth) -> Verdict {
        Ok(())
    }

    /// A node started and its disk was read: `before` is what it had when it ended; the truth has what is there now.
    ///
    /// # Errors
    /// What is wrong.
    fn started(&mut self, _: NodeId, _: DatabaseId, _before: &Copy, _image: bool, _: &Truth) -> Verdict {
        Ok(())
    }

    /// Now and then, and at the end, for every replica of a node that is up.
    ///
    /// # Errors
    /// What is wrong.
    fn glance(&mut self, _: NodeId, _: DatabaseId, _: &WorldView<'_>, _: &Truth) -> Verdict {
        Ok(())
    }

    /// Marks that it saw reached, with how often.
    fn marks(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The run is over: all faults healed long ago.
    ///
    /// # Errors
    /// What is wrong.
    fn finish(&mut self, _: &WorldView<'_>, _: &Truth) -> Verdict {
        Ok(())
    }
}

/// All of them, fresh, for a run of this scenario.
#[must_use]
pub fn all(scenario: &Scenario) -> Vec<Box<dyn Checker>> {
    let script = Script::parse(&scenario.script).unwrap_or_default();
    let visible = visible::Visible::within(scenario.visible_within_ms);
    let history = history::History::new(scenario.nodes, scenario.history.holders);
    let tidy = tidy::Tidy::new(scenario.upkeep.grace_ms);
    let mut all = Checkers::new();
    if scenario.fleet.members > 0 {
        all.checks.extend(fleet::all());
    }
    let all = all.with(Box::new(expected::Expected(script.end))).with(Box::new(visible));
    vec![Box::new(all.with(Box::new(history)).with(Box::new(tidy)))]
}

/// So many commits pass between two looks at everything.
const COMMITS_PER_GLANCE: u64 = 1_000;

/// All checkers with the truth that they share.
pub struct Checkers {
    truth: Truth,
    checks: Vec<Box<dyn Check>>,
    /// Nodes whose disk was replaced since their process ended.
    replaced: BTreeSet<NodeId>,
    commits: u64,
    switches: u64,
    broken: Option<&'static str>,
}

impl std::fmt::Debug for Checkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.checks.iter().map(|check| check.name())).finish()
    }
}

impl Default for Checkers {
    fn default() -> Self {
        Self::new()
    }
}

impl Checkers {
    /// Every rule there is.
    #[must_use]
    pub fn new() -> Self {
        let checks: Vec<Box<dyn Check>> = vec![
            Box::new(closure::Closure),
            Box::new(names::Names::default()),
            Box::new(heads::Heads),
            Box::new(seen::Seen::default()),
            Box::new(stamps::Stamps),
            Box::new(rows::Rows),
            Box::new(deleted::Deleted),
            Box::new(figures::Figures),
            Box::new(confirmed::Confirmed::default()),
            Box::new(acks::Acks),
            Box::new(outcome::Outcome::default()),
            Box::new(batches::Batches::default()),
            Box::new(answers::Answers),
            Box::new(order::Callers::default()),
            Box::new(agreement::Agreement::default()),
            Box::new(honest::Honest::default()),
            Box::new(memory::Memory),
            Box::new(equality::Equality),
            Box::new(watch::Watching::default()),
            Box::new(conditions::Conditions::default()),
        ];
        Self { truth: Truth::default(), checks, replaced: BTreeSet::new(), commits: 0, switches: 0, broken: None }
    }

    /// One more rule, of an application for instance.
    #[must_use]
    pub fn with(mut self, check: Box<dyn Check>) -> Self {
        self.checks.push(check);
        self
    }

    /// What must be so.
    #[must_use]
    pub fn truth(&self) -> &Truth {
        &self.truth
    }

    /// The rule that was broken, if one was.
    #[must_use]
    pub fn broken(&self) -> Option<&'static str> {
        self.broken
    }

    fn each(&mut self, mut ask: impl FnMut(&mut dyn Check, &Truth) -> Verdict) -> Verdict {
        for check in &mut self.checks {
            if let Err(what) = ask(check.as_mut(), &self.truth) {
                self.broken = Some(check.name());
                return Err(what);
            }
        }
        Ok(())
    }

    fn committed(&mut self, at: Time, node: NodeId, sets: &[WriteSet], world: &WorldView<'_>) -> Verdict {
        let wall = world.wall(node, at);
        for set in sets {
            if switches(set) {
                if let Err(what) = self.truth.switch(node, set) {
                    self.broken = Some("causal closure");
                    return Err(what);
                }
                self.switches += 1;
            }
            for (_, block) in &set.blocks {
                let new = !self.truth.blocks.contains_key(&(set.database, block.dot()));
                let local = new && block.author().public_key == world.public_key(node);
                self.each(|check, truth| {
                    let before = truth.copy(node, set.database);
                    check.merging(&Merging { node, database: set.database, block, before, at, wall, local }, truth)
                })?;
                self.truth.take(node, block);
            }
            self.each(|check, truth| check.trimming(node, set, truth))?;
            self.truth.trim(node, set);
            self.each(|check, truth| check.committed(node, set, truth))?;
        }
        self.truth.batch(node);
        self.commits += 1;
        if self.commits.is_multiple_of(COMMITS_PER_GLANCE) { self.glance(world) } else { Ok(()) }
    }

    /// Reads a started node's disk, which is the truth about it from now on.
    fn booted(&mut self, node: NodeId, world: &WorldView<'_>) -> Verdict {
        let image = self.replaced.remove(&node);
        let (batches, synced) = world.history(node);
        self.truth.restart(node, batches.len());
        let mut before = Vec::new();
        for database in world.databases() {
            before.push((database, self.truth.replace(node, *database, batches)?));
        }
        // Only now: it changes what all copies of the node have on disk, also those of before.
        self.truth.synced(node, batches.len(), synced);
        for (database, before) in &before {
            stored_log(node, database, &self.truth, world)?;
            self.each(|check, truth| check.started(node, **database, before, image, truth))?;
            self.each(|check, truth| check.glance(node, **database, world, truth))?;
        }
        Ok(())
    }

    fn glance(&mut self, world: &WorldView<'_>) -> Verdict {
        for node in (0..world.nodes()).filter(|node| world.is_up(*node)) {
            for database in world.databases().iter().filter(|database| world.keeps(node, database)) {
                self.each(|check, truth| check.glance(node, *database, world, truth))?;
            }
        }
        Ok(())
    }
}

impl Checker for Checkers {
    fn name(&self) -> &'static str {
        self.broken.unwrap_or("checkers")
    }

    fn observe(&mut self, at: Time, seen: &Observation<'_>, world: &WorldView<'_>) -> Verdict {
        self.truth.now = at;
        match seen {
            Observation::Committed { node, writes, .. } => self.committed(at, *node, writes, world)?,
            Observation::Synced { node, batches, .. } => self.truth.synced(*node, *batches, world.history(*node).1),
            Observation::Ended { node, how: End::Disk | End::Restored, .. } => {
                self.replaced.insert(*node);
            }
            Observation::Booted { node } => self.booted(*node, world)?,
            Observation::Fleet(FleetSeen::Released { node, database }) => {
                self.each(|check, truth| check.seen(seen, truth))?;
                self.truth.forget(*node, *database);
                return Ok(());
            }
            Observation::Healed => self.glance(world)?,
            // Now that the turn is over: all that the new rows must be, at once.
            Observation::Switched { node, database } => {
                self.each(|check, truth| check.glance(*node, *database, world, truth))?;
            }
            _ => {}
        }
        self.each(|check, truth| check.seen(seen, truth))
    }

    fn finish(&mut self, world: &WorldView<'_>) -> Verdict {
        self.glance(world)?;
        self.each(|check, truth| check.finish(world, truth))
    }

    fn marks(&self) -> Vec<(&'static str, u64)> {
        let mut marks = vec![("snapshot_switches", self.switches)];
        marks.extend(self.checks.iter().flat_map(|check| check.marks()));
        marks
    }
}

/// What a node's log still keeps must be the last part of what it took, without a gap and with every block.
fn stored_log(node: NodeId, database: &DatabaseId, truth: &Truth, world: &WorldView<'_>) -> Verdict {
    let copy = truth.copy(node, *database);
    let Some(view) = world.store(node).and_then(|store| store.view(database).ok()) else { return Ok(()) };
    let mut next = copy.floor + 1;
    for entry in view.log(0) {
        let crdt::LogEntry { revision, dot, .. } = entry.map_err(|error| error.to_string())?;
        let taken = usize::try_from(revision - 1).ok().and_then(|at| copy.log.get(at)).copied();
        let Some(taken) = taken.filter(|taken| revision == next && taken.is_none_or(|taken| taken == dot)) else {
            return Err(format!("n{node} has {dot} at revision {revision} of its log, {next} comes next, there was {taken:?}"));
        };
        let stored = if taken.is_some() { view.block(&dot).map_err(|error| error.to_string())? } else { None };
        let must = truth.blocks.get(&(*database, dot)).map(Block::hash);
        if taken.is_some() && stored.map(|stored| stored.hash) != must {
            return Err(format!("n{node} has {dot} in its log and not the block of it"));
        }
        next += 1;
    }
    if next == copy.revision() + 1 { Ok(()) } else { Err(format!("the log of n{node} ends before revision {next}")) }
}

/// The state record that a start would find. What is in the engine's memory may be ahead of it after a failed commit.
fn stored_state(node: NodeId, database: &DatabaseId, world: &WorldView<'_>) -> Option<ReplicaState> {
    world.store(node)?.view(database).ok()?.state().ok()
}

/// Every row that a reader of this node finds.
fn stored_rows(node: NodeId, database: &DatabaseId, world: &WorldView<'_>) -> Result<Vec<(Key, Row)>, String> {
    let Some(view) = world.store(node).and_then(|store| store.view(database).ok()) else { return Ok(Vec::new()) };
    let rows = view.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows).collect::<Result<Vec<_>, _>>();
    rows.map_err(|error| error.to_string())
}
