//! The bytes of a block, format version 1: a DAG-CBOR array of ten items.

use std::ops::Range;

use bytes::Bytes;

use crate::block::{Answer, BlockError, BlockHash, Change, Draft, Expiry, Op, Parent, RequestId, Rule};
use crate::clock::Stamp;
use crate::codec::cbor::{Reader, Writer};
use crate::database::DatabaseId;
use crate::dot::{Author, Dot, ReplicaId};
use crate::key::Key;
use crate::limits::{
    MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_BLOCK_PARENTS, MAX_BLOCK_REQUESTS, MAX_KEY_BYTES, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES,
};

const VERSION: u64 = 1;
/// One header byte of the array of ten.
const ARRAY_HEAD: [u8; 1] = [0x8a];
/// Tag 42, a byte string of 37: identity multibase, CID version 1, DAG-CBOR, sha2-256 of 32 bytes.
const LINK_PREFIX: [u8; 9] = [0xd8, 0x2a, 0x58, 0x25, 0x00, 0x01, 0x71, 0x12, 0x20];
/// Most bytes that the array head and the signature item add around the body.
pub(crate) const FRAME_BYTES: usize = 1 + 2 + 64;

pub(crate) struct Decoded {
    pub(crate) draft: Draft,
    pub(crate) replica: ReplicaId,
    pub(crate) signature: [u8; 64],
    /// Where the signed items stand.
    pub(crate) body: Range<usize>,
}

/// The order of dots in a block: the author is index 0, the others follow in the table's order.
pub(crate) fn index_order(dot: &Dot, own: ReplicaId) -> (Option<ReplicaId>, u64) {
    ((dot.replica != own).then_some(dot.replica), dot.seq)
}

/// Puts all lists into the order of the wire. Answers name ops by index, so ops must come in order of keys already
/// when there are answers; sorting a sorted list changes nothing.
pub(crate) fn sort(draft: &mut Draft, own: ReplicaId) {
    draft.parents.sort_unstable_by_key(|parent| index_order(&parent.dot, own));
    draft.ops.sort_by(|a, b| a.key.cmp(&b.key));
    for op in &mut draft.ops {
        op.superseded.sort_unstable_by_key(|dot| index_order(dot, own));
    }
    draft.answers.sort_unstable_by_key(|answer| answer.request);
}

/// Encodes the items from the version up to the requests, without the array's head.
pub(crate) fn encode_body(draft: &Draft, own: ReplicaId) -> Writer {
    let table = table(draft, own);
    let index = |replica: ReplicaId| -> u64 {
        if replica == own { 0 } else { table.binary_search(&replica).map_or(0, |at| at as u64 + 1) }
    };
    let mut out = Writer::with_capacity(body_bytes(draft, table.len()));
    out.uint(VERSION).bytes(&draft.database.0);
    out.array(2).bytes(&draft.author.public_key).uint(draft.author.nonce);
    out.array(table.len());
    for replica in &table {
        out.bytes(&replica.0);
    }
    out.uint(draft.seq).uint(draft.stamp.0);
    out.array(draft.parents.len());
    for Parent { dot, hash } in &draft.parents {
        out.array(3).uint(index(dot.replica)).uint(dot.seq).raw(&LINK_PREFIX).raw(&hash.0);
    }
    out.array(draft.ops.len());
    for op in &draft.ops {
        let expiry = match &op.change {
            Change::Put { expiry, .. } => *expiry,
            Change::Tombstone => None,
        };
        out.array(if expiry.is_some() { 4 } else { 3 }).text(op.key.as_str());
        match &op.change {
            Change::Put { value, .. } => out.bytes(value),
            Change::Tombstone => out.null(),
        };
        out.array(op.superseded.len());
        for dot in &op.superseded {
            out.array(2).uint(index(dot.replica)).uint(dot.seq);
        }
        if let Some(expiry) = expiry {
            out.uint(expiry.unix_ms());
        }
    }
    out.array(draft.answers.len());
    for Answer { request, ops } in &draft.answers {
        out.array(2).bytes(&request.0).array(ops.len());
        for op in ops {
            out.uint(u64::from(*op));
        }
    }
    out
}

