//! What is asked of a holder, and what it answers: the bodies of `Call` and `Reply`.

use bytes::Bytes;
use crdt::Dot;
use crdt::codec::cbor::Writer;
use kvdb::PeerId;

use super::payload::{optional_dot, write_optional_dot};
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
        /// The holder first looks whether it has what enough others have: nothing that was confirmed before is missed.
        confirmed: bool,
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
        /// A holder that is not ready just now may take it, if it asks for no holders and has no condition.
        stale: bool,
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
            Self::Read { stale, confirmed, payload } => {
                writer.array(4).uint(0).uint(u64::from(*stale)).uint(u64::from(*confirmed)).bytes(payload)
            }
            Self::Write { durability, conditional, attempt, stale, payload } => {
                let (mode, k) = durability.map_or((3, 0), Durability::numbers);
                writer.array(7).uint(1).uint(mode).uint(k).uint(u64::from(*conditional)).uint(u64::from(*attempt));
                writer.uint(u64::from(*stale)).bytes(payload)
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
                fields(count, 4)?;
                let (stale, confirmed) = (flag(&mut reader, "stale")?, flag(&mut reader, "confirmed")?);
                Self::Read { stale, confirmed, payload: reader.bytes("a payload", MAX_CALL_BYTES)? }
            }
            1 => {
                fields(count, 7)?;
                let (mode, k) = (reader.uint("a durability")?, reader.uint("a number of holders")?);
                let durability = match (mode, k) {
                    (3, 0) => None,
                    _ => Some(Durability::from_numbers(mode, k).ok_or(WireError::Value { what: "a durability" })?),
                };
                let (conditional, attempt) = (flag(&mut reader, "conditional")?, flag(&mut reader, "attempt")?);
                let stale = flag(&mut reader, "stale")?;
                let payload = reader.bytes("a payload", MAX_CALL_BYTES)?;
                Self::Write { durability, conditional, attempt, stale, payload }
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
        write_optional_dot(&mut writer, self.dot);
        writer.array(self.holders.len());
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
        let dot = optional_dot(&mut reader)?;
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
