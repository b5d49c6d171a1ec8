//! Snapshots on their way in: chunks in `staging`, the joined rows under a row number of their own, and the switch to it.
//!
//! Rows are written as files that RocksDB takes in whole, since they come in order and nobody reads them yet; values that
//! stand apart are not in the order of such a file, and go through ordinary batches. A row number that is not in use is in
//! the catalogue until its rows are gone, so that a crash anywhere leaves nothing that start-up does not find.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crdt::{Dot, Expiry, Key, LogEntry, Row, SnapshotWrite};
use rocksdb::{IngestExternalFileOptions, Options, SstFileWriter, WriteBatch, WriteOptions};

use super::catalog::{self, Numbers, StoreId};
use super::commit::Assembly;
use super::error::StoreError;
use super::layout::{self, Family, Malformed, Writer};
use super::options::row_files;
use super::rocks::Inner;
use crate::limits::{BUILD_BATCH_BYTES, BUILD_FILE_BYTES};

/// Files of rows that were not taken in yet.
const BUILDING: &str = "building";

/// Rows being built, for each database by its number, and row numbers that are not in use any more.
#[derive(Default)]
pub(super) struct Workshop {
    built: Mutex<BTreeMap<u32, Built>>,
    /// Row numbers to be emptied once nobody reads them.
    garbage: Mutex<Vec<Arc<Numbers>>>,
}

impl std::fmt::Debug for Workshop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workshop")
    }
}

/// The rows of one database as they are built.
struct Built {
    rows: u32,
    file: Option<(SstFileWriter<'static>, PathBuf)>,
    files: usize,
    sealed: bool,
}

/// What a commit changes besides the batch, once the batch is written.
#[derive(Debug, Default)]
pub(super) struct Switches(Vec<Numbers>);

impl Switches {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers from now on of the database with this number.
    pub(super) fn of(&self, number: u32) -> Option<Numbers> {
        self.0.iter().find(|numbers| numbers.number == number).copied()
    }
}

impl Workshop {
    /// Does the steps of one write set: what belongs to the atomic batch is added to it, the rest is done at once.
    pub(super) fn run(
        &self,
        (numbers, directory): (Numbers, &Path),
        writes: &[SnapshotWrite],
        assembly: &mut Assembly<'_>,
        switches: &mut Switches,
    ) -> Result<(), StoreError> {
        let inner = assembly.inner;
        let number = numbers.number;
        let mut apart = Apart { inner, batch: WriteBatch::default() };
        for write in writes {
            match write {
                SnapshotWrite::Discard => {
                    assembly.staging_clear(number);
                    self.forget(numbers);
                }
                SnapshotWrite::Begin { head } => {
                    assembly.staging_clear(number);
                    assembly.staging_head(number, head);
                    self.forget(numbers);
                }
                SnapshotWrite::Chunk { index, next, bytes } => assembly.staging_chunk(number, *index, next, bytes),
                SnapshotWrite::Build => {
                    self.forget(numbers);
                    let rows = catalog::take_row_number(inner)?;
                    let built = Built { rows, file: None, files: 0, sealed: false };
                    lock(&self.built).insert(number, built);
                }
                SnapshotWrite::Value { key, dot, value } => apart.put(self.rows(number)?, key, dot, value)?,
                SnapshotWrite::Copy { key, dot } => apart.copy(numbers.rows, self.rows(number)?, key, dot)?,
                SnapshotWrite::Append(rows) => self.append(inner, (number, directory), rows, &mut apart)?,
                SnapshotWrite::Seal => {
                    let mut built = lock(&self.built);
                    let built = built.get_mut(&number).ok_or(NOTHING_BUILT)?;
                    built.take_in(inner)?;
                    built.sealed = true;
                }
                SnapshotWrite::Patch(rows) => assembly.rows(rows, self.rows(number)?),
                SnapshotWrite::Switch { revision } | SnapshotWrite::Replace { revision } => {
                    let mut store = None;
                    if matches!(write, SnapshotWrite::Replace { .. }) {
                        assembly.clear_replica(number);
                        store = Some(StoreId(rand::random()));
                    }
                    let rows = self.rows(number)?;
                    assembly.switch(number, rows, LogEntry::switch(*revision), store)?;
                    switches.0.push(Numbers { rows, ..numbers });
                }
            }
        }
        apart.flush()
    }

