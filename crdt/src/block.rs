//! Blocks: a commit's changes and their place in the DAG, sealed by the author's signature.

use std::sync::Arc;

use bytes::Bytes;
use cid::Cid;
use multihash::Multihash;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::clock::Stamp;
use crate::codec::block as codec;
use crate::codec::cbor::CborError;
use crate::database::DatabaseId;
use crate::dot::{Author, Dot, ReplicaId};
use crate::key::{Key, KeyError};
use crate::limits::{
    MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_BLOCK_PARENTS, MAX_BLOCK_REQUESTS, MAX_OP_SUPERSEDED, MAX_UINT, MAX_VALUE_BYTES,
};
use crate::sign::{Signed, Signer, Verifier};

const DAG_CBOR: u64 = 0x71;
const SHA2_256: u64 = 0x12;

/// SHA-256 of a block's bytes: the block's address, since every CID here has the same version, codec and hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// The hash of a block's bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The content id: version 1, DAG-CBOR, sha2-256.
    ///
    /// # Panics
    /// Never: a multihash of 64 bytes holds a digest of 32.
    #[must_use]
    pub fn cid(&self) -> Cid {
        #[expect(clippy::expect_used, reason = "32 bytes fit a multihash of 64")]
        let hash = Multihash::wrap(SHA2_256, &self.0).expect("32 bytes fit");
        Cid::new_v1(DAG_CBOR, hash)
    }
}

impl std::fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.cid())
    }
}

/// When a put expires: Unix milliseconds, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expiry(std::num::NonZeroU64);

impl Expiry {
    /// An expiry at this time; `None` for 0, which could not be told from "never", and from 2^63 on.
    #[must_use]
    pub fn at_unix_ms(ms: u64) -> Option<Self> {
        if ms > crate::limits::MAX_UINT { None } else { std::num::NonZeroU64::new(ms).map(Self) }
    }

    /// The time in Unix milliseconds.
    #[must_use]
    pub fn unix_ms(self) -> u64 {
        self.0.get()
    }
}

/// What an op does to its key.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// Adds a value.
    Put {
        /// The value; the empty value is a value.
        value: Bytes,
        /// When it stops being visible.
        expiry: Option<Expiry>,
    },
    /// Only removes.
    Tombstone,
}

impl std::fmt::Debug for Change {
    // Values never appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Put { value, expiry: None } => write!(f, "Put({} bytes)", value.len()),
            Self::Put { value, expiry: Some(expiry) } => write!(f, "Put({} bytes, until {})", value.len(), expiry.unix_ms()),
            Self::Tombstone => f.write_str("Tombstone"),
        }
    }
}

/// A change of one key, and exactly the puts that it replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// The key.
    pub key: Key,
    /// What is added, if anything.
    pub change: Change,
    /// The puts at this key that are gone from now on, ascending by (replica index, seq) in the block.
    pub superseded: Vec<Dot>,
}

/// A block that this block builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// Its name.
    pub dot: Dot,
    /// Its address.
    pub hash: BlockHash,
}

/// A caller's request that a block answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The caller's id of the request.
    pub request: RequestId,
    /// Indexes of the ops that are its own, ascending.
    pub ops: Vec<u32>,
}

/// A caller's id for a write, so that a retry is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

/// A block's fields before it is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The database it belongs to.
    pub database: DatabaseId,
    /// Its author.
    pub author: Author,
    /// The author's running number, from 1.
    pub seq: u64,
    /// The author's clock.
    pub stamp: Stamp,
    /// The blocks it builds on, in any order.
    pub parents: Vec<Parent>,
    /// The changes, in any order, one per key.
    pub ops: Vec<Op>,
    /// The requests answered, in any order; `ops` index the list after sorting by key.
    pub answers: Vec<Answer>,
}

/// Why bytes are no valid block, or a draft cannot become one. The verdict depends on the bytes alone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Longer than a block may be.
    #[error("the block has {bytes} bytes, the limit is {MAX_BLOCK_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// Not the CBOR of a block.
    #[error("malformed block: {0}")]
    Cbor(#[from] CborError),
    /// Another format version.
    #[error("block format version {found}, this node knows 1")]
    Version {
        /// The version found.
        found: u64,
    },
    /// An op's key is not a key in normal form.
    #[error("op {op}: {source}")]
    Key {
        /// Index of the op.
        op: usize,
        /// What is wrong with the key.
        source: KeyError,
    },
    /// A value that is too long.
    #[error("op {op}: the value has {bytes} bytes, the limit is {MAX_VALUE_BYTES}")]
    ValueTooLarge {
        /// Index of the op.
        op: usize,
        /// Its length.
        bytes: usize,
    },
    /// A list that is too long.
    #[error("{len} {what}, the limit is {limit}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        len: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A rule of the format is broken.
    #[error("invalid block: {0}")]
    Rule(Rule),
    /// The signature is not the author's.
    #[error("the signature is not the author's")]
    Signature,
}

