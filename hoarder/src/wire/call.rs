//! What is asked of a holder, and what it answers: the bodies of `Call` and `Reply`.

use bytes::Bytes;
use crdt::codec::cbor::Writer;
use crdt::{Dot, ReplicaId};
use kvdb::PeerId;

use super::{WireError, fields, flag, open, peer, peers};
use crate::barrier::{Durability, UnconfirmedReason};
use crate::limits::MAX_CALL_BYTES;

/// What a call asks for. The payload is for the store; nothing here looks into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// A read.
    Read {
        /// A holder that is not ready just now may answer.
        stale: bool,
        /// What to read.
        payload: Bytes,
    },
    /// A write.
    Write {
        /// When it counts as done; the database's own if `None`.
        durability: Option<Durability>,
        /// It has a condition, so that only the decider may judge it.
        conditional: bool,
        /// Write even if it cannot be confirmed now.
        attempt: bool,
        /// What to write.
        payload: Bytes,
    },
}

impl Operation {
    /// The body's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(64);
        match self {
            Self::Read { stale, payload } => writer.array(3).uint(0).uint(u64::from(*stale)).bytes(payload),
            Self::Write { durability, conditional, attempt, payload } => {
                let (mode, k) = durability.map_or((3, 0), Durability::numbers);
                writer.array(6).uint(1).uint(mode).uint(k).uint(u64::from(*conditional)).uint(u64::from(*attempt)).bytes(payload)
            }
        };
        writer.into_bytes()
    }

    /// Reads a body.
    ///
    /// # Errors
    /// When it is none of this version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let (mut reader, count, kind) = open(bytes)?;
        let operation = match kind {
            0 => {
                fields(count, 3)?;
                Self::Read { stale: flag(&mut reader, "stale")?, payload: reader.bytes("a payload", MAX_CALL_BYTES)? }
            }
            1 => {
                fields(count, 6)?;
                let (mode, k) = (reader.uint("a durability")?, reader.uint("a number of holders")?);
                let durability = match (mode, k) {
                    (3, 0) => None,
                    _ => Some(Durability::from_numbers(mode, k).ok_or(WireError::Value { what: "a durability" })?),
                };
                let (conditional, attempt) = (flag(&mut reader, "conditional")?, flag(&mut reader, "attempt")?);
                Self::Write { durability, conditional, attempt, payload: reader.bytes("a payload", MAX_CALL_BYTES)? }
            }
            kind => return Err(WireError::UnknownKind { kind }),
        };
        reader.finish()?;
        Ok(operation)
    }
}

/// What a call has come to, in detail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Who has answered.
    pub served_by: PeerId,
    /// The one who answered was not ready just then.
    pub stale: bool,
    /// The write, if one was made.
    pub dot: Option<Dot>,
    /// The holders that have it on disk.
    pub holders: Vec<PeerId>,
    /// Why it is not confirmed.
    pub reason: Option<UnconfirmedReason>,
    /// What was read, or what the store says of the write.
    pub payload: Bytes,
}

impl Answer {
    /// An answer without details.
    #[must_use]
    pub fn plain(served_by: PeerId, payload: Bytes) -> Self {
        Self { served_by, stale: false, dot: None, holders: Vec::new(), reason: None, payload }
    }

    /// The body's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(128);
        let reason = match self.reason {
            None => 0,
            Some(UnconfirmedReason::Deadline) => 1,
            Some(UnconfirmedReason::Dropped) => 2,
            Some(UnconfirmedReason::Views) => 3,
        };
        writer.array(8).uint(0).bytes(&self.served_by.to_bytes()).uint(u64::from(self.stale));
        writer.bytes(&self.dot.map(|dot| dot.replica.0.to_vec()).unwrap_or_default());
        writer.uint(self.dot.map_or(0, |dot| dot.seq)).array(self.holders.len());
        for holder in &self.holders {
            writer.bytes(&holder.to_bytes());
        }
        writer.uint(reason).bytes(&self.payload);
        writer.into_bytes()
    }

    /// Reads a body.
    ///
    /// # Errors
    /// When it is none of this version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let (mut reader, count, kind) = open(bytes)?;
        if kind != 0 {
            return Err(WireError::UnknownKind { kind });
        }
        fields(count, 8)?;
        let (served_by, stale) = (peer(&mut reader)?, flag(&mut reader, "stale")?);
        let (replica, seq) = (reader.bytes("a replica", 16)?, reader.uint("a seq")?);
        let dot = match (<[u8; 16]>::try_from(replica.as_ref()), seq) {
            (Err(_), 0) if replica.is_empty() => None,
            (Ok(replica), 1..) => Some(Dot { replica: ReplicaId(replica), seq }),
            _ => return Err(WireError::Value { what: "a dot" }),
        };
        let holders = peers(&mut reader)?;
        let reason = match reader.uint("a reason")? {
            0 => None,
            1 => Some(UnconfirmedReason::Deadline),
            2 => Some(UnconfirmedReason::Dropped),
            3 => Some(UnconfirmedReason::Views),
            _ => return Err(WireError::Value { what: "a reason" }),
        };
        let answer = Self { served_by, stale, dot, holders, reason, payload: reader.bytes("a payload", MAX_CALL_BYTES)? };
        reader.finish()?;
        Ok(answer)
    }
}
