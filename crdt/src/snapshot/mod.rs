//! Snapshots: a whole replica in chunks, for one that lacks blocks which are nowhere kept any more, and how it is joined.
//!
//! A snapshot is one consistent view of a replica: version vector, heads, requests and rows, in this order, cut into
//! chunks. Joining it gives exactly the state of the union of both merged sets ([`Row::join`], [`Heads::join`]).

mod codec;
mod join;
mod purpose;
mod read;

use thiserror::Error;

use crate::block::RequestId;
use crate::clock::Stamp;
use crate::codec::cbor::CborError;
use crate::dot::{Dot, ReplicaId, VersionVector};
use crate::heads::Heads;
use crate::key::Key;
use crate::mutation::{Mutation, active};
use crate::row::Digest;

pub use codec::{Chunk, chunk_hash};
pub use join::{JoinError, JoinPiece, Joined, SnapshotJoin};
pub use purpose::Purpose;
pub use read::{Piece, SnapshotReadError, read_piece, snapshot_head};

#[cfg(doc)]
use crate::row::Row;

/// Which view of which sender: a transfer can be resumed against the same one only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// Drawn at each start of the sender; below 2^63.
    pub boot: u64,
    /// Counts the sender's views since; below 2^63.
    pub view: u64,
}

impl std::fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{}", self.boot, self.view)
    }
}

/// A snapshot in short, by which what has come is judged before it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Its id.
    pub id: SnapshotId,
    /// The last stamp that the sender gave or saw.
    pub clock: Stamp,
    /// The sum of all checks.
    pub digest: Digest,
    /// Number of keys.
    pub keys: u64,
    /// Number of version vector entries.
    pub replicas: u64,
    /// Number of heads.
    pub heads: u64,
}

/// A place in a snapshot: after what, in which part of it. What is read from a place on depends on the view alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cursor {
    /// In the version vector, after this replica.
    Replicas(Option<ReplicaId>),
    /// In the heads, after this one.
    Heads(Option<Dot>),
    /// In the requests, after this one.
    Requests(Option<RequestId>),
    /// In the rows, after this key.
    Rows(Option<Key>),
    /// In the row of this key, after this sibling.
    Row(Key, Dot),
}

impl Cursor {
    /// The beginning of every snapshot.
    pub const START: Self = Self::Replicas(None);
}

/// Why bytes are no part of a snapshot, or not of this one. The sender, or its disk, is at fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Not the CBOR that is expected.
    #[error("malformed: {0}")]
    Cbor(#[from] CborError),
    /// The bytes do not have the hash that came with them.
    #[error("a chunk does not have its hash")]
    Hash,
    /// A field that has no meaning.
    #[error("{what} has no such value")]
    Value {
        /// The field.
        what: &'static str,
    },
    /// Items that do not ascend.
    #[error("{what} are out of order")]
    Order {
        /// The items.
        what: &'static str,
    },
    /// A sibling whose check does not follow from its value.
    #[error("the sibling {dot} at {key} does not have its check: its value is damaged")]
    Check {
        /// The key.
        key: Key,
        /// The sibling.
        dot: Dot,
    },
    /// A name that the snapshot's version vector does not cover.
    #[error("{what} {dot} is not covered by the snapshot's version vector")]
    NotCovered {
        /// What bears the name.
        what: &'static str,
        /// The name.
        dot: Dot,
    },
    /// The head says something else than what came.
    #[error("{what} is not what the snapshot's head says")]
    Total {
        /// What was counted.
        what: &'static str,
    },
}

impl Heads {
    /// The heads of the union of two merged sets, by the rule of [`crate::Row::join`].
    #[must_use]
    pub fn join(mine: &Self, my_vv: &VersionVector, theirs: &Self, their_vv: &VersionVector) -> Self {
        let all = active(Mutation::SnapshotHeadsAdded);
        let kept = mine.iter().filter(|(dot, _)| all || theirs.get(dot).is_some() || !their_vv.covers(dot));
        let added = theirs.iter().filter(|(dot, _)| mine.get(dot).is_some() || !my_vv.covers(dot));
        kept.chain(added).map(|(dot, head)| (*dot, *head)).collect()
    }
}
