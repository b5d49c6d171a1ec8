//! The world: everything there is, and one heap of what happens next.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName};
use kvdb::PeerId;
use kvdb::engine::machine::{Entries, Work};
use kvdb::engine::port::LogChunk;
use kvdb::net::gossip::{Verdict, topic};
use kvdb::net::machine::Input;
use kvdb::net::sync::{ReadFrom, SessionId};

use crate::fleet::{Fleet, FleetEvent};
use crate::net::{ConnId, Net, Side, StreamId};
use crate::node::{Node, Room, Sender};
use crate::observe::{Checker, ClientId, NodeId, Observation, Violation, WorldView};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::time::Time;
use crate::trace::TraceHash;
use crate::workload::Client;

/// Something that happens at its time. What names an incarnation is for that process only.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it, and the handlers are near")]
pub enum Event {
    Boot(NodeId),
    Thaw(NodeId),
    Tick(NodeId, u64),
    Turn(NodeId, u64, Vec<Work>, Vec<(usize, Sender)>),
    BeginSync(NodeId, u64),
    EndSync(NodeId, u64, Entries, usize),
    News(NodeId, u64),
    Read(NodeId, u64, Box<ReadJob>),
    HaveRead(NodeId, u64, SessionId, Option<LogChunk>),
    Lobby(NodeId, u64),
    Input(NodeId, u64, Box<Input<Room>>),
    Handshake(ConnId),
    ConnDown(ConnId, Side),
    Ping(ConnId),
    StreamArrives(StreamId),
    StreamReady(StreamId),
    /// Bytes of a frame, from that side.
    Frame(StreamId, Side, Bytes),
    /// The end of what that side sends.
    StreamEnd(StreamId, Side, &'static str),
    /// That side's writer has had its time.
    Abort(StreamId, Side),
    /// That side's reader may go on.
    ReadOn(StreamId, Side),
    Topic {
        from: NodeId,
        to: NodeId,
        topic: String,
        subscribed: bool,
    },
    Gossip(Box<GossipMessage>),
    Client(ClientId),
    ClientTimeout(ClientId, u64),
    Fault(usize),
    Mend(usize),
    Restart(NodeId, u64),
    Script(usize),
    Fleet(FleetEvent),
    /// The node looks at its history.
    History(NodeId, u64),
    /// The node looks for what goes with time.
    Upkeep(NodeId, u64),
    /// A watcher looks.
    Watch(usize),
    Check,
}

/// A gossip message on one path.
#[derive(Debug, Clone)]
pub struct GossipMessage {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) topic: String,
    pub(crate) data: Bytes,
    pub(crate) id: u64,
    /// The receiver's gossipsub has forgotten that it saw it.
    pub(crate) again: bool,
}

/// What [`kvdb::net::machine::Output::ReadLog`] asks for.
#[derive(Debug)]
pub struct ReadJob {
    pub(crate) session: SessionId,
    pub(crate) database: DatabaseId,
    pub(crate) from: ReadFrom,
    pub(crate) max_bytes: usize,
    pub(crate) skip: crdt::VersionVector,
}

