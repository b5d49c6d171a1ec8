//! The bytes on disk: keys and records of each column family, and nothing of RocksDB.
//!
//! Ints are big endian, every record begins with [`RECORD_VERSION`]. Keys of all families but `catalog` begin with a
//! database's number (in `rows` and `values` the row number), so that a database is one range of each.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use crdt::{
    Author, Block, BlockHash, Check, Digest, Dot, Expiry, Head, Key, LogEntry, Meta, Projection, ReplicaId, RequestId,
    RequestRecord, Row, Sibling, Stamp, StoredBlock, VvEntry,
};

use super::error::{RecordKey, StoreError};
use crate::limits::MAX_INLINE_VALUE_BYTES;

/// The first byte of every record.
pub(super) const RECORD_VERSION: u8 = 1;

/// The column families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// The store's own record, the next number, and name → database.
    Catalog,
    /// Row number ‖ key → row.
    Rows,
    /// Row number ‖ key length ‖ key ‖ dot → value too large for its row.
    Values,
    /// Number ‖ dot → block.
    Blocks,
    /// Number ‖ tag → version vector, heads, floors, figures.
    State,
    /// Number ‖ revision → dot, length.
    Log,
    /// Number ‖ request id → dot, ops, stamp.
    Requests,
    /// Number ‖ tag → a snapshot being received: its head, its chunks.
    Staging,
    /// Number ‖ stamp ‖ request id: which requests are the oldest.
    Ages,
    /// Row number ‖ expiry ‖ key: where a sibling expires.
    Expiries,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Catalog,
        Self::Rows,
        Self::Values,
        Self::Blocks,
        Self::State,
        Self::Log,
        Self::Requests,
        Self::Staging,
        Self::Ages,
        Self::Expiries,
    ];

    /// Whether its keys begin with a database's row number, which is another one when its rows are built anew, and not with
    /// the database's number.
    pub(super) fn is_of_rows(self) -> bool {
        matches!(self, Self::Rows | Self::Values | Self::Expiries)
    }

    /// Its name in RocksDB.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Catalog => "catalog",
            Self::Rows => "rows",
            Self::Values => "values",
            Self::Blocks => "blocks",
            Self::State => "state",
            Self::Log => "log",
            Self::Requests => "requests",
            Self::Staging => "staging",
            Self::Ages => "ages",
            Self::Expiries => "expiries",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is wrong with a record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

impl Malformed {
    /// The error that names the record.
    #[must_use]
    pub(super) fn at(self, family: Family, key: &[u8]) -> StoreError {
        StoreError::Corrupt { family, key: RecordKey(key.to_vec()), what: self.0 }
    }
}

const SHORT: Malformed = Malformed("it is too short");

/// Reads a record from its front.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts after the version byte.
    pub(super) fn record(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes.split_first() {
            Some((&RECORD_VERSION, rest)) => Ok(Self(rest)),
            Some(_) => Err(Malformed("its version is not known")),
            None => Err(SHORT),
        }
    }

    pub(super) fn key(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_be_bytes)
    }

    fn dot(&mut self) -> Result<Dot, Malformed> {
        Ok(Dot { replica: ReplicaId(self.array()?), seq: self.u64()? })
    }

    fn head(&mut self) -> Result<Head, Malformed> {
        Ok(Head { hash: BlockHash(self.array()?), stamp: Stamp(self.u64()?) })
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it is too long")) }
    }
}

/// Writes keys and records into one buffer that is used over and over.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn start(&mut self, number: u32) -> &mut Self {
        self.0.clear();
        self.put(&number.to_be_bytes())
    }

    pub(super) fn version(&mut self) -> &mut Self {
        self.0.clear();
        self.put(&[RECORD_VERSION])
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u32(&mut self, int: u32) -> &mut Self {
        self.put(&int.to_be_bytes())
    }

    pub(super) fn u64(&mut self, int: u64) -> &mut Self {
        self.put(&int.to_be_bytes())
    }

    fn dot(&mut self, dot: &Dot) -> &mut Self {
        self.put(&dot.replica.0).u64(dot.seq)
    }

    fn head(&mut self, head: &Head) -> &mut Self {
        self.put(&head.hash.0).u64(head.stamp.0)
    }
}

/// The range of one database in a family.
pub(super) fn number_range(number: u32) -> Range<Vec<u8>> {
    // The last number is never given, so the end does not wrap.
    number.to_be_bytes().to_vec()..number.saturating_add(1).to_be_bytes().to_vec()
}

