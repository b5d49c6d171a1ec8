//! Snapshots: sending one to a peer that lacks what is not kept here any more, and taking one in the other case.
//!
//! A sender keeps its view for as long as a receiver may come back for the rest, and says which history it must not drop
//! meanwhile. A receiver has one transfer for each database, goes on with what is staged only if the sender still has that
//! very view, and leaves the joining to the engine.

use std::collections::VecDeque;

use crdt::mutation::{Mutation, active};
use crdt::snapshot::{Chunk, Purpose, SnapshotHead};
use crdt::{Cursor, SnapshotId, SnapshotWrite, Staged};

use super::*;
use crate::engine::port::SnapshotOutcome;
use crate::net::limits::{
    MAX_SNAPSHOT_VIEWS, MAX_SNAPSHOTS_SERVED, MAX_SYNC_GAP, SNAPSHOT_KEEP, SNAPSHOT_PATIENCE, SNAPSHOT_STALL,
    SNAPSHOT_WINDOW_CHUNKS,
};
use crate::net::wire::{ChunkName, EndReason, Resume, SnapshotFrame};

/// A view that was opened for a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedView {
    /// The snapshot's head.
    pub head: SnapshotHead,
    /// Its version vector.
    pub vv: VersionVector,
    /// Its log's last revision.
    pub revision: u64,
}

/// A chunk that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadChunk {
    /// Its bytes.
    pub bytes: Bytes,
    /// Their hash.
    pub hash: [u8; 32],
    /// The place after it; `None` after the last one.
    pub next: Option<Cursor>,
}

/// Why a replica was not replaced by a peer's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RepairFailure {
    /// The peer is not connected, does not have the database open, or was lost meanwhile.
    #[error("the peer is not connected, does not have this database, of this generation, open, or was lost meanwhile")]
    NotConnected,
    /// Another snapshot is being received or joined.
    #[error("another snapshot is being received; try again when it is joined")]
    Busy,
    /// The peer sends too many snapshots now.
    #[error("the peer sends too many snapshots now; try again later")]
    PeerBusy,
    /// The peer cannot read, or says nothing.
    #[error("the peer cannot send its replica, or says nothing")]
    PeerUnable,
    /// What came is not what its head says.
    #[error("the peer's snapshot is not what it says: {0}")]
    Invalid(String),
    /// The peer lacks something that is merged here.
    #[error("the peer lacks {0} and perhaps more, which is merged here and would be lost")]
    Lacking(Dot),
    /// This node's store could not read or write, or the database was closed.
    #[error("this node could not write what came, or the database was closed")]
    Unable,
}

/// All transfers of a node.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Drawn at each start.
    boot: u64,
    views: u64,
    serving: BTreeMap<SnapshotId, Serving>,
    receiving: BTreeMap<DatabaseId, Receiving>,
    /// What the engine has been given and has not answered, and of which snapshot it is. No transfer begins before it has.
    writing: BTreeMap<DatabaseId, SnapshotId>,
    /// What is staged of each database.
    staged: BTreeMap<DatabaseId, Resume>,
    /// Databases whose staged snapshot the engine is joining.
    joining: BTreeSet<DatabaseId>,
    /// From whom that snapshot came, if it came in this run.
    joining_from: BTreeMap<DatabaseId, (PeerId, SnapshotId)>,
    /// What is received, or joined, to take a replica's place.
    repairs: BTreeMap<DatabaseId, Purpose>,
    /// Joins that failed here in a row, and when the next snapshot may be asked for.
    failed: BTreeMap<DatabaseId, (u32, Moment)>,
    /// When to take a snapshot from whoever has one, if nobody with the rest of the staged one comes before.
    due: BTreeMap<DatabaseId, Moment>,
}

/// A snapshot on its way out.
#[derive(Debug)]
struct Serving {
    peer: PeerId,
    database: DatabaseId,
    /// Its head and version vector, once the view is open.
    opened: Option<OpenedView>,
    /// The next chunk and where it begins; `None` when all are sent.
    next: Option<(u64, Cursor)>,
    /// Chunks that the receiver has staged.
    taken: u64,
    reading: bool,
    /// The stream has been cut: the receiver may come back.
    away: bool,
    /// The view is closed, since the receiver has everything.
    read_out: bool,
    /// The receiver was heard of last.
    heard: Moment,
}

