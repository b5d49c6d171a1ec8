//! Sync: the state machine behind `/kvdb/sync/1`. One stream per pair of peers carries all databases.
//!
//! Both sides say which databases they have open. For those that both have, replicas are compared by hash; if they differ,
//! version vectors are exchanged, and each side streams what the other lacks in its own merge order, within the credit
//! that the receiver gives, round robin over the databases. Then the stream is a live feed.
//!
//! Nothing here trusts that what was sent was merged: blocks may be dropped where they arrive before their parents. Every
//! difference that remains is found by comparing again, and what the other lacks *by its own word* is sent again.

mod admission;
mod exchange;
mod feed;
mod holders;
mod peer;
mod ranges;
mod session;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::mutation::{Mutation, active};
use crdt::snapshot::Chunk;
use crdt::{Block, Cursor, DatabaseId, Dot, ReplicaId, SnapshotId, SnapshotWrite, VersionVector};
use libp2p::PeerId;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::Moment;
use super::limits::{MAX_OPEN_DATABASES, MAX_QUESTIONS_PER_SECOND, SYNC_CREDIT_BYTES};
use super::local::{Local, Locals};
use super::ranges::{RangeRead, RangeTask};
use super::wire::{ChunkName, ErrorCode, Frame, PROTOCOL_VERSION};
use crate::engine::port::{Delivery, LogChunk, News, Progress};
use admission::Admission;
use holders::Gone;
use peer::Peer;
use ranges::Comparisons;
pub use ranges::{CompareState, Comparison, RangeReader, Side};
use session::Session;
use snapshot::Snapshots;
pub use snapshot::{OpenedView, ReadChunk, RepairFailure};

/// One session: a database with a peer, from the moment that both have it open. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// What comes to the machine.
#[derive(Debug)]
pub enum Input {
    /// The stream with a peer stands.
    PeerUp(PeerId),
    /// The stream is gone.
    PeerDown(PeerId),
    /// A frame that is no `Blocks`.
    Frame(PeerId, Frame),
    /// A `Blocks` frame, its blocks verified.
    Blocks(PeerId, DatabaseId, Vec<Block>),
    /// The peer sent something that is no frame, or a block that is none.
    Garbage(PeerId, String),
    /// The engine's news.
    News(News),
    /// The answer to `ReadLog`; `None` when the store could not read.
    LogRead(SessionId, Option<LogChunk>),
    /// The answer to `Deliver`; `None` when the engine refused.
    Delivered(SessionId, u64, Option<Delivery>),
    /// Bytes of frames to this peer have been written to its stream.
    Written(PeerId, usize),
    /// The answer to [`Output::OpenView`]; `None` when the store could not read.
    ViewOpened(SnapshotId, Option<OpenedView>),
    /// The answer to [`Output::ReadView`]; `None` when the store could not read.
    ViewRead(SnapshotId, Cursor, Option<ReadChunk>),
    /// A chunk of a snapshot, verified.
    Chunk(PeerId, DatabaseId, ChunkName, Chunk),
    /// The answer to [`Output::Stage`]: what was written; `None` when the engine refused.
    Staged(DatabaseId, SnapshotId, Option<SnapshotWrite>),
    /// The answer to [`Output::ReadRange`]; `None` when the store could not read.
    RangeRead(RangeReader, DatabaseId, Option<RangeRead>),
    /// Something not covered was seen; the hash of the version vector that was announced, if one was.
    StartSync(DatabaseId, PeerId, Option<[u8; 32]>),
    /// A wake-up time has come.
    Tick,
}

/// Where to begin reading the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFrom {
    /// At this revision.
    Revision(u64),
    /// At the lowest revision of these blocks.
    Lowest(Vec<Dot>),
}

