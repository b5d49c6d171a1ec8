//! What is known of one database with one peer.

use std::collections::VecDeque;

use super::feed::first_missing;
use super::*;
use crate::net::limits::{BELOW_FLOOR_READ_INTERVAL, MAX_STRANGE_ENTRIES, MIN_SYNC_GAP};

/// Where the log is read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cursor {
    /// At the first block that the peer lacks, wherever that is.
    FirstMissing,
    /// Everything before this revision is covered by the peer or on its way.
    At(u64),
}

/// One database with one peer.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that vary independently")]
pub(super) struct Session {
    pub(super) peer: PeerId,
    pub(super) database: DatabaseId,

    // What comes in.
    /// Bytes of blocks that came.
    pub(super) received: u64,
    /// Bytes of blocks that the engine has taken.
    pub(super) consumed: u64,
    /// `consumed` as the peer knows it.
    pub(super) told: u64,
    /// Blocks put off, to be counted with the next delivery.
    pub(super) put_off: usize,
    /// Until when credit is held back.
    pub(super) late: Option<Moment>,
    /// When blocks came last.
    pub(super) received_at: Option<Moment>,
    /// Nothing is known to be lacking here.
    pub(super) settled: bool,

    // What goes out.
    /// Whether the peer's version vector is known.
    pub(super) known: bool,
    /// What the peer covers or has on its way.
    pub(super) assumed: VersionVector,
    /// Blocks sent and not yet taken by the peer, with their bytes.
    pub(super) in_flight: VecDeque<(Dot, u64)>,
    pub(super) in_flight_bytes: u64,
    /// Bytes of blocks that the peer has taken.
    pub(super) taken: u64,
    /// Bytes that may be in flight.
    pub(super) credit: u64,
    /// Blocks read and not yet sent.
    pub(super) stash: VecDeque<(Dot, Bytes)>,
    pub(super) cursor: Cursor,
    /// A read is under way.
    pub(super) reading: bool,
    /// What the read under way brings is out of date.
    pub(super) discard: bool,
    /// Nothing is left to read.
    pub(super) caught_up: bool,
    /// The peer lacks blocks that are not kept here any more: of the others only what it can merge all the same goes out.
    pub(super) peer_below: bool,
    /// When the log was last read from the first block that such a peer lacks.
    pub(super) below_read_at: Option<Moment>,
    /// New blocks go out at once.
    pub(super) live: bool,
    /// A comparison found that the peer lacks something: to be sent, and then compared again.
    pub(super) round: bool,

    // Comparing.
    /// Questions without an answer.
    pub(super) asked: u32,
    /// Questions of the peer in the second that began then.
    pub(super) questions: (Moment, u32),
    /// Our list went out since the last question of either side.
    pub(super) list_sent: bool,
    /// The peer's list, as far as it has come.
    pub(super) incoming: VersionVector,
    /// The last writer of it.
    pub(super) incoming_last: Option<ReplicaId>,
    /// It names more writers unknown here than are kept.
    pub(super) incoming_more: bool,
    /// By that list, blocks are lacking here that the peer does not keep any more.
    pub(super) incoming_below: bool,
    /// By the last comparison, blocks are lacking here that the peer does not keep any more.
    pub(super) below: bool,
    /// Version vector hashes, ours and theirs, at the last comparison.
    pub(super) compared: Option<([u8; 32], [u8; 32])>,
    pub(super) gap: std::time::Duration,
    pub(super) asked_at: Option<Moment>,
    pub(super) timer: Option<Moment>,
    /// Since when a question is due that a busy stream puts off.
    pub(super) due: Option<Moment>,
    /// A version vector that was announced: once we have it, there is nothing to ask.
    pub(super) announced: Option<[u8; 32]>,
    /// Both were equal at the last comparison.
    pub(super) equal: bool,

    /// What the peer has on disk.
    pub(super) durable: VersionVector,
    /// It said more of writers unknown here than is kept.
    pub(super) durable_more: bool,
}

