//! The engine's short memory of what has changed in one database.

use std::collections::VecDeque;

use crdt::{Changes, Key};

use super::Position;
use crate::limits::{MAX_RECENT_BYTES, RECENT_TURN_BYTES};

/// The keys that the last turns have changed, up to [`MAX_RECENT_BYTES`]. Whoever is further behind reads the log.
#[derive(Debug, Default)]
pub struct Recent {
    /// The last revision, remembered or not.
    latest: u64,
    /// Everything after this revision, up to `end`, is remembered.
    base: u64,
    end: Position,
    turns: VecDeque<Changes>,
    bytes: usize,
    /// How often the log was reset.
    resets: u64,
}

impl Recent {
    /// Remembers nothing, at this revision.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self { latest: revision, base: revision, end: Position { revision, dot: None }, ..Self::default() }
    }

    /// A turn has ended at this revision; without `changes` it was not watched.
    pub fn advance(&mut self, revision: u64, changes: Option<Changes>) {
        self.latest = self.latest.max(revision);
        let Some(changes) = changes else { return };
        if changes.from != self.end.revision {
            // Turns between were not watched.
            self.forget(changes.from);
        }
        self.end = Position { revision: changes.to, dot: Some(changes.dot) };
        self.bytes += cost(&changes);
        self.turns.push_back(changes);
        while self.bytes > MAX_RECENT_BYTES {
            let Some(oldest) = self.turns.pop_front() else { break };
            self.bytes -= cost(&oldest);
            self.base = oldest.to;
        }
    }

    /// The log has begun anew: the state was replaced as a whole, by a snapshot, a restore or a repair. Watchers are
    /// told to list again. A revision is never used twice, so the new one must be higher than any before.
    pub fn reset(&mut self, revision: u64) {
        self.latest = revision;
        self.resets += 1;
        self.forget(revision);
    }

    /// Gives the memory back; nobody watches any more.
    pub fn clear(&mut self) {
        self.forget(self.latest);
        self.turns.shrink_to_fit();
    }

    fn forget(&mut self, revision: u64) {
        self.turns.clear();
        self.bytes = 0;
        self.base = revision;
        self.end = Position { revision, dot: None };
    }

    /// Where the log ends, with the block there if it is remembered.
    #[must_use]
    pub fn latest(&self) -> Position {
        if self.end.revision == self.latest { self.end } else { Position { revision: self.latest, dot: None } }
    }

    /// How often the log was reset.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// The keys changed after a revision, some perhaps before it; `None` when the memory does not reach so far.
    pub(super) fn since(&self, revision: u64) -> Option<impl Iterator<Item = &Key>> {
        let whole = revision >= self.base && self.end.revision == self.latest;
        whole.then(|| self.turns.iter().rev().take_while(move |turn| turn.to > revision).flat_map(|turn| &turn.keys))
    }

    /// Bytes remembered, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn cost(turn: &Changes) -> usize {
    let keys: usize = turn.keys.iter().map(|key| key.as_bytes().len() + size_of::<Key>()).sum();
    RECENT_TURN_BYTES + keys
}
