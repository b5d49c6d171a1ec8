//! Rows as far as they can be read, from a store that may be damaged; and, for tests, the way to damage one.

use std::collections::BTreeSet;

use bytes::Bytes;
use crdt::{DatabaseId, Dot, Expiry, Key, Order, Projection, Row, Stamp, View as _};
use rocksdb::{IteratorMode, WriteBatch, WriteOptions};

use super::RocksStore;
use super::error::StoreError;
use super::layout::{self, Family};

/// One of the values at a key, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedSibling {
    /// The block that put it.
    pub dot: Dot,
    /// That block's stamp.
    pub stamp: Stamp,
    /// When it expires.
    pub expiry: Option<Expiry>,
    /// The value; `None` if it cannot be read.
    pub value: Option<Bytes>,
}

/// Key and bytes of a record.
#[doc(hidden)]
pub type RawRecord = (Vec<u8>, Vec<u8>);

/// What could not be saved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unreadable {
    /// Rows whose records make no sense.
    pub rows: u64,
    /// Values that are missing or make no sense.
    pub values: u64,
    /// Why reading ended early, if it did.
    pub ended: Option<String>,
}

impl RocksStore {
    /// Hands out all values at these keys, or at all, in one view, past whatever cannot be read.
    ///
    /// # Errors
    /// When the database is not in this store, or what takes the values fails.
    pub(crate) fn salvage(
        &self,
        database: &DatabaseId,
        keys: Option<&BTreeSet<Key>>,
        save: &mut dyn FnMut(&Key, &[SavedSibling]) -> std::io::Result<()>,
    ) -> Result<(u64, Unreadable), SalvageError> {
        let view = self.snapshot(database)?;
        let (mut saved, mut unreadable) = (0, Unreadable::default());
        let mut take = |key: &Key, row: &Row, unreadable: &mut Unreadable| {
            let siblings = row.siblings().iter().map(|sibling| {
                let value = sibling.value.clone().or_else(|| view.value(key, &sibling.dot).ok().flatten());
                unreadable.values += u64::from(value.is_none());
                SavedSibling { dot: sibling.dot, stamp: sibling.stamp, expiry: sibling.expiry, value }
            });
            let siblings: Vec<SavedSibling> = siblings.collect();
            if !siblings.is_empty() {
                saved += 1;
                save(key, &siblings).map_err(SalvageError::Save)?;
            }
            Ok::<(), SalvageError>(())
        };
        if let Some(keys) = keys {
            for key in keys {
                match view.row(key) {
                    Ok(row) => take(key, &row, &mut unreadable)?,
                    Err(_) => unreadable.rows += 1,
                }
            }
        } else {
            let range = layout::number_range(self.numbers(database)?.rows);
            let rows = self.0.inner.scan_at(None, Family::Rows, range, Order::Ascending, |key, record| {
                Ok(layout::read_row_key(key).and_then(|key| Ok((key, layout::read_row(record, Projection::Rows)?))))
            });
            for found in rows {
                match found {
                    Ok(Ok((key, row))) => take(&key, &row, &mut unreadable)?,
                    Ok(Err(_)) => unreadable.rows += 1,
                    Err(error) => unreadable.ended = Some(error.to_string()),
                }
            }
        }
        Ok((saved, unreadable))
    }

    /// For tests: all records of a family, as they are.
    ///
    /// # Errors
    /// When the store cannot read.
    #[doc(hidden)]
    pub fn raw_records(&self, family: Family) -> Result<Vec<RawRecord>, StoreError> {
        let records = self.0.inner.rocks().iterator_cf(self.0.inner.family(family), IteratorMode::Start);
        records.map(|record| Ok(record.map(|(key, value)| (key.into_vec(), value.into_vec()))?)).collect()
    }

    /// For tests: any bytes in the place of a record, or none, as a disk that lies has them.
    ///
    /// # Errors
    /// When the store cannot write.
    #[doc(hidden)]
    pub fn put_raw(&self, family: Family, key: &[u8], record: Option<&[u8]>) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        match record {
            Some(record) => batch.put_cf(self.0.inner.family(family), key, record),
            None => batch.delete_cf(self.0.inner.family(family), key),
        }
        self.0.inner.write(batch, &WriteOptions::default())
    }
}

/// Why values were not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SalvageError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Save(std::io::Error),
}
