//! What checkers see of a run, and how they complain.

use std::collections::BTreeMap;

use crdt::testing::MemoryStore;
use crdt::{Block, DatabaseId, Dot, Durability, Key, LocalOp, Prefix, Replica, ReplicaId, RequestId, Stamp, WallTime, WriteSet};
use kvdb::engine::port::{Delivery, WriteError, Written};
use kvdb::watch::{WatchEvent, WatchToken};

use crate::node::Node;
use crate::time::Time;

/// A node of the world, from 0.
pub type NodeId = usize;
/// A client of the world, from 0.
pub type ClientId = usize;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The process alone: what was written stays.
    Process,
    /// The machine: only what was synced stays for sure.
    Power,
    /// The disk: nothing stays.
    Disk,
    /// An older image of the disk was put back.
    Restored,
    /// It will not come back.
    Gone,
}

/// What a watcher sees.
#[derive(Debug)]
pub enum Watched<'a> {
    /// It listed, and goes on from this revision.
    Listed {
        /// Keys and winners.
        map: &'a BTreeMap<Key, Dot>,
        /// The revision of the listing.
        at: u64,
        /// The node's time then.
        wall: WallTime,
    },
    /// It goes on from its token.
    Resumed(WatchToken),
    /// Its token is refused.
    TooOld(WatchToken),
    /// Something is ready to be told, read just now, at this time by the node's clock.
    Ready(&'a WatchEvent, WallTime),
    /// It is told that.
    Event(&'a WatchEvent),
    /// There is nothing more to tell it now.
    CaughtUp {
        /// What all it was told comes to.
        map: &'a BTreeMap<Key, Dot>,
    },
}

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A process began.
    Booted {
        /// Its node.
        node: NodeId,
    },
    /// A process ended.
    Ended {
        /// Its node.
        node: NodeId,
        /// How.
        how: End,
        /// Batches of its disk that are lost by it.
        lost: usize,
    },
    /// A batch was committed.
    Committed {
        /// The node.
        node: NodeId,
        /// All of it.
        writes: &'a [WriteSet],
        /// Whether the commit synced.
        durability: Durability,
    },
    /// A node has put the rows joined with a snapshot in the place of its own, and the turn is over.
    Switched {
        /// The node.
        node: NodeId,
        /// The database.
        database: DatabaseId,
    },
    /// The node's disk says that it has synced.
    Synced {
        /// The node.
        node: NodeId,
        /// So many of its batches, from the first on.
        batches: usize,
        /// Whether the disk lied.
        lied: bool,
    },
    /// A client asked for a write; also for each retry.
    Asked {
        /// The client.
        client: ClientId,
        /// The node asked.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// The same for each retry.
        request: RequestId,
        /// The batch.
        ops: &'a [LocalOp],
        /// As asked.
        durability: Durability,
    },
    /// A client got its answer. Each retry may get one.
    Answered {
        /// The client.
        client: ClientId,
        /// The node that answered.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// The request.
        request: RequestId,
        /// The batch.
        ops: &'a [LocalOp],
        /// As asked.
        durability: Durability,
        /// The answer.
        answer: &'a Result<Written, WriteError>,
    },
    /// A block went out to everybody.
    Published {
        /// The node.
        node: NodeId,
        /// The topic's database.
        database: DatabaseId,
        /// The block's bytes, or those of an announcement, as encoded.
        message: &'a [u8],
    },
    /// Blocks went out to a peer.
    Sent {
        /// The node.
        node: NodeId,
        /// To whom.
        to: NodeId,
        /// The database.
        database: DatabaseId,
        /// The blocks' bytes.
        blocks: &'a [bytes::Bytes],
    },
    /// A node told a peer what it has on disk.
    Acked {
        /// The node.
        node: NodeId,
        /// Whom it told.
        to: NodeId,
        /// The database.
        database: DatabaseId,
        /// The entries.
        durable: &'a [(ReplicaId, u64)],
    },
    /// Blocks from a peer were taken in.
    Delivered {
        /// The node.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// What became of them.
        delivery: &'a Delivery,
    },
    /// A node says that it and another disagree.
    Disagreement {
        /// The node.
        node: NodeId,
        /// The other.
        with: NodeId,
        /// The database.
        database: DatabaseId,
        /// The blocks, if it is about blocks.
        dots: &'a [Dot],
    },
    /// A node gave up a peer that broke the protocol.
    CutOff {
        /// The node.
        node: NodeId,
        /// What it says about it.
        what: &'a str,
    },
    /// Something in the fleet.
    Fleet(&'a crate::fleet::FleetSeen<'a>),
    /// A fault struck.
    Fault {
        /// Its number in [`crate::faults::FAULTS`].
        number: usize,
        /// The node, if it strikes one.
        node: Option<NodeId>,
    },
    /// A node looks for what goes with time.
    Tidies {
        /// The node.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// The deletes of what has expired.
        ops: &'a [LocalOp],
        /// Its time.
        now: WallTime,
        /// Whether it is its turn; else it waits longer.
        mine: bool,
        /// Requests from this stamp on are kept, and so many.
        keep: (Stamp, u64),
    },
    /// A watcher sees something.
    Watch {
        /// Which one.
        watcher: usize,
        /// Its node.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// What it watches.
        prefix: &'a Prefix,
        /// What it sees.
        what: Watched<'a>,
    },
    /// The faults are over and everything is mended; the clients have stopped.
    Healed,
    /// All replicas are equal.
    Equal,
}

