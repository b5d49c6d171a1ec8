//! Causal closure: nothing is merged before what it builds on, at any step and after every crash.

use crdt::DatabaseId;

use super::{Check, Copy, Merging, Truth, Verdict, needs};
use crate::observe::NodeId;

/// See the module.
#[derive(Debug)]
pub(super) struct Closure;

impl Check for Closure {
    fn name(&self) -> &'static str {
        "causal closure"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Merging { node, block, before, .. } = *merging;
        if block.database() != merging.database {
            return Err(format!("n{node} merges {} into another database than its own", block.dot()));
        }
        if before.covers(&block.dot()) {
            return Err(format!("n{node} merges {} a second time", block.dot()));
        }
        match needs(block).find(|dot| !before.covers(dot)) {
            Some(missing) => Err(format!("n{node} merges {} before {missing}", block.dot())),
            None => Ok(()),
        }
    }

    fn started(&mut self, node: NodeId, database: DatabaseId, _: &Copy, _: bool, truth: &Truth) -> Verdict {
        truth.fold(node, database).map(drop).map_err(|what| format!("after its start n{node}: {what}"))
    }
}
