//! Clients of the fleet: each asks a member, any member, and tries again under the same request id, there or elsewhere.

use bytes::Bytes;
use crdt::{Change, Condition, Key, LocalOp, RequestId, Terms};
use hoarder::controller::{RecordDone, RegistryError};
use hoarder::wire::{Answer, Code, Operation};
use hoarder::{Durability, Input};

use super::{FleetEvent, FleetSeen, request};
use crate::observe::NodeId;
use crate::random::Random;
use crate::scenario::FleetSpec;
use crate::time::Time;
use crate::world::{Event, World};

/// The one that makes the databases.
pub(crate) const OPERATOR: usize = usize::MAX;
/// The script.
pub(crate) const SCRIPTED: usize = usize::MAX - 1;
/// Tries after which a client gives up.
const TRIES: u32 = 30;
/// How long a call is told to wait.
const PATIENCE: Time = Time::secs(8);

/// What a client wants.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Its number, which the payload carries.
    pub number: u64,
    /// Who.
    pub client: usize,
    /// The same for each retry.
    pub request: RequestId,
    /// The database, by its place among the names.
    pub name: usize,
    /// What to write; empty for a read.
    pub ops: Vec<LocalOp>,
    /// As asked; the database's own if `None`.
    pub durability: Option<Durability>,
    /// Only if nothing is there.
    pub conditional: bool,
    /// What to read.
    pub read: Option<Key>,
    /// A holder that is not ready may answer.
    pub stale: bool,
}

/// One client.
#[derive(Debug)]
pub(crate) struct FleetClient {
    pub(crate) node: NodeId,
    pub(crate) left: u64,
    random: Random,
    attempt: Option<Attempt>,
    attempts: u64,
    made: u64,
}

#[derive(Debug, Clone)]
struct Attempt {
    asked: u64,
    number: u64,
    since: Time,
    tries: u32,
    /// It has had its answer and asks once more, as another client with the same request id would.
    again: bool,
}

impl World {
    pub(crate) fn add_fleet_clients(&mut self, random: &mut Random) {
        let FleetSpec { clients, operations, think_ms, start_ms, .. } = self.scenario.fleet;
        if !self.fleet.is_there() {
            return;
        }
        let members = self.fleet.members.len();
        for id in 0..clients {
            let left = operations / clients as u64 + u64::from((id as u64) < operations % clients as u64);
            let client = FleetClient { node: id % members, left, random: random.split(), attempt: None, attempts: 0, made: 0 };
            self.fleet.clients.push(client);
            let at = Time::ms(start_ms + random.below(think_ms.max(1) * 2));
            self.at(at, Event::Fleet(FleetEvent::Client(id)));
        }
        self.at(Time::ms(start_ms / 2), Event::Fleet(FleetEvent::Client(OPERATOR)));
    }

    /// Whether some client still has something to ask.
    pub(crate) fn fleet_busy(&self) -> bool {
        self.fleet.clients.iter().any(|client| client.left > 0 || client.attempt.is_some())
    }

    pub(crate) fn stop_fleet_clients(&mut self) {
        for client in &mut self.fleet.clients {
            client.left = 0;
            client.attempt = None;
        }
    }

    pub(crate) fn fleet_client(&mut self, id: usize) {
        if id == OPERATOR {
            return self.make_databases();
        }
        let spec = self.scenario.fleet.clone();
        let now = self.now;
        let fresh = self.fleet.number();
        let Some(client) = self.fleet.clients.get_mut(id) else { return };
        if client.attempt.is_none() {
            if client.left == 0 {
                return;
            }
            client.left -= 1;
            client.made += 1;
            let asked = client.next(id, fresh, &spec);
            client.attempt = Some(Attempt { asked: fresh, number: 0, since: now, tries: 0, again: false });
            self.fleet.asked.insert(fresh, asked);
        }
        self.ask_fleet(id);
    }

    fn ask_fleet(&mut self, id: usize) {
        let now = self.now;
        let timeout = Time::ms(self.scenario.fleet.timeout_ms);
        let token = self.fleet.number();
        let Some(client) = self.fleet.clients.get_mut(id) else { return };
        client.attempts += 1;
        let (number, node) = (client.attempts, client.node);
        let Some(attempt) = client.attempt.as_mut() else { return };
        (attempt.number, attempt.since) = (number, now);
        attempt.tries += 1;
        let asked = attempt.asked;
        self.at(now + timeout, Event::Fleet(FleetEvent::Timeout(id, number)));
        if self.call_fleet(node, token, asked) {
            self.fleet.tokens.insert(token, (id, number));
        }
    }

