//! The pool of blocks that wait for others, bounded in count, bytes and each sender's share.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::Block;
use crate::dot::{Dot, ReplicaId};
use crate::limits::{MAX_PENDING_BLOCKS, MAX_PENDING_BYTES, MAX_PENDING_SHARE_PERCENT};
use crate::mutation::{Mutation, active};

/// Who handed a block in: a number that the caller gives to each peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Source(pub u64);

/// Bounds of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingLimits {
    /// Most blocks.
    pub blocks: usize,
    /// Most bytes.
    pub bytes: usize,
    /// Most bytes of one sender.
    pub source_bytes: usize,
    /// Most blocks of one sender.
    pub source_blocks: usize,
}

impl Default for PendingLimits {
    fn default() -> Self {
        Self {
            blocks: MAX_PENDING_BLOCKS,
            bytes: MAX_PENDING_BYTES,
            source_bytes: MAX_PENDING_BYTES * MAX_PENDING_SHARE_PERCENT / 100,
            source_blocks: MAX_PENDING_BLOCKS * MAX_PENDING_SHARE_PERCENT / 100,
        }
    }
}

/// Blocks waiting for a dot that is not merged yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    limits: PendingLimits,
    blocks: BTreeMap<Dot, Held>,
    /// For each missing dot the blocks that wait for it.
    waiting: BTreeMap<Dot, BTreeSet<Dot>>,
    bytes: usize,
    shares: BTreeMap<Source, Share>,
}

#[derive(Debug)]
struct Held {
    block: Block,
    source: Source,
    missing: Dot,
}

#[derive(Debug, Default)]
struct Share {
    blocks: usize,
    bytes: usize,
}

impl Pending {
    pub(crate) fn new(limits: PendingLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The dots that blocks here wait for and that are not here themselves.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = Dot> + '_ {
        self.waiting.keys().filter(|dot| !self.blocks.contains_key(dot)).copied()
    }

    /// The writers of blocks that are here or waited for.
    pub(crate) fn replicas(&self) -> BTreeSet<ReplicaId> {
        self.waiting.keys().chain(self.blocks.keys()).map(|dot| dot.replica).collect()
    }

    /// Keeps a block until `missing` is merged; `false` when there is no room. A block already here stays as it is.
    pub(crate) fn hold(&mut self, block: Block, source: Source, missing: Dot) -> bool {
        let dot = block.dot();
        if self.blocks.contains_key(&dot) {
            return true;
        }
        let size = block.bytes().len();
        let share = self.shares.entry(source).or_default();
        let full = self.blocks.len() >= self.limits.blocks
            || self.bytes + size > self.limits.bytes
            || share.blocks >= self.limits.source_blocks
            || share.bytes + size > self.limits.source_bytes;
        if full {
            if share.blocks == 0 {
                self.shares.remove(&source);
            }
            return false;
        }
        share.blocks += 1;
        share.bytes += size;
        self.bytes += size;
        self.waiting.entry(missing).or_default().insert(dot);
        self.blocks.insert(dot, Held { block, source, missing });
        true
    }

    /// Takes out every block that waits for a dot of this replica up to `seq`, or that is one of them.
    pub(crate) fn release(&mut self, replica: ReplicaId, seq: u64) -> Vec<(Block, Source)> {
        let range = Dot { replica, seq: 0 }..=Dot { replica, seq };
        let mut dots: BTreeSet<Dot> = self.waiting.range(range.clone()).flat_map(|(_, dots)| dots).copied().collect();
        dots.extend(self.blocks.range(range).map(|(dot, _)| *dot));
        dots.retain(|_| !active(Mutation::PendingKept));
        dots.into_iter().filter_map(|dot| self.take(dot)).collect()
    }

    fn take(&mut self, dot: Dot) -> Option<(Block, Source)> {
        let Held { block, source, missing } = self.blocks.remove(&dot)?;
        if let Some(dots) = self.waiting.get_mut(&missing) {
            dots.remove(&dot);
            if dots.is_empty() {
                self.waiting.remove(&missing);
            }
        }
        let size = block.bytes().len();
        self.bytes -= size;
        if let Some(share) = self.shares.get_mut(&source) {
            share.blocks -= 1;
            share.bytes -= size;
            if share.blocks == 0 {
                self.shares.remove(&source);
            }
        }
        Some((block, source))
    }
}
