//! Clients: each writes, waits for the answer, and tries again under the same request id when none comes.

use bytes::Bytes;
use crdt::testing::MemoryStore;
use crdt::{Change, Condition, DatabaseId, Durability, Expiry, Key, LocalOp, RequestId, Store as _, Terms, View as _, WallTime};
use kvdb::engine::machine::Work;
use kvdb::engine::port::{WriteError, Written};

use crate::node::Sender;
use crate::observe::{ClientId, NodeId, Observation};
use crate::random::Random;
use crate::scenario::Workload;
use crate::time::Time;
use crate::world::{Event, World};

/// A write that a client makes, until it has an answer.
#[derive(Debug, Clone)]
struct Attempt {
    database: DatabaseId,
    request: RequestId,
    ops: Vec<LocalOp>,
    durability: Durability,
    number: u64,
}

/// What clients write, if the scenario's own workload is not what is wanted.
pub trait Application {
    /// A client's next batch. It reads at the node that it is going to write to; an empty batch writes nothing this time.
    fn next(&mut self, client: ClientId, read: &dyn Fn(&Key) -> Option<Bytes>, random: &mut Random) -> Vec<LocalOp>;

    /// The batch was confirmed.
    fn confirmed(&mut self, client: ClientId, ops: &[LocalOp]);
}

/// One client.
#[derive(Debug)]
pub struct Client {
    /// The node that it asks.
    node: NodeId,
    left: u64,
    random: Random,
    attempt: Option<Attempt>,
    attempts: u64,
    /// Different writes so far.
    made: u64,
    written: u64,
}

impl World {
    pub(crate) fn add_clients(&mut self, random: &mut Random) {
        let Workload { clients, operations, think_ms, .. } = self.scenario.workload;
        // Where there is a fleet its own clients write.
        let clients = if self.fleet.is_there() { 0 } else { clients };
        for id in 0..clients {
            let share = operations / clients as u64 + u64::from((id as u64) < operations % clients as u64);
            let node = id % self.nodes.len().max(1);
            self.clients.push(Client {
                node,
                left: share,
                random: random.split(),
                attempt: None,
                attempts: 0,
                made: 0,
                written: 0,
            });
            let at = Time::ms(100 + random.below(think_ms.max(1) * 2));
            self.at(at, Event::Client(id));
        }
    }

    /// Whether some client still waits for an answer or has something to write.
    #[must_use]
    pub fn clients_busy(&self) -> bool {
        self.clients.iter().any(|client| client.left > 0 || client.attempt.is_some()) || self.fleet_busy()
    }

    /// Clients begin nothing new, and give up what they wait for.
    pub(crate) fn stop_clients(&mut self) {
        self.stop_fleet_clients();
        for client in &mut self.clients {
            client.left = 0;
            client.attempt = None;
        }
    }

    /// The client asks: for something new, or again.
    pub(crate) fn client(&mut self, id: ClientId) {
        let workload = self.scenario.workload.clone();
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.attempt.is_none() {
            if client.left == 0 {
                return;
            }
            client.left -= 1;
            let now = self.nodes.get(client.node).map_or(WallTime(0), |node| node.clock.read(self.now));
            let Some(database) = client.random.pick(&self.databases).copied() else { return };
            let mut attempt = client.next(id, database, now, &workload);
            if let Some(application) = &mut self.application {
                let store = self.nodes.get(client.node).map(|node| node.disk().contents());
                let view = store.and_then(|store| store.view(&database).ok());
                let read = |key: &Key| view.as_ref()?.row(key).ok()?.siblings().first()?.value.clone();
                attempt.ops = application.next(id, &read, &mut client.random);
            }
            if client.random.below(100) < u64::from(workload.conditional_percent) {
                let store = self.nodes.get(client.node).map(|node| node.disk().contents());
                attempt.depend(store, now, &mut client.random);
            }
            if attempt.ops.is_empty() || self.skipped.contains(&(id, client.made)) {
                let wait = Time(client.random.exponential(workload.think_ms * 1_000));
                client.made += 1;
                self.after(wait, Event::Client(id));
                return;
            }
            client.made += 1;
            client.attempt = Some(attempt);
        }
        client.attempts += 1;
        let number = client.attempts;
        let node = client.node;
        let Some(attempt) = client.attempt.as_mut() else { return };
        attempt.number = number;
        let Attempt { database, request, ops, durability, .. } = attempt.clone();
        self.mark(number);
        self.after(Time::ms(workload.timeout_ms), Event::ClientTimeout(id, number));
        let reachable = self.nodes.get(node).is_some_and(|node| node.process().is_some() && node.frozen.is_none());
        if reachable {
            self.observe(&Observation::Asked { client: id, node, database, request, ops: &ops, durability });
            self.submit(node, Work::Write { database, ops, request: Some(request), durability }, Sender::Client(id, number));
        }
    }

