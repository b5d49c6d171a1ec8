//! What waits for the engine, and how much of it one turn takes.

use std::collections::VecDeque;

use crdt::{Change, LocalOp, SnapshotWrite};

use super::machine::Work;
use crate::limits::{MAX_INBOX_BYTES, MAX_TURN_BYTES, MAX_TURN_WORKS, WORK_OVERHEAD_BYTES};

/// Work in the order in which it came, each piece with whatever its sender needs for the answer.
#[derive(Debug)]
pub struct WorkQueue<T> {
    works: VecDeque<(Work, usize, T)>,
}

impl<T> Default for WorkQueue<T> {
    fn default() -> Self {
        Self { works: VecDeque::new() }
    }
}

impl<T> WorkQueue<T> {
    /// Adds work of so many bytes, see [`work_bytes`].
    pub fn push(&mut self, work: Work, bytes: usize, sender: T) {
        self.works.push_back((work, bytes, sender));
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Drops everything that waits.
    pub fn clear(&mut self) {
        self.works.clear();
    }

    /// The next turn's work, within the limits of a turn.
    pub fn take(&mut self) -> (Vec<Work>, Vec<T>) {
        let mut bytes = 0;
        let room = self.works.len().min(MAX_TURN_WORKS);
        let (mut works, mut senders) = (Vec::with_capacity(room), Vec::with_capacity(room));
        while works.len() < MAX_TURN_WORKS && bytes < MAX_TURN_BYTES {
            let Some((work, size, sender)) = self.works.pop_front() else { break };
            bytes += size;
            // A turn opens first and closes last: what comes after a close belongs to the next.
            let last = matches!(work, Work::Close(_));
            works.push(work);
            senders.push(sender);
            if last {
                break;
            }
        }
        (works, senders)
    }
}

/// The bytes of a piece of work.
pub fn work_bytes(work: &Work) -> usize {
    match work {
        Work::Write { ops, .. } => ops.iter().map(op_bytes).sum(),
        Work::Blocks { blocks, .. } => blocks.iter().map(|block| block.bytes().len()).sum(),
        Work::Stage { write: SnapshotWrite::Chunk { bytes, .. }, .. } => bytes.len(),
        Work::Stage { .. } | Work::Truncate { .. } | Work::Forget { .. } | Work::Sync | Work::Open(_) | Work::Close(_) => 0,
    }
}

/// The room in the inbox that work of so many bytes takes until it is answered, of [`MAX_INBOX_BYTES`].
pub fn inbox_cost(bytes: usize) -> usize {
    // One piece of work may be larger than the rest of the queue, never than the whole.
    (bytes + WORK_OVERHEAD_BYTES).min(MAX_INBOX_BYTES)
}

fn op_bytes(op: &LocalOp) -> usize {
    let value = match &op.change {
        Change::Put { value, .. } => value.len(),
        Change::Tombstone => 0,
    };
    let seen = op.terms.as_ref().and_then(|terms| terms.seen.as_ref()).map_or(0, |dots| size_of_val(dots.as_slice()));
    op.key.as_bytes().len() + value + seen + 64
}
