//! What is known of one database with one peer.

use std::collections::VecDeque;

use super::*;
use crate::net::limits::MIN_SYNC_GAP;

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
}

impl Session {
    pub(super) fn new(peer: PeerId, database: DatabaseId, credit: u64) -> Self {
        Self {
            peer,
            database,
            received: 0,
            consumed: 0,
            told: 0,
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
            live: false,
            round: false,
            asked: 0,
            questions: (Moment::ZERO, 0),
            list_sent: false,
            incoming: VersionVector::default(),
            compared: None,
            gap: MIN_SYNC_GAP,
            asked_at: None,
            timer: None,
            due: None,
            announced: None,
            equal: false,
            durable: VersionVector::default(),
        }
    }

    pub(super) fn status(&self) -> SessionStatus {
        SessionStatus { synced: self.settled, live: self.live && self.known, in_flight: self.in_flight_bytes }
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
    pub(super) fn learn(&mut self, theirs: VersionVector, local: &Local) {
        let before = std::mem::replace(&mut self.assumed, theirs);
        if active(Mutation::SentIsMerged) {
            before.iter().for_each(|(replica, seq)| self.assumed.raise(replica, seq));
        }
        for (dot, _) in &self.in_flight {
            if self.assumed.get(&dot.replica) + 1 == dot.seq {
                self.assumed.raise(dot.replica, dot.seq);
            }
        }
        self.known = true;
        self.stash.clear();
        self.discard = self.reading;
        self.caught_up = self.assumed.dominates(local.vv());
        self.cursor = if self.caught_up { Cursor::At(local.revision() + 1) } else { Cursor::FirstMissing };
    }
}