/// The rules of format version 1 beyond types and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Rule {
    /// Seqs start at 1.
    #[error("a seq is 0")]
    SeqZero,
    /// Integers are below 2^63. Only a draft can break this: of received bytes the decoder says so.
    #[error("an integer is 2^63 or more")]
    IntegerTooLarge,
    /// Own earlier blocks have smaller seqs.
    #[error("the block names a seq of its own author that is not smaller than its own")]
    OwnSeqNotSmaller,
    /// The replica table ascends.
    #[error("the replica table is not strictly ascending")]
    TableOrder,
    /// The author is index 0 and not in the table.
    #[error("the replica table names the author")]
    TableHasAuthor,
    /// Each replica of the table is used.
    #[error("a replica of the table is not used")]
    TableUnused,
    /// An index beyond the table.
    #[error("a replica index is beyond the table")]
    ReplicaIndex,
    /// Parents ascend, at most one per replica.
    #[error("the parents are not strictly ascending by replica")]
    ParentOrder,
    /// Superseded dots ascend.
    #[error("superseded dots are not strictly ascending")]
    SupersededOrder,
    /// A block changes something.
    #[error("the block has no op")]
    NoOps,
    /// An op has three items, or four with an expiry.
    #[error("an op has neither 3 nor 4 items")]
    OpItems,
    /// Keys ascend.
    #[error("the ops are not strictly ascending by key")]
    OpOrder,
    /// A tombstone removes something.
    #[error("a tombstone supersedes nothing")]
    EmptyTombstone,
    /// Tombstones do not expire.
    #[error("a tombstone has an expiry")]
    TombstoneExpiry,
    /// An expiry is from 1.
    #[error("an expiry is 0")]
    ExpiryZero,
    /// Answers ascend by request id.
    #[error("the requests are not strictly ascending")]
    RequestOrder,
    /// An answer's op indexes ascend and exist.
    #[error("a request's op indexes are not strictly ascending indexes of ops")]
    RequestOps,
}

impl From<Rule> for BlockError {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

/// A valid block: sealed here, or received and verified. Nothing else makes one. Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Block(Arc<Inner>);

#[derive(PartialEq, Eq)]
struct Inner {
    bytes: Bytes,
    hash: BlockHash,
    replica: ReplicaId,
    fields: Draft,
}

impl Block {
    /// Signs and encodes a draft: puts its lists in order and checks every rule that a received block must keep.
    ///
    /// # Errors
    /// When the draft breaks a rule or a limit.
    pub fn seal(mut draft: Draft, signer: &dyn Signer) -> Result<Self, BlockError> {
        let replica = draft.author.replica(&draft.database);
        codec::sort(&mut draft, replica);
        check(&draft, replica)?;
        let body = codec::encode_body(&draft, replica);
        let signature = signer.sign(&signed_message(body.as_slice()));
        let bytes = codec::finish(&body, &signature);
        if bytes.len() > MAX_BLOCK_BYTES {
            return Err(BlockError::TooLarge { bytes: bytes.len() });
        }
        let hash = BlockHash::of(&bytes);
        Ok(Self(Arc::new(Inner { bytes, hash, replica, fields: draft })))
    }

    /// Checks a received block whole: size, encoding, rules, signature.
    ///
    /// # Errors
    /// When the bytes are not a valid block; the same bytes give the same verdict on every node.
    pub fn verify(bytes: Bytes, verifier: &mut dyn Verifier) -> Result<Self, BlockError> {
        Self::verify_all(vec![bytes], verifier).pop().unwrap_or(Err(BlockError::Signature))
    }

    /// As [`Block::verify`] for many, with the signatures judged as one batch; one verdict for each, in order.
    #[must_use]
    pub fn verify_all(blocks: Vec<Bytes>, verifier: &mut dyn Verifier) -> Vec<Result<Self, BlockError>> {
        let mut signed = Vec::with_capacity(blocks.len());
        let decoded: Vec<Result<Self, BlockError>> = blocks
            .into_iter()
            .map(|bytes| {
                let (block, member) = Self::decode(bytes)?;
                signed.push(member);
                Ok(block)
            })
            .collect();
        let mut verdicts = verifier.verify(&signed).into_iter();
        decoded
            .into_iter()
            .map(|block| {
                let block = block?;
                if verdicts.next().unwrap_or(false) { Ok(block) } else { Err(BlockError::Signature) }
            })
            .collect()
    }

    /// Reads a block from this node's own store, which verified it before it was written: everything but the signature
    /// is checked again, so that damage on disk is found.
    ///
    /// # Errors
    /// When the bytes are not a block.
    pub fn from_store(bytes: Bytes) -> Result<Self, BlockError> {
        Self::decode(bytes).map(|(block, _)| block)
    }

    fn decode(bytes: Bytes) -> Result<(Self, Signed), BlockError> {
        if bytes.len() > MAX_BLOCK_BYTES {
            return Err(BlockError::TooLarge { bytes: bytes.len() });
        }
        let decoded = codec::decode(&bytes)?;
        let fields = decoded.draft;
        check(&fields, decoded.replica)?;
        let signed = Signed {
            public_key: fields.author.public_key,
            signature: decoded.signature,
            message: signed_message(bytes.get(decoded.body).unwrap_or_default()),
        };
        let hash = BlockHash::of(&bytes);
        Ok((Self(Arc::new(Inner { bytes, hash, replica: decoded.replica, fields })), signed))
    }