// Rows.

const INLINE: u8 = 0;
const APART: u8 = 1;

/// Whether a value has a record of its own.
pub(super) fn is_apart(len: u32) -> bool {
    usize::try_from(len).map_or(true, |len| len > MAX_INLINE_VALUE_BYTES)
}

impl Writer {
    pub(super) fn row_key(&mut self, rows: u32, key: &Key) -> &mut Self {
        self.start(rows).put(key.as_bytes())
    }

    /// Everything of a row but the values that stand apart.
    pub(super) fn row(&mut self, row: &Row) -> &mut Self {
        self.version();
        for sibling in row.siblings() {
            let value = sibling.value.as_ref().filter(|_| !is_apart(sibling.len));
            // A short value that is not at hand cannot be written: the row was read without values.
            assert!(value.is_some() || is_apart(sibling.len), "a row without its values was written");
            self.put(&[if value.is_some() { INLINE } else { APART }])
                .dot(&sibling.dot)
                .u64(sibling.stamp.0)
                .u64(sibling.expiry.map_or(0, Expiry::unix_ms))
                .u32(sibling.len)
                .put(&sibling.check.0.to_be_bytes())
                .put(value.map_or(&[], |value| value));
        }
        self
    }

    pub(super) fn value_key(&mut self, rows: u32, key: &Key, dot: &Dot) -> &mut Self {
        // A key has at most 1,024 bytes.
        let len = u16::try_from(key.as_bytes().len()).unwrap_or(u16::MAX);
        self.start(rows).put(&len.to_be_bytes()).put(key.as_bytes()).dot(dot)
    }

    pub(super) fn value(&mut self, value: &[u8]) -> &mut Self {
        self.version().put(value)
    }
}

pub(super) fn read_row_key(bytes: &[u8]) -> Result<Key, Malformed> {
    let mut reader = Reader::key(bytes);
    reader.u32()?;
    Key::from_normal(reader.rest()).map_err(|_| Malformed("its key is not in normal form"))
}

pub(super) fn read_row(bytes: &[u8], projection: Projection) -> Result<Row, Malformed> {
    let mut reader = Reader::record(bytes)?;
    let mut siblings = Vec::with_capacity(1);
    while !reader.is_empty() {
        siblings.push(read_sibling(&mut reader, projection)?);
    }
    if siblings.is_empty() { Err(Malformed("the row is empty")) } else { Ok(Row::new(siblings)) }
}

fn read_sibling(reader: &mut Reader<'_>, projection: Projection) -> Result<Sibling, Malformed> {
    let place = reader.u8()?;
    let dot = reader.dot()?;
    let stamp = Stamp(reader.u64()?);
    let expiry = match reader.u64()? {
        0 => None,
        ms => Some(Expiry::at_unix_ms(ms).ok_or(Malformed("an expiry is out of range"))?),
    };
    let len = reader.u32()?;
    let check = Check(reader.u128()?);
    let value = match place {
        INLINE => {
            let bytes = reader.slice(usize::try_from(len).map_err(|_| SHORT)?)?;
            (projection == Projection::Rows).then(|| Bytes::copy_from_slice(bytes))
        }
        APART => None,
        _ => return Err(Malformed("a value's place is not known")),
    };
    Ok(Sibling { dot, stamp, expiry, len, check, value })
}

pub(super) fn read_value(bytes: &[u8]) -> Result<Bytes, Malformed> {
    Reader::record(bytes).map(|reader| Bytes::copy_from_slice(reader.rest()))
}

// Blocks and log.

impl Writer {
    pub(super) fn block_key(&mut self, number: u32, dot: &Dot) -> &mut Self {
        self.start(number).dot(dot)
    }

    pub(super) fn block(&mut self, revision: u64, block: &Block) -> &mut Self {
        self.block_record(revision, &block.hash(), block.bytes())
    }

    fn block_record(&mut self, revision: u64, hash: &BlockHash, bytes: &[u8]) -> &mut Self {
        self.version().u64(revision).put(&hash.0).put(bytes)
    }

    pub(super) fn log_key(&mut self, number: u32, revision: u64) -> &mut Self {
        self.start(number).u64(revision)
    }

    pub(super) fn log(&mut self, dot: &Dot, bytes: usize) -> &mut Self {
        // A block has at most 4 MiB.
        self.version().dot(dot).u32(u32::try_from(bytes).unwrap_or(u32::MAX))
    }
}

