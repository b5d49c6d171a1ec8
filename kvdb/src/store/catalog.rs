//! The catalogue: which databases a store has, and under which numbers.

use crdt::{DatabaseId, DatabaseName};
use rocksdb::WriteBatch;

use super::error::StoreError;
use super::layout::{Family, Malformed, Reader, Writer};
use super::rocks::Inner;

/// Drawn when a store is created, and anew when it is opened in spite of lost writes: another id is another copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// Reads what `Display` writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
        Some(Self(number.to_be_bytes()))
    }
}

impl std::fmt::Display for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What a database is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabaseState {
    /// It can be read and written.
    Live,
}

/// A database's entry in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseRecord {
    /// Its name.
    pub name: DatabaseName,
    /// Its id, which follows from name and generation.
    pub id: DatabaseId,
    /// How often the name has been dropped.
    pub generation: u64,
    /// The number that its records begin with; never used again in this store.
    pub number: u32,
    /// The number that its rows begin with.
    pub row_number: u32,
    /// What it is in.
    pub state: DatabaseState,
    /// The store in which its data came together.
    pub store_id: StoreId,
    /// The format of its records.
    pub format: u32,
}

/// The format of a database's records.
const DATABASE_FORMAT: u32 = 1;

/// The numbers that a database's records begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) number: u32,
    pub(super) rows: u32,
}

impl DatabaseRecord {
    pub(super) fn numbers(&self) -> Numbers {
        Numbers { number: self.number, rows: self.row_number }
    }
}

const STORE: u8 = 0;
const NEXT_NUMBER: u8 = 1;
const DATABASE: u8 = 2;
const REMAINDER: u8 = 3;
const GENERATION: u8 = 4;
const UNUSED_ROWS: u8 = 5;
const ARRIVAL: u8 = 6;

const FIRST_NUMBER: u32 = 1;

const LIVE: u8 = 1;

fn database_key(name: &DatabaseName) -> Vec<u8> {
    [&[DATABASE], name.as_str().as_bytes()].concat()
}

fn write_database(record: &DatabaseRecord) -> Writer {
    let mut writer = Writer::default();
    let DatabaseState::Live = record.state;
    writer
        .version()
        .put(&[LIVE])
        .put(&record.id.0)
        .u64(record.generation)
        .u32(record.number)
        .u32(record.row_number)
        .put(&record.store_id.0)
        .u32(record.format);
    writer
}

fn read_database(key: &[u8], bytes: &[u8]) -> Result<DatabaseRecord, Malformed> {
    let name = match key.split_first() {
        Some((&DATABASE, name)) => std::str::from_utf8(name).ok().and_then(|name| DatabaseName::parse(name).ok()),
        _ => None,
    };
    let name = name.ok_or(Malformed("its key is no database name"))?;
    let mut reader = Reader::record(bytes)?;
    let state = match reader.u8()? {
        LIVE => DatabaseState::Live,
        _ => return Err(Malformed("the database's state is not known")),
    };
    let id = DatabaseId(reader.array()?);
    let generation = reader.u64()?;
    let (number, row_number) = (reader.u32()?, reader.u32()?);
    let store_id = StoreId(reader.array()?);
    let format = reader.u32()?;
    reader.end()?;
    if id != DatabaseId::of(&name, generation) {
        return Err(Malformed("the database's id does not follow from its name"));
    }
    Ok(DatabaseRecord { name, id, generation, number, row_number, state, store_id, format })
}

/// What is left of a dropped database: nothing refers to it, and its numbers are never used again.
fn remainder_key(number: u32) -> Vec<u8> {
    [&[REMAINDER][..], &number.to_be_bytes()].concat()
}

fn read_remainder(key: &[u8], bytes: &[u8]) -> Result<Numbers, Malformed> {
    let mut key = Reader::key(key.split_first().map_or(&[], |(_, rest)| rest));
    let number = key.u32()?;
    key.end()?;
    let mut reader = Reader::record(bytes)?;
    let rows = reader.u32()?;
    reader.end()?;
    Ok(Numbers { number, rows })
}

fn generation_key(name: &DatabaseName) -> Vec<u8> {
    [&[GENERATION], name.as_str().as_bytes()].concat()
}

