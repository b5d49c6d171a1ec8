//! Gossip messages: a CBOR array `[kind, …]`, the whole of a gossipsub message's data.

use bytes::Bytes;
use crdt::codec::cbor::{Reader, Writer};
use crdt::{DatabaseId, Digest, Signed, Signer, Verifier};

use super::{WireError, database, digest, items, open};
use crate::net::limits::{MAX_GOSSIP_BLOCK_BYTES, MAX_GOSSIP_MESSAGE_BYTES};

const BLOCK: u64 = 0;
const ANNOUNCE: u64 = 1;
const CONTEXT: &[u8] = b"kvdb/announce/1";

/// A node's replica in short, signed by the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// The database.
    pub database: DatabaseId,
    /// The publisher's ed25519 public key, from which its peer id follows.
    pub publisher: [u8; 32],
    /// Drawn at each start of the publisher.
    pub boot: u64,
    /// Counts the publisher's announcements of this database since that start.
    pub counter: u64,
    /// Hash of the heads.
    pub heads_hash: [u8; 32],
    /// Hash of the version vector.
    pub vv_hash: [u8; 32],
    /// The state digest.
    pub digest: Digest,
    /// The publisher's signature over the fields before it.
    pub signature: [u8; 64],
}

/// A gossip message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A block, not yet verified.
    Block(Bytes),
    /// An announcement, its signature not yet checked.
    Announce(Box<Announce>),
}

impl Message {
    /// The message's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Block(block) => {
                let mut writer = Writer::with_capacity(block.len() + 16);
                writer.array(2).uint(BLOCK).bytes(block);
                writer.into_bytes()
            }
            Self::Announce(announce) => {
                let mut writer = Writer::with_capacity(300);
                announce.write_body(&mut writer);
                writer.bytes(&announce.signature);
                writer.into_bytes()
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When it is none of this version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        if bytes.len() > MAX_GOSSIP_MESSAGE_BYTES {
            return Err(WireError::MessageTooLarge { bytes: bytes.len(), limit: MAX_GOSSIP_MESSAGE_BYTES });
        }
        let (mut reader, count, kind) = open(bytes)?;
        let message = match kind {
            BLOCK => {
                items(count, 2)?;
                Self::Block(reader.bytes("a block", MAX_GOSSIP_BLOCK_BYTES)?)
            }
            ANNOUNCE => {
                items(count, 9)?;
                Self::Announce(Box::new(Announce::read(&mut reader)?))
            }
            kind => return Err(WireError::UnknownKind { kind }),
        };
        reader.finish()?;
        Ok(message)
    }
}

impl Announce {
    /// Signs the announcement in the name of the signer.
    #[must_use]
    pub fn signed(mut self, signer: &dyn Signer) -> Self {
        self.publisher = signer.public_key();
        self.signature = signer.sign(&self.message());
        self
    }

    /// Whether the publisher signed it.
    #[must_use]
    pub fn verify(&self, verifier: &mut dyn Verifier) -> bool {
        let signed = Signed { public_key: self.publisher, signature: self.signature, message: self.message() };
        verifier.verify(&[signed]) == [true]
    }

    fn message(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(300);
        writer.raw(CONTEXT);
        self.write_body(&mut writer);
        writer.as_slice().to_vec()
    }

    fn write_body(&self, writer: &mut Writer) {
        writer.array(9).uint(ANNOUNCE).bytes(&self.database.0).bytes(&self.publisher).uint(self.boot).uint(self.counter);
        writer.bytes(&self.heads_hash).bytes(&self.vv_hash).bytes(&self.digest.0.to_be_bytes());
    }

    fn read(reader: &mut Reader) -> Result<Self, WireError> {
        Ok(Self {
            database: database(reader)?,
            publisher: reader.bytes_of("a public key")?,
            boot: reader.uint("a boot id")?,
            counter: reader.uint("a counter")?,
            heads_hash: reader.bytes_of("a heads hash")?,
            vv_hash: reader.bytes_of("a version vector hash")?,
            digest: digest(reader)?,
            signature: reader.bytes_of("a signature")?,
        })
    }
}
