//! How many blocks of one database go out by gossip: it is no bulk channel.

use std::time::Duration;

use crate::net::Moment;
use crate::net::limits::{GOSSIP_BLOCKS_PER_SECOND, GOSSIP_BYTES_PER_SECOND};

/// Counts blocks and bytes of the second that runs.
#[derive(Debug)]
pub(super) struct Rate {
    since: Moment,
    blocks: u64,
    bytes: u64,
}

impl Rate {
    pub(super) fn new(now: Moment) -> Self {
        Self { since: now, blocks: 0, bytes: 0 }
    }

    /// Whether one more block of this size may go out now; counts it if so.
    pub(super) fn allows(&mut self, bytes: usize, now: Moment) -> bool {
        if now >= self.since + Duration::from_secs(1) {
            *self = Self::new(now);
        }
        let bytes = self.bytes + bytes as u64;
        if self.blocks >= GOSSIP_BLOCKS_PER_SECOND || bytes > GOSSIP_BYTES_PER_SECOND {
            return false;
        }
        self.blocks += 1;
        self.bytes = bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many_blocks_and_bytes() {
        let mut rate = Rate::new(Duration::ZERO);
        let small = (0..100).filter(|_| rate.allows(10, Duration::from_millis(5))).count();
        assert_eq!(small as u64, GOSSIP_BLOCKS_PER_SECOND);
        let later = Duration::from_secs(1);
        let large = (0..100).filter(|_| rate.allows(32 << 10, later)).count();
        assert_eq!(large, 32);
    }
}
