//! A batch is in one block, whole, and a block has nothing that nobody asked for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::{Change, Key, OpOutcome};

use super::{Check, Truth, Verdict};
use crate::observe::Observation;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Everything that anybody asked to put at a key.
    values: BTreeMap<Key, BTreeSet<Bytes>>,
}

impl Check for Batches {
    fn name(&self) -> &'static str {
        "whole batches"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        match seen {
            Observation::Asked { ops, .. } => {
                for op in *ops {
                    if let Change::Put { value, .. } = &op.change {
                        self.values.entry(op.key.clone()).or_default().insert(value.clone());
                    }
                }
            }
            Observation::Answered { database, ops, answer: Ok(written), .. } => {
                let Some(dot) = written.dot else { return Ok(()) };
                let Some(block) = truth.blocks.get(&(*database, dot)) else { return Ok(()) };
                for (asked, outcome) in ops.iter().zip(&written.ops) {
                    if matches!(outcome, OpOutcome::Put | OpOutcome::Deleted) && !block.ops().iter().any(|op| op.key == asked.key)
                    {
                        return Err(format!("a batch was answered by {dot}, which has nothing at {}", asked.key));
                    }
                }
                for op in block.ops() {
                    let Change::Put { value, .. } = &op.change else { continue };
                    if !self.values.get(&op.key).is_some_and(|values| values.contains(value)) {
                        return Err(format!("{dot} puts a value at {} that nobody asked for", op.key));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