fn read_generation(key: &[u8], bytes: &[u8]) -> Result<(DatabaseName, u64), Malformed> {
    let name = key.split_first().and_then(|(_, name)| std::str::from_utf8(name).ok()).map(DatabaseName::parse);
    let Some(Ok(name)) = name else { return Err(Malformed("its key is no database name")) };
    let mut reader = Reader::record(bytes)?;
    let generation = reader.u64()?;
    reader.end()?;
    Ok((name, generation))
}

/// Drops a database in one synced write: from then on its name is free, for the next generation, and its records belong
/// to nobody.
pub(super) fn unlink(inner: &Inner, record: &DatabaseRecord) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    leave(inner, &mut batch, record);
    let next = Writer::default().version().u64(record.generation + 1).bytes().to_vec();
    batch.put_cf(inner.family(Family::Catalog), generation_key(&record.name), next);
    inner.write_synced(batch)
}

/// A database lives in another store from now on: what is here belongs to nobody, and no generation ends by it.
pub(super) fn unlink_moved(inner: &Inner, record: &DatabaseRecord) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    leave(inner, &mut batch, record);
    inner.write_synced(batch)
}

fn leave(inner: &Inner, batch: &mut WriteBatch, record: &DatabaseRecord) {
    let family = inner.family(Family::Catalog);
    batch.delete_cf(family, database_key(&record.name));
    batch.put_cf(family, remainder_key(record.number), Writer::default().version().u32(record.row_number).bytes());
}

/// A database that comes, or came, from another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) name: DatabaseName,
    pub(super) from: StoreId,
    pub(super) generation: u64,
    pub(super) number: u32,
    /// All of it is here: the other store's copy is to go. Else what is here is.
    pub(super) whole: bool,
}

fn arrival_key(name: &DatabaseName) -> Vec<u8> {
    [&[ARRIVAL], name.as_str().as_bytes()].concat()
}

fn write_arrival(arrival: &Arrival) -> Writer {
    let mut writer = Writer::default();
    let Arrival { from, generation, number, whole, .. } = arrival;
    writer.version().put(&[u8::from(*whole)]).put(&from.0).u64(*generation).u32(*number);
    writer
}

fn read_arrival(key: &[u8], bytes: &[u8]) -> Result<Arrival, Malformed> {
    let name = key.split_first().and_then(|(_, name)| std::str::from_utf8(name).ok()).map(DatabaseName::parse);
    let Some(Ok(name)) = name else { return Err(Malformed("its key is no database name")) };
    let mut reader = Reader::record(bytes)?;
    let whole = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(Malformed("the state of an arrival is not known")),
    };
    let from = StoreId(reader.array()?);
    let (generation, number) = (reader.u64()?, reader.u32()?);
    reader.end()?;
    Ok(Arrival { name, from, generation, number, whole })
}

/// Databases that come, or came, from other stores.
pub(super) fn arrivals(inner: &Inner) -> Result<Vec<Arrival>, StoreError> {
    inner.scan(Family::Catalog, vec![ARRIVAL]..vec![ARRIVAL + 1], read_arrival).collect()
}

/// Begins an arrival, under a number never used before.
pub(super) fn begin_arrival(inner: &Inner, record: &DatabaseRecord, from: StoreId) -> Result<Arrival, StoreError> {
    let mut batch = WriteBatch::default();
    let number = take_number(inner, &mut batch, &record.name)?;
    let arrival = Arrival { name: record.name.clone(), from, generation: record.generation, number, whole: false };
    batch.put_cf(inner.family(Family::Catalog), arrival_key(&arrival.name), write_arrival(&arrival).bytes());
    inner.write_synced(batch)?;
    Ok(arrival)
}

/// All of it is here: the database is in this store's catalogue from now on.
pub(super) fn arrive(inner: &Inner, arrival: &Arrival, store_id: StoreId) -> Result<DatabaseRecord, StoreError> {
    let Arrival { name, generation, number, .. } = arrival.clone();
    let id = DatabaseId::of(&name, generation);
    let (state, format) = (DatabaseState::Live, DATABASE_FORMAT);
    let record = DatabaseRecord { name, id, generation, number, row_number: number, state, store_id, format };
    let family = inner.family(Family::Catalog);
    let mut batch = WriteBatch::default();
    batch.put_cf(family, database_key(&record.name), write_database(&record).bytes());
    batch.put_cf(family, arrival_key(&record.name), write_arrival(&Arrival { whole: true, ..arrival.clone() }).bytes());
    let next = next_generation(inner, &record.name)?.max(generation);
    if next > 0 {
        batch.put_cf(family, generation_key(&record.name), Writer::default().version().u64(next).bytes());
    }
    inner.write_synced(batch)?;
    Ok(record)
}

