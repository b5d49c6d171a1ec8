//! Dials, connections, pings, and gossip, which runs beside the sync streams on the same connections.

use bytes::Bytes;
use kvdb::net::ConnectionId;
use kvdb::net::gossip::Verdict;
use kvdb::net::machine::{Input, StreamEvent};
use kvdb::{Multiaddr, PeerId};

use crate::net::{Both, Conn, ConnId, DIAL_TIMEOUT, PING_INTERVAL, PING_TIMEOUT, Side, message_id};
use crate::observe::{NodeId, Observation};
use crate::time::Time;
use crate::world::{Event, GossipMessage, World};

/// How long gossipsub remembers a message.
const REMEMBERED: Time = Time::secs(120);
/// To so many peers a message is passed on.
const MESH: usize = 6;

impl World {
    pub(crate) fn dial(&mut self, from: NodeId, peer: Option<PeerId>, address: &Multiaddr) -> Result<ConnectionId, String> {
        let to = self.nodes.iter().position(|node| node.address == *address).ok_or("no such address")?;
        if peer.is_some() && self.net.by_pair.get(&(from.min(to), from.max(to))).is_some_and(|conns| !conns.is_empty()) {
            let busy = self.net.conns_of(from, to).next().is_some() || self.dialling(from, to);
            if busy {
                return Err("connected, or being dialled".to_owned());
            }
        }
        let number = usize::try_from(self.net.next_id()).unwrap_or(usize::MAX);
        let id = ConnectionId::new_unchecked(number);
        let conn = Conn {
            nodes: Both(from, to),
            id,
            established: false,
            up: Both(false, false),
            incarnations: Both(self.incarnation(from), self.incarnation(to)),
            silent_since: Both(None, None),
        };
        self.net.conns.insert(number, conn);
        self.net.by_pair.entry((from.min(to), from.max(to))).or_default().push(number);
        // TCP's handshake, noise and yamux: three round trips.
        let mut takes = Time::ZERO;
        for (one, other) in [(from, to), (to, from)] {
            let mut random = self.random.split();
            takes = takes + self.net.path(one, other).map_or(Time::ZERO, |path| path.delay(&mut random));
        }
        self.after(Time(takes.0 * 3), Event::Handshake(number));
        Ok(id)
    }

    fn dialling(&self, from: NodeId, to: NodeId) -> bool {
        let ids = self.net.by_pair.get(&(from.min(to), from.max(to))).into_iter().flatten();
        ids.filter_map(|id| self.net.conns.get(id)).any(|conn| !conn.established && conn.nodes.0 == from)
    }

    pub(crate) fn handshake(&mut self, id: ConnId) {
        let Some(conn) = self.net.conns.get(&id) else { return };
        let (from, to) = (conn.nodes.0, conn.nodes.1);
        let (connection, waited) = (conn.id, conn.silent_since.0.is_some());
        if !self.lives(from, conn.incarnations.0) {
            return self.give_up_dial(id);
        }
        let passes = !self.net.is_cut(from, to) && !self.net.is_cut(to, from);
        let dials = self.net.path(from, to).is_some_and(|path| !path.no_dial);
        let listens = self.nodes.get(to).is_some_and(|node| node.process().is_some() && node.frozen.is_none());
        let refused = passes && dials && self.nodes.get(to).is_some_and(|node| node.process().is_none());
        if passes && dials && listens {
            let incarnation = self.incarnation(to);
            if let Some(conn) = self.net.conns.get_mut(&id) {
                conn.established = true;
                conn.up = Both(true, true);
                conn.incarnations.1 = incarnation;
                conn.silent_since = Both(None, None);
            }
            self.established(id, from, to);
        } else if refused || waited {
            let incarnation = self.incarnation(from);
            self.give_up_dial(id);
            let cause = if refused { "connection refused" } else { "timed out" }.to_owned();
            self.input_to(from, incarnation, Input::DialFailed { connection, ourself: false, cause });
        } else {
            if let Some(conn) = self.net.conns.get_mut(&id) {
                conn.silent_since.0 = Some(self.now);
            }
            self.after(DIAL_TIMEOUT, Event::Handshake(id));
        }
    }

    fn give_up_dial(&mut self, id: ConnId) {
        self.net.forget(id);
    }

    fn established(&mut self, id: ConnId, from: NodeId, to: NodeId) {
        let Some(connection) = self.net.conns.get(&id).map(|conn| conn.id) else { return };
        for (me, other, outgoing) in [(from, to, true), (to, from, false)] {
            let count = u32::try_from(self.net.conns_of(me, other).count()).unwrap_or(u32::MAX);
            let (Some(peer), Some(address)) = (self.peer_of(other), self.nodes.get(other).map(|node| node.address.clone()))
            else {
                continue;
            };
            self.input(me, Input::Connected { peer, connection, address, outgoing, count });
            if count == 1 {
                let topics = self.nodes.get(me).and_then(|node| node.process()).map(|process| process.topics.clone());
                for topic in topics.unwrap_or_default() {
                    self.tell_topic(me, other, &topic, true);
                }
            }
        }
        let first = Time(self.random.below(PING_INTERVAL.0));
        self.after(first, Event::Ping(id));
    }

