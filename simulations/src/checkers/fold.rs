//! The rows of a node are what follows from its merged set alone: the naive fold over all blocks with these names.

use std::collections::BTreeMap;

use crdt::testing::Reference;
use crdt::{Block, DatabaseId, Dot, Key, KeyRange, Order, Prefix, Projection, Row, Store as _, View as _};

use crate::observe::{Checker, NodeId, Observation, WorldView};
use crate::time::Time;

/// So many commits of a node pass between two comparisons, since each costs a fold of everything.
const EVERY: u64 = 512;

/// See above.
#[derive(Debug, Default)]
pub(super) struct Fold {
    /// Every block that was ever committed anywhere.
    blocks: BTreeMap<DatabaseId, BTreeMap<Dot, Block>>,
    commits: u64,
}

impl Checker for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn observe(&mut self, _: Time, observation: &Observation<'_>, world: &WorldView<'_>) -> Result<(), String> {
        match observation {
            Observation::Committed { node, writes, .. } => {
                for set in *writes {
                    let blocks = self.blocks.entry(set.database).or_default();
                    blocks.extend(set.blocks.iter().map(|(_, block)| (block.dot(), block.clone())));
                }
                self.commits += 1;
                if self.commits.is_multiple_of(EVERY) { self.compare(*node, world) } else { Ok(()) }
            }
            Observation::Ended { node, .. } => self.compare(*node, world),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, world: &WorldView<'_>) -> Result<(), String> {
        (0..world.nodes()).try_for_each(|node| self.compare(node, world))
    }
}

impl Fold {
    fn compare(&self, node: NodeId, world: &WorldView<'_>) -> Result<(), String> {
        for (database, blocks) in &self.blocks {
            let Some(view) = world.store(node).and_then(|store| store.view(database).ok()) else { continue };
            let state = view.state().map_err(|error| error.to_string())?;
            let merged = blocks.values().filter(|block| {
                let dot = block.dot();
                state.vv.get(&dot.replica).is_some_and(|entry| entry.seq >= dot.seq)
            });
            let merged: Vec<&Block> = merged.collect();
            closed(&merged).map_err(|what| format!("node {node}: {what}"))?;
            let wanted = Reference::fold(merged);
            let rows = view.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows);
            let rows: BTreeMap<Key, Row> = rows.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
            let found: BTreeMap<_, _> = rows.into_iter().map(|(key, row)| (key, row.into_siblings())).collect();
            if found != wanted.rows {
                return Err(format!("node {node}: rows are\n{found:?}\nbut should be\n{:?}", wanted.rows));
            }
            if state.heads != wanted.heads || state.meta.digest != wanted.digest {
                return Err(format!("node {node}: heads or digest do not follow from the merged set"));
            }
        }
        Ok(())
    }
}

/// Whether a set has everything that its members build on, before the reference insists on it.
fn closed(blocks: &[&Block]) -> Result<(), String> {
    let dots: std::collections::BTreeSet<Dot> = blocks.iter().map(|block| block.dot()).collect();
    for block in blocks {
        let parents = block.parents().iter().map(|parent| parent.dot);
        let superseded = block.ops().iter().flat_map(|op| op.superseded.iter().copied());
        if let Some(missing) = parents.chain(superseded).find(|dot| !dots.contains(dot)) {
            return Err(format!("{} is merged, but {missing}, on which it builds, is not", block.dot()));
        }
    }
    Ok(())
}
