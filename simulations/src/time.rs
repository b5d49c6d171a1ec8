//! Virtual time: microseconds since the world began.

use std::fmt;
use std::time::Duration;

/// A moment, or a length of time, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The beginning.
    pub const ZERO: Self = Self(0);

    /// So many milliseconds.
    #[must_use]
    pub const fn ms(ms: u64) -> Self {
        Self(ms * 1_000)
    }

    /// So many seconds.
    #[must_use]
    pub const fn secs(secs: u64) -> Self {
        Self(secs * 1_000_000)
    }

    /// How long after `earlier`; zero if before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// As the state machines count time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// From their time, rounded up, so that a timer is never early.
    #[must_use]
    pub fn from_duration(duration: Duration) -> Self {
        let rest = u64::from(!duration.subsec_nanos().is_multiple_of(1_000));
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).saturating_add(rest))
    }
}

impl std::ops::Add for Time {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
