//! What the merge needs of a store, and what it hands to it.

use bytes::Bytes;

use crate::block::{Block, BlockHash, Expiry, RequestId};
use crate::clock::{Stamp, WallTime};
use crate::database::DatabaseId;
use crate::dot::{Author, Dot, ReplicaId, VersionVector};
use crate::heads::{Heads, HeadsChange};
use crate::key::{Key, KeyRange};
use crate::row::{Digest, Row, Sibling};

/// The order of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Ascending by key bytes.
    Ascending,
    /// Descending by key bytes.
    Descending,
}

/// Which part of a row a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// Everything that the row record holds; large values stay where they are.
    Rows,
    /// No values: the siblings' `value` is `None`.
    Keys,
}

/// A block as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// The revision of the log at which it was merged.
    pub revision: u64,
    /// Its address.
    pub hash: BlockHash,
    /// Its bytes.
    pub bytes: Bytes,
}

/// An entry of the change log: which block was merged at a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// The revision.
    pub revision: u64,
    /// The block's name.
    pub dot: Dot,
    /// The length of its bytes.
    pub bytes: u32,
}

impl LogEntry {
    /// Of the switch to a snapshot's rows: no block made what changed there.
    #[must_use]
    pub fn switch(revision: u64) -> Self {
        Self { revision, dot: Dot { replica: ReplicaId([0; 16]), seq: 0 }, bytes: 0 }
    }

    /// Whether a block was merged at the revision. If not, rows were replaced as a whole, and whoever follows the log must
    /// look at all of them again.
    #[must_use]
    pub fn names_block(&self) -> bool {
        self.dot.seq > 0
    }
}

/// Reads of one database, all from one consistent snapshot.
///
/// An error is never turned into "absent" or "end".
pub trait View {
    /// What a read may fail with.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The row at a key; an empty one when nothing is alive there.
    ///
    /// # Errors
    /// When the store cannot read.
    fn row(&self, key: &Key) -> Result<Row, Self::Error>;

    /// The value of a sibling that the store keeps apart from its row; `None` when there is none.
    ///
    /// # Errors
    /// When the store cannot read.
    fn value(&self, key: &Key, dot: &Dot) -> Result<Option<Bytes>, Self::Error>;

    /// The rows in a range, in order, one at a time. Ends after the first error.
    fn scan(
        &self,
        range: KeyRange,
        order: Order,
        projection: Projection,
    ) -> impl Iterator<Item = Result<(Key, Row), Self::Error>>;

    /// Where something has expired by this time or before: expiry and key of each such sibling, ascending, each pair once.
    /// Ends after the first error.
    fn expired(&self, until: WallTime) -> impl Iterator<Item = Result<(Expiry, Key), Self::Error>>;

    /// The address of a block that is still kept.
    ///
    /// # Errors
    /// When the store cannot read.
    fn block_hash(&self, dot: &Dot) -> Result<Option<BlockHash>, Self::Error>;

    /// A block that is still kept.
    ///
    /// # Errors
    /// When the store cannot read.
    fn block(&self, dot: &Dot) -> Result<Option<StoredBlock>, Self::Error>;

    /// The entries of the change log from a revision on, ascending. Ends after the first error. What was truncated, up to
    /// [`Meta::log_floor`], is not there any more.
    fn log(&self, from: u64) -> impl Iterator<Item = Result<LogEntry, Self::Error>>;

    /// The replica's state as of the last commit.
    ///
    /// # Errors
    /// When the store cannot read.
    fn state(&self) -> Result<ReplicaState, Self::Error>;

    /// The dot and the ops that answered a request, as long as the store keeps that.
    ///
    /// # Errors
    /// When the store cannot read.
    fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, Self::Error>;

    /// The answered requests after one, ascending, one at a time. Ends after the first error.
    fn requests(&self, after: Option<RequestId>) -> impl Iterator<Item = Result<(RequestId, RequestRecord), Self::Error>>;

