//! A conditional write is done only where its condition holds, and refused only where it does not; what is refused leaves
//! no trace.

use std::collections::{BTreeMap, BTreeSet};

use crdt::{Condition, DatabaseId, Dot, Key, OpOutcome, RequestId, WallTime, WriteRefusal};
use kvdb::engine::port::WriteError;

use super::{Check, Merging, Truth, Verdict};
use crate::observe::{ClientId, NodeId, Observation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Whether anybody has asked under a condition: else there is nothing to look at.
    any: bool,
    /// The winners that each block found at its keys when it was made.
    found: BTreeMap<(DatabaseId, Dot), BTreeMap<Key, Option<Dot>>>,
    /// How often each key was touched on each node.
    touched: BTreeMap<(NodeId, Key), u64>,
    /// What a client found when it asked, and how often the key had been touched.
    asked: BTreeMap<(ClientId, RequestId), (Key, u64, Option<Dot>)>,
    /// Refused and not asked again.
    refused: BTreeSet<(NodeId, RequestId)>,
    done: u64,
}

impl Check for Conditions {
    fn name(&self) -> &'static str {
        "conditions hold"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        if !self.any {
            return Ok(());
        }
        let Merging { node, block, before, local, wall, .. } = *merging;
        for op in block.ops() {
            *self.touched.entry((node, op.key.clone())).or_default() += 1;
        }
        if local {
            let found = block.ops().iter().map(|op| (op.key.clone(), before.winner(&op.key, wall))).collect();
            self.found.insert((merging.database, block.dot()), found);
            if let Some(answer) = block.answers().iter().find(|answer| self.refused.contains(&(node, answer.request))) {
                return Err(format!("{} of n{node} has the write {:?}, which was refused", block.dot(), answer.request));
            }
        }
        Ok(())
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        match seen {
            Observation::Asked { client, node, database, request, ops, .. } => {
                self.refused.remove(&(*node, *request));
                let Some(op) = ops.iter().find(|op| op.terms.as_ref().is_some_and(|terms| terms.condition.is_some())) else {
                    return Ok(());
                };
                self.any = true;
                let touched = self.touched.get(&(*node, op.key.clone())).copied().unwrap_or(0);
                // Expired or not is the clock's to say, which goes on.
                let copy = truth.copy(*node, *database);
                let plain = copy.alive.get(&op.key).is_none_or(|puts| puts.values().all(|put| put.expiry.is_none()));
                if plain {
                    self.asked.insert((*client, *request), (op.key.clone(), touched, copy.winner(&op.key, WallTime(0))));
                }
                Ok(())
            }
            Observation::Answered { client, node, database, request, ops, answer, .. } => {
                let asked = self.asked.remove(&(*client, *request));
                for (at, op) in ops.iter().enumerate() {
                    let Some(condition) = op.terms.as_ref().and_then(|terms| terms.condition) else { continue };
                    match answer {
                        Ok(written) if written.ops.get(at) != Some(&OpOutcome::Repeated) => {
                            self.done += 1;
                            self.held(*node, *database, &op.key, condition, written.dot)?;
                        }
                        Err(WriteError::Refused(WriteRefusal::Condition { key, current })) if *key == op.key => {
                            self.done += 1;
                            self.refused.insert((*node, *request));
                            self.failed(*node, condition, *current, asked.as_ref())?;
                        }
                        _ => {}
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn marks(&self) -> Vec<(&'static str, u64)> {
        vec![("conditions_judged", self.done)]
    }
}

impl Conditions {
    fn held(&self, node: NodeId, database: DatabaseId, key: &Key, condition: Condition, dot: Option<Dot>) -> Verdict {
        let Some(found) = dot.and_then(|dot| self.found.get(&(database, dot))?.get(key)) else { return Ok(()) };
        let holds = match condition {
            Condition::IfAbsent => found.is_none(),
            Condition::IfMatch(must) => *found == Some(must),
        };
        if holds { Ok(()) } else { Err(format!("n{node} did a write at {key} under {condition:?}, where {found:?} was")) }
    }

    fn failed(
        &self,
        node: NodeId,
        condition: Condition,
        current: Option<Dot>,
        asked: Option<&(Key, u64, Option<Dot>)>,
    ) -> Verdict {
        let holds = |winner: Option<Dot>| match condition {
            Condition::IfAbsent => winner.is_none(),
            Condition::IfMatch(must) => winner == Some(must),
        };
        if holds(current) {
            return Err(format!("n{node} refuses a write under {condition:?} and says that {current:?} is there"));
        }
        let untouched = |(key, touched, _): &&(Key, u64, Option<Dot>)| {
            self.touched.get(&(node, key.clone())).copied().unwrap_or(0) == *touched
        };
        match asked.filter(untouched) {
            Some((key, _, winner)) if *winner != current => {
                Err(format!("n{node} refuses a write at {key} since {current:?} is there, all the time {winner:?} was"))
            }
            _ => Ok(()),
        }
    }
}