/// An arrival is over: the other store has nothing any more, or, if it did not become whole, what is here is to go.
pub(super) fn end_arrival(inner: &Inner, arrival: &Arrival) -> Result<(), StoreError> {
    let family = inner.family(Family::Catalog);
    let mut batch = WriteBatch::default();
    batch.delete_cf(family, arrival_key(&arrival.name));
    if !arrival.whole {
        batch.put_cf(family, remainder_key(arrival.number), Writer::default().version().u32(arrival.number).bytes());
    }
    inner.write_synced(batch)
}

/// What is left of dropped databases.
pub(super) fn remainders(inner: &Inner) -> Result<Vec<Numbers>, StoreError> {
    inner.scan(Family::Catalog, vec![REMAINDER]..vec![REMAINDER + 1], read_remainder).collect()
}

/// Nothing is left of it any more.
pub(super) fn forget_remainder(inner: &Inner, numbers: Numbers) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    batch.delete_cf(inner.family(Family::Catalog), remainder_key(numbers.number));
    inner.write_synced(batch)
}

/// Names that were dropped, each with its next generation.
pub(super) fn generations(inner: &Inner) -> impl Iterator<Item = Result<(DatabaseName, u64), StoreError>> {
    inner.scan(Family::Catalog, vec![GENERATION]..vec![GENERATION + 1], read_generation)
}

/// The store's own record.
pub(super) fn store_id(inner: &Inner) -> Result<Option<StoreId>, StoreError> {
    inner.get(Family::Catalog, &[STORE], |bytes| {
        let mut reader = Reader::record(bytes)?;
        let id = StoreId(reader.array()?);
        reader.end()?;
        Ok(id)
    })
}

/// Writes the store's own record.
pub(super) fn write_store(inner: &Inner, id: StoreId) -> Result<(), StoreError> {
    let mut batch = WriteBatch::default();
    batch.put_cf(inner.family(Family::Catalog), [STORE], Writer::default().version().put(&id.0).bytes());
    inner.write_synced(batch)
}

/// The entry of a name.
pub(super) fn find(inner: &Inner, name: &DatabaseName) -> Result<Option<DatabaseRecord>, StoreError> {
    let key = database_key(name);
    inner.get(Family::Catalog, &key, |bytes| read_database(&key, bytes))
}

/// All entries in order of name.
pub(super) fn all(inner: &Inner) -> impl Iterator<Item = Result<DatabaseRecord, StoreError>> {
    after(inner, None)
}

/// The entries after a name, in order of name.
pub(super) fn after(inner: &Inner, name: Option<&DatabaseName>) -> impl Iterator<Item = Result<DatabaseRecord, StoreError>> {
    // The smallest key greater than the name's.
    let start = name.map_or_else(|| vec![DATABASE], |name| [database_key(name).as_slice(), &[0]].concat());
    inner.scan(Family::Catalog, start..vec![DATABASE + 1], read_database)
}

/// The generation that a name has next in this store; 0 if it was never dropped here.
pub(super) fn next_generation(inner: &Inner, name: &DatabaseName) -> Result<u64, StoreError> {
    let key = generation_key(name);
    Ok(inner.get(Family::Catalog, &key, |bytes| read_generation(&key, bytes))?.map_or(0, |(_, next)| next))
}

/// Adds a database under a number never used before, in a generation not below `at_least`.
pub(super) fn create(inner: &Inner, name: &DatabaseName, store_id: StoreId, at_least: u64) -> Result<DatabaseRecord, StoreError> {
    let mut batch = WriteBatch::default();
    let number = take_number(inner, &mut batch, name)?;
    let generation = next_generation(inner, name)?.max(at_least);
    let record = DatabaseRecord {
        name: name.clone(),
        id: DatabaseId::of(name, generation),
        generation,
        number,
        row_number: number,
        state: DatabaseState::Live,
        store_id,
        format: DATABASE_FORMAT,
    };
    let family = inner.family(Family::Catalog);
    batch.put_cf(family, database_key(name), write_database(&record).bytes());
    inner.write_synced(batch)?;
    Ok(record)
}

