//! All of replication that decides, as one machine: who is connected and whom to dial, the streams, both protocols and
//! what is on its way to the engine. The driver has the sockets and tasks; a simulation has none.

mod connections;
mod protocols;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::snapshot::{Chunk, Purpose};
use crdt::{Block, Cursor, DatabaseId, Dot, ReplicaId, Signer, SnapshotId, SnapshotWrite, Source, Verifier, VersionVector};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use sha2::{Digest as _, Sha256};

use super::Moment;
use super::gossip::{self, GossipMachine, GossipOptions, Verdict};
use super::handle::PeerStatus;
use super::lanes::{Lanes, Load};
use super::peers::{Book, peer_in};
use super::ranges::{RangeRead, RangeTask};
use super::sync::{self, OpenedView, RangeReader, ReadChunk, ReadFrom, SessionId, SyncMachine};
use super::wire::{ChunkName, Frame};
use crate::engine::port::{Delivery, LogChunk, News};

/// A caller's number for a dial, which comes back with its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Numbers the streams with a peer: what comes from one that has been replaced is not looked at.
pub type Epoch = u64;

/// What comes to the machine. `R` is the room that received blocks take until they are merged.
#[derive(Debug)]
pub enum Input<R> {
    /// A connection stands.
    Connected {
        /// The peer.
        peer: PeerId,
        /// The connection.
        connection: ConnectionId,
        /// Its address.
        address: Multiaddr,
        /// Whether this node dialled.
        outgoing: bool,
        /// Connections with this peer now.
        count: u32,
    },
    /// A connection is gone.
    Disconnected {
        /// The peer.
        peer: PeerId,
        /// Connections with this peer now.
        left: u32,
    },
    /// [`Output::Dial`] has begun, or was refused at once.
    Dialled(usize, Result<ConnectionId, String>),
    /// A dial led to nothing.
    DialFailed {
        /// What was to become of it.
        connection: ConnectionId,
        /// The address is this node's own.
        ourself: bool,
        /// Why.
        cause: String,
    },
    /// What a peer says of itself.
    Identified {
        /// The peer.
        peer: PeerId,
        /// Its software.
        agent: String,
        /// Its protocol family.
        protocol: String,
        /// Its addresses.
        addresses: Vec<Multiaddr>,
    },
    /// These addresses were found in the local network.
    Found(Vec<(PeerId, Multiaddr)>),
    /// They are not told of there any more.
    Lost(Vec<(PeerId, Multiaddr)>),
    /// A round-trip time.
    Ping(PeerId, Moment),
    /// A connected peer subscribed to a topic.
    Subscribed(PeerId, String),
    /// It did so no more.
    Unsubscribed(PeerId, String),
    /// A gossip message: who passed it on, its topic, its data. Its verdict is among the outputs.
    Gossip(PeerId, String, Bytes),
    /// [`Output::OpenStream`] has succeeded, or not.
    StreamOpened(PeerId, Result<(), String>),
    /// A peer has opened a stream.
    StreamAccepted(PeerId),
    /// A stream has something to say.
    Stream(PeerId, Epoch, StreamEvent<R>),
    /// [`Output::Send`] found more than `WRITE_QUEUE_BYTES` waiting: the peer does not read.
    QueueFull(PeerId),
    /// The engine's news.
    News(News),
    /// The answer to [`Output::ReadLog`]; `None` when the store could not read.
    LogRead(SessionId, Option<LogChunk>),
    /// The answer to [`Output::OpenView`]; `None` when the store could not read.
    ViewOpened(SnapshotId, Option<OpenedView>),
    /// The answer to [`Output::ReadView`]; `None` when the store could not read.
    ViewRead(SnapshotId, Cursor, Option<ReadChunk>),
    /// The answer to [`Output::Stage`]: what was written; `None` when the engine refused.
    Staged(DatabaseId, SnapshotId, Option<SnapshotWrite>),
    /// The answer to [`Output::ReadRange`]; `None` when the store could not read.
    RangeRead(RangeReader, DatabaseId, Option<RangeRead>),
    /// The answer to [`Output::Deliver`], see [`super::lanes::outcome`].
    Delivered(SessionId, u64, Option<Delivery>),
    /// The answer to [`Output::DeliverGossip`]; `None` when the engine refused.
    GossipDelivered {
        /// The database.
        database: DatabaseId,
        /// Who passed it on.
        from: PeerId,
        /// The block's author.
        author: PeerId,
        /// What became of it.
        delivery: Option<Delivery>,
    },
    /// A wake-up time has come.
    Tick,
}

