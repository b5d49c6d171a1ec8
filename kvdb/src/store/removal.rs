//! Dropping databases: unlinked first, removed afterwards.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crdt::{DatabaseId, DatabaseName};
use rocksdb::{CompactOptions, WriteBatch};

use super::catalog::{self, Numbers};
use super::error::StoreError;
use super::layout::{self, Family};
use super::rocks::Inner;
use super::{DatabaseRecord, RocksStore};
use crate::limits::{DROP_PIECE_RECORDS, MAX_DROPPED_GENERATIONS};

/// The families that hold a database's records.
pub(super) const FAMILIES: [Family; 9] = [
    Family::Rows,
    Family::Values,
    Family::Expiries,
    Family::Blocks,
    Family::State,
    Family::Log,
    Family::Requests,
    Family::Ages,
    Family::Staging,
];

impl RocksStore {
    /// The database of this name, if it is there.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn find_database(&self, name: &DatabaseName) -> Result<Option<DatabaseRecord>, StoreError> {
        catalog::find(&self.0.inner, name)
    }

    /// Drops a database: its name is free at once, for the next generation, and nothing can read its data any more. They
    /// are removed by [`RocksStore::remove_dropped`]. The engine must not have it open. `None` when it is not there.
    ///
    /// # Errors
    /// When the store cannot read or write.
    ///
    /// # Durability
    /// On disk when this returns. A crash leaves it whole or unlinked.
    pub fn drop_database(&self, name: &DatabaseName) -> Result<Option<DatabaseRecord>, StoreError> {
        self.unlink(name, catalog::unlink)
    }

    /// As [`RocksStore::drop_database`], but no generation ends by it: the same database may be taken in again.
    pub(crate) fn remove_database(&self, name: &DatabaseName) -> Result<Option<DatabaseRecord>, StoreError> {
        self.unlink(name, catalog::unlink_moved)
    }

    fn unlink(
        &self,
        name: &DatabaseName,
        unlink: impl FnOnce(&Inner, &DatabaseRecord) -> Result<(), StoreError>,
    ) -> Result<Option<DatabaseRecord>, StoreError> {
        let _creating = self.0.creating.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(record) = catalog::find(&self.0.inner, name)? else { return Ok(None) };
        unlink(&self.0.inner, &record)?;
        self.0.numbers.write().unwrap_or_else(PoisonError::into_inner).remove(&record.id);
        Ok(Some(record))
    }

    /// Removes what is left of dropped databases, also of those dropped before a crash. Blocks the thread.
    ///
    /// # Errors
    /// When the store cannot read or write; what is left is removed another time.
    pub fn remove_dropped(&self) -> Result<(), StoreError> {
        // One at a time, so that nothing is removed twice.
        let _one = self.0.reclaiming.lock().unwrap_or_else(PoisonError::into_inner);
        for numbers in catalog::remainders(&self.0.inner)? {
            let mut large = Vec::new();
            for family in FAMILIES {
                if self.0.stopping.load(Ordering::Acquire) {
                    return Ok(());
                }
                if !self.remove(family, numbers)? {
                    large.push(family);
                }
            }
            for family in large {
                if self.0.stopping.load(Ordering::Acquire) {
                    return Ok(());
                }
                let range = layout::number_range(number_of(family, numbers));
                let mut options = CompactOptions::default();
                options.set_exclusive_manual_compaction(false);
                let handle = self.0.inner.family(family);
                self.0.inner.rocks().compact_range_cf_opt(handle, Some(range.start), Some(range.end), &options);
            }
            catalog::forget_remainder(&self.0.inner, numbers)?;
        }
        Ok(())
    }

    /// Removes the records of a family: few one by one, many by their range, whose files go first. Tells whether they were
    /// few.
    fn remove(&self, family: Family, numbers: Numbers) -> Result<bool, StoreError> {
        let (handle, range) = (self.0.inner.family(family), layout::number_range(number_of(family, numbers)));
        let keys = self.0.inner.scan(family, range.clone(), |key, _| Ok(key.to_vec())).take(DROP_PIECE_RECORDS + 1);
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut batch = WriteBatch::default();
        let few = keys.len() <= DROP_PIECE_RECORDS;
        if few {
            for key in &keys {
                batch.delete_cf(handle, key);
            }
        } else {
            // Nothing below these numbers is ever read again, so it does not matter what older files still hold.
            self.0.inner.rocks().delete_file_in_range_cf(handle, &range.start, &range.end)?;
            batch.delete_range_cf(handle, &range.start, &range.end);
        }
        self.0.inner.write_synced(batch)?;
        Ok(few)
    }

    /// The generation that a name has next in this store; 0 if it was never dropped here.
    ///
    /// # Errors
    /// When the store cannot read.
    pub(crate) fn next_generation(&self, name: &DatabaseName) -> Result<u64, StoreError> {
        catalog::next_generation(&self.0.inner, name)
    }

    /// Names that were dropped in this store, each with its next generation.
    ///
    /// # Errors
    /// When the store cannot read.
    pub(crate) fn generations(&self) -> Result<Vec<(DatabaseName, u64)>, StoreError> {
        catalog::generations(&self.0.inner).collect()
    }

    /// The ids of dropped generations that peers may still offer: the last ones of each name.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn dropped(&self) -> Result<Vec<DatabaseId>, StoreError> {
        let mut ids = Vec::new();
        for entry in catalog::generations(&self.0.inner) {
            let (name, next) = entry?;
            ids.extend((next.saturating_sub(MAX_DROPPED_GENERATIONS)..next).map(|generation| DatabaseId::of(&name, generation)));
        }
        Ok(ids)
    }
}

pub(super) fn number_of(family: Family, numbers: Numbers) -> u32 {
    if family.is_of_rows() { numbers.rows } else { numbers.number }
}
