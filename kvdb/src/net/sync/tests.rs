mod admission;
mod floors;
mod hostile;
mod ranges;
mod repairs;
mod snapshots;

use std::collections::VecDeque;
use std::time::Duration;

use crdt::testing::MemoryStore;
use crdt::{PendingLimits, Source, Store as _, View as _};
use quickcheck::quickcheck;

use super::*;
use crate::net::limits::{MAX_FRAME_BYTES, MAX_FRAME_ENTRIES, MAX_SYNC_GAP, PEER_QUEUE_BYTES};
use crate::net::port::{PlainView, StandingView as _, read_view};
use crate::net::ranges::read_range;
use crate::net::testing::{ToyEngine, database};
use crate::net::wire::{HaveEntry, Hello, RangeFrame, SnapshotFrame, Summary};

fn peer(n: u8) -> PeerId {
    let mut seed = [n; 32];
    let secret = libp2p::identity::ed25519::SecretKey::try_from_bytes(&mut seed).unwrap();
    libp2p::identity::Keypair::from(libp2p::identity::ed25519::Keypair::from(secret)).public().to_peer_id()
}

/// What is on its way to a node: from the network, from its engine, from its store.
enum Job {
    Input(Input),
    Deliver(SessionId, DatabaseId, PeerId, Vec<Block>, u64),
    Read(SessionId, DatabaseId, ReadFrom, usize, VersionVector),
    /// Read, but not handed in yet: the log may have grown meanwhile.
    HaveRead(SessionId, LogChunk),
    OpenView(SnapshotId, DatabaseId),
    ReadView(SnapshotId, Cursor),
    Stage(DatabaseId, SnapshotId, SnapshotWrite),
    Join(DatabaseId),
    Range(RangeReader, DatabaseId, RangeTask),
}

struct Node {
    id: PeerId,
    engine: ToyEngine,
    machine: SyncMachine,
    views: BTreeMap<SnapshotId, PlainView<MemoryStore>>,
    boots: u64,
    begun: usize,
    /// From the network, in order per sender.
    links: BTreeMap<PeerId, VecDeque<Frame>>,
    jobs: Vec<Job>,
    reports: Vec<Report>,
    cut: Vec<(PeerId, DisconnectReason)>,
    repairs: Vec<Result<(), RepairFailure>>,
    sent: BTreeMap<&'static str, usize>,
    most_queued: usize,
    /// The databases of the frames with blocks, as sent.
    order: Vec<DatabaseId>,
}

/// A few nodes and a network that reorders between peers, but not on one stream.
struct World {
    nodes: Vec<Node>,
    now: Moment,
    random: u64,
    chunk_bytes: usize,
    /// Whether views can be opened.
    snapshots: bool,
}

impl World {
    fn new(engines: Vec<ToyEngine>, seed: u64) -> Self {
        let nodes = engines.into_iter().zip(1..).map(|(engine, n)| Node {
            id: peer(n),
            engine,
            machine: SyncMachine::new(peer(n), u64::from(n)),
            views: BTreeMap::new(),
            boots: 0,
            begun: 0,
            links: BTreeMap::new(),
            jobs: Vec::new(),
            reports: Vec::new(),
            cut: Vec::new(),
            repairs: Vec::new(),
            sent: BTreeMap::new(),
            most_queued: 0,
            order: Vec::new(),
        });
        Self { nodes: nodes.collect(), now: Duration::ZERO, random: seed, chunk_bytes: 300, snapshots: true }
    }

