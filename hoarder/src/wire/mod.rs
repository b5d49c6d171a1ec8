//! The bytes between members: heartbeats and the frames of `/kvdb/fleet/1`, in deterministic CBOR. This module owns them.

mod beat;
mod call;
mod frame;
mod payload;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use crdt::codec::cbor::{CborError, Reader, Writer};
use crdt::{DatabaseId, ReplicaId, VersionVector};
use kvdb::PeerId;
use thiserror::Error;

pub use beat::Beat;
pub use call::{Answer, Operation};
pub use frame::{Code, Cover, CoverAnswer, Frame, Purpose, Report, Verdict, frame_len, header};
pub use payload::Refusal;
pub(crate) use payload::{Get, decode_entry, decode_ops, decode_outcomes, encode_entry, encode_ops, encode_outcomes};

use crate::limits::{MAX_FRAME_BYTES, MAX_FRAME_ENTRIES, MAX_MEMBERS, MAX_PEER_BYTES};
use crate::{Epoch, StoreId};

/// Why bytes are no frame or heartbeat of this protocol.
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
        /// The length found.
        bytes: u64,
    },
    /// A field that has no meaning.
    #[error("{what} has no such value")]
    Value {
        /// The field.
        what: &'static str,
    },
}

pub(crate) fn flag(reader: &mut Reader, what: &'static str) -> Result<bool, WireError> {
    match reader.uint(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Value { what }),
    }
}

pub(crate) fn store(reader: &mut Reader) -> Result<StoreId, WireError> {
    Ok(StoreId(reader.bytes_of("a store id")?))
}

pub(crate) fn peer(reader: &mut Reader) -> Result<PeerId, WireError> {
    let bytes = reader.bytes("a peer id", MAX_PEER_BYTES)?;
    PeerId::from_bytes(&bytes).map_err(|_| WireError::Value { what: "a peer id" })
}

/// A peer, or the empty string for none.
pub(crate) fn optional_peer(reader: &mut Reader) -> Result<Option<PeerId>, WireError> {
    let bytes = reader.bytes("a peer id", MAX_PEER_BYTES)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    PeerId::from_bytes(&bytes).map(Some).map_err(|_| WireError::Value { what: "a peer id" })
}

pub(crate) fn write_optional_peer(writer: &mut Writer, peer: Option<&PeerId>) {
    writer.bytes(&peer.map(|peer| peer.to_bytes()).unwrap_or_default());
}

fn database(reader: &mut Reader) -> Result<DatabaseId, WireError> {
    Ok(DatabaseId(reader.bytes_of("a database id")?))
}

fn epoch(reader: &mut Reader) -> Result<Epoch, WireError> {
    Ok(Epoch(reader.bytes_of("an epoch")?))
}

/// Members, ascending and unique.
fn peers(reader: &mut Reader) -> Result<Vec<PeerId>, WireError> {
    let count = reader.array("members", MAX_MEMBERS)?;
    let mut peers: Vec<PeerId> = Vec::with_capacity(count);
    for _ in 0..count {
        let peer = peer(reader)?;
        if peers.last().is_some_and(|last| *last >= peer) {
            return Err(WireError::Value { what: "the order of members" });
        }
        peers.push(peer);
    }
    Ok(peers)
}

/// A version vector as `[replica, seq, …]`, ascending, no seq 0.
fn vv(reader: &mut Reader) -> Result<VersionVector, WireError> {
    let items = reader.array("entries", 2 * MAX_FRAME_ENTRIES)?;
    if items % 2 == 1 {
        return Err(WireError::Value { what: "the number of entries" });
    }
    let mut vector = VersionVector::default();
    let mut last = None;
    for _ in 0..items / 2 {
        let replica = ReplicaId(reader.bytes_of("a replica")?);
        let seq = reader.uint("a seq")?;
        if seq == 0 || last.is_some_and(|last| last >= replica) {
            return Err(WireError::Value { what: "an entry" });
        }
        last = Some(replica);
        vector.raise(replica, seq);
    }
    Ok(vector)
}

fn write_vv(writer: &mut Writer, vector: &VersionVector) {
    writer.array(vector.len() * 2);
    for (replica, seq) in vector.iter() {
        writer.bytes(&replica.0).uint(seq);
    }
}

fn fields(found: usize, wanted: usize) -> Result<(), WireError> {
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
