//! What a replica wants done once its writes are committed.

use thiserror::Error;

use crate::block::{Block, BlockError, BlockHash};
use crate::dot::Dot;
use crate::input::Token;
use crate::key::Key;
use crate::limits::{MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES};
use crate::pending::Source;

/// One effect of a committed step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// A local write is committed.
    Written {
        /// The caller's handle.
        token: Token,
        /// What became of it.
        outcome: WriteOutcome,
    },
    /// A local write was refused and left no trace.
    Refused {
        /// The caller's handle.
        token: Token,
        /// Why.
        refusal: WriteRefusal,
    },
    /// A local block was sealed and merged: publish it.
    Sealed {
        /// Its log revision.
        revision: u64,
        /// The block.
        block: Block,
    },
    /// A received block was merged.
    Merged {
        /// Its log revision.
        revision: u64,
        /// Its name.
        dot: Dot,
        /// Who sent it.
        source: Source,
    },
    /// A received block was merged already.
    Duplicate {
        /// Its name.
        dot: Dot,
        /// Who sent it.
        source: Source,
    },
    /// A received block waits for another.
    Held {
        /// Its name.
        dot: Dot,
        /// A block that it waits for.
        missing: Dot,
        /// Who sent it.
        source: Source,
    },
    /// A received block was dropped, because the pending pool or the sender's share of it is full; sync brings it again.
    Dropped {
        /// Its name.
        dot: Dot,
        /// Who sent it.
        source: Source,
    },
    /// History was dropped.
    Truncated {
        /// The caller's handle.
        token: Token,
        /// How many blocks.
        blocks: usize,
        /// Their bytes.
        bytes: u64,
        /// The revision up to which nothing is kept now.
        log_floor: u64,
    },
    /// Outcomes of requests were forgotten.
    Forgotten {
        /// The caller's handle.
        token: Token,
        /// How many.
        requests: usize,
    },
    /// Two blocks bear one name: the first merged stays, the other is ignored.
    Disagreement {
        /// The name.
        dot: Dot,
        /// The block that stays.
        kept: BlockHash,
        /// The other one, as sent or as named by a child.
        other: BlockHash,
        /// Who sent the other one, or the child that names it.
        source: Source,
    },
}

/// What a local write did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOutcome {
    /// The block that has it; `None` when there was nothing to write.
    pub dot: Option<Dot>,
    /// One outcome for each op, in the caller's order.
    pub ops: Vec<OpOutcome>,
}

/// What one op of a local write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpOutcome {
    /// The value was put.
    Put,
    /// What was at the key is deleted.
    Deleted,
    /// There was nothing at the key to delete; nothing was written.
    Absent,
    /// A later op of the same batch on the same key counts instead.
    Overridden,
    /// The value was put, and replaced at once by another caller's put that waited at the same time and shares the
    /// block: the dot stands for that other value.
    Replaced,
    /// The write is a retry and its first attempt, answered by the outcome's dot, wrote it.
    Repeated,
}

/// Why a local write was refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteRefusal {
    /// More ops than a block may hold.
    #[error("the batch has {ops} ops, the limit is {MAX_BLOCK_OPS}")]
    TooManyOps {
        /// Its ops.
        ops: usize,
    },
    /// A value longer than a value may be.
    #[error("the value has {bytes} bytes, the limit is {MAX_VALUE_BYTES}")]
    ValueTooLarge {
        /// Its length.
        bytes: usize,
    },
    /// More bytes than a block may hold.
    #[error("the batch would make a block of up to {bytes} bytes, the limit is {MAX_BLOCK_BYTES}")]
    BatchTooLarge {
        /// An upper bound of the block's size.
        bytes: usize,
    },
    /// More dots seen than an op may supersede.
    #[error("an op names {dots} dots as seen, the limit is {MAX_OP_SUPERSEDED}")]
    TooManySeen {
        /// How many it names.
        dots: usize,
    },
    /// A condition does not hold.
    #[error("the condition on {key} does not hold: {}", at(current.as_ref()))]
    Condition {
        /// The key of the first op whose condition does not hold.
        key: Key,
        /// The winner there; `None` when nothing is there.
        current: Option<Dot>,
    },
    /// The block could not be sealed.
    #[error("the block cannot be sealed: {0}")]
    Block(#[from] BlockError),
}

fn at(current: Option<&Dot>) -> String {
    current.map_or_else(|| "nothing is there".to_owned(), |dot| format!("the value of {dot} is there"))
}