impl Session {
    pub(super) fn new(peer: PeerId, database: DatabaseId, credit: u64) -> Self {
        Self {
            peer,
            database,
            received: 0,
            consumed: 0,
            told: 0,
            put_off: 0,
            late: None,
            received_at: None,
            settled: false,
            known: false,
            assumed: VersionVector::default(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            taken: 0,
            credit,
            stash: VecDeque::new(),
            cursor: Cursor::FirstMissing,
            reading: false,
            discard: false,
            caught_up: false,
            peer_below: false,
            below_read_at: None,
            live: false,
            round: false,
            asked: 0,
            questions: (Moment::ZERO, 0),
            list_sent: false,
            incoming: VersionVector::default(),
            incoming_last: None,
            incoming_more: false,
            incoming_below: false,
            below: false,
            compared: None,
            gap: MIN_SYNC_GAP,
            asked_at: None,
            timer: None,
            due: None,
            announced: None,
            equal: false,
            durable: VersionVector::default(),
            durable_more: false,
        }
    }

    /// Whether an entry of what the peer says that it has is kept: those of writers known here are, of others only so many.
    pub(super) fn keeps(kept: &VersionVector, local: &Local, replica: &ReplicaId) -> bool {
        local.vv().get(replica) > 0 || kept.get(replica) > 0 || kept.len() < local.vv().len() + MAX_STRANGE_ENTRIES
    }

    pub(super) fn status(&self) -> SessionStatus {
        SessionStatus {
            synced: self.settled,
            live: self.live && self.known,
            in_flight: self.in_flight_bytes,
            needs_snapshot: self.peer_below,
            below_floor: self.below,
        }
    }

    /// Everything for the peer has gone out and was taken.
    pub(super) fn drained(&self) -> bool {
        !self.known || (self.caught_up && self.stash.is_empty() && self.in_flight.is_empty())
    }

    /// Whether a block of this size may go out now.
    pub(super) fn may_send(&self, bytes: u64) -> bool {
        self.in_flight_bytes == 0 || self.in_flight_bytes + bytes <= self.credit
    }

    /// Whether reading the log would bring something that may be sent.
    pub(super) fn wants_read(&self) -> bool {
        self.known
            && (self.live || self.round)
            && !self.caught_up
            && !self.reading
            && self.stash.is_empty()
            // Half a credit at least, or catching up would read crumbs.
            && self.in_flight_bytes <= self.credit / 2
    }

    /// Takes the peer's own word for what it covers; of what was assumed only what is really on its way stays.
    pub(super) fn learn(&mut self, theirs: VersionVector, local: &Local, now: Moment) {
        self.assumed = theirs;
        for (dot, _) in &self.in_flight {
            if self.assumed.get(&dot.replica) + 1 == dot.seq {
                self.assumed.raise(dot.replica, dot.seq);
            }
        }
        self.known = true;
        self.stash.clear();
        self.discard = self.reading;
        self.peer_below = !self.assumed.dominates(local.floors());
        self.caught_up = self.assumed.dominates(local.vv()) || (self.peer_below && !self.worth_reading(local, now));
        self.cursor = if self.caught_up { Cursor::At(local.revision() + 1) } else { Cursor::FirstMissing };
    }

    /// Whether the log may hold something for a peer below our floor: it lacks blocks of other writers as well, and the log
    /// was not read for it a moment ago.
    fn worth_reading(&mut self, local: &Local, now: Moment) -> bool {
        let recent = self.below_read_at.is_some_and(|at| now < at + BELOW_FLOOR_READ_INTERVAL);
        let worth = !recent && first_missing(local, &self.assumed).next().is_some();
        if worth {
            self.below_read_at = Some(now);
        }
        worth
    }

    /// Whether the peer could merge this block now: below our floor not everything that follows in the log.
    pub(super) fn may_merge(&self, dot: &Dot, bytes: &Bytes) -> bool {
        if !self.peer_below {
            return true;
        }
        let follows = self.assumed.get(&dot.replica) + 1 == dot.seq;
        follows && Block::from_store(bytes.clone()).is_ok_and(|block| block.builds_on().all(|on| self.assumed.covers(&on)))
    }
}
