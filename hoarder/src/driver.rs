//! The driver: one task owns the controller of a node and does on a [`kvdb::Node`] what it wants.
//!
//! Members talk over one stream in each direction, `/kvdb/fleet/1`; heartbeats go the same way, to every member.

mod links;
mod state;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Key, RequestId, Signer, VersionVector, Zip215};
use kvdb::{Database, Node, PeerId};
use tokio::sync::{mpsc, oneshot};

use crate::Moment;
use crate::barrier::Durability;
use crate::claims::Readiness;
use crate::controller::{Controller, Input, Options, Output, RecordDone, RegistryError, Start};
use crate::fleet::{FleetError, Placement, Serving};
use crate::registry::{REGISTRY_NAME, Registry, registry_id};
use crate::wire::{Answer, Code, Frame, Operation};

use links::Links;
use state::State;

/// How often what is on disk is looked at while somebody waits for it.
const HOT: Duration = Duration::from_millis(10);
/// How often else.
const COLD: Duration = Duration::from_millis(500);
/// Databases of which nobody waits for anything, looked at each time: idle ones must cost next to nothing.
const SLICE: usize = 64;
/// How long a write keeps its database hot.
const STAYS_HOT: Duration = Duration::from_secs(10);
/// Pause before a call that may succeed later is tried again; also the time for the last beat.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);

/// What a handle asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Call(DatabaseName, RequestId, Operation, Duration, oneshot::Sender<(Code, Answer)>),
    Serving(DatabaseName, oneshot::Sender<Result<Serving, FleetError>>),
    Create(DatabaseName, u8, Durability, oneshot::Sender<Result<RecordDone, RegistryError>>),
    Holders(DatabaseName, u8, oneshot::Sender<Result<RecordDone, RegistryError>>),
    Placement(DatabaseName, oneshot::Sender<Option<Placement>>),
    Drop(DatabaseName, oneshot::Sender<Result<RecordDone, RegistryError>>),
    Members(oneshot::Sender<Vec<PeerId>>),
    Drain(bool),
    Forget(PeerId, oneshot::Sender<Result<RecordDone, RegistryError>>),
    Look(Look),
    Close(oneshot::Sender<()>),
}

pub(crate) type Looking = dyn FnOnce(&Controller, Moment) + Send;

/// A look at the controller, between two of its inputs.
pub(crate) struct Look(pub(crate) Box<Looking>);

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Look")
    }
}

/// What tasks bring back.
#[derive(Debug)]
enum Event {
    Input(Box<Input>),
    Opened(DatabaseId, Database),
}

/// Starts the driver of a node; what it is asked for goes through the channel.
pub(crate) async fn start(node: Node, directory: PathBuf, options: Options) -> Result<mpsc::Sender<Command>, String> {
    let state = tokio::task::spawn_blocking(move || State::open(&directory)).await;
    let state = state.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let name = DatabaseName::parse(REGISTRY_NAME).map_err(|error| error.to_string())?;
    let registry = node.database(&name).await.map_err(|error| error.to_string())?;
    let (commands, asked) = mpsc::channel(256);
    let (events, happened) = mpsc::channel(1_024);
    let streams = node.streams().ok_or("the node has no network")?;
    let others = options.members.iter().copied().filter(|peer| *peer != node.peer_id()).collect();
    let links = Links::start(streams, others, events.clone()).ok_or("started twice")?;
    let mut driver = Driver::new(node, registry, state, options, links, events);
    driver.begin().await?;
    tokio::spawn(driver.run(asked, happened));
    Ok(commands)
}

#[expect(clippy::disallowed_methods, reason = "the driver is where time comes from")]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}

struct Driver {
    node: Node,
    registry: Database,
    state: State,
    controller: Controller,
    links: Links,
    events: mpsc::Sender<Event>,
    started: std::time::Instant,
    open: BTreeMap<DatabaseId, Database>,
    /// The registry as last handed in, and the revision that it was read at.
    entries: BTreeMap<Key, Bytes>,
    revision: u64,
    /// What was last said to be on disk.
    durable: BTreeMap<(DatabaseId, PeerId), VersionVector>,
    hot: BTreeMap<DatabaseId, Moment>,
    /// Where the looking at idle ones stands.
    cursor: Option<DatabaseId>,
    cold: Moment,
    callers: BTreeMap<u64, oneshot::Sender<(Code, Answer)>>,
    changes: BTreeMap<u64, oneshot::Sender<Result<RecordDone, RegistryError>>>,
    token: u64,
}

