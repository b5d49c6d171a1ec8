//! A disk that loses what was not synced, fails when told to, and remembers every batch, so that any earlier image of it
//! can be had again.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use crdt::testing::{MemoryStore, MemoryStoreError, MemoryView};
use crdt::{
    BlockHash, DatabaseId, Dot, Durability, Expiry, Key, KeyRange, LogEntry, Order, Projection, ReplicaState, RequestId,
    RequestRecord, Row, Staged, Stamp, Store, StoredBlock, VersionVector, View, WallTime, WriteSet,
};
use hoarder::StoreId;
use thiserror::Error;

/// What the disk answers when it does not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DiskError {
    /// Not a fault of the disk.
    #[error(transparent)]
    Memory(#[from] MemoryStoreError),
    /// A read failed.
    #[error("the disk could not read")]
    Read,
    /// A record does not match its checksum.
    #[error("a record is damaged")]
    Damaged,
    /// No space is left; nothing was written.
    #[error("no space left on the disk")]
    Full,
    /// The sync failed; what was written may or may not be there after the next start.
    #[error("the sync failed")]
    Sync,
    /// The process ends in the middle of the commit.
    #[error("the process ends here")]
    Ended,
}

/// What goes wrong next.
#[derive(Debug, Clone, Default)]
pub struct DiskFaults {
    /// So many reads are still good before those that fail.
    pub good_reads: Cell<u32>,
    /// So many reads fail.
    pub failing_reads: Cell<u32>,
    /// So many syncs fail, commits that sync included.
    pub failing_syncs: u32,
    /// Syncs say that they succeeded, and do nothing.
    pub lying: bool,
    /// Nothing can be written.
    pub full: bool,
    /// The next commit is written, not synced and not answered: the process ends in it.
    pub end_in_commit: bool,
    damaged_rows: BTreeSet<(DatabaseId, Key)>,
    damaged_blocks: BTreeSet<(DatabaseId, Dot)>,
}

/// One batch, as it was committed.
pub type Batch = Rc<[WriteSet]>;

/// A database that was deleted.
#[derive(Debug, Clone)]
struct Deleted {
    database: DatabaseId,
    /// When there were so many batches.
    at: usize,
    /// What those before had of it.
    had: Vec<(usize, Batch)>,
}

/// The disk of one node.
#[derive(Debug, Clone, Default)]
pub struct SimDisk {
    live: MemoryStore,
    databases: BTreeSet<DatabaseId>,
    /// Every batch of this disk since it was empty.
    history: Vec<Batch>,
    /// So many of them survive a power failure.
    synced: usize,
    /// So many the disk has said to have synced.
    said: usize,
    /// Databases that were deleted, in order.
    deleted: Vec<Deleted>,
    /// The file that names the store and counts its openings, each with the number of batches when it was written.
    states: Vec<(usize, StoreId, u64)>,
    /// What goes wrong.
    pub faults: DiskFaults,
}

impl SimDisk {
    /// Adds an empty database, unless it is there. On disk at once.
    pub fn create(&mut self, database: DatabaseId) {
        self.databases.insert(database);
        self.live.create(database);
    }

    /// The databases on it.
    #[must_use]
    pub fn databases(&self) -> &BTreeSet<DatabaseId> {
        &self.databases
    }

    /// Deletes a database, synced at once.
    pub fn drop_database(&mut self, database: DatabaseId) {
        if !self.databases.remove(&database) {
            return;
        }
        let mut had = Vec::new();
        for (at, batch) in self.history.iter_mut().enumerate() {
            let (of_it, others): (Vec<WriteSet>, Vec<WriteSet>) = batch.iter().cloned().partition(|set| set.database == database);
            if !of_it.is_empty() {
                had.push((at, of_it.into()));
                *batch = others.into();
            }
        }
        self.deleted.push(Deleted { database, at: self.history.len(), had });
        self.live = self.replayed();
    }

    /// The store's name and the number of its openings, if it has one.
    #[must_use]
    pub fn state(&self) -> Option<(StoreId, u64)> {
        self.states.last().map(|(_, store, opening)| (*store, *opening))
    }

    /// Writes them down, synced.
    pub fn set_state(&mut self, store: StoreId, opening: u64) {
        self.states.push((self.history.len(), store, opening));
    }

    /// An image of an earlier opening is put back, some time before the last one; nothing happens when there is none.
    /// Returns how many batches are lost.
    pub fn restore_opening(&mut self, which: u64) -> usize {
        let last = self.states.last().map_or(0, |(at, _, _)| *at).min(self.synced);
        if last == 0 {
            return 0;
        }
        let batches = usize::try_from(which % last as u64).unwrap_or(0);
        self.states.retain(|(at, _, _)| *at <= batches);
        while self.deleted.last().is_some_and(|deleted| deleted.at > batches) {
            let Some(Deleted { database, had, .. }) = self.deleted.pop() else { break };
            self.databases.insert(database);
            for (at, sets) in had {
                if let Some(batch) = self.history.get_mut(at) {
                    *batch = batch.iter().chain(sets.iter()).cloned().collect();
                }
            }
        }
        self.cut(batches)
    }

