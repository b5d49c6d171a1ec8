//! The store on disk: one RocksDB for many databases.
//!
//! `layout` owns the bytes, `directory` the files that are not RocksDB's, `rocks` the instance, `catalog` the databases
//! in it, `commit` and `view` the way in and out. Nothing outside this module knows RocksDB.

mod catalog;
mod checkpoint;
mod commit;
mod directory;
mod error;
mod export;
mod layout;
mod migrate;
mod moving;
mod options;
mod reclaim;
mod removal;
mod rocks;
mod salvage;
mod staging;
mod view;
mod wal;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crdt::{Author, DatabaseId, DatabaseName, Dot, Durability, Meta, ReplicaId, Store, WriteSet};
use rocksdb::{DBRecoveryMode, ErrorKind, Range, WriteOptions};

pub use catalog::{DatabaseRecord, DatabaseState, StoreId};
pub use directory::STORE_FORMAT;
pub use error::{RecordKey, StoreError, StoreOpenError};
pub use export::{StandingError, StandingRocks};
pub use layout::Family;
pub use options::{LossPolicy, StoreOptions};
pub use reclaim::{DiskUse, Reclaim};
#[doc(hidden)]
pub use salvage::RawRecord;
pub(crate) use salvage::SalvageError;
pub use salvage::{SavedSibling, Unreadable};
pub use view::RocksView;

use crate::engine::port::LogChunk;
use catalog::Numbers;
use commit::Assembly;
use directory::{Directory, Stage};
use migrate::{MIGRATIONS, Migration};
use options::{Files, Logs};
use rocks::{Inner, Rocks};
use staging::Switches;
use wal::LogCondition;

/// Databases on disk. Cloning is cheap; the files are closed with the last clone.
///
/// Any number of threads may read; the engine is the only one that commits.
#[derive(Debug, Clone)]
pub struct RocksStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    // Dropped in this order: RocksDB is closed before the lock is given up.
    inner: Inner,
    /// Whoever reads rows holds the numbers, so that no row number is emptied that somebody reads.
    numbers: RwLock<BTreeMap<DatabaseId, Arc<Numbers>>>,
    /// Held while a database is created, so that no number is given twice.
    creating: Mutex<()>,
    /// Held while files are rewritten.
    reclaiming: Mutex<()>,
    /// No file is rewritten any more.
    stopping: AtomicBool,
    id: StoreId,
    lost: Option<String>,
    directory: Directory,
}

/// Bytes on disk of one database, as far as RocksDB can tell without reading: what is still in memory, and values kept
/// apart from their rows, are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Rows with their short values.
    pub rows: u64,
    /// Blocks.
    pub blocks: u64,
    /// Everything else.
    pub other: u64,
}

impl RocksStore {
    /// Opens the store in a directory, creating both if need be. The directory must be the store's own.
    ///
    /// # Errors
    /// When the store is in use, newer than this program or damaged, or the directory is somebody else's or not usable.
    ///
    /// # Durability
    /// A write that the log has only in part is dropped: it was never confirmed as synced. Damage before the end of the
    /// log is refused unless [`StoreOptions::loss`] accepts it; then [`RocksStore::accepted_loss`] tells of it.
    pub fn open(path: &Path, options: &StoreOptions) -> Result<Self, StoreOpenError> {
        Self::open_with(path, options, MIGRATIONS)
    }

    fn open_with(path: &Path, options: &StoreOptions, migrations: &'static [Migration]) -> Result<Self, StoreOpenError> {
        let (directory, stage, format) = Directory::lock(path)?;
        let steps = migrate::steps(path, format, migrations)?;
        let (rocks, lost) = open_rocks(path, options, stage)?;
        let inner = Inner::new(rocks);
        migrate::migrate(&inner, &directory, &steps, stage)?;
        let damaged = |source| StoreOpenError::Damaged { path: directory.path().to_owned(), source };
        let known = catalog::store_id(&inner).map_err(damaged)?;
        let id = match known {
            Some(id) if lost.is_none() && stage != Stage::Restored => id,
            None if lost.is_none() && stage != Stage::Creating => {
                return Err(damaged(layout::Malformed("the store's own record is missing").at(Family::Catalog, &[])));
            }
            // A store that lost writes, or comes from a backup, is another one from now on: nobody may rely on what it once confirmed.
            _ => {
                let id = StoreId(rand::random());
                catalog::write_store(&inner, id).map_err(damaged)?;
                id
            }
        };
        staging::clean(&inner, path).map_err(damaged)?;
        moving::clean(&inner).map_err(damaged)?;
        if stage != Stage::Ready {
            directory.set_stage(Stage::Ready)?;
        }
        let numbers = catalog::all(&inner)
            .map(|record| record.map(|record| (record.id, Arc::new(record.numbers()))))
            .collect::<Result<_, _>>()
            .map_err(damaged)?;
        let shared = Shared {
            inner,
            numbers: RwLock::new(numbers),
            creating: Mutex::new(()),
            reclaiming: Mutex::new(()),
            stopping: AtomicBool::new(false),
            id,
            lost,
            directory,
        };
        Ok(Self(Arc::new(shared)))
    }