impl Driver {
    fn new(node: Node, registry: Database, state: State, options: Options, links: Links, events: mpsc::Sender<Event>) -> Self {
        let me = node.peer_id();
        let start =
            Start { me, boot: rand::random::<u64>() >> 1, store: state.store, opening: state.opening, databases: Vec::new() };
        let signer: Box<dyn Signer + Send> = Box::new(store::NodeSigner(node.signer()));
        let verifier = Box::new(Zip215(rand::make_rng::<rand::rngs::StdRng>()));
        let controller = Controller::new(start, options, signer, verifier, Box::new(rand::random), Moment::ZERO);
        Self {
            node,
            registry,
            state,
            controller,
            links,
            events,
            started: now(),
            open: BTreeMap::new(),
            entries: BTreeMap::new(),
            revision: u64::MAX,
            durable: BTreeMap::new(),
            hot: BTreeMap::new(),
            cursor: None,
            cold: Moment::ZERO,
            callers: BTreeMap::new(),
            changes: BTreeMap::new(),
            token: 0,
        }
    }

    /// Takes up what is on disk: the registry, and the databases that it knows.
    async fn begin(&mut self) -> Result<(), String> {
        let entries = store::list_all(&self.registry).map_err(|error| error.to_string())?;
        let mut registry = Registry::default();
        for (key, value) in &entries {
            registry.apply(key, Some(value));
        }
        // Before the controller sees the registry: it must know what is here when it sees who claims what.
        // One that was dropped while this node was away is not opened, and deleted as soon as the controller sees that.
        for info in self.node.databases().map_err(|error| error.to_string())? {
            if registry.live(&info.id).is_some() {
                let open = self.node.database_at(&info.name, info.generation).await.map_err(|error| error.to_string())?;
                self.open.insert(info.id, open);
            }
            if registry.name_of(&info.id).is_some() {
                self.controller.found(info.id);
            }
        }
        self.read_registry().await;
        let all: Vec<DatabaseId> = self.open.keys().copied().chain([registry_id()]).collect();
        self.look(all).await;
        Ok(())
    }

