//! The bytes of heads, places and chunks: canonical CBOR by the rules of blocks.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Cursor, SnapshotError, SnapshotHead, SnapshotId};
use crate::block::{BlockHash, Expiry, RequestId};
use crate::clock::Stamp;
use crate::codec::cbor::{Reader, Writer};
use crate::database::DatabaseId;
use crate::dot::{Author, Dot, ReplicaId};
use crate::heads::Head;
use crate::key::Key;
use crate::limits::{MAX_BLOCK_OPS, MAX_CHUNK_BYTES, MAX_CHUNK_ITEMS, MAX_KEY_BYTES, MAX_UINT, MAX_VALUE_BYTES};
use crate::row::{Check, Digest, Row, Sibling, check};
use crate::store::{RequestRecord, VvEntry};

const REPLICAS: u64 = 0;
const HEADS: u64 = 1;
const REQUESTS: u64 = 2;
const ROWS: u64 = 3;
const ROW: u64 = 4;

impl SnapshotHead {
    /// Its bytes: `[boot, view, clock, digest, keys, replicas, heads]`.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(80);
        out.array(7).uint(self.id.boot).uint(self.id.view).uint(self.clock.0.min(MAX_UINT));
        out.bytes(&self.digest.0.to_be_bytes()).uint(self.keys).uint(self.replicas).uint(self.heads);
        out.into_bytes()
    }

    /// Reads a head.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, SnapshotError> {
        let mut input = Reader::new(bytes);
        input.array_of("a snapshot's head", 7)?;
        let head = Self {
            id: SnapshotId { boot: input.uint("a boot id")?, view: input.uint("a view")? },
            clock: Stamp(input.uint("a stamp")?),
            digest: Digest(u128::from_be_bytes(input.bytes_of("a digest")?)),
            keys: input.uint("a number of keys")?,
            replicas: input.uint("a number of replicas")?,
            heads: input.uint("a number of heads")?,
        };
        input.finish()?;
        Ok(head)
    }
}

impl Cursor {
    /// Its bytes: `[part]` at the beginning of a part, `[part, after]` within one.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(64);
        match self {
            Self::Replicas(None) => out.array(1).uint(REPLICAS),
            Self::Replicas(Some(after)) => out.array(2).uint(REPLICAS).bytes(&after.0),
            Self::Heads(None) => out.array(1).uint(HEADS),
            Self::Heads(Some(after)) => out.array(3).uint(HEADS).bytes(&after.replica.0).uint(after.seq),
            Self::Requests(None) => out.array(1).uint(REQUESTS),
            Self::Requests(Some(after)) => out.array(2).uint(REQUESTS).bytes(&after.0),
            Self::Rows(None) => out.array(1).uint(ROWS),
            Self::Rows(Some(after)) => out.array(2).uint(ROWS).text(after.as_str()),
            Self::Row(key, after) => out.array(4).uint(ROW).text(key.as_str()).bytes(&after.replica.0).uint(after.seq),
        };
        out.into_bytes()
    }

    /// Reads a place.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, SnapshotError> {
        let mut input = Reader::new(bytes);
        let items = input.array("a place", 4)?;
        let part = input.uint("a part")?;
        let place = match (part, items) {
            (REPLICAS, 1) => Self::Replicas(None),
            (REPLICAS, 2) => Self::Replicas(Some(ReplicaId(input.bytes_of("a replica")?))),
            (HEADS, 1) => Self::Heads(None),
            (HEADS, 3) => Self::Heads(Some(dot(&mut input)?)),
            (REQUESTS, 1) => Self::Requests(None),
            (REQUESTS, 2) => Self::Requests(Some(RequestId(input.bytes_of("a request")?))),
            (ROWS, 1) => Self::Rows(None),
            (ROWS, 2) => Self::Rows(Some(key(&mut input)?)),
            (ROW, 4) => Self::Row(key(&mut input)?, dot(&mut input)?),
            _ => return Err(SnapshotError::Value { what: "a place" }),
        };
        input.finish()?;
        Ok(place)
    }
}

/// What a chunk holds: items of one part, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Items {
    Replicas(Vec<(ReplicaId, VvEntry)>),
    Heads(Vec<(Dot, Head)>),
    Requests(Vec<(RequestId, RequestRecord)>),
    /// The siblings of the first key may continue those of the chunk before.
    Rows(Vec<(Key, Vec<Sibling>)>),
}

/// A chunk whose bytes have been looked at: hashed, in order, and every check computed again from its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk(Bytes);

