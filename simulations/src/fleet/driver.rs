//! What hoarder's driver does with tasks and streams, done with events.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::DatabaseId;
use crdt::testing::{FakeSigner, FakeVerifier};
use hoarder::claims::Readiness;
use hoarder::controller::{Options, Start};
use hoarder::registry::{Registry, registry_id};
use hoarder::wire::{Answer, Code, Frame};
use hoarder::{Controller, Durability, Input, Output, PeerId, StoreId};
use kvdb::engine::port::News;
use kvdb::net::machine::{Input as NetInput, StreamEvent};
use kvdb::net::wire::Frame as SyncFrame;

use super::{FleetEvent, FleetSeen, Member, store};
use crate::node::Room;
use crate::observe::{NodeId, Observation};
use crate::random::Random;
use crate::time::Time;
use crate::world::{Event, World};

/// How often what is on disk is looked at while nobody waits for it, and the controller hears that time passes.
const COLD: Time = Time::ms(500);
/// Within this time it is looked at when something has changed.
const HOT_US: u64 = 10_000;

impl World {
    pub(crate) fn member(&self, id: NodeId) -> Option<&Member> {
        self.nodes.get(id)?.process()?.member.as_deref()
    }

    pub(crate) fn member_mut(&mut self, id: NodeId) -> Option<&mut Member> {
        self.nodes.get_mut(id)?.process_mut()?.member.as_deref_mut()
    }

    pub(crate) fn controller(&self, id: NodeId) -> Option<&Controller> {
        self.member(id).map(|member| &member.controller)
    }

    pub(crate) fn observe_fleet(&mut self, seen: &FleetSeen<'_>) {
        self.note(None, "fleet", || format!("{seen:?}"));
        self.observe(&Observation::Fleet(seen));
    }

    pub(crate) fn fleet_event(&mut self, event: FleetEvent) {
        match event {
            FleetEvent::Start(id, incarnation) if self.lives(id, incarnation) => self.start_member(id, incarnation),
            FleetEvent::Tick(id, incarnation) if self.lives(id, incarnation) => self.tick_member(id, incarnation),
            FleetEvent::Look(id, incarnation) if self.lives(id, incarnation) => self.look(id),
            FleetEvent::Input(id, incarnation, input) if self.lives(id, incarnation) => self.fleet_event_input(id, *input),
            FleetEvent::Read(id, incarnation, call, database, payload) if self.lives(id, incarnation) => {
                self.member_read(id, call, database, &payload);
            }
            FleetEvent::Pump(id, incarnation, to) if self.lives(id, incarnation) => self.pump(id, to),
            FleetEvent::Arrive { stream, from, to, bytes } => self.member_arrives(stream, from, to, bytes),
            FleetEvent::End(id, incarnation) if self.lives(id, incarnation) => self.end_process(id, crate::observe::End::Process),
            FleetEvent::Write(id, k) => self.scripted(id, k, false),
            FleetEvent::Flap(id) => {
                self.end_process(id, crate::observe::End::Process);
                self.after(Time::ms(300), Event::Boot(id));
            }
            FleetEvent::Client(client) => self.fleet_client(client),
            FleetEvent::Timeout(client, attempt) => self.fleet_timeout(client, attempt),
            _ => {}
        }
    }

    /// The databases that a member's process opens when it begins: the registry, and those on its disk that it knows.
    pub(crate) fn databases_at_start(&self, id: NodeId) -> Vec<DatabaseId> {
        let mut registry = Registry::default();
        for (key, value) in store::entries(self, id).map(|(_, entries)| entries).unwrap_or_default() {
            registry.apply(&key, Some(&value));
        }
        let here = self.nodes.get(id).map(|node| node.disk().databases().clone()).unwrap_or_default();
        let known = registry.ids().filter(|database| here.contains(database));
        std::iter::once(registry_id()).chain(known).collect()
    }