    /// The block's name.
    #[must_use]
    pub fn dot(&self) -> Dot {
        Dot { replica: self.0.replica, seq: self.0.fields.seq }
    }

    /// The block's address.
    #[must_use]
    pub fn hash(&self) -> BlockHash {
        self.0.hash
    }

    /// The encoded block.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// The database it belongs to.
    #[must_use]
    pub fn database(&self) -> DatabaseId {
        self.0.fields.database
    }

    /// Its author.
    #[must_use]
    pub fn author(&self) -> Author {
        self.0.fields.author
    }

    /// The author's clock.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.0.fields.stamp
    }

    /// The blocks it builds on.
    #[must_use]
    pub fn parents(&self) -> &[Parent] {
        &self.0.fields.parents
    }

    /// The changes, ascending by key.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.0.fields.ops
    }

    /// The dots that must be merged before this block, but for its author's own: parents, and what its ops supersede.
    pub fn builds_on(&self) -> impl Iterator<Item = Dot> + '_ {
        let parents = self.parents().iter().map(|parent| parent.dot);
        parents.chain(self.ops().iter().flat_map(|op| op.superseded.iter().copied()))
    }

    /// The requests it answers, ascending.
    #[must_use]
    pub fn answers(&self) -> &[Answer] {
        &self.0.fields.answers
    }
}

impl std::fmt::Debug for Block {
    // Values never appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({}, {} ops, {} bytes)", self.dot(), self.ops().len(), self.0.bytes.len())
    }
}

fn signed_message(body: &[u8]) -> Vec<u8> {
    let mut message = b"kvdb/block/1".to_vec();
    message.extend_from_slice(&Sha256::digest(body));
    message
}

/// The rules on fields already in order of the wire; types and most limits are the decoder's.
fn check(draft: &Draft, own: ReplicaId) -> Result<(), BlockError> {
    count("parents", draft.parents.len(), MAX_BLOCK_PARENTS)?;
    count("ops", draft.ops.len(), MAX_BLOCK_OPS)?;
    count("requests", draft.answers.len(), MAX_BLOCK_REQUESTS)?;
    if draft.seq == 0 {
        return Err(Rule::SeqZero.into());
    }
    if draft.seq.max(draft.stamp.0).max(draft.author.nonce) > MAX_UINT {
        return Err(Rule::IntegerTooLarge.into());
    }
    for parent in &draft.parents {
        check_dot(&parent.dot, own, draft.seq)?;
    }
    let position = |dot: &Dot| codec::index_order(dot, own);
    if !ascending(draft.parents.iter().map(|parent| codec::index_order(&parent.dot, own).0)) {
        return Err(Rule::ParentOrder.into());
    }
    if draft.ops.is_empty() {
        return Err(Rule::NoOps.into());
    }
    if !ascending(draft.ops.iter().map(|op| &op.key)) {
        return Err(Rule::OpOrder.into());
    }
    for (index, op) in draft.ops.iter().enumerate() {
        count("superseded dots", op.superseded.len(), MAX_OP_SUPERSEDED)?;
        for dot in &op.superseded {
            check_dot(dot, own, draft.seq)?;
        }
        if !ascending(op.superseded.iter().map(position)) {
            return Err(Rule::SupersededOrder.into());
        }
        match &op.change {
            Change::Put { value, .. } if value.len() > MAX_VALUE_BYTES => {
                return Err(BlockError::ValueTooLarge { op: index, bytes: value.len() });
            }
            Change::Tombstone if op.superseded.is_empty() => return Err(Rule::EmptyTombstone.into()),
            Change::Put { .. } | Change::Tombstone => {}
        }
    }
    if !ascending(draft.answers.iter().map(|answer| answer.request)) {
        return Err(Rule::RequestOrder.into());
    }
    for answer in &draft.answers {
        let exists = |op: &u32| usize::try_from(*op).is_ok_and(|op| op < draft.ops.len());
        if !ascending(answer.ops.iter()) || !answer.ops.iter().all(exists) {
            return Err(Rule::RequestOps.into());
        }
    }
    Ok(())
}

fn check_dot(dot: &Dot, own: ReplicaId, seq: u64) -> Result<(), Rule> {
    if dot.seq == 0 {
        return Err(Rule::SeqZero);
    }
    if dot.seq > MAX_UINT {
        return Err(Rule::IntegerTooLarge);
    }
    if dot.replica == own && dot.seq >= seq {
        return Err(Rule::OwnSeqNotSmaller);
    }
    Ok(())
}

fn count(what: &'static str, len: usize, limit: usize) -> Result<(), BlockError> {
    if len > limit { Err(BlockError::TooMany { what, len, limit }) } else { Ok(()) }
}

fn ascending<T: PartialOrd>(items: impl Iterator<Item = T>) -> bool {
    items.is_sorted_by(|a, b| a < b)
}
