//! Sync frames: a `u32` big-endian length and a CBOR array `[kind, …]`.
//!
//! Kinds 16 to 20 are those of snapshots, 21 to 23 those of comparisons by ranges.

use bytes::Bytes;
use crdt::codec::cbor::{Reader, Writer};
use crdt::limits::MAX_BLOCK_BYTES;
use crdt::{DatabaseId, Digest, ReplicaId};

use super::ranges::{self, RangeFrame};
use super::snapshot::{self, SnapshotFrame};
use super::{WireError, database, digest, entries, flag, items, open, write_entries};
use crate::net::limits::{MAX_ERROR_TEXT_BYTES, MAX_FRAME_BLOCKS, MAX_FRAME_BYTES, MAX_FRAME_ENTRIES};

/// The version of the sync protocol that this node speaks.
pub const PROTOCOL_VERSION: u64 = 1;

const HELLO: u64 = 0;
const OPEN: u64 = 1;
const CLOSE: u64 = 2;
const HAVE: u64 = 3;
const HAVE_LIST: u64 = 4;
const BLOCKS: u64 = 5;
const ACK: u64 = 6;
const DROPPED: u64 = 7;
const ERROR: u64 = 8;

/// The first frame of each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The protocol version; of any other than ours the rest is not read.
    pub version: u64,
    /// Bits of optional abilities; none yet.
    pub features: u64,
    /// The largest frame that the sender takes.
    pub max_frame_bytes: u64,
    /// The bytes of blocks per database that may be in flight to the sender.
    pub credit_bytes: u64,
}

/// Whether a `Have` asks for one in return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HaveKind {
    /// Please compare and answer.
    Question,
    /// The answer.
    Answer,
}

/// One replica in short, all of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Hash of the version vector.
    pub vv_hash: [u8; 32],
    /// Number of its entries.
    pub count: u64,
    /// Hash of the heads.
    pub heads_hash: [u8; 32],
    /// The state digest.
    pub digest: Digest,
}

/// One replica in a list: how far its blocks are merged, and up to where they are not kept any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HaveEntry {
    /// The replica.
    pub replica: ReplicaId,
    /// The highest merged seq.
    pub seq: u64,
    /// The seq up to which the sender keeps no blocks; 0 when it keeps all.
    pub floor: u64,
}

/// What an error frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorCode {
    /// The receiver of this frame speaks another version.
    Version,
    /// The receiver of this frame broke the protocol.
    Protocol,
    /// A limit of the two nodes does not fit together.
    Limit,
    /// A code of a later version.
    Other(u64),
}

impl ErrorCode {
    fn number(self) -> u64 {
        match self {
            Self::Version => 1,
            Self::Protocol => 2,
            Self::Limit => 3,
            Self::Other(number) => number,
        }
    }

    fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Version,
            2 => Self::Protocol,
            3 => Self::Limit,
            other => Self::Other(other),
        }
    }
}

/// One frame of the sync protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Version and limits.
    Hello(Hello),
    /// The sender has this database open.
    Open(DatabaseId),
    /// The sender has it open no more.
    Close(DatabaseId),
    /// The sender's replica in short.
    Have {
        /// The database.
        database: DatabaseId,
        /// Question or answer.
        kind: HaveKind,
        /// The replica.
        summary: Summary,
    },
    /// A part of the sender's version vector.
    HaveList {
        /// The database.
        database: DatabaseId,
        /// Entries, ascending.
        entries: Vec<HaveEntry>,
        /// Whether this is the last part.
        last: bool,
    },
    /// Blocks that the receiver lacks.
    Blocks {
        /// The database.
        database: DatabaseId,
        /// The blocks' bytes.
        blocks: Vec<Bytes>,
    },
    /// What became of the receiver's blocks.
    Ack {
        /// The database.
        database: DatabaseId,
        /// Bytes of blocks merged since the sessions began: the receiver may have as much more in flight.
        consumed: u64,
        /// Entries of the durable version vector that changed; they replace what was known of them.
        durable: Vec<(ReplicaId, u64)>,
    },
    /// The sender knows that this database was dropped.
    Dropped(DatabaseId),
    /// A part of a snapshot's transfer.
    Snapshot(DatabaseId, SnapshotFrame),
    /// A part of a comparison by ranges.
    Ranges(DatabaseId, RangeFrame),
    /// Why the sender is about to leave.
    Error {
        /// The kind of error.
        code: ErrorCode,
        /// For the log.
        text: String,
    },
}