/// A snapshot on its way in.
#[derive(Debug)]
struct Receiving {
    session: SessionId,
    peer: PeerId,
    /// What comes, once its head has come.
    id: Option<SnapshotId>,
    /// The next chunk to come.
    next: u64,
    /// The last one has come.
    ended: bool,
    /// What is to be written to the store, one at a time.
    queue: VecDeque<SnapshotWrite>,
    /// Something came last.
    heard: Moment,
}

impl Snapshots {
    pub(super) fn new(boot: u64) -> Self {
        Self { boot, ..Self::default() }
    }

    pub(super) fn wake(&self) -> Option<Moment> {
        let serving = self.serving.values().map(|serving| serving.heard + SNAPSHOT_KEEP);
        let receiving = self.receiving.values().filter(|one| !one.ended).map(|one| one.heard + SNAPSHOT_STALL);
        let due = self.due.iter().filter(|(database, _)| !self.writing.contains_key(database)).map(|(_, at)| *at);
        serving.chain(receiving).chain(due).min()
    }
}

impl SyncMachine {
    /// Version vectors of snapshots on their way to peers: blocks that one of them does not cover will be asked for next.
    pub fn snapshot_views(&self, database: &DatabaseId) -> impl Iterator<Item = &VersionVector> {
        let database = *database;
        let serving = self.snapshots.serving.values().filter(move |serving| serving.database == database);
        serving.filter_map(|serving| serving.opened.as_ref().map(|opened| &opened.vv))
    }

    /// The first log revision that follows a snapshot on its way to a peer: with all after it, it is asked for next.
    #[must_use]
    pub fn pinned(&self, database: &DatabaseId) -> Option<u64> {
        let serving = self.snapshots.serving.values().filter(|serving| serving.database == *database);
        serving.filter_map(|serving| serving.opened.as_ref().map(|opened| opened.revision + 1)).min()
    }

    /// Views opened for snapshots since the start.
    #[cfg(test)]
    pub(super) fn snapshot_count(&self) -> u64 {
        self.snapshots.views
    }

    /// Whether a snapshot is being received or joined.
    #[must_use]
    pub fn takes_snapshot(&self, database: &DatabaseId) -> bool {
        self.snapshots.receiving.contains_key(database) || self.snapshots.joining.contains(database)
    }

    /// Something from a peer about a snapshot, in time and by somebody who has the database open.
    pub(super) fn snapshot_frame(&mut self, from: PeerId, database: DatabaseId, frame: SnapshotFrame) {
        let Some(session) = self.target(from, database) else { return };
        match frame {
            SnapshotFrame::Want(resume) => self.wanted(session, resume),
            SnapshotFrame::Head { index, head } => self.head(session, index, head),
            SnapshotFrame::Taken { id, index } => self.taken(from, id, index),
            SnapshotFrame::End { id, reason } => self.ended(session, id, reason),
            // The driver hands these in as `Input::Chunk`.
            SnapshotFrame::Chunk { .. } => debug_assert!(false, "a chunk that was not verified"),
        }
    }

    // The sender.