/// The hash that travels with a chunk.
#[must_use]
pub fn chunk_hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(b"kvdb/chunk/1").chain_update(bytes).finalize().into()
}

impl Chunk {
    /// Judges the bytes of a chunk.
    ///
    /// # Errors
    /// When they are not what the hash says, or no chunk of a snapshot of this database.
    pub fn verify(database: &DatabaseId, hash: [u8; 32], bytes: Bytes) -> Result<Self, SnapshotError> {
        if chunk_hash(&bytes) != hash {
            return Err(SnapshotError::Hash);
        }
        if let Items::Rows(rows) = decode(database, bytes.clone())? {
            for (key, siblings) in &rows {
                for sibling in siblings {
                    let value = sibling.value.as_deref().unwrap_or_default();
                    if check(key, &sibling.dot, sibling.stamp, sibling.expiry, value) != sibling.check {
                        return Err(SnapshotError::Check { key: key.clone(), dot: sibling.dot });
                    }
                }
            }
        }
        Ok(Self(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Gathers the items of one chunk.
pub(super) struct Builder {
    part: u64,
    items: usize,
    out: Writer,
}

impl Builder {
    pub(super) fn new(part: &Cursor) -> Self {
        let part = match part {
            Cursor::Replicas(_) => REPLICAS,
            Cursor::Heads(_) => HEADS,
            Cursor::Requests(_) => REQUESTS,
            Cursor::Rows(_) | Cursor::Row(..) => ROWS,
        };
        Self { part, items: 0, out: Writer::default() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.out.as_slice().len()
    }

    pub(super) fn is_full(&self, max_bytes: usize, next: usize) -> bool {
        self.items > 0 && (self.bytes() + next > max_bytes || self.items == MAX_CHUNK_ITEMS)
    }

    pub(super) fn replica(&mut self, entry: &VvEntry) {
        self.items += 1;
        self.out.array(3).bytes(&entry.author.public_key).uint(entry.author.nonce).uint(entry.seq);
    }

    pub(super) fn head(&mut self, dot: &Dot, head: &Head) {
        self.items += 1;
        self.out.array(4).bytes(&dot.replica.0).uint(dot.seq).bytes(&head.hash.0).uint(head.stamp.0);
    }

    pub(super) fn request(&mut self, request: &RequestId, record: &RequestRecord) {
        self.items += 1;
        self.out.array(5).bytes(&request.0).bytes(&record.dot.replica.0).uint(record.dot.seq).uint(record.stamp.0);
        self.out.array(record.ops.len());
        for op in &record.ops {
            self.out.uint(u64::from(*op));
        }
    }

    /// One sibling with its value: an item of its own, so that a row of any size can be cut.
    pub(super) fn sibling(&mut self, key: &Key, sibling: &Sibling, value: &[u8]) {
        self.items += 1;
        self.out.array(7).text(key.as_str()).bytes(&sibling.dot.replica.0).uint(sibling.dot.seq).uint(sibling.stamp.0);
        self.out.uint(sibling.expiry.map_or(0, Expiry::unix_ms)).bytes(&sibling.check.0.to_be_bytes()).bytes(value);
    }

    /// `[part, [item, …]]`.
    pub(super) fn finish(self) -> Bytes {
        let mut chunk = Writer::with_capacity(self.bytes() + 16);
        chunk.array(2).uint(self.part).array(self.items).raw(self.out.as_slice());
        chunk.into_bytes()
    }
}

/// Reads a chunk without computing checks.
pub(super) fn decode(database: &DatabaseId, bytes: Bytes) -> Result<Items, SnapshotError> {
    if bytes.len() > MAX_CHUNK_BYTES {
        return Err(SnapshotError::Value { what: "the length of a chunk" });
    }
    let mut input = Reader::new(bytes);
    input.array_of("a chunk", 2)?;
    let part = input.uint("a part")?;
    let count = input.array("items", MAX_CHUNK_ITEMS)?;
    let items = match part {
        REPLICAS => {
            let items = (0..count).map(|_| replica(database, &mut input)).collect::<Result<Vec<_>, _>>()?;
            ascend("replicas", items.iter().map(|(replica, _)| replica))?;
            Items::Replicas(items)
        }
        HEADS => {
            let items = (0..count).map(|_| head(&mut input)).collect::<Result<Vec<_>, _>>()?;
            ascend("heads", items.iter().map(|(dot, _)| dot))?;
            Items::Heads(items)
        }
        REQUESTS => {
            let items = (0..count).map(|_| request(&mut input)).collect::<Result<Vec<_>, _>>()?;
            ascend("requests", items.iter().map(|(request, _)| request))?;
            Items::Requests(items)
        }
        ROWS => Items::Rows(rows(&mut input, count)?),
        _ => return Err(SnapshotError::Value { what: "a part" }),
    };
    input.finish()?;
    Ok(items)
}

pub(super) fn ascend<T: Ord>(what: &'static str, items: impl Iterator<Item = T> + Clone) -> Result<(), SnapshotError> {
    let ordered = items.clone().zip(items.skip(1)).all(|(one, next)| one < next);
    if ordered { Ok(()) } else { Err(SnapshotError::Order { what }) }
}

fn replica(database: &DatabaseId, input: &mut Reader) -> Result<(ReplicaId, VvEntry), SnapshotError> {
    input.array_of("a replica", 3)?;
    let author = Author { public_key: input.bytes_of("a public key")?, nonce: input.uint("a nonce")? };
    Ok((author.replica(database), VvEntry { seq: seq(input)?, author }))
}

fn head(input: &mut Reader) -> Result<(Dot, Head), SnapshotError> {
    input.array_of("a head", 4)?;
    let dot = dot(input)?;
    Ok((dot, Head { hash: BlockHash(input.bytes_of("a hash")?), stamp: Stamp(input.uint("a stamp")?) }))
}

fn request(input: &mut Reader) -> Result<(RequestId, RequestRecord), SnapshotError> {
    input.array_of("a request", 5)?;
    let id = RequestId(input.bytes_of("a request")?);
    let dot = dot(input)?;
    let stamp = Stamp(input.uint("a stamp")?);
    let count = input.array("ops", MAX_BLOCK_OPS)?;
    let mut ops = Vec::with_capacity(count);
    for _ in 0..count {
        ops.push(u32::try_from(input.uint("an op")?).map_err(|_| SnapshotError::Value { what: "an op" })?);
    }
    Ok((id, RequestRecord { dot, ops, stamp }))
}

fn rows(input: &mut Reader, count: usize) -> Result<Vec<(Key, Vec<Sibling>)>, SnapshotError> {
    let mut rows: Vec<(Key, Vec<Sibling>)> = Vec::new();
    for _ in 0..count {
        input.array_of("a sibling", 7)?;
        let key = key(input)?;
        let (dot, stamp) = (dot(input)?, Stamp(input.uint("a stamp")?));
        let expiry = match input.uint("an expiry")? {
            0 => None,
            ms => Some(Expiry::at_unix_ms(ms).ok_or(SnapshotError::Value { what: "an expiry" })?),
        };
        let check = Check(u128::from_be_bytes(input.bytes_of("a check")?));
        let value = input.bytes("a value", MAX_VALUE_BYTES)?;
        let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let sibling = Sibling { dot, stamp, expiry, len, check, value: Some(value) };
        match rows.last_mut() {
            Some((last, siblings)) if *last == key => {
                if siblings.last().is_some_and(|before| (before.stamp, before.dot) <= (stamp, dot)) {
                    return Err(SnapshotError::Order { what: "siblings" });
                }
                siblings.push(sibling);
            }
            Some((last, _)) if *last > key => return Err(SnapshotError::Order { what: "keys" }),
            _ => rows.push((key, vec![sibling])),
        }
    }
    Ok(rows)
}

fn dot(input: &mut Reader) -> Result<Dot, SnapshotError> {
    Ok(Dot { replica: ReplicaId(input.bytes_of("a replica")?), seq: seq(input)? })
}

fn seq(input: &mut Reader) -> Result<u64, SnapshotError> {
    match input.uint("a seq")? {
        0 => Err(SnapshotError::Value { what: "a seq" }),
        seq => Ok(seq),
    }
}

fn key(input: &mut Reader) -> Result<Key, SnapshotError> {
    let bytes = input.text("a key", MAX_KEY_BYTES)?;
    Key::from_normal(&bytes).map_err(|_| SnapshotError::Value { what: "a key" })
}

impl Chunk {
    /// The row part of a chunk for tests and comparisons: keys with their siblings.
    ///
    /// # Errors
    /// When it holds something else.
    #[doc(hidden)]
    pub fn rows(&self, database: &DatabaseId) -> Result<Vec<(Key, Row)>, SnapshotError> {
        match decode(database, self.0.clone())? {
            Items::Rows(rows) => Ok(rows.into_iter().map(|(key, siblings)| (key, Row::new(siblings))).collect()),
            _ => Err(SnapshotError::Value { what: "the part of rows" }),
        }
    }
}
