//! A turn gathers what one database's inputs change; a step is a finished turn, whose effects come out of its commit only.

use std::collections::BTreeMap;

use crate::block::{Block, RequestId};
use crate::database::DatabaseId;
use crate::dot::{Dot, ReplicaId};
use crate::effect::Effect;
use crate::heads::Heads;
use crate::key::Key;
use crate::mutation::{Mutation, active};
use crate::row::Row;
use crate::store::{Durability, Meta, RequestRecord, RowWrite, Store, View, VvEntry, WriteSet};

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
    pub(crate) effects: Vec<Effect>,
    pub(crate) heads_before: Heads,
}

#[derive(Debug)]
pub(crate) struct TurnRow {
    pub(crate) row: Row,
    /// What the store holds at this key: dots and value lengths.
    stored: Vec<(Dot, u32)>,
    changed: bool,
}

impl Turn {
    pub(crate) fn new(heads_before: Heads) -> Self {
        Self {
            rows: BTreeMap::new(),
            blocks: Vec::new(),
            vv: BTreeMap::new(),
            requests: BTreeMap::new(),
            effects: Vec::new(),
            heads_before,
        }
    }

    /// The row as this turn leaves it so far.
    pub(crate) fn row<V: View>(&mut self, view: &V, key: &Key) -> Result<&mut TurnRow, V::Error> {
        // Two look-ups, because the entry API would need an owned key for the common hit too.
        if !self.rows.contains_key(key) {
            let row = view.row(key)?;
            let stored = row.siblings().iter().map(|sibling| (sibling.dot, sibling.len)).collect();
            self.rows.insert(key.clone(), TurnRow { row, stored, changed: false });
        }
        #[expect(clippy::expect_used, reason = "inserted just above")]
        Ok(self.rows.get_mut(key).expect("present"))
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
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
}

/// A finished turn of one database. Its effects can be had only by committing it.
#[must_use = "what a step wrote is lost unless it is committed"]
#[derive(Debug)]
pub struct Step {
    writes: WriteSet,
    effects: Vec<Effect>,
}

impl Step {
    pub(crate) fn new(database: DatabaseId, turn: Turn, heads: &Heads, mut meta: Meta) -> Self {
        let mut rows = Vec::with_capacity(turn.rows.len());
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
            let mut dropped = entry.stored;
            dropped.retain(|(dot, _)| entry.row.dots().all(|alive| alive != *dot));
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
        };
        Self { writes, effects: turn.effects }
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
            committed.push(Committed { database, meta, vv, effects: step.effects });
            if !step.writes.blocks.is_empty() {
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
    /// What is to be done now, in order.
    pub effects: Vec<Effect>,
}