/// What the machine wants done.
#[derive(Debug)]
pub enum Output {
    /// Write this frame.
    Send(PeerId, Frame),
    /// Read the log and answer with `LogRead`.
    ReadLog {
        /// For the answer.
        session: SessionId,
        /// The database.
        database: DatabaseId,
        /// Where to begin.
        from: ReadFrom,
        /// About how much to read.
        max_bytes: usize,
        /// Blocks in this set are skipped.
        skip: VersionVector,
    },
    /// Give blocks to the engine and answer with `Delivered`.
    Deliver {
        /// For the answer.
        session: SessionId,
        /// The database.
        database: DatabaseId,
        /// Who sent them.
        peer: PeerId,
        /// The blocks, all of this database.
        blocks: Vec<Block>,
        /// Their bytes.
        bytes: u64,
    },
    /// Open a view of a database that stands still until `CloseView`, and answer with `ViewOpened`.
    OpenView {
        /// For the answer.
        id: SnapshotId,
        /// The database.
        database: DatabaseId,
    },
    /// Read the chunk at a place and answer with `ViewRead`.
    ReadView {
        /// The view.
        id: SnapshotId,
        /// The place.
        at: Cursor,
    },
    /// The view is not needed any more.
    CloseView(SnapshotId),
    /// Give a part of a snapshot to the engine and answer with `Staged`. One at a time for each database.
    Stage {
        /// The database.
        database: DatabaseId,
        /// For the answer.
        id: SnapshotId,
        /// The part.
        write: SnapshotWrite,
    },
    /// Read a range of keys in short and answer with `RangeRead`.
    ReadRange {
        /// For the answer.
        reader: RangeReader,
        /// The database.
        database: DatabaseId,
        /// What to read.
        task: RangeTask,
    },
    /// What became of [`SyncMachine::repair`]. Unless it has replaced the replica, something may still be staged.
    Repaired(DatabaseId, Result<(), RepairFailure>),
    /// End the stream, after what was sent before has been written.
    Disconnect(PeerId, DisconnectReason),
    /// Something that somebody should know.
    Report(Report),
}

