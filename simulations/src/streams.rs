//! Sync streams: writers with a window, readers that stop when too much waits to be merged, ends of all kinds.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use crdt::Block;
use crdt::snapshot::Chunk;
use crdt::testing::FakeVerifier;
use kvdb::PeerId;
use kvdb::net::limits::{FAREWELL, PEER_UNMERGED_BYTES, WRITE_QUEUE_BYTES, WRITE_TIMEOUT};
use kvdb::net::machine::{Input, StreamEvent};
use kvdb::net::wire::{ErrorCode, Frame, SnapshotFrame};

use crate::fleet::FleetEvent;
use crate::net::{Both, ConnId, Flow, Item, STREAM_WINDOW_BYTES, Side, Stream, StreamId};
use crate::node::Room;
use crate::observe::{NodeId, Observation};
use crate::time::Time;
use crate::world::{Event, World};

impl World {
    pub(crate) fn open_stream(&mut self, id: NodeId, peer: PeerId) {
        let incarnation = self.incarnation(id);
        let to = self.node_of(&peer);
        let found = to.and_then(|to| Some((to, self.net.conns_of(id, to).next()?)));
        let Some((to, (conn, _))) = found else {
            let failed = Input::StreamOpened(peer, Err("not connected".to_owned()));
            return self.at(self.now, Event::Input(id, incarnation, Box::new(failed)));
        };
        let stream = self.net.next_id();
        let nodes = Both(id, to);
        self.net.streams.insert(
            stream,
            Stream {
                conn,
                nodes,
                incarnations: Both(incarnation, self.incarnation(to)),
                epochs: Both(None, None),
                opening: true,
                flows: Both(Flow::default(), Flow::default()),
                room: Both(Rc::new(Cell::new(0)), Rc::new(Cell::new(0))),
            },
        );
        self.carry(stream, Side::First, 32, Event::StreamArrives(stream));
    }

    /// Sends something in order along one direction of a stream; it waits while nothing passes.
    fn carry(&mut self, id: StreamId, side: Side, bytes: usize, event: Event) -> Time {
        let now = self.now;
        let Some(stream) = self.net.streams.get(&id) else { return now };
        let (from, to) = (*stream.nodes.get(side), *stream.nodes.get(side.other()));
        let Some(path) = self.net.path(from, to) else { return now };
        if path.cut {
            path.held.push_back(event);
            return now;
        }
        let (left, arrives) = path.send(now, bytes, &mut self.random);
        let Some(stream) = self.net.streams.get_mut(&id) else { return now };
        let flow = stream.flows.of(side);
        flow.last_arrival = arrives.max(flow.last_arrival);
        let arrives = flow.last_arrival;
        self.at(arrives, event);
        left
    }

    /// When something of a stream arrives that was held back: after what went before it, and before what comes after it.
    pub(crate) fn in_order(&mut self, event: &Event, at: Time) -> Time {
        let (id, side) = match event {
            Event::StreamArrives(id) => (*id, Side::First),
            Event::StreamReady(id) => (*id, Side::Second),
            Event::Frame(id, side, _) | Event::StreamEnd(id, side, _) => (*id, *side),
            Event::Fleet(FleetEvent::Arrive { stream, .. }) => {
                let Some(stream) = self.fleet.streams.get_mut(stream) else { return at };
                stream.last_arrival = stream.last_arrival.max(at);
                return stream.last_arrival;
            }
            _ => return at,
        };
        let Some(stream) = self.net.streams.get_mut(&id) else { return at };
        let flow = stream.flows.of(side);
        flow.last_arrival = flow.last_arrival.max(at);
        flow.last_arrival
    }

