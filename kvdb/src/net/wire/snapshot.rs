//! Frames of snapshots, kinds 16 to 20: a replica as a whole, for one that lacks blocks which are not kept any more.

use bytes::Bytes;
use crdt::codec::cbor::{Reader, Writer};
use crdt::limits::MAX_CHUNK_BYTES;
use crdt::{DatabaseId, SnapshotId};

use super::{WireError, database, items};
use crate::net::limits::{MAX_PLACE_BYTES, MAX_SNAPSHOT_HEAD_BYTES};

pub(super) const FIRST: u64 = WANT;
pub(super) const LAST: u64 = END;
const WANT: u64 = 16;
const HEAD: u64 = 17;
const CHUNK: u64 = 18;
const TAKEN: u64 = 19;
const END: u64 = 20;

/// How far a snapshot had come when its transfer was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The snapshot.
    pub id: SnapshotId,
    /// Chunks that are there.
    pub index: u64,
    /// The place after them, as the sender named it.
    pub at: Bytes,
}

/// Which chunk it is, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkName {
    /// The snapshot.
    pub id: SnapshotId,
    /// Its number, from 0.
    pub index: u64,
    /// The place after it; empty for the last one.
    pub next: Bytes,
}

/// Why a transfer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The receiver has joined the snapshot.
    Joined,
    /// The receiver does not want it any more.
    Unwanted,
    /// The sender has too many transfers now; ask again later.
    Busy,
    /// The sender cannot read, or has the database open no more.
    Unable,
}

/// A frame of a snapshot's transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotFrame {
    /// To a peer that keeps less history than the sender of this frame needs: send me a snapshot, or the rest of one.
    Want(Option<Resume>),
    /// What comes, from this chunk on: 0 if it is another one than wanted.
    Head {
        /// The next chunk.
        index: u64,
        /// The snapshot's head.
        head: Bytes,
    },
    /// A chunk; its hash is not looked at yet.
    Chunk {
        /// Which one.
        name: ChunkName,
        /// Its hash.
        hash: [u8; 32],
        /// Its bytes.
        bytes: Bytes,
    },
    /// The receiver has staged the chunks before this one: as many more may be sent.
    Taken {
        /// The snapshot.
        id: SnapshotId,
        /// The next chunk.
        index: u64,
    },
    /// Nothing more comes, or is to come.
    End {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        reason: EndReason,
    },
}

impl SnapshotFrame {
    pub(super) fn encode(&self, database: &DatabaseId, out: &mut Writer) {
        match self {
            Self::Want(None) => _ = out.array(2).uint(WANT).bytes(&database.0),
            Self::Want(Some(resume)) => {
                out.array(6).uint(WANT).bytes(&database.0);
                write_id(out, &resume.id).uint(resume.index).bytes(&resume.at);
            }
            Self::Head { index, head } => _ = out.array(4).uint(HEAD).bytes(&database.0).uint(*index).bytes(head),
            Self::Chunk { name, hash, bytes } => {
                out.array(8).uint(CHUNK).bytes(&database.0);
                write_id(out, &name.id).uint(name.index).bytes(&name.next).bytes(hash).bytes(bytes);
            }
            Self::Taken { id, index } => {
                out.array(5).uint(TAKEN).bytes(&database.0);
                write_id(out, id).uint(*index);
            }
            Self::End { id, reason } => {
                out.array(5).uint(END).bytes(&database.0);
                write_id(out, id).uint(match reason {
                    EndReason::Joined => 0,
                    EndReason::Unwanted => 1,
                    EndReason::Busy => 2,
                    EndReason::Unable => 3,
                });
            }
        }
    }

    pub(super) fn decode(input: &mut Reader, count: usize, kind: u64) -> Result<(DatabaseId, Self), WireError> {
        // The first field is looked at only if the number of fields is one that the kind has.
        let fields = match (kind, count) {
            (WANT, 2 | 6) => count,
            (HEAD, _) => 4,
            (CHUNK, _) => 8,
            _ => 5,
        };
        items(count, fields)?;
        let database = database(input)?;
        let frame = match kind {
            WANT if count == 2 => Self::Want(None),
            WANT => {
                let (id, index) = (read_id(input)?, input.uint("a chunk")?);
                Self::Want(Some(Resume { id, index, at: input.bytes("a place", MAX_PLACE_BYTES)? }))
            }
            HEAD => {
                let index = input.uint("a chunk")?;
                Self::Head { index, head: input.bytes("a head", MAX_SNAPSHOT_HEAD_BYTES)? }
            }
            CHUNK => {
                let (id, index) = (read_id(input)?, input.uint("a chunk")?);
                let name = ChunkName { id, index, next: input.bytes("a place", MAX_PLACE_BYTES)? };
                let hash = input.bytes_of("a hash")?;
                Self::Chunk { name, hash, bytes: input.bytes("a chunk", MAX_CHUNK_BYTES)? }
            }
            TAKEN => Self::Taken { id: read_id(input)?, index: input.uint("a chunk")? },
            _ => {
                let id = read_id(input)?;
                let reason = match input.uint("a reason")? {
                    0 => EndReason::Joined,
                    1 => EndReason::Unwanted,
                    2 => EndReason::Busy,
                    3 => EndReason::Unable,
                    _ => return Err(WireError::Value { what: "a reason" }),
                };
                Self::End { id, reason }
            }
        };
        Ok((database, frame))
    }

    pub(super) fn size_hint(&self) -> usize {
        match self {
            Self::Chunk { name, bytes, .. } => name.next.len() + bytes.len(),
            Self::Head { head, .. } => head.len(),
            Self::Want(Some(resume)) => resume.at.len(),
            _ => 0,
        }
    }
}

fn write_id<'a>(out: &'a mut Writer, id: &SnapshotId) -> &'a mut Writer {
    out.uint(id.boot).uint(id.view)
}

fn read_id(input: &mut Reader) -> Result<SnapshotId, WireError> {
    Ok(SnapshotId { boot: input.uint("a boot id")?, view: input.uint("a view")? })
}
