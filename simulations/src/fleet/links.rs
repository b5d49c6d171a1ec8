//! Streams between members: each side opens one for what it has to say, on a connection that stands anyway.

use bytes::Bytes;
use hoarder::Input;
use hoarder::wire::Frame;

use super::{FleetEvent, MemberStream};
use crate::net::{ConnId, STREAM_WINDOW_BYTES, Side};
use crate::observe::NodeId;
use crate::time::Time;
use crate::world::{Event, World};

/// Frames that wait for one member; what does not fit is lost.
const QUEUE: usize = 1_024;
/// A member that takes no frame for this long gets another stream.
const WRITE_TIMEOUT: Time = Time::secs(5);
/// Pause after a stream could not be opened.
const REOPEN: Time = Time::ms(250);

impl World {
    /// Queues a frame for another member.
    pub(crate) fn member_send(&mut self, from: NodeId, to: NodeId, bytes: Bytes) {
        let Some(member) = self.member_mut(from) else { return };
        let link = member.links.entry(to).or_default();
        if link.queue.len() >= QUEUE {
            return self.count("fleet_frames_lost");
        }
        link.queue.push_back(bytes);
        self.pump(from, to);
    }

    pub(crate) fn pump(&mut self, from: NodeId, to: NodeId) {
        let now = self.now;
        let conn = self.net.conns_of(from, to).next().map(|(conn, _)| conn);
        let incarnations = (self.incarnation(from), self.incarnation(to));
        let fresh = self.fleet.number();
        let Some(member) = self.member_mut(from) else { return };
        let link = member.links.entry(to).or_default();
        if link.queue.is_empty() || (link.stream.is_none() && link.reopen_at > now) {
            return;
        }
        if link.stream.is_none() {
            let Some(conn) = conn else {
                // The frame that asked for it is lost.
                link.queue.pop_front();
                link.reopen_at = now + REOPEN;
                return self.at(now + REOPEN, Event::Fleet(FleetEvent::Pump(from, incarnations.0, to)));
            };
            link.stream = Some(fresh);
            let stream = MemberStream { conn, from, to, incarnations, in_flight: 0, last_arrival: now };
            self.fleet.streams.insert(fresh, stream);
        }
        self.write_member(from, to);
    }

    /// Writes as long as the window is open.
    fn write_member(&mut self, from: NodeId, to: NodeId) {
        let now = self.now;
        loop {
            let Some(link) = self.member_mut(from).and_then(|member| member.links.get_mut(&to)) else { return };
            let Some(id) = link.stream else { return };
            let Some(stream) = self.fleet.streams.get_mut(&id) else { return };
            let Some(node) = self.nodes.get_mut(from) else { return };
            let Some(member) = node.process_mut().and_then(|process| process.member.as_mut()) else { return };
            let Some(link) = member.links.get_mut(&to) else { return };
            if link.queue.is_empty() {
                link.stuck_since = None;
                return;
            }
            if stream.in_flight >= STREAM_WINDOW_BYTES {
                link.stuck_since.get_or_insert(now);
                return;
            }
            link.stuck_since = None;
            let Some(bytes) = link.queue.pop_front() else { return };
            stream.in_flight += bytes.len() as u64;
            self.carry_member(id, from, to, bytes);
            let reset = self.net.path(from, to).map_or(0, |path| path.reset);
            if reset > 0 && self.random.millionths(reset) {
                self.count("resets");
                let Some(conn) = self.fleet.streams.get(&id).map(|stream| stream.conn) else { return };
                for side in [Side::First, Side::Second] {
                    let delay = Time(self.random.exponential(1_000));
                    self.after(delay, Event::ConnDown(conn, side));
                }
                return;
            }
        }
    }

    fn carry_member(&mut self, id: u64, from: NodeId, to: NodeId, bytes: Bytes) {
        let now = self.now;
        let len = bytes.len() + 4;
        let event = Event::Fleet(FleetEvent::Arrive { stream: id, from, to, bytes });
        let Some(path) = self.net.path(from, to) else { return };
        if path.cut {
            path.held.push_back(event);
            return;
        }
        let (_, arrives) = path.send(now, len, &mut self.random);
        let Some(stream) = self.fleet.streams.get_mut(&id) else { return };
        stream.last_arrival = stream.last_arrival.max(arrives);
        let at = stream.last_arrival;
        self.at(at, event);
    }

