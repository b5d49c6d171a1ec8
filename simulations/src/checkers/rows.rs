//! The rows are a function of the merged blocks: after each commit those written, now and then and after each start all.

use crdt::{DatabaseId, Dot, WriteSet};

use super::{Check, Truth, Verdict, stored_rows, stored_state};
use crate::observe::{NodeId, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Rows;

impl Check for Rows {
    fn name(&self) -> &'static str {
        "rows are the fold"
    }

    fn committed(&mut self, node: NodeId, set: &WriteSet, truth: &Truth) -> Verdict {
        let copy = truth.copy(node, set.database);
        for write in &set.rows {
            let row: Vec<Dot> = write.row.dots().collect();
            let must = copy.row(&write.key);
            if row != must {
                return Err(format!("n{node} has {row:?} at {}, must have {must:?}", write.key));
            }
        }
        Ok(())
    }

    fn glance(&mut self, node: NodeId, database: DatabaseId, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        let fold = truth.fold(node, database).map_err(|what| format!("n{node}: {what}"))?;
        let rows = stored_rows(node, &database, world)?;
        if rows.len() != fold.rows.len() {
            return Err(format!("n{node} has {} keys, the fold of its blocks {}", rows.len(), fold.rows.len()));
        }
        for ((key, row), (must_key, must)) in rows.iter().zip(&fold.rows) {
            let same = row.siblings().iter().zip(must).all(|(one, must)| {
                (one.dot, one.stamp, one.expiry, one.check) == (must.dot, must.stamp, must.expiry, must.check)
                    && (one.value.is_none() || one.value == must.value)
            });
            if key != must_key || row.siblings().len() != must.len() || !same {
                return Err(format!("n{node} has {:?} at {key}, the fold of its blocks {must:?} at {must_key}", row.siblings()));
            }
        }
        if let Some(state) = stored_state(node, &database, world)
            && state.meta.digest != fold.digest
        {
            return Err(format!("n{node} says digest {}, the fold of its blocks {}", state.meta.digest, fold.digest));
        }
        Ok(())
    }
}
