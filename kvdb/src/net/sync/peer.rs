//! A peer's stream: Hello, which databases both have open, and the sessions for them.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::net::limits::{
    FIRST_QUESTION_WAIT, MAX_FEEDS_PER_DATABASE, MAX_FRAME_BYTES, MAX_FRAME_ENTRIES, MAX_SYNC_CREDIT_BYTES,
};
use crate::net::wire::Hello;

/// The stream with one peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// What it said first.
    pub(super) hello: Option<Hello>,
    /// Databases that it has open, as far as an `Open` after the last `Close` of either side says so.
    pub(super) remote_open: BTreeSet<DatabaseId>,
    /// Databases that an `Open` told it of since the last `Close` of either side.
    pub(super) offered: BTreeSet<DatabaseId>,
    /// Databases that it was ever told of: frames about them may still be on their way.
    pub(super) ever_offered: BTreeSet<DatabaseId>,
    pub(super) sessions: BTreeMap<DatabaseId, SessionId>,
    /// Sessions that may have something to send or read.
    pub(super) ready: BTreeSet<DatabaseId>,
    /// The database served last.
    pub(super) turn: Option<DatabaseId>,
    /// Bytes of frames handed out and not written yet.
    pub(super) queued: usize,
}

impl SyncMachine {
    pub(super) fn peer_up(&mut self, id: PeerId) {
        if id == self.me {
            return;
        }
        self.peer_down(&id);
        self.peers.insert(id, Peer::default());
        self.send(
            id,
            Frame::Hello(Hello {
                version: PROTOCOL_VERSION,
                features: 0,
                max_frame_bytes: MAX_FRAME_BYTES as u64,
                credit_bytes: SYNC_CREDIT_BYTES,
            }),
        );
    }

    pub(super) fn peer_down(&mut self, id: &PeerId) {
        let databases: Vec<DatabaseId> = self.peers.get(id).into_iter().flat_map(|peer| peer.sessions.keys()).copied().collect();
        for database in databases {
            self.end_session(*id, database);
        }
        self.peers.remove(id);
    }

    pub(super) fn frame(&mut self, from: PeerId, frame: Frame) {
        let Some(peer) = self.peers.get(&from) else { return };
        match (frame, peer.hello.is_some()) {
            (Frame::Hello(_), true) => self.misbehaved(from, Misbehaviour::SecondHello),
            (Frame::Hello(hello), false) => self.hello(from, hello),
            (Frame::Error { code, text }, _) => {
                self.out.push(Output::Disconnect(from, DisconnectReason::Remote { code, text }));
                self.peer_down(&from);
            }
            (_, false) => self.misbehaved(from, Misbehaviour::BeforeHello),
            (Frame::Open(database), true) => self.remote_opened(from, database),
            (Frame::Close(database), true) => self.remote_closed(from, database),
            (Frame::Dropped(database), true) => {
                self.remote_closed(from, database);
                self.gone.forget(&database, &from);
                self.report(Report::Dropped(from, database));
            }
            (Frame::Have { database, kind, summary }, true) => {
                if let Some(id) = self.target(from, database) {
                    self.have(id, kind, &summary);
                }
            }
            (Frame::HaveList { database, entries, last }, true) => {
                if let Some(id) = self.target(from, database) {
                    self.have_list(id, entries, last);
                }
            }
            (Frame::Ack { database, consumed, durable }, true) => {
                if let Some(id) = self.target(from, database) {
                    self.acked(id, consumed, &durable);
                }
            }
            (Frame::Snapshot(database, frame), true) => self.snapshot_frame(from, database, frame),
            (Frame::Ranges(database, frame), true) => self.range_frame(from, database, frame),
            // The driver hands these in as `Input::Blocks`.
            (Frame::Blocks { .. }, true) => debug_assert!(false, "unverified blocks"),
        }
    }

    /// The session that a frame is for. None when the database was closed meanwhile; a peer that names one that it was
    /// never offered is cut off.
    pub(super) fn target(&mut self, from: PeerId, database: DatabaseId) -> Option<SessionId> {
        let peer = self.peers.get(&from)?;
        if peer.hello.is_none() {
            self.misbehaved(from, Misbehaviour::BeforeHello);
            return None;
        }
        let session = peer.sessions.get(&database).copied();
        if session.is_none() && !peer.ever_offered.contains(&database) {
            self.misbehaved(from, Misbehaviour::NotOpen);
        }
        session
    }

