//! A request is applied once on one node, and every retry gets the first outcome that the node knows.

use crdt::Dot;

use super::{Check, Merging, Truth, Verdict};
use crate::observe::{NodeId, Observation};

/// See the module.
#[derive(Debug)]
pub(super) struct Answers;

impl Check for Answers {
    fn name(&self) -> &'static str {
        "requests once"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Merging { node, block, before, local, .. } = *merging;
        let again = block.answers().iter().filter(|_| local).find_map(|answer| before.answers.get(&answer.request));
        match again {
            Some(first) => Err(format!("n{node} applies a request in {} that {first} has answered there", block.dot())),
            None => Ok(()),
        }
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        let Observation::Answered { node, database, request, answer: Ok(written), .. } = seen else { return Ok(()) };
        first_outcome(*node, written.dot, truth.copy(*node, *database).answers.get(request))
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