    fn of(n: u8) -> Self {
        Self::new((1..=n).map(ToyEngine::new).collect(), 1)
    }

    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.random >> 33).unwrap() % below
    }

    fn index(&self, id: &PeerId) -> usize {
        self.nodes.iter().position(|node| node.id == *id).unwrap()
    }

    fn input(&mut self, n: usize, input: Input) {
        let outputs = self.nodes[n].machine.handle(input, self.now);
        let from = self.nodes[n].id;
        for output in outputs {
            match output {
                Output::Send(to, frame) => {
                    if let Frame::Blocks { database, .. } = &frame {
                        self.nodes[n].order.push(*database);
                    }
                    let kind = match &frame {
                        Frame::Blocks { .. } => "blocks",
                        Frame::Have { .. } => "have",
                        Frame::HaveList { .. } => "list",
                        Frame::Snapshot(_, SnapshotFrame::Chunk { .. }) => "chunks",
                        Frame::Snapshot(_, SnapshotFrame::Head { .. }) => "heads",
                        Frame::Ranges(_, RangeFrame::Ask { .. }) => "asks",
                        _ => "other",
                    };
                    *self.nodes[n].sent.entry(kind).or_default() += 1;
                    assert!(frame.encode().len() <= MAX_FRAME_BYTES);
                    let to = self.index(&to);
                    // A frame to a node that has dropped the stream is lost.
                    if let Some(link) = self.nodes[to].links.get_mut(&from) {
                        link.push_back(frame);
                    }
                    let queued = self.nodes[to]
                        .links
                        .get(&from)
                        .map_or(0, |link| link.iter().filter(|f| matches!(f, Frame::Blocks { .. })).map(Frame::size_hint).sum());
                    self.nodes[n].most_queued = self.nodes[n].most_queued.max(queued);
                }
                Output::Deliver { session, database, peer, blocks, bytes } => {
                    self.nodes[n].jobs.push(Job::Deliver(session, database, peer, blocks, bytes));
                }
                Output::ReadLog { session, database, from, max_bytes, skip } => {
                    *self.nodes[n].sent.entry("read").or_default() += 1;
                    self.nodes[n].jobs.push(Job::Read(session, database, from, max_bytes, skip));
                }
                Output::OpenView { id, database } => self.nodes[n].jobs.push(Job::OpenView(id, database)),
                Output::ReadView { id, at } => self.nodes[n].jobs.push(Job::ReadView(id, at)),
                Output::CloseView(id) => assert!(self.nodes[n].views.remove(&id).is_some(), "a view that is not open"),
                Output::Stage { database, id, write } => self.nodes[n].jobs.push(Job::Stage(database, id, write)),
                Output::ReadRange { reader, database, task } => self.nodes[n].jobs.push(Job::Range(reader, database, task)),
                Output::Repaired(_, outcome) => self.nodes[n].repairs.push(outcome),
                Output::Disconnect(peer, reason) => self.nodes[n].cut.push((peer, reason)),
                Output::Report(Report::SnapshotBegun(..)) => self.nodes[n].begun += 1,
                Output::Report(report) => self.nodes[n].reports.push(report),
            }
        }
    }

    fn news(&mut self, n: usize, news: News) {
        self.nodes[n].jobs.push(Job::Input(Input::News(news)));
    }

    fn open(&mut self, n: usize, db: DatabaseId) {
        let news = self.nodes[n].engine.open(db);
        self.input(n, Input::News(news));
    }

    fn put(&mut self, n: usize, db: DatabaseId, key: &str, len: usize) {
        let (_, news) = self.nodes[n].engine.put(db, key, &vec![7; len]);
        self.news(n, news);
    }

    fn truncate(&mut self, n: usize, db: DatabaseId, through: u64) {
        if let Some(news) = self.nodes[n].engine.truncate(db, through) {
            self.news(n, news);
        }
    }

    /// Lets time pass, and whatever happens in it.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while self.step() {}
            match self.nodes.iter().filter_map(|node| node.machine.wake()).min() {
                Some(at) if at < end => {
                    self.now = at.max(self.now);
                    (0..self.nodes.len()).for_each(|n| self.input(n, Input::Tick));
                }
                _ => break,
            }
        }
        self.now = end;
    }

    /// Deletes a key, if there is anything at it.
    fn delete(&mut self, n: usize, db: DatabaseId, key: &str) {
        if let Some(news) = self.nodes[n].engine.delete(db, key) {
            self.news(n, news);
        }
    }

    fn connect(&mut self, a: usize, b: usize) {
        let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
        self.nodes[a].links.insert(id_b, VecDeque::new());
        self.nodes[b].links.insert(id_a, VecDeque::new());
        self.input(a, Input::PeerUp(id_b));
        self.input(b, Input::PeerUp(id_a));
    }

    fn disconnect(&mut self, a: usize, b: usize) {
        let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
        self.nodes[a].links.remove(&id_b);
        self.nodes[b].links.remove(&id_a);
        self.input(a, Input::PeerDown(id_b));
        self.input(b, Input::PeerDown(id_a));
    }

    /// The process dies and starts again: the store stays, everything else is new.
    fn restart(&mut self, n: usize, databases: &[DatabaseId]) {
        for other in 0..self.nodes.len() {
            if other != n && self.nodes[other].links.contains_key(&self.nodes[n].id) {
                self.disconnect(n, other);
            }
        }
        let seed = u8::try_from(n).unwrap() + 100;
        let store = std::mem::take(&mut self.nodes[n].engine.store);
        self.nodes[n].engine = ToyEngine::new(seed);
        self.nodes[n].engine.store = store;
        self.nodes[n].boots += 1;
        let boot = self.nodes[n].boots * 100 + u64::from(seed);
        self.nodes[n].machine = SyncMachine::new(self.nodes[n].id, boot);
        self.nodes[n].jobs.clear();
        self.nodes[n].views.clear();
        for db in databases {
            self.open(n, *db);
            self.nodes[n].jobs.push(Job::Join(*db));
        }
    }

    fn job(&mut self, n: usize, job: Job) {
        match job {
            Job::Input(input) => self.input(n, input),
            Job::Deliver(session, db, from, blocks, bytes) => {
                let source = Source(u64::from(from.to_bytes()[10]));
                let (delivery, news) = self.nodes[n].engine.deliver(db, blocks, source);
                if let Some(news) = news {
                    self.news(n, news);
                }
                self.input(n, Input::Delivered(session, bytes, Some(delivery)));
            }
            Job::Read(session, db, from, max_bytes, skip) => {
                let engine = &self.nodes[n].engine;
                let from = match from {
                    ReadFrom::Revision(revision) => revision,
                    ReadFrom::Lowest(dots) => dots.iter().filter_map(|dot| engine.revision_of(&db, dot)).min().unwrap_or(1),
                };
                let chunk = engine.read_log(&db, from, max_bytes, &|dot| skip.covers(dot));
                self.nodes[n].jobs.push(Job::HaveRead(session, chunk));
            }
            Job::OpenView(id, db) => {
                let view = PlainView(self.nodes[n].engine.store.clone(), db);
                let opened = view.opened(id).ok().filter(|_| self.snapshots);
                if opened.is_some() {
                    self.nodes[n].views.insert(id, view);
                }
                self.input(n, Input::ViewOpened(id, opened));
            }
            Job::ReadView(id, at) => {
                // Closed meanwhile, perhaps.
                let Some(PlainView(store, db)) = self.nodes[n].views.get(&id) else { return };
                let view = store.view(db).unwrap();
                let chunk = read_view(&view, &view.state().unwrap(), &at, self.chunk_bytes).ok();
                self.input(n, Input::ViewRead(id, at, chunk));
            }
            Job::Stage(db, id, write) => {
                self.nodes[n].engine.stage(db, write.clone());
                self.nodes[n].jobs.push(Job::Join(db));
                // The engine's thread may join before its answer has come.
                self.nodes[n].jobs.push(Job::Input(Input::Staged(db, id, Some(write))));
            }
            Job::Join(db) => {
                if let Some(news) = self.nodes[n].engine.join_piece(db) {
                    self.nodes[n].jobs.push(Job::Join(db));
                    for news in news {
                        self.news(n, news);
                    }
                }
            }
            Job::Range(reader, db, task) => {
                let read = read_range(&self.nodes[n].engine.store.view(&db).unwrap(), &task).ok();
                self.input(n, Input::RangeRead(reader, db, read));
            }
            Job::HaveRead(session, chunk) => {
                self.input(n, Input::LogRead(session, Some(chunk)));
            }
        }
    }

    /// One thing that can happen now, chosen at random; `false` when there is none.
    fn step(&mut self) -> bool {
        let mut choices = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            choices.extend((!node.jobs.is_empty()).then_some((n, None)));
            choices.extend(node.links.iter().filter(|(_, link)| !link.is_empty()).map(|(from, _)| (n, Some(*from))));
        }
        if choices.is_empty() {
            return false;
        }
        let (n, from) = choices[self.random(choices.len())];
        match from {
            None => {
                // In order, as engine and store answer, but any of the two first: a read may pass a delivery.
                let which = self.random(2).min(self.nodes[n].jobs.len() - 1);
                let same = matches!(
                    (&self.nodes[n].jobs[0], &self.nodes[n].jobs[which]),
                    (Job::Input(_), Job::Input(_)) | (Job::Deliver(..), Job::Deliver(..))
                );
                let job = self.nodes[n].jobs.remove(if same { 0 } else { which });
                self.job(n, job);
            }
            Some(from) => {
                let frame = self.nodes[n].links.get_mut(&from).unwrap().pop_front().unwrap();
                let size = frame.size_hint();
                let written = matches!(frame, Frame::Blocks { .. });
                self.receive(n, from, &frame);
                if written {
                    let sender = self.index(&from);
                    let to = self.nodes[n].id;
                    self.input(sender, Input::Written(to, size));
                }
            }
        }
        true
    }

    fn receive(&mut self, n: usize, from: PeerId, frame: &Frame) {
        let input = match Frame::decode(frame.encode()).unwrap() {
            Frame::Blocks { database, blocks } => {
                // Signatures are not what these tests are about.
                let blocks = blocks.into_iter().map(|bytes| Block::from_store(bytes).unwrap()).collect();
                Input::Blocks(from, database, blocks)
            }
            Frame::Snapshot(db, SnapshotFrame::Chunk { name, hash, bytes }) => match Chunk::verify(&db, hash, bytes) {
                Ok(chunk) => Input::Chunk(from, db, name, chunk),
                Err(error) => Input::Garbage(from, error.to_string()),
            },
            frame => Input::Frame(from, frame),
        };
        self.input(n, input);
    }

    /// Runs until nothing happens before the slow comparisons.
    fn settle(&mut self) {
        for _ in 0..2_000_000 {
            if self.step() {
                continue;
            }
            let wake = self.nodes.iter().filter_map(|node| node.machine.wake()).min();
            match wake {
                Some(at) if at < self.now + MAX_SYNC_GAP / 4 => {
                    self.now = at.max(self.now);
                    (0..self.nodes.len()).for_each(|n| self.input(n, Input::Tick));
                }
                _ => return,
            }
        }
        panic!("never quiet");
    }

    fn equal(&self, db: &DatabaseId) -> bool {
        let all: Vec<_> = self.nodes.iter().map(|node| node.engine.replica(db)).collect();
        all.iter().all(|replica| {
            replica.vv() == all[0].vv() && replica.heads() == all[0].heads() && replica.meta().digest == all[0].meta().digest
        })
    }

    fn assert_equal(&self, db: &DatabaseId) {
        let vvs: Vec<_> = self.nodes.iter().map(|node| node.engine.replica(db).vv()).collect();
        assert!(self.equal(db), "{vvs:?}");
        for node in &self.nodes {
            assert_eq!(node.engine.replica(db).pending(), (0, 0));
            assert!(node.cut.is_empty(), "{:?}", node.cut);
        }
    }
}

