//! What a member counts and shows: for `/metrics`, `/v1/status` and `/readyz`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hoarder::FleetError;
use hoarder::controller::Figures;
use hoarder::membership::Heard;
use hoarder::registry::ClaimState;
use serde_json::{Value, json};

use super::super::metrics::Text;
use super::Member;
use crate::problem::{Code, Problem};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// A write that was confirmed as asked.
    Confirmed,
    /// A write that is committed, but not confirmed.
    Unconfirmed,
    /// A write that was refused for want of holders.
    TooFewHolders,
    /// A write for which no ready holder was reached.
    NotReady,
    /// A write of which nobody knows.
    Unknown,
    /// A write that was refused otherwise.
    Refused,
    /// A request that another member answered.
    PassedOn,
    /// A request to one who does not serve the database.
    StaleView,
    /// A request that a member did not answer.
    Missed,
    /// A request of another member.
    Taken,
    /// A request of another member that found no place.
    Overload,
    /// A request of somebody who is no member.
    Stranger,
}

/// Each with its metric and its label.
const COUNTED: [(Counted, &str, &str); 12] = [
    (Counted::Confirmed, WRITES, "confirmed"),
    (Counted::Unconfirmed, WRITES, "unconfirmed"),
    (Counted::TooFewHolders, WRITES, "not_enough_holders"),
    (Counted::NotReady, WRITES, "not_ready"),
    (Counted::Unknown, WRITES, "unknown"),
    (Counted::Refused, WRITES, "refused"),
    (Counted::PassedOn, FORWARDED, "answered"),
    (Counted::StaleView, FORWARDED, "stale_view"),
    (Counted::Missed, FORWARDED, "missed"),
    (Counted::Taken, TAKEN, "member"),
    (Counted::Overload, TAKEN, "no_place"),
    (Counted::Stranger, TAKEN, "stranger"),
];
const WRITES: &str = "kvdb_fleet_writes_total";
const FORWARDED: &str = "kvdb_fleet_forwarded_requests_total";
const TAKEN: &str = "kvdb_fleet_member_requests_total";

