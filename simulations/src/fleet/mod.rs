//! The fleet in the world: on each member a [`hoarder::Controller`] beside the engine and the replication machine, and what
//! is around it in a process. The rules are the controller's; here is only what its driver does at the edge.

mod clients;
mod driver;
mod faults;
mod links;
mod script;
mod seen;
mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Dot, Key, RequestId, VersionVector};
use hoarder::registry::registry_id;
use hoarder::{Controller, Durability, Input, PeerId};

use crate::net::ConnId;
use crate::observe::NodeId;
use crate::scenario::Scenario;
use crate::time::Time;

pub use clients::Asked;
pub(crate) use clients::FleetClient;
pub use script::{FleetAct, who};
pub use seen::FleetSeen;
pub use store::FleetWork;

/// Something that happens to a member, or to a client of the fleet. What names an incarnation is for that process only.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it, and the handlers are near")]
pub enum FleetEvent {
    /// The databases on disk are open: the controller begins.
    Start(NodeId, u64),
    Tick(NodeId, u64),
    /// What is on disk, here or elsewhere, may have changed.
    Look(NodeId, u64),
    Input(NodeId, u64, Box<Input>),
    /// A key is read at this moment.
    Read(NodeId, u64, u64, DatabaseId, Bytes),
    /// A stream may be opened or written to.
    Pump(NodeId, u64, NodeId),
    /// Bytes of a frame, or the end of the stream if there are none.
    Arrive {
        stream: u64,
        from: NodeId,
        to: NodeId,
        bytes: Bytes,
    },
    /// The process ends, having said good-bye.
    End(NodeId, u64),
    /// The script writes.
    Write(NodeId, Option<u8>),
    /// The process ends, whichever it is, and starts again at once.
    Flap(NodeId),
    Client(usize),
    Timeout(usize, u64),
}

impl FleetEvent {
    /// The node whose process would handle it.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match self {
            Self::Start(node, _)
            | Self::Tick(node, _)
            | Self::Look(node, _)
            | Self::Input(node, ..)
            | Self::Read(node, ..)
            | Self::End(node, _)
            | Self::Pump(node, ..) => Some(*node),
            Self::Arrive { to, .. } => Some(*to),
            Self::Client(_) | Self::Timeout(..) | Self::Flap(_) | Self::Write(..) => None,
        }
    }
}

/// What a member has to say to another one.
#[derive(Debug, Default)]
pub(crate) struct Link {
    stream: Option<u64>,
    queue: VecDeque<Bytes>,
    reopen_at: Time,
    stuck_since: Option<Time>,
}

/// One direction between two members, on a connection.
#[derive(Debug)]
pub(crate) struct MemberStream {
    conn: ConnId,
    from: NodeId,
    to: NodeId,
    /// The processes at its ends.
    incarnations: (u64, u64),
    in_flight: u64,
    pub(crate) last_arrival: Time,
}

/// The controller of a process, and what its driver remembers.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) controller: Controller,
    /// The registry as last handed in, and the revision that it was read at.
    entries: BTreeMap<Key, Bytes>,
    revision: u64,
    /// What was last said to be on disk.
    durable: BTreeMap<(DatabaseId, PeerId), VersionVector>,
    links: BTreeMap<NodeId, Link>,
    /// The stream that is read, of each member.
    accepted: BTreeMap<NodeId, u64>,
    /// Databases of which something may be new on a disk.
    dirty: BTreeSet<DatabaseId>,
    look_due: bool,
    /// Databases for which it was ready when last looked at.
    ready: BTreeSet<DatabaseId>,
    /// Databases that are closed to be let go of.
    frozen: BTreeSet<DatabaseId>,
}

/// What the world knows of its fleet.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    /// The allow-list; empty when there is no fleet.
    pub(crate) members: BTreeSet<NodeId>,
    pub(crate) names: Vec<DatabaseName>,
    pub(crate) streams: BTreeMap<u64, MemberStream>,
    pub(crate) clients: Vec<FleetClient>,
    /// What calls ask for, by the number in their payload.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Callers by the token of their call.
    pub(crate) tokens: BTreeMap<u64, (usize, u64)>,
    pub(crate) next: u64,
    /// What each block is the answer to, and what it waits for.
    pub(crate) dots: BTreeMap<(DatabaseId, Dot), (u64, Durability)>,
    /// Requests in the registry's and the databases' names, so that each write has a caller of its own.
    pub(crate) callers: usize,
    /// Nodes that are told to hold nothing.
    pub(crate) draining: BTreeSet<NodeId>,
    /// Another start of a node's identity that is about, and until when.
    pub(crate) twins: BTreeMap<NodeId, (u64, Time)>,
    /// The last probes after healing: databases and nodes whose write has not been confirmed yet.
    pub(crate) probes: BTreeSet<(usize, NodeId)>,
    pub(crate) probed: bool,
    /// Databases that the operator has made, by name, and calls of his on their way.
    pub(crate) made: BTreeSet<usize>,
    pub(crate) creating: BTreeMap<u64, usize>,
    /// Who `h0` and the like of a script are.
    pub(crate) meant: BTreeMap<NodeId, NodeId>,
    /// Since when nothing goes wrong any more.
    pub(crate) calm_since: Option<Time>,
    /// Since when fewer than half of the members can be reached from a node.
    pub(crate) alone: BTreeMap<NodeId, Time>,
}

impl Fleet {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let spec = &scenario.fleet;
        let names = (0..spec.databases).filter_map(|n| DatabaseName::parse(&format!("fleet-{n}")).ok()).collect();
        Self { members: (0..spec.members.min(scenario.nodes)).collect(), names, ..Self::default() }
    }

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        !self.members.is_empty()
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The databases of a world with a fleet: the registry first, then those that clients use, in their first generations.
pub(crate) fn databases(fleet: &Fleet) -> Vec<DatabaseId> {
    let made = fleet.names.iter().flat_map(|name| (0..GENERATIONS).map(|generation| DatabaseId::of(name, generation)));
    std::iter::once(registry_id()).chain(made).collect()
}

/// Generations of a name that the checkers follow.
const GENERATIONS: u64 = 3;

/// A request id from a number.
pub(crate) fn request(number: u64) -> RequestId {
    let mut id = [0xf1; 16];
    for (at, byte) in id.iter_mut().zip(number.to_be_bytes()) {
        *at = byte;
    }
    RequestId(id)
}
