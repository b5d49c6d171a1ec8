//! What a merged block has superseded is never seen again.

use crdt::{DatabaseId, WriteSet};

use super::{Check, Truth, Verdict, stored_rows};
use crate::observe::{NodeId, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Deleted;

impl Check for Deleted {
    fn name(&self) -> &'static str {
        "no deleted key returns"
    }

    fn committed(&mut self, node: NodeId, set: &WriteSet, truth: &Truth) -> Verdict {
        let dead = &truth.copy(node, set.database).dead;
        for write in &set.rows {
            if let Some(dot) = write.row.dots().find(|dot| dead.contains(&(write.key.clone(), *dot))) {
                return Err(format!("n{node} brings {dot} back at {}", write.key));
            }
        }
        Ok(())
    }

    fn glance(&mut self, node: NodeId, database: DatabaseId, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        let dead = &truth.copy(node, database).dead;
        for (key, row) in stored_rows(node, &database, world)? {
            if let Some(dot) = row.dots().find(|dot| dead.contains(&(key.clone(), *dot))) {
                return Err(format!("n{node} still shows {dot} at {key}"));
            }
        }
        Ok(())
    }
}