    /// A process has begun: its controller follows once its databases are open.
    pub(crate) fn begin_member(&mut self, id: NodeId) {
        if self.fleet.is_there() {
            let incarnation = self.incarnation(id);
            self.after(Time::ms(2), Event::Fleet(FleetEvent::Start(id, incarnation)));
        }
    }

    fn start_member(&mut self, id: NodeId, incarnation: u64) {
        let found: Vec<DatabaseId> = self.nodes.get(id).map(|node| node.databases.clone()).unwrap_or_default();
        let opened = |world: &Self| {
            let process = world.nodes.get(id).and_then(|node| node.process());
            process.is_some_and(|process| found.iter().all(|database| process.engine.replica(database).is_some()))
        };
        if !opened(self) {
            return self.after(Time::ms(50), Event::Fleet(FleetEvent::Start(id, incarnation)));
        }
        let (boot, fresh, seed) = (self.random.next() >> 1, StoreId(self.random.id()), self.random.next());
        let Some(node) = self.nodes.get_mut(id) else { return };
        // Counted on disk before anything else.
        let (store, opening) = node.disk().state().map_or((fresh, 1), |(store, opening)| (store, opening + 1));
        node.disk_mut().set_state(store, opening);
        let (me, key) = (node.peer, node.signer.0);
        let mut options = self.fleet_options();
        options.members.insert(me);
        let mut random = Random::new(seed);
        let start = Start { me, boot, store, opening, databases: Vec::new() };
        let random = Box::new(move || random.next());
        let now = self.since_start(id).duration();
        let controller = Controller::new(start, options, Box::new(FakeSigner(key)), Box::new(FakeVerifier), random, now);
        let member = Member {
            controller,
            entries: BTreeMap::new(),
            revision: u64::MAX,
            durable: BTreeMap::new(),
            links: BTreeMap::new(),
            accepted: BTreeMap::new(),
            dirty: BTreeSet::new(),
            look_due: false,
            ready: BTreeSet::new(),
            frozen: BTreeSet::new(),
        };
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        process.member = Some(Box::new(member));
        // Before the controller sees the registry: it must know what is here when it sees who claims what.
        for database in found.iter().filter(|database| **database != registry_id()) {
            if let Some(member) = self.member_mut(id) {
                member.controller.found(*database);
            }
        }
        self.read_registry(id);
        for database in found {
            self.look_at(id, database);
        }
        if self.fleet.draining.contains(&id) {
            self.fleet_input(id, Input::Drain(true));
        }
        self.tick_member(id, incarnation);
    }

    fn fleet_options(&self) -> Options {
        let spec = &self.scenario.fleet;
        let members = self.fleet.members.iter().filter_map(|id| self.peer_of(*id)).collect();
        let mut options = Options { members, ..Options::default() };
        options.claims.quiet_time = Time::ms(spec.quiet_ms).duration();
        options.claims.dead_claim_grace = Time::ms(spec.grace_ms).duration();
        options
    }

    pub(crate) fn since_start(&self, id: NodeId) -> Time {
        let started = self.nodes.get(id).and_then(|node| node.process()).map(|process| process.started);
        started.map_or(Time::ZERO, |started| self.now.since(started))
    }

    fn tick_member(&mut self, id: NodeId, incarnation: u64) {
        self.note_alone(id);
        self.check_member_writers(id);
        let mut wanted: Vec<DatabaseId> = self.nodes.get(id).map(|node| node.databases.clone()).unwrap_or_default();
        // A slice at a time, so that idle ones cost next to nothing.
        wanted.truncate(64);
        for database in wanted {
            self.look_at(id, database);
        }
        let wall = self.nodes.get(id).map_or(0, |node| node.clock.read(self.now).0);
        self.fleet_input(id, Input::Tick(wall & (u64::MAX >> 1)));
        self.after(COLD, Event::Fleet(FleetEvent::Tick(id, incarnation)));
    }

