//! What the engine and the rest say to each other.

use std::time::Duration;

use bytes::Bytes;
use crdt::{Block, DatabaseId, Digest, Dot, OpOutcome, ReplicaId, Staged, WriteRefusal};
use thiserror::Error;

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The block that has it; `None` when there was nothing to write.
    pub dot: Option<Dot>,
    /// One outcome for each op, in the caller's order.
    pub ops: Vec<OpOutcome>,
}

/// Why a write did not succeed, and whether it may exist all the same.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Nothing was written: the write breaks a limit.
    #[error(transparent)]
    Refused(#[from] WriteRefusal),
    /// Nothing was written: the queue stayed full for the time that a caller waits. Try again later.
    #[error("the write queue stayed full ({limit} bytes) for {waited:?}; nothing was written")]
    QueueFull {
        /// The queue's limit in bytes.
        limit: usize,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Nothing was written: too much history is on no other node, and can so not be dropped.
    #[error(
        "{bytes} bytes of history are on no other node, the limit is {limit}; nothing was written. Connect a node that has \
         the database open, or compact it alone"
    )]
    HistoryFull {
        /// Bytes of blocks that too few other nodes have.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Nothing was written: the database was dropped on this node.
    #[error("the database was dropped; nothing was written")]
    Dropped,
    /// Nothing was written: the database is closed.
    #[error("the database is closed; nothing was written")]
    Closed,
    /// Nothing was written: an earlier commit or sync failed, and this store refuses writes until it is opened anew.
    #[error("the store refuses writes since a commit failed: {cause}; open it anew")]
    Poisoned {
        /// The failure.
        cause: String,
    },
    /// Nothing was written: the replica is being replaced by a peer's. Try again later.
    #[error("the replica is being repaired from a peer; nothing was written, try again")]
    Repairing,
    /// Nothing was written: a read that the write needed failed.
    #[error("a read failed, nothing was written: {cause}")]
    Read {
        /// The failure.
        cause: String,
    },
    /// The commit or its sync failed: the write may exist, and may appear after the store is opened anew.
    #[error("the commit failed, the write may or may not exist: {cause}")]
    Unknown {
        /// The failure.
        cause: String,
    },
}

/// How far history was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Truncated {
    /// Blocks dropped.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The revision up to which nothing is kept now.
    pub log_floor: u64,
}

/// What became of blocks handed in from a peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delivery {
    /// Merged now, those that had waited included.
    pub merged: usize,
    /// Merged before.
    pub duplicates: usize,
    /// Waiting for others.
    pub held: usize,
    /// Dropped because the pending pool, or this sender's share, is full.
    pub dropped: usize,
    /// Names that two different blocks bear.
    pub disagreements: Vec<Dot>,
}

/// What has changed in one open database since the consumer last looked. Several turns become one.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The version vector entries that rose, at their latest.
    pub vv: Vec<(ReplicaId, u64)>,
    /// The last log revision.
    pub revision: u64,
    /// The state digest at that revision.
    pub digest: Digest,
    /// SHA-256 of the heads at that revision.
    pub heads_hash: [u8; 32],
    /// Version vector entries that are on disk now, as far as they rose since the last look. May lag behind `vv`: a
    /// sync runs beside later commits.
    pub durable: Vec<(ReplicaId, u64)>,
    /// The floors of history that rose, at their latest.
    pub floors: Vec<(ReplicaId, u64)>,
    /// What is staged of a snapshot; told at the opening only.
    pub staged: Option<Staged>,
    /// Blocks made here since the last look, as far as they fit the budget: for gossip.
    pub sealed: Vec<Block>,
    /// Whether blocks made here did not fit: announce instead.
    pub sealed_overflow: bool,
}

/// What became of a staged snapshot. Whatever it is, nothing is staged any more, but for `Failed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// Its rows are this replica's, and its blocks count as merged.
    Joined,
    /// It was not what its head said: nothing has changed.
    Invalid {
        /// What is wrong with it.
        cause: String,
    },
    /// It was to replace the replica, which has merged what it does not cover: nothing has changed.
    Lacking {
        /// Such a block.
        dot: Dot,
    },
    /// The store could not read or write; what is staged is joined when the database is opened anew.
    Failed,
}

/// News of the engine for replication.
#[derive(Debug, Clone)]
pub enum News {
    /// A database was opened: its whole version vector and figures.
    Opened(DatabaseId, Progress),
    /// A database has advanced.
    Advanced(DatabaseId, Progress),
    /// A snapshot that was staged has been joined, or cannot be.
    Snapshot(DatabaseId, SnapshotOutcome),
    /// A database was closed.
    Closed(DatabaseId),
}

/// A piece of the change log for a peer.
#[derive(Debug, Clone, Default)]
pub struct LogChunk {
    /// Blocks in merge order, each with its revision.
    pub blocks: Vec<(u64, Dot, Bytes)>,
    /// Where to go on reading.
    pub next: u64,
    /// Whether the log ended at `next`.
    pub end: bool,
}