/// Gives a number that was never used before, once the batch is written.
fn take_number(inner: &Inner, batch: &mut WriteBatch, name: &DatabaseName) -> Result<u32, StoreError> {
    let next = inner.get(Family::Catalog, &[NEXT_NUMBER], |bytes| {
        let mut reader = Reader::record(bytes)?;
        let next = reader.u32()?;
        reader.end()?;
        Ok(next)
    })?;
    let number = match next {
        Some(next) => next,
        None if all(inner).next().is_none() && generations(inner).next().is_none() => FIRST_NUMBER,
        None => return Err(Malformed("it is missing").at(Family::Catalog, &[NEXT_NUMBER])),
    };
    // The last number stays unused: its range would have no end.
    let after = number.checked_add(1).ok_or_else(|| StoreError::NumbersExhausted(name.clone()))?;
    batch.put_cf(inner.family(Family::Catalog), [NEXT_NUMBER], Writer::default().version().u32(after).bytes());
    Ok(number)
}

/// Gives a row number that was never used before. It is noted as not in use until [`switch_rows`].
pub(super) fn take_row_number(inner: &Inner) -> Result<u32, StoreError> {
    let next = inner.get(Family::Catalog, &[NEXT_NUMBER], |bytes| {
        let mut reader = Reader::record(bytes)?;
        let next = reader.u32()?;
        reader.end()?;
        Ok(next)
    })?;
    let number = next.ok_or_else(|| Malformed("it is missing").at(Family::Catalog, &[NEXT_NUMBER]))?;
    let after = number.checked_add(1).ok_or(StoreError::RowNumbersExhausted)?;
    let mut batch = WriteBatch::default();
    batch.put_cf(inner.family(Family::Catalog), [NEXT_NUMBER], Writer::default().version().u32(after).bytes());
    note_unused(inner, &mut batch, number);
    inner.write_synced(batch)?;
    Ok(number)
}

/// Row numbers whose rows are to be removed.
pub(super) fn unused_rows(inner: &Inner) -> impl Iterator<Item = Result<u32, StoreError>> {
    inner.scan(Family::Catalog, vec![UNUSED_ROWS]..vec![UNUSED_ROWS + 1], |key, _| {
        let mut key = Reader::key(key);
        key.u8()?;
        let number = key.u32()?;
        key.end()?;
        Ok(number)
    })
}

/// The rows of this number are gone.
pub(super) fn forget_row_number(inner: &Inner, batch: &mut WriteBatch, rows: u32) {
    batch.delete_cf(inner.family(Family::Catalog), unused_key(rows));
}

/// The database with this number has its rows under another row number from now on; the old one is not in use any more.
pub(super) fn switch_rows(
    inner: &Inner,
    batch: &mut WriteBatch,
    number: u32,
    rows: u32,
    store: Option<StoreId>,
) -> Result<(), StoreError> {
    for record in all(inner) {
        let record = record?;
        if record.number == number {
            note_unused(inner, batch, record.row_number);
            let store_id = store.unwrap_or(record.store_id);
            let record = DatabaseRecord { row_number: rows, store_id, ..record };
            batch.put_cf(inner.family(Family::Catalog), database_key(&record.name), write_database(&record).bytes());
            forget_row_number(inner, batch, rows);
            return Ok(());
        }
    }
    Err(Malformed("a database's record is missing").at(Family::Catalog, &[DATABASE]))
}

fn note_unused(inner: &Inner, batch: &mut WriteBatch, rows: u32) {
    batch.put_cf(inner.family(Family::Catalog), unused_key(rows), Writer::default().version().bytes());
}

