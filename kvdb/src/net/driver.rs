//! The driver: one task owns the swarm and the machine, hands it what happens and does what it wants.
//!
//! Nothing here waits: the log is read on blocking threads, deliveries are awaited in tasks, streams have tasks.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crdt::{Cursor, DatabaseId, SnapshotId, SnapshotWrite, Zip215};
use futures::StreamExt as _;
use libp2p::gossipsub::MessageId;
use libp2p::identity::Keypair;
use libp2p::{PeerId, Stream, StreamProtocol};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::gossip::GossipOptions;
use super::handle::{Command, NetHandle, Shared, lock};
use super::machine::{Input, NetMachine, NetMachineOptions, Output, Ticket};
use super::member::Streams;
use super::options::{NetworkError, NetworkOptions};
use super::peers::peer_in;
use super::port::{Backend, NewsSource, StandingView as _, read};
use super::ranges::RangeRead;
use super::streams::{Link, StreamEvent, verifiers};
use super::swarm::{Event, Network};
use super::sync::{OpenedView, RangeReader, ReadChunk, RepairFailure, SessionId};
use super::wire::Frame;
use super::{Moment, lanes};
use crate::engine::port::{Delivery, LogChunk};

/// The sync protocol.
const SYNC: StreamProtocol = StreamProtocol::new("/kvdb/sync/1");
/// Events of streams and tasks that wait for the driver.
const EVENT_QUEUE: usize = 256;
/// Events handled before the swarm is looked at again.
const BURST: usize = 64;
/// How old the peer list of the handles may be.
const STATUS_AGE: Moment = Moment::from_millis(200);

/// What tasks bring back.
#[derive(Debug)]
pub(super) enum Done<V> {
    LogRead(SessionId, Option<LogChunk>),
    ViewOpened(SnapshotId, Option<(OpenedView, Arc<V>)>),
    ViewRead(SnapshotId, Cursor, Option<ReadChunk>),
    Staged(DatabaseId, SnapshotId, Option<SnapshotWrite>),
    RangeRead(RangeReader, DatabaseId, Option<RangeRead>),
    Delivered(SessionId, u64, Option<Delivery>),
    GossipDelivered { database: DatabaseId, from: PeerId, author: PeerId, delivery: Option<Delivery> },
    Opened(PeerId, Result<Stream, String>),
    Incoming(PeerId, Stream),
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
    let streams = Streams::new(network.control());
    let handle = NetHandle { peer: me, shared: Arc::clone(&shared), commands, streams };
    let machine = NetMachine::new(NetMachineOptions {
        me,
        bootstrap: options.bootstrap.clone(),
        gossip: GossipOptions { boot: rand::random::<u64>() >> 1, interval: options.rebroadcast_interval },
        signer: Box::new(signer),
        verifier: Box::new(Zip215(rand::make_rng::<rand::rngs::StdRng>())),
        gossip_random: Box::new(rand::random),
        random: Box::new(rand::random),
    });
    let (reports, stream_events) = mpsc::channel(EVENT_QUEUE);
    let (done, finished) = mpsc::channel(EVENT_QUEUE);
    accept(&network, done.clone())?;
    let driver = Driver {
        backend,
        network,
        machine,
        links: BTreeMap::new(),
        arriving: None,
        early: BTreeMap::new(),
        views: BTreeMap::new(),
        dials: BTreeMap::new(),
        next_dial: 0,
        repairs: BTreeMap::new(),
        started: Instant::now(),
        status_due: None,
        shared,
        reports,
        verifiers: verifiers(),
        done,
    };
    tokio::spawn(driver.run(news, asked, stream_events, finished));
    Ok(handle)
}

fn accept<V: Send + Sync + 'static>(network: &Network, done: mpsc::Sender<Done<V>>) -> Result<(), NetworkError> {
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