    /// The id drawn when this store was created, or last opened in spite of lost writes.
    pub fn id(&self) -> StoreId {
        self.0.id
    }

    /// Whether a store is there, as far as its directory tells; nothing is made or changed.
    ///
    /// # Errors
    /// When the directory is somebody else's, of a newer format, or cannot be read.
    pub fn is_in(path: &Path) -> Result<bool, StoreOpenError> {
        directory::holds_store(path)
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        self.0.directory.path()
    }

    /// What was damaged, when the store was opened in spite of lost writes.
    pub fn accepted_loss(&self) -> Option<&str> {
        self.0.lost.as_deref()
    }

    /// Whether there are only so many clones of this store.
    pub(crate) fn is_held_by(&self, clones: usize) -> bool {
        Arc::strong_count(&self.0) == clones
    }

    /// The failure since which the store refuses writes.
    pub fn poison(&self) -> Option<String> {
        self.0.inner.poison().cloned()
    }

    /// As if a commit had failed.
    #[cfg(test)]
    pub(crate) fn fail_writes(&self, cause: &str) {
        self.0.inner.poison_with(cause);
    }

    /// The database of this name, created if it is not there: in generation 0, or in the one after the last dropped one.
    ///
    /// # Errors
    /// When the store cannot read or write, or has no number left.
    ///
    /// # Durability
    /// A new database is on disk when this returns.
    pub fn open_database(&self, name: &DatabaseName) -> Result<DatabaseRecord, StoreError> {
        self.open_generation(name, 0)
    }

    /// As [`RocksStore::open_database`]; one that is made has at least this generation.
    pub(crate) fn open_generation(&self, name: &DatabaseName, at_least: u64) -> Result<DatabaseRecord, StoreError> {
        let _creating = self.0.creating.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = catalog::find(&self.0.inner, name)? {
            return Ok(record);
        }
        let record = catalog::create(&self.0.inner, name, self.0.id, at_least)?;
        self.0.numbers.write().unwrap_or_else(PoisonError::into_inner).insert(record.id, Arc::new(record.numbers()));
        Ok(record)
    }

    /// The number of databases.
    pub(crate) fn count(&self) -> usize {
        self.0.numbers.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// All databases in order of name.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn databases(&self) -> Result<Vec<DatabaseRecord>, StoreError> {
        catalog::all(&self.0.inner).collect()
    }

    /// Up to `limit` databases after a name, in order of name.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn databases_after(&self, after: Option<&DatabaseName>, limit: usize) -> Result<Vec<DatabaseRecord>, StoreError> {
        catalog::after(&self.0.inner, after).take(limit).collect()
    }

    /// Whether there is a database of this name.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn has_database(&self, name: &DatabaseName) -> Result<bool, StoreError> {
        catalog::find(&self.0.inner, name).map(|record| record.is_some())
    }

    /// A database's small figures as of its last commit; those of an empty one when nothing was committed.
    ///
    /// # Errors
    /// When the database is not in this store, or the store cannot read.
    pub fn meta(&self, database: &DatabaseId) -> Result<Meta, StoreError> {
        self.view(database)?.meta()
    }

    /// Reads from one snapshot, which later commits do not change. It keeps old data on disk for as long as it lives.
    ///
    /// # Errors
    /// When the database is not in this store.
    pub fn snapshot(&self, database: &DatabaseId) -> Result<RocksView<'_>, StoreError> {
        // Under the lock, so that no switch of rows comes between numbers and snapshot.
        let numbers = self.0.numbers.read().unwrap_or_else(PoisonError::into_inner);
        let of = numbers.get(database).ok_or(StoreError::UnknownDatabase(*database))?;
        Ok(RocksView::pinned(&self.0.inner, Arc::clone(of)))
    }

    /// Blocks in the order of their merging from a revision on, without those that `skip` names: up to `max_bytes`, but
    /// at least one if there is any.
    ///
    /// # Errors
    /// When the database is not in this store, or the store cannot read.
    pub fn read_log(
        &self,
        database: &DatabaseId,
        from: u64,
        max_bytes: usize,
        skip: &dyn Fn(&Dot) -> bool,
    ) -> Result<LogChunk, StoreError> {
        self.view(database)?.read_log(from, max_bytes, skip)
    }

    /// The log revision at which a block was merged; `None` when it is not merged, or dropped with its history.
    ///
    /// # Errors
    /// When the database is not in this store, the store cannot read, or the block is missing although nobody dropped it.
    pub fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, StoreError> {
        self.view(database)?.revision_of(dot)
    }

    /// Who writes under a replica id; `None` when nothing of it has been merged.
    ///
    /// # Errors
    /// When the database is not in this store, or the store cannot read.
    pub fn author(&self, database: &DatabaseId, replica: &ReplicaId) -> Result<Option<Author>, StoreError> {
        self.view(database)?.author(replica)
    }

    /// Approximate sizes on disk.
    ///
    /// # Errors
    /// When the database is not in this store.
    pub fn stats(&self, database: &DatabaseId) -> Result<StoreStats, StoreError> {
        let numbers = self.numbers(database)?;
        let size = |family: Family| {
            let number = if family.is_of_rows() { numbers.rows } else { numbers.number };
            let range = layout::number_range(number);
            let handle = self.0.inner.family(family);
            self.0.inner.rocks().get_approximate_sizes_cf(handle, &[Range::new(&range.start, &range.end)]).iter().sum::<u64>()
        };
        let other =
            [Family::Values, Family::State, Family::Log, Family::Requests, Family::Ages, Family::Expiries].map(size).iter().sum();
        Ok(StoreStats { rows: size(Family::Rows), blocks: size(Family::Blocks), other })
    }

    fn numbers(&self, database: &DatabaseId) -> Result<Arc<Numbers>, StoreError> {
        let numbers = self.0.numbers.read().unwrap_or_else(PoisonError::into_inner);
        numbers.get(database).cloned().ok_or(StoreError::UnknownDatabase(*database))
    }
}

