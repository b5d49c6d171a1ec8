//! A reader is never told "not there" of what was confirmed before the holder that answers began to catch up, and is told
//! what is on that holder's disk and nothing else.

use std::collections::BTreeMap;

use crdt::{Change, DatabaseId, Dot, Key};
use hoarder::wire::Code;

use super::super::{Check, Copy, Truth, Verdict};
use super::Ledger;
use crate::fleet::FleetSeen;
use crate::observe::{NodeId, Observation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reads {
    ledger: Ledger,
    /// Keys that are only ever put, with the writes that put them.
    kept: BTreeMap<(DatabaseId, Key), Vec<Dot>>,
}

impl Check for Reads {
    fn name(&self) -> &'static str {
        "never not found"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        self.ledger.seen(truth.now, seen, truth);
        match seen {
            Observation::Fleet(FleetSeen::Served { database, asked, dot, done: true, .. }) => {
                for op in
                    asked.ops.iter().filter(|op| matches!(op.change, Change::Put { .. }) && op.key.as_str().starts_with("/kept/"))
                {
                    self.kept.entry((*database, op.key.clone())).or_default().push(*dot);
                }
                Ok(())
            }
            Observation::Fleet(FleetSeen::Read { node, database, key, value: None, since: Some(since) }) => {
                let puts = self.kept.get(&(*database, (*key).clone())).map(Vec::as_slice).unwrap_or_default();
                let writes = self.ledger.writes.get(database).into_iter().flatten();
                let mut due = writes.filter(|write| write.full && write.at < *since && write.losses < usize::from(write.k));
                match due.find(|write| puts.contains(&write.dot)) {
                    Some(write) if !self.ledger.dropped.contains(database) => {
                        Err(format!("n{node} says that {key} is not there, which {} put, confirmed at {}", write.dot, write.at))
                    }
                    _ => Ok(()),
                }
            }
            Observation::Fleet(FleetSeen::Answered { node, asked, code: Code::Done | Code::Absent, answer, .. })
                if asked.read.is_some() && answer.stale && !asked.stale =>
            {
                Err(format!("n{node} answers a read from a holder that is not ready, which nobody allowed"))
            }
            _ => Ok(()),
        }
    }

    fn started(&mut self, node: NodeId, database: DatabaseId, before: &Copy, image: bool, truth: &Truth) -> Verdict {
        self.ledger.started(node, database, before, image, truth);
        Ok(())
    }
}