/// The length header of a body.
///
/// # Errors
/// When a body of this length may not be sent.
pub fn header(body: &[u8]) -> Result<[u8; 4], WireError> {
    let error = WireError::FrameLength { bytes: body.len() as u64 };
    let len = u32::try_from(body.len()).map_err(|_| error)?.to_be_bytes();
    frame_len(len)?;
    Ok(len)
}

/// The body's length from its header.
///
/// # Errors
/// When no frame may have this length.
pub fn frame_len(header: [u8; 4]) -> Result<usize, WireError> {
    let bytes = u64::from(u32::from_be_bytes(header));
    match usize::try_from(bytes) {
        Ok(len) if (1..=MAX_FRAME_BYTES).contains(&len) => Ok(len),
        _ => Err(WireError::FrameLength { bytes }),
    }
}

impl Frame {
    /// The body without the length.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(self.size_hint());
        match self {
            Self::Hello(hello) => {
                writer.array(5).uint(HELLO).uint(hello.version).uint(hello.features);
                writer.uint(hello.max_frame_bytes).uint(hello.credit_bytes);
            }
            Self::Open(database) => write_name(&mut writer, OPEN, database),
            Self::Close(database) => write_name(&mut writer, CLOSE, database),
            Self::Dropped(database) => write_name(&mut writer, DROPPED, database),
            Self::Have { database, kind, summary } => {
                writer.array(7).uint(HAVE).bytes(&database.0).uint(u64::from(*kind == HaveKind::Answer));
                writer.bytes(&summary.vv_hash).uint(summary.count).bytes(&summary.heads_hash);
                writer.bytes(&summary.digest.0.to_be_bytes());
            }
            Self::HaveList { database, entries, last } => {
                writer.array(4).uint(HAVE_LIST).bytes(&database.0);
                writer.array(entries.len() * 3);
                for HaveEntry { replica, seq, floor } in entries {
                    writer.bytes(&replica.0).uint(*seq).uint(*floor);
                }
                writer.uint(u64::from(*last));
            }
            Self::Blocks { database, blocks } => {
                writer.array(3).uint(BLOCKS).bytes(&database.0).array(blocks.len());
                for block in blocks {
                    writer.bytes(block);
                }
            }
            Self::Ack { database, consumed, durable } => {
                writer.array(4).uint(ACK).bytes(&database.0).uint(*consumed);
                write_entries(&mut writer, durable);
            }
            Self::Snapshot(database, frame) => frame.encode(database, &mut writer),
            Self::Ranges(database, frame) => frame.encode(database, &mut writer),
            Self::Error { code, text } => {
                writer.array(3).uint(ERROR).uint(code.number()).bytes(text.as_bytes());
            }
        }
        writer.into_bytes()
    }

    /// Reads a body. The blocks in it are not verified.
    ///
    /// # Errors
    /// When it is no frame of this version.
    pub fn decode(body: Bytes) -> Result<Self, WireError> {
        let (mut reader, count, kind) = open(body)?;
        let frame = match kind {
            HELLO => {
                let version = reader.uint("a version")?;
                if version != PROTOCOL_VERSION {
                    // Whatever else such a hello holds is not ours to judge.
                    return Ok(Self::Hello(Hello { version, features: 0, max_frame_bytes: 0, credit_bytes: 0 }));
                }
                items(count, 5)?;
                let (features, max_frame_bytes) = (reader.uint("features")?, reader.uint("a frame size")?);
                Self::Hello(Hello { version, features, max_frame_bytes, credit_bytes: reader.uint("a credit")? })
            }
            OPEN => Self::Open(read_name(&mut reader, count)?),
            CLOSE => Self::Close(read_name(&mut reader, count)?),
            DROPPED => Self::Dropped(read_name(&mut reader, count)?),
            HAVE => read_have(&mut reader, count)?,
            HAVE_LIST => {
                items(count, 4)?;
                let (database, entries) = (database(&mut reader)?, read_have_entries(&mut reader)?);
                Self::HaveList { database, entries, last: flag(&mut reader, "a last flag")? }
            }
            BLOCKS => read_blocks(&mut reader, count)?,
            ACK => {
                items(count, 4)?;
                let (database, consumed) = (database(&mut reader)?, reader.uint("consumed bytes")?);
                Self::Ack { database, consumed, durable: entries(&mut reader)? }
            }
            ERROR => {
                items(count, 3)?;
                let code = ErrorCode::from_number(reader.uint("an error code")?);
                let text = reader.bytes("an error text", MAX_ERROR_TEXT_BYTES)?;
                Self::Error { code, text: String::from_utf8_lossy(&text).into_owned() }
            }
            snapshot::FIRST..=snapshot::LAST => {
                let (database, frame) = SnapshotFrame::decode(&mut reader, count, kind)?;
                Self::Snapshot(database, frame)
            }
            ranges::FIRST..=ranges::LAST => {
                let (database, frame) = RangeFrame::decode(&mut reader, count, kind)?;
                Self::Ranges(database, frame)
            }
            kind => return Err(WireError::UnknownKind { kind }),
        };
        reader.finish()?;
        Ok(frame)
    }

    /// About how many bytes the frame takes.
    #[must_use]
    pub fn size_hint(&self) -> usize {
        160 + match self {
            Self::Blocks { blocks, .. } => blocks.iter().map(|block| block.len() + 5).sum(),
            Self::HaveList { entries, .. } => entries.len() * 35,
            Self::Ack { durable, .. } => durable.len() * 26,
            Self::Snapshot(_, frame) => frame.size_hint(),
            Self::Ranges(_, frame) => frame.size_hint(),
            Self::Error { text, .. } => text.len(),
            _ => 0,
        }
    }
}