    pub(crate) fn member_arrives(&mut self, id: u64, from: NodeId, to: NodeId, bytes: Bytes) {
        let deaf = self.nodes.get(to).map_or(Time::ZERO, |node| node.deaf_until);
        if deaf > self.now {
            return self.at(deaf, Event::Fleet(FleetEvent::Arrive { stream: id, from, to, bytes }));
        }
        let Some(stream) = self.fleet.streams.get_mut(&id) else { return };
        let conn = stream.conn;
        let incarnation = stream.incarnations.1;
        stream.in_flight = stream.in_flight.saturating_sub(bytes.len() as u64);
        let up = self.net.conns.get(&conn).is_some_and(|conn| {
            let side = if conn.nodes.0 == to { Side::First } else { Side::Second };
            *conn.up.get(side)
        });
        if !up || !self.lives(to, incarnation) {
            return;
        }
        let allowed = self.fleet.members.contains(&from);
        if !allowed {
            // Who is not on the list is not listened to.
            return self.count("strangers_refused");
        }
        let Some(peer) = self.peer_of(from) else { return };
        let Some(member) = self.member_mut(to) else { return };
        if bytes.is_empty() {
            if member.accepted.get(&from) == Some(&id) {
                member.accepted.remove(&from);
                self.fleet_input(to, Input::Down(peer));
            }
            self.fleet.streams.remove(&id);
            return;
        }
        // One stream of each member is read: the newest.
        let newest = *member.accepted.entry(from).and_modify(|newest| *newest = id.max(*newest)).or_insert(id);
        if newest == id {
            match Frame::decode(bytes) {
                Ok(frame) => self.fleet_event_input(to, Input::Frame(peer, frame)),
                Err(_) => self.count("fleet_frames_malformed"),
            }
        }
        self.write_member(from, to);
    }

    /// A connection is gone at one end, and with it that end of the streams on it.
    pub(crate) fn member_conn_down(&mut self, conn: ConnId, me: NodeId) {
        if !self.fleet.is_there() {
            return;
        }
        let on_it = self.fleet.streams.iter().filter(|(_, stream)| stream.conn == conn);
        let on_it: Vec<(u64, NodeId, NodeId)> = on_it.map(|(id, stream)| (*id, stream.from, stream.to)).collect();
        for (id, from, to) in on_it {
            let other = if me == from { to } else { from };
            let peer = self.peer_of(other);
            let Some(member) = self.member_mut(me) else { continue };
            if me == from {
                if let Some(link) = member.links.get_mut(&to).filter(|link| link.stream == Some(id)) {
                    link.stream = None;
                    link.stuck_since = None;
                }
            } else if member.accepted.get(&from) == Some(&id) {
                member.accepted.remove(&from);
                if let Some(peer) = peer {
                    self.fleet_input(me, Input::Down(peer));
                }
            }
        }
        if self.net.conns.get(&conn).is_none_or(|conn| !conn.up.0 && !conn.up.1) {
            self.fleet.streams.retain(|_, stream| stream.conn != conn);
        }
    }

    /// Members that take nothing for too long get another stream, and the frame that waited first is lost.
    pub(crate) fn check_member_writers(&mut self, id: NodeId) {
        let now = self.now;
        let Some(member) = self.member_mut(id) else { return };
        let mut ended = Vec::new();
        for (to, link) in &mut member.links {
            if link.stuck_since.is_some_and(|since| since + WRITE_TIMEOUT <= now) {
                ended.extend(link.stream.take().map(|stream| (stream, *to)));
                link.queue.pop_front();
                link.stuck_since = None;
            }
        }
        for (stream, to) in ended {
            self.count("fleet_writers_stuck");
            self.carry_member(stream, id, to, Bytes::new());
            self.pump(id, to);
        }
    }
}