#[test]
fn d13_opening_and_connecting_syncs_without_any_write() {
    let mut world = World::of(2);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    world.put(0, db, "/a", 10);
    world.put(1, db, "/b", 10);
    world.settle();
    assert!(!world.equal(&db));
    world.connect(0, 1);
    world.settle();
    world.assert_equal(&db);
    assert!(world.now < Duration::from_secs(2), "{:?}", world.now);
    for (n, other) in [(0, 1), (1, 0)] {
        assert_eq!(world.nodes[n].reports, [Report::Synced(world.nodes[other].id, db)]);
        let durable = world.nodes[n].machine.durable(&world.nodes[other].id, &db);
        assert_eq!(durable, Some(&world.nodes[n].engine.replica(&db).vv()));
    }
}

#[test]
fn d09_half_fetched_history_is_merged_once_the_missing_part_comes() {
    for seed in 0..20 {
        let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..2).for_each(|n| world.open(n, db));
        let blocks: Vec<Block> = (0..20).map(|i| world.nodes[0].engine.put(db, &format!("/k{}", i % 6), b"v").0).collect();
        world.open(0, db);
        // All but one of the middle have come; what builds on it waits.
        let missing = 3 + usize::try_from(seed).unwrap() % 10;
        let some = blocks.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, block)| block.clone()).collect();
        let (delivery, news) = world.nodes[1].engine.deliver(db, some, Source(7));
        assert_eq!((delivery.merged, delivery.held), (missing, 19 - missing));
        if let Some(news) = news {
            world.news(1, news);
        }
        world.connect(0, 1);
        world.settle();
        world.assert_equal(&db);
    }
}

