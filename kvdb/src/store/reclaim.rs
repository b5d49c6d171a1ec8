//! Space on disk: what uses it, and giving back what nothing refers to any more.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crdt::DatabaseId;
use rocksdb::{BottommostLevelCompaction, CompactOptions, FlushOptions};

use super::error::StoreError;
use super::layout::{self, Family};
use super::{RocksStore, catalog, catalog::Numbers};

/// Bytes on disk by what they are for, over all databases of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUse {
    /// Rows and values, as of the last files written.
    pub live: u64,
    /// Blocks and their log.
    pub history: u64,
    /// Everything else: the write-ahead log, what was superseded or dropped and is still in files, indexes of the engine.
    pub engine: u64,
}

/// Which files to rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// Those of blocks and log.
    History,
    /// Those of rows and values as well.
    Everything,
}

/// Share of the oldest files of large values that RocksDB looks at for what nothing refers to any more.
const BLOB_GC_CUTOFF: (&str, &str) = ("blob_garbage_collection_age_cutoff", "0.25");
const BLOB_GC_ALL: (&str, &str) = ("blob_garbage_collection_age_cutoff", "1.0");

impl RocksStore {
    /// Rewrites the files of a database, so that what was deleted or superseded leaves the disk. Takes as long as reading
    /// and writing what stays; reads and writes go on meanwhile. Blocks the thread.
    ///
    /// # Errors
    /// When the database is not in this store, or an option cannot be set. A failure of the rewriting itself shows as
    /// space that is not given back.
    pub fn reclaim(&self, database: &DatabaseId, what: Reclaim) -> Result<(), StoreError> {
        let numbers = self.numbers(database)?;
        // One at a time: they share the disk, and an option.
        let _one = self.0.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
        for family in [Family::Blocks, Family::Log] {
            self.rewrite(family, *numbers);
        }
        if what == Reclaim::Everything {
            self.rewrite(Family::Rows, *numbers);
            let (rocks, values) = (self.0.inner.rocks(), self.0.inner.family(Family::Values));
            rocks.set_options_cf(values, &[BLOB_GC_ALL])?;
            self.rewrite(Family::Values, *numbers);
            rocks.set_options_cf(values, &[BLOB_GC_CUTOFF])?;
            // The write-ahead log goes once all that is in it is in files. An old one stays while the newest is empty, so
            // something is written first.
            catalog::write_store(&self.0.inner, self.0.id)?;
            let families = Family::ALL.map(|family| self.0.inner.family(family));
            rocks.flush_cfs_opt(&families, &FlushOptions::default()).map_err(|error| self.0.inner.fail(error))?;
        }
        Ok(())
    }

    /// Ends rewriting under way, and all to come: the store is about to be closed.
    pub(crate) fn stop_reclaiming(&self) {
        if !self.0.stopping.swap(true, Ordering::AcqRel) && self.0.reclaiming.try_lock().is_err() {
            self.0.inner.rocks().cancel_all_background_work(false);
        }
    }

    fn rewrite(&self, family: Family, numbers: Numbers) {
        if self.0.stopping.load(Ordering::Acquire) {
            return;
        }
        let number = if family.is_of_rows() { numbers.rows } else { numbers.number };
        let range = layout::number_range(number);
        let mut options = CompactOptions::default();
        // Automatic compactions go on beside it, so that writers are not held up.
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
        let handle = self.0.inner.family(family);
        self.0.inner.rocks().compact_range_cf_opt(handle, Some(range.start), Some(range.end), &options);
    }

    /// What uses the disk.
    ///
    /// # Errors
    /// When the directory cannot be read, or RocksDB does not say.
    pub fn disk_use(&self) -> Result<DiskUse, StoreError> {
        let live = self.live_bytes(&[Family::Rows, Family::Values])?;
        let history = self.live_bytes(&[Family::Blocks, Family::Log])?;
        let mut total = 0;
        let failed = |error: std::io::Error| StoreError::Directory(error.to_string());
        for file in std::fs::read_dir(self.path()).map_err(failed)? {
            // A file that goes meanwhile uses nothing.
            total += file.map_err(failed)?.metadata().map_or(0, |data| if data.is_file() { data.len() } else { 0 });
        }
        Ok(DiskUse { live, history, engine: total.saturating_sub(live + history) })
    }

    fn live_bytes(&self, families: &[Family]) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for family in families {
            let property = |name: &str| -> Result<u64, StoreError> {
                let handle = self.0.inner.family(*family);
                Ok(self.0.inner.rocks().property_int_value_cf(handle, name)?.unwrap_or(0))
            };
            bytes += property("rocksdb.estimate-live-data-size")?;
            let blobs = property("rocksdb.live-blob-file-size")?;
            bytes += blobs.saturating_sub(property("rocksdb.live-blob-file-garbage-size")?);
        }
        Ok(bytes)
    }
}
