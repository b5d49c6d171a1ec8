//! Commit before effects: answers and blocks go out only for what the disk has taken, an answer is given once for each
//! question, and none says "written" after a commit has failed.

use std::collections::BTreeMap;

use crdt::RequestId;

use super::{Check, Truth, Verdict};
use crate::observe::{ClientId, Observation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Questions without an answer.
    open: BTreeMap<(ClientId, RequestId), u32>,
}

impl Check for Outcome {
    fn name(&self) -> &'static str {
        "commit before effects"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        match seen {
            Observation::Asked { client, request, .. } => *self.open.entry((*client, *request)).or_default() += 1,
            Observation::Answered { client, request, node, database, answer, .. } => {
                let Some(left) = self.open.get_mut(&(*client, *request)).filter(|left| **left > 0) else {
                    return Err(format!("n{node} answers client {client} twice, or what was not asked"));
                };
                *left -= 1;
                let Ok(written) = answer else { return Ok(()) };
                if let Some(dot) = written.dot.filter(|dot| !truth.copy(*node, *database).covers(dot)) {
                    return Err(format!("n{node} answers client {client} with {dot}, which its disk has not taken"));
                }
            }
            Observation::Sent { node, database, blocks, .. } => {
                for bytes in *blocks {
                    let name = truth.name(bytes);
                    if !name.is_some_and(|dot| truth.copy(*node, *database).covers(&dot)) {
                        return Err(format!("n{node} sends {name:?}, which its disk has not taken"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
