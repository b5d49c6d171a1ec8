//! Group commit: local writes that wait together become one block where they can.

use std::collections::{BTreeMap, BTreeSet};

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
    ops: BTreeMap<Key, Joined>,
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

/// An op of the group.
#[derive(Debug)]
struct Joined {
    op: Op,
    terms: Kind,
    /// Whose it is, and which of that write's ops.
    caller: usize,
    index: usize,
}

/// What an op's terms ask of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing: a later op on the key may take its place.
    Plain,
    /// Nobody else's value may come to stand under its dot: who compares and then writes compares by dot.
    Conditional,
    /// As `Conditional`, and it replaces what it names and no more.
    Seen,
}

/// A write judged against the group.
pub(crate) enum Judged {
    /// It can join.
    Joins(Plan),
    /// It does not fit what is gathered: seal that first, then judge again.
    Closes,
    /// It can never be written, or not now.
    Refused(WriteRefusal),
}

/// What a write would add to the group.
pub(crate) struct Plan {
    /// Each op with its place among the write's own.
    ops: Vec<(usize, Op, Kind)>,
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
    /// Ops at whose keys more may be alive than one op can supersede.
    pub(crate) crowded: Vec<(Key, Change)>,
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
        if let Some(refusal) = write.ops.iter().find_map(too_large) {
            return Ok(Judged::Refused(refusal));
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
            let overridden = last.get(&op.key).is_some_and(|at| *at != index);
            if overridden && op.terms.is_none() {
                plan.outcomes.push(OpOutcome::Overridden);
                continue;
            }
            let row = &turn.row(view, &op.key)?.row;
            let mine = self.ops.get(&op.key);
            if let Some(verdict) = in_the_way(op, row, mine, now) {
                return Ok(verdict);
            }
            if overridden {
                plan.outcomes.push(OpOutcome::Overridden);
                continue;
            }
            let Some((outcome, superseded, kind)) = decide(op, row, mine, now) else { return Ok(Judged::Closes) };
            plan.outcomes.push(outcome);
            if outcome != OpOutcome::Absent {
                let op = Op { key: op.key.clone(), change: op.change.clone(), superseded };
                plan.bytes += op_bytes(&op);
                added += usize::from(mine.is_none());
                plan.ops.push((index, op, kind));
            }
        }
        Ok(self.fits(write, plan, added))
    }

    /// Whether there is room for a plan that adds so many keys.
    fn fits(&self, write: &LocalWrite, mut plan: Plan, added: usize) -> Judged {
        if plan.ops.is_empty() {
            return Judged::Joins(plan);
        }
        if write.request.is_some() {
            plan.bytes += ANSWER_BYTES + ANSWER_OP_BYTES * plan.ops.len();
        }
        let bytes = EMPTY_BLOCK_BYTES + self.bytes + plan.bytes;
        if bytes > MAX_BLOCK_BYTES || self.ops.len() + added > MAX_BLOCK_OPS || self.answers.len() >= MAX_BLOCK_REQUESTS {
            let refused = Judged::Refused(WriteRefusal::BatchTooLarge { bytes });
            return if self.is_empty() { refused } else { Judged::Closes };
        }
        Judged::Joins(plan)
    }

    /// Takes a judged write in.
    pub(crate) fn join(&mut self, plan: Plan, token: Token, request: Option<RequestId>) {
        // The sizes of overridden ops stay counted: an upper bound is enough.
        self.bytes += plan.bytes;
        if let Some(request) = request {
            self.answers.insert(request, plan.ops.iter().map(|(_, op, _)| op.key.clone()).collect());
        }
        let caller = self.callers.len();
        for (index, op, terms) in plan.ops {
            let puts = matches!(op.change, Change::Put { .. });
            let before = self.ops.insert(op.key.clone(), Joined { op, terms, caller, index });
            // Whoever put the value that is replaced must not take the dot for its own value's.
            if let Some(Joined { op: Op { change: Change::Put { .. }, .. }, caller, index, .. }) = before
                && puts
                && let Some(outcome) = self.callers.get_mut(caller).and_then(|caller| caller.ops.get_mut(index))
            {
                *outcome = OpOutcome::Replaced;
            }
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
        let crowded = ops
            .values()
            .filter(|joined| joined.terms != Kind::Seen && joined.op.superseded.len() == MAX_OP_SUPERSEDED)
            .map(|joined| (joined.op.key.clone(), joined.op.change.clone()))
            .collect();
        Gathered { answers, callers, crowded, ops: ops.into_values().map(|joined| joined.op).collect() }
    }
}

