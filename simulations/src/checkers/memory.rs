//! Pools keep to their limits, and nothing is kept waiting for what is there.

use crdt::DatabaseId;
use crdt::limits::{MAX_PENDING_BLOCKS, MAX_PENDING_BYTES};

use super::{Check, Truth, Verdict};
use crate::observe::{NodeId, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Memory;

impl Check for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn glance(&mut self, node: NodeId, database: DatabaseId, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        if world.databases().len() > 1 {
            // What waits in a pool waits for blocks of this database.
            let wanted = world.replica(node, &database).into_iter().flat_map(crdt::Replica::wanted);
            let others = || world.databases().iter().filter(|other| **other != database);
            let foreign = |dot: &crdt::Dot| others().any(|other| truth.blocks.contains_key(&(*other, *dot)));
            if let Some(dot) = wanted.into_iter().find(foreign) {
                return Err(format!("n{node} keeps a block that waits for {dot} of another database"));
            }
        }
        let (blocks, bytes) = world.replica(node, &database).map_or((0, 0), crdt::Replica::pending);
        if blocks > MAX_PENDING_BLOCKS {
            return Err(format!("n{node} has {blocks} blocks in its pending pool, the limit is {MAX_PENDING_BLOCKS}"));
        }
        if bytes > MAX_PENDING_BYTES {
            return Err(format!("n{node} has {bytes} bytes in its pending pool, the limit is {MAX_PENDING_BYTES}"));
        }
        Ok(())
    }

    fn finish(&mut self, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        for node in (0..world.nodes()).filter(|node| world.is_up(*node)) {
            for database in world.databases() {
                let Some(replica) = world.replica(node, database) else { continue };
                // What is on no honest disk may be waited for; what is here may not.
                if let Some(dot) = replica.wanted().find(|dot| truth.copy(node, *database).covers(dot)) {
                    return Err(format!("n{node} still keeps blocks that wait for {dot}, which it has"));
                }
            }
        }
        Ok(())
    }
}
