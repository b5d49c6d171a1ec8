//! A turn gathers what one database's inputs change; a step is a finished turn, whose effects come out of its commit only.

use std::collections::BTreeMap;

use crate::block::{Block, RequestId};
use crate::clock::{Stamp, WallTime};
use crate::database::DatabaseId;
use crate::dot::{Dot, ReplicaId};
use crate::effect::Effect;
use crate::heads::Heads;
use crate::key::Key;
use crate::mutation::{Mutation, active};
use crate::row::Row;
use crate::store::{
    Dropped, Durability, LogEntry, Meta, RequestRecord, RowWrite, SnapshotWrite, Store, Truncation, View, VvEntry, WriteSet,
};

/// The changes of one database while a turn is under way. Later inputs of the turn read what earlier ones wrote.
///
/// When a read fails in the middle, the replica and its turn are of no use any more: both must be dropped and the
/// replica resumed from the store, in which nothing has changed.
#[derive(Debug)]
pub struct Turn {
    pub(crate) rows: BTreeMap<Key, TurnRow>,
    pub(crate) blocks: Vec<(u64, Block)>,
    pub(crate) vv: BTreeMap<ReplicaId, VvEntry>,
    pub(crate) requests: BTreeMap<RequestId, RequestRecord>,
    pub(crate) truncated: Vec<LogEntry>,
    /// Floors that rose.
    pub(crate) floors: BTreeMap<ReplicaId, u64>,
    pub(crate) snapshot: Vec<SnapshotWrite>,
    /// Rows changed otherwise than by blocks.
    pub(crate) switched: bool,
    pub(crate) forgotten: BTreeMap<RequestId, Stamp>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) heads_before: Heads,
    /// When reads take place, if somebody watches the database.
    watched: Option<WallTime>,
}

#[derive(Debug)]
pub(crate) struct TurnRow {
    pub(crate) row: Row,
    /// What the store holds at this key, winner first.
    stored: Vec<Dropped>,
    /// What `get` answers from the store; looked up only when somebody watches.
    winner: Option<Dot>,
    changed: bool,
}

impl Turn {
    pub(crate) fn new(heads_before: Heads) -> Self {
        Self {
            rows: BTreeMap::new(),
            blocks: Vec::new(),
            vv: BTreeMap::new(),
            requests: BTreeMap::new(),
            truncated: Vec::new(),
            floors: BTreeMap::new(),
            snapshot: Vec::new(),
            switched: false,
            forgotten: BTreeMap::new(),
            effects: Vec::new(),
            heads_before,
            watched: None,
        }
    }

    /// The same turn, whose commit will tell which winners have changed as reads see them at this time. To be called
    /// before any input; without it watching costs nothing.
    #[must_use]
    pub fn watched(mut self, now: WallTime) -> Self {
        self.watched = Some(now);
        self
    }

    /// The row as this turn leaves it so far.
    pub(crate) fn row<V: View>(&mut self, view: &V, key: &Key) -> Result<&mut TurnRow, V::Error> {
        // Two look-ups, because the entry API would need an owned key for the common hit too.
        if !self.rows.contains_key(key) {
            let row = view.row(key)?;
            let stored = row.siblings().iter().map(Dropped::of).collect();
            let winner = self.watched.and_then(|now| row.winner(now)).map(|sibling| sibling.dot);
            self.rows.insert(key.clone(), TurnRow { row, stored, winner, changed: false });
        }
        #[expect(clippy::expect_used, reason = "inserted just above")]
        Ok(self.rows.get_mut(key).expect("present"))
    }

    /// Writes a row as it is, for a mutation.
    pub(crate) fn show(&mut self, key: &Key, row: &Row) {
        let row = TurnRow { row: row.clone(), stored: Vec::new(), winner: None, changed: true };
        self.rows.insert(key.clone(), row);
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Adds a part of a snapshot that is being received. It changes nothing of the replica.
    pub fn stage(&mut self, write: SnapshotWrite) {
        debug_assert!(
            matches!(write, SnapshotWrite::Discard | SnapshotWrite::Begin { .. } | SnapshotWrite::Chunk { .. }),
            "what is built comes from a join"
        );
        self.snapshot.push(write);
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.truncated.is_empty() && self.snapshot.is_empty() && self.forgotten.is_empty()
    }

    /// Effects gathered so far in this turn; they come out of the commit in the same order.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.effects.len()
    }

    /// Blocks merged so far in this turn.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }
}

impl TurnRow {
    pub(crate) fn change(&mut self) -> &mut Row {
        self.changed = true;
        &mut self.row
    }

    /// Whether watchers are to look: what `get` answers has changed, or what it answered before something expired.
    fn shows_another(&self, now: WallTime) -> bool {
        if active(Mutation::WatchedDeleteMissed) && self.row.is_empty() {
            return false;
        }
        self.stored.first().map(|sibling| sibling.dot) != self.row.dots().next()
            || self.winner != self.row.winner(now).map(|sibling| sibling.dot)
    }
}

