//! Joining staged snapshots: a piece at a time, between the turns, so that nobody waits for the whole.

use crdt::snapshot::{JoinError, SnapshotJoin};
use crdt::{Committed, DatabaseId, Dot, Durability, SnapshotWrite, Step, Store, View};

use super::machine::{Advance, Engine, TurnEnv, TurnOutcome};
use super::port::{SnapshotOutcome, WriteError};

/// What a part of a snapshot means for the join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staging {
    /// What was staged is gone.
    Anew,
    /// One chunk more.
    Goes,
    /// The last chunk.
    Complete,
}

impl Staging {
    pub(super) fn of(write: &SnapshotWrite) -> Self {
        match write {
            SnapshotWrite::Chunk { next, .. } if next.is_empty() => Self::Complete,
            SnapshotWrite::Chunk { .. } => Self::Goes,
            _ => Self::Anew,
        }
    }
}

impl<S: Store> Engine<S> {
    /// Whether a staged snapshot waits to be joined: then a turn without work does a piece of that.
    pub fn joining(&self) -> bool {
        !self.joins.is_empty()
    }

    /// Something of a snapshot is in the store.
    pub(super) fn staged(&mut self, database: DatabaseId, staging: Staging) {
        match staging {
            Staging::Goes => {}
            Staging::Anew => drop(self.joins.remove(&database)),
            Staging::Complete => drop(self.joins.insert(database, None)),
        }
    }

    /// One piece of one join, in a commit of its own.
    pub(super) fn join_piece(&mut self, env: &TurnEnv<'_>, outcome: &mut TurnOutcome) {
        let Some((database, join)) = self.joins.pop_first() else { return };
        if self.poison().is_some() {
            outcome.snapshots.push((database, SnapshotOutcome::Failed));
            return;
        }
        match self.piece(database, join, env, outcome) {
            Ok(Some(join)) => drop(self.joins.insert(database, Some(join))),
            Ok(None) => outcome.snapshots.push((database, SnapshotOutcome::Joined)),
            // From the start: what was built does not know what came meanwhile.
            Err(JoinFailure::Stale) => drop(self.joins.insert(database, None)),
            Err(JoinFailure::Invalid(cause)) => {
                let discarded = self.discard(database);
                let failed = SnapshotOutcome::Failed;
                outcome.snapshots.push((database, discarded.map_or(failed, |()| SnapshotOutcome::Invalid { cause })));
            }
            Err(JoinFailure::Lacking(dot)) => {
                let discarded = self.discard(database);
                let failed = SnapshotOutcome::Failed;
                outcome.snapshots.push((database, discarded.map_or(failed, |()| SnapshotOutcome::Lacking { dot })));
            }
            Err(JoinFailure::Store) => outcome.snapshots.push((database, SnapshotOutcome::Failed)),
        }
        if !self.joins.contains_key(&database) {
            // Replaced, or not to be any more.
            self.frozen.remove(&database);
        }
    }

    fn piece(
        &mut self,
        database: DatabaseId,
        join: Option<SnapshotJoin>,
        env: &TurnEnv<'_>,
        outcome: &mut TurnOutcome,
    ) -> Result<Option<SnapshotJoin>, JoinFailure> {
        let rows = self.join_rows;
        let replica = self.open.get_mut(&database).ok_or(JoinFailure::Store)?;
        let (vv, revision) = (replica.vv(), replica.meta().revision);
        let (join, piece) = {
            let view = self.store.view(&database).map_err(|_| JoinFailure::Store)?;
            let mut join = match join {
                Some(join) => join,
                None => {
                    let staged = view.staged().map_err(|_| JoinFailure::Store)?.ok_or(JoinFailure::Store)?;
                    let join = SnapshotJoin::new(database, staged.head, revision);
                    join.map_err(|error| JoinFailure::Invalid(error.to_string()))?.in_pieces_of(rows)
                }
            };
            let piece = join.piece(&view, &vv, revision).map_err(|error| match error {
                JoinError::Invalid(error) => JoinFailure::Invalid(error.to_string()),
                JoinError::Lacking(dot) => JoinFailure::Lacking(dot),
                JoinError::Stale => JoinFailure::Stale,
                JoinError::Store(_) => JoinFailure::Store,
            })?;
            (join, piece)
        };
        let Some(joined) = piece.joined else {
            let step = replica.stage(piece.writes, piece.requests);
            self.commit(vec![step], Durability::Buffered).map_err(|_| JoinFailure::Store)?;
            return Ok(Some(join));
        };
        let replaces = joined.replaces;
        let step = replica.switch(joined, piece.writes);
        // Synced, and with it all that was built and merged before.
        let committed = self.commit(vec![step], Durability::Sync).map_err(|_| JoinFailure::Store)?;
        if replaces {
            // Whatever was known of it is void, what waits included.
            let mut synced = self.all_synced();
            synced.remove(&database);
            outcome.durable = synced;
            let replica = self.resume(database).map_err(|_| JoinFailure::Store)?;
            self.open.insert(database, replica);
            outcome.replaced.push(database);
            return Ok(None);
        }
        self.switched(committed, outcome);
        outcome.durable = self.all_synced();
        self.released(database, env, outcome);
        Ok(None)
    }

    fn switched(&mut self, committed: Vec<Committed>, outcome: &mut TurnOutcome) {
        for Committed { database, meta, vv, floors, switched, .. } in committed {
            self.note_unsynced(database, &vv);
            outcome.advanced.push(Advance { database, vv, floors, meta, sealed: Vec::new(), changes: None, switched });
        }
    }

    /// What waited for blocks that the snapshot brought, in a commit of its own. If it fails, sync brings them again.
    fn released(&mut self, database: DatabaseId, env: &TurnEnv<'_>, outcome: &mut TurnOutcome) {
        let watched = self.watched.contains(&database);
        let Some(replica) = self.open.get_mut(&database) else { return };
        let mut turn = replica.begin();
        if watched {
            turn = turn.watched(env.now);
        }
        let released = self.store.view(&database).and_then(|view| replica.release(&view, &mut turn));
        if released.is_err() {
            match self.resume(database) {
                Ok(replica) => drop(self.open.insert(database, replica)),
                Err(error) => self.set_poison(error.to_string()),
            }
            return;
        }
        let step: Step = replica.finish(turn);
        for Committed { database, meta, vv, floors, changes, .. } in
            self.commit(vec![step], Durability::Buffered).unwrap_or_default()
        {
            if !vv.is_empty() {
                self.note_unsynced(database, &vv);
                self.owes_sync = true;
                outcome.advanced.push(Advance { database, vv, floors, meta, sealed: Vec::new(), changes, switched: false });
            }
        }
    }

    fn discard(&mut self, database: DatabaseId) -> Result<(), WriteError> {
        let Some(replica) = self.open.get_mut(&database) else { return Ok(()) };
        let step = replica.stage(vec![SnapshotWrite::Discard], Vec::new());
        self.commit(vec![step], Durability::Buffered).map(drop)
    }
}

enum JoinFailure {
    Store,
    Stale,
    Invalid(String),
    Lacking(Dot),
}