fn unused_key(rows: u32) -> Vec<u8> {
    [&[UNUSED_ROWS][..], &rows.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    quickcheck::quickcheck! {
        fn any_bytes_are_a_record_or_an_error(key: Vec<u8>, bytes: Vec<u8>, at: usize, xor: u8) -> bool {
            for kind in 0..6 {
                let key = [&[kind], key.as_slice()].concat();
                let _ = (read_database(&key, &bytes), read_remainder(&key, &bytes), read_generation(&key, &bytes));
            }
            // One byte of a good record is another: it is refused, or says what it says.
            let name = DatabaseName::parse("demo").unwrap();
            let record = DatabaseRecord {
                id: DatabaseId::of(&name, 0),
                name: name.clone(),
                generation: 0,
                number: 1,
                row_number: 2,
                state: DatabaseState::Live,
                store_id: StoreId([9; 16]),
                format: 1,
            };
            let good = write_database(&record).bytes().to_vec();
            let mut bad = good.clone();
            let at = at % bad.len();
            bad[at] ^= xor;
            match read_database(&database_key(&name), &bad) {
                Ok(read) => write_database(&read).bytes() == bad,
                Err(_) => bad != good,
            }
        }
    }

    #[test]
    fn golden_bytes_of_what_is_left_of_a_dropped_database() {
        let name = DatabaseName::parse("demo").unwrap();
        let (key, bytes) = (remainder_key(3), Writer::default().version().u32(4).bytes().to_vec());
        assert_eq!((key.as_slice(), bytes.as_slice()), (&[3, 0, 0, 0, 3][..], &[1, 0, 0, 0, 4][..]));
        assert_eq!(read_remainder(&key, &bytes), Ok(Numbers { number: 3, rows: 4 }));
        assert!(read_remainder(&key[..4], &bytes).is_err() && read_remainder(&key, &bytes[..4]).is_err());
        let (key, bytes) = (generation_key(&name), Writer::default().version().u64(5).bytes().to_vec());
        assert_eq!((key.as_slice(), bytes.as_slice()), (&b"\x04demo"[..], &[1, 0, 0, 0, 0, 0, 0, 0, 5][..]));
        assert_eq!(read_generation(&key, &bytes), Ok((name, 5)));
        assert!(read_generation(b"\x04a/b", &bytes).is_err() && read_generation(&key, &bytes[..8]).is_err());
    }

    #[test]
    fn golden_bytes_of_an_arrival() {
        let name = DatabaseName::parse("demo").unwrap();
        let arrival = Arrival { name: name.clone(), from: StoreId([5; 16]), generation: 2, number: 3, whole: true };
        let (key, bytes) = (arrival_key(&name), write_arrival(&arrival).bytes().to_vec());
        let golden = [&[1, 1][..], &[5; 16], &[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3]].concat();
        assert_eq!((key.as_slice(), bytes.as_slice()), (&b"\x06demo"[..], golden.as_slice()));
        assert_eq!(read_arrival(&key, &bytes), Ok(arrival));
        for len in 0..bytes.len() {
            assert!(read_arrival(&key, &bytes[..len]).is_err());
        }
    }

    #[test]
    fn golden_bytes_of_a_database() {
        let name = DatabaseName::parse("demo").unwrap();
        let id = DatabaseId::of(&name, 2);
        let record = DatabaseRecord {
            name: name.clone(),
            id,
            generation: 2,
            number: 3,
            row_number: 4,
            state: DatabaseState::Live,
            store_id: StoreId([5; 16]),
            format: 1,
        };
        let key = database_key(&name);
        let bytes = write_database(&record).bytes().to_vec();
        let golden = [&[1, 1], &id.0[..], &[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4], &[5; 16], &[0, 0, 0, 1]].concat();
        assert_eq!((key.as_slice(), &bytes), (&b"\x02demo"[..], &golden));
        assert_eq!(read_database(&key, &bytes), Ok(record));
        for len in 0..bytes.len() {
            assert!(read_database(&key, &bytes[..len]).is_err());
        }
        let with = |at: usize, byte| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            read_database(&key, &bytes).unwrap_err().0
        };
        assert_eq!(with(0, 2), "its version is not known");
        assert_eq!(with(1, 9), "the database's state is not known");
        assert_eq!(with(41, 3), "the database's id does not follow from its name");
        assert_eq!(read_database(b"\x02a/b", &bytes).unwrap_err().0, "its key is no database name");
    }
}
