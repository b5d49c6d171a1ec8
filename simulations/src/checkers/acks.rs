//! A node tells others that something is on its disk only once its disk has said so.

use super::{Check, Truth, Verdict};
use crate::observe::Observation;

/// See the module.
#[derive(Debug)]
pub(super) struct Acks;

impl Check for Acks {
    fn name(&self) -> &'static str {
        "acknowledgements"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        let Observation::Acked { node, database, durable, .. } = seen else { return Ok(()) };
        let copy = truth.copy(*node, *database);
        for (replica, seq) in *durable {
            let dot = crdt::Dot { replica: *replica, seq: *seq };
            if !copy.order.iter().take(copy.said_synced).rev().any(|known| *known == dot) {
                return Err(format!("n{node} acknowledges {dot} as durable before its disk has said so"));
            }
        }
        Ok(())
    }
}
