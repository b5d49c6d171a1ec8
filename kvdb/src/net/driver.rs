//! The driver: one task owns the swarm and the state machines, hands them what happens and does what they want.
//!
//! Nothing here waits: the log is read on blocking threads, deliveries are awaited in tasks, streams have tasks.

mod events;
mod outputs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crdt::{Block, DatabaseId, Source, Zip215};
use futures::StreamExt as _;
use libp2p::gossipsub::MessageId;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::gossip::{self, GossipMachine, GossipOptions};
use super::handle::{Command, NetHandle, Shared, lock};
use super::options::{NetworkError, NetworkOptions};
use super::peers::{Book, peer_in};
use super::port::{Backend, NewsSource, read};
use super::streams::{Link, StreamEvent};
use super::swarm::{Event, Network};
use super::sync::{self, DisconnectReason, Report, SessionId, SyncMachine};
use super::{Moment, lanes::Lanes};
use crate::engine::port::{Delivery, LogChunk, News};

/// The sync protocol.
const SYNC: StreamProtocol = StreamProtocol::new("/kvdb/sync/1");
/// Events of streams and tasks that wait for the driver.
const EVENT_QUEUE: usize = 256;
/// Gossip blocks on their way to the engine; beyond, they are dropped and sync brings them.
const MAX_GOSSIP_DELIVERIES: usize = 256;
/// Events handled before the swarm is looked at again.
const BURST: usize = 64;
/// How old the peer list of the handles may be.
const STATUS_AGE: Moment = Moment::from_millis(200);

/// What tasks bring back.
#[derive(Debug)]
pub(super) enum Done {
    LogRead(SessionId, Option<LogChunk>),
    Delivered(SessionId, u64, Option<Delivery>),
    GossipDelivered {
        database: DatabaseId,
        from: PeerId,
        author: PeerId,
        delivery: Option<Delivery>,
    },
    Opened(PeerId, Result<Stream, String>),
    Incoming(PeerId, Stream),
    /// A peer that broke the protocol has had time to read why.
    CutOff(PeerId),
}

/// Starts replication.
///
/// # Errors
/// When an option is out of bounds, or an address cannot be listened on.
pub fn spawn<B: Backend, N: NewsSource>(
    options: &NetworkOptions,
    identity: &Keypair,
    backend: B,
    news: N,
) -> Result<NetHandle, NetworkError> {
    options.check()?;
    let me = identity.public().to_peer_id();
    let signer = crate::identity::signer(identity).ok_or(NetworkError::Identity)?;
    let exempt: Vec<PeerId> = options.bootstrap.iter().filter_map(peer_in).collect();
    let network = Network::new(identity, options, &exempt)?;
    let (commands, asked) = mpsc::channel(64);
    let shared = Arc::new(Mutex::new(Shared::default()));
    let handle = NetHandle { peer: me, shared: Arc::clone(&shared), commands };
    let mut book = Book::default();
    for address in &options.bootstrap {
        if peer_in(address) != Some(me) {
            book.add(address.clone(), Moment::ZERO, None);
        }
    }
    let gossip = GossipMachine::new(
        me,
        GossipOptions { boot: rand::random::<u64>() >> 1, interval: options.rebroadcast_interval },
        Box::new(signer),
        Box::new(Zip215(rand::make_rng::<rand::rngs::StdRng>())),
        Box::new(rand::random),
    );
    let (reports, stream_events) = mpsc::channel(EVENT_QUEUE);
    let (done, finished) = mpsc::channel(EVENT_QUEUE);
    accept(&network, done.clone())?;
    let driver = Driver {
        me,
        backend,
        network,
        sync: SyncMachine::new(me),
        gossip,
        book,
        links: BTreeMap::new(),
        lanes: Lanes::default(),
        gossip_deliveries: 0,
        topics: BTreeMap::new(),
        subscriptions: BTreeMap::new(),
        disagreements: BTreeSet::new(),
        redial: BTreeMap::new(),
        epoch: 0,
        started: Instant::now(),
        status_due: None,
        permit: None,
        shared,
        reports,
        done,
    };
    tokio::spawn(driver.run(news, asked, stream_events, finished));
    Ok(handle)
}