    /// Since when a node reaches fewer than half of the members.
    fn note_alone(&mut self, id: NodeId) {
        let up = |other: &NodeId| self.nodes.get(*other).is_some_and(|node| node.process().is_some() && node.frozen.is_none());
        // Heard, if only through a third one.
        let hears = |from: NodeId, to: NodeId| from == to || !self.net.is_cut(from, to);
        let reaches = |other: &NodeId| self.fleet.members.iter().any(|via| up(via) && hears(*other, *via) && hears(*via, id));
        let there = self.fleet.members.iter().filter(|other| up(other) && reaches(other)).count();
        if there * 2 < self.fleet.members.len() {
            let now = self.now;
            self.fleet.alone.entry(id).or_insert(now);
        } else {
            self.fleet.alone.remove(&id);
        }
    }

    /// Something of a database may be on one more disk.
    pub(crate) fn soil(&mut self, id: NodeId, database: DatabaseId) {
        let incarnation = self.incarnation(id);
        let Some(member) = self.member_mut(id) else { return };
        member.dirty.insert(database);
        if !std::mem::replace(&mut member.look_due, true) {
            let delay = Time(self.random.below(HOT_US));
            self.after(delay, Event::Fleet(FleetEvent::Look(id, incarnation)));
        }
    }

    /// What of an input to the replication machine may change what is known to be on disks.
    pub(crate) fn told_durable(&mut self, id: NodeId, input: &NetInput<Room>) -> Option<DatabaseId> {
        self.member(id)?;
        match input {
            NetInput::News(News::Opened(database, _) | News::Advanced(database, _))
            | NetInput::Stream(_, _, StreamEvent::Frame(SyncFrame::Ack { database, .. })) => Some(*database),
            _ => None,
        }
    }

    fn look(&mut self, id: NodeId) {
        let Some(member) = self.member_mut(id) else { return };
        member.look_due = false;
        for database in std::mem::take(&mut member.dirty) {
            self.look_at(id, database);
        }
    }

    /// Looks at what is on disk of a database, here and elsewhere, and tells the controller what is new.
    pub(crate) fn look_at(&mut self, id: NodeId, database: DatabaseId) {
        let Some(process) = self.nodes.get(id).and_then(|node| node.process()) else { return };
        let told = process.machine.durable(&database);
        // The registry is handed in before what covers it.
        if database == registry_id() {
            self.read_registry(id);
        }
        for (peer, vv) in told {
            let Some(member) = self.member_mut(id) else { return };
            if member.durable.get(&(database, peer)) != Some(&vv) {
                member.durable.insert((database, peer), vv.clone());
                self.fleet_input(id, Input::Durable(database, peer, vv));
            }
        }
    }

    /// Hands in what is new in the registry.
    pub(crate) fn read_registry(&mut self, id: NodeId) {
        let Some((revision, entries)) = store::entries(self, id) else { return };
        let Some(member) = self.member_mut(id).filter(|member| member.revision != revision) else { return };
        member.revision = revision;
        let gone = member.entries.keys().filter(|key| !entries.contains_key(*key)).map(|key| (key.clone(), None));
        let new = entries.iter().filter(|(key, value)| member.entries.get(*key) != Some(*value));
        let changed: Vec<_> = gone.chain(new.map(|(key, value)| (key.clone(), Some(value.clone())))).collect();
        member.entries = entries;
        if !changed.is_empty() {
            self.fleet_input(id, Input::Registry(changed));
        }
    }

    /// An input that has come from outside of the driver's own loop.
    pub(crate) fn fleet_event_input(&mut self, id: NodeId, input: Input) {
        match &input {
            // Acknowledgements go out without passing here: an answer must not say less than they did.
            Input::Frame(_, Frame::State { database, .. }) => self.look_at(id, *database),
            // The controller sees what it wrote before it hears that it is written.
            Input::RegistryWritten(..) => self.read_registry(id),
            _ => {}
        }
        self.fleet_input(id, input);
    }

    pub(crate) fn fleet_input(&mut self, id: NodeId, input: Input) {
        let now = self.since_start(id).duration();
        let Some(member) = self.member_mut(id) else { return };
        let outputs = member.controller.handle(input, now);
        self.note_ready(id);
        for output in outputs {
            self.fleet_output(id, output);
        }
    }