/// Why a stream is ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the sync protocol, this node {PROTOCOL_VERSION}: run the same release on both")]
    Version {
        /// The peer's version.
        theirs: u64,
    },
    /// This node's engine takes no blocks.
    #[error("this node's engine takes no blocks now")]
    Refused,
    /// A limit of the peer does not fit ours.
    #[error("{what} is {value} with one node, but the other needs {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The value found.
        value: u64,
        /// The value needed.
        limit: u64,
    },
    /// The peer ends the stream.
    #[error("the peer ends the sync: {text}")]
    Remote {
        /// The kind of error.
        code: ErrorCode,
        /// What it says.
        text: String,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the sync protocol: {0}")]
    Misbehaved(Misbehaviour),
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misbehaviour {
    /// Something before the first Hello.
    #[error("a frame before Hello")]
    BeforeHello,
    /// A second Hello.
    #[error("a second Hello")]
    SecondHello,
    /// A frame for a database that was never offered to it.
    #[error("a frame for a database that is not open here")]
    NotOpen,
    /// More databases than a peer may name.
    #[error("more than {MAX_OPEN_DATABASES} databases")]
    TooManyDatabases,
    /// More in flight than it has credit for.
    #[error("more blocks in flight than the credit of {SYNC_CREDIT_BYTES} bytes")]
    Credit,
    /// A block of another database than the frame says.
    #[error("a block of another database")]
    ForeignBlock,
    /// An acknowledgement below an earlier one, or of more than was sent.
    #[error("an acknowledgement that falls or exceeds what was sent")]
    Ack,
    /// More questions than a second has room for.
    #[error("more than {MAX_QUESTIONS_PER_SECOND} questions within a second")]
    Questions,
    /// An answer to nothing.
    #[error("an answer without a question")]
    Unasked,
    /// A snapshot that is none, or not the one that was asked for.
    #[error("a bad snapshot: {0}")]
    Snapshot(String),
    /// An answer about a range that has nothing to do with the question.
    #[error("an answer about another range than it was asked for")]
    Range,
    /// A list of what it has that does not ascend.
    #[error("a version vector out of order")]
    Order,
    /// Not a frame, or not a block.
    #[error("{0}")]
    Garbage(String),
}

/// What somebody should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Both have the same blocks, heads and digest.
    Synced(PeerId, DatabaseId),
    /// Same blocks, but other heads or another digest.
    Disagreement(PeerId, DatabaseId),
    /// Two blocks bear one of these names.
    TwoBlocks(PeerId, DatabaseId, Vec<Dot>),
    /// The peer lacks blocks that are not kept here any more: a snapshot, or another peer, must bring it on.
    NeedsSnapshot(PeerId, DatabaseId),
    /// Blocks are lacking here that the peer does not keep any more: a snapshot, or another peer, must bring them.
    BelowFloor(PeerId, DatabaseId),
    /// So many blocks of new writers were put off.
    WritersPutOff(PeerId, DatabaseId, usize),
    /// A snapshot is asked for.
    SnapshotBegun(PeerId, DatabaseId),
    /// The peer says that the database was dropped.
    Dropped(PeerId, DatabaseId),
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that vary independently")]
pub struct SessionStatus {
    /// The last comparison found both equal, or nothing lacking here.
    pub synced: bool,
    /// New blocks go to the peer at once.
    pub live: bool,
    /// Bytes of blocks on their way to the peer.
    pub in_flight: u64,
    /// The peer lacks blocks that are not kept here any more.
    pub needs_snapshot: bool,
    /// Blocks are lacking here that the peer does not keep any more.
    pub below_floor: bool,
}

/// The sync state machine of one node.
#[derive(Debug)]
pub struct SyncMachine {
    me: PeerId,
    locals: Locals,
    peers: BTreeMap<PeerId, Peer>,
    sessions: BTreeMap<SessionId, Session>,
    /// Sessions of each database, nearest peer first.
    ranks: BTreeMap<DatabaseId, BTreeMap<[u8; 32], SessionId>>,
    timers: BTreeSet<(Moment, SessionId)>,
    next_session: u64,
    gone: Gone,
    /// Databases that were dropped on this node.
    dropped: BTreeSet<DatabaseId>,
    /// Log reads under way, also for sessions that have ended since: one for each database with a peer, however often
    /// that one closes and opens it.
    reads: BTreeMap<SessionId, (PeerId, DatabaseId)>,
    snapshots: Snapshots,
    comparisons: Comparisons,
    admission: Admission,
    now: Moment,
    out: Vec<Output>,
}

impl SyncMachine {
    /// A machine without databases and peers. The boot id is drawn at each start, below 2^63.
    #[must_use]
    pub fn new(me: PeerId, boot: u64) -> Self {
        Self {
            me,
            locals: Locals::new(),
            peers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            ranks: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_session: 0,
            gone: Gone::default(),
            dropped: BTreeSet::new(),
            reads: BTreeMap::new(),
            snapshots: Snapshots::new(boot),
            comparisons: Comparisons::default(),
            admission: Admission::default(),
            now: Moment::ZERO,
            out: Vec::new(),
        }
    }

    /// The one door.
    pub fn handle(&mut self, input: Input, now: Moment) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::PeerUp(peer) => self.peer_up(peer),
            Input::PeerDown(peer) => self.peer_down(&peer),
            Input::Frame(peer, frame) => self.frame(peer, frame),
            Input::Blocks(peer, database, blocks) => self.blocks(peer, database, blocks),
            Input::Garbage(peer, what) => self.misbehaved(peer, Misbehaviour::Garbage(what)),
            Input::News(news) => self.news(&news),
            Input::LogRead(session, chunk) => self.log_read(session, chunk),
            Input::Delivered(session, bytes, delivery) => self.delivered(session, bytes, delivery),
            Input::Written(peer, bytes) => self.written(peer, bytes),
            Input::ViewOpened(id, opened) => self.view_opened(id, opened),
            Input::ViewRead(id, at, chunk) => self.view_read(id, &at, chunk),
            Input::Chunk(peer, database, name, chunk) => self.chunk(peer, database, name, &chunk),
            Input::Staged(database, id, written) => self.staged(database, id, written),
            Input::RangeRead(reader, database, read) => self.range_read(reader, database, read),
            Input::StartSync(database, peer, announced) => self.start_sync(database, peer, announced),
            Input::Tick => {
                self.tick();
                self.late_tick();
                self.snapshot_tick();
                self.compare_tick();
            }
        }
        std::mem::take(&mut self.out)
    }

    /// When `Tick` is wanted.
    #[must_use]
    pub fn wake(&self) -> Option<Moment> {
        let timers = self.timers.first().map(|(at, _)| *at).into_iter().chain(self.admission.wake());
        timers.chain(self.snapshots.wake()).chain(self.comparisons.wake(&self.peers)).min()
    }

    /// The open databases.
    #[must_use]
    pub fn locals(&self) -> &Locals {
        &self.locals
    }

    /// What the peer has on disk, by its acks since the stream began; `None` when there is no session.
    #[must_use]
    pub fn durable(&self, peer: &PeerId, database: &DatabaseId) -> Option<&VersionVector> {
        self.session_of(peer, database).map(|session| &session.durable)
    }

    /// The sessions with a peer.
    pub fn sessions(&self, peer: &PeerId) -> impl Iterator<Item = (DatabaseId, SessionStatus)> + '_ {
        let sessions = self.peers.get(peer).into_iter().flat_map(|peer| &peer.sessions);
        sessions.filter_map(|(database, id)| Some((*database, self.sessions.get(id)?.status())))
    }

    /// Whether every peer that has the database open gets its new blocks at once, and there is one.
    #[must_use]
    pub fn feeds(&self, peer: &PeerId, database: &DatabaseId) -> bool {
        self.session_of(peer, database).is_some_and(|session| session.live && session.known)
    }

    fn session_of(&self, peer: &PeerId, database: &DatabaseId) -> Option<&Session> {
        self.sessions.get(self.peers.get(peer)?.sessions.get(database)?)
    }

    fn news(&mut self, news: &News) {
        match news {
            News::Opened(database, progress) => self.opened(*database, progress),
            News::Advanced(database, progress) => self.advanced(*database, progress),
            News::Snapshot(database, outcome) => self.snapshot_outcome(*database, outcome),
            News::Closed(database) => self.closed(*database),
        }
    }

    fn opened(&mut self, database: DatabaseId, progress: &Progress) {
        self.locals.insert(database, Local::opened(progress));
        self.staged_at_opening(database, progress.staged.as_ref());
        let peers: Vec<PeerId> = self.peers.iter().filter(|(_, peer)| peer.hello.is_some()).map(|(id, _)| *id).collect();
        for peer in peers {
            self.offer(peer, database);
        }
    }

    fn advanced(&mut self, database: DatabaseId, progress: &Progress) {
        let Some(local) = self.locals.get_mut(&database) else { return };
        // A sync beside the engine may report after a later one; what is acknowledged never falls.
        let known = |(replica, seq): &&(ReplicaId, u64)| local.durable().get(replica) < *seq;
        let durable: Vec<(ReplicaId, u64)> = progress.durable.iter().filter(known).copied().collect();
        let durable = if active(Mutation::DurableIsMerged) { progress.vv.clone() } else { durable };
        local.advance(progress);
        let sessions: Vec<SessionId> = self.ranks.get(&database).into_iter().flatten().map(|(_, id)| *id).collect();
        for id in sessions {
            if !progress.floors.is_empty() {
                self.floors_rose(id);
            }
            self.feed_advanced(id, &progress.vv);
            self.send_durable(id, &durable);
        }
    }

    fn closed(&mut self, database: DatabaseId) {
        self.locals.remove(&database);
        self.gone.forget_all(&database);
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for id in peers {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            peer.remote_open.remove(&database);
            if peer.offered.remove(&database) {
                self.send(id, Frame::Close(database));
            }
            self.end_session(id, database);
        }
        self.snapshot_closed(database);
        self.comparisons_closed(&database);
    }

    fn send(&mut self, peer: PeerId, frame: Frame) {
        self.out.push(Output::Send(peer, frame));
    }

    fn report(&mut self, report: Report) {
        self.out.push(Output::Report(report));
    }

    fn misbehaved(&mut self, peer: PeerId, how: Misbehaviour) {
        self.cut_off(peer, ErrorCode::Protocol, DisconnectReason::Misbehaved(how));
    }

    /// Says why and ends the stream; what else comes from it is not looked at.
    fn cut_off(&mut self, peer: PeerId, code: ErrorCode, reason: DisconnectReason) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        let mut text = reason.to_string();
        while text.len() > super::limits::MAX_ERROR_TEXT_BYTES {
            text.pop();
        }
        self.send(peer, Frame::Error { code, text });
        self.out.push(Output::Disconnect(peer, reason));
        self.peer_down(&peer);
    }

    fn set_timer(&mut self, id: SessionId, at: Moment) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(before) = session.timer.replace(at) {
            self.timers.remove(&(before, id));
        }
        self.timers.insert((at, id));
    }
}

fn distance(a: &PeerId, b: &PeerId) -> [u8; 32] {
    let (mut a, b): ([u8; 32], [u8; 32]) = (Sha256::digest(a.to_bytes()).into(), Sha256::digest(b.to_bytes()).into());
    a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
    a
}
