//! What is let go of is on the disks of as many others as the database has holders, or as there were.

use crdt::DatabaseId;

use super::super::{Check, Copy, Truth, Verdict};
use super::{Ledger, synced};
use crate::fleet::FleetSeen;
use crate::observe::{NodeId, Observation};
use crate::time::Time;

/// A disk destroyed so shortly before may have been one of those that were relied on.
const LATELY: Time = Time::secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Releases {
    ledger: Ledger,
    losses: Vec<Time>,
    /// The least number of holders asked for.
    lowest: std::collections::BTreeMap<DatabaseId, u8>,
}

impl Check for Releases {
    fn name(&self) -> &'static str {
        "nothing is let go of too early"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        self.ledger.seen(truth.now, seen, truth);
        match seen {
            Observation::Fleet(FleetSeen::Holders { database, holders }) => {
                let lowest = self.lowest.entry(*database).or_insert(*holders);
                *lowest = (*lowest).min(*holders);
                Ok(())
            }
            Observation::Fleet(FleetSeen::Releases { node, database, dropped: false, holders }) => {
                let own = synced(truth.copy(*node, *database));
                let covering = self.ledger.disks(*database, Some(*node), truth);
                let covering = covering.iter().filter(|(_, dots)| dots.is_superset(&own)).count();
                let since = Time(truth.now.0.saturating_sub(LATELY.0));
                let lately = self.losses.iter().filter(|at| **at >= since).count();
                let holders = (*holders).min(self.lowest.get(database).copied().unwrap_or(*holders));
                if !own.is_empty() && covering + lately < usize::from(holders) {
                    return Err(format!("n{node} deletes {database}, and {covering} others have it all, of {holders}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn started(&mut self, node: NodeId, database: DatabaseId, before: &Copy, image: bool, truth: &Truth) -> Verdict {
        self.ledger.started(node, database, before, image, truth);
        if image {
            self.losses.push(truth.now);
        }
        Ok(())
    }
}
