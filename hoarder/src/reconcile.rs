//! What is to be looked at next: a queue in which each database stands once, however often it is asked for.

use std::collections::{BTreeSet, VecDeque};

use crdt::DatabaseId;

use crate::Moment;
use crate::limits::{RECONCILE_BATCH, RECONCILE_INTERVAL};

/// The queue of one node. Working off an entry twice does no harm: what it leads to depends on the state alone.
#[derive(Debug, Default)]
pub struct Reconcile {
    queue: VecDeque<DatabaseId>,
    queued: BTreeSet<DatabaseId>,
    /// Where the slow round stands.
    cursor: Option<DatabaseId>,
    next_round: Moment,
}

impl Reconcile {
    /// This database is to be looked at.
    pub fn want(&mut self, database: DatabaseId) {
        if self.queued.insert(database) {
            self.queue.push_back(database);
        }
    }

    /// Up to a batch of what waits, in the order in which it was asked for.
    pub fn take(&mut self) -> Vec<DatabaseId> {
        let batch = self.queue.len().min(RECONCILE_BATCH);
        let taken: Vec<DatabaseId> = self.queue.drain(..batch).collect();
        for database in &taken {
            self.queued.remove(database);
        }
        taken
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The slow round: some of all databases, so that each is looked at once in [`RECONCILE_INTERVAL`] without any cause.
    /// Called about once a second.
    pub fn round(&mut self, all: &BTreeSet<DatabaseId>, now: Moment) {
        if now < self.next_round || all.is_empty() {
            return;
        }
        let calls = usize::try_from(RECONCILE_INTERVAL.as_secs()).unwrap_or(1).max(1);
        let share = all.len().div_ceil(calls);
        let start = self.cursor.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let some: Vec<DatabaseId> = all.range((start, std::ops::Bound::Unbounded)).copied().take(share).collect();
        self.cursor = if some.len() < share { None } else { some.last().copied() };
        for database in some {
            self.want(database);
        }
        self.next_round = now + Moment::from_secs(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> DatabaseId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&number.to_be_bytes());
        DatabaseId(id)
    }

    #[test]
    fn a_database_stands_in_the_queue_once_and_batches_are_bounded() {
        let mut queue = Reconcile::default();
        for _ in 0..3 {
            (0..300).for_each(|n| queue.want(id(n)));
        }
        assert_eq!(queue.take(), (0..256).map(id).collect::<Vec<_>>());
        queue.want(id(0));
        assert_eq!(queue.take(), (256..300).map(id).chain([id(0)]).collect::<Vec<_>>());
        assert!(queue.is_empty());
    }

    #[test]
    fn the_slow_round_comes_to_every_database_within_its_time() {
        let all: BTreeSet<DatabaseId> = (0..1_000).map(id).collect();
        let mut queue = Reconcile::default();
        let mut seen = BTreeSet::new();
        for second in 0..=RECONCILE_INTERVAL.as_secs() {
            queue.round(&all, Moment::from_secs(second));
            seen.extend(queue.take());
        }
        assert_eq!(seen, all);
    }
}