    /// Every batch since the disk was empty.
    #[must_use]
    pub fn history(&self) -> &[Batch] {
        &self.history
    }

    /// So many batches survive a power failure.
    #[must_use]
    pub fn synced(&self) -> usize {
        self.synced
    }

    /// So many batches the disk has said to have synced, which a lying one has not.
    #[must_use]
    pub fn said_synced(&self) -> usize {
        self.said
    }

    /// The blocks of a database that survive a power failure.
    #[must_use]
    pub fn synced_vv(&self, database: &DatabaseId) -> VersionVector {
        let synced = self.history.get(..self.synced).unwrap_or_default();
        let sets = synced.iter().flat_map(|batch| batch.iter()).filter(|set| set.database == *database);
        sets.flat_map(|set| set.vv.iter().map(|(replica, entry)| (*replica, entry.seq))).collect()
    }

    /// What the process sees, without the faults of reading.
    #[must_use]
    pub fn contents(&self) -> &MemoryStore {
        &self.live
    }

    /// Begins a sync beside the commits: the mark up to which it will have synced.
    #[must_use]
    pub fn begin_sync(&self) -> usize {
        self.history.len()
    }

    /// Ends a sync that was begun at a mark.
    ///
    /// # Errors
    /// When it failed.
    pub fn end_sync(&mut self, mark: usize) -> Result<(), DiskError> {
        if self.faults.failing_syncs > 0 {
            self.faults.failing_syncs -= 1;
            return Err(DiskError::Sync);
        }
        self.said = self.said.max(mark.min(self.history.len()));
        if !self.faults.lying {
            self.synced = self.synced.max(mark.min(self.history.len()));
        }
        Ok(())
    }

    /// The power fails: of what was not synced the first batches are kept, so many in a thousand.
    pub fn lose_power(&mut self, kept_thousandths: u64) -> usize {
        let unsynced = self.history.len() - self.synced.min(self.history.len());
        let kept = usize::try_from(unsynced as u64 * kept_thousandths / 1_000).unwrap_or(0);
        self.cut(self.synced + kept)
    }

    /// Back to the image of so many batches: a power failure, or an old copy. Returns how many are lost.
    pub fn cut(&mut self, batches: usize) -> usize {
        let lost = self.history.len().saturating_sub(batches);
        self.history.truncate(batches);
        self.synced = self.history.len();
        self.said = self.synced;
        if lost > 0 {
            self.live = self.replayed();
        }
        lost
    }

    /// Everything that was written is on disk, as in a copy of the files.
    pub fn settle(&mut self) {
        self.synced = self.history.len();
        self.said = self.synced;
    }

    /// Everything is lost.
    pub fn wipe(&mut self) {
        *self = Self::default();
    }

    /// Damages a record of a row; rewriting it mends it.
    pub fn damage_row(&mut self, database: DatabaseId, key: Key) {
        self.faults.damaged_rows.insert((database, key));
    }

    /// Damages a record of a block.
    pub fn damage_block(&mut self, database: DatabaseId, dot: Dot) {
        self.faults.damaged_blocks.insert((database, dot));
    }

    /// Whether any record is damaged.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.faults.damaged_rows.is_empty() || !self.faults.damaged_blocks.is_empty()
    }

    fn replayed(&self) -> MemoryStore {
        let mut store = MemoryStore::default();
        for database in &self.databases {
            store.create(*database);
        }
        for batch in &self.history {
            // It succeeded before, on the same databases.
            let _ = store.commit(batch, Durability::Sync);
        }
        store
    }

    /// What it holds now, standing still: for a snapshot.
    pub(crate) fn copy(&self) -> MemoryStore {
        self.live.clone()
    }

    fn read(&self) -> Result<(), DiskError> {
        match self.faults.failing_reads.get() {
            0 => Ok(()),
            _ if self.faults.good_reads.get() > 0 => {
                self.faults.good_reads.set(self.faults.good_reads.get() - 1);
                Ok(())
            }
            left => {
                self.faults.failing_reads.set(left - 1);
                Err(DiskError::Read)
            }
        }
    }
}

impl Store for SimDisk {
    type Error = DiskError;
    type View<'a> = SimView<'a>;

