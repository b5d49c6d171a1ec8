//! The bytes on the wire: sync frames and gossip messages. Wire types are not our types; this module owns the bytes.

mod frame;
mod message;
mod ranges;
mod snapshot;

use bytes::Bytes;
use crdt::codec::cbor::{CborError, Reader, Writer};
use crdt::{DatabaseId, Digest, ReplicaId};
use thiserror::Error;

pub use frame::{ErrorCode, Frame, HaveEntry, HaveKind, Hello, PROTOCOL_VERSION, Summary, frame_len, header};
pub use message::{Announce, Message};
pub use ranges::{Part, RangeFrame, RangeRefusal, Span};
pub use snapshot::{ChunkName, EndReason, Resume, SnapshotFrame};

use super::limits::{MAX_FRAME_BYTES, MAX_FRAME_ENTRIES};

/// Why bytes are not a frame or message of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not the CBOR that the kind asks for.
    #[error("malformed: {0}")]
    Cbor(#[from] CborError),
    /// A kind that this version does not know.
    #[error("unknown kind {kind}")]
    UnknownKind {
        /// The number found.
        kind: u64,
    },
    /// A length that no frame has.
    #[error("a frame of {bytes} bytes, allowed are 1 to {MAX_FRAME_BYTES}")]
    FrameLength {
        /// The length in the header.
        bytes: u64,
    },
    /// A message longer than messages may be.
    #[error("a message of {bytes} bytes, the limit is {limit}")]
    MessageTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A field that has no meaning.
    #[error("{what} has no such value")]
    Value {
        /// The field.
        what: &'static str,
    },
}

type Entries = Vec<(ReplicaId, u64)>;

fn database(reader: &mut Reader) -> Result<DatabaseId, WireError> {
    Ok(DatabaseId(reader.bytes_of("a database id")?))
}

fn digest(reader: &mut Reader) -> Result<Digest, WireError> {
    Ok(Digest(u128::from_be_bytes(reader.bytes_of("a digest")?)))
}

/// Version vector entries as `[replica, seq, replica, seq, …]`, ascending, no seq 0.
fn entries(reader: &mut Reader) -> Result<Entries, WireError> {
    let items = reader.array("entries", 2 * MAX_FRAME_ENTRIES)?;
    if items % 2 == 1 {
        return Err(WireError::Value { what: "the number of entries" });
    }
    let mut entries: Entries = Vec::with_capacity(items / 2);
    for _ in 0..items / 2 {
        let replica = ReplicaId(reader.bytes_of("a replica")?);
        let seq = reader.uint("a seq")?;
        if seq == 0 || entries.last().is_some_and(|(last, _)| *last >= replica) {
            return Err(WireError::Value { what: "an entry" });
        }
        entries.push((replica, seq));
    }
    Ok(entries)
}

fn write_entries(writer: &mut Writer, entries: &[(ReplicaId, u64)]) {
    writer.array(entries.len() * 2);
    for (replica, seq) in entries {
        writer.bytes(&replica.0).uint(*seq);
    }
}

fn flag(reader: &mut Reader, what: &'static str) -> Result<bool, WireError> {
    match reader.uint(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Value { what }),
    }
}

fn items(found: usize, wanted: usize) -> Result<(), WireError> {
    if found == wanted { Ok(()) } else { Err(WireError::Value { what: "the number of fields" }) }
}

/// Reads `[kind, …]`: the number of items and the kind.
fn open(bytes: Bytes) -> Result<(Reader, usize, u64), WireError> {
    let mut reader = Reader::new(bytes);
    let count = reader.array("a frame", 16)?;
    if count == 0 {
        return Err(WireError::Value { what: "the number of fields" });
    }
    let kind = reader.uint("a kind")?;
    Ok((reader, count, kind))
}
