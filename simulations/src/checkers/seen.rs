//! A write supersedes exactly what its author had at the key.

use std::collections::BTreeSet;

use crdt::Dot;
use crdt::limits::MAX_OP_SUPERSEDED;

use super::{Check, Merging, Truth, Verdict};

/// See the module.
#[derive(Debug)]
pub(super) struct Seen;

impl Check for Seen {
    fn name(&self) -> &'static str {
        "superseded as seen"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Merging { node, block, before, local, .. } = *merging;
        if !local {
            return Ok(());
        }
        for op in block.ops() {
            let named: BTreeSet<Dot> = op.superseded.iter().copied().collect();
            let had: BTreeSet<Dot> = before.row(&op.key).into_iter().collect();
            if had.len() > MAX_OP_SUPERSEDED {
                continue;
            }
            if let Some(dot) = named.symmetric_difference(&had).next() {
                let what = if had.contains(dot) { "did not supersede" } else { "superseded without having it" };
                return Err(format!("{} of n{node} {what} {dot} at {}", block.dot(), op.key));
            }
        }
        Ok(())
    }
}
