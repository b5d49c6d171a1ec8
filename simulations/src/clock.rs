//! What a node's wall clock shows: skewed, stepped and drifting. Its monotonic clock is virtual time itself, which goes on
//! while the process is frozen.

use crdt::WallTime;

use crate::time::Time;

/// When the world begins, in Unix milliseconds: an ordinary day, so that skews of hours stay in range.
const BEGINNING_MS: i128 = 1_767_225_600_000;

/// One node's wall clock.
#[derive(Debug, Clone, Copy)]
pub struct NodeClock {
    offset_us: i64,
    /// Parts in a million too fast.
    drift_ppm: i64,
    /// Since when that drift has been at work.
    since: Time,
}

impl NodeClock {
    /// A clock that is so many milliseconds ahead and so many parts in a million too fast.
    #[must_use]
    pub fn new(ahead_ms: i64, drift_ppm: i64) -> Self {
        Self { offset_us: ahead_ms.saturating_mul(1_000), drift_ppm, since: Time::ZERO }
    }

    /// What it shows.
    #[must_use]
    pub fn read(&self, now: Time) -> WallTime {
        let us = i128::from(now.0) + i128::from(self.offset(now)) + BEGINNING_MS * 1_000;
        WallTime(u64::try_from(us / 1_000).unwrap_or(0))
    }

    /// Steps it forwards or backwards.
    pub fn step(&mut self, now: Time, by_ms: i64) {
        self.offset_us = self.offset(now).saturating_add(by_ms.saturating_mul(1_000));
        self.since = now;
    }

    /// Gives it another drift.
    pub fn drift(&mut self, now: Time, ppm: i64) {
        self.offset_us = self.offset(now);
        self.since = now;
        self.drift_ppm = ppm;
    }

    fn offset(&self, now: Time) -> i64 {
        let drifted = i128::from(now.since(self.since).0) * i128::from(self.drift_ppm) / 1_000_000;
        self.offset_us.saturating_add(i64::try_from(drifted).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_ahead_steps_and_drifts() {
        let start = NodeClock::new(0, 0).read(Time::ZERO).0;
        let mut clock = NodeClock::new(3_600_000, 1_000);
        assert_eq!(clock.read(Time::ZERO).0 - start, 3_600_000);
        // A thousand parts in a million: a second in a thousand.
        assert_eq!(clock.read(Time::secs(1_000)).0 - start, 3_600_000 + 1_001_000);
        clock.step(Time::secs(1_000), -7_200_000);
        clock.drift(Time::secs(1_000), 0);
        assert_eq!(start + 1_001_000 - clock.read(Time::secs(1_000)).0, 3_600_000);
    }
}
