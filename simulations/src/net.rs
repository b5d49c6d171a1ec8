//! The network: paths with faults, connections on them, and the sync streams of connections.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use kvdb::net::ConnectionId;
use kvdb::net::wire::Frame;

use crate::observe::NodeId;
use crate::random::Random;
use crate::time::Time;
use crate::world::Event;

/// A connection.
pub type ConnId = usize;
/// A sync stream.
pub type StreamId = u64;

/// Bytes that may be on their way in one stream before the reader has taken some: yamux' first window.
pub const STREAM_WINDOW_BYTES: u64 = 256 << 10;
/// Between two pings of a connection.
pub const PING_INTERVAL: Time = Time::secs(15);
/// A ping without an answer for this long closes the connection.
pub const PING_TIMEOUT: Time = Time::secs(20);
/// A dial that meets silence.
pub const DIAL_TIMEOUT: Time = Time::secs(10);

/// One of the two ends of a connection or stream; the first is the one that began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who dialled, or opened.
    First,
    /// The other.
    Second,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// Something for each side.
#[derive(Debug, Clone, Default)]
pub struct Both<T>(pub T, pub T);

impl<T> Both<T> {
    /// One side's.
    pub fn get(&self, side: Side) -> &T {
        match side {
            Side::First => &self.0,
            Side::Second => &self.1,
        }
    }

    /// One side's, to change.
    pub fn of(&mut self, side: Side) -> &mut T {
        match side {
            Side::First => &mut self.0,
            Side::Second => &mut self.1,
        }
    }
}

/// One direction between two nodes.
#[derive(Debug)]
pub struct Path {
    /// One-way time in microseconds at least, and on average beyond that.
    pub latency: (u64, u64),
    /// Bytes a second.
    pub bandwidth: u64,
    /// Packets lost, in a million: in a stream a delay of a retransmission, else a loss.
    pub loss: u32,
    /// Gossip messages that come twice, in a million, the second one past the memory of the receiver's gossipsub.
    pub duplicate: u32,
    /// Frames in which a bit flips, in a million.
    pub corrupt: u32,
    /// Frames in whose middle the connection is reset, in a million.
    pub reset: u32,
    /// Nothing passes.
    pub cut: bool,
    /// No new connection comes about.
    pub no_dial: bool,
    /// No gossip passes: a mesh that has forgotten this peer.
    pub silent: bool,
    free_at: Time,
    /// What waits in the senders' buffers while nothing passes.
    pub(crate) held: VecDeque<Event>,
}

impl Path {
    /// A path without faults.
    #[must_use]
    pub fn new(latency: (u64, u64), bandwidth: u64) -> Self {
        Self {
            latency,
            bandwidth,
            loss: 0,
            duplicate: 0,
            corrupt: 0,
            reset: 0,
            cut: false,
            no_dial: false,
            silent: false,
            free_at: Time::ZERO,
            held: VecDeque::new(),
        }
    }

    /// When the last byte has left, and when it arrives.
    pub(crate) fn send(&mut self, now: Time, bytes: usize, random: &mut Random) -> (Time, Time) {
        let busy = Time(bytes as u64 * 1_000_000 / self.bandwidth.max(1));
        let left = now.max(self.free_at) + busy;
        self.free_at = left;
        (left, left + self.delay(random))
    }

    /// One-way time of a packet.
    pub(crate) fn delay(&mut self, random: &mut Random) -> Time {
        let mut delay = self.latency.0 + random.exponential(self.latency.1);
        while self.loss > 0 && delay < 5_000_000 && random.millionths(self.loss) {
            // Sent again after a time-out.
            delay += 200_000;
        }
        Time(delay)
    }
}

/// A connection, which each end sees in its own way.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) nodes: Both<NodeId>,
    pub(crate) id: ConnectionId,
    /// Whether the handshake is done.
    pub(crate) established: bool,
    pub(crate) up: Both<bool>,
    /// The processes at its ends.
    pub(crate) incarnations: Both<u64>,
    /// Since when each end has had no answer.
    pub(crate) silent_since: Both<Option<Time>>,
}

/// What a reader finds in a stream.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Frame, u64),
    Garbage(String, u64),
    End(&'static str),
}

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Frames that wait for the writer.
    pub(crate) queue: VecDeque<Frame>,
    pub(crate) queued_bytes: usize,
    /// Bytes on their way or waiting for the reader.
    pub(crate) in_flight: u64,
    pub(crate) last_arrival: Time,
    /// What has arrived and was not read.
    pub(crate) unread: VecDeque<Item>,
    /// The writer's end was let go: once the queue is empty, so is the stream.
    pub(crate) closing: bool,
    pub(crate) ended: bool,
    /// Since when the writer could write nothing.
    pub(crate) stuck_since: Option<Time>,
}

/// A sync stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) conn: ConnId,
    pub(crate) nodes: Both<NodeId>,
    pub(crate) incarnations: Both<u64>,
    /// Under which number each end's machine knows it.
    pub(crate) epochs: Both<Option<u64>>,
    /// The opener waits for it.
    pub(crate) opening: bool,
    /// What each side sends.
    pub(crate) flows: Both<Flow>,
    /// Room that each side's received blocks take.
    pub(crate) room: Both<Rc<Cell<u64>>>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Net {
    nodes: usize,
    paths: Vec<Path>,
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    pub(crate) by_pair: BTreeMap<(NodeId, NodeId), Vec<ConnId>>,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) next: u64,
}

impl Net {
    pub(crate) fn new(nodes: usize, path: impl Fn() -> Path) -> Self {
        Self { nodes, paths: (0..nodes * nodes).map(|_| path()).collect(), ..Self::default() }
    }

    pub(crate) fn path(&mut self, from: NodeId, to: NodeId) -> Option<&mut Path> {
        self.paths.get_mut(from * self.nodes + to)
    }

    pub(crate) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.paths.get(from * self.nodes + to).is_none_or(|path| path.cut)
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = (NodeId, NodeId, &mut Path)> {
        let nodes = self.nodes;
        self.paths.iter_mut().enumerate().map(move |(at, path)| (at / nodes, at % nodes, path))
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The connections of a pair that one of them takes to be up.
    pub(crate) fn conns_of(&self, node: NodeId, with: NodeId) -> impl Iterator<Item = (ConnId, Side)> + '_ {
        let pair = (node.min(with), node.max(with));
        let ids = self.by_pair.get(&pair).into_iter().flatten();
        ids.filter_map(move |id| {
            let conn = self.conns.get(id)?;
            let side = if conn.nodes.0 == node { Side::First } else { Side::Second };
            conn.up.get(side).then_some((*id, side))
        })
    }

    /// Whom a node takes to be connected.
    pub(crate) fn connected(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.nodes).filter(move |other| *other != node && self.conns_of(node, *other).next().is_some())
    }

    /// Forgets a connection that is down at both ends.
    pub(crate) fn forget(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| !conn.up.0 && !conn.up.1)
            && let Some(conn) = self.conns.remove(&id)
        {
            let pair = (conn.nodes.0.min(conn.nodes.1), conn.nodes.0.max(conn.nodes.1));
            if let Some(ids) = self.by_pair.get_mut(&pair) {
                ids.retain(|other| *other != id);
            }
        }
    }
}

/// A hash by which gossipsub knows messages.
pub(crate) fn message_id(data: &Bytes) -> u64 {
    let mut hash = crate::trace::TraceHash::default();
    hash.bytes(data);
    hash.short()
}
