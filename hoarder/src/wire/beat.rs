//! The heartbeat: what a member says of itself every second.

use bytes::Bytes;
use crdt::codec::cbor::Writer;
use crdt::{Signed, Signer, Verifier};

use super::{WireError, fields, flag, open};
use crate::Epoch;
use crate::limits::{MAX_BEAT_BYTES, MAX_CAPACITY};

const BEAT: u64 = 0;
const CONTEXT: &[u8] = b"kvdb/beat/1";

/// A member's word about itself, signed by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// The member's ed25519 public key, from which its peer id follows.
    pub member: [u8; 32],
    /// Drawn at each start of the member; below 2^63.
    pub boot: u64,
    /// Counts the beats since that start, so that an old one is known as old.
    pub counter: u64,
    /// Its weight in placement, from 1.
    pub capacity: u64,
    /// It is to hold nothing any more.
    pub draining: bool,
    /// It stops now.
    pub leaving: bool,
    /// The live members as it sees them.
    pub view: Epoch,
    /// Its wall clock in Unix milliseconds, to be shown only: nothing is decided by it.
    pub clock_ms: u64,
    /// Over all fields before it.
    pub signature: [u8; 64],
}

impl Beat {
    /// Signs the beat in the name of the signer.
    #[must_use]
    pub fn signed(mut self, signer: &dyn Signer) -> Self {
        self.member = signer.public_key();
        self.signature = signer.sign(&self.message());
        self
    }

    /// Whether the member signed it.
    #[must_use]
    pub fn verify(&self, verifier: &mut dyn Verifier) -> bool {
        let signed = Signed { public_key: self.member, signature: self.signature, message: self.message() };
        verifier.verify(&[signed]) == [true]
    }

    /// The beat's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(256);
        self.write_body(&mut writer);
        writer.bytes(&self.signature);
        writer.into_bytes()
    }

    /// Reads a beat; its signature is not yet checked.
    ///
    /// # Errors
    /// When it is none of this version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        if bytes.len() > MAX_BEAT_BYTES {
            return Err(WireError::FrameLength { bytes: bytes.len() as u64 });
        }
        let (mut reader, count, kind) = open(bytes)?;
        if kind != BEAT {
            return Err(WireError::UnknownKind { kind });
        }
        fields(count, 10)?;
        let beat = Self {
            member: reader.bytes_of("a public key")?,
            boot: reader.uint("a boot id")?,
            counter: reader.uint("a counter")?,
            capacity: reader.uint("a capacity")?,
            draining: flag(&mut reader, "draining")?,
            leaving: flag(&mut reader, "leaving")?,
            view: super::epoch(&mut reader)?,
            clock_ms: reader.uint("a clock")?,
            signature: reader.bytes_of("a signature")?,
        };
        reader.finish()?;
        if (1..=MAX_CAPACITY).contains(&beat.capacity) { Ok(beat) } else { Err(WireError::Value { what: "a capacity" }) }
    }

    fn message(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(256);
        writer.raw(CONTEXT);
        self.write_body(&mut writer);
        writer.as_slice().to_vec()
    }

    fn write_body(&self, writer: &mut Writer) {
        writer.array(10).uint(BEAT).bytes(&self.member).uint(self.boot).uint(self.counter).uint(self.capacity);
        writer.uint(u64::from(self.draining)).uint(u64::from(self.leaving)).bytes(&self.view.0).uint(self.clock_ms);
    }
}
