//! The driver of a node's replication machine: what kvdb's driver does with libp2p and tasks, done with events.

use crdt::{Store as _, View as _};
use kvdb::net::machine::{Input, Output, Ticket};
use kvdb::net::port::{PlainView, StandingView as _, read_view};
use kvdb::net::ranges::read_range;

use crate::net::Side;
use crate::node::{Room, Sender};
use crate::observe::{NodeId, Observation};
use crate::time::Time;
use crate::world::{Event, ReadJob, World};

use kvdb::engine::machine::Work;
use kvdb::{Multiaddr, PeerId};

impl World {
    pub(crate) fn input_to(&mut self, id: NodeId, incarnation: u64, input: Input<Room>) {
        if self.lives(id, incarnation) {
            self.input(id, input);
        }
    }

    /// Hands an input to the node's machine and does what comes out.
    pub(crate) fn input(&mut self, id: NodeId, input: Input<Room>) {
        let now = self.now;
        let told = self.told_durable(id, &input);
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        let outputs = process.machine.handle(input, now.since(process.started).duration());
        for output in outputs {
            self.output(id, output);
        }
        self.arm(id);
        if let Some(database) = told {
            self.soil(id, database);
        }
    }

    /// Lets the machine's timer wake it.
    pub(crate) fn arm(&mut self, id: NodeId) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let incarnation = node.incarnation;
        let Some(process) = node.process_mut() else { return };
        let Some(wake) = process.machine.wake() else { return };
        let wake = (process.started + Time::from_duration(wake)).max(now);
        if process.wake_at.is_none_or(|armed| wake < armed) {
            process.wake_at = Some(wake);
            self.at(wake, Event::Tick(id, incarnation));
        }
    }

    pub(crate) fn tick(&mut self, id: NodeId, incarnation: u64) {
        if !self.lives(id, incarnation) {
            return;
        }
        let now = self.now;
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        // One that was armed for later has been overtaken, unless the process was stopped meanwhile.
        if process.wake_at.is_some_and(|armed| armed <= now) {
            process.wake_at = None;
            self.input(id, Input::Tick);
        }
    }

    fn output(&mut self, id: NodeId, output: Output<Room>) {
        match output {
            Output::Dial { target, peer, address } => {
                let outcome = self.dial(id, peer, &address);
                self.input(id, Input::Dialled(target, outcome));
            }
            Output::Redial(peer, addresses) => {
                let dialled = addresses.first().map(|address| self.dial(id, Some(peer), address));
                if !matches!(dialled, Some(Ok(_))) {
                    self.count("dials_failed");
                }
            }
            Output::DialDone(..) | Output::Repaired(..) => {}
            Output::Disconnect(peer) => {
                if let Some(other) = self.node_of(&peer) {
                    self.disconnect(id, other);
                }
            }
            Output::CloseConnection(connection) => self.close_connection(id, connection),
            Output::OpenStream(peer) => self.open_stream(id, peer),
            Output::Link(peer, epoch) => self.link(id, peer, epoch),
            Output::Unlink(peer) => self.unlink(id, peer),
            Output::Send(peer, frame) => self.send(id, peer, frame),
            Output::ReadLog { session, database, from, max_bytes, skip } => {
                let job = ReadJob { session, database, from, max_bytes, skip };
                let delay = Time(20 + self.random.exponential(100));
                let incarnation = self.incarnation(id);
                self.after(delay, Event::Read(id, incarnation, Box::new(job)));
            }
            Output::OpenView { .. } | Output::ReadView { .. } | Output::CloseView(_) | Output::ReadRange { .. } => {
                self.standing_view(id, &output);
            }
            Output::Stage { database, id: snapshot, write } => {
                self.submit(id, Work::Stage { database, write: write.clone() }, Sender::Stage(database, snapshot, write));
            }
            Output::Deliver(load) => {
                let count = load.blocks.len();
                let (session, bytes, room, database) = (load.session, load.bytes, load.room, load.database);
                let work = Work::Blocks { database, blocks: load.blocks, source: load.source };
                self.submit(id, work, Sender::Session { session, bytes, count, room, database });
            }
            Output::DeliverGossip { database, from, author, source, block } => {
                let work = Work::Blocks { database, blocks: vec![block], source };
                self.submit(id, work, Sender::Gossip(database, from, author));
            }
            Output::Subscribe(topic) => self.subscribe(id, &topic, true),
            Output::Unsubscribe(topic) => self.subscribe(id, &topic, false),
            Output::Publish(topic, data) => self.publish(id, &topic, &data),
            Output::Verdict(verdict) => self.verdict = Some(verdict),
            Output::Count(what) => {
                self.count(what);
                if what == "gossip_rejected" {
                    self.observe(&Observation::CutOff { node: id, what });
                }
            }
            Output::Disagreement(peer, database, dots) => {
                if let Some(with) = self.node_of(&peer) {
                    self.observe(&Observation::Disagreement { node: id, with, database, dots: &dots });
                }
            }
        }
    }

    /// Somebody tells the process to dial an address, now and whenever it is lost.
    pub(crate) fn dial_also(&mut self, id: NodeId, address: Multiaddr) {
        let now = self.now;
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        let moment = now.since(process.started).duration();
        let (_, outputs) = process.machine.dial(address, Ticket(0), moment);
        for output in outputs {
            self.output(id, output);
        }
        self.arm(id);
    }

    /// Views of snapshots: what is seen is of now, the answer comes a little later.
    fn standing_view(&mut self, id: NodeId, output: &Output<Room>) {
        let chunk_bytes = self.scenario.history.chunk_bytes;
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        let answer = match output {
            Output::OpenView { id: snapshot, database } => {
                let view = PlainView(process.engine.store().copy(), *database);
                let opened = view.opened(*snapshot).ok();
                process.views.insert(*snapshot, view);
                Input::ViewOpened(*snapshot, opened)
            }
            Output::ReadView { id: snapshot, at } => {
                let chunk = process.views.get(snapshot).and_then(|PlainView(store, database)| {
                    let view = store.view(database).ok()?;
                    read_view(&view, &view.state().ok()?, at, chunk_bytes).ok()
                });
                Input::ViewRead(*snapshot, at.clone(), chunk)
            }
            Output::ReadRange { reader, database, task } => {
                let view = process.engine.store().view(database);
                let read = view.ok().and_then(|view| read_range(&view, task).ok());
                Input::RangeRead(*reader, *database, read)
            }
            Output::CloseView(snapshot) => return drop(process.views.remove(snapshot)),
            _ => return,
        };
        let delay = Time(50 + self.random.exponential(300));
        let incarnation = self.incarnation(id);
        self.after(delay, Event::Input(id, incarnation, Box::new(answer)));
    }

    /// The node of a peer id.
    pub(crate) fn node_of(&self, peer: &PeerId) -> Option<NodeId> {
        self.by_peer.get(peer).copied()
    }

    pub(crate) fn peer_of(&self, id: NodeId) -> Option<PeerId> {
        self.nodes.get(id).map(|node| node.peer)
    }

    /// Which end of a stream a node is.
    pub(crate) fn side_of(&self, stream: u64, id: NodeId) -> Option<Side> {
        let nodes = &self.net.streams.get(&stream)?.nodes;
        Some(if nodes.0 == id { Side::First } else { Side::Second })
    }
}
