//! The heads are exactly the merged blocks that no other merged block names, and a new block builds on all of them.

use std::collections::BTreeSet;

use crdt::limits::MAX_BLOCK_PARENTS;
use crdt::{DatabaseId, Dot};

use super::{Check, Merging, Truth, Verdict, stored_state};
use crate::observe::{NodeId, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Heads;

impl Check for Heads {
    fn name(&self) -> &'static str {
        "heads"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Merging { node, block, before, local, .. } = *merging;
        if !local {
            return Ok(());
        }
        let named: BTreeSet<Dot> = block.parents().iter().map(|parent| parent.dot).collect();
        if let Some(stranger) = named.iter().find(|dot| !before.heads.contains(dot)) {
            return Err(format!("n{node} made {} on {stranger}, which was no head", block.dot()));
        }
        if before.heads.len() <= MAX_BLOCK_PARENTS
            && let Some(left) = before.heads.iter().find(|dot| !named.contains(dot))
            // A list of parents has one block of each writer.
            && !named.iter().any(|dot| dot.replica == left.replica)
        {
            return Err(format!("n{node} made {} without its head {left}", block.dot()));
        }
        Ok(())
    }

    fn glance(&mut self, node: NodeId, database: DatabaseId, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        let Some(state) = stored_state(node, &database, world) else { return Ok(()) };
        let heads: BTreeSet<Dot> = state.heads.iter().map(|(dot, _)| *dot).collect();
        let must = &truth.copy(node, database).heads;
        if let Some(dot) = heads.symmetric_difference(must).next() {
            let what = if heads.contains(dot) { "takes a block for a head that is none" } else { "lacks a head" };
            return Err(format!("n{node} {what}: {dot}"));
        }
        Ok(())
    }
}