    pub(crate) fn stream_arrives(&mut self, id: StreamId) {
        let Some(stream) = self.net.streams.get(&id) else { return };
        let (from, to, incarnation) = (stream.nodes.0, stream.nodes.1, stream.incarnations.1);
        let up = self.net.conns.get(&stream.conn).is_some_and(|conn| conn.up.1 || conn.up.0);
        if !up || !self.lives(to, incarnation) {
            return;
        }
        let Some(peer) = self.peer_of(from) else { return };
        self.arriving = Some((id, Side::Second));
        self.input(to, Input::StreamAccepted(peer));
        self.arriving = None;
        let taken = self.net.streams.get(&id).is_some_and(|stream| stream.epochs.1.is_some());
        // The answer that the opener waits for goes before whatever the acceptor says.
        self.carry(id, Side::Second, 32, Event::StreamReady(id));
        if !taken {
            self.carry(id, Side::Second, 0, Event::StreamEnd(id, Side::Second, "refused by the peer"));
        }
    }

    pub(crate) fn stream_ready(&mut self, id: StreamId) {
        let Some(stream) = self.net.streams.get_mut(&id).filter(|stream| stream.opening) else { return };
        stream.opening = false;
        let (me, other, incarnation) = (stream.nodes.0, stream.nodes.1, stream.incarnations.0);
        if !self.lives(me, incarnation) {
            return;
        }
        let Some(peer) = self.peer_of(other) else { return };
        self.arriving = Some((id, Side::First));
        self.input(me, Input::StreamOpened(peer, Ok(())));
        self.arriving = None;
        if self.net.streams.get(&id).is_some_and(|stream| stream.epochs.0.is_none()) {
            self.end_flow(id, Side::First);
        }
    }

    pub(crate) fn link(&mut self, id: NodeId, peer: PeerId, epoch: u64) {
        let (Some((stream, side)), Some(other)) = (self.arriving.take(), self.node_of(&peer)) else { return };
        let Some(state) = self.net.streams.get_mut(&stream) else { return };
        *state.epochs.of(side) = Some(epoch);
        let before = self.nodes.get_mut(id).and_then(|node| node.process_mut()?.links.insert(other, (stream, side)));
        if let Some((before, side)) = before {
            self.let_go(before, side);
        }
        self.at(self.now, Event::ReadOn(stream, side));
    }

    pub(crate) fn unlink(&mut self, id: NodeId, peer: PeerId) {
        let Some(other) = self.node_of(&peer) else { return };
        let link = self.nodes.get_mut(id).and_then(|node| node.process_mut()?.links.remove(&other));
        if let Some((stream, side)) = link {
            self.let_go(stream, side);
        }
    }

    /// The reader ends at once, the writer once its queue is empty or its time is over.
    fn let_go(&mut self, id: StreamId, side: Side) {
        let Some(stream) = self.net.streams.get_mut(&id) else { return };
        *stream.epochs.of(side) = None;
        stream.flows.of(side.other()).unread.clear();
        let flow = stream.flows.of(side);
        flow.closing = true;
        if flow.queue.is_empty() {
            self.end_flow(id, side);
        } else {
            self.after(Time::from_duration(FAREWELL), Event::Abort(id, side));
        }
    }

    fn end_flow(&mut self, id: StreamId, side: Side) {
        let Some(stream) = self.net.streams.get_mut(&id) else { return };
        let flow = stream.flows.of(side);
        flow.queue.clear();
        flow.queued_bytes = 0;
        if !std::mem::replace(&mut flow.ended, true) {
            self.carry(id, side, 16, Event::StreamEnd(id, side, "closed by the peer"));
        }
        self.forget_stream(id);
    }

    pub(crate) fn abort_stream(&mut self, id: StreamId, side: Side) {
        self.end_flow(id, side);
    }

    /// Forgets a stream of which nothing is left but what is on its way.
    fn forget_stream(&mut self, id: StreamId) {
        let over = |stream: &Stream| {
            let done = |side: Side| stream.epochs.get(side).is_none() && stream.flows.get(side).ended;
            done(Side::First) && done(Side::Second) && !stream.opening
        };
        if self.net.streams.get(&id).is_some_and(over) {
            self.net.streams.remove(&id);
        }
    }