    /// Both ends ask whether the other is there; whoever has had no answer for too long closes.
    pub(crate) fn ping(&mut self, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.net.conns.get(&id) else { return };
        let nodes = conn.nodes.clone();
        let frozen = |node: NodeId| self.nodes.get(node).is_some_and(|node| node.frozen.is_some());
        let passes = !self.net.is_cut(nodes.0, nodes.1) && !self.net.is_cut(nodes.1, nodes.0);
        let mut closing = Vec::new();
        for side in [Side::First, Side::Second] {
            let (mine, theirs) = (*nodes.get(side), *nodes.get(side.other()));
            let answers = passes && *conn.up.get(side.other()) && !frozen(theirs);
            closing.push((side, answers, *conn.up.get(side) && !frozen(mine)));
        }
        for (side, answers, asks) in closing {
            let Some(conn) = self.net.conns.get_mut(&id) else { return };
            let since = conn.silent_since.of(side);
            if answers || !asks {
                *since = None;
            } else if *since.get_or_insert(now) + PING_TIMEOUT <= now {
                self.count("pings_unanswered");
                self.close_side(id, side);
            }
        }
        if self.net.conns.get(&id).is_some_and(|conn| conn.up.0 || conn.up.1) {
            self.check_writers(id);
            self.after(PING_INTERVAL, Event::Ping(id));
        }
    }

    /// One end closes: it is gone there at once, and at the other when that hears of it.
    pub(crate) fn close_side(&mut self, id: ConnId, side: Side) {
        let Some(conn) = self.net.conns.get(&id).filter(|conn| *conn.up.get(side)) else { return };
        let (me, other) = (*conn.nodes.get(side), *conn.nodes.get(side.other()));
        self.tell_down(id, side.other(), me, other);
        self.conn_down(id, side);
    }

    /// The other end learns by a packet, if that gets through.
    fn tell_down(&mut self, id: ConnId, side: Side, from: NodeId, to: NodeId) {
        let now = self.now;
        if let Some(path) = self.net.path(from, to).filter(|path| !path.cut) {
            let (_, arrives) = path.send(now, 64, &mut self.random);
            self.at(arrives, Event::ConnDown(id, side));
        }
    }

    pub(crate) fn conn_down(&mut self, id: ConnId, side: Side) {
        let Some(conn) = self.net.conns.get_mut(&id) else { return };
        if !std::mem::replace(conn.up.of(side), false) {
            return;
        }
        let (me, other, incarnation) = (*conn.nodes.get(side), *conn.nodes.get(side.other()), *conn.incarnations.get(side));
        self.end_streams(id, side);
        self.member_conn_down(id, me);
        let left = u32::try_from(self.net.conns_of(me, other).count()).unwrap_or(u32::MAX);
        if left == 0
            && let Some(process) = self.nodes.get_mut(me).and_then(|node| node.process_mut())
        {
            process.subscribed.remove(&other);
        }
        self.net.forget(id);
        if let Some(peer) = self.peer_of(other) {
            self.input_to(me, incarnation, Input::Disconnected { peer, left });
        }
    }

    /// All connections with a node.
    pub(crate) fn disconnect(&mut self, from: NodeId, to: NodeId) {
        let conns: Vec<(ConnId, Side)> = self.net.conns_of(from, to).collect();
        for (conn, side) in conns {
            self.tell_down(conn, side.other(), from, to);
            // The machine hears of it after what it is doing now.
            self.at(self.now, Event::ConnDown(conn, side));
        }
    }

    pub(crate) fn close_connection(&mut self, from: NodeId, connection: ConnectionId) {
        let found = self.net.conns.iter().find(|(_, conn)| conn.id == connection);
        let Some((id, conn)) = found.map(|(id, conn)| (*id, conn.nodes.clone())) else { return };
        let side = if conn.0 == from { Side::First } else { Side::Second };
        self.tell_down(id, side.other(), from, *conn.get(side.other()));
        self.at(self.now, Event::ConnDown(id, side));
    }

    /// The process of a node ends: its ends of all connections are gone, and the others hear of it or not.
    pub(crate) fn cut_connections(&mut self, id: NodeId, tell: bool) {
        let others: Vec<NodeId> = self.net.connected(id).collect();
        for other in others {
            let conns: Vec<(ConnId, Side)> = self.net.conns_of(id, other).collect();
            for (conn, side) in conns {
                if tell {
                    self.tell_down(conn, side.other(), id, other);
                }
                if let Some(conn) = self.net.conns.get_mut(&conn) {
                    *conn.up.of(side) = false;
                }
                self.drop_streams(conn, side);
                self.member_conn_down(conn, id);
                self.net.forget(conn);
            }
        }
    }

    pub(crate) fn subscribe(&mut self, id: NodeId, topic: &str, subscribed: bool) {
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        if subscribed {
            process.topics.insert(topic.to_owned());
        } else {
            process.topics.remove(topic);
        }
        let others: Vec<NodeId> = self.net.connected(id).collect();
        for other in others {
            self.tell_topic(id, other, topic, subscribed);
        }
    }