impl Event {
    /// A number for the trace, and the node that it is for, if only one.
    fn kind(&self) -> (u64, &'static str, Option<NodeId>) {
        match self {
            Self::Boot(node) => (1, "boot", Some(*node)),
            Self::Thaw(node) => (2, "thaw", Some(*node)),
            Self::Tick(node, _) => (3, "tick", Some(*node)),
            Self::Turn(node, ..) => (4, "turn", Some(*node)),
            Self::BeginSync(node, _) => (5, "begin-sync", Some(*node)),
            Self::EndSync(node, ..) => (6, "end-sync", Some(*node)),
            Self::News(node, _) => (7, "news", Some(*node)),
            Self::Read(node, ..) => (8, "read-log", Some(*node)),
            Self::HaveRead(node, ..) => (9, "log-read", Some(*node)),
            Self::Lobby(node, _) => (10, "lobby", Some(*node)),
            Self::Input(node, ..) => (11, "input", Some(*node)),
            Self::Handshake(_) => (12, "handshake", None),
            Self::ConnDown(..) => (13, "connection-down", None),
            Self::Ping(_) => (14, "ping", None),
            Self::StreamArrives(_) => (15, "stream-arrives", None),
            Self::StreamReady(_) => (16, "stream-ready", None),
            Self::Frame(..) => (17, "frame", None),
            Self::StreamEnd(..) => (18, "stream-end", None),
            Self::Abort(..) => (19, "stream-abort", None),
            Self::ReadOn(..) => (20, "read-on", None),
            Self::Topic { to, .. } => (21, "topic", Some(*to)),
            Self::Gossip(message) => (22, "gossip", Some(message.to)),
            Self::Client(_) => (23, "client", None),
            Self::ClientTimeout(..) => (24, "client-timeout", None),
            Self::Fault(_) => (25, "fault", None),
            Self::Mend(_) => (26, "mend", None),
            Self::Restart(node, _) => (27, "restart", Some(*node)),
            Self::Check => (28, "check", None),
            Self::Script(_) => (29, "script", None),
            Self::Fleet(event) => (30, "fleet", event.node()),
            Self::History(node, _) => (31, "history", Some(*node)),
            Self::Upkeep(node, _) => (32, "upkeep", Some(*node)),
            Self::Watch(_) => (33, "watch", None),
        }
    }
}

#[derive(Debug)]
struct Entry {
    at: Time,
    seq: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first.
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// One line of a readable trace.
#[derive(Debug, Clone)]
pub struct Line {
    /// When.
    pub at: Time,
    /// Where; `None` when it is not about one node.
    pub node: Option<NodeId>,
    /// What kind of thing.
    pub kind: &'static str,
    /// The rest.
    pub text: String,
}

/// Takes the lines of a trace.
pub type TraceSink = Box<dyn FnMut(Line)>;

/// All nodes, the network between them, their clients, and the time.
pub struct World {
    pub(crate) now: Time,
    heap: BinaryHeap<Entry>,
    seq: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Net,
    pub(crate) clients: Vec<Client>,
    pub(crate) watchers: Vec<Option<crate::watchers::Follower>>,
    /// Clients of crowds so far.
    pub(crate) crowd: usize,
    pub(crate) databases: Vec<DatabaseId>,
    pub(crate) scenario: Scenario,
    pub(crate) random: Random,
    checkers: Vec<Box<dyn Checker>>,
    violation: Option<Violation>,
    trace: TraceHash,
    sink: Option<TraceSink>,
    /// What the nodes' machines counted, over all nodes, and what the world did.
    pub(crate) counters: BTreeMap<&'static str, u64>,
    /// How often each fault struck, by its number.
    pub(crate) struck: BTreeMap<usize, u64>,
    pub(crate) faults: crate::faults::Plan,
    events: u64,
    /// The stream that a machine is being asked about.
    pub(crate) arriving: Option<(StreamId, Side)>,
    pub(crate) verdict: Option<Verdict>,
    /// The faults are over.
    pub(crate) healed: bool,
    pub(crate) script: crate::script::Script,
    pub(crate) skipped: BTreeSet<(ClientId, u64)>,
    pub(crate) application: Option<Box<dyn crate::workload::Application>>,
    pub(crate) by_peer: BTreeMap<PeerId, NodeId>,
    /// The databases by topic.
    pub(crate) topics: BTreeMap<String, DatabaseId>,
    pub(crate) fleet: Fleet,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World at {} with {} nodes", self.now, self.nodes.len())
    }
}

