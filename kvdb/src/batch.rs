//! Writes as callers put them together.

use std::time::Duration;

use bytes::Bytes;
use crdt::limits::MAX_UINT;
use crdt::{Change, Condition, Dot, Durability, Expiry, Key, LocalOp, RequestId, Terms};

use crate::clock::wall_time;

/// One change of one key, and what must hold for it. A [`Batch`] takes it, and it is a batch of its own:
///
/// ```
/// use kvdb::{Batch, Key, Op};
/// let key = Key::parse("/lock")?;
/// let batch = Batch::from(Op::put(key, "mine").if_absent());
/// # Ok::<(), kvdb::KeyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op(LocalOp);

impl Op {
    /// Puts a value.
    #[must_use]
    pub fn put(key: Key, value: impl Into<Bytes>) -> Self {
        Self(LocalOp::new(key, Change::Put { value: value.into(), expiry: None }))
    }

    /// Puts a value that is hidden from reads from a time on, by each reader's own clock, and deleted some time after it.
    #[must_use]
    pub fn put_until(key: Key, value: impl Into<Bytes>, expiry: Expiry) -> Self {
        Self(LocalOp::new(key, Change::Put { value: value.into(), expiry: Some(expiry) }))
    }

    /// As [`Op::put_until`], from now on for so long by this machine's clock, in whole milliseconds. A time of zero has
    /// passed already; one beyond what an expiry can be, 2^63 ms after 1970, ends there.
    #[must_use]
    pub fn put_for(key: Key, value: impl Into<Bytes>, ttl: Duration) -> Self {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let at = wall_time().0.saturating_add(ttl).clamp(1, MAX_UINT);
        Self(LocalOp::new(key, Change::Put { value: value.into(), expiry: Expiry::at_unix_ms(at) }))
    }

    /// Deletes what is at the key.
    #[must_use]
    pub fn delete(key: Key) -> Self {
        Self(LocalOp::new(key, Change::Tombstone))
    }

    /// Only if nothing is at the key, as [`crate::Database::get`] sees it on this node before the write. Else the whole
    /// batch is refused with [`crate::WriteRefusal::Condition`]. Replaces an [`Op::if_match`].
    ///
    /// A guard against writers on this node, and against what has been received from others. No lock: a node that has not
    /// heard of this write may let the same condition through.
    #[must_use]
    pub fn if_absent(self) -> Self {
        self.condition(Condition::IfAbsent)
    }

    /// Only if what is at the key was put by the block of this dot. As [`Op::if_absent`] otherwise, which it replaces.
    #[must_use]
    pub fn if_match(self, dot: Dot) -> Self {
        self.condition(Condition::IfMatch(dot))
    }

    /// Replaces only these of the values at the key, as far as they are there: for a writer that has read elsewhere, or
    /// some time ago, so that what came since stays as a sibling. At most 4,096; none at all makes a put one more sibling. A
    /// delete that finds none of them is [`crate::OpOutcome::Absent`].
    #[must_use]
    pub fn seen(mut self, dots: impl IntoIterator<Item = Dot>) -> Self {
        self.terms().seen = Some(dots.into_iter().collect());
        self
    }

    fn condition(mut self, condition: Condition) -> Self {
        self.terms().condition = Some(condition);
        self
    }

    fn terms(&mut self) -> &mut Terms {
        self.0.terms.get_or_insert_default()
    }
}

/// Writes that become visible together, on every node. Building one costs time linear in its ops.
///
/// ```
/// use kvdb::{Batch, Key};
/// let batch = Batch::new().put(Key::parse("/a")?, "1").delete(Key::parse("/b")?);
/// # Ok::<(), kvdb::KeyError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) ops: Vec<LocalOp>,
    pub(crate) durability: Option<Durability>,
    pub(crate) request: Option<RequestId>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a value. The last op on a key counts.
    #[must_use]
    pub fn put(self, key: Key, value: impl Into<Bytes>) -> Self {
        self.op(Op::put(key, value))
    }

    /// Deletes a key. The last op on a key counts.
    #[must_use]
    pub fn delete(self, key: Key) -> Self {
        self.op(Op::delete(key))
    }

    /// Adds an op. Every condition in a batch counts, and all are judged against the state before it: the ops of a batch do
    /// not see each other.
    #[must_use]
    pub fn op(mut self, op: Op) -> Self {
        self.ops.push(op.0);
        self
    }

    /// Overrides the node's default durability.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Names the write, so that a retry with the same id returns the first outcome instead of writing again, also when a
    /// condition would not hold any more. The id travels with the block, so that any node that has it answers the retry.
    ///
    /// A batch that was refused, or that found nothing to write, is in no block and leaves no record: its retry is judged
    /// anew.
    #[must_use]
    pub fn request(mut self, request: RequestId) -> Self {
        self.request = Some(request);
        self
    }

    /// The ops as a replica takes them, in order.
    #[must_use]
    pub fn ops(&self) -> &[LocalOp] {
        &self.ops
    }

    /// The id given by [`Batch::request`].
    #[must_use]
    pub fn request_id(&self) -> Option<RequestId> {
        self.request
    }

    /// The number of ops.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is no op.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

impl From<LocalOp> for Op {
    fn from(op: LocalOp) -> Self {
        Self(op)
    }
}

impl From<Op> for Batch {
    fn from(op: Op) -> Self {
        Self::new().op(op)
    }
}
