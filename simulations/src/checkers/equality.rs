//! In the end all open replicas of a database are equal, in rows, heads, version vector and digest.

use std::collections::BTreeMap;

use crdt::DatabaseId;

use super::{Check, Truth, Verdict, stored_rows};
use crate::observe::{NodeId, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Equality;

impl Check for Equality {
    fn name(&self) -> &'static str {
        "equality in the end"
    }

    fn finish(&mut self, world: &WorldView<'_>, _: &Truth) -> Verdict {
        let mut first: BTreeMap<DatabaseId, NodeId> = BTreeMap::new();
        for node in (0..world.nodes()).filter(|node| world.is_up(*node)) {
            for database in world.databases().iter().filter(|database| world.keeps(node, database)) {
                let other = *first.entry(*database).or_insert(node);
                if other != node {
                    equal(other, node, database, world)?;
                }
            }
        }
        Ok(())
    }
}

fn equal(one: NodeId, other: NodeId, database: &DatabaseId, world: &WorldView<'_>) -> Verdict {
    let (Some(a), Some(b)) = (world.replica(one, database), world.replica(other, database)) else { return Ok(()) };
    let what = if a.vv() != b.vv() {
        format!("version vectors ({} and {} blocks)", a.meta().revision, b.meta().revision)
    } else if a.heads() != b.heads() {
        "heads".to_owned()
    } else if a.meta().digest != b.meta().digest {
        "digests".to_owned()
    } else if stored_rows(one, database, world)? != stored_rows(other, database, world)? {
        "rows".to_owned()
    } else {
        return Ok(());
    };
    Err(format!("n{one} and n{other} still have different {what}"))
}
