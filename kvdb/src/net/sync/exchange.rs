//! Comparing replicas: question, answer, lists, and when to ask again.

use super::session::{Cursor, Session};
use super::{DatabaseId, Frame, Misbehaviour, Moment, PeerId, ReplicaId, Report, SessionId, SyncMachine};
use crate::net::limits::{MAX_FRAME_ENTRIES, MAX_QUESTIONS_PER_SECOND, MAX_SYNC_DELAY, MAX_SYNC_GAP, MIN_SYNC_GAP, SYNC_QUIET};
use crate::net::wire::{HaveEntry, HaveKind, Summary};

impl SyncMachine {
    /// Sends our replica in short and asks for the peer's.
    pub(super) fn ask(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(local) = self.locals.get(&session.database) else { return };
        session.asked += 1;
        session.asked_at = Some(self.now);
        session.due = None;
        session.announced = None;
        session.list_sent = false;
        let (peer, database, summary) = (session.peer, session.database, local.summary());
        self.send(peer, Frame::Have { database, kind: HaveKind::Question, summary });
        self.set_timer(id, self.now + MAX_SYNC_GAP);
    }

    /// Asks as soon as the back-off allows, but not before `at`.
    fn ask_later(&mut self, id: SessionId, at: Moment) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let allowed = session.asked_at.map_or(at, |asked| at.max(asked + session.gap));
        if session.due.is_some_and(|due| due <= allowed) {
            return;
        }
        session.due = Some(allowed);
        self.set_timer(id, allowed);
    }

    pub(super) fn have(&mut self, id: SessionId, kind: HaveKind, theirs: &Summary) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (peer, database) = (session.peer, session.database);
        let Some(local) = self.locals.get(&database) else { return };
        let ours = local.summary();
        match kind {
            HaveKind::Question => {
                if !self.count_question(id) {
                    return;
                }
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.list_sent = false;
                }
                self.send(peer, Frame::Have { database, kind: HaveKind::Answer, summary: ours });
            }
            HaveKind::Answer if session.asked == 0 => {
                self.misbehaved(peer, Misbehaviour::Unasked);
                return;
            }
            HaveKind::Answer => session.asked -= 1,
        }
        self.compared(id, &ours, theirs);
    }

    /// The peer wants something that may cost much: not too often.
    pub(super) fn count_question(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else { return false };
        let (since, count) = session.questions;
        session.questions = if self.now < since + Moment::from_secs(1) { (since, count + 1) } else { (self.now, 1) };
        let (peer, few) = (session.peer, session.questions.1 <= MAX_QUESTIONS_PER_SECOND);
        if !few {
            self.misbehaved(peer, Misbehaviour::Questions);
        }
        few
    }

    fn compared(&mut self, id: SessionId, ours: &Summary, theirs: &Summary) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(local) = self.locals.get(&session.database) else { return };
        let (peer, database) = (session.peer, session.database);
        let pair = (ours.vv_hash, theirs.vv_hash);
        let fruitless = session.compared == Some(pair);
        session.compared = Some(pair);
        session.gap = if fruitless { (session.gap * 2).min(MAX_SYNC_GAP) } else { MIN_SYNC_GAP };
        if ours.vv_hash != theirs.vv_hash {
            session.equal = false;
            self.send_list(id);
            let gap = self.sessions.get(&id).map_or(MIN_SYNC_GAP, |session| session.gap);
            self.ask_later(id, self.now + gap);
            return;
        }
        let before = std::mem::replace(&mut session.equal, true);
        session.settled = true;
        session.round = false;
        session.due = None;
        session.learn(local.vv().clone(), local, self.now);
        session.below = false;
        if session.durable_more {
            // All its writers are known now: it says at the beginning what it has on disk of each.
            self.begin_anew(peer, database);
            return;
        }
        self.set_timer(id, self.now + MAX_SYNC_GAP);
        if ours != theirs {
            self.report(Report::Disagreement(peer, database));
            self.disagrees(database, peer, (ours.digest, theirs.digest));
            return;
        }
        self.agrees(database, peer);
        if !before {
            self.report(Report::Synced(peer, database));
        }
    }

    /// Sends our version vector in parts, once per comparison.
    fn send_list(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(local) = self.locals.get(&session.database) else { return };
        if std::mem::replace(&mut session.list_sent, true) {
            return;
        }
        let (peer, database) = (session.peer, session.database);
        let entry = |(replica, seq)| HaveEntry { replica, seq, floor: local.floors().get(&replica).min(seq) };
        let all: Vec<HaveEntry> = local.vv().iter().map(entry).collect();
        let parts = all.len().div_ceil(MAX_FRAME_ENTRIES).max(1);
        for part in 0..parts {
            let entries = all.iter().skip(part * MAX_FRAME_ENTRIES).take(MAX_FRAME_ENTRIES).copied().collect();
            self.send(peer, Frame::HaveList { database, entries, last: part + 1 == parts });
        }
    }

    pub(super) fn have_list(&mut self, id: SessionId, entries: Vec<HaveEntry>, last: bool) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(local) = self.locals.get(&session.database) else { return };
        let peer = session.peer;
        for HaveEntry { replica, seq, floor } in entries {
            if session.incoming_last.is_some_and(|before| before >= replica) {
                self.misbehaved(peer, Misbehaviour::Order);
                return;
            }
            session.incoming_last = Some(replica);
            session.incoming_below |= local.vv().get(&replica) < floor;
            if Session::keeps(&session.incoming, local, &replica) {
                session.incoming.raise(replica, seq);
            } else {
                session.incoming_more = true;
            }
        }
        if !last {
            return;
        }
        session.incoming_last = None;
        let theirs = std::mem::take(&mut session.incoming);
        session.settled = local.vv().dominates(&theirs) && !std::mem::take(&mut session.incoming_more);
        let (peer_below, below) = (session.peer_below, session.below);
        session.learn(theirs, local, self.now);
        session.below = std::mem::take(&mut session.incoming_below);
        session.round |= !session.caught_up;
        let database = session.database;
        let (peer_below, below) = (session.peer_below && !peer_below, session.below && !below);
        if peer_below {
            self.report(Report::NeedsSnapshot(peer, database));
        }
        if below {
            self.report(Report::BelowFloor(peer, database));
        }
        // The peer asked with a replica that equalled ours then and differs from it now: it needs our list as well.
        self.send_list(id);
        self.make_ready(id);
        if self.sessions.get(&id).is_some_and(|session| session.below) {
            self.below_floor(id);
        }
    }

    /// The peer has taken everything that it lacked: compare again, so that equality is known and no hole stays.
    pub(super) fn round_done(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.round && session.drained() {
            session.round = false;
            session.due = None;
            self.ask_later(id, self.now);
            self.tick();
        }
    }

    /// Blocks that came could not be merged: ask again once the stream is quiet.
    pub(super) fn unsettled(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.settled = false;
            self.ask_later(id, self.now + SYNC_QUIET);
        }
    }

    pub(super) fn start_sync(&mut self, database: DatabaseId, with: PeerId, announced: Option<[u8; 32]>) {
        let Some(id) = self.peers.get(&with).and_then(|peer| peer.sessions.get(&database)).copied() else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if announced.is_none() || announced != session.compared.map(|(_, theirs)| theirs) {
            session.gap = MIN_SYNC_GAP;
        }
        if session.due.is_none() {
            session.announced = announced;
        } else if session.announced != announced {
            session.announced = None;
        }
        // What was announced is usually on its way already.
        self.ask_later(id, self.now + SYNC_QUIET);
    }

    pub(super) fn tick(&mut self) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, id));
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            session.timer = None;
            let due = *session.due.get_or_insert(at);
            let local = self.locals.get(&session.database);
            if session.announced.is_some_and(|hash| local.is_some_and(|local| local.vv().hash() == hash)) {
                session.announced = None;
                session.due = None;
                self.set_timer(id, self.now + MAX_SYNC_GAP);
                continue;
            }
            let quiet = session.received_at.is_none_or(|at| at + SYNC_QUIET <= self.now) && session.drained();
            if quiet || due + MAX_SYNC_DELAY <= self.now {
                self.ask(id);
            } else {
                self.set_timer(id, self.now + SYNC_QUIET);
            }
        }
    }

    /// Our replica moved: what could not be settled may be now, so the back-off ends.
    pub(super) fn news_for(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if !session.settled && session.gap > MIN_SYNC_GAP {
            session.gap = MIN_SYNC_GAP;
            session.due = None;
            self.ask_later(id, self.now + MIN_SYNC_GAP);
        }
    }

    /// History was dropped here: a peer that lacks some of it must know.
    pub(super) fn floors_rose(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(local) = self.locals.get(&session.database) else { return };
        if session.known && !session.peer_below && !session.assumed.dominates(local.floors()) {
            session.peer_below = true;
            let (peer, database) = (session.peer, session.database);
            self.report(Report::NeedsSnapshot(peer, database));
            self.ask_later(id, self.now);
        }
    }

    /// Our replica moved while the peer's is known: does the peer lack something now?
    pub(super) fn feed_advanced(&mut self, id: SessionId, entries: &[(ReplicaId, u64)]) {
        if entries.is_empty() {
            return;
        }
        self.news_for(id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(local) = self.locals.get(&session.database) else { return };
        session.equal = false;
        if session.caught_up {
            session.caught_up = entries.iter().all(|(replica, seq)| session.assumed.get(replica) >= *seq);
            if session.caught_up {
                session.cursor = Cursor::At(local.revision() + 1);
            }
        }
        self.make_ready(id);
    }
}
