//! A new block's stamp is above those of all that it builds on, but no more than the drift ahead of its author's clock.

use crdt::limits::MAX_CLOCK_DRIFT_MS;

use super::{Check, Merging, Truth, Verdict, needs};

/// See the module.
#[derive(Debug)]
pub(super) struct Stamps;

impl Check for Stamps {
    fn name(&self) -> &'static str {
        "stamps"
    }

    fn merging(&mut self, merging: &Merging<'_>, truth: &Truth) -> Verdict {
        let Merging { node, block, wall, local, .. } = *merging;
        if !local {
            return Ok(());
        }
        let (stamp, dot) = (block.stamp().0, block.dot());
        let ceiling = (wall.0 + MAX_CLOCK_DRIFT_MS) << 16;
        if stamp > ceiling + 1 {
            return Err(format!("{dot} of n{node} is stamped {} ms, its clock says {} ms", stamp >> 16, wall.0));
        }
        if stamp < wall.0 << 16 {
            return Err(format!("{dot} of n{node} is stamped {} ms, before its clock of {} ms", stamp >> 16, wall.0));
        }
        for before in needs(block).filter_map(|dot| truth.blocks.get(&(block.database(), dot))) {
            // What is too far ahead itself cannot be overtaken.
            if before.stamp().0 >= stamp && before.stamp().0 < ceiling {
                return Err(format!("{dot} of n{node} is stamped no later than {}, on which it builds", before.dot()));
            }
        }
        Ok(())
    }
}