fn write_name(writer: &mut Writer, kind: u64, database: &DatabaseId) {
    writer.array(2).uint(kind).bytes(&database.0);
}

fn read_name(reader: &mut Reader, count: usize) -> Result<DatabaseId, WireError> {
    items(count, 2)?;
    database(reader)
}

fn read_have(reader: &mut Reader, count: usize) -> Result<Frame, WireError> {
    items(count, 7)?;
    let database = database(reader)?;
    let kind = if flag(reader, "a have kind")? { HaveKind::Answer } else { HaveKind::Question };
    let vv_hash = reader.bytes_of("a version vector hash")?;
    let count = reader.uint("a number of entries")?;
    let heads_hash = reader.bytes_of("a heads hash")?;
    let digest = digest(reader)?;
    Ok(Frame::Have { database, kind, summary: Summary { vv_hash, count, heads_hash, digest } })
}

/// `[replica, seq, floor, …]`, ascending, no seq 0, no floor above its seq.
fn read_have_entries(reader: &mut Reader) -> Result<Vec<HaveEntry>, WireError> {
    let items = reader.array("entries", 3 * MAX_FRAME_ENTRIES)?;
    if items % 3 != 0 {
        return Err(WireError::Value { what: "the number of entries" });
    }
    let mut entries: Vec<HaveEntry> = Vec::with_capacity(items / 3);
    for _ in 0..items / 3 {
        let replica = ReplicaId(reader.bytes_of("a replica")?);
        let (seq, floor) = (reader.uint("a seq")?, reader.uint("a floor")?);
        if seq == 0 || floor > seq || entries.last().is_some_and(|last| last.replica >= replica) {
            return Err(WireError::Value { what: "an entry" });
        }
        entries.push(HaveEntry { replica, seq, floor });
    }
    Ok(entries)
}

fn read_blocks(reader: &mut Reader, count: usize) -> Result<Frame, WireError> {
    items(count, 3)?;
    let database = database(reader)?;
    let len = reader.array("blocks", MAX_FRAME_BLOCKS)?;
    if len == 0 {
        return Err(WireError::Value { what: "the number of blocks" });
    }
    let mut blocks = Vec::with_capacity(len);
    for _ in 0..len {
        blocks.push(reader.bytes("a block", MAX_BLOCK_BYTES)?);
    }
    Ok(Frame::Blocks { database, blocks })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