pub(super) struct Driver<B: Backend> {
    backend: B,
    network: Network,
    machine: NetMachine<OwnedSemaphorePermit>,
    links: BTreeMap<PeerId, Link>,
    /// The stream that the machine is being asked about.
    arriving: Option<Stream>,
    /// Streams that were accepted before their connection was heard of.
    early: BTreeMap<PeerId, Stream>,
    /// Views of snapshots on their way.
    views: BTreeMap<SnapshotId, Arc<B::View>>,
    /// Callers that wait for a dial.
    dials: BTreeMap<Ticket, oneshot::Sender<Result<(), String>>>,
    next_dial: u64,
    /// Callers that wait for a repair.
    repairs: BTreeMap<DatabaseId, oneshot::Sender<Result<(), RepairFailure>>>,
    started: Instant,
    status_due: Option<Moment>,
    shared: Arc<Mutex<Shared>>,
    reports: mpsc::Sender<(PeerId, u64, StreamEvent)>,
    verifiers: Arc<Semaphore>,
    done: mpsc::Sender<Done<B::View>>,
}

impl<B: Backend> Driver<B> {
    async fn run<N: NewsSource>(
        mut self,
        mut news: N,
        mut commands: mpsc::Receiver<Command>,
        mut streams: mpsc::Receiver<(PeerId, u64, StreamEvent)>,
        mut finished: mpsc::Receiver<Done<B::View>>,
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
                    Some(batch) => batch.into_iter().for_each(|news| self.input(Input::News(news))),
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

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn wake(&self) -> Option<Moment> {
        [self.machine.wake(), self.status_due].into_iter().flatten().min()
    }

    /// Does whatever is due.
    fn timers(&mut self) {
        let now = self.now();
        if self.machine.wake().is_some_and(|at| at <= now) {
            self.input(Input::Tick);
        }
        if self.status_due.is_some_and(|at| at <= now) {
            self.status_due = None;
            self.publish_status();
        }
    }

    fn count(&self, what: &'static str) {
        *lock(&self.shared).counters.entry(what).or_default() += 1;
    }

    fn touch_status(&mut self) {
        let at = self.now() + STATUS_AGE / 2;
        self.status_due.get_or_insert(at);
    }

    fn publish_status(&mut self) {
        let now = self.now();
        let peers = self.machine.peers(now);
        let mut shared = lock(&self.shared);
        shared.peers = peers;
        shared.peers_at = Some(self.started + now);
    }

    /// Hands an input to the machine and does what comes out.
    fn input(&mut self, input: Input<OwnedSemaphorePermit>) {
        let outputs = self.machine.handle(input, self.started.elapsed());
        for output in outputs {
            self.output(output, None);
        }
    }

    /// The same for a gossip message, whose verdict the swarm waits for.
    fn gossip(&mut self, from: PeerId, id: &MessageId, topic: String, data: bytes::Bytes) {
        let outputs = self.machine.handle(Input::Gossip(from, topic, data), self.started.elapsed());
        for output in outputs {
            self.output(output, Some((id, &from)));
        }
    }

    fn output(&mut self, output: Output<OwnedSemaphorePermit>, message: Option<(&MessageId, &PeerId)>) {
        match output {
            Output::Dial { target, peer, address } => {
                let outcome = self.network.dial(peer, vec![address]);
                self.input(Input::Dialled(target, outcome));
            }
            Output::Redial(peer, addresses) => {
                if self.network.dial(Some(peer), addresses).is_err() {
                    self.count("dials_failed");
                }
            }
            Output::DialDone(ticket, outcome) => {
                // Whoever asked may have gone.
                drop(self.dials.remove(&ticket).map(|caller| caller.send(outcome)));
            }
            Output::Disconnect(peer) => self.network.disconnect(peer),
            Output::CloseConnection(connection) => self.network.close_connection(connection),
            Output::OpenStream(peer) => self.open_stream(peer),
            Output::Link(peer, epoch) => {
                if let Some(stream) = self.arriving.take() {
                    self.links.insert(peer, Link::start(stream, peer, epoch, self.reports.clone(), Arc::clone(&self.verifiers)));
                }
            }
            Output::Unlink(peer) => drop(self.links.remove(&peer)),
            Output::Send(peer, frame) => {
                if let Some(error) = self.links.get(&peer).and_then(|link| link.send(frame).err()) {
                    tracing::warn!(%peer, %error, "disconnecting");
                    self.input(Input::QueueFull(peer));
                }
            }
            Output::OpenView { .. } | Output::ReadView { .. } | Output::Stage { .. } | Output::ReadRange { .. } => {
                self.snapshot_work(output);
            }
            Output::CloseView(id) => {
                if let Some(view) = self.views.remove(&id) {
                    // Waits for a read under way.
                    tokio::task::spawn_blocking(move || drop(view));
                }
            }
            Output::ReadLog { .. } | Output::Deliver(_) | Output::DeliverGossip { .. } => self.work(output),
            Output::Subscribe(topic) => {
                if let Err(error) = self.network.subscribe(&topic) {
                    self.count("gossip_subscribe_failed");
                    tracing::warn!(topic, error, "no gossip for this database");
                }
            }
            Output::Unsubscribe(topic) => self.network.unsubscribe(&topic),
            Output::Publish(topic, data) => {
                let outcome = self.network.publish(&topic, data);
                self.count(outcome.err().unwrap_or("gossip_published"));
            }
            Output::Verdict(verdict) => {
                if let Some((id, from)) = message {
                    self.network.verdict(id, from, verdict);
                }
            }
            Output::Count(what) => self.count(what),
            Output::Repaired(database, outcome) => {
                // Whoever asked may have gone.
                drop(self.repairs.remove(&database).map(|caller| caller.send(outcome)));
            }
            // The machine has told the log, and the status shows it.
            Output::Disagreement(..) => self.touch_status(),
        }
    }

    /// What the engine and the store are asked for, in tasks of their own.
    fn work(&mut self, output: Output<OwnedSemaphorePermit>) {
        let (backend, done) = (self.backend.clone(), self.done.clone());
        // The driver being gone is the end of everything: nobody waits for what these tasks bring back.
        match output {
            Output::ReadLog { session, database, from, max_bytes, skip } => {
                tokio::task::spawn_blocking(move || {
                    let chunk = read(&backend, &database, &from, max_bytes, &skip);
                    if let Err(error) = &chunk {
                        tracing::warn!(%database, %error, "cannot read the log for a peer");
                    }
                    let _ = done.blocking_send(Done::LogRead(session, chunk.ok()));
                });
            }
            Output::Deliver(lanes::Load { session, database, source, blocks, bytes, room }) => {
                tokio::spawn(async move {
                    let count = blocks.len();
                    let answer = backend.deliver(database, blocks, source).await;
                    if let Err(error) = &answer {
                        tracing::warn!(%database, %error, "received blocks were not merged");
                    }
                    drop(room);
                    let _ = done.send(Done::Delivered(session, bytes, lanes::outcome(answer, count))).await;
                });
            }
            Output::DeliverGossip { database, from, author, source, block } => {
                tokio::spawn(async move {
                    let delivery = backend.deliver(database, vec![block], source).await.ok();
                    let _ = done.send(Done::GossipDelivered { database, from, author, delivery }).await;
                });
            }
            _ => {}
        }
    }

    /// Views, ranges and staging, in tasks of their own.
    fn snapshot_work(&mut self, output: Output<OwnedSemaphorePermit>) {
        let (backend, done) = (self.backend.clone(), self.done.clone());
        match output {
            Output::OpenView { id, database } => {
                tokio::task::spawn_blocking(move || {
                    let opened = backend.view(&database).and_then(|view| Ok((view.opened(id)?, Arc::new(view))));
                    if let Err(error) = &opened {
                        tracing::warn!(%database, %error, "cannot open a view for a snapshot");
                    }
                    let _ = done.blocking_send(Done::ViewOpened(id, opened.ok()));
                });
            }
            Output::ReadView { id, at } => {
                let Some(view) = self.views.get(&id).cloned() else { return };
                tokio::task::spawn_blocking(move || {
                    let chunk = view.read(&at);
                    if let Err(error) = &chunk {
                        tracing::warn!(%id, %error, "cannot read a snapshot for a peer");
                    }
                    let _ = done.blocking_send(Done::ViewRead(id, at, chunk.ok()));
                });
            }
            Output::ReadRange { reader, database, task } => {
                tokio::task::spawn_blocking(move || {
                    let read = backend.read_range(&database, &task);
                    if let Err(error) = &read {
                        tracing::warn!(%database, %error, "cannot read rows to compare them with a peer's");
                    }
                    let _ = done.blocking_send(Done::RangeRead(reader, database, read.ok()));
                });
            }
            Output::Stage { database, id, write } => {
                tokio::spawn(async move {
                    let answer = backend.stage(database, write.clone()).await;
                    if let Err(error) = &answer {
                        tracing::warn!(%database, %error, "a part of a snapshot was not written");
                    }
                    let _ = done.send(Done::Staged(database, id, answer.is_ok().then_some(write))).await;
                });
            }
            _ => {}
        }
    }

    fn open_stream(&self, peer: PeerId) {
        let (mut control, done) = (self.network.control(), self.done.clone());
        tokio::spawn(async move {
            let stream = control.open_stream(peer, SYNC).await.map_err(|error| error.to_string());
            let _ = done.send(Done::Opened(peer, stream)).await;
        });
    }

    fn stream_event(&mut self, peer: PeerId, epoch: u64, event: StreamEvent) {
        self.touch_status();
        let ack = matches!(&event, StreamEvent::Frame(Frame::Ack { durable, .. }) if !durable.is_empty());
        self.input(Input::Stream(peer, epoch, event));
        if ack {
            let shared = lock(&self.shared);
            shared.acks.send_if_modified(|count| {
                *count += 1;
                shared.acks.receiver_count() > 0
            });
        }
    }

    fn finished(&mut self, done: Done<B::View>) {
        self.touch_status();
        match done {
            Done::ViewOpened(id, opened) => {
                let opened = opened.map(|(opened, view)| {
                    self.views.insert(id, view);
                    opened
                });
                self.input(Input::ViewOpened(id, opened));
            }
            Done::ViewRead(id, at, chunk) => self.input(Input::ViewRead(id, at, chunk)),
            Done::Staged(database, id, written) => self.input(Input::Staged(database, id, written)),
            Done::RangeRead(reader, database, read) => self.input(Input::RangeRead(reader, database, read)),
            Done::LogRead(session, chunk) => self.input(Input::LogRead(session, chunk)),
            Done::Delivered(session, bytes, delivery) => self.input(Input::Delivered(session, bytes, delivery)),
            Done::GossipDelivered { database, from, author, delivery } => {
                self.input(Input::GossipDelivered { database, from, author, delivery });
            }
            Done::Opened(peer, outcome) => {
                let outcome = outcome.map(|stream| self.arriving = Some(stream));
                self.input(Input::StreamOpened(peer, outcome));
            }
            Done::Incoming(peer, stream) if self.machine.is_connected(&peer) => self.accepted(peer, stream),
            Done::Incoming(peer, stream) => {
                if self.early.len() < EVENT_QUEUE {
                    self.early.insert(peer, stream);
                }
            }
        }
        // A stream that the machine did not want.
        self.arriving = None;
    }

    fn accepted(&mut self, peer: PeerId, stream: Stream) {
        self.arriving = Some(stream);
        self.input(Input::StreamAccepted(peer));
        self.arriving = None;
    }

    fn network_event(&mut self, event: Event) {
        self.touch_status();
        match event {
            Event::Connected { peer, connection, address, outgoing, count } => {
                self.input(Input::Connected { peer, connection, address, outgoing, count });
                if self.machine.is_configured(&peer) {
                    // The address that was configured need not have said who it is.
                    self.network.exempt(&peer);
                }
                if let Some(stream) = self.early.remove(&peer) {
                    self.accepted(peer, stream);
                }
            }
            Event::Disconnected { peer, left, cause } => {
                tracing::debug!(%peer, left, cause, "a connection is gone");
                self.early.remove(&peer);
                self.input(Input::Disconnected { peer, left });
            }
            Event::DialFailed { connection, ourself, cause } => {
                self.input(Input::DialFailed { connection, ourself, cause });
            }
            Event::IncomingFailed { address, cause } => {
                self.count("incoming_failed");
                tracing::info!(%address, cause, "somebody could not connect");
            }
            Event::Listening(address) => {
                tracing::info!(%address, "listening");
                lock(&self.shared).listen.push(address);
            }
            Event::ListenEnded(address, cause) => {
                tracing::warn!(%address, cause, "no longer listening");
                lock(&self.shared).listen.retain(|listening| *listening != address);
            }
            Event::Gossip { from, id, topic, data } => self.gossip(from, &id, topic, data),
            Event::Subscribed(peer, topic) => self.input(Input::Subscribed(peer, topic)),
            Event::Unsubscribed(peer, topic) => self.input(Input::Unsubscribed(peer, topic)),
            Event::Identified { peer, agent, protocol, addresses } => {
                self.input(Input::Identified { peer, agent, protocol, addresses });
            }
            Event::Found(found) => self.input(Input::Found(found)),
            Event::Lost(lost) => self.input(Input::Lost(lost)),
            Event::Ping(peer, time) => self.input(Input::Ping(peer, time)),
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Dial(address, reply, taken) => {
                self.next_dial += 1;
                let ticket = Ticket(self.next_dial);
                let (room, outputs) = self.machine.dial(address, ticket, self.started.elapsed());
                // Whoever asked may have gone.
                let _ = taken.send(room);
                if room {
                    self.dials.insert(ticket, reply);
                }
                for output in outputs {
                    self.output(output, None);
                }
            }
            Command::Durable(database, reply) => {
                let _ = reply.send(self.machine.durable(&database));
            }
            Command::Holders(database, reply) => {
                let _ = reply.send(self.machine.holders(&database));
            }
            Command::Pinned(database, reply) => {
                let _ = reply.send(self.machine.pinned(&database));
            }
            Command::Dropped(databases) => {
                for output in self.machine.drop_databases(&databases, self.started.elapsed()) {
                    self.output(output, None);
                }
            }
            Command::Compare(database, peer, reply) => {
                let (begun, outputs) = self.machine.compare(database, peer, self.started.elapsed());
                // Whoever asked may have gone.
                let _ = reply.send(begun);
                for output in outputs {
                    self.output(output, None);
                }
            }
            Command::Comparisons(database, reply) => {
                let _ = reply.send(self.machine.sync_machine().comparisons(&database).cloned().collect());
            }
            Command::Repair(database, peer, purpose, reply) => {
                if self.repairs.contains_key(&database) {
                    let _ = reply.send(Err(RepairFailure::Busy));
                    return;
                }
                self.repairs.insert(database, reply);
                for output in self.machine.repair(database, peer, purpose, self.started.elapsed()) {
                    self.output(output, None);
                }
            }
            Command::HasSession(database, peer, reply) => {
                let _ = reply.send(self.machine.sync_machine().durable(&peer, &database).is_some());
            }
            Command::HeldBy(database, dot, reply) => {
                let _ = reply.send(self.machine.held_by(&database, &dot));
            }
            Command::Covers(database, peer, vv, reply) => {
                let _ = reply.send(self.machine.covers(&peer, &database, &vv));
            }
            Command::Close(_) => {}
        }
    }

    async fn close(mut self) {
        let peers: Vec<PeerId> = self.machine.connected_peers().collect();
        self.links.clear();
        for peer in peers {
            self.network.disconnect(peer);
        }
        // Long enough for the good-byes, short enough for a stop.
        let farewell = async {
            while self.machine.connected_peers().next().is_some() {
                if let Event::Disconnected { peer, left, .. } = self.network.next().await {
                    // Whatever the machine would do about it is not done any more.
                    drop(self.machine.handle(Input::Disconnected { peer, left }, self.started.elapsed()));
                }
            }
        };
        let _ = tokio::time::timeout(Moment::from_millis(500), farewell).await;
        let mut shared = lock(&self.shared);
        shared.listen.clear();
        shared.peers.clear();
    }
}
