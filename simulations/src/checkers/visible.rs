//! On a network without faults a block is on every node within the time that the scenario allows, once nodes have found each
//! other.

use std::collections::BTreeMap;

use crdt::{DatabaseId, Dot};

use super::{Check, Merging, Truth, Verdict};
use crate::time::Time;

/// Until then connections come about.
const BEGINNING: Time = Time::secs(5);

/// See the module. Without a limit nothing is looked at.
#[derive(Debug)]
pub(super) struct Visible {
    limit: Option<Time>,
    made: BTreeMap<(DatabaseId, Dot), Time>,
}

impl Visible {
    /// With a limit in milliseconds; none for 0.
    pub(super) fn within(ms: u64) -> Self {
        Self { limit: (ms > 0).then_some(Time::ms(ms)), made: BTreeMap::new() }
    }
}

impl Check for Visible {
    fn name(&self) -> &'static str {
        "visible in time"
    }

    fn merging(&mut self, merging: &Merging<'_>, _: &Truth) -> Verdict {
        let Some(limit) = self.limit else { return Ok(()) };
        let (dot, at) = (merging.block.dot(), merging.at);
        let made = *self.made.entry((merging.database, dot)).or_insert(at);
        if made >= BEGINNING && at.since(made) > limit {
            return Err(format!(
                "{dot} came to n{} {} s after it was made, the limit is {limit} s",
                merging.node,
                at.since(made)
            ));
        }
        Ok(())
    }
}