/// A block's record without its bytes, which may be long.
pub(super) struct BlockHeader<'a> {
    pub(super) revision: u64,
    pub(super) hash: BlockHash,
    pub(super) bytes: &'a [u8],
}

impl BlockHeader<'_> {
    pub(super) fn to_stored(&self) -> StoredBlock {
        StoredBlock { revision: self.revision, hash: self.hash, bytes: Bytes::copy_from_slice(self.bytes) }
    }
}

pub(super) fn read_block(bytes: &[u8]) -> Result<BlockHeader<'_>, Malformed> {
    let mut reader = Reader::record(bytes)?;
    Ok(BlockHeader { revision: reader.u64()?, hash: BlockHash(reader.array()?), bytes: reader.rest() })
}

pub(super) fn read_log(key: &[u8], record: &[u8]) -> Result<LogEntry, Malformed> {
    let mut key = Reader::key(key);
    key.u32()?;
    let revision = key.u64()?;
    key.end()?;
    let mut reader = Reader::record(record)?;
    let (dot, bytes) = (reader.dot()?, reader.u32()?);
    reader.end()?;
    Ok(LogEntry { revision, dot, bytes })
}

// State.

const META: u8 = 1;
const HEADS: u8 = 2;
const HEAD: u8 = 3;
const VV: u8 = 4;
const FLOOR: u8 = 5;

/// One record of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StateRecord {
    Meta(Meta),
    Heads(Vec<(Dot, Head)>),
    Head(Dot, Head),
    Vv(ReplicaId, VvEntry),
    Floor(ReplicaId, u64),
}

impl Writer {
    pub(super) fn meta_key(&mut self, number: u32) -> &mut Self {
        self.start(number).put(&[META])
    }

    pub(super) fn meta(&mut self, meta: &Meta) -> &mut Self {
        self.version().u64(meta.clock.0).put(&meta.digest.0.to_be_bytes());
        self.u64(meta.revision).u64(meta.keys).u64(meta.log_floor).u64(meta.history_bytes).u64(meta.requests)
    }

    pub(super) fn heads_key(&mut self, number: u32) -> &mut Self {
        self.start(number).put(&[HEADS])
    }

    pub(super) fn heads(&mut self, heads: &[(Dot, Head)]) -> &mut Self {
        self.version();
        for (dot, head) in heads {
            self.dot(dot).head(head);
        }
        self
    }

    pub(super) fn head_key(&mut self, number: u32, dot: &Dot) -> &mut Self {
        self.start(number).put(&[HEAD]).dot(dot)
    }

    pub(super) fn single_head(&mut self, head: &Head) -> &mut Self {
        self.version().head(head)
    }

    pub(super) fn vv_key(&mut self, number: u32, replica: &ReplicaId) -> &mut Self {
        self.start(number).put(&[VV]).put(&replica.0)
    }

    pub(super) fn vv(&mut self, entry: &VvEntry) -> &mut Self {
        self.version().u64(entry.seq).put(&entry.author.public_key).u64(entry.author.nonce)
    }

    pub(super) fn floor_key(&mut self, number: u32, replica: &ReplicaId) -> &mut Self {
        self.start(number).put(&[FLOOR]).put(&replica.0)
    }

    pub(super) fn floor(&mut self, seq: u64) -> &mut Self {
        self.version().u64(seq)
    }
}

pub(super) fn read_state(key: &[u8], record: &[u8]) -> Result<StateRecord, Malformed> {
    let mut key = Reader::key(key);
    key.u32()?;
    let tag = key.u8()?;
    let mut reader = Reader::record(record)?;
    let record = match tag {
        META => StateRecord::Meta(Meta {
            clock: Stamp(reader.u64()?),
            digest: Digest(reader.u128()?),
            revision: reader.u64()?,
            keys: reader.u64()?,
            log_floor: reader.u64()?,
            history_bytes: reader.u64()?,
            requests: reader.u64()?,
        }),
        HEADS => {
            let mut heads = Vec::new();
            while !reader.is_empty() {
                heads.push((reader.dot()?, reader.head()?));
            }
            StateRecord::Heads(heads)
        }
        HEAD => StateRecord::Head(key.dot()?, reader.head()?),
        VV => {
            let replica = ReplicaId(key.array()?);
            let seq = reader.u64()?;
            let author = Author { public_key: reader.array()?, nonce: reader.u64()? };
            StateRecord::Vv(replica, VvEntry { seq, author })
        }
        FLOOR => StateRecord::Floor(ReplicaId(key.array()?), reader.u64()?),
        _ => return Err(Malformed("its tag is not known")),
    };
    key.end()?;
    reader.end()?;
    Ok(record)
}