/// Upper bounds of the histogram of answered writes, in milliseconds.
const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 10_000];

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    counts: [AtomicU64; COUNTED.len()],
    buckets: [AtomicU64; BUCKETS_MS.len()],
    sum_us: AtomicU64,
    writes: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, what: Counted) {
        let place = COUNTED.iter().position(|(counted, ..)| *counted == what);
        if let Some(counter) = place.and_then(|place| self.counts.get(place)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A write was answered after so long.
    pub(super) fn took(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        for (bound, bucket) in BUCKETS_MS.iter().zip(&self.buckets) {
            if millis < *bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.sum_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(0), Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    fn render(&self, text: &mut Text) {
        for (metric, help) in [
            (WRITES, "Writes by what they came to."),
            (FORWARDED, "Requests passed on to other members, by what became of them."),
            (TAKEN, "Requests that came from other nodes, by who sent them."),
        ] {
            text.metric(metric, "counter", help);
            for ((_, _, label), counter) in COUNTED.iter().zip(&self.counts).filter(|((_, of, _), _)| *of == metric) {
                text.sample(metric, &format!("outcome=\"{label}\""), counter.load(Ordering::Relaxed));
            }
        }
        let name = "kvdb_fleet_write_seconds";
        text.metric(name, "histogram", "Time from a write's arrival to its answer.");
        for (bound, bucket) in BUCKETS_MS.iter().zip(&self.buckets) {
            let bound = Duration::from_millis(*bound).as_secs_f64();
            text.sample(&format!("{name}_bucket"), &format!("le=\"{bound}\""), bucket.load(Ordering::Relaxed));
        }
        let writes = self.writes.load(Ordering::Relaxed);
        text.sample(&format!("{name}_bucket"), "le=\"+Inf\"", writes);
        text.sample(&format!("{name}_sum"), "", Duration::from_micros(self.sum_us.load(Ordering::Relaxed)).as_secs_f64());
        text.sample(&format!("{name}_count"), "", writes);
    }
}

impl Member {
    async fn figures(&self) -> Result<Figures, FleetError> {
        self.fleet().look(hoarder::Controller::figures).await
    }

    /// Whether this node knows the fleet: which databases there are, and who holds them.
    ///
    /// # Errors
    /// When it does not.
    pub(in super::super) async fn check_ready(&self) -> Result<(), Problem> {
        let figures = self.figures().await?;
        let lacks = if figures.twice {
            "another process runs under this node's identity"
        } else if figures.cut_off {
            "no other member of the fleet is heard"
        } else if !figures.checked {
            "the fleet's registry has not been compared with enough members yet"
        } else {
            return Ok(());
        };
        Err(Problem::new(Code::NotCaughtUp, lacks))
    }

    /// The fleet's part of `/metrics`.
    pub(in super::super) async fn render(&self, text: &mut Text) -> Result<(), Problem> {
        let figures = self.figures().await?;
        for (name, help, value) in [
            ("kvdb_fleet_members", "Members of the fleet, dead ones included.", figures.known),
            ("kvdb_fleet_members_live", "Live members, this one included.", figures.live),
            (
                "kvdb_fleet_frozen",
                "1 while fewer than half of the members are live: no database moves.",
                usize::from(figures.frozen),
            ),
            ("kvdb_fleet_draining", "1 while this node is to hold nothing.", usize::from(figures.draining)),
            ("kvdb_fleet_databases", "Databases of the fleet.", figures.databases),
            ("kvdb_fleet_serving", "Databases of which this node is a ready holder.", figures.serving),
            ("kvdb_fleet_waiting_writes", "Writes that wait for their confirmation here.", figures.waiting),
            ("kvdb_fleet_calls", "Calls under way.", figures.calls),
        ] {
            text.metric(name, "gauge", help);
            text.sample(name, "", value);
        }
        text.metric("kvdb_fleet_claims", "gauge", "Databases that this node claims, by the state of the claim.");
        for state in [ClaimState::Joining, ClaimState::Ready, ClaimState::Leaving] {
            let count = figures.claims.get(&state).copied().unwrap_or(0);
            text.sample("kvdb_fleet_claims", &format!("state=\"{}\"", claim_state(state)), count);
        }
        text.metric("kvdb_fleet_heartbeats_total", "counter", "Heartbeats heard, by what they were worth.");
        for heard in [Heard::Counted, Heard::Unconfirmed, Heard::Old, Heard::Stranger, Heard::Forged, Heard::Malformed] {
            let count = figures.heard.get(&heard).copied().unwrap_or(0);
            text.sample("kvdb_fleet_heartbeats_total", &format!("worth=\"{}\"", worth(heard)), count);
        }
        text.metric("kvdb_fleet_refused_records_total", "counter", "Entries of the registry that were no such entries.");
        text.sample("kvdb_fleet_refused_records_total", "", figures.refused);
        self.counters().render(text);
        Ok(())
    }
}

/// The fleet's part of `/v1/status`.
pub(in super::super) async fn status(member: &Member) -> Result<Value, Problem> {
    Ok(describe(&member.figures().await?))
}

/// Figures as JSON.
pub(super) fn describe(figures: &Figures) -> Value {
    let Figures { known, live, epoch, settled, frozen, cut_off, twice, checked, draining, .. } = figures;
    let claims: serde_json::Map<String, Value> =
        figures.claims.iter().map(|(state, count)| (claim_state(*state).to_owned(), json!(count))).collect();
    json!({
        "members": known, "live": live, "epoch": format!("{epoch:?}"), "settled": settled, "frozen": frozen, "cut_off": cut_off,
        "twice": twice, "checked": checked, "draining": draining, "databases": figures.databases, "serving": figures.serving,
        "claims": claims, "waiting_writes": figures.waiting, "calls": figures.calls,
    })
}

pub(super) fn claim_state(state: ClaimState) -> &'static str {
    match state {
        ClaimState::Joining => "joining",
        ClaimState::Ready => "ready",
        ClaimState::Leaving => "leaving",
    }
}

fn worth(heard: Heard) -> &'static str {
    match heard {
        Heard::Counted => "counted",
        Heard::Unconfirmed => "unconfirmed",
        Heard::Old => "old",
        Heard::Stranger => "stranger",
        Heard::Forged => "forged",
        Heard::Malformed => "malformed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_place_and_the_histogram_is_cumulative() {
        let counters = Counters::default();
        for (counted, ..) in COUNTED {
            counters.count(counted);
        }
        for millis in [0, 7, 700, 60_000] {
            counters.took(Duration::from_millis(millis));
        }
        let mut text = Text::default();
        counters.render(&mut text);
        let text = text.into_string();
        assert_eq!(text.lines().filter(|line| line.contains("outcome=\"") && line.ends_with(" 1")).count(), COUNTED.len());
        for line in
            ["_bucket{le=\"0.001\"} 1", "_bucket{le=\"0.01\"} 2", "_bucket{le=\"1\"} 3", "_bucket{le=\"10\"} 3", "_count 4"]
        {
            assert!(text.contains(&format!("kvdb_fleet_write_seconds{line}")), "{line}\n{text}");
        }
    }
}