    pub(crate) fn send(&mut self, id: NodeId, peer: PeerId, frame: Frame) {
        let Some(other) = self.node_of(&peer) else { return };
        let link = self.nodes.get(id).and_then(|node| node.process()?.links.get(&other)).copied();
        let Some((stream, side)) = link else { return };
        match &frame {
            Frame::Blocks { database, blocks } => {
                self.observe(&Observation::Sent { node: id, to: other, database: *database, blocks });
            }
            Frame::Error { code: ErrorCode::Protocol, text } => self.observe(&Observation::CutOff { node: id, what: text }),
            Frame::Ack { database, durable, .. } if !durable.is_empty() => {
                self.observe(&Observation::Acked { node: id, to: other, database: *database, durable });
            }
            _ => {}
        }
        let Some(state) = self.net.streams.get_mut(&stream) else { return };
        let flow = state.flows.of(side);
        let (before, hint) = (flow.queued_bytes, frame.size_hint());
        flow.queued_bytes += hint;
        if before > WRITE_QUEUE_BYTES {
            return self.input(id, Input::QueueFull(peer));
        }
        flow.queue.push_back(frame);
        self.count("frames_sent");
        *self.counters.entry("stream_bytes").or_default() += hint as u64;
        self.write(stream, side);
    }

    /// The writer writes as long as the window is open.
    fn write(&mut self, id: StreamId, side: Side) {
        let now = self.now;
        loop {
            let Some(stream) = self.net.streams.get_mut(&id) else { return };
            let (from, to) = (*stream.nodes.get(side), *stream.nodes.get(side.other()));
            let (epoch, incarnation) = (*stream.epochs.get(side), *stream.incarnations.get(side));
            let flow = stream.flows.of(side);
            if flow.in_flight >= STREAM_WINDOW_BYTES {
                flow.stuck_since.get_or_insert(now);
                return;
            }
            flow.stuck_since = None;
            let Some(frame) = flow.queue.pop_front() else {
                if flow.closing {
                    self.end_flow(id, side);
                }
                return;
            };
            let hint = frame.size_hint();
            flow.queued_bytes = flow.queued_bytes.saturating_sub(hint);
            let blocks = matches!(frame, Frame::Blocks { .. });
            let mut written = now;
            for bytes in self.on_the_wire(from, to, frame) {
                let Some(flow) = self.net.streams.get_mut(&id).map(|stream| stream.flows.of(side)) else { return };
                flow.in_flight += bytes.len() as u64;
                let len = bytes.len() + 4;
                written = self.carry(id, side, len, Event::Frame(id, side, bytes));
            }
            if blocks && let (Some(epoch), Some(peer)) = (epoch, self.peer_of(to)) {
                let event = Input::Stream(peer, epoch, StreamEvent::Written(hint));
                self.at(written, Event::Input(from, incarnation, Box::new(event)));
            }
            if self.net.path(from, to).is_some_and(|path| path.reset > 0)
                && let Some(reset) = self.net.path(from, to).map(|path| path.reset)
                && self.random.millionths(reset)
            {
                self.count("resets");
                return self.reset(id);
            }
        }
    }

