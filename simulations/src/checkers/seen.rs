//! A write supersedes exactly what its author had at the key.

use std::collections::{BTreeMap, BTreeSet};

use crdt::limits::MAX_OP_SUPERSEDED;
use crdt::{Change, Dot, Key};

use super::{Check, Merging, Truth, Verdict};
use crate::observe::{NodeId, Observation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Puts at a key that a node was asked for and has not answered.
    open: BTreeMap<(NodeId, Key), u64>,
    /// What writes at a key that were asked for name as seen.
    named: BTreeMap<(NodeId, Key), Vec<BTreeSet<Dot>>>,
}

impl Check for Seen {
    fn name(&self) -> &'static str {
        "superseded as seen"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Merging { node, block, before, local, wall, .. } = *merging;
        if !local {
            return Ok(());
        }
        for op in block.ops() {
            let named: BTreeSet<Dot> = op.superseded.iter().copied().collect();
            let had: BTreeSet<Dot> = before.row(&op.key).into_iter().collect();
            if let Some(sets) = self.named.get_mut(&(node, op.key.clone()))
                && let Some(at) = sets.iter().position(|set| named.iter().eq(set.intersection(&had)))
            {
                // It replaces what its author named, and of that what is there; unless that is all, as of any other write.
                if named != had {
                    sets.swap_remove(at);
                }
                continue;
            }
            // A put of the same group may have been there to delete.
            let alone = self.open.get(&(node, op.key.clone())).is_none_or(|open| *open == 0);
            if op.change == Change::Tombstone && alone && before.winner(&op.key, wall).is_none() {
                return Err(format!("{} of n{node} deletes {}, at which nothing was to be seen", block.dot(), op.key));
            }
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

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        let (node, ops, asked) = match seen {
            Observation::Asked { node, ops, .. } => (*node, *ops, true),
            Observation::Answered { node, ops, .. } => (*node, *ops, false),
            _ => return Ok(()),
        };
        for op in ops.iter().filter(|_| asked) {
            if let Some(seen) = op.terms.as_ref().and_then(|terms| terms.seen.as_ref()) {
                self.named.entry((node, op.key.clone())).or_default().push(seen.iter().copied().collect());
            }
        }
        for op in ops.iter().filter(|op| op.change != Change::Tombstone) {
            let open = self.open.entry((node, op.key.clone())).or_default();
            *open = if asked { *open + 1 } else { open.saturating_sub(1) };
        }
        Ok(())
    }
}
