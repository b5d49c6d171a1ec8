//! A request is answered by its first outcome: once a client knows it, nobody is told another one by a holder that had it; and
//! where nothing went wrong there is only one.

use std::collections::{BTreeMap, BTreeSet};

use crdt::{Dot, RequestId};
use hoarder::wire::Code;

use super::super::{Check, Truth, Verdict};
use crate::fleet::FleetSeen;
use crate::observe::{Observation, WorldView};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Once {
    outcomes: BTreeMap<RequestId, BTreeSet<Dot>>,
    faults: bool,
    twice: u64,
}

impl Check for Once {
    fn name(&self) -> &'static str {
        "calls applied once"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        match seen {
            Observation::Fault { .. } | Observation::Ended { .. } => self.faults = true,
            Observation::Fleet(FleetSeen::Served { node, database, asked, dot, done, .. }) => {
                let first = truth.copy(*node, *database).answers.get(&asked.request);
                if first.is_some_and(|first| first != dot) || (first.is_none() && *done) {
                    return Err(format!("n{node} answers #{} with {dot}, but {first:?} was first there", asked.number));
                }
            }
            Observation::Fleet(FleetSeen::Answered { asked, code: Code::Done, answer, .. }) => {
                let Some(dot) = answer.dot else { return Ok(()) };
                let outcomes = self.outcomes.entry(asked.request).or_default();
                outcomes.insert(dot);
                if outcomes.len() > 1 {
                    self.twice += 1;
                    if !self.faults {
                        return Err(format!("client {} was told {outcomes:?} for one request", asked.client));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &WorldView<'_>, truth: &Truth) -> Verdict {
        // One holder never has two answers to a request of its own making: `answers` looks at each merge. Here: no request is
        // answered twice at all where nobody failed.
        if self.faults {
            return Ok(());
        }
        let mut answers: BTreeMap<RequestId, Dot> = BTreeMap::new();
        for block in truth.blocks.values() {
            for answer in block.answers() {
                if let Some(other) = answers.insert(answer.request, block.dot()) {
                    return Err(format!("{other} and {} answer one request", block.dot()));
                }
            }
        }
        Ok(())
    }
}