    /// Hands a call to a member, if its process hears it.
    pub(crate) fn call_fleet(&mut self, node: NodeId, token: u64, asked: u64) -> bool {
        let Some(asked) = self.fleet.asked.get(&asked).cloned() else { return false };
        let Some(name) = self.fleet.names.get(asked.name) else { return false };
        let Some(controller) = self.controller(node) else { return false };
        let Some((database, _)) = controller.registry().current(name) else { return false };
        self.observe_fleet(&FleetSeen::Asked { node, database, asked: &asked });
        let operation = match &asked.read {
            Some(key) => {
                let payload = Bytes::copy_from_slice(key.as_str().as_bytes());
                Operation::Read { stale: asked.stale, confirmed: false, payload }
            }
            None => Operation::Write {
                durability: asked.durability,
                conditional: asked.conditional,
                attempt: false,
                stale: true,
                payload: Bytes::copy_from_slice(&asked.number.to_be_bytes()),
            },
        };
        let patience = PATIENCE.duration();
        let input = Input::Call { token, request: asked.request, database, operation, patience };
        let incarnation = self.incarnation(node);
        self.at(self.now, Event::Fleet(FleetEvent::Input(node, incarnation, Box::new(input))));
        true
    }

    /// No answer: another member is asked, with the same request id.
    pub(crate) fn fleet_timeout(&mut self, id: usize, number: u64) {
        let members = self.fleet.members.len();
        let Some(client) = self.fleet.clients.get_mut(id) else { return };
        let Some(attempt) = client.attempt.as_ref().filter(|attempt| attempt.number == number) else { return };
        if attempt.tries >= TRIES {
            client.attempt = None;
            self.count("fleet_gave_up");
            return self.fleet_client(id);
        }
        client.node = client.random.index(members);
        self.count("fleet_retries");
        self.ask_fleet(id);
    }

    /// A member has answered.
    pub(crate) fn fleet_answer(&mut self, node: NodeId, token: u64, code: Code, answer: &Answer) {
        let Some((id, number)) = self.fleet.tokens.remove(&token) else { return };
        if id == OPERATOR {
            return self.probed(number, code);
        }
        if id == SCRIPTED {
            self.count(match code {
                Code::Done => "script_done",
                Code::Unconfirmed => "script_unconfirmed",
                Code::Absent => "script_absent",
                _ => "script_refused",
            });
            if let Some(asked) = self.fleet.asked.get(&number).cloned() {
                self.observe_fleet(&FleetSeen::Answered { node, asked: &asked, since: self.now, code, answer });
            }
            return;
        }
        let FleetSpec { lost_percent, repeat_percent, think_ms, .. } = self.scenario.fleet;
        let members = self.fleet.members.len();
        let Some(client) = self.fleet.clients.get_mut(id) else { return };
        if client.random.below(100) < u64::from(lost_percent) {
            return self.count("fleet_answers_lost");
        }
        let Some(attempt) = client.attempt.take_if(|attempt| attempt.number == number) else { return };
        let Some(asked) = self.fleet.asked.get(&attempt.asked).cloned() else { return };
        self.observe_fleet(&FleetSeen::Answered { node, asked: &asked, since: attempt.since, code, answer });
        self.mark(number);
        let Some(client) = self.fleet.clients.get_mut(id) else { return };
        let mut wait = Time(client.random.exponential(think_ms * 1_000));
        let repeat = client.random.below(100) < u64::from(repeat_percent);
        if (code.is_retried() || code == Code::Unconfirmed) && attempt.tries < TRIES {
            if client.random.below(3) == 0 {
                client.node = client.random.index(members);
            }
            client.attempt = Some(Attempt { number: 0, ..attempt });
            wait = Time::ms(100 + client.random.below(200));
        } else if code == Code::Done && asked.read.is_none() && !attempt.again && repeat {
            // A second client with the same request id, elsewhere.
            client.node = client.random.index(members);
            client.attempt = Some(Attempt { number: 0, again: true, tries: 0, ..attempt });
            self.count("fleet_repeats");
        }
        self.at(self.now + wait, Event::Fleet(FleetEvent::Client(id)));
    }

    /// The operator makes what is not there yet, and looks again later.
    fn make_databases(&mut self) {
        let holders = self.scenario.fleet.holders;
        let missing: Vec<usize> = (0..self.fleet.names.len()).filter(|name| !self.fleet.made.contains(name)).collect();
        if missing.is_empty() || self.healed {
            return;
        }
        let members: Vec<NodeId> = self.fleet.members.iter().copied().collect();
        for name in missing {
            let Some(node) = self.random.pick(&members).copied() else { return };
            self.create_fleet(node, name, holders);
        }
        self.after(Time::secs(2), Event::Fleet(FleetEvent::Client(OPERATOR)));
    }

    pub(crate) fn create_fleet(&mut self, node: NodeId, name: usize, holders: u8) {
        let Some(text) = self.fleet.names.get(name).cloned() else { return };
        let token = self.fleet.number();
        self.fleet.creating.insert(token, name);
        let (durability, patience) = (Durability::Require(holders), PATIENCE.duration());
        self.fleet_input(node, Input::Create { token, name: text, holders, durability, patience });
    }