impl World {
    /// The world of a scenario, as the seed makes it. Nothing has happened yet.
    #[must_use]
    pub fn new(scenario: &Scenario, seed: u64, checkers: Vec<Box<dyn Checker>>) -> Self {
        let mut random = Random::new(seed);
        let name = |n: usize| DatabaseName::parse(&format!("database-{n}")).map(|name| DatabaseId::of(&name, 0));
        let fleet = Fleet::of(scenario);
        let databases: Vec<DatabaseId> = if fleet.is_there() {
            crate::fleet::databases(&fleet)
        } else {
            (0..scenario.databases.max(1)).filter_map(|n| name(n).ok()).collect()
        };
        let mut nodes: Vec<Node> = (0..scenario.nodes).map(|id| Node::new(id, random.next())).collect();
        scenario.topology.connect(&mut nodes, &mut random);
        for node in &mut nodes {
            // A member opens what it holds; the registry first.
            let kept = if fleet.is_there() { 1 } else { databases.len() };
            node.databases.extend(databases.iter().take(kept));
            node.interval = Time::ms(scenario.rebroadcast_ms);
            if scenario.clock_skew_ms > 0 {
                let skew = i64::try_from(scenario.clock_skew_ms).unwrap_or(0);
                let ahead = i64::try_from(random.below(scenario.clock_skew_ms * 2 + 1)).unwrap_or(0) - skew;
                node.clock = crate::clock::NodeClock::new(ahead, 0);
            }
        }
        let net = Net::new(nodes.len(), || scenario.path());
        let mut world = Self {
            now: Time::ZERO,
            heap: BinaryHeap::new(),
            seq: 0,
            nodes,
            net,
            clients: Vec::new(),
            watchers: Vec::new(),
            crowd: 0,
            databases,
            scenario: scenario.clone(),
            random: random.split(),
            checkers,
            violation: None,
            trace: TraceHash::default(),
            sink: None,
            counters: BTreeMap::new(),
            struck: BTreeMap::new(),
            faults: crate::faults::Plan::default(),
            events: 0,
            arriving: None,
            verdict: None,
            healed: false,
            script: crate::script::Script::default(),
            skipped: BTreeSet::new(),
            application: None,
            by_peer: BTreeMap::new(),
            topics: BTreeMap::new(),
            fleet,
        };
        world.by_peer = world.nodes.iter().map(|node| (node.peer, node.id)).collect();
        world.topics = world.databases.iter().map(|database| (topic(database), *database)).collect();
        let early = world.nodes.len().saturating_sub(scenario.late_nodes);
        for node in 0..world.nodes.len() {
            let within = if node < early { 50_000 } else { scenario.faults.seconds * 1_000_000 };
            let at = Time(world.random.below(within));
            world.at(at, Event::Boot(node));
        }
        world.add_clients(&mut random);
        world.add_fleet_clients(&mut random);
        world.add_watchers(&mut random);
        crate::faults::plan(&mut world, &mut random);
        crate::script::enter(&mut world);
        world
    }

    /// Lets an application say what the clients write.
    pub fn run_application(&mut self, application: Box<dyn crate::workload::Application>) {
        self.application = Some(application);
    }

    /// Leaves out these writes of its clients, by client and number.
    pub fn skip_writes(&mut self, writes: BTreeSet<(ClientId, u64)>) {
        self.skipped = writes;
    }

    /// Hands blocks to a node's engine, as if somebody had sent them.
    pub fn deliver(&mut self, node: NodeId, blocks: Vec<crdt::Block>) {
        let Some(database) = blocks.first().map(crdt::Block::database) else { return };
        let work = Work::Blocks { database, blocks, source: crdt::Source(0) };
        self.submit(node, work, Sender::Nobody);
    }

    /// Writes a readable trace from now on.
    pub fn trace_to(&mut self, sink: TraceSink) {
        self.sink = Some(sink);
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// The hash over all that happened.
    #[must_use]
    pub fn trace(&self) -> TraceHash {
        self.trace
    }

    /// The number of events that happened.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// What was counted, by name.
    #[must_use]
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }

    /// How often each fault struck, by its number.
    #[must_use]
    pub fn struck(&self) -> &BTreeMap<usize, u64> {
        &self.struck
    }

    /// What a checker found.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// The checkers, for their marks.
    #[must_use]
    pub fn checkers(&self) -> &[Box<dyn Checker>] {
        &self.checkers
    }

