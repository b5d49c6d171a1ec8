//! The RocksDB instance behind a store: typed reads, bounded scans, and writes that poison it when they fail.

use std::ops::Range;
use std::sync::OnceLock;

use crdt::Order;
use rocksdb::{
    ColumnFamily, DBRawIteratorWithThreadMode, DBWithThreadMode, ReadOptions, SingleThreaded, WriteBatch, WriteOptions,
};

use super::error::StoreError;
use super::layout::{Family, Malformed};
use super::staging::Workshop;

/// All column families are opened at the start, so handles need no lock.
pub(super) type Rocks = DBWithThreadMode<SingleThreaded>;
pub(super) type Snapshot<'a> = rocksdb::SnapshotWithThreadMode<'a, Rocks>;

type Cursor<'a> = DBRawIteratorWithThreadMode<'a, Rocks>;

pub(super) struct Inner {
    rocks: Rocks,
    read: ReadOptions,
    poison: OnceLock<String>,
    workshop: Workshop,
}

impl Inner {
    pub(super) fn new(rocks: Rocks) -> Self {
        Self { rocks, read: ReadOptions::default(), poison: OnceLock::new(), workshop: Workshop::default() }
    }

    /// Rows that are being built.
    pub(super) fn workshop(&self) -> &Workshop {
        &self.workshop
    }

    pub(super) fn rocks(&self) -> &Rocks {
        &self.rocks
    }

    #[expect(clippy::expect_used, reason = "RocksDB opens either all families asked for or none")]
    pub(super) fn family(&self, family: Family) -> &ColumnFamily {
        self.rocks.cf_handle(family.name()).expect("opened at the start")
    }

    /// Reads one record without copying it.
    pub(super) fn get<T>(
        &self,
        family: Family,
        key: &[u8],
        decode: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, StoreError> {
        self.get_at(None, family, key, decode)
    }

    pub(super) fn get_at<T>(
        &self,
        snapshot: Option<&Snapshot<'_>>,
        family: Family,
        key: &[u8],
        decode: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, StoreError> {
        let handle = self.family(family);
        let found = match snapshot {
            None => self.rocks.get_pinned_cf_opt(handle, key, &self.read)?,
            Some(snapshot) => snapshot.get_pinned_cf_opt(handle, key, ReadOptions::default())?,
        };
        found.map(|bytes| decode(&bytes).map_err(|error| error.at(family, key))).transpose()
    }

    /// All records of a range, ascending.
    pub(super) fn scan<T, F>(&self, family: Family, range: Range<Vec<u8>>, decode: F) -> Scan<'_, F>
    where
        F: FnMut(&[u8], &[u8]) -> Result<T, Malformed>,
    {
        self.scan_at(None, family, range, Order::Ascending, decode)
    }

    pub(super) fn scan_at<'a, T, F>(
        &'a self,
        snapshot: Option<&'a Snapshot<'a>>,
        family: Family,
        range: Range<Vec<u8>>,
        order: Order,
        decode: F,
    ) -> Scan<'a, F>
    where
        F: FnMut(&[u8], &[u8]) -> Result<T, Malformed>,
    {
        let empty = range.is_empty();
        let mut cursor = self.cursor(snapshot, family, range);
        if !empty {
            match order {
                Order::Ascending => cursor.seek_to_first(),
                Order::Descending => cursor.seek_to_last(),
            }
        }
        Scan { cursor, family, order, decode, done: empty }
    }

    /// Point reads that mostly follow each other in a range.
    pub(super) fn seeker<'a>(&'a self, snapshot: Option<&'a Snapshot<'a>>, family: Family, range: Range<Vec<u8>>) -> Seeker<'a> {
        Seeker { cursor: self.cursor(snapshot, family, range), family }
    }

    fn cursor<'a>(&'a self, snapshot: Option<&'a Snapshot<'a>>, family: Family, range: Range<Vec<u8>>) -> Cursor<'a> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(range.start);
        options.set_iterate_upper_bound(range.end);
        let handle = self.family(family);
        match snapshot {
            None => self.rocks.raw_iterator_cf_opt(handle, options),
            Some(snapshot) => snapshot.raw_iterator_cf_opt(handle, options),
        }
    }

    /// Writes a batch; a failure poisons the store, because what is on disk is then not known.
    pub(super) fn write(&self, batch: WriteBatch, options: &WriteOptions) -> Result<(), StoreError> {
        self.check_poison()?;
        self.rocks.write_opt(batch, options).map_err(|error| self.fail(error))
    }

    pub(super) fn write_synced(&self, batch: WriteBatch) -> Result<(), StoreError> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.write(batch, &options)
    }

    /// Brings all earlier writes to the disk.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.check_poison()?;
        self.rocks.flush_wal(true).map_err(|error| self.fail(error))
    }

    pub(super) fn poison(&self) -> Option<&String> {
        self.poison.get()
    }

    pub(super) fn fail(&self, error: rocksdb::Error) -> StoreError {
        let cause = error.into_string();
        // The first failure is the cause of all later ones.
        let _ = self.poison.set(cause.clone());
        StoreError::RocksDb(cause)
    }

    /// As if a commit had failed.
    #[cfg(test)]
    pub(super) fn poison_with(&self, cause: &str) {
        let _ = self.poison.set(cause.to_owned());
    }

    fn check_poison(&self) -> Result<(), StoreError> {
        match self.poison.get() {
            Some(cause) => Err(StoreError::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("rocks", &self.rocks).field("poison", &self.poison).finish_non_exhaustive()
    }
}

/// The records of a range, one at a time. Ends after the first error, and never early without one.
pub(super) struct Scan<'a, F> {
    cursor: Cursor<'a>,
    family: Family,
    order: Order,
    decode: F,
    done: bool,
}

impl<T, F> Iterator for Scan<'_, F>
where
    F: FnMut(&[u8], &[u8]) -> Result<T, Malformed>,
{
    type Item = Result<T, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let Some((key, value)) = self.cursor.item() else {
            self.done = true;
            // Not valid is the end of the range only when the status says so.
            return self.cursor.status().err().map(|error| Err(error.into()));
        };
        match (self.decode)(key, value) {
            Ok(item) => {
                match self.order {
                    Order::Ascending => self.cursor.next(),
                    Order::Descending => self.cursor.prev(),
                }
                Some(Ok(item))
            }
            Err(error) => {
                self.done = true;
                Some(Err(error.at(self.family, key)))
            }
        }
    }
}

/// Point reads of one range by one cursor: the next record costs a step, any other one a seek.
pub(super) struct Seeker<'a> {
    cursor: Cursor<'a>,
    family: Family,
}

impl Seeker<'_> {
    pub(super) fn get<T>(
        &mut self,
        key: &[u8],
        decode: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, StoreError> {
        if self.cursor.key().is_some_and(|at| at < key) {
            self.cursor.next();
        }
        if self.cursor.key() != Some(key) {
            self.cursor.seek(key);
        }
        match self.cursor.item() {
            Some((at, record)) if at == key => decode(record).map(Some).map_err(|error| error.at(self.family, key)),
            Some(_) => Ok(None),
            None => Ok(self.cursor.status().map(|()| None)?),
        }
    }
}