/// A finished turn of one database. Its effects can be had only by committing it.
#[must_use = "what a step wrote is lost unless it is committed"]
#[derive(Debug)]
pub struct Step {
    writes: WriteSet,
    effects: Vec<Effect>,
    changed: Option<Vec<Key>>,
    switched: bool,
}

impl Step {
    pub(crate) fn new(database: DatabaseId, turn: Turn, heads: &Heads, mut meta: Meta) -> Self {
        let mut rows = Vec::with_capacity(turn.rows.len());
        let mut changed = turn.watched.map(|_| Vec::new());
        for (key, entry) in turn.rows {
            if !entry.changed {
                continue;
            }
            match (entry.stored.is_empty(), entry.row.is_empty()) {
                (true, true) => continue,
                (true, false) => meta.keys += 1,
                (false, true) => meta.keys -= u64::from(!active(Mutation::KeysNotLowered)),
                (false, false) => {}
            }
            if let (Some(now), Some(changed)) = (turn.watched, &mut changed)
                && entry.shows_another(now)
            {
                changed.push(key.clone());
            }
            let mut dropped = entry.stored;
            dropped.retain(|sibling| entry.row.dots().all(|alive| alive != sibling.dot));
            rows.push(RowWrite { key, row: entry.row, dropped });
        }
        let writes = WriteSet {
            database,
            rows,
            blocks: turn.blocks,
            vv: turn.vv.into_iter().collect(),
            heads: heads.change_since(&turn.heads_before),
            meta,
            requests: turn.requests.into_iter().collect(),
            forgotten: turn.forgotten.into_iter().collect(),
            truncation: Truncation { entries: turn.truncated, floors: turn.floors.into_iter().collect() },
            snapshot: turn.snapshot,
        };
        Self { writes, effects: turn.effects, changed, switched: turn.switched }
    }

    pub(crate) fn meta(&self) -> Meta {
        self.writes.meta
    }

    /// The database that this step belongs to.
    #[must_use]
    pub fn database(&self) -> DatabaseId {
        self.writes.database
    }

    /// Commits the steps of several databases as one atomic batch and hands out their effects.
    ///
    /// # Errors
    /// When the store failed. No effect comes out; every replica of the store must be resumed from what is on disk.
    ///
    /// # Durability
    /// As asked; steps that wrote nothing let their effects out without a commit, unless `Sync` is asked, which then
    /// covers everything committed before.
    pub fn commit_all<S: Store>(steps: Vec<Self>, store: &mut S, durability: Durability) -> Result<Vec<Committed>, S::Error> {
        let mut writes = Vec::with_capacity(steps.len());
        let mut committed = Vec::with_capacity(steps.len());
        for step in steps {
            let database = step.writes.database;
            let meta = step.writes.meta;
            let vv = step.writes.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
            let log = step.writes.blocks.first().zip(step.writes.blocks.last());
            let changes = step.changed.zip(log).map(|(keys, ((first, _), (to, last)))| {
                // Revisions start at 1.
                Changes { from: first - 1, to: *to, dot: last.dot(), keys }
            });
            let floors = step.writes.truncation.floors.clone();
            committed.push(Committed { database, meta, vv, floors, effects: step.effects, changes, switched: step.switched });
            if !step.writes.is_empty() {
                writes.push(step.writes);
            }
        }
        if !writes.is_empty() || durability == Durability::Sync {
            let durability = if active(Mutation::EffectsBeforeSync) { Durability::Buffered } else { durability };
            let outcome = store.commit(&writes, durability);
            outcome.or_else(|error| if active(Mutation::EffectsOfFailedCommit) { Ok(()) } else { Err(error) })?;
        }
        Ok(committed)
    }
}

/// What a committed step lets out.
#[derive(Debug, PartialEq, Eq)]
pub struct Committed {
    /// The database.
    pub database: DatabaseId,
    /// Its figures after the commit.
    pub meta: Meta,
    /// The version vector entries that rose.
    pub vv: Vec<(ReplicaId, u64)>,
    /// The floors of history that rose.
    pub floors: Vec<(ReplicaId, u64)>,
    /// Rows were replaced as a whole, by a snapshot: whoever watches them must look at all of them again.
    pub switched: bool,
    /// What is to be done now, in order.
    pub effects: Vec<Effect>,
    /// What watchers are to look at; `None` unless the turn was watched and merged something.
    pub changes: Option<Changes>,
}

/// What a step of a watched database means to its watchers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The log's revision before the step.
    pub from: u64,
    /// The log's revision after it.
    pub to: u64,
    /// The block at that revision.
    pub dot: Dot,
    /// The keys whose winner has changed, ascending. A merged sibling that loses changes none.
    pub keys: Vec<Key>,
}
