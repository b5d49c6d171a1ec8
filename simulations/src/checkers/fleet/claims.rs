//! Nobody claims or lets go on a partial view: not right after its start, not while fewer than half of the members can be
//! reached, and once everything is calm only what somebody who sees all would claim.

use super::super::{Check, Truth, Verdict};
use crate::fleet::FleetSeen;
use crate::observe::Observation;
use crate::time::Time;

/// So long after its start a member makes no claim.
const SETTLE: Time = Time(hoarder::limits::SETTLE_WINDOW.as_secs() * 1_000_000);
/// By then a member knows that the others are out of reach, also if their last words were long under way.
const KNOWS: Time = Time::secs(20);

/// See the module.
#[derive(Debug)]
pub(super) struct Claims;

impl Check for Claims {
    fn name(&self) -> &'static str {
        "claims on a whole view"
    }

    fn seen(&mut self, seen: &Observation<'_>, _: &Truth) -> Verdict {
        let Observation::Fleet(FleetSeen::Claims { node, database, joins, up_for, alone_for, dropped, wanted }) = seen else {
            return Ok(());
        };
        let what = if *joins { "claims" } else { "takes back its claim to" };
        if *dropped {
            return Ok(());
        }
        if *up_for < SETTLE {
            return Err(format!("n{node} {what} {database} {up_for} s after its start"));
        }
        if *alone_for > KNOWS {
            return Err(format!("n{node} {what} {database}, out of reach of half of the members for {alone_for} s"));
        }
        if *joins && *wanted == Some(false) {
            return Err(format!("n{node} claims {database}, which others should hold"));
        }
        Ok(())
    }
}
