//! A write confirmed as synced is there after every crash, and in the end on every node.

use std::collections::{BTreeMap, BTreeSet};

use crdt::{DatabaseId, Dot, Durability};

use super::{Check, Copy, Truth, Verdict};
use crate::observe::{NodeId, Observation, WorldView};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    /// For each node what it has confirmed as synced, as long as its disk tells the truth and was not replaced.
    confirmed: BTreeMap<(NodeId, DatabaseId), BTreeSet<Dot>>,
}

impl Check for Confirmed {
    fn name(&self) -> &'static str {
        "nothing confirmed is lost"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        if let Observation::Answered { node, database, durability: Durability::Sync, answer: Ok(written), .. } = seen
            && let Some(dot) = written.dot
        {
            let copy = truth.copy(*node, *database);
            let on_disk = |count: usize| copy.order.iter().take(count).any(|known| *known == dot);
            if on_disk(copy.synced) {
                self.confirmed.entry((*node, *database)).or_default().insert(dot);
            } else if !on_disk(copy.said_synced) {
                return Err(format!("n{node} confirms {dot} as synced before its disk has said so"));
            }
        }
        Ok(())
    }

    fn started(&mut self, node: NodeId, database: DatabaseId, before: &Copy, image: bool, truth: &Truth) -> Verdict {
        let now = truth.copy(node, database);
        if image {
            // What only this disk had is lost with it.
            self.confirmed.remove(&(node, database));
            return Ok(());
        }
        match before.order.iter().take(before.synced).find(|dot| !now.covers(dot)) {
            Some(lost) => Err(format!("n{node} lost {lost}, which was synced")),
            None => Ok(()),
        }
    }

    fn finish(&mut self, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        for ((by, database), dots) in &self.confirmed {
            // What a node that is gone for ever has told nobody is gone with it.
            for dot in dots.iter().filter(|_| world.is_up(*by)) {
                let keeps = |node: &NodeId| world.is_up(*node) && world.keeps(*node, database);
                if let Some(node) = (0..world.nodes()).filter(keeps).find(|node| !truth.copy(*node, *database).covers(dot)) {
                    return Err(format!("{dot}, confirmed by n{by}, never came to n{node}"));
                }
            }
        }
        Ok(())
    }
}