#[test]
fn a_live_feed_carries_each_new_block_once_and_not_back() {
    let mut world = World::of(2);
    let db = database("d");
    // Else what is on disk at the peer would tell what it has.
    world.nodes.iter_mut().for_each(|node| node.engine.lazy = true);
    (0..2).for_each(|n| world.open(n, db));
    world.connect(0, 1);
    world.settle();
    world.nodes.iter_mut().for_each(|node| node.sent.clear());
    for i in 0..20 {
        world.put(0, db, &format!("/k{i}"), 10);
        while world.step() {}
    }
    assert!(world.equal(&db));
    assert_eq!(world.nodes[0].sent.get("blocks"), Some(&20));
    assert_eq!(world.nodes[1].sent.get("blocks"), None);
    assert_eq!(world.nodes[0].sent.get("have"), None);
}

#[test]
fn a_write_while_replicas_are_compared_needs_no_second_comparison() {
    for seed in 0..100 {
        let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..2).for_each(|n| world.open(n, db));
        world.connect(0, 1);
        for _ in 0..seed % 20 {
            world.step();
        }
        (0..2).for_each(|n| world.put(n, db, "/k", 1));
        // No time passes.
        while world.step() {}
        world.assert_equal(&db);
    }
}

#[test]
fn d01_a_catch_up_cut_anywhere_goes_on_after_the_fault_without_a_write() {
    for steps in [20, 200, 500, 1_500] {
        for kill in [false, true] {
            let mut world = World::of(2);
            let db = database("d");
            (0..2).for_each(|n| world.open(n, db));
            for i in 0..400 {
                world.put(0, db, &format!("/k{i}"), 2_000);
            }
            world.connect(0, 1);
            for _ in 0..steps {
                world.step();
            }
            if kill {
                world.restart(1, &[db]);
            } else {
                world.disconnect(0, 1);
            }
            world.settle();
            assert!(!world.equal(&db) || steps > 1_000);
            world.connect(0, 1);
            world.settle();
            world.assert_equal(&db);
        }
    }
}