/// What a write at this row supersedes: everything alive, the greatest first, up to what one op may name.
pub(crate) fn seen_all(row: &Row) -> Vec<Dot> {
    let forgotten = usize::from(active(Mutation::SeenForgotten) && row.siblings().len() > 1);
    row.dots().skip(forgotten).take(MAX_OP_SUPERSEDED).collect()
}

/// What is alive of the dots that a write names.
fn seen_among(row: &Row, named: &[Dot]) -> Vec<Dot> {
    if named.len() <= 8 {
        return row.dots().filter(|dot| named.contains(dot)).collect();
    }
    let named: BTreeSet<&Dot> = named.iter().collect();
    row.dots().filter(|dot| named.contains(dot)).collect()
}

/// What keeps an op from being decided together with the group, or at all.
fn in_the_way(op: &LocalOp, row: &Row, mine: Option<&Joined>, now: WallTime) -> Option<Judged> {
    // The dot of what the group has at this key is not known before it is sealed.
    if mine.is_some_and(|mine| mine.terms != Kind::Plain || op.terms.is_some()) {
        return Some(Judged::Closes);
    }
    let condition = op.terms.as_ref()?.condition?;
    let current = row.winner(now).map(|winner| winner.dot);
    let refused = || Judged::Refused(WriteRefusal::Condition { key: op.key.clone(), current });
    (!condition.holds(current) && !active(Mutation::ConditionIgnored)).then(refused)
}

/// What an op does and what it supersedes; `None` when that is for the next block to say.
fn decide(op: &LocalOp, row: &Row, mine: Option<&Joined>, now: WallTime) -> Option<(OpOutcome, Vec<Dot>, Kind)> {
    let seen = op.terms.as_ref().and_then(|terms| terms.seen.as_deref());
    let superseded = seen.filter(|_| !active(Mutation::SeenIgnored)).map_or_else(|| seen_all(row), |dots| seen_among(row, dots));
    let kind = match (&op.terms, seen) {
        (None, _) => Kind::Plain,
        (Some(_), None) => Kind::Conditional,
        (Some(_), Some(_)) => Kind::Seen,
    };
    if matches!(op.change, Change::Put { .. }) {
        return Some((OpOutcome::Put, superseded, kind));
    }
    let present = match (seen, mine.map(|joined| &joined.op.change)) {
        // What is named is deleted even when it has expired: only so it ever leaves the rows.
        (Some(_), _) => !superseded.is_empty(),
        (None, Some(Change::Put { expiry, .. })) => expiry.is_none_or(|expiry| expiry.unix_ms() > now.0),
        (None, Some(Change::Tombstone)) => false,
        (None, None) => row.winner(now).is_some(),
    };
    if !present {
        return Some((OpOutcome::Absent, Vec::new(), kind));
    }
    // Only a put of this very group is there: the tombstone would have nothing to supersede.
    (!superseded.is_empty()).then_some((OpOutcome::Deleted, superseded, kind))
}

/// Why the op can never be written.
fn too_large(op: &LocalOp) -> Option<WriteRefusal> {
    let bytes = match &op.change {
        Change::Put { value, .. } => value.len(),
        Change::Tombstone => 0,
    };
    if bytes > MAX_VALUE_BYTES {
        return Some(WriteRefusal::ValueTooLarge { bytes });
    }
    let dots = op.terms.as_ref()?.seen.as_ref()?.len();
    (dots > MAX_OP_SUPERSEDED).then_some(WriteRefusal::TooManySeen { dots })
}