/// Puts the array's head before the body and the signature after it.
pub(crate) fn finish(body: &Writer, signature: &[u8; 64]) -> Bytes {
    let mut out = Writer::with_capacity(body.as_slice().len() + FRAME_BYTES);
    out.raw(&ARRAY_HEAD).raw(body.as_slice()).bytes(signature);
    out.into_bytes()
}

/// Decodes a block. Order and meaning of the fields are checked by the caller, the replica table here.
pub(crate) fn decode(bytes: &Bytes) -> Result<Decoded, BlockError> {
    let mut input = Reader::new(bytes.clone());
    input.literal("an array of 10 items", &ARRAY_HEAD)?;
    let start = input.offset();
    let version = input.uint("the format version")?;
    if version != VERSION {
        return Err(BlockError::Version { found: version });
    }
    let database = DatabaseId(input.bytes_of("a database id of 32 bytes")?);
    input.array_of("an author of 2 items", 2)?;
    let author = Author { public_key: input.bytes_of("a public key of 32 bytes")?, nonce: input.uint("a nonce")? };
    let own = author.replica(&database);
    let mut table = Table::read(&mut input, own)?;
    let seq = input.uint("a seq")?;
    let stamp = Stamp(input.uint("a stamp")?);
    let parents = read_parents(&mut input, &mut table)?;
    let ops = read_ops(&mut input, &mut table)?;
    let answers = read_answers(&mut input)?;
    let body = start..input.offset();
    let signature = input.bytes_of("a signature of 64 bytes")?;
    input.finish()?;
    if table.used.contains(&false) {
        return Err(Rule::TableUnused.into());
    }
    let draft = Draft { database, author, seq, stamp, parents, ops, answers };
    Ok(Decoded { draft, replica: own, signature, body })
}

/// An upper bound of the bytes that an op adds to a block, its replica table entries included.
pub(crate) fn op_bytes(op: &Op) -> usize {
    let value = match &op.change {
        Change::Put { value, .. } => value.len() + 5,
        Change::Tombstone => 1,
    };
    // List head, key head, expiry; per dot a list head, an index up to 2^32, a seq, and a table entry.
    1 + 3 + op.key.as_bytes().len() + value + 9 + 3 + op.superseded.len() * (1 + 5 + 9 + 17)
}

/// An upper bound of the bytes of a block without ops and answers.
pub(crate) const EMPTY_BLOCK_BYTES: usize = FRAME_BYTES + 128 + MAX_BLOCK_PARENTS * (1 + 5 + 9 + 9 + 32 + 17);
/// An upper bound of the bytes of an answer without its op indexes, and of each index.
pub(crate) const ANSWER_BYTES: usize = 1 + 17 + 5;
pub(crate) const ANSWER_OP_BYTES: usize = 5;

fn body_bytes(draft: &Draft, table: usize) -> usize {
    let ops: usize = draft.ops.iter().map(|op| op_bytes(op) - op.superseded.len() * 17).sum();
    let answers: usize = draft.answers.iter().map(|answer| ANSWER_BYTES + ANSWER_OP_BYTES * answer.ops.len()).sum();
    128 + table * 17 + draft.parents.len() * 56 + ops + answers
}

/// The replicas that the block names besides its author, ascending.
fn table(draft: &Draft, own: ReplicaId) -> Vec<ReplicaId> {
    let superseded = draft.ops.iter().flat_map(|op| &op.superseded);
    let mut table: Vec<ReplicaId> =
        draft.parents.iter().map(|parent| &parent.dot).chain(superseded).map(|dot| dot.replica).collect();
    table.retain(|replica| *replica != own);
    table.sort_unstable();
    table.dedup();
    table
}

/// The replica table while a block is read, with a mark for each replica that was named.
struct Table {
    own: ReplicaId,
    replicas: Vec<ReplicaId>,
    used: Vec<bool>,
}

