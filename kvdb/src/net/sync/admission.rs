//! What a peer may bring: new writers, each of which is an entry in every version vector for ever, and blocks that cannot be
//! merged. What is too much is put off, never judged: it counts as dropped, as by a full pool, and sync brings it again.

use std::collections::{BTreeMap, BTreeSet};

use libp2p::PeerId;

use super::{DatabaseId, Dot, Locals, Moment, ReplicaId, SessionId, SyncMachine};
use crate::net::budget::{Budget, Rate};
use crate::net::limits::{
    MAX_CREDIT_DELAY, MAX_WRITERS_LET_IN, NEW_WRITERS, NEW_WRITERS_PER_PEER, NEW_WRITERS_PER_PEER_PER_SECOND,
    NEW_WRITERS_PER_SECOND, UNREADY_BYTES, UNREADY_BYTES_PER_PEER, UNREADY_BYTES_PER_PEER_PER_SECOND, UNREADY_BYTES_PER_SECOND,
};

/// Who has brought how much.
#[derive(Debug)]
pub(super) struct Admission {
    writers: Budget,
    unready: Budget,
    /// Peers that this node was told to connect to.
    trusted: BTreeSet<PeerId>,
    /// Writers whose first block was let in and is not merged yet, as far as is known here, in the order in which they came.
    let_in: BTreeMap<(DatabaseId, ReplicaId), u64>,
    order: BTreeMap<u64, (DatabaseId, ReplicaId)>,
    next: u64,
    /// Acknowledgements that are late on purpose.
    late: BTreeSet<(Moment, SessionId)>,
}

impl Default for Admission {
    fn default() -> Self {
        let rate = |burst, per_second| Rate { burst, per_second };
        Self {
            writers: Budget::new(
                rate(NEW_WRITERS_PER_PEER, NEW_WRITERS_PER_PEER_PER_SECOND),
                rate(NEW_WRITERS, NEW_WRITERS_PER_SECOND),
            ),
            unready: Budget::new(
                rate(UNREADY_BYTES_PER_PEER, UNREADY_BYTES_PER_PEER_PER_SECOND),
                rate(UNREADY_BYTES, UNREADY_BYTES_PER_SECOND),
            ),
            trusted: BTreeSet::new(),
            let_in: BTreeMap::new(),
            order: BTreeMap::new(),
            next: 0,
            late: BTreeSet::new(),
        }
    }
}

impl Admission {
    /// Whether a block of this name may go to the engine now: its writer is known, or is a new one that this peer may bring.
    /// The second block of an unknown writer may not: it would only wait for the first.
    pub(super) fn lets_in(&mut self, locals: &Locals, from: PeerId, database: DatabaseId, dot: &Dot, now: Moment) -> bool {
        let Some(local) = locals.get(&database) else { return true };
        let writer = (database, dot.replica);
        if local.vv().get(&dot.replica) > 0 {
            if let Some(number) = self.let_in.remove(&writer) {
                self.order.remove(&number);
            }
            return true;
        }
        if self.let_in.contains_key(&writer) {
            return true;
        }
        if dot.seq > 1 || !(self.trusted.contains(&from) || self.writers.allows(from, 1, now)) {
            return false;
        }
        self.next += 1;
        self.let_in.insert(writer, self.next);
        self.order.insert(self.next, writer);
        if self.order.len() > MAX_WRITERS_LET_IN
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.let_in.remove(&oldest);
        }
        true
    }

    pub(super) fn ended(&mut self, id: SessionId, late: Option<Moment>) {
        if let Some(at) = late {
            self.late.remove(&(at, id));
        }
    }

    pub(super) fn wake(&self) -> Option<Moment> {
        self.late.first().map(|(at, _)| *at)
    }
}

impl SyncMachine {
    /// This node was told to connect to the peer: it may bring any number of writers, having kept the limits itself.
    pub fn trust(&mut self, peer: PeerId) {
        self.admission.trusted.insert(peer);
    }

    /// Whether a block that came by gossip may go to the engine now.
    pub fn lets_in(&mut self, from: PeerId, database: DatabaseId, dot: &Dot, now: Moment) -> bool {
        self.admission.lets_in(&self.locals, from, database, dot, now)
    }

    /// Counts bytes that could not be merged; if there were too many of late, the credit for them comes back late.
    pub(super) fn count_unready(&mut self, id: SessionId, bytes: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if self.admission.trusted.contains(&session.peer) {
            return;
        }
        let wait = self.admission.unready.charge(session.peer, bytes, self.now).min(MAX_CREDIT_DELAY);
        if !wait.is_zero() && session.late.is_none() {
            session.late = Some(self.now + wait);
            self.admission.late.insert((self.now + wait, id));
        }
    }

    /// Gives back credit that is late enough.
    pub(super) fn late_tick(&mut self) {
        while let Some((at, id)) = self.admission.late.first().copied().filter(|(at, _)| *at <= self.now) {
            self.admission.late.remove(&(at, id));
            if let Some(session) = self.sessions.get_mut(&id) {
                session.late = None;
                self.give_credit(id);
            }
        }
    }
}
