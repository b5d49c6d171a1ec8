//! What comes to a replica's door.

use crate::block::{Block, Change, RequestId};
use crate::key::Key;
use crate::pending::Source;

/// One input of the replica state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Local writes that wait, judged in order and committed as few blocks.
    Write(Vec<LocalWrite>),
    /// Verified blocks of this database from elsewhere, in any order.
    Blocks {
        /// The blocks.
        blocks: Vec<Block>,
        /// Who sent them.
        source: Source,
    },
}

/// The caller's handle for its answer; given by the caller, returned in the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A batch of one caller: becomes visible as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalWrite {
    /// Returned with the answer.
    pub token: Token,
    /// The caller's id of this write: the first outcome is returned to every retry.
    pub request: Option<RequestId>,
    /// The ops; the last one on a key counts.
    pub ops: Vec<LocalOp>,
}

/// One op of a local write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalOp {
    /// The key.
    pub key: Key,
    /// What to do with it.
    pub change: Change,
}