/// What a stream has to say.
#[derive(Debug)]
pub enum StreamEvent<R> {
    /// A frame without blocks.
    Frame(Frame),
    /// Verified blocks, with the room that they take until they are merged.
    Blocks(DatabaseId, Vec<Block>, R),
    /// A verified chunk of a snapshot, with the room that it takes until it was looked at.
    Chunk(DatabaseId, ChunkName, Chunk, R),
    /// Something that is no frame, or a block that is none.
    Garbage(String),
    /// A frame with blocks, of this size, was written.
    Written(usize),
    /// The stream has ended.
    Ended(String),
}

/// What the machine wants done, in this order.
#[derive(Debug)]
pub enum Output<R> {
    /// Dial, and answer with [`Input::Dialled`] before the next output.
    Dial {
        /// For the answer.
        target: usize,
        /// The peer, if it must be that one.
        peer: Option<PeerId>,
        /// Where.
        address: Multiaddr,
    },
    /// Dial a peer that was disconnected to be connected anew; nobody waits for the outcome.
    Redial(PeerId, Vec<Multiaddr>),
    /// Tell the caller what became of its dial.
    DialDone(Ticket, Result<(), String>),
    /// Close all connections with a peer.
    Disconnect(PeerId),
    /// Close one connection.
    CloseConnection(ConnectionId),
    /// Open a sync stream and answer with [`Input::StreamOpened`].
    OpenStream(PeerId),
    /// The stream just handed in is the peer's from now on; what it says bears this number.
    Link(PeerId, Epoch),
    /// Let go of the peer's stream: what is queued is still written for a while, nothing more is read.
    Unlink(PeerId),
    /// Write this frame to the peer's stream.
    Send(PeerId, Frame),
    /// Read the log and answer with [`Input::LogRead`].
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
    /// Open a view that stands still until [`Output::CloseView`], and answer with [`Input::ViewOpened`].
    OpenView {
        /// For the answer.
        id: SnapshotId,
        /// The database.
        database: DatabaseId,
    },
    /// Read the chunk at a place and answer with [`Input::ViewRead`].
    ReadView {
        /// The view.
        id: SnapshotId,
        /// The place.
        at: Cursor,
    },
    /// The view is not needed any more.
    CloseView(SnapshotId),
    /// Give a part of a snapshot to the engine and answer with [`Input::Staged`].
    Stage {
        /// The database.
        database: DatabaseId,
        /// For the answer.
        id: SnapshotId,
        /// The part.
        write: SnapshotWrite,
    },
    /// Read a range of keys in short and answer with [`Input::RangeRead`].
    ReadRange {
        /// For the answer.
        reader: RangeReader,
        /// The database.
        database: DatabaseId,
        /// What to read.
        task: RangeTask,
    },
    /// Give blocks to the engine and answer with [`Input::Delivered`].
    Deliver(Load<R>),
    /// Give a block to the engine and answer with [`Input::GossipDelivered`].
    DeliverGossip {
        /// The database.
        database: DatabaseId,
        /// Who passed it on.
        from: PeerId,
        /// Its author, if it is a peer.
        author: PeerId,
        /// The sender's number.
        source: Source,
        /// The block.
        block: Block,
    },
    /// Subscribe to a topic.
    Subscribe(String),
    /// Unsubscribe from it.
    Unsubscribe(String),
    /// Publish on a topic.
    Publish(String, Bytes),
    /// The verdict on the message handed in.
    Verdict(Verdict),
    /// One more of these.
    Count(&'static str),
    /// What became of [`NetMachine::repair`].
    Repaired(DatabaseId, Result<(), sync::RepairFailure>),
    /// Two nodes do not agree; these blocks, if it is about blocks. Each pair is told once.
    Disagreement(PeerId, DatabaseId, Vec<Dot>),
}

/// What a node's replication begins with.
pub struct NetMachineOptions {
    /// This node.
    pub me: PeerId,
    /// Addresses that are dialled for ever.
    pub bootstrap: Vec<Multiaddr>,
    /// Boot id and interval of announcements.
    pub gossip: GossipOptions,
    /// Signs announcements.
    pub signer: Box<dyn Signer + Send>,
    /// Verifies announcements and blocks that come by gossip.
    pub verifier: Box<dyn Verifier + Send>,
    /// Random numbers for the gossip machine.
    pub gossip_random: Box<dyn FnMut() -> u64 + Send>,
    /// Random numbers for the waits between dials.
    pub random: Box<dyn FnMut() -> u64 + Send>,
}

impl std::fmt::Debug for NetMachineOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NetMachineOptions({})", self.me)
    }
}

