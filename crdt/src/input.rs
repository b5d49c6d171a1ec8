//! What comes to a replica's door.

use crate::block::{Block, Change, RequestId};
use crate::clock::Stamp;
use crate::dot::Dot;
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
    /// Drop history from its oldest end. Whether nobody needs it any more is the caller's to know.
    Truncate {
        /// Returned with the answer.
        token: Token,
        /// The last revision to drop.
        through: u64,
        /// Most blocks to drop in this turn.
        limit: usize,
    },
    /// Forget the outcomes of requests, the oldest first: those with an older stamp, and so many that no more than `keep`
    /// are left.
    Forget {
        /// Returned with the answer.
        token: Token,
        /// The first stamp that stays.
        before: Stamp,
        /// How many stay.
        keep: u64,
        /// Most to forget in this turn.
        limit: usize,
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
    /// What more its author has to say; `None` for most ops, which so cost no more than a pointer.
    pub terms: Option<Box<Terms>>,
}

impl LocalOp {
    /// An op without a condition, which replaces whatever is alive.
    #[must_use]
    pub fn new(key: Key, change: Change) -> Self {
        Self { key, change, terms: None }
    }
}

/// When an op is to happen, and what it replaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// What must hold; else the whole write is refused.
    pub condition: Option<Condition>,
    /// The puts that its author has seen: of what is alive it replaces only these. `None` replaces everything.
    pub seen: Option<Vec<Dot>>,
}

/// What must hold at a key before a write. Judged against the state before the write: the ops of one batch do not see each
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Nothing that has not expired is alive.
    IfAbsent,
    /// The winner is the put of this dot.
    IfMatch(Dot),
}

impl Condition {
    /// Whether it holds where this is the winner's dot.
    #[must_use]
    pub fn holds(self, winner: Option<Dot>) -> bool {
        match self {
            Self::IfAbsent => winner.is_none(),
            Self::IfMatch(dot) => winner == Some(dot),
        }
    }
}