fn accept(network: &Network, done: mpsc::Sender<Done>) -> Result<(), NetworkError> {
    let incoming = network.control().accept(SYNC);
    let mut incoming = incoming.map_err(|error| NetworkError::Setup { cause: error.to_string() })?;
    tokio::spawn(async move {
        while let Some((peer, stream)) = incoming.next().await {
            if done.send(Done::Incoming(peer, stream)).await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

pub(super) struct Driver<B> {
    me: PeerId,
    backend: B,
    network: Network,
    sync: SyncMachine,
    gossip: GossipMachine,
    book: Book,
    /// The sync stream of each peer, and when it began.
    links: BTreeMap<PeerId, (Link, Moment)>,
    lanes: Lanes,
    gossip_deliveries: usize,
    /// The open databases by topic.
    topics: BTreeMap<String, DatabaseId>,
    /// The topics of each connected peer, known here or not.
    subscriptions: BTreeMap<PeerId, BTreeSet<String>>,
    disagreements: BTreeSet<(PeerId, DatabaseId)>,
    /// Peers that were disconnected to be connected anew, and where to dial them.
    redial: BTreeMap<PeerId, Vec<Multiaddr>>,
    epoch: u64,
    started: Instant,
    status_due: Option<Moment>,
    /// Room of the blocks that the sync machine is being given.
    permit: Option<OwnedSemaphorePermit>,
    shared: Arc<Mutex<Shared>>,
    reports: mpsc::Sender<(PeerId, u64, StreamEvent)>,
    done: mpsc::Sender<Done>,
}

impl<B: Backend> Driver<B> {
    async fn run<N: NewsSource>(
        mut self,
        mut news: N,
        mut commands: mpsc::Receiver<Command>,
        mut streams: mpsc::Receiver<(PeerId, u64, StreamEvent)>,
        mut finished: mpsc::Receiver<Done>,
    ) {
        let mut handles = true;
        let reply = loop {
            self.timers();
            let wake = self.wake().map(|at| tokio::time::Instant::from_std(self.started + at));
            let sleep = async move {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.network.next() => self.network_event(event),
                Some((peer, epoch, event)) = streams.recv() => {
                    self.stream_event(peer, epoch, event);
                    for _ in 1..BURST {
                        let Ok((peer, epoch, event)) = streams.try_recv() else { break };
                        self.stream_event(peer, epoch, event);
                    }
                }
                Some(done) = finished.recv() => {
                    self.finished(done);
                    for _ in 1..BURST {
                        let Ok(done) = finished.try_recv() else { break };
                        self.finished(done);
                    }
                }
                batch = news.next() => match batch {
                    Some(batch) => batch.into_iter().for_each(|news| self.news(news)),
                    // The engine is gone, and with it the reason to be here.
                    None => break None,
                },
                command = commands.recv(), if handles => match command {
                    Some(Command::Close(reply)) => break Some(reply),
                    Some(command) => self.command(command),
                    None => handles = false,
                },
                () = sleep => {}
            }
        };
        self.close().await;
        drop(commands);
        if let Some(reply) = reply {
            // Whoever asked may have gone.
            let _ = reply.send(());
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn wake(&self) -> Option<Moment> {
        [self.sync.wake(), self.gossip.wake(), self.book.wake(), self.status_due].into_iter().flatten().min()
    }

    /// Does whatever is due.
    fn timers(&mut self) {
        let now = self.now();
        if self.sync.wake().is_some_and(|at| at <= now) {
            self.sync(sync::Input::Tick);
        }
        if self.gossip.wake().is_some_and(|at| at <= now) {
            self.gossip(gossip::Input::Tick, None);
        }
        if self.book.wake().is_some_and(|at| at <= now) {
            let due = self.book.due(now);
            self.dial_all(due);
            for peer in self.book.due_streams(now) {
                self.open_stream(peer);
            }
        }
        if self.status_due.is_some_and(|at| at <= now) {
            self.status_due = None;
            self.publish_status();
        }
    }

    pub(super) fn count(&self, what: &'static str) {
        *lock(&self.shared).counters.entry(what).or_default() += 1;
    }

    fn touch_status(&mut self) {
        let at = self.now() + STATUS_AGE / 2;
        self.status_due.get_or_insert(at);
    }

    fn open_stream(&self, peer: PeerId) {
        let (mut control, done) = (self.network.control(), self.done.clone());
        tokio::spawn(async move {
            let stream = control.open_stream(peer, SYNC).await.map_err(|error| error.to_string());
            let _ = done.send(Done::Opened(peer, stream)).await;
        });
    }

    /// A stream stands: it replaces the one before, which may be dead without our knowing.
    fn start_link(&mut self, peer: PeerId, stream: Stream) {
        let now = self.now();
        if !self.book.is_connected(&peer) || self.book.is_refused(&peer, now) {
            return;
        }
        self.epoch += 1;
        let link = Link::start(stream, peer, self.epoch, self.reports.clone());
        self.links.insert(peer, (link, now));
        self.count("sync_streams");
        self.sync(sync::Input::PeerUp(peer));
    }

    fn end_link(&mut self, peer: PeerId) {
        let Some((_, since)) = self.links.remove(&peer) else { return };
        self.sync(sync::Input::PeerDown(peer));
        let now = self.now();
        if self.me < peer {
            self.book.open_stream(peer, Some(now.saturating_sub(since)), now);
        }
    }

    fn stream_event(&mut self, peer: PeerId, epoch: u64, event: StreamEvent) {
        if self.links.get(&peer).is_none_or(|(link, _)| link.epoch != epoch) {
            return;
        }
        self.touch_status();
        match event {
            StreamEvent::Frame(frame) => self.sync(sync::Input::Frame(peer, frame)),
            StreamEvent::Blocks(database, blocks, permit) => {
                self.permit = Some(permit);
                self.sync(sync::Input::Blocks(peer, database, blocks));
                self.permit = None;
            }
            StreamEvent::Garbage(what) => self.sync(sync::Input::Garbage(peer, what)),
            StreamEvent::Written(bytes) => self.sync(sync::Input::Written(peer, bytes)),
            StreamEvent::Ended(cause) => {
                tracing::debug!(%peer, cause, "the sync stream has ended");
                self.end_link(peer);
            }
        }
    }

    fn finished(&mut self, done: Done) {
        self.touch_status();
        match done {
            Done::LogRead(session, chunk) => self.sync(sync::Input::LogRead(session, chunk)),
            Done::Delivered(session, bytes, delivery) => {
                self.lanes.done(session, &self.backend, &self.done);
                self.sync(sync::Input::Delivered(session, bytes, delivery));
            }
            Done::GossipDelivered { database, from, author, delivery } => {
                self.gossip_deliveries -= 1;
                let merged = delivery.is_some_and(|delivery| delivery.held == 0 && delivery.dropped == 0);
                self.gossip(gossip::Input::Delivered { database, from, author, merged }, None);
            }
            Done::CutOff(peer) => self.network.disconnect(peer),
            Done::Opened(peer, outcome) => self.opened(peer, outcome),
            Done::Incoming(peer, stream) => {
                // Only the smaller id opens: two streams would be one too many.
                if peer < self.me {
                    self.start_link(peer, stream);
                } else {
                    self.count("sync_streams_refused");
                }
            }
        }
    }

    fn opened(&mut self, peer: PeerId, outcome: Result<Stream, String>) {
        let now = self.now();
        if let Some(known) = self.book.get_mut(&peer) {
            known.opening = false;
        }
        match outcome {
            Ok(stream) => self.start_link(peer, stream),
            Err(cause) => {
                self.count("sync_open_failed");
                tracing::info!(%peer, cause, "no sync stream; trying again while connected");
            }
        }
        if !self.links.contains_key(&peer) {
            self.book.open_stream(peer, None, now);
        }
    }

    fn news(&mut self, news: News) {
        let (database, input) = match &news {
            News::Opened(database, _) => {
                self.topics.insert(gossip::topic(database), *database);
                (*database, gossip::Input::Opened(*database))
            }
            News::Closed(database) => {
                self.topics.remove(&gossip::topic(database));
                (*database, gossip::Input::Closed(*database))
            }
            News::Advanced(database, progress) => {
                // Whoever is fed gets the block with less delay and without the cost of a second signature.
                let fed = self.gossip.subscribers(database).all(|peer| self.sync.feeds(&peer, database));
                (*database, gossip::Input::Advanced { database: *database, progress, fed })
            }
        };
        let outputs = self.gossip.handle(input, self.sync.locals(), self.started.elapsed());
        let opened = matches!(news, News::Opened(..));
        self.sync(sync::Input::News(news));
        self.gossip_outputs(outputs, None);
        if opened {
            let topic = gossip::topic(&database);
            let subscribed = self.subscriptions.iter().filter(|(_, topics)| topics.contains(&topic));
            let subscribed: Vec<PeerId> = subscribed.map(|(peer, _)| *peer).collect();
            for peer in subscribed {
                self.gossip(gossip::Input::Subscribed(peer, database), None);
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Dial(address, reply, taken) => {
                let room = self.book.add(address, self.now(), Some(reply));
                // Whoever asked may have gone.
                let _ = taken.send(room);
                // A peer that is connected already answers here.
                let due = self.book.due(self.now());
                self.dial_all(due);
            }
            Command::Durable(database, reply) => {
                let peers = self.links.keys();
                let durable = peers.filter_map(|peer| Some((*peer, self.sync.durable(peer, &database)?.clone()))).collect();
                let _ = reply.send(durable);
            }
            Command::Close(_) => {}
        }
    }

    async fn close(mut self) {
        let peers: Vec<PeerId> = self.book.connected_peers().map(|(peer, _)| *peer).collect();
        self.links.clear();
        for peer in peers {
            self.network.disconnect(peer);
        }
        // Long enough for the good-byes, short enough for a stop.
        let farewell = async {
            while self.book.connected_peers().next().is_some() {
                if let Event::Disconnected { peer, left, .. } = self.network.next().await {
                    self.book.disconnected(peer, left, Moment::ZERO, 0);
                }
            }
        };
        let _ = tokio::time::timeout(Moment::from_millis(500), farewell).await;
        let mut shared = lock(&self.shared);
        shared.listen.clear();
        shared.peers.clear();
    }
}

/// The number by which the engine tells senders apart.
fn source(peer: &PeerId) -> Source {
    let hash = Sha256::digest(peer.to_bytes());
    Source(hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
