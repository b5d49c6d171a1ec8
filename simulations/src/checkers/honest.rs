//! Nobody who keeps to the protocol is cut off for breaking it: such a verdict costs a pair of nodes up to ten minutes.

use super::{Check, Truth, Verdict};
use crate::faults::number_of;
use crate::observe::Observation;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Honest {
    /// Somebody's words were changed, so that verdicts may be just.
    liars: bool,
}

impl Check for Honest {
    fn name(&self) -> &'static str {
        "honest peers are not cut off"
    }

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        match seen {
            Observation::Fault { number, .. } => {
                let liars = ["hostile-peer", "corrupt-frame"];
                self.liars |= liars.iter().any(|name| number_of(name) == Some(*number));
                Ok(())
            }
            Observation::CutOff { node, what } if !self.liars => Err(format!("n{node} cuts an honest peer off: {what}")),
            _ => Ok(()),
        }
    }
}