    /// While the node is a ready holder: since when it has all that was confirmed before, in the world's time.
    pub(crate) fn caught_up(&self, id: NodeId, database: &DatabaseId) -> Option<Time> {
        let process = self.nodes.get(id)?.process()?;
        let since = process.member.as_ref()?.controller.caught_up(database)?;
        // Rounded down, as the world's times are whole microseconds.
        Some(process.started + Time(u64::try_from(since.as_micros()).unwrap_or(u64::MAX)))
    }

    fn note_ready(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let now: Vec<(DatabaseId, Time)> =
            node.databases.iter().filter_map(|database| Some((*database, self.caught_up(id, database)?))).collect();
        let Some(member) = self.member_mut(id) else { return };
        let before = std::mem::replace(&mut member.ready, now.iter().map(|(database, _)| *database).collect());
        for (database, since) in now.into_iter().filter(|(database, _)| !before.contains(database)) {
            self.count("holders_ready");
            self.observe_fleet(&FleetSeen::Ready { node: id, database, since });
        }
    }

    fn fleet_output(&mut self, id: NodeId, output: Output) {
        match output {
            Output::Publish(beat) => {
                let frame = Frame::Beat(beat).encode();
                let others: Vec<NodeId> = self.fleet.members.iter().copied().filter(|other| *other != id).collect();
                for other in others {
                    self.member_send(id, other, frame.clone());
                }
            }
            Output::Send(peer, frame) => self.member_frame(id, peer, &frame),
            Output::Open(database) | Output::Thaw(database) => self.open_database(id, database),
            Output::Freeze(database) => self.freeze_database(id, database),
            Output::Destroy(database) => {
                let controller = self.controller(id);
                let dropped = controller.is_none_or(|controller| controller.registry().live(&database).is_none());
                let holders = controller.map_or(0, |controller| controller.holders_of(&database));
                self.observe_fleet(&FleetSeen::Releases { node: id, database, dropped, holders });
                self.destroy_database(id, database);
            }
            Output::WriteRegistry(token, changes) => {
                for (key, value) in &changes {
                    self.note_claim(id, key, value.is_some());
                }
                self.write_registry(id, token, changes);
            }
            Output::SetStore(store) => {
                self.count("stores_renewed");
                if let Some(node) = self.nodes.get_mut(id) {
                    node.disk_mut().set_state(store, 1);
                }
            }
            Output::Commit(call, database, request, payload) => self.member_commit(id, call, database, request, &payload),
            Output::Read(call, database, payload) => {
                let incarnation = self.incarnation(id);
                let delay = Time(5 + self.random.exponential(20));
                self.after(delay, Event::Fleet(FleetEvent::Read(id, incarnation, call, database, payload)));
            }
            Output::Reply(token, code, answer) => {
                self.served(id, code, &answer);
                self.fleet_answer(id, token, code, &answer);
            }
            Output::Record(token, outcome) => self.fleet_record(token, outcome),
        }
    }

    fn member_frame(&mut self, id: NodeId, peer: PeerId, frame: &Frame) {
        if let Frame::Reply { code, body, .. } = frame
            && let Ok(answer) = Answer::decode(body.clone())
        {
            self.served(id, *code, &answer);
        }
        if matches!(frame, Frame::Fallen { .. }) {
            self.count("falls_told");
        }
        let Some(to) = self.node_of(&peer) else { return };
        let now = self.now;
        if let (Frame::Probe { id: probe }, Some((boot, _))) =
            (frame, self.fleet.twins.get(&to).filter(|(_, until)| *until > now).copied())
            && self.random.below(2) == 0
        {
            // The other process of that identity has the connection.
            let alive = Frame::Alive { id: *probe, member: peer, boot };
            let incarnation = self.incarnation(id);
            let input = Input::Frame(peer, alive);
            return self.after(Time::ms(2), Event::Fleet(FleetEvent::Input(id, incarnation, Box::new(input))));
        }
        self.member_send(id, to, frame.encode());
    }

