//! The Merkle-CRDT at the heart of kvdb: per-key last-write-wins values in a hash-linked DAG of signed blocks.
//!
//! Pure: no I/O, clock, thread or async. Time, randomness, signer and verifier are arguments; rows and blocks are read
//! through [`View`] and handed to a [`Store`] as data.

#![deny(missing_docs)]

pub mod block;
pub mod clock;
pub mod codec;
pub mod database;
pub mod dot;
pub mod effect;
mod group;
pub mod heads;
pub mod input;
pub mod key;
pub mod limits;
pub mod mutation;
mod pending;
pub mod replica;
pub mod row;
pub mod sign;
pub mod snapshot;
pub mod step;
pub mod store;
pub mod testing;

pub use block::{Answer, Block, BlockError, BlockHash, Change, Draft, Expiry, Op, Parent, RequestId, Rule};
pub use clock::{Clock, Stamp, WallTime};
pub use database::{DatabaseId, DatabaseName, DatabaseNameError};
pub use dot::{Author, Dot, DotParseError, ReplicaId, VersionVector};
pub use effect::{Effect, OpOutcome, WriteOutcome, WriteRefusal};
pub use heads::{Head, Heads, HeadsChange};
pub use input::{Condition, Input, LocalOp, LocalWrite, Terms, Token};
pub use key::{Key, KeyError, KeyRange, Prefix};
pub use mutation::Mutation;
pub use pending::{PendingLimits, Source};
pub use replica::{Env, Replica};
pub use row::{Check, Digest, Row, Sibling};
pub use sign::{Ed25519Signer, Signed, Signer, Verifier, Zip215};
pub use snapshot::{Cursor, SnapshotHead, SnapshotId};
pub use step::{Changes, Committed, Step, Turn};
pub use store::{
    Dropped, Durability, LogEntry, Meta, Order, Projection, ReplicaState, RequestRecord, RowWrite, SnapshotWrite, Staged, Store,
    StoredBlock, Truncation, View, VvEntry, WriteSet,
};