impl Table {
    fn read(input: &mut Reader, own: ReplicaId) -> Result<Self, BlockError> {
        // Each replica takes 17 bytes, so that more than this cannot follow.
        let len = input.array("a replica table", MAX_BLOCK_BYTES / 17)?;
        let mut replicas = Vec::with_capacity(len.min(input.left() / 17));
        for _ in 0..len {
            let replica = ReplicaId(input.bytes_of("a replica id of 16 bytes")?);
            if replica == own {
                return Err(Rule::TableHasAuthor.into());
            }
            if replicas.last().is_some_and(|last| *last >= replica) {
                return Err(Rule::TableOrder.into());
            }
            replicas.push(replica);
        }
        Ok(Self { own, used: vec![false; replicas.len()], replicas })
    }

    fn dot(&mut self, input: &mut Reader) -> Result<Dot, BlockError> {
        let index = input.uint("a replica index")?;
        let replica = if index == 0 {
            self.own
        } else {
            let at = usize::try_from(index - 1).map_err(|_| Rule::ReplicaIndex)?;
            *self.used.get_mut(at).ok_or(Rule::ReplicaIndex)? = true;
            *self.replicas.get(at).ok_or(Rule::ReplicaIndex)?
        };
        Ok(Dot { replica, seq: input.uint("a seq")? })
    }
}

fn read_parents(input: &mut Reader, table: &mut Table) -> Result<Vec<Parent>, BlockError> {
    let len = input.array("a list of parents", MAX_BLOCK_PARENTS)?;
    let mut parents = Vec::with_capacity(len);
    for _ in 0..len {
        input.array_of("a parent of 3 items", 3)?;
        let dot = table.dot(input)?;
        input.literal("a link", &LINK_PREFIX)?;
        parents.push(Parent { dot, hash: BlockHash(input.raw()?) });
    }
    Ok(parents)
}

fn read_ops(input: &mut Reader, table: &mut Table) -> Result<Vec<Op>, BlockError> {
    let len = input.array("a list of ops", MAX_BLOCK_OPS)?;
    // The smallest op is a list head, a key of two bytes with its head, a value and a list of dots: the bound on what
    // is reserved keeps memory within a few times the input.
    let mut ops = Vec::with_capacity(len.min(input.left() / 32 + 1));
    for index in 0..len {
        let items = input.array("an op of 3 or 4 items", 4)?;
        let key = input.text("a key", MAX_KEY_BYTES)?;
        let key = Key::from_normal(&key).map_err(|source| BlockError::Key { op: index, source })?;
        let value = input.bytes_or_null("a value or null", MAX_VALUE_BYTES)?;
        let dots = input.array("a list of superseded dots", MAX_OP_SUPERSEDED)?;
        let mut superseded = Vec::with_capacity(dots.min(input.left() / 3));
        for _ in 0..dots {
            input.array_of("a dot of 2 items", 2)?;
            superseded.push(table.dot(input)?);
        }
        let expiry = match items {
            3 => None,
            4 => Some(Expiry::at_unix_ms(input.uint("an expiry")?).ok_or(Rule::ExpiryZero)?),
            _ => return Err(Rule::OpItems.into()),
        };
        let change = match (value, expiry) {
            (Some(value), expiry) => Change::Put { value, expiry },
            (None, None) => Change::Tombstone,
            (None, Some(_)) => return Err(Rule::TombstoneExpiry.into()),
        };
        ops.push(Op { key, change, superseded });
    }
    Ok(ops)
}

fn read_answers(input: &mut Reader) -> Result<Vec<Answer>, BlockError> {
    let len = input.array("a list of requests", MAX_BLOCK_REQUESTS)?;
    let mut answers = Vec::with_capacity(len.min(input.left() / 19 + 1));
    for _ in 0..len {
        input.array_of("a request of 2 items", 2)?;
        let request = RequestId(input.bytes_of("a request id of 16 bytes")?);
        let indexes = input.array("a list of op indexes", MAX_BLOCK_OPS)?;
        let mut ops = Vec::with_capacity(indexes);
        for _ in 0..indexes {
            ops.push(u32::try_from(input.uint("an op index")?).map_err(|_| Rule::RequestOps)?);
        }
        answers.push(Answer { request, ops });
    }
    Ok(answers)
}