impl Store for RocksStore {
    type Error = StoreError;
    type View<'a> = RocksView<'a>;

    /// Live reads, without a snapshot: each sees all commits made before it.
    fn view(&self, database: &DatabaseId) -> Result<RocksView<'_>, StoreError> {
        Ok(RocksView::live(&self.0.inner, self.numbers(database)?))
    }

    fn commit(&mut self, writes: &[WriteSet], durability: Durability) -> Result<(), StoreError> {
        if writes.is_empty() {
            return match durability {
                Durability::Buffered => Ok(()),
                Durability::Sync => self.0.inner.sync(),
            };
        }
        // No number is given twice.
        let building = writes.iter().any(|set| !set.snapshot.is_empty());
        let _creating = building.then(|| self.0.creating.lock().unwrap_or_else(PoisonError::into_inner));
        let numbers = writes.iter().map(|set| self.numbers(&set.database)).collect::<Result<Vec<_>, _>>()?;
        let inner = &self.0.inner;
        let mut assembly = Assembly::new(inner);
        let mut switches = Switches::default();
        for (set, numbers) in writes.iter().zip(&numbers) {
            if !set.snapshot.is_empty() {
                inner.workshop().run((**numbers, self.path()), &set.snapshot, &mut assembly, &mut switches)?;
            }
            assembly.set(set, **numbers);
        }
        let mut options = WriteOptions::default();
        options.set_sync(durability == Durability::Sync);
        if switches.is_empty() {
            inner.write(assembly.batch, &options)?;
        } else {
            // Whoever begins to read sees all of the old state or all of the new one.
            let mut current = self.0.numbers.write().unwrap_or_else(PoisonError::into_inner);
            inner.write(assembly.batch, &options)?;
            for (set, old) in writes.iter().zip(numbers) {
                if let Some(new) = switches.of(old.number) {
                    current.insert(set.database, Arc::new(new));
                    inner.workshop().switched(old);
                }
            }
        }
        inner.workshop().collect(inner)
    }
}

/// Opens RocksDB, and says what was lost if that was accepted.
fn open_rocks(path: &Path, options: &StoreOptions, stage: Stage) -> Result<(Rocks, Option<String>), StoreOpenError> {
    let files = match stage {
        Stage::Creating => Files::Create,
        Stage::Ready | Stage::Restored => Files::Expect,
    };
    let open = |mode, logs| {
        let mut database = options.database(files, logs);
        database.set_wal_recovery_mode(mode);
        Rocks::open_cf_descriptors(&database, path, options.families())
    };
    let condition = wal::condition(path).map_err(|source| StoreOpenError::Directory { path: path.to_owned(), source })?;
    let failed = |error: rocksdb::Error| StoreOpenError::RocksDb { path: path.to_owned(), cause: error.into_string() };
    let opened = match condition {
        LogCondition::Whole => Ok(open(DBRecoveryMode::TolerateCorruptedTailRecords, Logs::Tracked)),
        LogCondition::Torn => Ok(open(DBRecoveryMode::PointInTime, Logs::Tracked)),
        LogCondition::Damaged(cause) => Err(cause),
    };
    let cause = match opened {
        Ok(Ok(rocks)) => return Ok((rocks, None)),
        // A log is missing, or shorter than it was when it was synced.
        Ok(Err(error)) if error.kind() == ErrorKind::Corruption && error.as_ref().contains("WAL") => error.into_string(),
        Ok(Err(error)) => return Err(failed(error)),
        Err(cause) => cause,
    };
    if options.loss == LossPolicy::Refuse {
        return Err(StoreOpenError::DamagedLog { path: path.to_owned(), cause });
    }
    // Up to the damage and no further: that is a state which once was. Reading on behind it would leave version vectors
    // that claim lost blocks, which no peer would ever send again.
    open(DBRecoveryMode::PointInTime, Logs::AsTheyAre).map(|rocks| (rocks, Some(cause))).map_err(failed)
}

#[cfg(test)]
mod tests;
