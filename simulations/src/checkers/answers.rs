//! A request is applied once on one node, and every retry gets the first outcome that the node knows.

use crdt::{DatabaseId, Dot, Store as _, View as _};

use super::{Check, Merging, Truth, Verdict};
use crate::observe::{NodeId, Observation, WorldView};

/// See the module.
#[derive(Debug)]
pub(super) struct Answers;

impl Check for Answers {
    fn name(&self) -> &'static str {
        "requests once"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Merging { node, block, before, local, .. } = *merging;
        let sure = block.answers().iter().filter(|answer| local && !before.unsure.contains(&answer.request));
        let again = sure.into_iter().find_map(|answer| before.answers.get(&answer.request));
        match again {
            Some(first) => Err(format!("n{node} applies a request in {} that {first} has answered there", block.dot())),
            None => Ok(()),
        }
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        let Observation::Answered { node, database, request, answer: Ok(written), .. } = seen else { return Ok(()) };
        let copy = truth.copy(*node, *database);
        if copy.unsure.contains(request) {
            return Ok(());
        }
        first_outcome(*node, written.dot, copy.answers.get(request))
    }

    /// What is kept of requests is what their blocks say.
    fn glance(&mut self, node: NodeId, database: DatabaseId, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        let Some(view) = world.store(node).and_then(|store| store.view(&database).ok()) else { return Ok(()) };
        let copy = truth.copy(node, database);
        let mut known = 0;
        for found in view.requests(None) {
            let (request, record) = found.map_err(|error| error.to_string())?;
            if !copy.covers(&record.dot) {
                // Of a snapshot that is being joined.
                continue;
            }
            known += usize::from(!copy.unsure.contains(&request) && copy.answers.contains_key(&request));
            let says = truth.blocks.get(&(database, record.dot)).and_then(|block| {
                let answer = block.answers().iter().find(|answer| answer.request == request)?;
                Some(answer.ops == record.ops && block.stamp() == record.stamp)
            });
            // What was forgotten here a snapshot may bring again.
            let first = copy.unsure.contains(&request) || copy.answers.get(&request).is_none_or(|first| *first == record.dot);
            let again = !copy.answers.contains_key(&request) && !truth.is_forgotten(&request);
            if again {
                return Err(format!("n{node} keeps the outcome of {request:?}, which it has not merged"));
            }
            if says != Some(true) || !first {
                return Err(format!(
                    "n{node} keeps {record:?} of {request:?}, it was answered by {:?}",
                    copy.answers.get(&request)
                ));
            }
        }
        let must = copy.answers.keys().filter(|request| !copy.unsure.contains(*request)).count();
        if known == must { Ok(()) } else { Err(format!("n{node} keeps the outcomes of {known} requests, there are {must}")) }
    }
}

fn first_outcome(node: NodeId, said: Option<Dot>, first: Option<&Dot>) -> Verdict {
    match (said, first) {
        (Some(said), Some(first)) if said != *first => {
            Err(format!("n{node} answers a request with {said}, but {first} was first"))
        }
        _ => Ok(()),
    }
}