    fn wanted(&mut self, session: SessionId, resume: Option<Resume>) {
        if !self.count_question(session) {
            return;
        }
        let Some(of) = self.sessions.get(&session) else { return };
        let (peer, database) = (of.peer, of.database);
        let mine = |serving: &Serving| serving.peer == peer && serving.database == database;
        if let Some(Resume { id, index, at }) = resume.clone()
            && let Some(serving) = self.snapshots.serving.get_mut(&id).filter(|serving| mine(serving))
            && let Some(opened) = serving.opened.as_ref()
            && let Ok(at) = Cursor::decode(at)
            && !serving.read_out
        {
            let head = opened.head.encode();
            (serving.next, serving.taken, serving.away, serving.heard) = (Some((index, at)), index, false, self.now);
            self.send_snapshot(peer, database, SnapshotFrame::Head { index, head });
            self.read_on(id);
            return;
        }
        let gone: Vec<SnapshotId> =
            self.snapshots.serving.iter().filter(|(_, serving)| mine(serving)).map(|(id, _)| *id).collect();
        for id in gone {
            self.stop_serving(id);
        }
        let sending = self.snapshots.serving.values().filter(|serving| !serving.away && !serving.read_out).count();
        let id = SnapshotId { boot: self.snapshots.boot, view: self.snapshots.views + 1 };
        if sending >= MAX_SNAPSHOTS_SERVED || self.snapshots.serving.len() >= MAX_SNAPSHOT_VIEWS {
            self.send_snapshot(peer, database, SnapshotFrame::End { id, reason: EndReason::Busy });
            return;
        }
        self.snapshots.views += 1;
        let (id, next) = match resume {
            Some(Resume { id, index, at }) if active(Mutation::SnapshotOtherView) => {
                (id, (index, Cursor::decode(at).unwrap_or(Cursor::START)))
            }
            _ => (id, (0, Cursor::START)),
        };
        let serving = Serving {
            peer,
            database,
            opened: None,
            taken: next.0,
            next: Some(next),
            reading: false,
            away: false,
            read_out: false,
            heard: self.now,
        };
        self.snapshots.serving.insert(id, serving);
        self.out.push(Output::OpenView { id, database });
    }

    pub(super) fn view_opened(&mut self, id: SnapshotId, opened: Option<OpenedView>) {
        let Some(serving) = self.snapshots.serving.get_mut(&id) else {
            // Given up meanwhile.
            self.out.push(Output::CloseView(id));
            return;
        };
        let (peer, database) = (serving.peer, serving.database);
        match opened {
            Some(opened) => {
                let head = opened.head.encode();
                serving.opened = Some(opened);
                let index = serving.next.as_ref().map_or(0, |(index, _)| *index);
                if !serving.away {
                    self.send_snapshot(peer, database, SnapshotFrame::Head { index, head });
                    self.read_on(id);
                }
            }
            None => self.unable(id),
        }
    }

    /// Reads the next chunk, if the receiver may be sent one more.
    fn read_on(&mut self, id: SnapshotId) {
        let Some(serving) = self.snapshots.serving.get_mut(&id) else { return };
        let Some((index, at)) = &serving.next else { return };
        if serving.reading || serving.away || *index >= serving.taken + SNAPSHOT_WINDOW_CHUNKS {
            return;
        }
        serving.reading = true;
        self.out.push(Output::ReadView { id, at: at.clone() });
    }

    pub(super) fn view_read(&mut self, id: SnapshotId, at: &Cursor, chunk: Option<ReadChunk>) {
        let Some(serving) = self.snapshots.serving.get_mut(&id) else { return };
        serving.reading = false;
        let Some(chunk) = chunk else { return self.unable(id) };
        // The receiver may have come back for another part meanwhile.
        let Some((index, _)) = serving.next.take_if(|(_, next)| next == at && !serving.away) else {
            return self.read_on(id);
        };
        let next = chunk.next.as_ref().map_or(Bytes::new(), Cursor::encode);
        serving.next = chunk.next.map(|next| (index + 1, next));
        let (peer, database) = (serving.peer, serving.database);
        let name = ChunkName { id, index, next };
        self.send_snapshot(peer, database, SnapshotFrame::Chunk { name, hash: chunk.hash, bytes: chunk.bytes });
        self.read_on(id);
    }

    fn taken(&mut self, from: PeerId, id: SnapshotId, index: u64) {
        // What was given up may still be acknowledged.
        let Some(serving) = self.snapshots.serving.get_mut(&id).filter(|serving| serving.peer == from) else { return };
        let sent = serving.next.as_ref().map_or(u64::MAX, |(next, _)| *next);
        if index < serving.taken || index > sent {
            self.misbehaved(from, Misbehaviour::Ack);
            return;
        }
        serving.taken = index;
        serving.heard = self.now;
        self.read_on(id);
    }

