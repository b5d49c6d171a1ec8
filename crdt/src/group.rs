//! Group commit: local writes that wait together become one block where they can.

use std::collections::BTreeMap;

use crate::block::{Answer, Change, Op, RequestId};
use crate::clock::WallTime;
use crate::codec::block::{ANSWER_BYTES, ANSWER_OP_BYTES, EMPTY_BLOCK_BYTES, op_bytes};
use crate::dot::Dot;
use crate::effect::{OpOutcome, WriteRefusal};
use crate::input::{LocalOp, LocalWrite, Token};
use crate::key::Key;
use crate::limits::{MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_BLOCK_REQUESTS, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES};
use crate::mutation::{Mutation, active};
use crate::row::Row;
use crate::step::Turn;
use crate::store::View;

/// The block being gathered.
#[derive(Debug, Default)]
pub(crate) struct Group {
    ops: BTreeMap<Key, Op>,
    bytes: usize,
    answers: BTreeMap<RequestId, Vec<Key>>,
    /// Callers waiting for this block.
    callers: Vec<Caller>,
}

#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) token: Token,
    pub(crate) ops: Vec<OpOutcome>,
}

/// A write judged against the group.
pub(crate) enum Judged {
    /// It can join.
    Joins(Plan),
    /// It does not fit what is gathered: seal that first, then judge again.
    Closes,
    /// It can never be written.
    Refused(WriteRefusal),
}

/// What a write would add to the group.
pub(crate) struct Plan {
    ops: Vec<Op>,
    outcomes: Vec<OpOutcome>,
    bytes: usize,
}

impl Plan {
    /// Whether the write changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn into_outcomes(self) -> Vec<OpOutcome> {
        self.outcomes
    }
}

/// The parts of a sealed group.
pub(crate) struct Gathered {
    pub(crate) ops: Vec<Op>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) callers: Vec<Caller>,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn answers(&self, request: &RequestId) -> bool {
        self.answers.contains_key(request)
    }

    /// Judges a write against the rows and what earlier writes of the group leave of them.
    pub(crate) fn judge<V: View>(
        &self,
        write: &LocalWrite,
        view: &V,
        turn: &mut Turn,
        now: WallTime,
    ) -> Result<Judged, V::Error> {
        if let Some(bytes) = write.ops.iter().map(value_len).find(|len| *len > MAX_VALUE_BYTES) {
            return Ok(Judged::Refused(WriteRefusal::ValueTooLarge { bytes }));
        }
        // Where each key stands last; a single op, the common write, needs no such list.
        let several = if write.ops.len() > 1 { write.ops.as_slice() } else { &[] };
        let last: BTreeMap<&Key, usize> = several.iter().enumerate().map(|(index, op)| (&op.key, index)).collect();
        if last.len() > MAX_BLOCK_OPS {
            return Ok(Judged::Refused(WriteRefusal::TooManyOps { ops: last.len() }));
        }
        let mut plan =
            Plan { ops: Vec::with_capacity(last.len().max(1)), outcomes: Vec::with_capacity(write.ops.len()), bytes: 0 };
        let mut added = 0;
        for (index, op) in write.ops.iter().enumerate() {
            if last.get(&op.key).is_some_and(|at| *at != index) {
                plan.outcomes.push(OpOutcome::Overridden);
                continue;
            }
            let row = &turn.row(view, &op.key)?.row;
            let mine = self.ops.get(&op.key);
            if op.change == Change::Tombstone {
                let present = match mine.map(|op| &op.change) {
                    Some(Change::Put { expiry, .. }) => expiry.is_none_or(|expiry| expiry.unix_ms() > now.0),
                    Some(Change::Tombstone) => false,
                    None => row.winner(now).is_some(),
                };
                if !present {
                    plan.outcomes.push(OpOutcome::Absent);
                    continue;
                }
                if row.is_empty() {
                    // Only a put of this very group is there: the tombstone would have nothing to supersede.
                    return Ok(Judged::Closes);
                }
                plan.outcomes.push(OpOutcome::Deleted);
            } else {
                plan.outcomes.push(OpOutcome::Put);
            }
            let op = Op { key: op.key.clone(), change: op.change.clone(), superseded: seen(row) };
            plan.bytes += op_bytes(&op);
            added += usize::from(mine.is_none());
            plan.ops.push(op);
        }
        if plan.ops.is_empty() {
            return Ok(Judged::Joins(plan));
        }
        if write.request.is_some() {
            plan.bytes += ANSWER_BYTES + ANSWER_OP_BYTES * plan.ops.len();
        }
        let bytes = EMPTY_BLOCK_BYTES + self.bytes + plan.bytes;
        if bytes > MAX_BLOCK_BYTES || self.ops.len() + added > MAX_BLOCK_OPS || self.answers.len() >= MAX_BLOCK_REQUESTS {
            let refused = Judged::Refused(WriteRefusal::BatchTooLarge { bytes });
            return Ok(if self.is_empty() { refused } else { Judged::Closes });
        }
        Ok(Judged::Joins(plan))
    }

    /// Takes a judged write in.
    pub(crate) fn join(&mut self, plan: Plan, token: Token, request: Option<RequestId>) {
        // The sizes of overridden ops stay counted: an upper bound is enough.
        self.bytes += plan.bytes;
        if let Some(request) = request {
            self.answers.insert(request, plan.ops.iter().map(|op| op.key.clone()).collect());
        }
        for op in plan.ops {
            self.ops.insert(op.key.clone(), op);
        }
        self.callers.push(Caller { token, ops: plan.outcomes });
    }

    /// Takes the group apart to seal it, leaving an empty one. A request's ops that a later write of the group has
    /// overridden stay its own: the block has one op for the key, and it answers both.
    pub(crate) fn take(&mut self) -> Gathered {
        let Self { ops, answers, callers, .. } = std::mem::take(self);
        let index: BTreeMap<&Key, u32> = ops.keys().zip(0..).collect();
        let answers = answers
            .into_iter()
            .map(|(request, keys)| {
                let mut ops: Vec<u32> = keys.iter().filter_map(|key| index.get(key).copied()).collect();
                ops.sort_unstable();
                Answer { request, ops }
            })
            .collect();
        Gathered { answers, callers, ops: ops.into_values().collect() }
    }
}

/// What a write at this row supersedes: everything alive, the greatest first, up to what one op may name.
pub(crate) fn seen(row: &Row) -> Vec<Dot> {
    let forgotten = usize::from(active(Mutation::SeenForgotten) && row.siblings().len() > 1);
    row.dots().skip(forgotten).take(MAX_OP_SUPERSEDED).collect()
}

fn value_len(op: &LocalOp) -> usize {
    match &op.change {
        Change::Put { value, .. } => value.len(),
        Change::Tombstone => 0,
    }
}
