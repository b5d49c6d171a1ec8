//! In the end all replicas of a database have the same blocks, heads and digest, and nothing waits any more, unless for
//! blocks that only a lost disk had.

use crate::observe::{Checker, End, Observation, WorldView};
use crate::time::Time;

/// See above.
#[derive(Debug, Default)]
pub(super) struct Convergence {
    /// Blocks may have been lost.
    lost: bool,
}

impl Checker for Convergence {
    fn name(&self) -> &'static str {
        "convergence"
    }

    fn observe(&mut self, _: Time, observation: &Observation<'_>, _: &WorldView<'_>) -> Result<(), String> {
        if let Observation::Ended { how, lost, .. } = observation {
            self.lost |= *lost > 0 || *how == End::Gone;
        }
        Ok(())
    }

    fn finish(&mut self, world: &WorldView<'_>) -> Result<(), String> {
        for database in world.databases() {
            let keepers = (0..world.nodes()).filter(|node| world.keeps(*node, database));
            let mut first = None;
            for node in keepers {
                let replica = world.replica(node, database).ok_or(format!("node {node} does not have {database} open"))?;
                let state = (replica.vv(), replica.heads().clone(), replica.meta().digest, replica.meta().keys);
                if replica.pending() != (0, 0) && !self.lost {
                    return Err(format!("at node {node} {:?} blocks and bytes wait for others", replica.pending()));
                }
                match &first {
                    None => first = Some((node, state)),
                    Some((other, found)) if *found != state => {
                        return Err(format!("nodes {other} and {node} differ:\n{found:?}\n{state:?}"));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}