/// A stream that stands.
#[derive(Debug)]
struct Linked {
    epoch: Epoch,
    since: Moment,
}

/// The replication of one node.
pub struct NetMachine<R> {
    me: PeerId,
    sync: SyncMachine,
    gossip: GossipMachine,
    book: Book,
    links: BTreeMap<PeerId, Linked>,
    lanes: Lanes<R>,
    gossip_deliveries: usize,
    /// The open databases by topic.
    topics: BTreeMap<String, DatabaseId>,
    /// The topics of each connected peer, known here or not.
    subscriptions: BTreeMap<PeerId, BTreeSet<String>>,
    /// With whom this node disagrees, and whether by two blocks of one name, which no equality mends.
    disagreements: BTreeMap<(PeerId, DatabaseId), bool>,
    /// Peers that were disconnected to be connected anew, and where to dial them.
    redial: BTreeMap<PeerId, Vec<Multiaddr>>,
    /// Peers that broke the protocol and have until then to read why.
    last_words: BTreeSet<(Moment, PeerId)>,
    epoch: Epoch,
    /// Room of the blocks that the sync machine is being given.
    room: Option<R>,
    random: Box<dyn FnMut() -> u64 + Send>,
    now: Moment,
    out: Vec<Output<R>>,
}

impl<R> std::fmt::Debug for NetMachine<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NetMachine({})", self.me)
    }
}

impl<R> NetMachine<R> {
    /// A machine without databases and connections.
    #[must_use]
    pub fn new(options: NetMachineOptions) -> Self {
        let NetMachineOptions { me, bootstrap, gossip, signer, verifier, gossip_random, random } = options;
        let mut book = Book::default();
        let mut sync = SyncMachine::new(me, gossip.boot);
        bootstrap.iter().filter_map(peer_in).for_each(|peer| sync.trust(peer));
        for address in bootstrap {
            if peer_in(&address) != Some(me) {
                book.add(address, Moment::ZERO, None);
            }
        }
        Self {
            me,
            sync,
            gossip: GossipMachine::new(me, gossip, signer, verifier, gossip_random),
            book,
            links: BTreeMap::new(),
            lanes: Lanes::default(),
            gossip_deliveries: 0,
            topics: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            disagreements: BTreeMap::new(),
            redial: BTreeMap::new(),
            last_words: BTreeSet::new(),
            epoch: 0,
            room: None,
            random,
            now: Moment::ZERO,
            out: Vec::new(),
        }
    }