    /// The snapshot that is being received, or received and not switched to.
    ///
    /// # Errors
    /// When the store cannot read.
    fn staged(&self) -> Result<Option<Staged>, Self::Error>;

    /// A chunk of the staged snapshot: the place after it, empty for the last one, and its bytes.
    ///
    /// # Errors
    /// When the store cannot read.
    fn staged_chunk(&self, index: u64) -> Result<Option<(Bytes, Bytes)>, Self::Error>;

    /// A row of those that were built and sealed to become the rows; values that the store keeps apart stay where they are.
    ///
    /// # Errors
    /// When the store cannot read.
    fn built(&self, key: &Key) -> Result<Row, Self::Error>;

    /// The requests that the store keeps, the oldest stamps first. Ends after the first error.
    fn oldest_requests(&self) -> impl Iterator<Item = Result<(Stamp, RequestId), Self::Error>>;
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// The block that answered it.
    pub dot: Dot,
    /// Which ops of the block are its own.
    pub ops: Vec<u32>,
    /// That block's stamp.
    pub stamp: Stamp,
}

/// How far a version vector's entry has come, and who writes under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VvEntry {
    /// The highest merged seq.
    pub seq: u64,
    /// The author, kept so that the replica id can be checked.
    pub author: Author,
}

/// What a replica keeps besides rows, blocks and log: small, and in memory while the database is open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaState {
    /// The version vector with its authors.
    pub vv: std::collections::BTreeMap<ReplicaId, VvEntry>,
    /// Blocks that no other merged block has as a parent.
    pub heads: Heads,
    /// For each replica the seq up to which blocks are not kept any more. The log has all above.
    pub floors: VersionVector,
    /// Clock, digest and counters.
    pub meta: Meta,
}

/// The small figures that change with every commit, kept in one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The last stamp given or seen.
    pub clock: Stamp,
    /// The sum of all checks.
    pub digest: Digest,
    /// The revision of the last log entry; 0 when there is none.
    pub revision: u64,
    /// The number of keys at which something is alive, expired siblings included.
    pub keys: u64,
    /// The revision up to which the log and its blocks are not kept any more.
    pub log_floor: u64,
    /// Bytes of the blocks that are kept.
    pub history_bytes: u64,
    /// The number of requests whose outcomes are kept.
    pub requests: u64,
}

/// A row to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowWrite {
    /// The key.
    pub key: Key,
    /// The whole new row; delete the record when it is empty. A sibling without a value is one whose value the store
    /// already keeps apart.
    pub row: Row,
    /// What was in the store before and is not any more.
    pub dropped: Vec<Dropped>,
}

/// A sibling that a store is to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Its dot.
    pub dot: Dot,
    /// The length of its value.
    pub len: u32,
    /// When it was to expire.
    pub expiry: Option<Expiry>,
}

impl Dropped {
    /// What there is to know of a sibling once it is gone.
    #[must_use]
    pub fn of(sibling: &Sibling) -> Self {
        Self { dot: sibling.dot, len: sibling.len, expiry: sibling.expiry }
    }
}

/// The oldest part of the history, to be dropped. No row changes by it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Truncation {
    /// Log entries to drop with their blocks: the first ones of the log, ascending, without a gap.
    pub entries: Vec<LogEntry>,
    /// The floors that rise by it. In one batch with the entries, so that no reader sees a block missing above a floor.
    pub floors: Vec<(ReplicaId, u64)>,
}

/// How far a snapshot has been received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Its head.
    pub head: Bytes,
    /// How many chunks are there, from the first without a gap.
    pub chunks: u64,
    /// The place after them; empty when the last one is there. `None` before the first.
    pub next: Option<Bytes>,
}

impl Staged {
    /// Whether all of it is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.next.as_ref().is_some_and(Bytes::is_empty)
    }
}