#[test]
fn d06_two_heads_at_once_end_as_one_head() {
    for seed in 0..50 {
        let mut world = World::new((1..=3).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..3).for_each(|n| world.open(n, db));
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            world.connect(a, b);
        }
        world.settle();
        world.put(0, db, "/a", 10);
        for _ in 0..seed {
            world.step();
        }
        world.put(0, db, "/a", 10);
        world.settle();
        world.assert_equal(&db);
        assert_eq!(world.nodes[2].engine.replica(&db).heads().len(), 1);
    }
}

#[test]
fn d12_a_restarted_node_keeps_and_spreads_its_own_last_write() {
    let mut world = World::of(2);
    let dbs = [database("x"), database("y"), database("z")];
    for db in dbs {
        (0..2).for_each(|n| world.open(n, db));
    }
    world.connect(0, 1);
    for db in dbs {
        (0..50).for_each(|i| world.put(i % 2, db, &format!("/k{i}"), 100));
    }
    world.settle();
    world.disconnect(0, 1);
    world.put(0, dbs[0], "/own", 1);
    let own = world.nodes[0].engine.replica(&dbs[0]).vv();
    world.restart(0, &[]);
    world.connect(0, 1);
    world.put(1, dbs[0], "/k1", 5);
    while world.step() {}
    for db in dbs {
        world.open(0, db);
    }
    world.settle();
    for db in dbs {
        world.assert_equal(&db);
    }
    assert!(world.nodes[1].engine.replica(&dbs[0]).vv().dominates(&own));
}