    /// The one door.
    pub fn handle(&mut self, input: Input<R>, now: Moment) -> Vec<Output<R>> {
        self.now = self.now.max(now);
        match input {
            Input::Connected { peer, connection, address, outgoing, count } => {
                self.connected(peer, connection, address, outgoing, count);
            }
            Input::Disconnected { peer, left } => self.disconnected(peer, left),
            Input::Dialled(target, outcome) => {
                let jitter = (self.random)();
                self.book.dialled(target, outcome, self.now, jitter);
            }
            Input::DialFailed { connection, ourself, cause } => {
                self.count("dials_failed");
                let jitter = (self.random)();
                self.book.dial_failed(connection, ourself, cause, self.now, jitter);
            }
            Input::Identified { peer, agent, protocol, addresses } => self.book.identified(&peer, agent, protocol, addresses),
            Input::Found(found) => self.found(found),
            Input::Lost(lost) => self.book.lost(&lost),
            Input::Ping(peer, time) => self.book.ping(&peer, time),
            Input::Subscribed(peer, topic) => self.subscribed(peer, topic),
            Input::Unsubscribed(peer, topic) => self.unsubscribed(peer, &topic),
            Input::Gossip(from, topic, data) => match self.topics.get(&topic).copied() {
                Some(database) => self.gossip(gossip::Input::Message { database, from, data }, Some(from)),
                None => self.out.push(Output::Verdict(Verdict::Ignore)),
            },
            Input::StreamOpened(peer, outcome) => self.stream_opened(peer, outcome),
            Input::StreamAccepted(peer) => {
                // Only the smaller id opens: two streams would be one too many.
                if peer < self.me { self.start_link(peer) } else { self.count("sync_streams_refused") }
            }
            Input::Stream(peer, epoch, event) => self.stream_event(peer, epoch, event),
            Input::QueueFull(peer) => {
                self.count("sync_queue_full");
                self.out.push(Output::Disconnect(peer));
                self.end_link(peer);
            }
            Input::News(news) => self.news(news),
            Input::LogRead(session, chunk) => self.sync(sync::Input::LogRead(session, chunk)),
            Input::ViewOpened(id, opened) => self.sync(sync::Input::ViewOpened(id, opened)),
            Input::ViewRead(id, at, chunk) => self.sync(sync::Input::ViewRead(id, at, chunk)),
            Input::Staged(database, id, written) => self.sync(sync::Input::Staged(database, id, written)),
            Input::RangeRead(reader, database, read) => self.sync(sync::Input::RangeRead(reader, database, read)),
            Input::Delivered(session, bytes, delivery) => {
                self.out.extend(self.lanes.done(session).map(Output::Deliver));
                self.sync(sync::Input::Delivered(session, bytes, delivery));
            }
            Input::GossipDelivered { database, from, author, delivery } => {
                self.gossip_deliveries = self.gossip_deliveries.saturating_sub(1);
                let merged = delivery.is_some_and(|delivery| delivery.held == 0 && delivery.dropped == 0);
                self.gossip(gossip::Input::Delivered { database, from, author, merged }, None);
            }
            Input::Tick => self.tick(),
        }
        let answers = self.book.take_answers();
        self.out.extend(answers.into_iter().map(|(ticket, outcome)| Output::DialDone(ticket, outcome)));
        std::mem::take(&mut self.out)
    }

    /// Dials an address, and again whenever that peer is lost once it has been reached. `false` when there are too many
    /// addresses already; else the outcome comes as [`Output::DialDone`].
    pub fn dial(&mut self, address: Multiaddr, ticket: Ticket, now: Moment) -> (bool, Vec<Output<R>>) {
        let room = self.book.add(address, self.now.max(now), Some(ticket));
        (room, self.handle(Input::Tick, now))
    }

    /// See [`SyncMachine::drop_databases`].
    pub fn drop_databases(&mut self, databases: &[DatabaseId], now: Moment) -> Vec<Output<R>> {
        for output in self.sync.drop_databases(databases) {
            self.sync_output(output);
        }
        self.handle(Input::Tick, now)
    }

    /// See [`SyncMachine::compare`].
    pub fn compare(&mut self, database: DatabaseId, peer: PeerId, now: Moment) -> (bool, Vec<Output<R>>) {
        let (begun, outputs) = self.sync.compare(database, peer);
        for output in outputs {
            self.sync_output(output);
        }
        (begun, self.handle(Input::Tick, now))
    }

