//! What one client writes on one node, one after the other, is merged in that order.

use std::collections::BTreeMap;

use crdt::{DatabaseId, Dot, OpOutcome};

use super::{Check, Truth, Verdict};
use crate::observe::{ClientId, NodeId, Observation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Callers {
    last: BTreeMap<(NodeId, ClientId, DatabaseId), Dot>,
}

impl Check for Callers {
    fn name(&self) -> &'static str {
        "order of one caller"
    }

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        match seen {
            Observation::Booted { node } => self.last.retain(|(at, _, _), _| at != node),
            Observation::Answered { client, node, database, answer: Ok(written), .. } => {
                let Some(dot) = written.dot.filter(|_| !written.ops.contains(&OpOutcome::Repeated)) else { return Ok(()) };
                let before = self.last.insert((*node, *client, *database), dot);
                if let Some(before) = before.filter(|before| before.replica == dot.replica && before.seq > dot.seq) {
                    return Err(format!("n{node} answers client {client} with {dot} after {before}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
