//! History is dropped only once enough other nodes have it on disk.

use std::collections::BTreeSet;

use crdt::{Dot, WriteSet};

use super::{Check, Copy, Truth, Verdict};
use crate::observe::{End, NodeId, Observation};

/// See the module.
#[derive(Debug)]
pub(super) struct History {
    nodes: usize,
    holders: usize,
    /// Nodes whose disk was replaced, or has lied: what they once had they may have lost.
    unsure: BTreeSet<NodeId>,
    dropped: u64,
}

impl History {
    pub(super) fn new(nodes: usize, holders: usize) -> Self {
        Self { nodes, holders, unsure: BTreeSet::new(), dropped: 0 }
    }
}

impl Check for History {
    fn name(&self) -> &'static str {
        "history is held elsewhere"
    }

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        match seen {
            Observation::Ended { node, how: End::Disk | End::Restored, .. } | Observation::Synced { node, lied: true, .. } => {
                self.unsure.insert(*node);
            }
            _ => {}
        }
        Ok(())
    }

    fn trimming(&mut self, node: NodeId, set: &WriteSet, truth: &Truth) -> Verdict {
        let others = || (0..self.nodes).filter(|other| *other != node);
        for entry in set.truncation.entries.iter().filter(|entry| entry.names_block()) {
            let holds = |other: &NodeId| self.unsure.contains(other) || on_disk(truth.copy(*other, set.database), &entry.dot);
            if others().filter(holds).count() < self.holders {
                return Err(format!("n{node} drops {} of its history, which too few others have on disk", entry.dot));
            }
        }
        self.dropped += set.truncation.entries.len() as u64;
        Ok(())
    }

    fn marks(&self) -> Vec<(&'static str, u64)> {
        vec![("blocks_dropped", self.dropped)]
    }
}

fn on_disk(copy: &Copy, dot: &Dot) -> bool {
    // What is not on disk is the short end of it.
    copy.covers(dot) && !copy.order.iter().skip(copy.said_synced).any(|late| late == dot)
}
