//! The figures of a run, gathered beside the checkers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crdt::RequestId;

use super::report::Figures;
use crate::observe::{Checker, ClientId, Observation, WorldView};
use crate::time::Time;

#[derive(Debug, Default)]
struct Gathered {
    asked: BTreeMap<(ClientId, RequestId), Time>,
    latencies: Vec<f64>,
    sent_bytes: u64,
    blocks: u64,
    most_waiting: u64,
}

/// A checker that finds nothing and measures. Keep a clone to ask it for the figures.
#[derive(Debug, Clone, Default)]
pub struct Measure(Rc<RefCell<Gathered>>);

impl Checker for Measure {
    fn name(&self) -> &'static str {
        "figures"
    }

    fn observe(&mut self, at: Time, seen: &Observation<'_>, world: &WorldView<'_>) -> Result<(), String> {
        let mut gathered = self.0.borrow_mut();
        match seen {
            Observation::Asked { client, request, .. } => {
                gathered.asked.entry((*client, *request)).or_insert(at);
            }
            Observation::Answered { client, request, answer: Ok(_), .. } => {
                if let Some(asked) = gathered.asked.remove(&(*client, *request)) {
                    gathered.latencies.push(milliseconds(at.since(asked)));
                }
            }
            Observation::Sent { blocks, .. } => {
                gathered.sent_bytes += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
            }
            // Published once, carried to everybody.
            Observation::Published { message, .. } => {
                gathered.sent_bytes += message.len() as u64 * (world.nodes() as u64).saturating_sub(1);
            }
            Observation::Committed { node, writes, .. } => {
                for set in *writes {
                    gathered.blocks += set.blocks.len() as u64;
                    let waiting = world.replica(*node, &set.database).map_or(0, |replica| replica.pending().1);
                    gathered.most_waiting = gathered.most_waiting.max(waiting as u64);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Measure {
    /// The figures of a run that has ended.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "figures for the eye")]
    pub fn figures(&self, equal_after: Option<Time>) -> Figures {
        let mut gathered = self.0.borrow_mut();
        // Each node that merges a block has had it replicated to it, but for its maker.
        let per_block = gathered.sent_bytes as f64 / gathered.blocks.max(1) as f64;
        Figures::from([
            ("time_to_equality", equal_after.map(milliseconds).into_iter().collect()),
            ("bytes_per_write", vec![per_block]),
            ("ack_latency", std::mem::take(&mut gathered.latencies)),
            ("memory", vec![gathered.most_waiting as f64]),
        ])
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for the eye")]
fn milliseconds(time: Time) -> f64 {
    time.0 as f64 / 1_000.0
}
