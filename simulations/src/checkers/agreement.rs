//! Replicas that have the same blocks by name but not the same state say so; those that have the same state do not.

use super::{Check, Truth, Verdict};
use crate::observe::{NodeId, Observation, WorldView};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    reports: u64,
}

impl Check for Agreement {
    fn name(&self) -> &'static str {
        "disagreements are reported"
    }

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        self.reports += u64::from(matches!(seen, Observation::Disagreement { .. }));
        Ok(())
    }

    fn finish(&mut self, world: &WorldView<'_>, _: &Truth) -> Verdict {
        let nodes: Vec<NodeId> = (0..world.nodes()).filter(|node| world.is_up(*node)).collect();
        for one in &nodes {
            for other in nodes.iter().filter(|other| *other > one) {
                for database in world.databases() {
                    let (Some(a), Some(b)) = (world.replica(*one, database), world.replica(*other, database)) else { continue };
                    if a.vv() == b.vv() && a.meta().digest != b.meta().digest && self.reports == 0 {
                        return Err(format!("n{one} and n{other} have the same vector and other digests, and nobody says so"));
                    }
                }
            }
        }
        Ok(())
    }
}
