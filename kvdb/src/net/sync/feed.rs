//! Streaming blocks both ways: reading the log, credit, round robin, acknowledgements.

use super::session::Cursor;
use super::*;
use crate::net::limits::{BLOCKS_FRAME_BYTES, MAX_FRAME_BLOCKS, MAX_START_LOOKUPS, PEER_QUEUE_BYTES};

impl SyncMachine {
    /// The session may have something to do: let its peer's round robin look at it.
    pub(super) fn make_ready(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (peer, database) = (session.peer, session.database);
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.ready.insert(database);
        }
        self.pump(peer);
        self.round_done(id);
    }

    /// Lets the peer's databases send in turn while there is room in its queue.
    fn pump(&mut self, to: PeerId) {
        while let Some(peer) = self.peers.get_mut(&to) {
            if peer.queued >= PEER_QUEUE_BYTES {
                return;
            }
            let after = peer.turn.and_then(|turn| peer.ready.range(turn..).find(|database| **database != turn).copied());
            let Some(database) = after.or_else(|| peer.ready.first().copied()) else { return };
            peer.turn = Some(database);
            let id = peer.sessions.get(&database).copied();
            if !id.is_some_and(|id| self.step(id))
                && let Some(peer) = self.peers.get_mut(&to)
            {
                peer.ready.remove(&database);
            }
        }
    }

    /// Sends one frame or starts one read; `false` when there is nothing to do before something else happens.
    fn step(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let mut blocks = Vec::new();
        let mut frame_bytes = 0;
        while let Some((dot, bytes)) = session.stash.front() {
            let (dot, len) = (*dot, bytes.len());
            if session.assumed.covers(&dot) || !session.may_merge(&dot, bytes) {
                session.stash.pop_front();
                continue;
            }
            let full = blocks.len() >= MAX_FRAME_BLOCKS || frame_bytes + len > BLOCKS_FRAME_BYTES;
            if (full && !blocks.is_empty()) || !session.may_send(len as u64) {
                break;
            }
            session.assumed.raise(dot.replica, dot.seq);
            session.in_flight.push_back((dot, len as u64));
            session.in_flight_bytes += len as u64;
            frame_bytes += len;
            blocks.extend(session.stash.pop_front().map(|(_, bytes)| bytes));
        }
        let (peer, database) = (session.peer, session.database);
        if !blocks.is_empty() {
            let frame = Frame::Blocks { database, blocks };
            if let Some(peer) = self.peers.get_mut(&peer) {
                peer.queued += frame.size_hint();
            }
            self.send(peer, frame);
            return true;
        }
        // A read for an earlier session of the same pair goes on: its end looks here again.
        if session.wants_read() && !self.reads.values().any(|key| *key == (peer, database)) {
            self.reads.insert(id, (peer, database));
            session.reading = true;
            let from = match session.cursor {
                Cursor::At(revision) => ReadFrom::Revision(revision),
                Cursor::FirstMissing => read_from(self.locals.get(&database), &session.assumed),
            };
            let max_bytes = usize::try_from(session.credit - session.in_flight_bytes).unwrap_or(usize::MAX);
            let skip = session.assumed.clone();
            self.out.push(Output::ReadLog { session: id, database, from, max_bytes, skip });
        }
        false
    }

    pub(super) fn log_read(&mut self, id: SessionId, chunk: Option<LogChunk>) {
        if let Some((peer, database)) = self.reads.remove(&id)
            && !self.sessions.contains_key(&id)
        {
            if let Some(next) = self.peers.get(&peer).and_then(|peer| peer.sessions.get(&database)).copied() {
                self.make_ready(next);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.reading = false;
        let stale = std::mem::replace(&mut session.discard, false);
        let revision = self.locals.get(&session.database).map_or(0, Local::revision);
        match chunk {
            // A store that cannot read has poisoned the node; the next comparison tries again.
            None => {
                session.round = false;
                session.cursor = Cursor::FirstMissing;
                return;
            }
            Some(_) if stale => {}
            Some(chunk) => {
                session.stash.extend(chunk.blocks.into_iter().map(|(_, dot, bytes)| (dot, bytes)));
                session.cursor = Cursor::At(chunk.next);
                session.caught_up = chunk.end && revision < chunk.next;
            }
        }
        self.make_ready(id);
    }

    pub(super) fn written(&mut self, peer: PeerId, bytes: usize) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.queued = state.queued.saturating_sub(bytes);
            self.pump(peer);
        }
    }

    pub(super) fn acked(&mut self, id: SessionId, consumed: u64, durable: &[(ReplicaId, u64)]) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let peer = session.peer;
        let falls = durable.iter().any(|(replica, seq)| session.durable.get(replica) > *seq);
        if falls || consumed < session.taken || consumed > session.taken + session.in_flight_bytes {
            self.misbehaved(peer, Misbehaviour::Ack);
            return;
        }
        let mut bytes = consumed - session.taken;
        session.taken = consumed;
        session.in_flight_bytes -= bytes;
        while let Some((_, left)) = session.in_flight.front_mut().filter(|_| bytes > 0) {
            let part = bytes.min(*left);
            bytes -= part;
            *left -= part;
            if *left == 0 {
                session.in_flight.pop_front();
            }
        }
        let Some(local) = self.locals.get(&session.database) else { return };
        for (replica, seq) in durable {
            if Session::keeps(&session.durable, local, replica) {
                session.durable.raise(*replica, *seq);
                session.assumed.raise(*replica, *seq);
            } else {
                session.durable_more = true;
            }
        }
        self.make_ready(id);
    }

    pub(super) fn blocks(&mut self, from: PeerId, database: DatabaseId, mut blocks: Vec<Block>) {
        let Some(id) = self.target(from, database) else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let mut bytes = 0;
        let mut wrong = None;
        for block in &blocks {
            let len = block.bytes().len() as u64;
            // What the peer was not told of yet it must not send on.
            let waiting = session.received - session.told;
            if block.database() != database && !active(Mutation::ForeignBlockTaken) {
                wrong = Some(Misbehaviour::ForeignBlock);
            } else if waiting != 0 && waiting + len > SYNC_CREDIT_BYTES {
                wrong = Some(Misbehaviour::Credit);
            }
            bytes += len;
            session.received += len;
            // A peer sends what it has merged, and so has everything of that writer before.
            session.assumed.raise(block.dot().replica, block.dot().seq);
        }
        session.received_at = Some(self.now);
        if let Some(how) = wrong {
            self.misbehaved(from, how);
            return;
        }
        let came = blocks.len();
        blocks.retain(|block| self.admission.lets_in(&self.locals, from, database, &block.dot(), self.now));
        session.put_off += came - blocks.len();
        self.out.push(Output::Deliver { session: id, database, peer: from, blocks, bytes });
    }

    pub(super) fn delivered(&mut self, id: SessionId, bytes: u64, delivery: Option<Delivery>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(delivery) = delivery else {
            // No ack: the peer would send everything again and again.
            let peer = session.peer;
            self.out.push(Output::Disconnect(peer, DisconnectReason::Refused));
            self.peer_down(&peer);
            return;
        };
        session.consumed += if active(Mutation::CreditKept) { 0 } else { bytes };
        let (peer, database, put_off) = (session.peer, session.database, std::mem::take(&mut session.put_off));
        let unready = (put_off + delivery.held + delivery.dropped) as u64;
        let all = unready + (delivery.merged + delivery.duplicates) as u64;
        if unready > 0 {
            self.count_unready(id, bytes * unready / all);
        }
        self.give_credit(id);
        if put_off > 0 {
            self.report(Report::WritersPutOff(peer, database, put_off));
        }
        if !delivery.disagreements.is_empty() {
            self.two_blocks(database, peer, &delivery.disagreements);
            self.report(Report::TwoBlocks(peer, database, delivery.disagreements));
        }
        if unready > 0 {
            self.unsettled(id);
        }
    }

    /// Tells the peer what was taken: in quarters, so that a stream of small blocks is not answered by one frame each; at
    /// once when nothing waits.
    pub(super) fn give_credit(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id).filter(|session| session.late.is_none()) else { return };
        let (peer, database, consumed) = (session.peer, session.database, session.consumed);
        if consumed == session.received || consumed - session.told >= SYNC_CREDIT_BYTES / 4 {
            session.told = consumed;
            self.send(peer, Frame::Ack { database, consumed, durable: Vec::new() });
        }
    }
}

/// The first block that is missing of each writer, but for those whose next block is not kept any more.
pub(super) fn first_missing<'a>(local: &'a Local, theirs: &'a VersionVector) -> impl Iterator<Item = Dot> + 'a {
    let next = if active(Mutation::MissingSkipped) { 2 } else { 1 };
    let has = local.vv().iter().map(|(replica, seq)| (replica, seq, theirs.get(&replica)));
    let behind = has.filter(|(replica, seq, theirs)| theirs < seq && local.floors().get(replica) <= *theirs);
    behind.map(move |(replica, _, theirs)| Dot { replica, seq: theirs + next })
}

/// The lowest revision of what is missing is where to begin.
fn read_from(local: Option<&Local>, theirs: &VersionVector) -> ReadFrom {
    let missing = local.into_iter().flat_map(|local| first_missing(local, theirs));
    let dots: Vec<Dot> = missing.take(MAX_START_LOOKUPS + 1).collect();
    if theirs.is_empty() || dots.len() > MAX_START_LOOKUPS { ReadFrom::Revision(1) } else { ReadFrom::Lowest(dots) }
}
