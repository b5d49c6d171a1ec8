//! Rows: what is alive at one key.

use std::collections::BTreeSet;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::block::{Change, Expiry, Op};
use crate::clock::{Stamp, WallTime};
use crate::dot::{Dot, ReplicaId, VersionVector};
use crate::key::Key;
use crate::mutation::{Mutation, active};

/// The first 16 bytes of a hash over one sibling with its key; the state digest is the sum of all checks modulo 2^128.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Check(pub u128);

/// A put that nothing merged has superseded.
#[derive(Clone, PartialEq, Eq)]
pub struct Sibling {
    /// The block that put it.
    pub dot: Dot,
    /// That block's stamp.
    pub stamp: Stamp,
    /// When it stops being visible.
    pub expiry: Option<Expiry>,
    /// Length of the value in bytes.
    pub len: u32,
    /// Its part of the state digest.
    pub check: Check,
    /// The value; `None` when the store keeps it apart from the row (see [`crate::View::value`]) or the reader asked
    /// for rows without values.
    pub value: Option<Bytes>,
}

impl Sibling {
    /// The sibling that a put adds at a key.
    #[must_use]
    pub fn of(key: &Key, dot: Dot, stamp: Stamp, value: Bytes, expiry: Option<Expiry>) -> Self {
        let check = check(key, &dot, stamp, expiry, &value);
        // A value has at most 1 MiB, checked when the block was made.
        let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
        Self { dot, stamp, expiry, len, check, value: Some(value) }
    }

    /// Whether it is hidden from reads at this time.
    #[must_use]
    pub fn is_expired(&self, now: WallTime) -> bool {
        self.expiry.is_some_and(|expiry| expiry.unix_ms() <= now.0) && !active(Mutation::ExpiryIgnored)
    }

    /// The winner among siblings is the one with the greatest rank.
    fn rank(&self) -> (Stamp, Dot) {
        if active(Mutation::TieByArrival) {
            return (self.stamp, Dot { replica: ReplicaId([0; 16]), seq: 0 });
        }
        (if active(Mutation::WinnerBySeq) { Stamp(self.dot.seq) } else { self.stamp }, self.dot)
    }
}

impl std::fmt::Debug for Sibling {
    // Values never appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{:?}[{}]", self.dot, self.stamp, self.len)
    }
}

/// What is alive at one key: siblings in descending order of rank, the winner first; empty when the key is absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row(Vec<Sibling>);

impl Row {
    /// A row of these siblings, in any order.
    #[must_use]
    pub fn new(mut siblings: Vec<Sibling>) -> Self {
        siblings.sort_unstable_by_key(|sibling| std::cmp::Reverse(sibling.rank()));
        Self(siblings)
    }

    /// The siblings, winner first.
    #[must_use]
    pub fn siblings(&self) -> &[Sibling] {
        &self.0
    }

    /// The siblings, winner first.
    #[must_use]
    pub fn into_siblings(self) -> Vec<Sibling> {
        self.0
    }

    /// Whether nothing is alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What `get` returns at this time: the greatest sibling that has not expired.
    #[must_use]
    pub fn winner(&self, now: WallTime) -> Option<&Sibling> {
        self.0.iter().find(|sibling| !sibling.is_expired(now))
    }

    /// The siblings that reads see at this time, winner first.
    pub fn visible(&self, now: WallTime) -> impl Iterator<Item = &Sibling> {
        self.0.iter().filter(move |sibling| !sibling.is_expired(now))
    }

    /// The dots alive here.
    pub fn dots(&self) -> impl Iterator<Item = Dot> + '_ {
        self.0.iter().map(|sibling| sibling.dot)
    }

    /// Applies one op of the block `dot`: drops what it supersedes, adds what it puts. Returns the dropped siblings.
    pub fn apply(&mut self, op: &Op, dot: Dot, stamp: Stamp) -> Vec<Sibling> {
        let spared = op.superseded.first().filter(|_| active(Mutation::SupersededKept));
        let dropped = if op.change == Change::Tombstone && active(Mutation::TombstoneTakesAll) {
            std::mem::take(&mut self.0)
        } else if op.superseded.len() <= 8 {
            let goes = |sibling: &Sibling| op.superseded.contains(&sibling.dot) && Some(&sibling.dot) != spared;
            self.0.extract_if(.., |sibling| goes(sibling)).collect()
        } else {
            let superseded: BTreeSet<&Dot> = op.superseded.iter().collect();
            self.0.extract_if(.., |sibling| superseded.contains(&sibling.dot)).collect()
        };
        if let Change::Put { value, expiry } = &op.change {
            let sibling = Sibling::of(&op.key, dot, stamp, value.clone(), *expiry);
            let at = self.0.partition_point(|other| other.rank() > sibling.rank());
            self.0.insert(at, sibling);
        }
        dropped
    }

    /// The row of the union of two merged sets: each side's siblings that the other side has too or does not cover.
    ///
    /// This is the rule by which a snapshot is joined. It is commutative, associative and idempotent, and equal to
    /// merging the blocks of both sets.
    #[must_use]
    pub fn join(mine: &Self, my_vv: &VersionVector, theirs: &Self, their_vv: &VersionVector) -> Self {
        let my_dots: BTreeSet<Dot> = mine.dots().collect();
        let their_dots: BTreeSet<Dot> = theirs.dots().collect();
        let kept = mine.0.iter().filter(|sibling| their_dots.contains(&sibling.dot) || !their_vv.covers(&sibling.dot));
        let added = theirs.0.iter().filter(|sibling| !my_dots.contains(&sibling.dot) && !my_vv.covers(&sibling.dot));
        Self::new(kept.chain(added).cloned().collect())
    }
}

/// The sum of all checks of a state, modulo 2^128: equal for equal rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Digest(pub u128);

impl Digest {
    /// Adds a sibling.
    pub fn add(&mut self, check: Check) {
        self.0 = self.0.wrapping_add(check.0);
    }

    /// Takes a sibling away.
    pub fn remove(&mut self, check: Check) {
        self.0 = self.0.wrapping_sub(check.0);
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The check of one sibling, recomputed from its value.
#[must_use]
pub fn check(key: &Key, dot: &Dot, stamp: Stamp, expiry: Option<Expiry>, value: &[u8]) -> Check {
    // A key has at most 1,024 bytes.
    let key_len = u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX);
    let hash = Sha256::new()
        .chain_update(b"kvdb/row/1")
        .chain_update(key_len.to_be_bytes())
        .chain_update(key.as_bytes())
        .chain_update(dot.replica.0)
        .chain_update(dot.seq.to_be_bytes())
        .chain_update(stamp.0.to_be_bytes())
        .chain_update(expiry.map_or(0, Expiry::unix_ms).to_be_bytes())
        .chain_update(Sha256::digest(value))
        .finalize();
    let mut first = [0; 16];
    first.copy_from_slice(hash.split_at(16).0);
    Check(u128::from_be_bytes(first))
}