    async fn run(mut self, mut commands: mpsc::Receiver<Command>, mut events: mpsc::Receiver<Event>) {
        let mut ticks = tokio::time::interval(HOT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Close(reply)) => {
                        self.input(Input::Leave).await;
                        // The last beat is on its way; a moment for it.
                        tokio::time::sleep(AGAIN).await;
                        let _ = reply.send(());
                        return;
                    }
                    Some(command) => self.command(command).await,
                    None => return,
                },
                Some(event) = events.recv() => match event {
                    Event::Input(input) => {
                        match &*input {
                            // Acknowledgements go out without passing here. An answer that said less than they did would be
                            // taken for a store that lost what it had.
                            Input::Frame(_, Frame::State { database, .. }) => self.look(vec![*database]).await,
                            // The controller sees what it wrote before it hears that it is written, or it would write it again.
                            Input::RegistryWritten(..) => self.read_registry().await,
                            _ => {}
                        }
                        self.input(*input).await;
                    }
                    // Dropped while it was being opened.
                    Event::Opened(id, _) if self.controller.registry().is_dropped(&id) => self.destroy(id),
                    Event::Opened(id, database) => {
                        self.open.insert(id, database);
                        self.heat(id);
                        self.look(vec![id]).await;
                    }
                },
                _ = ticks.tick() => {
                    let now = self.now();
                    let cold = now >= self.cold;
                    let wanted = self.wanted(cold, now);
                    self.look(wanted).await;
                    if cold {
                        self.cold = now + COLD;
                        self.input(Input::Tick(store::wall_ms())).await;
                    }
                }
            }
        }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    async fn command(&mut self, command: Command) {
        self.token += 1;
        let token = self.token;
        let patience = crate::limits::DEFAULT_DEADLINE;
        match command {
            Command::Call(name, request, operation, patience, reply) => {
                let Some((database, _)) = self.controller.registry().current(&name) else {
                    let code = if self.controller.is_compared() { Code::NoDatabase } else { Code::NotReady };
                    let _ = reply.send((code, Answer::plain(self.node.peer_id(), Bytes::new())));
                    return;
                };
                self.callers.insert(token, reply);
                self.input(Input::Call { token, request, database, operation, patience }).await;
            }
            Command::Serving(name, reply) => {
                let _ = reply.send(self.serving(&name));
            }
            Command::Drop(name, reply) => {
                self.changes.insert(token, reply);
                self.heat(registry_id());
                self.input(Input::Drop { token, name, patience }).await;
            }
            Command::Create(name, holders, durability, reply) => {
                self.changes.insert(token, reply);
                self.heat(registry_id());
                self.input(Input::Create { token, name, holders, durability, patience }).await;
            }
            Command::Holders(name, holders, reply) => {
                self.changes.insert(token, reply);
                self.heat(registry_id());
                self.input(Input::SetHolders { token, name, holders, patience }).await;
            }
            Command::Placement(name, reply) => {
                let database = self.controller.registry().current(&name).map(|(id, _)| id);
                let placement = database.map(|database| Placement {
                    database,
                    desired: self.controller.desired(&database),
                    ready: self.controller.serving(&database),
                });
                let _ = reply.send(placement);
            }
            Command::Members(reply) => {
                let _ = reply.send(self.controller.membership().live().iter().copied().collect());
            }
            Command::Drain(draining) => self.input(Input::Drain(draining)).await,
            Command::Forget(peer, reply) => {
                self.changes.insert(token, reply);
                self.heat(registry_id());
                self.input(Input::Forget { token, peer, patience }).await;
            }
            Command::Look(Look(look)) => look(&self.controller, self.now()),
            Command::Close(_) => {}
        }
    }

    /// Where a database can be read just now.
    fn serving(&self, name: &DatabaseName) -> Result<Serving, FleetError> {
        let Some((id, _)) = self.controller.registry().current(name) else {
            return Err(if self.controller.is_compared() { FleetError::NoDatabase } else { FleetError::NotReady });
        };
        let (me, open, readiness) = (self.node.peer_id(), self.open.get(&id), self.controller.readiness(&id));
        if let Some(open) = open.filter(|_| readiness == Readiness::Ready) {
            return Ok(Serving::Here(open.clone()));
        }
        let others: Vec<PeerId> = self.controller.asked(&id).into_iter().filter(|peer| *peer != me).collect();
        match open.filter(|_| readiness == Readiness::Stale) {
            _ if !others.is_empty() => Ok(Serving::There(others)),
            Some(open) => Ok(Serving::Stale(open.clone())),
            None => Err(FleetError::NotReady),
        }
    }

    /// Hands in one input, and all that follows from it at once.
    async fn input(&mut self, input: Input) {
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let now = self.now();
            for output in self.controller.handle(input, now) {
                inputs.extend(self.output(output).await);
            }
        }
    }

    fn heat(&mut self, database: DatabaseId) {
        let until = self.now() + STAYS_HOT;
        self.hot.insert(database, until);
    }

    /// What is to be looked at: that of which somebody waits for something, and now and then some of the rest.
    fn wanted(&mut self, cold: bool, now: Moment) -> Vec<DatabaseId> {
        self.hot.retain(|_, until| *until > now);
        let mut wanted: Vec<DatabaseId> = self.hot.keys().copied().collect();
        if cold {
            let start = self.cursor.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
            let slice: Vec<DatabaseId> =
                self.open.range((start, std::ops::Bound::Unbounded)).map(|(id, _)| *id).take(SLICE).collect();
            self.cursor = if slice.len() < SLICE { None } else { slice.last().copied() };
            wanted.extend(slice.into_iter().chain([registry_id()]));
        }
        wanted
    }

    /// Looks at what is on disk of these databases, here and elsewhere, and tells the controller what is new.
    async fn look(&mut self, wanted: Vec<DatabaseId>) {
        for database in wanted {
            let told = self.node.durable(database).await;
            // The registry is handed in before what covers it.
            if database == registry_id() {
                self.read_registry().await;
            }
            for (peer, vv) in told {
                if self.durable.get(&(database, peer)) != Some(&vv) {
                    self.durable.insert((database, peer), vv.clone());
                    Box::pin(self.input(Input::Durable(database, peer, vv))).await;
                }
            }
        }
    }

    /// Reads the registry anew if it has changed, and hands in what is different.
    async fn read_registry(&mut self) {
        let Ok(stats) = self.registry.stats() else { return };
        if stats.revision == self.revision {
            return;
        }
        let registry = self.registry.clone();
        let read = tokio::task::spawn_blocking(move || store::list_all(&registry)).await;
        let Ok(Ok(entries)) = read else {
            tracing::warn!("the fleet's registry cannot be read; trying again");
            return;
        };
        self.revision = stats.revision;
        let gone = self.entries.keys().filter(|key| !entries.contains_key(*key)).map(|key| (key.clone(), None));
        let new = entries.iter().filter(|(key, value)| self.entries.get(*key) != Some(*value));
        let changed: Vec<_> = gone.chain(new.map(|(key, value)| (key.clone(), Some(value.clone())))).collect();
        self.entries = entries;
        if !changed.is_empty() {
            Box::pin(self.input(Input::Registry(changed))).await;
        }
    }

    /// Does what the controller wants; what can be answered at once comes back.
    async fn output(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Publish(beat) => self.links.all(&Frame::Beat(beat)),
            Output::Send(peer, frame) => self.links.send(peer, &frame),
            Output::Open(database) | Output::Thaw(database) => self.open(database),
            Output::Freeze(database) => return self.freeze(database).await,
            Output::Destroy(database) => self.destroy(database),
            Output::WriteRegistry(token, changes) => {
                self.heat(registry_id());
                store::write_registry(self.registry.clone(), token, changes, self.events.clone());
            }
            Output::SetStore(store) => {
                self.state.renew(store).await;
            }
            Output::Commit(call, database, request, payload) => {
                self.heat(database);
                store::commit(self.open.get(&database).cloned(), call, request, payload, self.events.clone());
            }
            Output::Read(call, database, payload) => {
                store::read(self.open.get(&database).cloned(), call, payload, self.events.clone());
            }
            Output::Reply(token, code, answer) => {
                if let Some(caller) = self.callers.remove(&token) {
                    // Whoever does not wait any more has given up.
                    let _ = caller.send((code, answer));
                }
            }
            Output::Record(token, outcome) => {
                if let Some(caller) = self.changes.remove(&token) {
                    let _ = caller.send(outcome);
                }
            }
        }
        None
    }

    fn open(&self, database: DatabaseId) {
        let Some(live) = self.controller.registry().live(&database) else { return };
        store::open(self.node.clone(), live.name.clone(), live.generation, self.events.clone());
    }

    /// Deletes what is here: the whole database if it was dropped, else this node's copy, which was handed over.
    fn destroy(&mut self, database: DatabaseId) {
        self.open.remove(&database);
        self.hot.remove(&database);
        self.durable.retain(|(of, _), _| *of != database);
        let Some((name, generation)) = self.controller.registry().name_of(&database) else { return };
        let dropped = self.controller.registry().is_dropped(&database);
        store::destroy(self.node.clone(), (name.clone(), generation, database), dropped, self.events.clone());
    }

    /// A closed database merges and accepts nothing more.
    async fn freeze(&mut self, database: DatabaseId) -> Option<Input> {
        let open = self.open.remove(&database)?;
        // Closed first: of what came between the look and the closing nobody would be asked whether it is elsewhere.
        match open.close_and_tell().await {
            Ok(vv) => {
                let own = Input::Durable(database, self.node.peer_id(), vv);
                for output in self.controller.handle(own, self.started.elapsed()) {
                    Box::pin(self.output(output)).await;
                }
                Some(Input::Frozen(database))
            }
            Err(error) => {
                tracing::warn!(%database, %error, "cannot close a database that is to be let go of");
                None
            }
        }
    }
}