    fn view(&self, database: &DatabaseId) -> Result<SimView<'_>, DiskError> {
        Ok(SimView { inner: self.live.view(database)?, disk: self, database: *database })
    }

    fn commit(&mut self, writes: &[WriteSet], durability: Durability) -> Result<(), DiskError> {
        if self.faults.full {
            return Err(DiskError::Full);
        }
        if !writes.is_empty() {
            self.live.commit(writes, durability)?;
            self.history.push(writes.into());
            if !self.faults.damaged_rows.is_empty() {
                for (set, row) in writes.iter().flat_map(|set| set.rows.iter().map(move |row| (set, row))) {
                    self.faults.damaged_rows.remove(&(set.database, row.key.clone()));
                }
            }
        }
        if std::mem::take(&mut self.faults.end_in_commit) {
            return Err(DiskError::Ended);
        }
        if durability == Durability::Sync { self.end_sync(self.history.len()) } else { Ok(()) }
    }
}

/// Reads of one database.
#[derive(Debug, Clone, Copy)]
pub struct SimView<'a> {
    inner: MemoryView<'a>,
    disk: &'a SimDisk,
    database: DatabaseId,
}

impl SimView<'_> {
    fn row_read(&self, key: &Key) -> Result<(), DiskError> {
        self.disk.read()?;
        let damaged = &self.disk.faults.damaged_rows;
        if !damaged.is_empty() && damaged.contains(&(self.database, key.clone())) { Err(DiskError::Damaged) } else { Ok(()) }
    }

    /// The items, or the failure of the read that they begin with.
    fn read_first<T>(
        &self,
        items: impl Iterator<Item = Result<T, MemoryStoreError>>,
    ) -> impl Iterator<Item = Result<T, DiskError>> {
        let failed = self.disk.read().err();
        let good = failed.is_none();
        failed.into_iter().map(Err).chain(items.map(|item| item.map_err(DiskError::from)).take_while(move |_| good))
    }

    fn block_read(&self, dot: &Dot) -> Result<(), DiskError> {
        self.disk.read()?;
        let damaged = &self.disk.faults.damaged_blocks;
        if damaged.contains(&(self.database, *dot)) { Err(DiskError::Damaged) } else { Ok(()) }
    }
}

impl View for SimView<'_> {
    type Error = DiskError;

    fn row(&self, key: &Key) -> Result<Row, DiskError> {
        self.row_read(key)?;
        Ok(self.inner.row(key)?)
    }

    fn value(&self, key: &Key, dot: &Dot) -> Result<Option<Bytes>, DiskError> {
        self.row_read(key)?;
        Ok(self.inner.value(key, dot)?)
    }

    fn scan(&self, range: KeyRange, order: Order, projection: Projection) -> impl Iterator<Item = Result<(Key, Row), DiskError>> {
        let mut ended = false;
        let rows = self.inner.scan(range, order, projection).map(|row| {
            let (key, row) = row?;
            self.row_read(&key)?;
            Ok((key, row))
        });
        // Ends after the first error, as the contract says.
        rows.take_while(move |row| !std::mem::replace(&mut ended, row.is_err()))
    }

    fn block_hash(&self, dot: &Dot) -> Result<Option<BlockHash>, DiskError> {
        self.block_read(dot)?;
        Ok(self.inner.block_hash(dot)?)
    }

    fn block(&self, dot: &Dot) -> Result<Option<StoredBlock>, DiskError> {
        self.block_read(dot)?;
        Ok(self.inner.block(dot)?)
    }

    fn log(&self, from: u64) -> impl Iterator<Item = Result<LogEntry, DiskError>> {
        self.read_first(self.inner.log(from))
    }

    fn expired(&self, until: WallTime) -> impl Iterator<Item = Result<(Expiry, Key), DiskError>> {
        self.read_first(self.inner.expired(until))
    }

    fn state(&self) -> Result<ReplicaState, DiskError> {
        self.disk.read()?;
        Ok(self.inner.state()?)
    }

    fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, DiskError> {
        self.disk.read()?;
        Ok(self.inner.request(request)?)
    }

    fn requests(&self, after: Option<RequestId>) -> impl Iterator<Item = Result<(RequestId, RequestRecord), DiskError>> {
        let failed = self.disk.read().err().map(Err);
        failed.into_iter().chain(self.inner.requests(after).map(|item| Ok(item?)))
    }

    fn staged(&self) -> Result<Option<Staged>, DiskError> {
        self.disk.read()?;
        Ok(self.inner.staged()?)
    }

    fn staged_chunk(&self, index: u64) -> Result<Option<(Bytes, Bytes)>, DiskError> {
        self.disk.read()?;
        Ok(self.inner.staged_chunk(index)?)
    }

    fn built(&self, key: &Key) -> Result<Row, DiskError> {
        self.row_read(key)?;
        Ok(self.inner.built(key)?)
    }

    fn oldest_requests(&self) -> impl Iterator<Item = Result<(Stamp, RequestId), DiskError>> {
        self.read_first(self.inner.oldest_requests())
    }
}
