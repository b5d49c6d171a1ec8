//! Names of blocks and writers: replica ids, dots, version vectors.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::database::DatabaseId;

/// A writer of one database: one node in one opening of its replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub [u8; 16]);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a replica id is derived from, so that nobody else can write under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Author {
    /// The node's ed25519 public key.
    pub public_key: [u8; 32],
    /// Random, drawn anew after each opening of the replica; below 2^63.
    pub nonce: u64,
}

impl Author {
    /// The id under which this author writes to the database.
    #[must_use]
    pub fn replica(&self, database: &DatabaseId) -> ReplicaId {
        let hash = Sha256::new()
            .chain_update(b"kvdb/replica/1")
            .chain_update(self.public_key)
            .chain_update(database.0)
            .chain_update(self.nonce.to_be_bytes())
            .finalize();
        let mut id = [0; 16];
        id.copy_from_slice(hash.split_at(16).0);
        ReplicaId(id)
    }
}

/// The name of one block: its writer and its place among the writer's blocks, from 1 without gaps.
///
/// As text `<32 hex digits>-<seq>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dot {
    /// The writer.
    pub replica: ReplicaId,
    /// The writer's running number, from 1.
    pub seq: u64,
}

impl fmt::Display for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.replica, self.seq)
    }
}

impl fmt::Debug for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no dot.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a dot is written as 32 hex digits, a dash and a number from 1")]
pub struct DotParseError;

impl FromStr for Dot {
    type Err = DotParseError;

    fn from_str(text: &str) -> Result<Self, DotParseError> {
        let (hex, seq) = text.split_once('-').ok_or(DotParseError)?;
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(DotParseError);
        }
        let replica = u128::from_str_radix(hex, 16).map_err(|_| DotParseError)?.to_be_bytes();
        // Only the one form that Display writes: no sign, no leading zero.
        let number: u64 = seq.parse().map_err(|_| DotParseError)?;
        if number == 0 || seq.starts_with('+') || seq.starts_with('0') {
            return Err(DotParseError);
        }
        Ok(Self { replica: ReplicaId(replica), seq: number })
    }
}

/// For each replica the highest merged seq: names exactly a set of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionVector(BTreeMap<ReplicaId, u64>);

impl VersionVector {
    /// The highest seq covered of the replica; 0 if none.
    #[must_use]
    pub fn get(&self, replica: &ReplicaId) -> u64 {
        self.0.get(replica).copied().unwrap_or(0)
    }

    /// Whether the block of this name is in the set.
    #[must_use]
    pub fn covers(&self, dot: &Dot) -> bool {
        self.get(&dot.replica) >= dot.seq
    }

    /// Raises the entry; a lower seq changes nothing.
    pub fn raise(&mut self, replica: ReplicaId, seq: u64) {
        if seq > 0 {
            let entry = self.0.entry(replica).or_insert(0);
            *entry = (*entry).max(seq);
        }
    }

    /// Whether every block of the other set is in this one.
    #[must_use]
    pub fn dominates(&self, other: &Self) -> bool {
        other.iter().all(|(replica, seq)| self.get(&replica) >= seq)
    }

    /// A dot that this vector covers and the other does not.
    #[must_use]
    pub fn first_beyond(&self, other: &Self) -> Option<Dot> {
        let beyond = self.iter().find(|(replica, seq)| other.get(replica) < *seq);
        beyond.map(|(replica, _)| Dot { replica, seq: other.get(&replica) + 1 })
    }

    /// The entries in ascending order of replica; no seq is 0.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, u64)> + '_ {
        self.0.iter().map(|(replica, seq)| (*replica, *seq))
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no block is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// SHA-256 over the entries: equal for equal sets.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new().chain_update(b"kvdb/vv/1");
        for (replica, seq) in self.iter() {
            hash.update(replica.0);
            hash.update(seq.to_be_bytes());
        }
        hash.finalize().into()
    }
}

impl FromIterator<(ReplicaId, u64)> for VersionVector {
    fn from_iter<I: IntoIterator<Item = (ReplicaId, u64)>>(entries: I) -> Self {
        let mut vector = Self::default();
        for (replica, seq) in entries {
            vector.raise(replica, seq);
        }
        vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_round_trip_as_text_in_one_form_only() {
        let dot = Dot { replica: ReplicaId([0xab; 16]), seq: 42 };
        let text = dot.to_string();
        assert_eq!(text, "abababababababababababababababab-42");
        assert_eq!(text.parse(), Ok(dot));
        let hex = "ab".repeat(16);
        for bad in ["", "-1", "ab-1", &hex, &format!("{hex}-0"), &format!("{hex}-01"), &format!("{hex}-+1"), &format!("{hex}--1")]
        {
            assert_eq!(bad.parse::<Dot>(), Err(DotParseError), "{bad:?}");
        }
        assert!(format!("{}-1", hex.to_uppercase()).parse::<Dot>().is_err());
    }
}
