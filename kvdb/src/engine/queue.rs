//! What waits for the engine, and how much of it one turn takes.

use std::collections::VecDeque;

use crdt::{Change, LocalOp, SnapshotWrite};

use super::machine::Work;
use crate::limits::{
    MAX_INBOX_BYTES, MAX_RECEIVED_INBOX_BYTES, MAX_TURN_BYTES, MAX_TURN_RECEIVED_BYTES, MAX_TURN_WORKS, WORK_OVERHEAD_BYTES,
};

/// This node's own work and what peers sent, each in the order in which it came, each piece with whatever its sender needs
/// for the answer. Own work goes first, and each turn takes a little of the other, so that a flood of blocks delays a local
/// write by a short turn and neither waits for ever.
#[derive(Debug)]
pub struct WorkQueue<T> {
    own: VecDeque<(Work, usize, T)>,
    received: VecDeque<(Work, usize, T)>,
}

impl<T> Default for WorkQueue<T> {
    fn default() -> Self {
        Self { own: VecDeque::new(), received: VecDeque::new() }
    }
}

impl<T> WorkQueue<T> {
    /// Adds work of so many bytes, see [`work_bytes`].
    pub fn push(&mut self, work: Work, bytes: usize, sender: T) {
        let queue = if is_received(&work) { &mut self.received } else { &mut self.own };
        queue.push_back((work, bytes, sender));
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.received.is_empty()
    }

    /// Drops everything that waits.
    pub fn clear(&mut self) {
        self.own.clear();
        self.received.clear();
    }

    /// The next turn's work, within the limits of a turn.
    pub fn take(&mut self) -> (Vec<Work>, Vec<T>) {
        let room = (self.own.len() + self.received.len()).min(MAX_TURN_WORKS);
        let (mut works, mut senders) = (Vec::with_capacity(room), Vec::with_capacity(room));
        for (queue, limit) in [(&mut self.own, MAX_TURN_BYTES), (&mut self.received, MAX_TURN_RECEIVED_BYTES)] {
            let (mut bytes, mut count) = (0, 0);
            while count < MAX_TURN_WORKS / 2 && bytes < limit {
                let Some((work, size, sender)) = queue.pop_front() else { break };
                bytes += size;
                count += 1;
                // A turn opens first and closes last: what comes after a close belongs to the next.
                let last = matches!(work, Work::Close(_));
                works.push(work);
                senders.push(sender);
                if last {
                    return (works, senders);
                }
            }
        }
        (works, senders)
    }
}

/// Whether a peer, and not this node, had the work done.
pub fn is_received(work: &Work) -> bool {
    matches!(work, Work::Blocks { .. } | Work::Stage { .. })
}

/// The room for work of a kind that waits, in bytes.
pub fn inbox_room(received: bool) -> usize {
    if received { MAX_RECEIVED_INBOX_BYTES } else { MAX_INBOX_BYTES }
}

/// The bytes of a piece of work.
pub fn work_bytes(work: &Work) -> usize {
    match work {
        Work::Write { ops, .. } => ops.iter().map(op_bytes).sum(),
        Work::Blocks { blocks, .. } => blocks.iter().map(|block| block.bytes().len()).sum(),
        Work::Stage { write: SnapshotWrite::Chunk { bytes, .. }, .. } => bytes.len(),
        Work::Stage { .. }
        | Work::Truncate { .. }
        | Work::Forget { .. }
        | Work::Freeze { .. }
        | Work::Sync
        | Work::Open(_)
        | Work::Close(_) => 0,
    }
}

/// The room in the inbox that work of so many bytes takes until it is answered, of [`inbox_room`].
pub fn inbox_cost(bytes: usize) -> usize {
    // One piece of work may be larger than the rest of the queue, never than the whole.
    (bytes + WORK_OVERHEAD_BYTES).min(MAX_RECEIVED_INBOX_BYTES)
}

fn op_bytes(op: &LocalOp) -> usize {
    let value = match &op.change {
        Change::Put { value, .. } => value.len(),
        Change::Tombstone => 0,
    };
    let seen = op.terms.as_ref().and_then(|terms| terms.seen.as_ref()).map_or(0, |dots| size_of_val(dots.as_slice()));
    op.key.as_bytes().len() + value + seen + 64
}

#[cfg(test)]
mod tests {
    use crdt::{DatabaseId, Durability, Source};

    use super::*;

    const DATABASE: DatabaseId = DatabaseId([1; 32]);

    fn write() -> Work {
        Work::Write { database: DATABASE, ops: Vec::new(), request: None, durability: Durability::Sync }
    }

    fn blocks() -> Work {
        Work::Blocks { database: DATABASE, blocks: Vec::new(), source: Source(1) }
    }

    #[test]
    fn own_work_goes_first_and_a_turn_takes_little_of_what_peers_sent() {
        let mut queue = WorkQueue::default();
        for n in 0..100 {
            queue.push(blocks(), MAX_TURN_RECEIVED_BYTES / 2, n);
        }
        for n in 100..1_100 {
            queue.push(write(), 10, n);
        }
        let (works, senders) = queue.take();
        let expected: Vec<usize> = (100..100 + MAX_TURN_WORKS / 2).chain(0..2).collect();
        assert_eq!((works.len(), senders), (expected.len(), expected));
        // Nobody waits for ever, however much there is of the other.
        assert_eq!(queue.take().1.last(), Some(&3));
        assert_eq!(queue.take().1, [4, 5]);
    }

    #[test]
    fn what_comes_after_a_close_belongs_to_the_next_turn() {
        let mut queue = WorkQueue::default();
        for (n, work) in [write(), Work::Close(DATABASE), write(), blocks()].into_iter().enumerate() {
            queue.push(work, 1, n);
        }
        assert_eq!(queue.take().1, [0, 1]);
        assert_eq!(queue.take().1, [2, 3]);
        assert!(queue.is_empty());
    }
}