    /// The store cannot read: the receiver may ask somebody else.
    fn unable(&mut self, id: SnapshotId) {
        let Some(serving) = self.snapshots.serving.get(&id) else { return };
        let (peer, database, away) = (serving.peer, serving.database, serving.away);
        self.stop_serving(id);
        if !away {
            self.send_snapshot(peer, database, SnapshotFrame::End { id, reason: EndReason::Unable });
        }
    }

    fn stop_serving(&mut self, id: SnapshotId) {
        if let Some(serving) = self.snapshots.serving.remove(&id)
            && serving.opened.is_some()
            && !serving.read_out
        {
            self.out.push(Output::CloseView(id));
        }
    }

    // The receiver.

    /// Takes a snapshot of a connected peer that is to replace this replica. What becomes of it is told by
    /// [`Output::Repaired`], soon or later, once.
    pub fn repair(&mut self, database: DatabaseId, peer: PeerId, purpose: Purpose) -> Vec<Output> {
        let session = self.peers.get(&peer).and_then(|peer| peer.sessions.get(&database)).copied();
        let busy = self.takes_snapshot(&database) || self.snapshots.writing.contains_key(&database);
        match session {
            None => self.out.push(Output::Repaired(database, Err(RepairFailure::NotConnected))),
            Some(_) if busy => self.out.push(Output::Repaired(database, Err(RepairFailure::Busy))),
            Some(session) => {
                // What is staged is not what is wanted now.
                self.snapshots.staged.remove(&database);
                self.snapshots.repairs.insert(database, purpose);
                self.want_snapshot(session);
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Ends a repair; `false` when what was received was none.
    fn repaired(&mut self, database: DatabaseId, outcome: Result<(), RepairFailure>) -> bool {
        if self.snapshots.repairs.remove(&database).is_none() {
            return false;
        }
        self.snapshots.staged.remove(&database);
        self.out.push(Output::Repaired(database, outcome));
        true
    }

    /// By the last comparison the peer has dropped history that is lacking here.
    pub(super) fn below_floor(&mut self, session: SessionId) {
        let Some(of) = self.sessions.get(&session) else { return };
        let (peer, database) = (of.peer, of.database);
        if self.takes_snapshot(&database) {
            return;
        }
        // Whoever sent what is staged may come back.
        let other = self.snapshots.staged.contains_key(&database)
            && self.snapshots.joining_from.get(&database).is_some_and(|(from, _)| *from != peer);
        if let Some((_, until)) = self.snapshots.failed.get(&database).filter(|(_, until)| *until > self.now) {
            self.snapshots.due.insert(database, *until);
        } else if self.snapshots.writing.contains_key(&database) {
            self.snapshots.due.insert(database, self.now);
        } else if other {
            self.snapshots.due.entry(database).or_insert(self.now + SNAPSHOT_PATIENCE);
        } else {
            self.want_snapshot(session);
        }
    }

    fn want_snapshot(&mut self, session: SessionId) {
        let Some(of) = self.sessions.get(&session) else { return };
        let (peer, database) = (of.peer, of.database);
        self.snapshots.due.remove(&database);
        let receiving = Receiving { session, peer, id: None, next: 0, ended: false, queue: VecDeque::new(), heard: self.now };
        self.snapshots.receiving.insert(database, receiving);
        let resume = self.snapshots.staged.get(&database).filter(|staged| staged.index > 0).cloned();
        self.report(Report::SnapshotBegun(peer, database));
        self.send_snapshot(peer, database, SnapshotFrame::Want(resume));
    }

    fn head(&mut self, session: SessionId, index: u64, bytes: Bytes) {
        let Some(of) = self.sessions.get(&session) else { return };
        let (peer, database) = (of.peer, of.database);
        let Some(receiving) = self.snapshots.receiving.get_mut(&database).filter(|one| one.session == session) else {
            // Given up meanwhile.
            return;
        };
        let head = match SnapshotHead::decode(bytes.clone()) {
            Ok(head) if receiving.id.is_none() => head,
            Ok(_) => return self.bad_snapshot(peer, database, "a second head".to_owned()),
            Err(error) => return self.bad_snapshot(peer, database, error.to_string()),
        };
        let goes_on = self.snapshots.staged.get(&database).is_some_and(|staged| staged.id == head.id && staged.index == index);
        if index > 0 && !goes_on {
            return self.bad_snapshot(peer, database, "a head that goes on with something else".to_owned());
        }
        (receiving.id, receiving.next, receiving.heard) = (Some(head.id), index, self.now);
        self.snapshots.joining_from.insert(database, (peer, head.id));
        if index == 0 {
            self.snapshots.staged.insert(database, Resume { id: head.id, index: 0, at: Bytes::new() });
            let purpose = self.snapshots.repairs.get(&database).copied().unwrap_or_default();
            receiving.queue.push_back(SnapshotWrite::Begin { head: purpose.wrap(bytes) });
            self.stage_next(database);
        }
    }

    pub(super) fn chunk(&mut self, from: PeerId, database: DatabaseId, name: ChunkName, chunk: &Chunk) {
        let Some(session) = self.target(from, database) else { return };
        let Some(receiving) = self.snapshots.receiving.get_mut(&database) else { return };
        if receiving.session != session || receiving.id != Some(name.id) {
            // Of a transfer that was given up.
            return;
        }
        let staged = self.snapshots.staged.get(&database).map_or(0, |staged| staged.index);
        if receiving.ended || name.index != receiving.next || name.index >= staged + SNAPSHOT_WINDOW_CHUNKS {
            let cause = format!("chunk {} where {} was due", name.index, receiving.next);
            return self.bad_snapshot(from, database, cause);
        }
        receiving.next += 1;
        receiving.ended = name.next.is_empty();
        receiving.heard = self.now;
        let ChunkName { index, next, .. } = name;
        receiving.queue.push_back(SnapshotWrite::Chunk { index, next, bytes: chunk.bytes().clone() });
        self.stage_next(database);
    }

    fn stage_next(&mut self, database: DatabaseId) {
        let Some(receiving) = self.snapshots.receiving.get_mut(&database) else { return };
        let Some(id) = receiving.id.filter(|_| !self.snapshots.writing.contains_key(&database)) else { return };
        if let Some(write) = receiving.queue.pop_front() {
            self.snapshots.writing.insert(database, id);
            self.out.push(Output::Stage { database, id, write });
        }
    }

    /// The engine has written what was to be staged, or has not.
    pub(super) fn staged(&mut self, database: DatabaseId, id: SnapshotId, written: Option<SnapshotWrite>) {
        // The join may have been quicker than this answer.
        if self.snapshots.writing.get(&database) != Some(&id) {
            return;
        }
        self.snapshots.writing.remove(&database);
        let peer = self.snapshots.receiving.get(&database).filter(|one| one.id == Some(id)).map(|one| one.peer);
        let Some(written) = written else {
            self.snapshots.receiving.remove(&database);
            self.snapshots.staged.remove(&database);
            self.repaired(database, Err(RepairFailure::Unable));
            if let Some(peer) = peer {
                self.send_snapshot(peer, database, SnapshotFrame::End { id, reason: EndReason::Unwanted });
            }
            return;
        };
        if let SnapshotWrite::Chunk { index, next, .. } = written {
            let index = index + 1;
            let ended = next.is_empty();
            if let Some(peer) = peer {
                self.send_snapshot(peer, database, SnapshotFrame::Taken { id, index });
            }
            if ended {
                // The engine joins it, even if its sender is gone.
                self.snapshots.receiving.remove(&database);
                self.snapshots.staged.remove(&database);
                self.snapshots.due.remove(&database);
                self.snapshots.joining.insert(database);
                return;
            }
            self.snapshots.staged.insert(database, Resume { id, index, at: next });
        }
        self.stage_next(database);
    }

    /// What became of a staged snapshot.
    pub(super) fn snapshot_outcome(&mut self, database: DatabaseId, outcome: &SnapshotOutcome) {
        self.snapshots.joining.remove(&database);
        self.snapshots.staged.remove(&database);
        if self.snapshots.receiving.get(&database).is_some_and(|one| one.ended) {
            self.snapshots.receiving.remove(&database);
            self.snapshots.writing.remove(&database);
        }
        let from = self.snapshots.joining_from.remove(&database);
        let session = from.and_then(|(peer, _)| self.peers.get(&peer)?.sessions.get(&database).copied());
        if *outcome != SnapshotOutcome::Failed {
            self.snapshots.failed.remove(&database);
        }
        match outcome {
            SnapshotOutcome::Joined => {
                if let (Some((peer, id)), Some(_)) = (from, session) {
                    self.send_snapshot(peer, database, SnapshotFrame::End { id, reason: EndReason::Joined });
                }
                self.repaired(database, Ok(()));
            }
            SnapshotOutcome::Lacking { dot } => {
                if let (Some((peer, id)), Some(_)) = (from, session) {
                    self.send_snapshot(peer, database, SnapshotFrame::End { id, reason: EndReason::Unwanted });
                }
                self.repaired(database, Err(RepairFailure::Lacking(*dot)));
            }
            SnapshotOutcome::Invalid { cause } => {
                self.repaired(database, Err(RepairFailure::Invalid(cause.clone())));
                if let Some((peer, _)) = from {
                    self.bad_snapshot(peer, database, cause.clone());
                }
            }
            SnapshotOutcome::Failed => {
                // A disk that cannot read a row will not read it at the next join either.
                let failures = self.snapshots.failed.get(&database).map_or(0, |(failures, _)| *failures);
                let pause = SNAPSHOT_PATIENCE.saturating_mul(1 << failures.min(16)).min(MAX_SYNC_GAP);
                self.snapshots.failed.insert(database, (failures + 1, self.now + pause));
                self.repaired(database, Err(RepairFailure::Unable));
            }
        }
        // Whatever is lacking now is found by comparing; what was not joined is asked of whoever comes next.
        let sessions: Vec<SessionId> = self.ranks.get(&database).into_iter().flatten().map(|(_, id)| *id).collect();
        for id in sessions {
            self.ask(id);
        }
    }

    // Both.

    fn ended(&mut self, session: SessionId, id: SnapshotId, reason: EndReason) {
        let Some(of) = self.sessions.get(&session) else { return };
        let (peer, database) = (of.peer, of.database);
        match reason {
            EndReason::Joined | EndReason::Unwanted => {
                if self.snapshots.serving.get(&id).is_some_and(|serving| serving.peer == peer) {
                    self.stop_serving(id);
                }
            }
            EndReason::Busy | EndReason::Unable => {
                let ours = self.snapshots.receiving.get(&database);
                if ours.is_some_and(|one| one.session == session && one.id.is_none_or(|ours| ours == id)) {
                    self.snapshots.receiving.remove(&database);
                    let busy = reason == EndReason::Busy;
                    let failure = if busy { RepairFailure::PeerBusy } else { RepairFailure::PeerUnable };
                    if self.repaired(database, Err(failure)) {
                        return;
                    }
                    // Who cannot read is asked again after the next comparison, which backs off.
                    if busy {
                        self.snapshots.due.insert(database, self.now + SNAPSHOT_PATIENCE);
                    }
                }
            }
        }
    }

    /// What is staged when a database is opened; the engine joins by itself what is complete.
    pub(super) fn staged_at_opening(&mut self, database: DatabaseId, staged: Option<&Staged>) {
        let Some(staged) = staged else { return };
        if staged.is_complete() {
            self.snapshots.joining.insert(database);
        } else if let (Ok(head), Some(at)) = (SnapshotHead::decode(staged.head.clone()), &staged.next) {
            self.snapshots.staged.insert(database, Resume { id: head.id, index: staged.chunks, at: at.clone() });
        }
    }

    /// A session ends: what comes in by it is given up, what goes out waits for the peer for a while.
    pub(super) fn snapshot_session_ended(&mut self, session: SessionId, peer: PeerId, database: DatabaseId) {
        if self.snapshots.receiving.get(&database).is_some_and(|one| one.session == session) {
            self.snapshots.receiving.remove(&database);
            if !self.repaired(database, Err(RepairFailure::NotConnected)) {
                self.snapshots.due.insert(database, self.now + SNAPSHOT_PATIENCE);
            }
        }
        let serving = self.snapshots.serving.values_mut();
        for serving in serving.filter(|serving| serving.peer == peer && serving.database == database) {
            serving.away = true;
            serving.heard = self.now;
        }
    }

    /// The database is closed here.
    pub(super) fn snapshot_closed(&mut self, database: DatabaseId) {
        let serving = self.snapshots.serving.iter().filter(|(_, serving)| serving.database == database);
        let gone: Vec<SnapshotId> = serving.map(|(id, _)| *id).collect();
        for id in gone {
            self.stop_serving(id);
        }
        self.repaired(database, Err(RepairFailure::Unable));
        self.snapshots.receiving.remove(&database);
        self.snapshots.staged.remove(&database);
        self.snapshots.joining.remove(&database);
        self.snapshots.joining_from.remove(&database);
        self.snapshots.due.remove(&database);
        self.snapshots.failed.remove(&database);
    }

    pub(super) fn snapshot_tick(&mut self) {
        let now = self.now;
        let late = self.snapshots.serving.iter().filter(|(_, serving)| serving.heard + SNAPSHOT_KEEP <= now);
        let late: Vec<SnapshotId> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.unable(id);
        }
        let stalled = self.snapshots.receiving.iter().filter(|(_, one)| !one.ended && one.heard + SNAPSHOT_STALL <= now);
        let stalled: Vec<(DatabaseId, PeerId, Option<SnapshotId>)> =
            stalled.map(|(database, one)| (*database, one.peer, one.id)).collect();
        for (database, peer, id) in stalled {
            self.snapshots.receiving.remove(&database);
            if !self.repaired(database, Err(RepairFailure::PeerUnable)) {
                self.snapshots.due.insert(database, now);
            }
            if let Some(id) = id {
                self.send_snapshot(peer, database, SnapshotFrame::End { id, reason: EndReason::Unwanted });
            }
        }
        let due: Vec<DatabaseId> =
            self.snapshots.due.iter().filter(|(_, at)| **at <= now).map(|(database, _)| *database).collect();
        for database in due {
            if self.snapshots.writing.contains_key(&database) {
                continue;
            }
            self.snapshots.due.remove(&database);
            if self.takes_snapshot(&database) {
                continue;
            }
            if let Some((_, until)) = self.snapshots.failed.get(&database).filter(|(_, until)| *until > now) {
                self.snapshots.due.insert(database, *until);
                continue;
            }
            // The nearest peer that has one; if there is none now, the next comparison finds one.
            let sessions = self.ranks.get(&database).into_iter().flatten().map(|(_, id)| *id);
            let below: Vec<SessionId> =
                sessions.filter(|id| self.sessions.get(id).is_some_and(|session| session.below)).collect();
            let last = self.snapshots.joining_from.get(&database).map(|(peer, _)| *peer);
            // Not the one that has just failed, if there is another.
            let other = below.iter().find(|id| self.sessions.get(id).map(|session| session.peer) != last);
            if let Some(session) = other.or(below.first()).copied() {
                self.want_snapshot(session);
            }
        }
    }

    fn bad_snapshot(&mut self, peer: PeerId, database: DatabaseId, cause: String) {
        self.repaired(database, Err(RepairFailure::Invalid(cause.clone())));
        self.snapshots.receiving.remove(&database);
        self.misbehaved(peer, Misbehaviour::Snapshot(cause));
    }

    fn send_snapshot(&mut self, peer: PeerId, database: DatabaseId, frame: SnapshotFrame) {
        self.send(peer, Frame::Snapshot(database, frame));
    }
}