    /// The number under which a database's rows are being built.
    fn rows(&self, number: u32) -> Result<u32, StoreError> {
        lock(&self.built).get(&number).map(|built| built.rows).ok_or(NOTHING_BUILT)
    }

    /// The number of rows that can be read.
    pub(super) fn sealed(&self, number: u32) -> Option<u32> {
        lock(&self.built).get(&number).filter(|built| built.sealed).map(|built| built.rows)
    }

    fn append(
        &self,
        inner: &Inner,
        (number, directory): (u32, &Path),
        rows: &[(Key, Row)],
        apart: &mut Apart<'_>,
    ) -> Result<(), StoreError> {
        let mut all = lock(&self.built);
        let built = all.get_mut(&number).ok_or(NOTHING_BUILT)?;
        let (mut key, mut record) = (Writer::with_capacity(1 << 7), Writer::with_capacity(1 << 10));
        for (at, row) in rows {
            for expiry in row.siblings().iter().filter_map(|sibling| sibling.expiry) {
                apart.expires(built.rows, expiry, at)?;
            }
            for sibling in row.siblings().iter().filter(|sibling| layout::is_apart(sibling.len)) {
                if let Some(value) = &sibling.value {
                    apart.put(built.rows, at, &sibling.dot, value)?;
                }
            }
            key.row_key(built.rows, at);
            record.row(row);
            let file = built.file(directory, row_files())?;
            file.put(key.bytes(), record.bytes())?;
            if file.file_size() >= BUILD_FILE_BYTES {
                built.take_in(inner)?;
            }
        }
        Ok(())
    }

    /// The rows that were being built are not wanted.
    fn forget(&self, numbers: Numbers) {
        let built = lock(&self.built).remove(&numbers.number);
        if let Some(built) = built {
            if let Some((_, path)) = built.file {
                // Start-up removes it if this does not.
                let _ = std::fs::remove_file(path);
            }
            self.discard(Arc::new(Numbers { rows: built.rows, ..numbers }));
        }
    }

    /// The switch is written: the old rows go once nobody reads them.
    pub(super) fn switched(&self, old: Arc<Numbers>) {
        lock(&self.built).remove(&old.number);
        self.discard(old);
    }

    fn discard(&self, numbers: Arc<Numbers>) {
        lock(&self.garbage).push(numbers);
    }