    /// See [`SyncMachine::repair`].
    pub fn repair(&mut self, database: DatabaseId, peer: PeerId, purpose: Purpose, now: Moment) -> Vec<Output<R>> {
        for output in self.sync.repair(database, peer, purpose) {
            self.sync_output(output);
        }
        self.handle(Input::Tick, now)
    }

    /// When `Tick` is wanted.
    #[must_use]
    pub fn wake(&self) -> Option<Moment> {
        let last_words = self.last_words.first().map(|(at, _)| *at);
        [self.sync.wake(), self.gossip.wake(), self.book.wake(), last_words].into_iter().flatten().min()
    }

    /// The sync machine, to look at.
    #[must_use]
    pub fn sync_machine(&self) -> &SyncMachine {
        &self.sync
    }

    /// Whether this node was configured to connect to the peer.
    #[must_use]
    pub fn is_configured(&self, peer: &PeerId) -> bool {
        self.book.is_configured(peer)
    }

    /// Whether a connection with the peer stands.
    #[must_use]
    pub fn is_connected(&self, peer: &PeerId) -> bool {
        self.book.is_connected(peer)
    }

    /// The connected peers.
    pub fn connected_peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.book.connected_peers().map(|(peer, _)| *peer)
    }

    /// The peers with a sync stream.
    pub fn linked_peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.links.keys().copied()
    }

    /// What each peer with this database has on disk, by its acks.
    #[must_use]
    pub fn durable(&self, database: &DatabaseId) -> Vec<(PeerId, VersionVector)> {
        let peers = self.links.keys().filter_map(|peer| Some((*peer, self.sync.durable(peer, database)?.clone())));
        let own = self.sync.locals().get(database).map(|local| (self.me, local.durable().clone()));
        peers.chain(own).collect()
    }

    /// The known peers of an open database with what they have on disk, see [`SyncMachine::holders`].
    #[must_use]
    pub fn holders(&self, database: &DatabaseId) -> BTreeMap<PeerId, VersionVector> {
        self.sync.holders(database)
    }

    /// The peers that have a block on disk, by their acks.
    #[must_use]
    pub fn held_by(&self, database: &DatabaseId, dot: &Dot) -> Vec<PeerId> {
        let holds = |peer: &&PeerId| self.sync.durable(peer, database).is_some_and(|vv| vv.covers(dot));
        self.links.keys().filter(holds).copied().collect()
    }

    /// Whether a peer has all of these blocks on disk, by its acks.
    #[must_use]
    pub fn covers(&self, peer: &PeerId, database: &DatabaseId, vv: &VersionVector) -> bool {
        self.sync.durable(peer, database).is_some_and(|durable| durable.dominates(vv))
    }

    /// See [`SyncMachine::pinned`].
    #[must_use]
    pub fn pinned(&self, database: &DatabaseId) -> Option<u64> {
        self.sync.pinned(database)
    }

    /// Entries of a peer's durable version vector, without a copy of it.
    #[must_use]
    pub fn durable_at(&self, peer: &PeerId, database: &DatabaseId, replica: &ReplicaId) -> u64 {
        self.sync.durable(peer, database).map_or(0, |vv| vv.get(replica))
    }

    fn count(&mut self, what: &'static str) {
        self.out.push(Output::Count(what));
    }

    /// Does whatever is due.
    fn tick(&mut self) {
        let now = self.now;
        if self.sync.wake().is_some_and(|at| at <= now) {
            self.sync(sync::Input::Tick);
        }
        if self.gossip.wake().is_some_and(|at| at <= now) {
            self.gossip(gossip::Input::Tick, None);
        }
        self.dial_due();
        for peer in self.book.due_streams(now) {
            self.out.push(Output::OpenStream(peer));
        }
        while let Some((at, peer)) = self.last_words.first().copied().filter(|(at, _)| *at <= now) {
            self.last_words.remove(&(at, peer));
            self.out.push(Output::Disconnect(peer));
        }
    }
}

/// The number by which the engine tells senders apart.
#[must_use]
pub fn source(peer: &PeerId) -> Source {
    let hash = Sha256::digest(peer.to_bytes());
    Source(hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