/// One step from a received snapshot to a replica that has joined it. Those of one write set are done in order.
///
/// Staging is as durable as anything else. What is built need not survive a crash, nor be part of the atomic batch: nobody
/// reads it before [`SnapshotWrite::Switch`], which is part of it, and after a restart it is built anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotWrite {
    /// Forgets what is staged and built.
    Discard,
    /// A snapshot comes: forgets what was staged and built before.
    Begin {
        /// Its head.
        head: Bytes,
    },
    /// The next chunk.
    Chunk {
        /// Its number, from 0.
        index: u64,
        /// The place after it; empty for the last one.
        next: Bytes,
        /// The chunk.
        bytes: Bytes,
    },
    /// Rows come to be built beside those in use; what was built before is forgotten.
    Build,
    /// The value of a sibling of a row to be built that is handed in apart from it.
    Value {
        /// The row's key.
        key: Key,
        /// The sibling.
        dot: Dot,
        /// The value.
        value: Bytes,
    },
    /// The value of a sibling that the store keeps apart from a row in use belongs to the built row as well.
    Copy {
        /// The row's key.
        key: Key,
        /// The sibling.
        dot: Dot,
    },
    /// Built rows, ascending by key over all since `Build`. A sibling without a value has one by `Value` or `Copy`.
    Append(Vec<(Key, Row)>),
    /// No more rows are appended; they can be read, and changed by `Patch`.
    Seal,
    /// Changes of built rows.
    Patch(Vec<RowWrite>),
    /// As `Switch`; and everything else that is kept of the replica is gone too, but for outcomes of requests: blocks, log,
    /// version vector, floors and heads. What the write set has of these is written after it.
    Replace {
        /// The revision of the one log entry.
        revision: u64,
    },
    /// The built rows become the rows in use; the old ones, and what is staged, are gone. The log notes it by an entry that
    /// names no block ([`LogEntry::names_block`]).
    Switch {
        /// That entry's revision.
        revision: u64,
    },
}

/// Everything that one turn changes in one database. A store writes it whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteSet {
    /// The database.
    pub database: DatabaseId,
    /// Rows, ascending by key.
    pub rows: Vec<RowWrite>,
    /// Merged blocks with their log revisions, ascending.
    pub blocks: Vec<(u64, Block)>,
    /// Version vector entries that rose.
    pub vv: Vec<(ReplicaId, VvEntry)>,
    /// What changed among the heads.
    pub heads: HeadsChange,
    /// Clock, digest and counters after the turn.
    pub meta: Meta,
    /// Answered requests.
    pub requests: Vec<(RequestId, RequestRecord)>,
    /// Requests whose records go, with the stamps of these.
    pub forgotten: Vec<(RequestId, Stamp)>,
    /// History to drop.
    pub truncation: Truncation,
    /// Steps of a snapshot, done before everything else of the set.
    pub snapshot: Vec<SnapshotWrite>,
}

impl WriteSet {
    /// Whether nothing is to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
            && self.truncation.entries.is_empty()
            && self.snapshot.is_empty()
            && self.requests.is_empty()
            && self.forgotten.is_empty()
    }
}

/// Whether a commit must have reached the disk before it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// In the operating system's hands: survives the process, not a power failure.
    Buffered,
    /// On the disk.
    Sync,
}

/// A store of databases.
pub trait Store {
    /// What a write or read may fail with.
    type Error: std::error::Error + Send + Sync + 'static;
    /// Reads of one snapshot.
    type View<'a>: View<Error = Self::Error>
    where
        Self: 'a;

    /// A consistent snapshot of one database.
    ///
    /// # Errors
    /// When the database is not open in this store, or the store cannot read.
    fn view(&self, database: &DatabaseId) -> Result<Self::View<'_>, Self::Error>;

    /// Writes the sets of several databases as one atomic batch.
    ///
    /// # Errors
    /// When the batch, or the sync, failed. What is on disk is then unknown: the store must be opened anew.
    ///
    /// # Durability
    /// As asked. A `Sync` commit covers all earlier ones.
    fn commit(&mut self, writes: &[WriteSet], durability: Durability) -> Result<(), Self::Error>;
}
