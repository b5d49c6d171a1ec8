//! What goes with time: only what has expired long enough ago is deleted, and all of that; only the oldest outcomes of
//! requests are forgotten, and none before its time.

use std::collections::{BTreeMap, BTreeSet};

use crdt::{DatabaseId, Dot, Key, RequestId, Stamp, WallTime, WriteSet};
use kvdb::limits::{EXPIRY_PATIENCE, UPKEEP_KEYS};

use super::{Check, Copy, Truth, Verdict};
use crate::observe::{NodeId, Observation};

/// See the module.
#[derive(Debug)]
pub(super) struct Tidy {
    grace_ms: u64,
    /// The latest stamp that was to be forgotten, and how many were to be kept.
    keep: BTreeMap<(NodeId, DatabaseId), (Stamp, u64)>,
    forgotten: u64,
}

impl Tidy {
    pub(super) fn new(grace_ms: u64) -> Self {
        Self { grace_ms, keep: BTreeMap::new(), forgotten: 0 }
    }

    fn expired(&self, copy: &Copy, now: WallTime, patience: u64) -> BTreeSet<(Key, Dot)> {
        let until = now.0.saturating_sub(self.grace_ms * patience);
        let puts = copy.alive.iter().flat_map(|(key, puts)| puts.iter().map(move |(dot, put)| (key, *dot, put)));
        let gone = puts.filter(|(.., put)| put.expiry.is_some_and(|expiry| expiry.unix_ms() <= until));
        gone.map(|(key, dot, _)| (key.clone(), dot)).collect()
    }
}

impl Check for Tidy {
    fn name(&self) -> &'static str {
        "what goes with time"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        let Observation::Tidies { node, database, ops, now, mine, keep } = seen else { return Ok(()) };
        let (stamp, most) = self.keep.get(&(*node, *database)).copied().unwrap_or((keep.0, keep.1));
        self.keep.insert((*node, *database), (stamp.max(keep.0), most.min(keep.1)));
        let copy = truth.copy(*node, *database);
        let due = self.expired(copy, *now, if *mine { 1 } else { u64::from(EXPIRY_PATIENCE) });
        let seen = |op: &crdt::LocalOp| op.terms.as_ref().and_then(|terms| terms.seen.clone()).unwrap_or_default();
        let named: BTreeSet<(Key, Dot)> =
            ops.iter().flat_map(|op| seen(op).into_iter().map(|dot| (op.key.clone(), dot))).collect();
        if let Some((key, dot)) = named.difference(&due).next() {
            return Err(format!("n{node} is about to delete {dot} at {key}, which is not its to delete at {} ms", now.0));
        }
        match due.difference(&named).next() {
            Some((key, dot)) if ops.len() < UPKEEP_KEYS => Err(format!("n{node} leaves {dot} at {key}, which has expired")),
            _ => Ok(()),
        }
    }

    fn trimming(&mut self, node: NodeId, set: &WriteSet, truth: &Truth) -> Verdict {
        if set.forgotten.is_empty() {
            return Ok(());
        }
        let copy = truth.copy(node, set.database);
        let (before, keep) = self.keep.get(&(node, set.database)).copied().unwrap_or((Stamp(0), u64::MAX));
        self.forgotten += set.forgotten.len() as u64;
        let gone: BTreeSet<_> = set.forgotten.iter().map(|(request, _)| *request).collect();
        let stamp = |dot: &Dot| truth.blocks.get(&(set.database, *dot)).map_or(Stamp(0), crdt::Block::stamp);
        let last = set.forgotten.iter().map(|(_, stamp)| *stamp).max().unwrap_or_default();
        // What came in the same turn was not there yet when it was looked for.
        let new: BTreeSet<Dot> = set.blocks.iter().map(|(_, block)| block.dot()).collect();
        let sure =
            |request: &RequestId, dot: &Dot| !gone.contains(request) && !copy.unsure.contains(request) && !new.contains(dot);
        let mut kept = copy.answers.iter().filter(|(request, dot)| sure(request, dot));
        if let Some((request, dot)) = kept.find(|(_, dot)| stamp(dot) < last) {
            return Err(format!("n{node} forgets a request of {last:?} before {request:?} of {dot}, which is older"));
        }
        let left = set.meta.requests;
        if last >= before && left < keep {
            return Err(format!("n{node} forgets a request of {last:?} before its time, with {left} left"));
        }
        Ok(())
    }

    fn marks(&self) -> Vec<(&'static str, u64)> {
        vec![("requests_forgotten", self.forgotten)]
    }
}
