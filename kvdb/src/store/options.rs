//! How a store is opened.

use std::sync::OnceLock;
use std::thread;

use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, Options};

use super::layout::Family;
use crate::limits::{MAX_INLINE_VALUE_BYTES, MAX_STORE_OPEN_FILES};

const MIB: usize = 1 << 20;

/// What to do when committed writes are lost: the write-ahead log is damaged before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossPolicy {
    /// Refuse to open.
    #[default]
    Refuse,
    /// Open with what can be read, and say so. The databases lack writes that were confirmed; peers bring them back.
    Accept,
}

/// Settings of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOptions {
    /// Memory for blocks of files, indexes and filters, over all databases. Default 64 MiB.
    pub block_cache_bytes: usize,
    /// Memory for writes that are not in files yet, over all databases. Default 128 MiB; less makes more, smaller files.
    pub write_buffer_bytes: usize,
    /// Length at which the write-ahead log is cut by writing files. Default 64 MiB; opening after a crash reads this much.
    pub max_wal_bytes: u64,
    /// What to do when committed writes are lost.
    pub loss: LossPolicy,
}

impl StoreOptions {
    /// These settings for one of so many stores, which share the memory equally.
    #[must_use]
    pub(crate) fn share(self, stores: usize) -> Self {
        let part = |bytes: usize| (bytes / stores.max(1)).max(MIB);
        Self { block_cache_bytes: part(self.block_cache_bytes), write_buffer_bytes: part(self.write_buffer_bytes), ..self }
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { block_cache_bytes: 64 * MIB, write_buffer_bytes: 128 * MIB, max_wal_bytes: 64 << 20, loss: LossPolicy::default() }
    }
}

/// Whether the files are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    Create,
    Expect,
}

/// Whether the lengths of synced logs are compared with what was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Logs {
    Tracked,
    AsTheyAre,
}

/// How files of rows are written that RocksDB takes in whole: as those of its own.
pub(super) fn row_files() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let mut table = BlockBasedOptions::default();
        table.set_bloom_filter(10.0, false);
        let mut options = Options::default();
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::Lz4);
        options
    })
}

impl StoreOptions {
    pub(super) fn database(&self, files: Files, logs: Logs) -> Options {
        let mut options = Options::default();
        options.create_if_missing(files == Files::Create);
        options.create_missing_column_families(files == Files::Create);
        options.set_db_write_buffer_size(self.write_buffer_bytes);
        options.set_max_total_wal_size(self.max_wal_bytes);
        options.set_max_open_files(MAX_STORE_OPEN_FILES);
        let cores = thread::available_parallelism().map_or(2, usize::from);
        options.set_max_background_jobs(i32::try_from(cores.clamp(2, 8)).unwrap_or(2));
        // Spread write-back over time instead of one stall at the end of a file.
        options.set_bytes_per_sync(MIB as u64);
        options.set_wal_bytes_per_sync(MIB as u64);
        options.set_track_and_verify_wals_in_manifest(logs == Logs::Tracked);
        // RocksDB's own log of what it does: not more than a small database.
        options.set_max_log_file_size(MIB / 4);
        options.set_keep_log_file_num(4);
        options
    }

    pub(super) fn families(&self) -> Vec<ColumnFamilyDescriptor> {
        // The LRU cache is cut into shards of half a mebibyte, into which the filter of a large file does not fit: it would
        // be read again for every get (measured: 30 times slower).
        let cache = Cache::new_hyper_clock_cache(self.block_cache_bytes, 0);
        let default = ColumnFamilyDescriptor::new(rocksdb::DEFAULT_COLUMN_FAMILY_NAME, self.family(None, &cache));
        let families = Family::ALL.map(|family| ColumnFamilyDescriptor::new(family.name(), self.family(Some(family), &cache)));
        std::iter::once(default).chain(families).collect()
    }

    fn family(&self, family: Option<Family>, cache: &Cache) -> Options {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(cache);
        // Memory stays within the cache's bound, whatever the number of files.
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        if matches!(family, Some(Family::Rows | Family::Values | Family::Blocks | Family::Requests)) {
            table.set_bloom_filter(10.0, false);
        }
        let mut options = Options::default();
        options.set_block_based_table_factory(&table);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_write_buffer_size((self.write_buffer_bytes / 2).min(64 * MIB));
        // A stretch of deletions is compacted at once, so that scans do not wade through it.
        options.add_compact_on_deletion_collector_factory(128 * 1024, 64 * 1024, 0.5);
        if family == Some(Family::Rows) {
            // Each put reads its row first, and most rows are new: a filter over the memtables spares a search in each.
            options.set_memtable_prefix_bloom_ratio(0.05);
            options.set_memtable_whole_key_filtering(true);
        }
        if family == Some(Family::Values) {
            options.set_enable_blob_files(true);
            options.set_min_blob_size(MAX_INLINE_VALUE_BYTES as u64);
            options.set_blob_compression_type(DBCompressionType::Lz4);
            options.set_enable_blob_gc(true);
            // Superseded values of the oldest files go when half of those is garbage, whatever the rest is.
            options.set_blob_gc_force_threshold(0.5);
        }
        options
    }
}
