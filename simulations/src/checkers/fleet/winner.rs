//! Of writes that are to happen only if nothing is there one wins, where the holders see the same fleet.

use std::collections::BTreeMap;

use crdt::{DatabaseId, Dot, Key, RequestId};
use hoarder::Epoch;

use super::super::{Check, Truth, Verdict};
use crate::fleet::FleetSeen;
use crate::observe::Observation;

/// A write that won: its block, its request, and the view under which it did.
type Won = (Dot, RequestId, Epoch);

/// See the module. Nothing is ever deleted below `/once`.
#[derive(Debug, Default)]
pub(super) struct Winner {
    won: BTreeMap<(DatabaseId, Key), Vec<Won>>,
    faults: bool,
}

impl Check for Winner {
    fn name(&self) -> &'static str {
        "one winner"
    }

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        match seen {
            Observation::Fault { .. } => self.faults = true,
            Observation::Fleet(FleetSeen::Served { node, database, asked, dot, done: true, epoch, durability, .. })
                if asked.conditional && matches!(durability, hoarder::Durability::Require(2..)) =>
            {
                for op in asked.ops.iter().filter(|op| op.key.as_str().starts_with("/once/")) {
                    let won = self.won.entry((*database, op.key.clone())).or_default();
                    let other = won.iter().find(|(other, request, seen)| {
                        other != dot && *request != asked.request && (seen == epoch || !self.faults)
                    });
                    if let Some((other, _, _)) = other {
                        return Err(format!("n{node} lets {dot} win at {}, where {other} has won", op.key));
                    }
                    won.push((*dot, asked.request, *epoch));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
