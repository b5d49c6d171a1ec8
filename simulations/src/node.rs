//! A node: one process of the real engine and the real replication machine, its disk, its clock.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crdt::testing::{FakeSigner, FakeVerifier, MemoryStore};
use crdt::{DatabaseId, Ed25519Signer, Signer as _, SnapshotId, SnapshotWrite};
use kvdb::engine::Gathering;
use kvdb::engine::history::Ages;
use kvdb::engine::machine::{Engine, Work};
use kvdb::engine::queue::WorkQueue;
use kvdb::net::gossip::{GossipOptions, peer_of};
use kvdb::net::machine::{NetMachine, NetMachineOptions};
use kvdb::net::port::PlainView;
use kvdb::net::sync::SessionId;
use kvdb::watch::Recent;
use kvdb::{Multiaddr, PeerId};

use crate::clock::NodeClock;
use crate::disk::SimDisk;
use crate::net::{Side, StreamId};
use crate::observe::{ClientId, End, NodeId};
use crate::random::Random;
use crate::time::Time;
use crate::world::Event;

/// Room of received blocks in their stream's share of memory, given back when dropped.
#[derive(Debug)]
pub struct Room {
    used: Rc<Cell<u64>>,
    bytes: u64,
    /// The stream that may read on once it is free.
    pub stream: StreamId,
}

impl Room {
    /// Takes room.
    #[must_use]
    pub fn take(used: &Rc<Cell<u64>>, bytes: u64, stream: StreamId) -> Self {
        used.set(used.get() + bytes);
        Self { used: Rc::clone(used), bytes, stream }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.used.set(self.used.get().saturating_sub(self.bytes));
    }
}

/// Who waits for the engine's answer.
#[derive(Debug)]
pub enum Sender {
    /// A client's attempt.
    Client(ClientId, u64),
    /// One of a crowd: who, what, and the batch.
    Crowd(ClientId, DatabaseId, crdt::RequestId, Vec<crdt::LocalOp>),
    /// A session.
    Session {
        /// Which.
        session: SessionId,
        /// The bytes of its blocks.
        bytes: u64,
        /// Their number.
        count: usize,
        /// Their room.
        room: Vec<Room>,
        /// Their database.
        database: DatabaseId,
    },
    /// A part of a snapshot.
    Stage(DatabaseId, SnapshotId, SnapshotWrite),
    /// A compaction.
    Compaction(crate::upkeep::Compaction),
    /// A block that came by gossip.
    Gossip(DatabaseId, PeerId, PeerId),
    /// A member of the fleet.
    Fleet(crate::fleet::FleetWork),
    /// Nobody.
    Nobody,
}

/// A process that runs.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that vary independently")]
pub struct Process {
    /// The engine over the node's disk.
    pub engine: Engine<SimDisk>,
    /// Replication.
    pub machine: NetMachine<Room>,
    pub(crate) queue: WorkQueue<(usize, Sender)>,
    /// Writes and deliveries that wait for room in the inbox, with their deadlines.
    pub(crate) lobby: VecDeque<(Time, Work, usize, Sender)>,
    pub(crate) inbox_used: usize,
    pub(crate) gathering: Gathering,
    pub(crate) started: Time,
    pub(crate) busy: bool,
    pub(crate) sync_due: bool,
    pub(crate) news_due: bool,
    pub(crate) wake_at: Option<Time>,
    pub(crate) links: BTreeMap<NodeId, (StreamId, Side)>,
    pub(crate) topics: BTreeSet<String>,
    /// What the connected peers said they are subscribed to.
    pub(crate) subscribed: BTreeMap<NodeId, BTreeSet<String>>,
    /// Gossip messages seen lately, by their hash.
    pub(crate) seen: BTreeMap<u64, Time>,
    pub(crate) poisoned: bool,
    /// Views of snapshots on their way.
    pub(crate) views: BTreeMap<SnapshotId, PlainView<MemoryStore>>,
    /// How old which revision is.
    pub(crate) ages: BTreeMap<DatabaseId, Ages>,
    /// What watchers are to look at, of each database that is watched.
    pub(crate) recent: BTreeMap<DatabaseId, Recent>,
    pub(crate) random: Random,
    /// The fleet's part.
    pub(crate) member: Option<Box<crate::fleet::Member>>,
}

#[derive(Debug)]
enum Life {
    Up(Box<Process>),
    Down(SimDisk),
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// Its place in the world.
    pub id: NodeId,
    /// Its identity.
    pub peer: PeerId,
    pub(crate) address: Multiaddr,
    /// In whose name it writes: its own, or that of the node whose data directory was copied.
    pub(crate) author: FakeSigner,
    /// Signs its announcements.
    pub(crate) signer: FakeSigner,
    /// What it does with its words, if it misbehaves.
    pub(crate) hostile: Option<crate::hostile::Hostility>,
    /// Its wall clock.
    pub clock: NodeClock,
    /// The databases that it keeps open.
    pub databases: Vec<DatabaseId>,
    pub(crate) bootstrap: Vec<Multiaddr>,
    pub(crate) interval: Time,
    /// It has left for ever.
    pub gone: bool,
    /// Counts its processes: what was meant for an earlier one does not reach a later one.
    pub(crate) incarnation: u64,
    life: Life,
    /// Until when the process is stopped.
    pub(crate) frozen: Option<Time>,
    /// What has come meanwhile.
    pub(crate) stalled: VecDeque<Event>,
    /// Nothing that crosses the network before this is read.
    pub(crate) deaf_until: Time,
    /// How many times slower than usual its disk syncs.
    pub(crate) sync_factor: u64,
    /// The version of the sync protocol that it speaks.
    pub(crate) wire_version: u64,
    /// How the process is to end right after its next commit, before anybody hears of it.
    pub(crate) end_after_turn: Option<End>,
    /// How it is to end in the middle of its next commit.
    pub(crate) end_in_commit: Option<End>,
}