/// What a checker found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The checker.
    pub checker: &'static str,
    /// When.
    pub at: Time,
    /// What is wrong, for a reader.
    pub what: String,
}

/// A rule that must hold. Written against what is observed and a naive model, not against the code under test.
pub trait Checker {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Looks at something that happened.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn observe(&mut self, at: Time, observation: &Observation<'_>, world: &WorldView<'_>) -> Result<(), String>;

    /// Looks at the end of the run, when everything has had its time to become equal.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn finish(&mut self, world: &WorldView<'_>) -> Result<(), String> {
        let _ = world;
        Ok(())
    }

    /// What it can say about the run besides: marks that were reached, with how often.
    fn marks(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The world, to look at.
#[derive(Debug, Clone, Copy)]
pub struct WorldView<'a> {
    pub(crate) nodes: &'a [Node],
    pub(crate) databases: &'a [DatabaseId],
}

impl<'a> WorldView<'a> {
    /// The number of nodes, those that are down or gone included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The databases of the world.
    #[must_use]
    pub fn databases(&self) -> &'a [DatabaseId] {
        self.databases
    }

    /// Whether the node's process runs (it may be frozen).
    #[must_use]
    pub fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.process().is_some())
    }

    /// Whether the node has left for ever.
    #[must_use]
    pub fn is_gone(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_none_or(|node| node.gone)
    }

    /// Whether the node keeps the database.
    #[must_use]
    pub fn keeps(&self, node: NodeId, database: &DatabaseId) -> bool {
        self.nodes.get(node).is_some_and(|node| !node.gone && node.databases.contains(database))
    }

    /// What the node's process reads, without faults of reading; while it is down, what the next start will find at most.
    #[must_use]
    pub fn store(&self, node: NodeId) -> Option<&'a MemoryStore> {
        self.nodes.get(node).map(|node| node.disk().contents())
    }

    /// An open replica.
    #[must_use]
    pub fn replica(&self, node: NodeId, database: &DatabaseId) -> Option<&'a Replica> {
        self.nodes.get(node)?.process()?.engine.replica(database)
    }

    /// What the node's wall clock shows.
    #[must_use]
    pub fn wall(&self, node: NodeId, at: Time) -> crdt::WallTime {
        self.nodes.get(node).map_or(crdt::WallTime(0), |node| node.clock.read(at))
    }

    /// The public key under which the node writes.
    #[must_use]
    pub fn public_key(&self, node: NodeId) -> [u8; 32] {
        self.nodes.get(node).map_or([0; 32], |node| node.author.0)
    }

    /// Whether the node's disk just now says that it syncs and does not.
    #[must_use]
    pub fn lies(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.disk().faults.lying)
    }

    /// The committed batches of the node's disk, and how many of them are synced.
    #[must_use]
    pub fn history(&self, node: NodeId) -> (&'a [crate::disk::Batch], usize) {
        self.nodes.get(node).map_or((&[], 0), |node| (node.disk().history(), node.disk().synced()))
    }

    /// The blocks of one database on the node's disk, in the order of merging, with what is not synced yet.
    pub fn blocks(&self, node: NodeId, database: &DatabaseId) -> impl Iterator<Item = &'a Block> + 'a {
        let database = *database;
        let batches = self.history(node).0.iter().flat_map(|batch| batch.iter());
        batches.filter(move |set| set.database == database).flat_map(|set| set.blocks.iter().map(|(_, block)| block))
    }
}
