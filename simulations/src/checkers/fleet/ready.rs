//! Whoever becomes a ready holder has all that was confirmed before it began to catch up.

use crdt::DatabaseId;

use super::super::{Check, Copy, Truth, Verdict};
use super::Ledger;
use crate::fleet::FleetSeen;
use crate::observe::{NodeId, Observation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ready(Ledger);

impl Check for Ready {
    fn name(&self) -> &'static str {
        "ready with all that was confirmed"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        self.0.seen(truth.now, seen, truth);
        let Observation::Fleet(FleetSeen::Ready { node, database, since }) = seen else { return Ok(()) };
        if self.0.dropped.contains(database) {
            return Ok(());
        }
        let copy = truth.copy(*node, *database);
        let writes = self.0.writes.get(database).into_iter().flatten();
        let mut due = writes.filter(|write| write.full && write.at < *since && write.losses < usize::from(write.k));
        match due.find(|write| !copy.covers(&write.dot)) {
            Some(write) => {
                let (dot, at) = (write.dot, write.at);
                Err(format!("n{node} is ready without {dot}, confirmed at {at}; it caught up from {since}"))
            }
            None => Ok(()),
        }
    }

    fn started(&mut self, node: NodeId, database: DatabaseId, before: &Copy, image: bool, truth: &Truth) -> Verdict {
        self.0.started(node, database, before, image, truth);
        Ok(())
    }
}