impl Node {
    /// A node that has not been started yet.
    #[must_use]
    pub fn new(id: NodeId, seed: u64) -> Self {
        let mut bytes = [0x5a; 32];
        for (at, byte) in bytes.iter_mut().zip(seed.to_be_bytes().into_iter().chain((id as u64).to_be_bytes())) {
            *at = byte;
        }
        // A real public key, from which a peer id follows; the signatures are hashes.
        let public_key = Ed25519Signer::from_seed(bytes).public_key();
        let peer = peer_of(&public_key).unwrap_or_else(PeerId::random);
        let address = address(id, &peer);
        Self {
            id,
            peer,
            address,
            author: FakeSigner(public_key),
            signer: FakeSigner(public_key),
            hostile: None,
            clock: NodeClock::new(0, 0),
            databases: Vec::new(),
            bootstrap: Vec::new(),
            interval: Time::secs(10),
            gone: false,
            incarnation: 0,
            life: Life::Down(SimDisk::default()),
            frozen: None,
            stalled: VecDeque::new(),
            deaf_until: Time::ZERO,
            sync_factor: 1,
            wire_version: kvdb::net::wire::PROTOCOL_VERSION,
            end_after_turn: None,
            end_in_commit: None,
        }
    }

    /// The process, if it runs.
    #[must_use]
    pub fn process(&self) -> Option<&Process> {
        match &self.life {
            Life::Up(process) => Some(process),
            Life::Down(_) => None,
        }
    }

    pub(crate) fn process_mut(&mut self) -> Option<&mut Process> {
        match &mut self.life {
            Life::Up(process) => Some(process),
            Life::Down(_) => None,
        }
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &SimDisk {
        match &self.life {
            Life::Up(process) => process.engine.store(),
            Life::Down(disk) => disk,
        }
    }

    /// The disk, to break it.
    pub fn disk_mut(&mut self) -> &mut SimDisk {
        match &mut self.life {
            Life::Up(process) => process.engine.store_mut(),
            Life::Down(disk) => disk,
        }
    }

    /// Starts the process; what its databases are is on its disk.
    pub(crate) fn start(&mut self, now: Time, join_rows: usize, random: &mut Random) {
        let Life::Down(disk) = &mut self.life else { return };
        let mut disk = std::mem::take(disk);
        for database in &self.databases {
            disk.create(*database);
        }
        if !disk.faults.lying {
            // Opening a store writes what its log has into files, synced.
            disk.settle();
        }
        self.incarnation += 1;
        let (mut for_gossip, mut for_dials) = (random.split(), random.split());
        let machine = NetMachine::new(NetMachineOptions {
            me: self.peer,
            bootstrap: self.bootstrap.clone(),
            gossip: GossipOptions { boot: random.next() >> 1, interval: self.interval.duration() },
            signer: Box::new(self.signer),
            verifier: Box::new(FakeVerifier),
            gossip_random: Box::new(move || for_gossip.next()),
            random: Box::new(move || for_dials.next()),
        });
        let mut engine = Engine::new(disk);
        engine.set_join_rows(join_rows);
        self.life = Life::Up(Box::new(Process {
            engine,
            machine,
            queue: WorkQueue::default(),
            lobby: VecDeque::new(),
            inbox_used: 0,
            gathering: Gathering::default(),
            started: now,
            busy: false,
            sync_due: false,
            news_due: false,
            wake_at: None,
            links: BTreeMap::new(),
            topics: BTreeSet::new(),
            subscribed: BTreeMap::new(),
            seen: BTreeMap::new(),
            poisoned: false,
            views: BTreeMap::new(),
            ages: BTreeMap::new(),
            recent: BTreeMap::new(),
            random: random.split(),
            member: None,
        }));
    }

    /// Ends the process; only the disk stays.
    pub(crate) fn stop(&mut self) {
        self.incarnation += 1;
        self.frozen = None;
        self.stalled.clear();
        self.end_after_turn = None;
        self.end_in_commit = None;
        let life = std::mem::replace(&mut self.life, Life::Down(SimDisk::default()));
        self.life = match life {
            Life::Up(process) => Life::Down(process.engine.into_store()),
            down @ Life::Down(_) => down,
        };
    }
}

/// Where a node listens.
fn address(id: NodeId, peer: &PeerId) -> Multiaddr {
    let (high, low) = (id / 250, id % 250);
    format!("/ip4/10.0.{high}.{low}/tcp/4001/p2p/{peer}").parse().unwrap_or_else(|_| Multiaddr::empty())
}