    pub(crate) fn client_timeout(&mut self, id: ClientId, number: u64) {
        let nodes = self.nodes.len();
        let percent = self.scenario.workload.move_percent;
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.attempt.as_ref().is_none_or(|attempt| attempt.number != number) {
            return;
        }
        if client.random.below(100) < u64::from(percent) {
            client.node = client.random.index(nodes);
        }
        self.count("client_retries");
        self.client(id);
    }

    /// Many write at once: more than one turn, one second of gossip or one share of memory takes.
    pub(crate) fn crowd(&mut self, node: NodeId, seed: u64) -> bool {
        let mut random = Random::new(seed);
        let Some(database) = random.pick(&self.databases).copied().filter(|_| !self.fleet.is_there()) else { return false };
        if self.nodes.get(node).is_none_or(|node| node.process().is_none() || node.frozen.is_some()) {
            return false;
        }
        let workload = self.scenario.workload.clone();
        let now = self.nodes.get(node).map_or(WallTime(0), |node| node.clock.read(self.now));
        let count = random.between(100, 1_500);
        for _ in 0..count {
            self.crowd += 1;
            // Clients of their own, who ask once.
            let id = self.clients.len() + self.crowd;
            let mut client = Client { node, left: 0, random: random.split(), attempt: None, attempts: 0, made: 0, written: 0 };
            let Attempt { database, request, ops, .. } = client.next(id, database, now, &workload);
            let durability = Durability::Buffered;
            self.observe(&Observation::Asked { client: id, node, database, request, ops: &ops, durability });
            let work = Work::Write { database, ops: ops.clone(), request: Some(request), durability };
            self.submit(node, work, Sender::Crowd(id, database, request, ops));
        }
        true
    }

    /// The engine's answer to one of a crowd.
    pub(crate) fn crowd_answered(
        &mut self,
        node: NodeId,
        (client, database, request): (ClientId, DatabaseId, RequestId),
        ops: &[LocalOp],
        answer: &Result<Written, WriteError>,
    ) {
        let durability = Durability::Buffered;
        self.observe(&Observation::Answered { client, node, database, request, ops, durability, answer });
    }