    /// A holder lets the outcome of a write out: not one that another one has sent to it.
    fn served(&mut self, id: NodeId, code: Code, answer: &Answer) {
        let mine = self.peer_of(id) == Some(answer.served_by);
        let (true, Code::Done | Code::Unconfirmed, Some(dot)) = (mine, code, answer.dot) else { return };
        let found = self
            .fleet
            .dots
            .iter()
            .find(|((_, of), _)| *of == dot)
            .map(|((database, _), (number, durability))| (*database, *number, *durability));
        let Some((database, number, durability)) = found else { return };
        let Some(asked) = self.fleet.asked.get(&number).cloned() else { return };
        let Some(controller) = self.controller(id) else { return };
        let holders = controller.holders_of(&database);
        let epoch = controller.membership().epoch();
        let members: Vec<NodeId> = self.fleet.members.iter().copied().collect();
        let lowest = members.iter().filter_map(|id| {
            let controller = self.controller(*id)?;
            Some(controller.registry().live(&database)?.settings.holders.min(controller.holders_of(&database)))
        });
        let lowest = lowest.min().unwrap_or(holders);
        let named = answer.holders.iter().filter_map(|peer| self.node_of(peer)).collect();
        let done = code == Code::Done;
        self.count(if done { "fleet_confirmed" } else { "fleet_unconfirmed" });
        let seen = FleetSeen::Served { node: id, database, asked: &asked, dot, durability, done, named, holders, lowest, epoch };
        self.observe_fleet(&seen);
    }

    /// What a write that a holder has just taken waits for.
    pub(crate) fn waited_for(&self, id: NodeId, database: &DatabaseId, number: u64) -> Durability {
        let asked = self.fleet.asked.get(&number).and_then(|asked| asked.durability);
        let Some(controller) = self.controller(id) else { return asked.unwrap_or(Durability::Local) };
        let holders = controller.holders_of(database);
        let default = controller.registry().live(database).map_or(Durability::Require(holders), |live| live.settings.durability);
        asked.unwrap_or(match default {
            Durability::Require(k) => Durability::Require(k.min(holders)),
            other => other,
        })
    }

    /// A member is about to write a claim of its own, or to remove it.
    fn note_claim(&mut self, id: NodeId, key: &crdt::Key, put: bool) {
        // As of now: what was held up by a cut that has just healed is heard at once.
        self.note_alone(id);
        let (Some(peer), Some(controller)) = (self.peer_of(id), self.controller(id)) else { return };
        let mut parts = key.as_str().split('/').skip(1);
        let (Some("claim"), Some(hex), Some(who)) = (parts.next(), parts.next(), parts.next()) else { return };
        let Some(database) = self.databases.iter().copied().find(|database| database.to_string() == hex) else { return };
        let had = controller.registry().claims(&database).contains_key(&peer);
        if who != peer.to_string() || (put && had) {
            return;
        }
        let dropped = controller.registry().live(&database).is_none();
        let up_for = self.since_start(id);
        let alone_for = self.fleet.alone.get(&id).map_or(Time::ZERO, |since| self.now.since(*since));
        let wanted = self.wanted(&database).map(|wanted| wanted.contains(&id));
        let seen = FleetSeen::Claims { node: id, database, joins: put, up_for, alone_for, dropped, wanted };
        self.observe_fleet(&seen);
    }

    /// Who should hold a database, for somebody who sees all; `None` while views may rightly differ.
    fn wanted(&self, database: &DatabaseId) -> Option<Vec<NodeId>> {
        if self.fleet.calm_since.is_none_or(|since| self.now < since + Time::secs(30)) {
            return None;
        }
        let candidates = self.fleet.members.iter().filter(|id| !self.fleet.draining.contains(id));
        let candidates: BTreeMap<PeerId, u64> = candidates.filter_map(|id| Some((self.peer_of(*id)?, 100))).collect();
        let mut settings =
            self.fleet.members.iter().filter_map(|id| Some(self.controller(*id)?.registry().live(database)?.settings.holders));
        let holders = settings.next()?;
        let desired = hoarder::placement::desired(database, &candidates, holders);
        settings.all(|other| other == holders).then(|| desired.iter().filter_map(|peer| self.node_of(peer)).collect())
    }

