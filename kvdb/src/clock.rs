//! Where this crate reads clocks, besides the drivers.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crdt::WallTime;

/// The time by this machine's clock. One before 1970 reads as 1970; stamps go on rising from what is stored.
pub(crate) fn wall_time() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The monotonic time.
pub(crate) fn now() -> Instant {
    Instant::now()
}