/// Hands a block to a node as gossip does.
fn gossip(world: &mut World, n: usize, db: DatabaseId, block: Block) {
    let (_, news) = world.nodes[n].engine.deliver(db, vec![block], Source(9));
    if let Some(news) = news {
        world.news(n, news);
    }
}

#[test]
fn d18_blocks_that_cannot_merge_are_asked_for_without_any_write() {
    let tight = PendingLimits { blocks: 3, bytes: 1 << 20, source_bytes: 1 << 20, source_blocks: 2 };
    let mut world = World::new(vec![ToyEngine::new(1), ToyEngine::new(2).with_limits(tight)], 3);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    world.connect(0, 1);
    // So that the writer is known.
    world.put(0, db, "/first", 1);
    world.settle();
    // Thirty blocks whose feed is lost, by pretending that they are on their way; then one that arrives.
    for i in 0..30 {
        let (block, news) = world.nodes[0].engine.put(db, &format!("/k{i}"), b"v");
        let peer = world.nodes[1].id;
        let id = world.nodes[0].machine.peers[&peer].sessions[&db];
        world.nodes[0].machine.sessions.get_mut(&id).unwrap().assumed.raise(block.dot().replica, block.dot().seq);
        world.news(0, news);
    }
    world.put(0, db, "/last", 1);
    while world.step() {}
    assert_eq!(world.nodes[1].engine.replica(&db).pending().0, 1);
    world.settle();
    world.assert_equal(&db);
}

#[test]
fn r20_an_announcement_of_what_was_never_seen_brings_everything() {
    let mut world = World::of(2);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    world.connect(0, 1);
    world.settle();
    for i in 0..50 {
        let (block, news) = world.nodes[0].engine.put(db, &format!("/k{i}"), b"v");
        let peer = world.nodes[1].id;
        let id = world.nodes[0].machine.peers[&peer].sessions[&db];
        world.nodes[0].machine.sessions.get_mut(&id).unwrap().assumed.raise(block.dot().replica, block.dot().seq);
        world.news(0, news);
    }
    world.settle();
    assert!(!world.equal(&db));
    let (from, hash) = (world.nodes[0].id, world.nodes[0].engine.replica(&db).vv().hash());
    world.input(1, Input::StartSync(db, from, Some(hash)));
    world.settle();
    world.assert_equal(&db);
}

