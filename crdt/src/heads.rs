//! Heads: the blocks that no other merged block has as a parent.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::block::{Block, BlockHash, Parent};
use crate::clock::Stamp;
use crate::dot::{Dot, ReplicaId};
use crate::limits::{MAX_BLOCK_PARENTS, MAX_PACKED_HEADS};
use crate::mutation::{Mutation, active};

/// A head's address and stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The block's address.
    pub hash: BlockHash,
    /// The block's stamp, by which a new block chooses its parents when there are too many.
    pub stamp: Stamp,
}

/// The heads of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heads(BTreeMap<Dot, Head>);

impl Heads {
    /// Takes in a merged block: it replaces those of its parents that are heads.
    pub fn merge(&mut self, block: &Block) {
        for parent in block.parents().iter().filter(|_| !active(Mutation::HeadsKeepParents)) {
            self.0.remove(&parent.dot);
        }
        if active(Mutation::HeadsDropConcurrent) {
            self.0.clear();
        }
        self.0.insert(block.dot(), Head { hash: block.hash(), stamp: block.stamp() });
    }

    /// The parents for a new block: the writer's own last block first, then the greatest stamps, 64 at most.
    #[must_use]
    pub fn parents(&self, own: Option<ReplicaId>) -> Vec<Parent> {
        let mut heads: Vec<(&Dot, &Head)> = self.0.iter().collect();
        if heads.len() > MAX_BLOCK_PARENTS {
            heads.sort_unstable_by_key(|(dot, head)| (Some(dot.replica) != own, std::cmp::Reverse((head.stamp, **dot))));
        }
        // A parent list holds one block per replica; a replica's later head always replaces the earlier one in practice,
        // but another writer's blocks need not name their own predecessor.
        let mut newest: BTreeMap<ReplicaId, Parent> = BTreeMap::new();
        for (dot, head) in heads {
            if newest.len() == MAX_BLOCK_PARENTS && !newest.contains_key(&dot.replica) {
                continue;
            }
            let parent = Parent { dot: *dot, hash: head.hash };
            newest
                .entry(dot.replica)
                .and_modify(|kept| {
                    if kept.dot < *dot {
                        *kept = parent;
                    }
                })
                .or_insert(parent);
        }
        newest.into_values().collect()
    }

    /// A head's record.
    #[must_use]
    pub fn get(&self, dot: &Dot) -> Option<&Head> {
        self.0.get(dot)
    }

    /// All heads, ascending by dot.
    pub fn iter(&self) -> impl Iterator<Item = (&Dot, &Head)> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: nothing has been merged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// SHA-256 over dots and addresses: equal for equal heads.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new().chain_update(b"kvdb/heads/1");
        for (dot, head) in &self.0 {
            hash.update(dot.replica.0);
            hash.update(dot.seq.to_be_bytes());
            hash.update(head.hash.0);
        }
        hash.finalize().into()
    }

    /// Whether a store keeps these heads in one record.
    #[must_use]
    pub fn packed(&self) -> bool {
        self.0.len() <= MAX_PACKED_HEADS
    }

    /// What a store must write to get from `before` to these heads.
    #[must_use]
    pub fn change_since(&self, before: &Self) -> HeadsChange {
        if self == before {
            return HeadsChange::None;
        }
        let gone = |from: &Self, to: &Self| from.0.keys().filter(|dot| !to.0.contains_key(dot)).copied().collect();
        if self.packed() {
            let all = self.0.iter().map(|(dot, head)| (*dot, *head)).collect();
            let unspill = if before.packed() { Vec::new() } else { before.0.keys().copied().collect() };
            HeadsChange::Packed { all, unspill }
        } else if before.packed() {
            HeadsChange::Spilled {
                added: self.0.iter().map(|(dot, head)| (*dot, *head)).collect(),
                removed: Vec::new(),
                unpack: true,
            }
        } else {
            let added = self.0.iter().filter(|(dot, _)| !before.0.contains_key(dot)).map(|(dot, head)| (*dot, *head)).collect();
            HeadsChange::Spilled { added, removed: gone(before, self), unpack: false }
        }
    }
}

impl FromIterator<(Dot, Head)> for Heads {
    fn from_iter<I: IntoIterator<Item = (Dot, Head)>>(heads: I) -> Self {
        Self(heads.into_iter().collect())
    }
}

/// How the stored heads change. Few heads are kept in one record, which is a third cheaper per small commit; many have
/// a record each, so that a commit does not rewrite them all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HeadsChange {
    /// Not at all.
    #[default]
    None,
    /// Write the one record with all heads.
    Packed {
        /// All heads.
        all: Vec<(Dot, Head)>,
        /// Single records to delete, if there were many heads before.
        unspill: Vec<Dot>,
    },
    /// Write and delete single records.
    Spilled {
        /// Records to write.
        added: Vec<(Dot, Head)>,
        /// Records to delete.
        removed: Vec<Dot>,
        /// Whether the one record with all heads is to be deleted.
        unpack: bool,
    },
}