    /// Everything, to look at.
    #[must_use]
    pub fn view(&self) -> WorldView<'_> {
        WorldView { nodes: &self.nodes, databases: &self.databases }
    }

    /// Lets the next thing happen, unless that is later than `until` or something is wrong.
    pub fn step(&mut self, until: Time) -> bool {
        if self.violation.is_some() || self.heap.peek().is_none_or(|next| next.at > until) {
            return false;
        }
        let Some(Entry { at, event, .. }) = self.heap.pop() else { return false };
        self.now = at;
        self.events += 1;
        self.dispatch(event);
        true
    }

    /// Lets the checkers look at the end.
    pub fn finish(&mut self) {
        let mut checkers = std::mem::take(&mut self.checkers);
        for checker in &mut checkers {
            let found = checker.finish(&self.view());
            self.note_violation(checker.name(), found);
        }
        self.checkers = checkers;
    }

    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.seq += 1;
        self.heap.push(Entry { at: at.max(self.now), seq: self.seq, event });
    }

    pub(crate) fn after(&mut self, delay: Time, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counters.entry(what).or_default() += 1;
    }

    pub(crate) fn observe(&mut self, observation: &Observation<'_>) {
        let mut checkers = std::mem::take(&mut self.checkers);
        for checker in &mut checkers {
            let found = checker.observe(self.now, observation, &self.view());
            self.note_violation(checker.name(), found);
        }
        self.checkers = checkers;
    }

    /// A line for whoever reads along; the text is made only then.
    pub(crate) fn note(&mut self, node: Option<NodeId>, kind: &'static str, text: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink(Line { at: self.now, node, kind, text: text() });
        }
    }

    /// Takes a number into the hash of the run.
    pub(crate) fn mark(&mut self, number: u64) {
        self.trace.number(number);
    }

    /// Whether the process of that incarnation still runs.
    pub(crate) fn lives(&self, node: NodeId, incarnation: u64) -> bool {
        self.nodes.get(node).is_some_and(|node| node.incarnation == incarnation && node.process().is_some())
    }

    pub(crate) fn incarnation(&self, node: NodeId) -> u64 {
        self.nodes.get(node).map_or(0, |node| node.incarnation)
    }

    fn note_violation(&mut self, checker: &'static str, found: Result<(), String>) {
        if let Err(what) = found
            && self.violation.is_none()
        {
            self.violation = Some(Violation { checker, at: self.now, what });
        }
    }

    fn dispatch(&mut self, event: Event) {
        let (number, name, node) = event.kind();
        self.trace.number(self.now.0);
        self.trace.number(number << 32 | node.map_or(0, |node| node as u64 + 1));
        if let Some(target) = self.target(&event)
            && self.stall(target, &event)
        {
            if let Some(node) = self.nodes.get_mut(target) {
                node.stalled.push_back(event);
            }
            return;
        }
        self.note(node, name, || brief(&event));
        match event {
            Event::Boot(node) => self.boot(node),
            Event::Thaw(node) => self.thaw(node),
            Event::Tick(node, incarnation) => self.tick(node, incarnation),
            Event::Turn(node, incarnation, works, senders) => self.turn(node, incarnation, works, senders),
            Event::BeginSync(node, incarnation) => self.begin_sync(node, incarnation),
            Event::EndSync(node, incarnation, entries, mark) => self.end_sync(node, incarnation, &entries, mark),
            Event::News(node, incarnation) => self.news(node, incarnation),
            Event::Read(node, incarnation, job) => self.read_log(node, incarnation, &job),
            Event::HaveRead(node, incarnation, session, chunk) => {
                self.input_to(node, incarnation, Input::LogRead(session, chunk));
            }
            Event::Lobby(node, incarnation) => self.lobby(node, incarnation),
            Event::Input(node, incarnation, input) => self.input_to(node, incarnation, *input),
            Event::Handshake(conn) => self.handshake(conn),
            Event::ConnDown(conn, side) => self.conn_down(conn, side),
            Event::Ping(conn) => self.ping(conn),
            Event::StreamArrives(stream) => self.stream_arrives(stream),
            Event::StreamReady(stream) => self.stream_ready(stream),
            Event::Frame(stream, side, bytes) => self.frame_arrives(stream, side, bytes),
            Event::StreamEnd(stream, side, cause) => self.stream_end_arrives(stream, side, cause),
            Event::Abort(stream, side) => self.abort_stream(stream, side),
            Event::ReadOn(stream, side) => self.read_on(stream, side),
            Event::Topic { from, to, topic, subscribed } => self.topic_arrives(from, to, topic, subscribed),
            Event::Gossip(message) => self.gossip_arrives(*message),
            Event::Client(client) => self.client(client),
            Event::ClientTimeout(client, attempt) => self.client_timeout(client, attempt),
            Event::Fault(index) => crate::faults::strike(self, index),
            Event::Mend(index) => crate::faults::mend(self, index),
            Event::Restart(node, incarnation) => self.restart(node, incarnation),
            Event::Script(index) => crate::script::act(self, index),
            Event::Fleet(event) => self.fleet_event(event),
            Event::History(node, incarnation) => self.look_at_history(node, incarnation),
            Event::Upkeep(node, incarnation) => self.look_after(node, incarnation),
            Event::Watch(watcher) => self.watch(watcher),
            Event::Check => {}
        }
    }

    /// The node whose process would handle the event.
    fn target(&self, event: &Event) -> Option<NodeId> {
        let end = |stream: &StreamId, side: Side| Some(*self.net.streams.get(stream)?.nodes.get(side));
        match event {
            Event::Frame(stream, side, _) | Event::StreamEnd(stream, side, _) => end(stream, side.other()),
            Event::ReadOn(stream, side) | Event::Abort(stream, side) => end(stream, *side),
            Event::StreamArrives(stream) => end(stream, Side::Second),
            Event::StreamReady(stream) => end(stream, Side::First),
            Event::ConnDown(conn, side) => self.net.conns.get(conn).map(|conn| *conn.nodes.get(*side)),
            Event::Boot(_) | Event::Thaw(_) | Event::Restart(..) => None,
            other => other.kind().2,
        }
    }

    /// Whether the process is stopped just now, and the event with it.
    fn stall(&self, node: NodeId, event: &Event) -> bool {
        // A sync that was begun goes on in the kernel, but nobody sees its end; all else waits as it is.
        let _ = event;
        self.nodes.get(node).is_some_and(|node| node.frozen.is_some())
    }

    fn thaw(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.frozen.is_none_or(|until| until > self.now) {
            return;
        }
        node.frozen = None;
        for event in std::mem::take(&mut node.stalled) {
            // In the order in which they came, at this very moment.
            self.at(self.now, event);
        }
    }
}