    /// Empties row numbers that nobody reads any more. Whoever reads one holds its `Arc`.
    pub(super) fn collect(&self, inner: &Inner) -> Result<(), StoreError> {
        let mut garbage = lock(&self.garbage);
        if garbage.is_empty() {
            return Ok(());
        }
        let unread: Vec<Arc<Numbers>> = garbage.extract_if(.., |numbers| Arc::strong_count(numbers) == 1).collect();
        drop(garbage);
        unread.into_iter().try_for_each(|numbers| empty(inner, numbers.rows))
    }
}

const NOTHING_BUILT: StoreError = StoreError::NothingBuilt;

/// Start-up: no join is under way, so whatever was being built or left is removed.
pub(super) fn clean(inner: &Inner, directory: &Path) -> Result<(), StoreError> {
    let leftover = |path: &Path| path.extension().is_some_and(|extension| extension == BUILDING);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if leftover(&entry.path()) {
            // Without it only space is lost, and the next start tries again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let numbers: Vec<u32> = catalog::unused_rows(inner).collect::<Result<_, _>>()?;
    numbers.into_iter().try_for_each(|rows| empty(inner, rows))
}

/// Removes all rows of a number, and then the number from the catalogue.
fn empty(inner: &Inner, rows: u32) -> Result<(), StoreError> {
    let range = layout::number_range(rows);
    let mut batch = WriteBatch::default();
    for family in [Family::Rows, Family::Values, Family::Expiries] {
        let family = inner.family(family);
        // Whole files go at once; nobody reads these rows, by a snapshot neither.
        inner.rocks().delete_file_in_range_cf(family, &range.start, &range.end)?;
        batch.delete_range_cf(family, &range.start, &range.end);
    }
    catalog::forget_row_number(inner, &mut batch, rows);
    inner.write(batch, &WriteOptions::default())
}

impl Built {
    fn file(&mut self, directory: &Path, options: &'static Options) -> Result<&mut SstFileWriter<'static>, StoreError> {
        if self.file.is_none() {
            let path = directory.join(format!("{}-{}.{BUILDING}", self.rows, self.files));
            // Of a build that was given up under the same number: none, since numbers are given once.
            let writer = SstFileWriter::create(options);
            writer.open(&path)?;
            self.files += 1;
            self.file = Some((writer, path));
        }
        self.file.as_mut().map(|(writer, _)| writer).ok_or(NOTHING_BUILT)
    }

    /// Closes the file and makes it part of the store. It is on disk then.
    fn take_in(&mut self, inner: &Inner) -> Result<(), StoreError> {
        let Some((mut writer, path)) = self.file.take() else { return Ok(()) };
        writer.finish()?;
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        Ok(inner.rocks().ingest_external_file_cf_opts(inner.family(Family::Rows), &options, vec![path])?)
    }
}

/// Values on their way to rows that are being built, in batches of bounded size.
struct Apart<'a> {
    inner: &'a Inner,
    batch: WriteBatch,
}

impl Apart<'_> {
    fn put(&mut self, rows: u32, key: &Key, dot: &Dot, value: &[u8]) -> Result<(), StoreError> {
        let (mut at, mut record) = (Writer::with_capacity(1 << 7), Writer::with_capacity(value.len() + 1));
        at.value_key(rows, key, dot);
        record.value(value);
        self.batch.put_cf(self.inner.family(Family::Values), at.bytes(), record.bytes());
        if self.batch.size_in_bytes() > BUILD_BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Notes where a built row expires.
    fn expires(&mut self, rows: u32, expiry: Expiry, key: &Key) -> Result<(), StoreError> {
        let (mut at, mut record) = (Writer::with_capacity(1 << 7), Writer::with_capacity(1));
        at.expiry_key(rows, expiry, key);
        self.batch.put_cf(self.inner.family(Family::Expiries), at.bytes(), record.version().bytes());
        if self.batch.size_in_bytes() > BUILD_BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn copy(&mut self, from: u32, to: u32, key: &Key, dot: &Dot) -> Result<(), StoreError> {
        let mut at = Writer::with_capacity(1 << 7);
        at.value_key(from, key, dot);
        let value = self.inner.get(Family::Values, at.bytes(), layout::read_value)?;
        let value = value.ok_or_else(|| Malformed("the value of a row is missing").at(Family::Values, at.bytes()))?;
        self.put(to, key, dot, &value)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let batch = std::mem::take(&mut self.batch);
        // The switch is synced, and everything before it with it.
        if batch.is_empty() { Ok(()) } else { self.inner.write(batch, &WriteOptions::default()) }
    }
}

impl Assembly<'_> {
    fn staging_clear(&mut self, number: u32) {
        let range = layout::number_range(number);
        self.batch.delete_range_cf(self.inner.family(Family::Staging), &range.start, &range.end);
    }

    fn staging_head(&mut self, number: u32, head: &[u8]) {
        self.key.staging_head_key(number);
        self.record.staging_head(head);
        self.put(self.inner.family(Family::Staging));
    }

    fn staging_chunk(&mut self, number: u32, index: u64, next: &[u8], bytes: &[u8]) {
        self.key.staging_chunk_key(number, index);
        self.record.staging_chunk(next, bytes);
        self.put(self.inner.family(Family::Staging));
    }

    /// Everything but the rows, what is staged and the outcomes of requests.
    fn clear_replica(&mut self, number: u32) {
        let range = layout::number_range(number);
        for family in [Family::Blocks, Family::Log, Family::State] {
            self.batch.delete_range_cf(self.inner.family(family), &range.start, &range.end);
        }
    }

    fn switch(&mut self, number: u32, rows: u32, entry: LogEntry, store: Option<StoreId>) -> Result<(), StoreError> {
        self.staging_clear(number);
        self.key.log_key(number, entry.revision);
        self.record.log(&entry.dot, 0);
        self.put(self.inner.family(Family::Log));
        catalog::switch_rows(self.inner, &mut self.batch, number, rows, store)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