    /// The engine's answer to a client.
    pub(crate) fn answered(&mut self, id: ClientId, number: u64, node: NodeId, answer: &Result<Written, WriteError>) {
        let Some(client) = self.clients.get_mut(id) else { return };
        // An answer to an attempt that it has given up finds nobody.
        let Some(attempt) = client.attempt.take_if(|attempt| attempt.number == number) else { return };
        let Attempt { database, request, ops, durability, .. } = &attempt;
        let (database, request, durability) = (*database, *request, *durability);
        self.observe(&Observation::Answered { client: id, node, database, request, ops, durability, answer });
        let lost = self.scenario.workload.lost_answers_percent;
        if let Some(client) = self.clients.get_mut(id).filter(|_| lost > 0)
            && client.random.below(100) < u64::from(lost)
        {
            // It asks again when its time is over.
            client.attempt = Some(attempt);
            return self.count("answers_lost");
        }
        let workload = &self.scenario.workload;
        let (think, burst) = (workload.think_ms, workload.burst_percent);
        let Some(client) = self.clients.get_mut(id) else { return };
        let mut wait = Time(client.random.exponential(think * 1_000));
        if client.random.below(100) < u64::from(burst) {
            wait = Time::ZERO;
        }
        match answer {
            Ok(_) | Err(WriteError::Refused(_)) => {
                client.written += 1;
                if let Some(application) = self.application.as_mut().filter(|_| answer.is_ok()) {
                    application.confirmed(id, &attempt.ops);
                }
            }
            Err(_) => {
                // It may exist or not: asked again under the same id.
                client.attempt = Some(attempt);
                wait = wait + Time::ms(500);
                if let Some(attempt) = &mut client.attempt {
                    attempt.number = 0;
                }
                self.count("client_errors");
            }
        }
        self.after(wait, Event::Client(id));
    }
}

impl Attempt {
    /// Gives the write a condition, or what it has seen, as a client does that has just read.
    fn depend(&mut self, store: Option<&MemoryStore>, now: WallTime, random: &mut Random) {
        let [op] = self.ops.as_mut_slice() else { return };
        let view = store.and_then(|store| store.view(&self.database).ok());
        let Some(row) = view.and_then(|view| view.row(&op.key).ok()) else { return };
        let winner = row.winner(now).map(|winner| winner.dot);
        let some = || row.dots().collect::<Vec<_>>();
        let mut terms = Terms::default();
        match random.below(5) {
            0 => terms.condition = Some(Condition::IfAbsent),
            1 => terms.condition = winner.map(Condition::IfMatch),
            // Not the winner, perhaps.
            2 => terms.condition = random.pick(&some()).copied().map(Condition::IfMatch),
            3 => terms.seen = Some(some().into_iter().filter(|_| random.below(2) == 0).collect()),
            _ => {
                terms.condition = Some(winner.map_or(Condition::IfAbsent, Condition::IfMatch));
                terms.seen = Some(winner.into_iter().collect());
            }
        }
        if terms != Terms::default() {
            op.terms = Some(Box::new(terms));
        }
    }
}

impl Client {
    fn next(&mut self, id: ClientId, database: DatabaseId, now: WallTime, workload: &Workload) -> Attempt {
        let batch = self.random.below(100) < u64::from(workload.batch_percent);
        let count = if batch { self.random.between(2, workload.batch_max.max(2)) } else { 1 };
        let ops = (0..count).filter_map(|_| self.op(id, now, workload)).collect();
        let sync = self.random.below(100) < u64::from(workload.sync_percent);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        Attempt { database, request: RequestId(self.random.id()), ops, durability, number: 0 }
    }

    fn op(&mut self, id: ClientId, now: WallTime, workload: &Workload) -> Option<LocalOp> {
        let hot = self.random.below(100) < u64::from(workload.hot_percent);
        let keys = if hot { workload.keys.div_ceil(10) } else { workload.keys };
        let key = Key::parse(&format!("/keys/{}", self.random.below(keys.max(1)))).ok()?;
        let change = if self.random.below(100) < u64::from(workload.delete_percent) {
            Change::Tombstone
        } else {
            let large = self.random.below(1_000) < u64::from(workload.large_permille);
            let most = if large { workload.large_bytes } else { workload.value_bytes };
            let len = usize::try_from(self.random.below(most + 1)).unwrap_or(0);
            // Different for each write, so that a value tells where it comes from.
            let mut value = format!("{id}/{}/", self.written).into_bytes();
            value.resize(value.len().max(len), b'.');
            let expires = self.random.below(100) < u64::from(workload.expiring_percent);
            let expiry = if expires { Expiry::at_unix_ms(now.0 + self.random.below(10_000) + 1) } else { None };
            Change::Put { value: Bytes::from(value), expiry }
        };
        Some(LocalOp::new(key, change))
    }
}
