//! The hybrid logical clock (Kulkarni et al., "Logical Physical Clocks", 2014), with a bound on what others can push.

use std::fmt;

use crate::limits::{MAX_CLOCK_DRIFT_MS, MAX_UINT};
use crate::mutation::{Mutation, active};

/// A clock reading: 48 bits of Unix milliseconds, 16 bits of counter; below 2^63.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The milliseconds since the Unix epoch.
    #[must_use]
    pub fn unix_ms(self) -> u64 {
        self.0 >> 16
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.unix_ms(), self.0 & 0xffff)
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The time as this node's clock tells it: Unix milliseconds. An argument wherever something is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub u64);

impl WallTime {
    fn stamp(self) -> u64 {
        // A clock beyond the year 6429 stands still at the end of the range rather than wrap.
        (self.0.min(MAX_UINT >> 16)) << 16
    }
}

/// The last stamp given or seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    last: Stamp,
}

impl Clock {
    /// A clock that continues from a stored reading.
    #[must_use]
    pub fn resume(last: Stamp) -> Self {
        Self { last }
    }

    /// The last stamp given or seen, to be stored with every commit.
    #[must_use]
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// The stamp of a new block.
    pub fn tick(&mut self, now: WallTime) -> Stamp {
        let drift = if active(Mutation::ClockUnbounded) { u64::MAX } else { MAX_CLOCK_DRIFT_MS };
        let ceiling = WallTime(now.0.saturating_add(drift)).stamp();
        let next = (self.last.0.min(ceiling) + 1).max(now.stamp()).min(MAX_UINT);
        self.last = self.last.max(Stamp(next));
        Stamp(next)
    }

    /// Takes note of a merged block's stamp.
    pub fn observe(&mut self, stamp: Stamp) {
        self.last = self.last.max(stamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_rise_while_the_clock_stands_or_steps_back() {
        let mut clock = Clock::default();
        let first = clock.tick(WallTime(1_000));
        assert_eq!(first.unix_ms(), 1_000);
        assert!(clock.tick(WallTime(1_000)) > first);
        assert!(clock.tick(WallTime(1)) > first);
    }

    #[test]
    fn a_stamp_far_ahead_pushes_this_clock_by_the_drift_at_most() {
        let mut clock = Clock::default();
        clock.observe(Stamp(MAX_UINT));
        assert_eq!(clock.last(), Stamp(MAX_UINT));
        let next = clock.tick(WallTime(5_000));
        assert_eq!(next.unix_ms(), 5_000 + MAX_CLOCK_DRIFT_MS);
        assert_eq!(clock.last(), Stamp(MAX_UINT));
        assert!(clock.tick(WallTime(u64::MAX)).0 <= MAX_UINT);
    }
}