    /// Whether every database is held by whom it should be, by nobody else, and everybody agrees.
    pub(crate) fn fleet_settled(&self) -> bool {
        if !self.fleet.is_there() {
            return true;
        }
        let members: Vec<NodeId> =
            self.fleet.members.iter().copied().filter(|id| !self.nodes.get(*id).is_none_or(|node| node.gone)).collect();
        let controllers: Vec<(NodeId, &Controller)> =
            members.iter().filter_map(|id| Some((*id, self.controller(*id)?))).collect();
        if controllers.len() < members.len() {
            return false;
        }
        let Some((_, first)) = controllers.first() else { return false };
        let all: Vec<DatabaseId> = first.registry().all().map(|(database, _)| database).collect();
        all.iter().all(|database| {
            let desired = first.desired(database);
            let ready: BTreeSet<PeerId> = controllers
                .iter()
                .filter(|(_, controller)| controller.readiness(database) == Readiness::Ready)
                .filter_map(|(id, _)| self.peer_of(*id))
                .collect();
            ready == desired.iter().copied().collect()
                && controllers.iter().all(|(_, controller)| {
                    let claims: BTreeSet<PeerId> = controller.registry().claims(database).keys().copied().collect();
                    claims == ready && controller.desired(database) == desired
                })
        }) && controllers.iter().all(|(id, controller)| {
            // Nothing is left of what was let go of or dropped.
            let open = self.nodes.get(*id).map(|node| node.databases.clone()).unwrap_or_default();
            let of_it = |database: &DatabaseId| *database == registry_id() || all.contains(database);
            controller.registry().all().count() == all.len() && open.iter().all(of_it)
        })
    }

    /// How the fleet stands, for whoever looks for the cause of a violation.
    #[must_use]
    pub fn fleet_picture(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        for id in &self.fleet.members {
            let Some(controller) = self.controller(*id) else {
                let _ = writeln!(text, "n{id}: down");
                continue;
            };
            let live: Vec<_> = controller.membership().live().iter().filter_map(|peer| self.node_of(peer)).collect();
            let _ = writeln!(text, "n{id}: store {:?} live {live:?}", controller.store());
            for (database, live) in controller.registry().all() {
                let claims = controller.registry().claims(&database).iter().map(|(peer, claim)| {
                    let marks = (if claim.was_ready { "+" } else { "" }, if claim.ever_ready { "!" } else { "" });
                    format!("{:?}:{:?}{}{}", self.node_of(peer).unwrap_or(usize::MAX), claim.state, marks.0, marks.1)
                });
                let claims: Vec<String> = claims.collect();
                let desired: Vec<_> = controller.desired(&database).iter().filter_map(|peer| self.node_of(peer)).collect();
                let has =
                    self.nodes.get(*id).and_then(|node| node.process()?.engine.replica(&database)).map(|it| it.meta().revision);
                let _ = writeln!(
                    text,
                    "   {} k{} acts on {} least {}: {:?} has {has:?} desired {desired:?} claims {claims:?}",
                    live.name,
                    live.settings.holders,
                    controller.holders_of(&database),
                    live.settings.least,
                    controller.readiness(&database)
                );
            }
        }
        text
    }
}

/// Bytes of a beat in another's name: signed by nobody, or of a start that was.
pub(crate) fn forged(member: [u8; 32], boot: u64, counter: u64, signed: bool) -> Bytes {
    let beat = hoarder::wire::Beat {
        member,
        boot,
        counter,
        capacity: 100,
        draining: false,
        leaving: !signed,
        view: hoarder::Epoch([0; 16]),
        clock_ms: 0,
        signature: [0; 64],
    };
    if signed { beat.signed(&FakeSigner(member)).encode() } else { beat.encode() }
}