#[test]
fn d20_gossip_and_feed_and_writes_at_once_give_one_state() {
    for seed in 0..20 {
        let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..2).for_each(|n| world.open(n, db));
        world.connect(0, 1);
        for i in 0..60 {
            let (block, news) = world.nodes[0].engine.put(db, &format!("/k{}", i % 5), b"v");
            world.news(0, news);
            if i % 3 == 0 {
                gossip(&mut world, 1, db, block);
            }
            world.put(1, db, &format!("/k{}", i % 5), 3);
            for _ in 0..i % 7 {
                world.step();
            }
        }
        world.settle();
        world.assert_equal(&db);
    }
}

#[test]
fn g03_blocks_larger_than_credit_and_frame_pass_one_at_a_time() {
    for seed in 0..20 {
        let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..2).for_each(|n| world.open(n, db));
        for (i, len) in [300_000, 10, 1 << 20, 262_000, 262_144, 70_000, 65_536].into_iter().enumerate() {
            world.put(0, db, &format!("/k{i}"), len);
        }
        world.connect(0, 1);
        world.settle();
        world.assert_equal(&db);
    }
}

#[test]
fn r02_a_database_that_is_never_merged_stops_no_other_and_memory_is_bounded() {
    let mut world = World::of(2);
    let (slow, quick) = (database("slow"), database("quick"));
    for db in [slow, quick] {
        (0..2).for_each(|n| world.open(n, db));
        (0..300).for_each(|i| world.put(0, db, &format!("/k{i}"), 10_000));
    }
    world.connect(0, 1);
    let mut held = Vec::new();
    for _ in 0..50_000 {
        // Node 1's engine takes nothing of the slow database.
        let jobs = std::mem::take(&mut world.nodes[1].jobs);
        for job in jobs {
            match job {
                Job::Deliver(_, db, ..) if db == slow => held.push(job),
                job => world.nodes[1].jobs.push(job),
            }
        }
        if !world.step() {
            break;
        }
    }
    assert_eq!(world.nodes[0].engine.replica(&quick).vv(), world.nodes[1].engine.replica(&quick).vv());
    let bytes: u64 = held.iter().map(|job| if let Job::Deliver(_, _, _, _, bytes) = job { *bytes } else { 0 }).sum();
    assert!(bytes > 200_000 && bytes <= SYNC_CREDIT_BYTES, "{bytes}");
    assert!(world.nodes[0].most_queued <= PEER_QUEUE_BYTES + 128 * 1024);
    world.nodes[1].jobs.extend(held);
    world.settle();
    world.assert_equal(&slow);
}

#[test]
fn only_the_nearest_peers_are_fed_and_the_others_are_equal_after_an_announcement() {
    let mut world = World::of(11);
    let db = database("d");
    (0..11).for_each(|n| world.open(n, db));
    (1..11).for_each(|n| world.connect(0, n));
    world.settle();
    world.put(0, db, "/k", 1);
    while world.step() {}
    let behind: Vec<usize> = (1..11).filter(|n| world.nodes[*n].engine.replica(&db).vv().is_empty()).collect();
    assert_eq!(behind.len(), 10 - 8);
    let (from, hash) = (world.nodes[0].id, world.nodes[0].engine.replica(&db).vv().hash());
    for n in behind {
        world.input(n, Input::StartSync(db, from, Some(hash)));
    }
    world.settle();
    world.assert_equal(&db);
}

#[test]
fn closing_and_opening_while_frames_fly_starts_over() {
    for seed in 0..40 {
        let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..2).for_each(|n| world.open(n, db));
        (0..100).for_each(|i| world.put(i % 2, db, &format!("/k{i}"), 3_000));
        world.connect(0, 1);
        for i in 0..6 {
            for _ in 0..30 {
                world.step();
            }
            for n in 0..2 {
                if (seed >> (2 * i + n)) & 1 == 1 {
                    let n = usize::try_from(n).unwrap();
                    world.input(n, Input::News(News::Closed(db)));
                    world.nodes[n].jobs.retain(|job| matches!(job, Job::Read(..) | Job::HaveRead(..)));
                    world.open(n, db);
                }
            }
        }
        world.settle();
        world.assert_equal(&db);
    }
}