// Requests.

impl Writer {
    pub(super) fn request_key(&mut self, number: u32, request: &RequestId) -> &mut Self {
        self.start(number).put(&request.0)
    }

    pub(super) fn request(&mut self, record: &RequestRecord) -> &mut Self {
        self.version().dot(&record.dot).u64(record.stamp.0);
        for op in &record.ops {
            self.u32(*op);
        }
        self
    }
}

pub(super) fn read_request(record: &[u8]) -> Result<RequestRecord, Malformed> {
    let mut reader = Reader::record(record)?;
    let dot = reader.dot()?;
    let stamp = Stamp(reader.u64()?);
    let mut ops = Vec::new();
    while !reader.is_empty() {
        ops.push(reader.u32()?);
    }
    Ok(RequestRecord { dot, ops, stamp })
}

/// The id of a request's record.
pub(super) fn read_request_key(bytes: &[u8]) -> Result<RequestId, Malformed> {
    let mut key = Reader::key(bytes);
    key.u32()?;
    let request = RequestId(key.array()?);
    key.end()?;
    Ok(request)
}

// Staging.

const STAGING_HEAD: u8 = 0;
const STAGING_CHUNK: u8 = 1;

impl Writer {
    pub(super) fn staging_head_key(&mut self, number: u32) -> &mut Self {
        self.start(number).put(&[STAGING_HEAD])
    }

    pub(super) fn staging_head(&mut self, head: &[u8]) -> &mut Self {
        self.version().put(head)
    }

    pub(super) fn staging_chunk_key(&mut self, number: u32, index: u64) -> &mut Self {
        self.start(number).put(&[STAGING_CHUNK]).u64(index)
    }

    pub(super) fn staging_chunk(&mut self, next: &[u8], bytes: &[u8]) -> &mut Self {
        // A place has a key of at most 1,024 bytes in it.
        let len = u16::try_from(next.len()).unwrap_or(u16::MAX);
        self.version().put(&len.to_be_bytes()).put(next).put(bytes)
    }
}

pub(super) fn read_staging_head(record: &[u8]) -> Result<Bytes, Malformed> {
    Reader::record(record).map(|reader| Bytes::copy_from_slice(reader.rest()))
}

/// The number of a chunk.
pub(super) fn read_staging_chunk_key(bytes: &[u8]) -> Result<u64, Malformed> {
    let mut key = Reader::key(bytes);
    key.u32()?;
    key.u8()?;
    let index = key.u64()?;
    key.end()?;
    Ok(index)
}

/// The place after a chunk, and its bytes.
pub(super) fn read_staging_chunk(record: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut reader = Reader::record(record)?;
    let len = u16::from_be_bytes(reader.array()?);
    let next = reader.slice(usize::from(len))?;
    Ok((next, reader.rest()))
}

// What goes with time. These keys say everything; their records are a version byte.

impl Writer {
    pub(super) fn age_key(&mut self, number: u32, stamp: Stamp, request: &RequestId) -> &mut Self {
        self.start(number).u64(stamp.0).put(&request.0)
    }

    pub(super) fn expiry_key(&mut self, rows: u32, expiry: Expiry, key: &Key) -> &mut Self {
        self.start(rows).u64(expiry.unix_ms()).put(key.as_bytes())
    }
}

pub(super) fn read_age(key: &[u8], record: &[u8]) -> Result<(Stamp, RequestId), Malformed> {
    Reader::record(record)?.end()?;
    let mut key = Reader::key(key);
    key.u32()?;
    let age = (Stamp(key.u64()?), RequestId(key.array()?));
    key.end()?;
    Ok(age)
}

pub(super) fn read_expiry(key: &[u8], record: &[u8]) -> Result<(Expiry, Key), Malformed> {
    Reader::record(record)?.end()?;
    let mut key = Reader::key(key);
    key.u32()?;
    let expiry = Expiry::at_unix_ms(key.u64()?).ok_or(Malformed("an expiry is out of range"))?;
    let key = Key::from_normal(key.rest()).map_err(|_| Malformed("its key is not in normal form"))?;
    Ok((expiry, key))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