/// What an event says beyond its name.
fn brief(event: &Event) -> String {
    match event {
        Event::Input(_, _, input) => format!("{input:?}"),
        Event::Fleet(event) => format!("{event:?}"),
        Event::Turn(_, _, works, _) => format!("{} pieces of work", works.len()),
        Event::Frame(stream, side, bytes) => format!("stream {stream} from {side:?}, {} bytes", bytes.len()),
        Event::Gossip(message) => format!("from {}, {} bytes", message.from, message.data.len()),
        Event::Topic { from, topic, subscribed, .. } => format!("{from} {topic} {subscribed}"),
        Event::Client(client) | Event::ClientTimeout(client, _) => format!("client {client}"),
        Event::Fault(index) | Event::Mend(index) => format!("{index}"),
        Event::ConnDown(conn, side) => format!("{conn} at {side:?}"),
        Event::Handshake(conn) | Event::Ping(conn) => format!("{conn}"),
        Event::StreamArrives(stream) | Event::StreamReady(stream) => format!("stream {stream}"),
        Event::StreamEnd(stream, side, cause) => format!("stream {stream} from {side:?}: {cause}"),
        _ => String::new(),
    }
}

impl World {
    /// Time passes in which nothing happens.
    pub(crate) fn rest_until(&mut self, at: Time) {
        self.now = self.now.max(at);
    }

    /// Whether all nodes that keep a database have the same of it. What still waits then waits for blocks that nobody has.
    #[must_use]
    pub fn all_equal(&self) -> bool {
        let view = self.view();
        self.fleet_settled()
            && self.databases.iter().all(|database| {
                let mut first = None;
                self.nodes.iter().filter(|node| !node.gone && node.databases.contains(database)).all(|node| {
                    let Some(replica) = view.replica(node.id, database) else { return false };
                    let meta = replica.meta();
                    let figures = (meta.digest, meta.keys);
                    let state = (figures, replica.vv(), replica.heads().hash());
                    match &first {
                        None => {
                            first = Some(state);
                            true
                        }
                        Some(found) => *found == state,
                    }
                })
            })
    }

    /// The time for becoming equal is over.
    pub(crate) fn must_be_equal(&mut self) {
        let picture = self.fleet_picture();
        let what = format!("not equal within the time that the scenario gives\n{picture}");
        self.note_violation("convergence", Err(what.trim_end().to_owned()));
    }
}
