//! Blocks written by hand, so that every form that the format forbids can be made.

use bytes::Bytes;
use crdt::{Author, Ed25519Signer, ReplicaId, Signer};
use sha2::{Digest, Sha256};

use crate::world::database;

/// A CBOR item, or bytes that stand in its place.
#[derive(Debug, Clone)]
pub enum Item {
    Uint(u64),
    Bytes(Vec<u8>),
    Text(Vec<u8>),
    Array(Vec<Item>),
    Null,
    Raw(Vec<u8>),
}

/// The head of an item, in its shortest form.
pub fn head(major: u8, value: u64) -> Vec<u8> {
    let be = value.to_be_bytes();
    let (info, tail) = match value {
        0..24 => return vec![major << 5 | be[7]],
        24..0x100 => (24, &be[7..]),
        0x100..0x1_0000 => (25, &be[6..]),
        0x1_0000..0x1_0000_0000 => (26, &be[4..]),
        _ => (27, &be[..]),
    };
    [&[major << 5 | info], tail].concat()
}

/// The head of an item in a form of `width` bytes, whether it is the shortest or not.
pub fn wide_head(major: u8, value: u64, width: usize) -> Vec<u8> {
    let info = [24, 25, 26, 27][width.trailing_zeros() as usize];
    [&[major << 5 | info], &value.to_be_bytes()[8 - width..]].concat()
}

impl Item {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Uint(value) => head(0, *value),
            Self::Bytes(bytes) => [head(2, bytes.len() as u64), bytes.clone()].concat(),
            Self::Text(bytes) => [head(3, bytes.len() as u64), bytes.clone()].concat(),
            Self::Array(items) => [head(4, items.len() as u64), items.iter().flat_map(Self::encode).collect()].concat(),
            Self::Null => vec![0xf6],
            Self::Raw(bytes) => bytes.clone(),
        }
    }

    /// The items of a list.
    pub fn items(&mut self) -> &mut Vec<Item> {
        let Self::Array(items) = self else { panic!("no list: {self:?}") };
        items
    }

    /// The same item with its head in a longer form than needed.
    pub fn widened(&self, width: usize) -> Self {
        let bytes = match self {
            Self::Uint(value) => wide_head(0, *value, width),
            Self::Bytes(bytes) => [wide_head(2, bytes.len() as u64, width), bytes.clone()].concat(),
            Self::Text(bytes) => [wide_head(3, bytes.len() as u64, width), bytes.clone()].concat(),
            Self::Array(items) => {
                [wide_head(4, items.len() as u64, width), items.iter().flat_map(Self::encode).collect()].concat()
            }
            Self::Null | Self::Raw(_) => panic!("no head to widen"),
        };
        Self::Raw(bytes)
    }

    /// The same item with an indefinite length.
    pub fn indefinite(&self) -> Self {
        let (head, body) = match self {
            Self::Bytes(_) => (0x5f, self.encode()),
            Self::Text(_) => (0x7f, self.encode()),
            Self::Array(items) => (0x9f, items.iter().flat_map(Self::encode).collect()),
            _ => panic!("no length"),
        };
        Self::Raw([vec![head], body, vec![0xff]].concat())
    }
}

pub fn uint(value: u64) -> Item {
    Item::Uint(value)
}

pub fn bytes(bytes: &[u8]) -> Item {
    Item::Bytes(bytes.to_vec())
}

pub fn text(text: &str) -> Item {
    Item::Text(text.as_bytes().to_vec())
}

pub fn list(items: impl IntoIterator<Item = Item>) -> Item {
    Item::Array(items.into_iter().collect())
}

pub fn dot(index: u64, seq: u64) -> Item {
    list([uint(index), uint(seq)])
}

pub const LINK: [u8; 9] = [0xd8, 0x2a, 0x58, 0x25, 0x00, 0x01, 0x71, 0x12, 0x20];

pub fn parent(index: u64, seq: u64) -> Item {
    parent_by(index, seq, &LINK)
}

/// A parent whose link begins with these bytes.
pub fn parent_by(index: u64, seq: u64, link: &[u8]) -> Item {
    list([uint(index), uint(seq), Item::Raw([link, &[0xcc; 32]].concat())])
}

pub fn op(key: &str, value: Item, superseded: impl IntoIterator<Item = Item>) -> Item {
    list([text(key), value, list(superseded)])
}

/// A whole block: the fields by their number in the format's table, and what surrounds them.
#[derive(Debug, Clone)]
pub struct Form {
    pub head: Vec<u8>,
    /// Fields 0 to 8.
    pub fields: Vec<Item>,
    /// What is signed: a domain and the hash of the fields.
    pub domain: Vec<u8>,
    /// Stands in place of the signature.
    pub signature: Option<Item>,
    pub tail: Vec<u8>,
    pub seed: [u8; 32],
}

impl Form {
    /// A valid block that has everything: two foreign replicas, parents, a put, a tombstone, an expiry, a request.
    pub fn rich() -> Self {
        let seed = [7; 32];
        let public_key = Ed25519Signer::from_seed(seed).public_key();
        let fields = vec![
            uint(1),
            bytes(&database().0),
            list([bytes(&public_key), uint(1_000)]),
            list([bytes(&[0x11; 16]), bytes(&[0x22; 16])]),
            uint(500),
            uint(1 << 40),
            list([parent(0, 499), parent(1, 70)]),
            list([
                op("/a", bytes(b"value"), [dot(0, 30), dot(2, 1)]),
                op("/b", Item::Null, [dot(1, 2)]),
                list([text("/c"), bytes(b""), list([]), uint(9_000)]),
            ]),
            list([list([bytes(&[0x33; 16]), list([uint(0), uint(2)])]), list([bytes(&[0x44; 16]), list([uint(1)])])]),
        ];
        Self { head: vec![0x8a], fields, domain: b"kvdb/block/1".to_vec(), signature: None, tail: Vec::new(), seed }
    }

    /// The rich block with one field replaced.
    pub fn with(field: usize, item: Item) -> Self {
        let mut form = Self::rich();
        form.fields[field] = item;
        form
    }

    /// The rich block with one field changed.
    pub fn changed(field: usize, change: impl FnOnce(&mut Item)) -> Self {
        let mut form = Self::rich();
        change(&mut form.fields[field]);
        form
    }

    /// A block that names nobody else, with these ops.
    pub fn lone(ops: impl IntoIterator<Item = Item>) -> Self {
        let mut form = Self::rich();
        for field in [3, 6, 8] {
            form.fields[field] = list([]);
        }
        form.fields[7] = list(ops);
        form
    }

    pub fn body(&self) -> Vec<u8> {
        self.fields.iter().flat_map(Item::encode).collect()
    }

    pub fn sign(&self, body: &[u8]) -> [u8; 64] {
        let message = [self.domain.as_slice(), &Sha256::digest(body)].concat();
        Ed25519Signer::from_seed(self.seed).sign(&message)
    }

    pub fn bytes(&self) -> Bytes {
        let body = self.body();
        let signature = self.signature.clone().unwrap_or_else(|| bytes(&self.sign(&body)));
        [self.head.as_slice(), &body, &signature.encode(), &self.tail].concat().into()
    }

    /// The id under which the form's author writes.
    pub fn replica(&self) -> ReplicaId {
        let public_key = Ed25519Signer::from_seed(self.seed).public_key();
        Author { public_key, nonce: 1_000 }.replica(&database())
    }
}
