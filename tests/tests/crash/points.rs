//! A process that ends at any write, sync or send, with and without what it had not synced, and starts again.
//!
//! After each end: the store opens by itself; its rows, heads, vector and digest are what a fold over its blocks gives;
//! everything confirmed is there; no dot names two blocks, here or at a peer; and both become equal again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crdt::testing::Reference;
use crdt::{Block, BlockHash, Dot, KeyRange, LogEntry, Prefix, Projection, View as _};
use kvdb::store::RocksStore;
use kvdb::{Database, DatabaseId, Durability, Key, NetworkOptions, Node as Library, NodeOptions, Order, StoreOptions};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::sick::{At, Disk, When};
use super::{ask, at, rounds};
use crate::cluster::{Node, PATIENCE};

const WRITERS: u64 = 3;
const KEYS: u64 = 12;
/// A new pair of nodes after so many ends, so that folding all blocks stays quick.
const LIFE: u64 = 20;

/// What each key may hold: the last value that must be there, if any, and what was tried after it. `None` is a delete.
type Candidates = BTreeMap<String, Vec<Option<String>>>;

/// Every block that was ever seen, by name.
type Seen = BTreeMap<Dot, BlockHash>;

/// The other node: never ends, never loses anything.
struct Peer {
    node: Library,
    db: Database,
    dir: tempfile::TempDir,
}

impl Peer {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let network = NetworkOptions { listen, rebroadcast_interval: Duration::from_secs(1), ..NetworkOptions::default() };
        let options = NodeOptions::new(dir.path()).durability(Durability::Buffered).network(network);
        let node = Library::open(options).await.unwrap();
        let db = node.database(&"demo".parse().unwrap()).await.unwrap();
        Self { node, db, dir }
    }

    fn port(&self) -> u16 {
        let address = self.node.listen_addresses().first().unwrap().to_string();
        address.rsplit('/').next().unwrap().parse().unwrap()
    }
}

/// Writes one after the other until the node is gone; what it must keep, and what it may have.
fn write(http: u16, writer: u64, round: u64, keeps_buffered: bool, stop: &AtomicBool) -> Candidates {
    let mut candidates = Candidates::new();
    for n in 0.. {
        let key = format!("/w/{writer}/{}", n % KEYS);
        let sync = (n + writer).is_multiple_of(2);
        let value = (n % 7 != 6).then(|| format!("{round} {n} {}", "x".repeat(usize::try_from(n % 5 * 300).unwrap())));
        let path = format!("{}?durability={}", at(&key), if sync { "sync" } else { "buffered" });
        let tried = candidates.entry(key).or_default();
        tried.push(value.clone());
        let answer = match &value {
            Some(value) => ask(http, "PUT", &path, value.as_bytes()),
            None => ask(http, "DELETE", &path, b""),
        };
        match answer {
            Some((200, _)) if sync || keeps_buffered => {
                // Marks what is certain: nothing before it counts any more.
                let last = tried.pop().unwrap_or_default();
                tried.clear();
                tried.extend([Some(CERTAIN.to_owned()), last]);
            }
            Some((200, _)) => {}
            Some((status, body)) => panic!("{status} {body}"),
            None => return candidates,
        }
        if stop.load(Ordering::Relaxed) {
            return candidates;
        }
    }
    candidates
}

/// Stands before a value that replaces all earlier candidates.
const CERTAIN: &str = "\0certain";

fn take_in(all: &mut Candidates, new: Candidates) {
    for (key, tried) in new {
        let values = all.entry(key).or_insert_with(|| vec![None]);
        for value in tried {
            if value.as_deref() == Some(CERTAIN) {
                values.clear();
            } else {
                values.push(value);
            }
        }
    }
}

/// The blocks of a closed store, with everything that must hold of any store.
fn inspect(path: &std::path::Path, seen: &mut Seen) -> (DatabaseId, Reference) {
    let store = RocksStore::open(path, &StoreOptions::default()).unwrap_or_else(|error| panic!("cannot be opened: {error}"));
    let id = DatabaseId::of(&"demo".parse().unwrap(), 0);
    let mut blocks: Vec<Block> = Vec::new();
    // A store that ended before its database was made has none.
    let Ok(view) = store.snapshot(&id) else { return (id, Reference::fold([])) };
    let mut revisions = 0;
    for entry in view.log(1) {
        let LogEntry { revision, dot, .. } = entry.unwrap();
        revisions += 1;
        assert_eq!(revision, revisions, "a gap in the log");
        let stored = view.block(&dot).unwrap().unwrap();
        let block = Block::from_store(stored.bytes).unwrap();
        assert_eq!((block.dot(), stored.revision), (dot, revision));
        blocks.push(block);
    }
    for block in &blocks {
        let known = seen.entry(block.dot()).or_insert(block.hash());
        assert_eq!(*known, block.hash(), "{} names two blocks", block.dot());
    }
    let reference = Reference::fold(&blocks);
    let state = view.state().unwrap();
    assert_eq!(state.meta.digest, reference.digest, "the digest is not that of the blocks");
    assert_eq!(state.heads, reference.heads);
    assert_eq!(state.meta.revision, revisions);
    let vv: BTreeMap<_, _> = state.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
    assert_eq!(vv, reference.vv.iter().collect());
    let mut rows = BTreeMap::new();
    for row in view.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows) {
        let (key, row) = row.unwrap();
        let mut siblings = row.siblings().to_vec();
        for sibling in siblings.iter_mut().filter(|sibling| sibling.value.is_none()) {
            sibling.value = view.value(&key, &sibling.dot).unwrap();
        }
        rows.insert(key, siblings);
    }
    assert_eq!(rows, reference.rows, "the rows are not those of the blocks");
    assert_eq!(state.meta.keys, reference.rows.len() as u64);
    (id, reference)
}