    pub(crate) fn fleet_record(&mut self, token: u64, outcome: Result<RecordDone, RegistryError>) {
        self.count(if outcome.is_ok() { "records_done" } else { "records_refused" });
        let Some(name) = self.fleet.creating.remove(&token) else { return };
        if matches!(outcome, Ok(_) | Err(RegistryError::Exists)) {
            self.fleet.made.insert(name);
        }
    }

    /// After everything has healed and settled every member takes a write to every database, and it is confirmed.
    pub(crate) fn probe_fleet(&mut self) -> bool {
        if self.fleet.probed || !self.fleet.is_there() {
            return self.fleet.probes.is_empty();
        }
        self.fleet.probed = true;
        let members: Vec<NodeId> = self.fleet.members.iter().copied().collect();
        let there = |world: &Self, name: usize| {
            let name = world.fleet.names.get(name)?;
            members.first().and_then(|id| world.controller(*id)?.registry().current(name)).map(drop)
        };
        let names: Vec<usize> = (0..self.fleet.names.len()).filter(|name| there(self, *name).is_some()).collect();
        for (name, node) in names.into_iter().flat_map(|name| members.iter().map(move |node| (name, *node))) {
            let (number, token) = (self.fleet.number(), self.fleet.number());
            let Ok(key) = Key::parse(&format!("/probe/{node}")) else { continue };
            let ops = vec![LocalOp::new(key, Change::Put { value: Bytes::from(number.to_string()), expiry: None })];
            let asked = Asked {
                number,
                client: OPERATOR,
                request: request(number),
                name,
                ops,
                durability: None,
                conditional: false,
                read: None,
                stale: false,
            };
            self.fleet.asked.insert(number, asked);
            self.fleet.probes.insert((name, node));
            self.fleet.tokens.insert(token, (OPERATOR, (name as u64) << 32 | node as u64));
            self.call_fleet(node, token, number);
        }
        self.fleet.probes.is_empty()
    }

    fn probed(&mut self, number: u64, code: Code) {
        let part = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        if code == Code::Done {
            self.fleet.probes.remove(&(part(number >> 32), part(number & 0xffff_ffff)));
        }
    }
}

impl FleetClient {
    fn next(&mut self, id: usize, number: u64, spec: &FleetSpec) -> Asked {
        let mut percent = |of: u32| self.random.below(100) < u64::from(of);
        let (reads, conditional, batch) =
            (percent(spec.read_percent), percent(spec.conditional_percent), percent(spec.batch_percent));
        let (stale, local, prefer, weak) = (percent(10), percent(spec.local_percent), percent(spec.prefer_percent), percent(10));
        let name = self.random.index(spec.databases);
        let mut asked = Asked {
            number,
            client: id,
            request: request(number),
            name,
            ops: Vec::new(),
            durability: None,
            conditional: conditional && !reads,
            read: None,
            stale,
        };
        if reads {
            asked.read = self.key(spec, true);
            return asked;
        }
        asked.durability = match (local, prefer, weak) {
            (true, ..) => Some(Durability::Local),
            (_, true, _) => Some(Durability::Prefer(spec.holders)),
            (_, _, true) => Some(Durability::Require(1)),
            _ => None,
        };
        let count = if batch && !conditional { self.random.between(2, 5) } else { 1 };
        asked.ops = (0..count).filter_map(|at| self.op(id, at, asked.conditional, spec)).collect();
        asked
    }

    fn key(&mut self, spec: &FleetSpec, kept: bool) -> Option<Key> {
        let below = if kept && self.random.below(2) == 0 { "kept" } else { "keys" };
        Key::parse(&format!("/{below}/{}", self.random.below(spec.keys.max(1)))).ok()
    }

    fn op(&mut self, id: usize, at: u64, conditional: bool, spec: &FleetSpec) -> Option<LocalOp> {
        let value = Bytes::from(format!("{id}/{}/{at}", self.made));
        if conditional {
            let key = Key::parse(&format!("/once/{}", self.random.below(spec.keys.max(1) * 4))).ok()?;
            let mut op = LocalOp::new(key, Change::Put { value, expiry: None });
            op.terms = Some(Box::new(Terms { condition: Some(Condition::IfAbsent), seen: None }));
            return Some(op);
        }
        let deletes = self.random.below(100) < u64::from(spec.delete_percent);
        let key = self.key(spec, !deletes)?;
        Some(LocalOp::new(key, if deletes { Change::Tombstone } else { Change::Put { value, expiry: None } }))
    }
}

impl Asked {
    /// In short, for a reader.
    #[must_use]
    pub fn text(&self) -> String {
        let keys: Vec<&str> = self.ops.iter().map(|op| op.key.as_str()).collect();
        match &self.read {
            Some(key) => format!("#{} read {key}", self.number),
            None => format!(
                "#{} write {} {:?}{}",
                self.number,
                keys.join(" "),
                self.durability,
                if self.conditional { ", if absent" } else { "" }
            ),
        }
    }
}
