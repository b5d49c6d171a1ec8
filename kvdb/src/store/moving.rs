//! Moving a database from one store to another, in steps after each of which it is whole in exactly one catalogue.

use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};

use crdt::DatabaseName;
use rocksdb::{WriteBatch, WriteOptions};

use super::catalog::{self, Arrival, Numbers};
use super::error::StoreError;
use super::layout::{self, Family};
use super::removal::{FAMILIES, number_of};
use super::rocks::Inner;
use super::{DatabaseRecord, RocksStore, StoreId};
use crate::limits::BUILD_BATCH_BYTES;

/// A record without the number that its key begins with, and its bytes.
type Pair = (Vec<u8>, Vec<u8>);

/// A copy that can be taken into the catalogue.
#[derive(Debug)]
pub(crate) struct Copied(Arrival);

/// A database that came from another store, which may have it still.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    arrival: Arrival,
}

impl Arrived {
    pub(crate) fn name(&self) -> &DatabaseName {
        &self.arrival.name
    }

    pub(crate) fn from(&self) -> StoreId {
        self.arrival.from
    }

    /// Whether this is what came.
    pub(crate) fn is(&self, record: &DatabaseRecord) -> bool {
        record.name == self.arrival.name && record.generation == self.arrival.generation
    }
}

impl RocksStore {
    /// Copies everything of a database from another store, and compares the copy. It is in no catalogue yet: a crash leaves
    /// something that the next start removes. `None` when the caller gave up. Neither store may be in use.
    pub(crate) fn copy_from(
        &self,
        from: &Self,
        record: &DatabaseRecord,
        on_bytes: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<Copied>, StoreError> {
        let _creating = self.0.creating.lock().unwrap_or_else(PoisonError::into_inner);
        let (here, there) = (&self.0.inner, &from.0.inner);
        let arrival = catalog::begin_arrival(here, record, from.0.id)?;
        let (old, new) = (record.numbers(), numbers(&arrival));
        let mut copied = 0;
        for family in FAMILIES {
            let mut batch = WriteBatch::default();
            for pair in pairs(there, family, old) {
                let (key, value) = pair?;
                copied += (key.len() + value.len()) as u64;
                let key = [&number_of(family, new).to_be_bytes()[..], &key].concat();
                batch.put_cf(here.family(family), key, value);
                if batch.size_in_bytes() > BUILD_BATCH_BYTES {
                    here.write(std::mem::take(&mut batch), &WriteOptions::default())?;
                    if on_bytes(copied).is_break() {
                        return Ok(None);
                    }
                }
            }
            here.write(batch, &WriteOptions::default())?;
        }
        here.sync()?;
        if on_bytes(copied).is_break() {
            return Ok(None);
        }
        for family in FAMILIES {
            let mut here_too = pairs(here, family, new);
            for pair in pairs(there, family, old) {
                if here_too.next().transpose()? != Some(pair?) {
                    return Err(layout::Malformed("a copied record is not what it was").at(family, &new.number.to_be_bytes()));
                }
            }
        }
        Ok(Some(Copied(arrival)))
    }

    /// Takes a copy into the catalogue, in one synced write.
    pub(crate) fn arrive(&self, copied: &Copied) -> Result<Arrived, StoreError> {
        let record = catalog::arrive(&self.0.inner, &copied.0, self.0.id)?;
        let mut all = self.0.numbers.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(record.id, Arc::new(record.numbers()));
        Ok(Arrived { arrival: Arrival { whole: true, ..copied.0.clone() } })
    }

    /// Databases that came from other stores, which may have them still.
    pub(crate) fn arrived(&self) -> Result<Vec<Arrived>, StoreError> {
        let whole = catalog::arrivals(&self.0.inner)?.into_iter().filter(|arrival| arrival.whole);
        Ok(whole.map(|arrival| Arrived { arrival }).collect())
    }

    /// Gives up the copy of a database that has arrived elsewhere, in one synced write; what is left of it is removed
    /// later. Nothing happens if it was given up before.
    pub(crate) fn give_up(&self, arrived: &Arrived) -> Result<(), StoreError> {
        let found = catalog::find(&self.0.inner, arrived.name())?;
        let Some(record) = found.filter(|record| arrived.is(record)) else { return Ok(()) };
        catalog::unlink_moved(&self.0.inner, &record)?;
        self.0.numbers.write().unwrap_or_else(PoisonError::into_inner).remove(&record.id);
        Ok(())
    }

    /// The store that it came from has it no more.
    pub(crate) fn end_arrival(&self, arrived: &Arrived) -> Result<(), StoreError> {
        catalog::end_arrival(&self.0.inner, &arrived.arrival)
    }
}

/// Start-up: what did not become whole is left to be removed.
pub(super) fn clean(inner: &Inner) -> Result<(), StoreError> {
    let arrivals = catalog::arrivals(inner)?.into_iter();
    arrivals.filter(|arrival| !arrival.whole).try_for_each(|arrival| catalog::end_arrival(inner, &arrival))
}

fn numbers(arrival: &Arrival) -> Numbers {
    Numbers { number: arrival.number, rows: arrival.number }
}

/// All records of a database in one family, without the number.
fn pairs(inner: &Inner, family: Family, numbers: Numbers) -> impl Iterator<Item = Result<Pair, StoreError>> {
    inner.scan(family, layout::number_range(number_of(family, numbers)), |key, value| {
        Ok((key.get(4..).unwrap_or_default().to_vec(), value.to_vec()))
    })
}