    fn tell_topic(&mut self, from: NodeId, to: NodeId, topic: &str, subscribed: bool) {
        let now = self.now;
        let event = Event::Topic { from, to, topic: topic.to_owned(), subscribed };
        let Some(path) = self.net.path(from, to) else { return };
        if path.cut {
            path.held.push_back(event);
        } else {
            let (_, arrives) = path.send(now, topic.len(), &mut self.random);
            self.at(arrives, event);
        }
    }

    pub(crate) fn topic_arrives(&mut self, from: NodeId, to: NodeId, topic: String, subscribed: bool) {
        if self.net.conns_of(to, from).next().is_none() {
            return;
        }
        let Some(peer) = self.peer_of(from) else { return };
        let Some(process) = self.nodes.get_mut(to).and_then(|node| node.process_mut()) else { return };
        let topics = process.subscribed.entry(from).or_default();
        if subscribed {
            topics.insert(topic.clone());
            self.input(to, Input::Subscribed(peer, topic));
        } else {
            topics.remove(&topic);
            self.input(to, Input::Unsubscribed(peer, topic));
        }
    }

    pub(crate) fn publish(&mut self, id: NodeId, topic: &str, data: &Bytes) {
        let database = self.topics.get(topic).copied();
        if let Some(database) = database {
            self.observe(&Observation::Published { node: id, database, message: data });
        }
        let message = message_id(data);
        let now = self.now;
        let Some(process) = self.nodes.get_mut(id).and_then(|node| node.process_mut()) else { return };
        if process.seen.insert(message, now + REMEMBERED).is_some() {
            return self.count("gossip_publish_duplicate");
        }
        let to: Vec<NodeId> =
            process.subscribed.iter().filter(|(_, topics)| topics.contains(topic)).map(|(node, _)| *node).collect();
        self.count(if to.is_empty() { "gossip_publish_no_peers" } else { "gossip_published" });
        for to in to {
            let changed = self.nodes.get_mut(id).and_then(|node| Some(node.hostile.as_mut()?.message(data)));
            let (data, message) = changed.map_or_else(|| (data.clone(), message), |data| (data.clone(), message_id(&data)));
            self.whisper(GossipMessage { from: id, to, topic: topic.to_owned(), data, id: message, again: false });
        }
    }

    /// Sends a gossip message: it may be lost, come twice, or overtake another.
    fn whisper(&mut self, message: GossipMessage) {
        *self.counters.entry("gossip_bytes").or_default() += message.data.len() as u64;
        let now = self.now;
        let Some(path) = self.net.path(message.from, message.to) else { return };
        if path.cut || path.silent || self.random.millionths(path.loss) {
            return self.count("gossip_lost");
        }
        let twice = self.random.millionths(path.duplicate);
        let (left, arrives) = path.send(now, message.data.len(), &mut self.random);
        let second = left + path.delay(&mut self.random) + Time(self.random.exponential(2_000_000));
        if twice {
            self.count("gossip_doubled");
            self.at(second, Event::Gossip(Box::new(GossipMessage { again: true, ..message.clone() })));
        }
        self.at(arrives, Event::Gossip(Box::new(message)));
    }

    pub(crate) fn gossip_arrives(&mut self, message: GossipMessage) {
        let GossipMessage { from, to, topic, data, id, again } = message;
        if self.net.conns_of(to, from).next().is_none() {
            return self.count("gossip_lost");
        }
        let now = self.now;
        let Some(peer) = self.peer_of(from) else { return };
        let Some(process) = self.nodes.get_mut(to).and_then(|node| node.process_mut()) else { return };
        if process.seen.len() > 4_096 {
            process.seen.retain(|_, until| *until > now);
        }
        let known = process.seen.insert(id, now + REMEMBERED).is_some_and(|until| until > now);
        if (known && !again) || !process.topics.contains(&topic) {
            return;
        }
        self.verdict = None;
        self.input(to, Input::Gossip(peer, topic.clone(), data.clone()));
        if self.verdict.take() == Some(Verdict::Accept) {
            let Some(process) = self.nodes.get(to).and_then(|node| node.process()) else { return };
            let others = process.subscribed.iter().filter(|(node, topics)| **node != from && topics.contains(&topic));
            let others: Vec<NodeId> = others.map(|(node, _)| *node).take(MESH).collect();
            for other in others {
                self.whisper(GossipMessage { from: to, to: other, topic: topic.clone(), data: data.clone(), id, again: false });
            }
        }
    }

    /// Ends a stream at one end, and tells the machine there.
    pub(crate) fn stream_ended(&mut self, id: NodeId, incarnation: u64, with: NodeId, epoch: u64, cause: &str) {
        if let Some(peer) = self.peer_of(with) {
            self.input_to(id, incarnation, Input::Stream(peer, epoch, StreamEvent::Ended(cause.to_owned())));
        }
    }
}
