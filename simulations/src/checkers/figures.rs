//! What a replica says of itself in short is what it has: version vector, revision, number of keys.

use std::collections::BTreeMap;

use crdt::{DatabaseId, ReplicaId, WriteSet};

use super::{Check, Truth, Verdict, stored_state};
use crate::observe::{NodeId, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Figures;

impl Check for Figures {
    fn name(&self) -> &'static str {
        "figures"
    }

    fn committed(&mut self, node: NodeId, set: &WriteSet, truth: &Truth) -> Verdict {
        let copy = truth.copy(node, set.database);
        for (says, must, what) in [
            // A switch to a snapshot's rows takes a revision like a block.
            (set.meta.revision, copy.revision(), "revision"),
            (set.meta.keys, copy.alive.len() as u64, "number of keys"),
            (set.meta.log_floor, copy.floor, "floor"),
        ] {
            if says != must {
                return Err(format!("n{node} says {what} {says}, it must be {must}"));
            }
        }
        for (replica, entry) in &set.vv {
            let dot = crdt::Dot { replica: *replica, seq: entry.seq };
            let next = crdt::Dot { replica: *replica, seq: entry.seq + 1 };
            if !copy.covers(&dot) || copy.covers(&next) {
                return Err(format!("n{node} says it has {replica} up to {}, which is not so", entry.seq));
            }
        }
        Ok(())
    }

    fn glance(&mut self, node: NodeId, database: DatabaseId, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        let Some(state) = stored_state(node, &database, world) else { return Ok(()) };
        let mut must: BTreeMap<ReplicaId, u64> = BTreeMap::new();
        for dot in &truth.copy(node, database).merged {
            let entry = must.entry(dot.replica).or_default();
            *entry = (*entry).max(dot.seq);
        }
        let says: BTreeMap<ReplicaId, u64> = state.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
        if says == must { Ok(()) } else { Err(format!("n{node} says version vector {says:?}, it must be {must:?}")) }
    }
}