fn check_candidates(candidates: &Candidates, reference: &Reference) {
    for (key, allowed) in candidates {
        let row = reference.rows.get(&Key::parse(key).unwrap());
        let value = row.and_then(|siblings| siblings.first()?.value.clone());
        let value = value.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        assert!(allowed.contains(&value), "{key} is {value:?}, allowed are {allowed:?}");
    }
}

/// One life of two nodes: the first ends again and again.
struct Life {
    node: Node,
    disk: Disk,
    peer: Peer,
    seen: Seen,
    candidates: Candidates,
    random: StdRng,
    ends: BTreeMap<String, u64>,
}

impl Life {
    /// Starts the node, lets it end at a place drawn at random while everybody writes, and looks at what is left.
    fn round(&mut self, round: u64) {
        let points = [
            (At::Write, When::Before),
            (At::Write, When::Torn),
            (At::Write, When::After),
            (At::Sync, When::Before),
            (At::Sync, When::After),
            (At::Send, When::Before),
            (At::Send, When::Torn),
            (At::Send, When::After),
        ];
        let (point, when) = points[self.random.random_range(0..points.len())];
        let power = self.random.random_range(0..3);
        let most = if self.random.random_range(0..3) == 0 { 8 } else { 150 };
        let count = self.random.random_range(1..most);
        // Some end before they have begun.
        let early = self.random.random_range(0..4) == 0;
        let bootstrap = [self.peer.port()];
        self.disk.heal();
        if early {
            self.disk.end_at(point, when, count, power);
        }
        self.node.spawn(&bootstrap);
        self.up_or_gone();
        if !early {
            self.disk.end_at(point, when, count, power);
        }
        let ended = self.write_until_it_ends(round, power == 0);
        let label = format!("{point:?} {when:?} power {power}{}", if early { " early" } else { "" });
        *self.ends.entry(if ended { label } else { "from outside".to_owned() }).or_default() += 1;
        let (_, reference) = inspect(&self.node.dir.path().join("data/store"), &mut self.seen);
        check_candidates(&self.candidates, &reference);
    }

    fn up_or_gone(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.node.child.as_mut().unwrap().try_wait().unwrap().is_none() && self.node.get("/healthz").is_none() {
            assert!(Instant::now() < end, "neither up nor gone:\n{}", self.node.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it ended by itself.
    fn write_until_it_ends(&mut self, round: u64, keeps_buffered: bool) -> bool {
        let stop = AtomicBool::new(false);
        let (http, stopped) = (self.node.http, &stop);
        let child = self.node.child.as_mut().unwrap();
        let mut ended = false;
        let written = std::thread::scope(|scope| {
            let writer = |writer| scope.spawn(move || write(http, writer, round, keeps_buffered, stopped));
            let writers: Vec<_> = (0..WRITERS).map(writer).collect();
            let end = Instant::now() + Duration::from_secs(15);
            let mut n = 0;
            while !ended && Instant::now() < end {
                n += 1;
                let key = Key::parse(&format!("/peer/{}", n % KEYS)).unwrap();
                // By tokio itself: under another executor its budget runs out, and then nothing is ever ready.
                let put = self.peer.db.put(&key, format!("{round} {n}"));
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(put)).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                ended = child.try_wait().unwrap().is_some();
                if writers.iter().all(std::thread::ScopedJoinHandle::is_finished) && !ended {
                    // Not up yet, or ending.
                    std::thread::sleep(Duration::from_millis(100));
                    ended = child.try_wait().unwrap().is_some();
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            if !ended {
                child.kill().unwrap();
            }
            child.wait().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        self.node.child = None;
        for new in written {
            take_in(&mut self.candidates, new);
        }
        ended
    }

    /// Healthy again, both become equal, and what the peer has is what the node has.
    async fn heal(&mut self) {
        self.disk.heal();
        self.node.spawn(&[self.peer.port()]);
        let end = Instant::now() + PATIENCE;
        loop {
            let stats = self.peer.db.stats().unwrap();
            if self.node.state() == Some((stats.keys, stats.digest.to_string())) {
                break;
            }
            assert!(Instant::now() < end, "not equal: {:?} and {stats:?}\n{}", self.node.state(), self.node.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.node.kill();
        let (_, reference) = inspect(&self.node.dir.path().join("data/store"), &mut self.seen);
        check_candidates(&self.candidates, &reference);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s06_s07_ended_at_any_write_sync_or_send_nothing_confirmed_is_lost_and_no_dot_names_two_blocks() {
    let cycles = rounds("CYCLES", 30);
    let seed = rounds("SEED", 1);
    let mut done = 0;
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    while done < cycles {
        let mut node = Node::new();
        let Some(disk) = Disk::under(&mut node) else { return };
        let peer = Peer::start().await;
        let random = StdRng::seed_from_u64(seed * 1_000_003 + done);
        let mut life = Life { node, disk, peer, seen: Seen::new(), candidates: Candidates::new(), random, ends: BTreeMap::new() };
        let last = (done + LIFE).min(cycles);
        while done < last {
            life.round(done);
            done += 1;
            if done % 5 == 0 || done == last {
                life.heal().await;
            }
        }
        let Life { peer: Peer { node, db, dir }, mut seen, ends: new, .. } = life;
        drop(db);
        node.close().await.unwrap();
        inspect(&dir.path().join("store"), &mut seen);
        for (label, count) in new {
            *ends.entry(label).or_default() += count;
        }
    }
    println!("{done} ends: {ends:?}");
    let outside = ends.get("from outside").copied().unwrap_or(0);
    assert!(outside * 2 < done, "the disk ended too few of {done}: {ends:?}");
    assert!(ends.keys().collect::<BTreeSet<_>>().len() > 3, "{ends:?}");
}
