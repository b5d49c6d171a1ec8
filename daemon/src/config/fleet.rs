//! The part of the configuration about the fleet.

use std::collections::BTreeSet;
use std::time::Duration;

use hoarder::controller::Options;
use hoarder::limits;
use kvdb::PeerId;

use super::raw::RawFleet;
use super::resolve::Faults;
use crate::limits::{BEAT_MS, DEADLINE_MS, MAX_DEAD_CLAIM_SECONDS, MAX_FLEET_WAIT_MS, MAX_QUIET_MS};

/// How this node takes part in a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetConfig {
    /// What the fleet's library takes. Without members this node is a fleet of its own.
    pub options: Options,
    /// Holders of a database that names no number.
    pub holders: u8,
    /// How long a call waits that names no time.
    pub deadline: Duration,
}

impl FleetConfig {
    /// What is asked for; `None` without members and without `single`.
    pub(super) fn resolve(raw: &RawFleet, faults: &mut Faults) -> Option<Self> {
        let texts = raw.members.clone().unwrap_or_default();
        let single = raw.single == Some(true);
        if texts.is_empty() && !single {
            if *raw != (RawFleet { members: raw.members.clone(), single: raw.single, ..RawFleet::default() }) {
                faults.add("fleet.members", "[]", "other keys of [fleet] are set: give the members' peer ids, or single = true");
            }
            return None;
        }
        if single && !texts.is_empty() {
            faults.add("fleet.single", true, "fleet.members is set too; one of them is enough");
        }
        let members: BTreeSet<PeerId> = faults.parse_all("fleet.members", &texts, "must be a peer id").into_iter().collect();
        if members.len() > limits::MAX_MEMBERS {
            faults.add("fleet.members", members.len(), format!("at most {} members", limits::MAX_MEMBERS));
        }
        let count = if single { 1 } else { texts.len().max(1) };
        let most = u64::try_from(count).unwrap_or(u64::MAX).min(u64::from(limits::MAX_HOLDERS));
        let usual = if single { 1 } else { u64::from(limits::DEFAULT_HOLDERS) };
        let holders = faults.within("fleet.holders", raw.holders, usual, (1, most));
        let capacity = faults.within("fleet.capacity", raw.capacity, Options::default().capacity, (1, limits::MAX_CAPACITY));
        let deadline = faults.within("fleet.deadline_ms", raw.deadline_ms, millis(limits::DEFAULT_DEADLINE), DEADLINE_MS);
        let mut options = Options { members, capacity, ..Options::default() };
        times(raw, &mut options, faults);
        Some(Self { options, holders: u8::try_from(holders).unwrap_or(1), deadline: Duration::from_millis(deadline) })
    }
}

fn times(raw: &RawFleet, options: &mut Options, faults: &mut Faults) {
    let beat = faults.within("fleet.beat_ms", raw.beat_ms, millis(limits::BEAT_INTERVAL), BEAT_MS);
    // Longer than the one before: at least one beat may be late before anybody is suspected.
    let suspect = faults.within("fleet.suspect_ms", raw.suspect_ms, millis(limits::SUSPECT_AFTER), (beat + 1, MAX_FLEET_WAIT_MS));
    let dead = faults.within("fleet.dead_ms", raw.dead_ms, millis(limits::DEAD_AFTER), (suspect + 1, MAX_FLEET_WAIT_MS));
    let settle = faults.within("fleet.settle_ms", raw.settle_ms, millis(limits::SETTLE_WINDOW), (0, MAX_FLEET_WAIT_MS));
    let quiet = faults.within("fleet.quiet_ms", raw.quiet_ms, millis(limits::QUIET_TIME), (0, MAX_QUIET_MS));
    let grace = faults.within(
        "fleet.dead_claim_seconds",
        raw.dead_claim_seconds,
        limits::DEAD_CLAIM_GRACE.as_secs(),
        (1, MAX_DEAD_CLAIM_SECONDS),
    );
    options.beat_interval = Duration::from_millis(beat);
    options.membership.suspect_after = Duration::from_millis(suspect);
    options.membership.indirect_after = Duration::from_millis(suspect.midpoint(dead));
    options.membership.dead_after = Duration::from_millis(dead);
    options.membership.settle_window = Duration::from_millis(settle);
    options.claims.quiet_time = Duration::from_millis(quiet);
    options.claims.dead_claim_grace = Duration::from_secs(grace);
    // A question is asked again within the time in which its answer would be missed.
    options.claims.ask_again = limits::ASK_AGAIN.min(options.membership.dead_after / 2);
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
