//! How much of a database's history may be dropped: a function of the log, of what other nodes have on disk, and of
//! options. Blocks are needed only to feed nodes that are behind; the rows hold the state.

use std::collections::VecDeque;
use std::time::Duration;

use crdt::mutation::{Mutation, active};
use crdt::{LogEntry, VersionVector};

use crate::limits::{COMPACT_INTERVAL, HISTORY_HARD_BYTES, HISTORY_MIN_AGE, MAX_AGE_MARKS, SHRUNK_ROWS};

/// How history is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryOptions {
    /// How many other nodes must have a block on disk, by their acknowledgements, before it may be dropped here. Default
    /// 1. With 0 nobody needs to have it: for a node that will stay alone. Whoever joins later needs a snapshot.
    pub holders: usize,
    /// Blocks younger than this are kept, unless there are more than `max_bytes`. Age is counted from the merge here, or
    /// from the opening of the database. Default 1 h.
    pub min_age: Duration,
    /// Beyond so many bytes the oldest blocks go although known nodes lack them or they are young, but never before
    /// `holders` nodes have them. Default: the larger of 256 MiB and the size of the rows.
    pub max_bytes: Option<u64>,
    /// With more bytes of blocks than this that fewer than `holders` other nodes have, writes are refused. Default 16 GiB.
    pub hard_bytes: u64,
    /// How often history is looked at, with a jitter of a quarter; `None`: by command only. Default 60 s.
    pub interval: Option<Duration>,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        Self {
            holders: 1,
            min_age: HISTORY_MIN_AGE,
            max_bytes: None,
            hard_bytes: HISTORY_HARD_BYTES,
            interval: Some(COMPACT_INTERVAL),
        }
    }
}

/// What is known when a plan is made.
#[derive(Debug, Clone)]
pub struct Known<'a> {
    /// What each known peer has on disk.
    pub peers: &'a [VersionVector],
    /// How many of them must have a block before it may go.
    pub holders: usize,
    /// The last revision that is old enough.
    pub aged: u64,
    /// Bytes of blocks that are kept now.
    pub history_bytes: u64,
    /// Bytes of blocks that may be kept.
    pub max_bytes: u64,
    /// A revision that something still needs, with all after it.
    pub pinned: Option<u64>,
}

/// What may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plan {
    /// The last revision that may be dropped; 0 for none.
    pub through: u64,
    /// How many blocks that is.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of blocks, in log order, before the first that too few nodes have.
    pub safe_bytes: u64,
}

/// Which of the oldest blocks may be dropped. Reads the log to the first block that too few nodes have.
///
/// # Errors
/// When the log cannot be read.
pub fn plan<E>(log: impl Iterator<Item = Result<LogEntry, E>>, known: &Known<'_>) -> Result<Plan, E> {
    let mut plan = Plan::default();
    let (mut wanted, mut stopped) = (false, false);
    for entry in log {
        let entry = entry?;
        let holders = known.peers.iter().filter(|durable| durable.covers(&entry.dot)).count();
        if holders < known.holders && !active(Mutation::TruncatedUnheld) {
            break;
        }
        plan.safe_bytes += u64::from(entry.bytes);
        wanted |= holders < known.peers.len() || entry.revision > known.aged;
        let over = known.history_bytes.saturating_sub(plan.bytes) > known.max_bytes;
        stopped |= (wanted && !over) || known.pinned.is_some_and(|pinned| entry.revision >= pinned);
        if !stopped {
            plan.through = entry.revision;
            plan.blocks += 1;
            plan.bytes += u64::from(entry.bytes);
        }
    }
    Ok(plan)
}

/// When which revision had been reached, in steps: tells how old history is without a time in it.
#[derive(Debug, Default)]
pub struct Ages(VecDeque<(Duration, u64)>);

impl Ages {
    /// At this monotonic time the log had come to this revision. Marks closer together than a 64th of `age` are one.
    pub fn note(&mut self, now: Duration, revision: u64, age: Duration) {
        let step = age / u32::try_from(MAX_AGE_MARKS).unwrap_or(u32::MAX);
        if self.0.back().is_none_or(|(at, last)| *last < revision && *at + step <= now) {
            self.0.push_back((now, revision));
        }
        // Of those that are old enough only the last one says anything.
        while self.0.len() > 2 * MAX_AGE_MARKS || self.0.get(1).is_some_and(|(at, _)| *at + age <= now) {
            self.0.pop_front();
        }
    }

    /// The last revision that is known to be at least this old.
    #[must_use]
    pub fn older_than(&self, now: Duration, age: Duration) -> u64 {
        if age.is_zero() {
            return u64::MAX;
        }
        self.0.iter().rev().find(|(at, _)| *at + age <= now).map_or(0, |(_, revision)| *revision)
    }
}

/// The most keys since the files of rows were rewritten: after mass deletes a listing wades through what is left of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peak(u64);

impl Peak {
    /// Whether so many rows are gone that rewriting is worth it; if so, counting begins anew.
    pub fn shrunk(&mut self, keys: u64) -> bool {
        self.0 = self.0.max(keys);
        let shrunk = self.0 > 2 * keys + SHRUNK_ROWS;
        if shrunk {
            self.0 = keys;
        }
        shrunk
    }
}

/// Bytes that no other node is known to have, between two looks at the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsafe {
    /// At the last look.
    bytes: u64,
    /// The history's bytes then.
    history: u64,
}

impl Unsafe {
    /// Nothing is known yet: what was there at the opening is taken for safe until the first look.
    #[must_use]
    pub fn unknown(history: u64) -> Self {
        Self { bytes: 0, history }
    }

    /// After a look at the log.
    #[must_use]
    pub fn seen(bytes: u64, history: u64) -> Self {
        Self { bytes, history }
    }