    fn hello(&mut self, from: PeerId, hello: Hello) {
        if hello.version != PROTOCOL_VERSION {
            self.cut_off(from, ErrorCode::Version, DisconnectReason::Version { theirs: hello.version });
            return;
        }
        let frame = ("the largest frame in bytes", hello.max_frame_bytes, MAX_FRAME_BYTES as u64);
        let credit = ("the credit in bytes", hello.credit_bytes, MAX_SYNC_CREDIT_BYTES);
        for (bad, (what, value, limit)) in
            [(frame.1 < frame.2, frame), (!(1..=MAX_SYNC_CREDIT_BYTES).contains(&hello.credit_bytes), credit)]
        {
            if bad {
                self.cut_off(from, ErrorCode::Limit, DisconnectReason::Limit { what, value, limit });
                return;
            }
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.hello = Some(hello);
        }
        if active(Mutation::ReconnectedUnoffered) && self.next_session > 0 {
            return;
        }
        let databases: Vec<DatabaseId> = self.locals.keys().copied().collect();
        for database in databases {
            self.offer(from, database);
        }
    }

    /// Tells the peer that a database is open here, once, and begins if it is open there too.
    pub(super) fn offer(&mut self, to: PeerId, database: DatabaseId) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.ever_offered.insert(database);
        if peer.offered.insert(database) {
            self.send(to, Frame::Open(database));
        }
        self.begin(to, database);
    }

    fn remote_opened(&mut self, from: PeerId, database: DatabaseId) {
        if self.dropped.contains(&database) {
            self.send(from, Frame::Dropped(database));
            return;
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.remote_open.len() >= MAX_OPEN_DATABASES && !peer.remote_open.contains(&database) {
            self.misbehaved(from, Misbehaviour::TooManyDatabases);
            return;
        }
        peer.remote_open.insert(database);
        if self.locals.contains_key(&database) {
            // After a `Close` this says `Open` anew, which tells the peer that what follows belongs to the new session.
            self.offer(from, database);
        }
    }

    fn remote_closed(&mut self, from: PeerId, database: DatabaseId) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.remote_open.remove(&database);
            peer.offered.remove(&database);
        }
        self.end_session(from, database);
    }

    /// Ends the session and begins another one, in which both sides say everything again.
    pub(super) fn begin_anew(&mut self, with: PeerId, database: DatabaseId) {
        self.send(with, Frame::Close(database));
        self.remote_closed(with, database);
        self.offer(with, database);
    }

    fn begin(&mut self, with: PeerId, database: DatabaseId) {
        let Some(local) = self.locals.get(&database) else { return };
        let Some(peer) = self.peers.get_mut(&with) else { return };
        let (true, Some(hello)) = (peer.remote_open.contains(&database), peer.hello) else { return };
        if peer.sessions.contains_key(&database) {
            return;
        }
        self.next_session += 1;
        let id = SessionId(self.next_session);
        peer.sessions.insert(database, id);
        self.sessions.insert(id, Session::new(with, database, hello.credit_bytes.min(SYNC_CREDIT_BYTES)));
        self.ranks.entry(database).or_default().insert(distance(&self.me, &with), id);
        let durable: Vec<(ReplicaId, u64)> = local.durable().iter().collect();
        self.rank(database);
        self.send_durable(id, &durable);
        if self.me < with {
            self.ask(id);
        } else {
            self.set_timer(id, self.now + FIRST_QUESTION_WAIT);
        }
    }

    pub(super) fn end_session(&mut self, with: PeerId, database: DatabaseId) {
        let Some(peer) = self.peers.get_mut(&with) else { return };
        peer.ready.remove(&database);
        let Some(id) = peer.sessions.remove(&database) else { return };
        self.snapshot_session_ended(id, with, database);
        self.comparison_cut(database, with);
        if let Some(session) = self.sessions.remove(&id) {
            if let Some(timer) = session.timer {
                self.timers.remove(&(timer, id));
            }
            self.admission.ended(id, session.late);
            // One that has said nothing yet is no better known than before.
            if let Some(local) = self.locals.get(&database).filter(|_| session.known) {
                self.gone.remember(database, with, &session.durable, local, self.now);
            }
        }
        if let Some(ranks) = self.ranks.get_mut(&database) {
            ranks.retain(|_, session| *session != id);
            if ranks.is_empty() {
                self.ranks.remove(&database);
            }
        }
        self.rank(database);
    }

    /// Chooses the live feeds: the peers nearest to this one.
    fn rank(&mut self, database: DatabaseId) {
        let sessions: Vec<SessionId> = self.ranks.get(&database).into_iter().flatten().map(|(_, id)| *id).collect();
        for (place, id) in sessions.into_iter().enumerate() {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let live = place < MAX_FEEDS_PER_DATABASE;
            if std::mem::replace(&mut session.live, live) != live {
                self.make_ready(id);
            }
        }
    }

    /// Tells the peer what became durable here, in parts.
    pub(super) fn send_durable(&mut self, id: SessionId, durable: &[(ReplicaId, u64)]) {
        for part in durable.chunks(MAX_FRAME_ENTRIES) {
            let Some(session) = self.sessions.get_mut(&id) else { return };
            if session.late.is_none() {
                session.told = session.consumed;
            }
            let (peer, database, consumed) = (session.peer, session.database, session.told);
            self.send(peer, Frame::Ack { database, consumed, durable: part.to_vec() });
        }
    }
}