    /// The bytes that go out for a frame, as the sender's version, its honesty and the path's faults make them.
    fn on_the_wire(&mut self, from: NodeId, to: NodeId, mut frame: Frame) -> Vec<Bytes> {
        let Some(node) = self.nodes.get_mut(from) else { return Vec::new() };
        if let Frame::Hello(hello) = &mut frame {
            hello.version = node.wire_version;
        }
        if let Some(hostile) = &mut node.hostile {
            let frames = hostile.frames(frame);
            self.count("frames_of_hostile_peers");
            return frames;
        }
        let bytes = frame.encode();
        let corrupt = self.net.path(from, to).map_or(0, |path| path.corrupt);
        if corrupt == 0 || !self.random.millionths(corrupt) {
            return vec![bytes];
        }
        self.count("frames_corrupted");
        let mut bytes = bytes.to_vec();
        let at = self.random.index(bytes.len());
        let bit = self.random.below(8);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << bit;
        }
        vec![bytes.into()]
    }

    /// The connection breaks in the middle of a frame: both ends see it, what is on its way is lost.
    fn reset(&mut self, id: StreamId) {
        let Some(conn) = self.net.streams.get(&id).map(|stream| stream.conn) else { return };
        for side in [Side::First, Side::Second] {
            let delay = Time(self.random.exponential(1_000));
            self.after(delay, Event::ConnDown(conn, side));
        }
    }

    pub(crate) fn frame_arrives(&mut self, id: StreamId, side: Side, bytes: Bytes) {
        let Some(stream) = self.net.streams.get_mut(&id) else { return };
        let conn_up = self.net.conns.get(&stream.conn).is_some_and(|conn| *conn.up.get(side.other()));
        let reads = stream.epochs.get(side.other()).is_some() || stream.opening;
        if !conn_up {
            // Nobody knows this connection there: a reset comes back, if anything does.
            let (conn, from, to) = (stream.conn, *stream.nodes.get(side), *stream.nodes.get(side.other()));
            let answers = self.nodes.get(to).is_some_and(|node| node.process().is_some());
            if answers && !self.net.is_cut(to, from) {
                self.after(Time::ms(1), Event::ConnDown(conn, side));
            }
            return;
        }
        if !reads {
            return;
        }
        let len = bytes.len() as u64;
        let item = match Frame::decode(bytes) {
            Ok(frame) => Item::Frame(frame, len),
            Err(error) => Item::Garbage(error.to_string(), len),
        };
        stream.flows.of(side).unread.push_back(item);
        self.read_on(id, side.other());
    }

    pub(crate) fn stream_end_arrives(&mut self, id: StreamId, side: Side, cause: &'static str) {
        let Some(stream) = self.net.streams.get_mut(&id) else { return };
        let flow = stream.flows.of(side);
        flow.ended = true;
        flow.unread.push_back(Item::End(cause));
        self.read_on(id, side.other());
        self.forget_stream(id);
    }

    /// The stream of a node whose blocks were merged may be read on.
    pub(crate) fn read_on_of(&mut self, id: StreamId, node: NodeId) {
        if let Some(side) = self.side_of(id, node) {
            self.read_on(id, side);
        }
    }

    /// Reads what has come to a side, as long as its memory has room.
    pub(crate) fn read_on(&mut self, id: StreamId, side: Side) {
        loop {
            let Some(stream) = self.net.streams.get(&id) else { return };
            let Some(epoch) = *stream.epochs.get(side) else { return };
            let (me, other, incarnation) =
                (*stream.nodes.get(side), *stream.nodes.get(side.other()), *stream.incarnations.get(side));
            let deaf = self.nodes.get(me).map_or(Time::ZERO, |node| node.deaf_until);
            let Some(next) = stream.flows.get(side.other()).unread.front() else { return };
            if deaf > self.now {
                return self.at(deaf, Event::ReadOn(id, side));
            }
            let room = stream.room.get(side);
            let blocks = match next {
                Item::Frame(Frame::Blocks { blocks, .. }, _) => blocks.iter().map(Bytes::len).sum::<usize>(),
                _ => 0,
            };
            let needed = blocks.min(PEER_UNMERGED_BYTES) as u64;
            if room.get() + needed > PEER_UNMERGED_BYTES as u64 {
                return self.count("readers_waiting");
            }
            let room = Room::take(room, needed, id);
            let flow = self.net.streams.get_mut(&id).map(|stream| stream.flows.of(side.other()));
            let Some(item) = flow.and_then(|flow| flow.unread.pop_front()) else { return };
            let (event, len) = event_of(item, room);
            if let Some(stream) = self.net.streams.get_mut(&id) {
                let flow = stream.flows.of(side.other());
                flow.in_flight = flow.in_flight.saturating_sub(len);
            }
            self.write(id, side.other());
            let Some(peer) = self.peer_of(other) else { return };
            self.input_to(me, incarnation, Input::Stream(peer, epoch, event));
        }
    }

    /// A connection is gone at one end, and with it that end of its streams; the machine there hears of it.
    pub(crate) fn end_streams(&mut self, conn: ConnId, side: Side) {
        let Some(me) = self.net.conns.get(&conn).map(|conn| *conn.nodes.get(side)) else { return };
        let streams: Vec<StreamId> = self.streams_of(conn);
        for id in streams {
            let Some(side) = self.side_of(id, me) else { continue };
            let Some(stream) = self.net.streams.get_mut(&id) else { continue };
            let (epoch, incarnation) = (stream.epochs.of(side).take(), *stream.incarnations.get(side));
            let (other, failed) = (*stream.nodes.get(side.other()), side == Side::First && std::mem::take(&mut stream.opening));
            self.drop_end(id, side);
            if let Some(epoch) = epoch {
                self.stream_ended(me, incarnation, other, epoch, "the connection is lost");
            }
            if failed && let Some(peer) = self.peer_of(other) {
                self.input_to(me, incarnation, Input::StreamOpened(peer, Err("the connection is lost".to_owned())));
            }
        }
    }

    /// The same for a process that has ended.
    pub(crate) fn drop_streams(&mut self, conn: ConnId, side: Side) {
        let Some(me) = self.net.conns.get(&conn).map(|conn| *conn.nodes.get(side)) else { return };
        for id in self.streams_of(conn) {
            let Some(side) = self.side_of(id, me) else { continue };
            if let Some(stream) = self.net.streams.get_mut(&id) {
                *stream.epochs.of(side) = None;
                if side == Side::First {
                    stream.opening = false;
                }
            }
            self.drop_end(id, side);
        }
    }

    fn drop_end(&mut self, id: StreamId, side: Side) {
        let Some(stream) = self.net.streams.get_mut(&id) else { return };
        stream.flows.of(side.other()).unread.clear();
        let flow = stream.flows.of(side);
        flow.queue.clear();
        flow.queued_bytes = 0;
        flow.ended = true;
        self.forget_stream(id);
    }

    fn streams_of(&self, conn: ConnId) -> Vec<StreamId> {
        self.net.streams.iter().filter(|(_, stream)| stream.conn == conn).map(|(id, _)| *id).collect()
    }

    /// A peer that takes nothing for too long loses its stream.
    pub(crate) fn check_writers(&mut self, conn: ConnId) {
        let late = |flow: &Flow, now: Time| flow.stuck_since.is_some_and(|at| at + Time::from_duration(WRITE_TIMEOUT) <= now);
        for id in self.streams_of(conn) {
            for side in [Side::First, Side::Second] {
                let Some(stream) = self.net.streams.get_mut(&id) else { break };
                let (me, other) = (*stream.nodes.get(side), *stream.nodes.get(side.other()));
                let (epoch, incarnation) = (*stream.epochs.get(side), *stream.incarnations.get(side));
                if late(stream.flows.get(side), self.now)
                    && let Some(epoch) = epoch
                {
                    self.count("writers_stuck");
                    self.stream_ended(me, incarnation, other, epoch, "the peer took nothing for too long");
                }
            }
        }
    }
}

fn event_of(item: Item, room: Room) -> (StreamEvent<Room>, u64) {
    match item {
        Item::Garbage(what, len) => (StreamEvent::Garbage(what), len),
        Item::End(cause) => (StreamEvent::Ended(cause.to_owned()), 0),
        Item::Frame(Frame::Blocks { database, blocks }, len) => {
            let verdicts = Block::verify_all(blocks, &mut FakeVerifier);
            let event = match verdicts.into_iter().collect::<Result<Vec<Block>, _>>() {
                Ok(blocks) => StreamEvent::Blocks(database, blocks, room),
                Err(error) => StreamEvent::Garbage(error.to_string()),
            };
            (event, len)
        }
        Item::Frame(Frame::Snapshot(database, SnapshotFrame::Chunk { name, hash, bytes }), len) => {
            let event = match Chunk::verify(&database, hash, bytes) {
                Ok(chunk) => StreamEvent::Chunk(database, name, chunk, room),
                Err(error) => StreamEvent::Garbage(error.to_string()),
            };
            (event, len)
        }
        Item::Frame(frame, len) => (StreamEvent::Frame(frame), len),
    }
}