    /// Now that the history has this many bytes: whatever came since counts.
    #[must_use]
    pub fn bytes(&self, history: u64) -> u64 {
        self.bytes + history.saturating_sub(self.history)
    }
}

#[cfg(test)]
mod tests {
    use crdt::{Dot, ReplicaId};
    use quickcheck::quickcheck;

    use super::*;

    fn log(len: u64) -> Vec<LogEntry> {
        let dot =
            |revision: u64| Dot { replica: ReplicaId([u8::from(revision.is_multiple_of(2)); 16]), seq: revision.div_ceil(2) };
        (1..=len).map(|revision| LogEntry { revision, dot: dot(revision), bytes: 10 }).collect()
    }

    /// What a peer has that has merged the log up to a revision.
    fn up_to(revision: u64) -> VersionVector {
        log(revision).iter().map(|entry| (entry.dot.replica, entry.dot.seq)).collect()
    }

    fn known(peers: &[VersionVector]) -> Known<'_> {
        Known { peers, holders: 1, aged: 100, history_bytes: 1_000, max_bytes: 1_000, pinned: None }
    }

    fn check(known: &Known<'_>, expected: u64) {
        let plan = plan(log(100).into_iter().map(Ok::<_, ()>), known).unwrap();
        assert_eq!((plan.through, plan.blocks, plan.bytes), (expected, expected, expected * 10), "{known:?}");
    }

    #[test]
    fn t06_nothing_goes_before_enough_nodes_have_it_and_nothing_early_that_a_known_one_lacks() {
        let (some, more, all) = (up_to(30), up_to(70), up_to(100));
        check(&known(&[]), 0);
        check(&Known { holders: 0, ..known(&[]) }, 100);
        check(&known(std::slice::from_ref(&some)), 30);
        let two = [some.clone(), all.clone()];
        check(&known(&two), 30);
        check(&Known { holders: 3, ..known(&two) }, 0);
        // Too young, but for what is too much.
        check(&Known { aged: 20, ..known(std::slice::from_ref(&all)) }, 20);
        check(&Known { aged: 20, max_bytes: 600, ..known(std::slice::from_ref(&all)) }, 40);
        // Lacking at one, but for what is too much; never what too few have.
        let peers = [some.clone(), more, all.clone()];
        check(&Known { max_bytes: 495, ..known(&peers) }, 51);
        check(&Known { max_bytes: 0, ..known(&peers) }, 100);
        check(&Known { max_bytes: 0, holders: 2, ..known(&peers) }, 70);
        check(&Known { max_bytes: 0, holders: 3, ..known(&peers) }, 30);
        check(&Known { max_bytes: 0, pinned: Some(11), ..known(&peers) }, 10);
        let unread = vec![Err("unread"), Ok(log(1)[0])];
        assert_eq!(plan(unread.into_iter(), &known(&peers)), Err("unread"));
    }

    #[test]
    fn age_is_counted_from_when_a_revision_was_seen() {
        let (mut ages, hour, minute) = (Ages::default(), Duration::from_secs(3_600), Duration::from_secs(60));
        for at in 0..1_000_u32 {
            ages.note(minute * at, u64::from(at) * 5, hour);
            assert!(ages.0.len() <= MAX_AGE_MARKS + 2, "{}", ages.0.len());
        }
        let now = minute * 999;
        let oldest = ages.older_than(now, hour);
        assert!((999 - 62..=999 - 60).contains(&(oldest / 5)), "{oldest}");
        assert_eq!(ages.older_than(now, Duration::ZERO), u64::MAX);
        assert_eq!(ages.older_than(now, hour * 24), 0);
        assert_eq!(Ages::default().older_than(now, minute), 0);
    }

    #[test]
    fn s01_mass_deletes_are_noticed_once() {
        let mut peak = Peak::default();
        assert!(!peak.shrunk(1_000_000) && !peak.shrunk(600_000));
        assert!(peak.shrunk(100_000));
        assert!(!peak.shrunk(100_000) && !peak.shrunk(50_000) && peak.shrunk(0));
        assert!(!peak.shrunk(9_000) && !peak.shrunk(0), "few are not worth it");
    }

    #[test]
    fn what_came_since_the_last_look_counts_as_unsafe() {
        assert_eq!(Unsafe::unknown(500).bytes(500), 0);
        assert_eq!(Unsafe::unknown(500).bytes(700), 200);
        assert_eq!(Unsafe::seen(40, 700).bytes(600), 40);
        assert_eq!(Unsafe::seen(40, 700).bytes(710), 50);
    }

    quickcheck! {
        fn a_plan_never_exceeds_what_is_safe(peers: Vec<u8>, holders: u8, aged: u8, max_bytes: u16) -> bool {
            let peers: Vec<VersionVector> = peers.into_iter().take(5).map(|revision| up_to(u64::from(revision) % 101)).collect();
            let holders = usize::from(holders) % 4;
            let known = Known {
                peers: &peers, holders, aged: aged.into(), history_bytes: 1_000, max_bytes: max_bytes.into(), pinned: None,
            };
            let plan = plan(log(100).into_iter().map(Ok::<_, ()>), &known).unwrap();
            let dropped = log(plan.through);
            let held = |entry: &LogEntry| peers.iter().filter(|vv| vv.covers(&entry.dot)).count() >= holders;
            let needed = |entry: &LogEntry| peers.iter().any(|vv| !vv.covers(&entry.dot)) || entry.revision > u64::from(aged);
            // Past what somebody needs only for the sake of bytes, and not a block further.
            let early = dropped.iter().find(|entry| needed(entry)).is_none_or(|_| 1_000 - (plan.bytes - 10) > u64::from(max_bytes));
            plan.safe_bytes >= plan.bytes && dropped.iter().all(held) && early
        }
    }
}
