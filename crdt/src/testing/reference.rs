//! The state that a set of blocks must give, computed the slow and obvious way.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::{Block, Change};
use crate::dot::{Dot, VersionVector};
use crate::heads::{Head, Heads};
use crate::key::Key;
use crate::row::{Digest, Sibling, check};

/// What follows from a set of merged blocks, and from nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The siblings alive at each key, winner first, with their values.
    pub rows: BTreeMap<Key, Vec<Sibling>>,
    /// The blocks that no other block of the set has as a parent.
    pub heads: Heads,
    /// The set by its highest seqs.
    pub vv: VersionVector,
    /// The sum of all checks.
    pub digest: Digest,
}

impl Reference {
    /// Folds all blocks of a set, in whatever order and however often they come.
    ///
    /// # Panics
    /// When the set is not causally closed: no replica may ever have merged just these blocks.
    #[must_use]
    pub fn fold<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Self {
        let set: BTreeMap<Dot, &Block> = blocks.into_iter().map(|block| (block.dot(), block)).collect();
        let mut parents = BTreeSet::new();
        let mut superseded = BTreeSet::new();
        for block in set.values() {
            parents.extend(block.parents().iter().map(|parent| parent.dot));
            superseded.extend(block.ops().iter().flat_map(|op| op.superseded.iter().map(|dot| (&op.key, *dot))));
        }
        for named in parents.iter().chain(superseded.iter().map(|(_, dot)| dot)) {
            assert!(set.contains_key(named), "{named} is named but not in the set");
        }
        let mut vv = VersionVector::default();
        let mut rows: BTreeMap<Key, Vec<Sibling>> = BTreeMap::new();
        let mut digest = Digest::default();
        // Ascending by dot, so that a gap shows.
        for (dot, block) in &set {
            assert_eq!(vv.get(&dot.replica) + 1, dot.seq, "a gap before {dot}");
            vv.raise(dot.replica, dot.seq);
            for op in block.ops() {
                let Change::Put { value, expiry } = &op.change else { continue };
                if superseded.contains(&(&op.key, *dot)) {
                    continue;
                }
                let check = check(&op.key, dot, block.stamp(), *expiry, value);
                digest.add(check);
                let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
                let value = Some(value.clone());
                let sibling = Sibling { dot: *dot, stamp: block.stamp(), expiry: *expiry, len, check, value };
                rows.entry(op.key.clone()).or_default().push(sibling);
            }
        }
        for siblings in rows.values_mut() {
            siblings.sort_by_key(|one| std::cmp::Reverse((one.stamp, one.dot.replica, one.dot.seq)));
        }
        let heads = set
            .iter()
            .filter(|(dot, _)| !parents.contains(dot))
            .map(|(dot, block)| (*dot, Head { hash: block.hash(), stamp: block.stamp() }))
            .collect();
        Self { rows, heads, vv, digest }
    }
}
