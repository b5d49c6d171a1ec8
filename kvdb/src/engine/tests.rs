//! The engine's turn over a store that can be made to fail.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use crdt::testing::{MemoryStore, MemoryStoreError, MemoryView};
use crdt::{
    Block, BlockHash, Change, DatabaseId, DatabaseName, Dot, Durability, Ed25519Signer, Expiry, Key, KeyRange, LocalOp, Order,
    Projection, ReplicaState, RequestId, RequestRecord, Row, Source, Stamp, Store, StoredBlock, View, WallTime, WriteSet,
};

use super::machine::{Engine, Reply, TurnEnv, TurnOutcome, Work};
use super::port::{Delivery, WriteError, Written};

/// Which call of the store fails next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Read,
    Commit,
}

#[derive(Debug, Clone)]
struct FaultyStore {
    inner: MemoryStore,
    fault: Rc<Cell<Fault>>,
    commits: Rc<Cell<(usize, usize)>>,
}

struct FaultyView<'a> {
    inner: MemoryView<'a>,
    fault: Rc<Cell<Fault>>,
}

const FAILURE: MemoryStoreError = MemoryStoreError(DatabaseId([0xff; 32]));

impl Store for FaultyStore {
    type Error = MemoryStoreError;
    type View<'a> = FaultyView<'a>;

    fn view(&self, database: &DatabaseId) -> Result<FaultyView<'_>, MemoryStoreError> {
        Ok(FaultyView { inner: self.inner.view(database)?, fault: Rc::clone(&self.fault) })
    }

    fn commit(&mut self, writes: &[WriteSet], durability: Durability) -> Result<(), MemoryStoreError> {
        if self.fault.get() == Fault::Commit {
            return Err(FAILURE);
        }
        let (commits, syncs) = self.commits.get();
        self.commits.set((commits + 1, syncs + usize::from(durability == Durability::Sync)));
        self.inner.commit(writes, durability)
    }
}

impl View for FaultyView<'_> {
    type Error = MemoryStoreError;
    fn row(&self, key: &Key) -> Result<Row, MemoryStoreError> {
        if self.fault.get() == Fault::Read && key.as_str().contains("bad") {
            return Err(FAILURE);
        }
        self.inner.row(key)
    }
    fn value(&self, key: &Key, dot: &Dot) -> Result<Option<Bytes>, MemoryStoreError> {
        self.inner.value(key, dot)
    }
    fn scan(
        &self,
        range: KeyRange,
        order: Order,
        part: Projection,
    ) -> impl Iterator<Item = Result<(Key, Row), MemoryStoreError>> {
        self.inner.scan(range, order, part)
    }
    fn block_hash(&self, dot: &Dot) -> Result<Option<BlockHash>, MemoryStoreError> {
        self.inner.block_hash(dot)
    }
    fn block(&self, dot: &Dot) -> Result<Option<StoredBlock>, MemoryStoreError> {
        self.inner.block(dot)
    }
    fn log(&self, from: u64) -> impl Iterator<Item = Result<crdt::LogEntry, MemoryStoreError>> {
        self.inner.log(from)
    }
    fn state(&self) -> Result<ReplicaState, MemoryStoreError> {
        self.inner.state()
    }
    fn expired(&self, until: WallTime) -> impl Iterator<Item = Result<(Expiry, Key), MemoryStoreError>> {
        self.inner.expired(until)
    }
    fn oldest_requests(&self) -> impl Iterator<Item = Result<(Stamp, RequestId), MemoryStoreError>> {
        self.inner.oldest_requests()
    }
    fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, MemoryStoreError> {
        self.inner.request(request)
    }
    fn requests(&self, after: Option<RequestId>) -> impl Iterator<Item = Result<(RequestId, RequestRecord), MemoryStoreError>> {
        self.inner.requests(after)
    }
    fn staged(&self) -> Result<Option<crdt::Staged>, MemoryStoreError> {
        self.inner.staged()
    }
    fn staged_chunk(&self, index: u64) -> Result<Option<(Bytes, Bytes)>, MemoryStoreError> {
        self.inner.staged_chunk(index)
    }
    fn built(&self, key: &Key) -> Result<Row, MemoryStoreError> {
        self.inner.built(key)
    }
}

struct Rig {
    engine: Engine<FaultyStore>,
    fault: Rc<Cell<Fault>>,
    commits: Rc<Cell<(usize, usize)>>,
    signer: Ed25519Signer,
    nonce: u64,
}

fn database(name: &str) -> DatabaseId {
    DatabaseId::of(&DatabaseName::parse(name).unwrap(), 0)
}

impl Rig {
    fn new(seed: u8) -> Self {
        let mut inner = MemoryStore::default();
        inner.create(database("one"));
        inner.create(database("two"));
        let fault = Rc::new(Cell::new(Fault::None));
        let commits = Rc::new(Cell::new((0, 0)));
        let store = FaultyStore { inner, fault: Rc::clone(&fault), commits: Rc::clone(&commits) };
        let signer = Ed25519Signer::from_seed([seed; 32]);
        let mut rig = Self { engine: Engine::new(store), fault, commits, signer, nonce: 0 };
        let opened = rig.turn(vec![Work::Open(database("one")), Work::Open(database("two"))]);
        assert_eq!(opened.opened.len(), 2);
        rig
    }

    fn turn(&mut self, works: Vec<Work>) -> TurnOutcome {
        let nonce = &mut self.nonce;
        let mut random = || {
            *nonce += 1;
            *nonce
        };
        self.engine.turn(works, &mut TurnEnv { now: WallTime(1_000_000), signer: &self.signer, random: &mut random })
    }

    fn value(&self, name: &str, key: &str) -> Option<Bytes> {
        let view = self.engine.store().inner.view(&database(name)).unwrap();
        view.row(&Key::parse(key).unwrap()).unwrap().winner(WallTime(1_000_000)).map(|sibling| sibling.value.clone().unwrap())
    }
}

fn put(name: &str, key: &str, value: &str, durability: Durability) -> Work {
    let change = Change::Put { value: Bytes::copy_from_slice(value.as_bytes()), expiry: None };
    let op = LocalOp::new(Key::parse(key).unwrap(), change);
    Work::Write { database: database(name), ops: vec![op], request: None, durability }
}

fn written(reply: &Reply) -> &Result<Written, WriteError> {
    let Reply::Written(result) = reply else { panic!("{reply:?}") };
    result
}

fn delivered(reply: &Reply) -> &Delivery {
    let Reply::Delivered(Ok(delivery)) = reply else { panic!("{reply:?}") };
    delivery
}

fn sealed(outcome: TurnOutcome) -> Vec<Block> {
    outcome.advanced.into_iter().flat_map(|advance| advance.sealed).collect()
}

#[test]
fn a_turn_makes_one_block_for_each_database_one_commit_and_one_sync() {
    let mut rig = Rig::new(1);
    let mut works: Vec<Work> = (0..10).map(|n| put("one", &format!("/k{n}"), "v", Durability::Buffered)).collect();
    works.push(put("two", "/k", "v", Durability::Sync));
    works.push(Work::Sync);
    let outcome = rig.turn(works);
    assert_eq!(rig.commits.get(), (1, 1));
    let dots: Vec<Dot> = outcome.replies[..11].iter().map(|reply| written(reply).as_ref().unwrap().dot.unwrap()).collect();
    assert!(dots[..10].iter().all(|dot| *dot == dots[0]));
    assert_ne!(dots[10].replica, dots[0].replica);
    assert!(matches!(outcome.replies[11], Reply::Done(Ok(()))));
    assert_eq!(outcome.durable.len(), 2, "a sync covers everything of its batch");
    assert_eq!(sealed(outcome).len(), 2);
}

#[test]
fn a_read_error_fails_its_database_only_and_leaves_no_trace() {
    let mut rig = Rig::new(1);
    rig.turn(vec![put("one", "/a", "1", Durability::Buffered)]);
    rig.fault.set(Fault::Read);
    let outcome = rig.turn(vec![
        put("one", "/a", "2", Durability::Buffered),
        put("one", "/bad", "2", Durability::Buffered),
        put("two", "/a", "2", Durability::Buffered),
    ]);
    assert!(matches!(written(&outcome.replies[0]), Err(WriteError::Read { .. })));
    assert!(matches!(written(&outcome.replies[1]), Err(WriteError::Read { .. })));
    assert!(written(&outcome.replies[2]).is_ok());
    assert_eq!(rig.value("one", "/a").unwrap(), "1");
    assert_eq!(rig.value("two", "/a").unwrap(), "2");
    rig.fault.set(Fault::None);
    let before = rig.engine.replica(&database("one")).unwrap().vv();
    let outcome = rig.turn(vec![put("one", "/a", "3", Durability::Buffered)]);
    let dot = written(&outcome.replies[0]).as_ref().unwrap().dot.unwrap();
    assert_eq!(dot.seq, 1, "a new writer after a commit that did not happen");
    assert_eq!(before.get(&dot.replica), 0);
    assert_eq!(rig.value("one", "/a").unwrap(), "3");
}

#[test]
fn a_failed_commit_lets_nothing_out_and_poisons() {
    let mut rig = Rig::new(1);
    rig.fault.set(Fault::Commit);
    let outcome = rig.turn(vec![put("one", "/a", "1", Durability::Sync), Work::Sync]);
    assert!(matches!(written(&outcome.replies[0]), Err(WriteError::Unknown { .. })));
    assert!(matches!(outcome.replies[1], Reply::Done(Err(WriteError::Unknown { .. }))));
    assert!(outcome.advanced.is_empty() && outcome.durable.is_empty());
    rig.fault.set(Fault::None);
    let outcome = rig.turn(vec![put("one", "/a", "2", Durability::Buffered), Work::Sync]);
    assert!(matches!(written(&outcome.replies[0]), Err(WriteError::Poisoned { .. })));
    assert!(matches!(outcome.replies[1], Reply::Done(Err(WriteError::Poisoned { .. }))));
    assert_eq!(rig.value("one", "/a"), None);
}

#[test]
fn each_delivery_is_told_what_became_of_its_own_blocks() {
    let mut author = Rig::new(1);
    let blocks: Vec<Block> =
        (0..4).flat_map(|n| sealed(author.turn(vec![put("one", &format!("/k{n}"), "v", Durability::Buffered)]))).collect();
    let mut rig = Rig::new(2);
    let from = |range: &[usize], source| {
        let blocks = range.iter().map(|index| blocks[*index].clone()).collect();
        Work::Blocks { database: database("one"), blocks, source: Source(source) }
    };
    let outcome = rig.turn(vec![
        from(&[1, 2], 1),
        put("one", "/own", "v", Durability::Buffered),
        from(&[0], 2),
        from(&[0, 3], 3),
        from(&[3], 4),
    ]);
    assert_eq!(*delivered(&outcome.replies[0]), Delivery { held: 2, ..Delivery::default() });
    assert_eq!(*delivered(&outcome.replies[2]), Delivery { merged: 3, ..Delivery::default() });
    assert_eq!(*delivered(&outcome.replies[3]), Delivery { merged: 1, duplicates: 1, ..Delivery::default() });
    assert_eq!(*delivered(&outcome.replies[4]), Delivery { duplicates: 1, ..Delivery::default() });
    assert!(outcome.owes_sync);
    assert!(rig.turn(vec![Work::Sync]).durable.contains_key(&database("one")));
    assert!(!rig.turn(vec![]).owes_sync);
}

#[test]
fn d20_a_writer_s_parents_are_exactly_the_heads_at_its_commit() {
    let mut author = Rig::new(1);
    let mut rig = Rig::new(2);
    for round in 0..50 {
        let remote = sealed(author.turn(vec![put("one", "/k", &format!("a{round}"), Durability::Buffered)]));
        if round % 2 == 1 {
            // The store refuses to read: the turn is dropped, and the retry must see the heads of its own time.
            rig.fault.set(Fault::Read);
            let failed = rig.turn(vec![
                Work::Blocks { database: database("one"), blocks: remote.clone(), source: Source(1) },
                put("one", "/bad", "x", Durability::Buffered),
            ]);
            assert!(written(&failed.replies[1]).is_err());
            rig.fault.set(Fault::None);
        }
        let heads: Vec<Dot> = rig.engine.replica(&database("one")).unwrap().heads().iter().map(|(dot, _)| *dot).collect();
        let own = sealed(rig.turn(vec![put("one", "/k", &format!("b{round}"), Durability::Buffered)]));
        let mut parents: Vec<Dot> = own[0].parents().iter().map(|parent| parent.dot).collect();
        parents.sort();
        assert_eq!(parents, heads);
        rig.turn(vec![Work::Blocks { database: database("one"), blocks: remote, source: Source(1) }]);
        author.turn(vec![Work::Blocks { database: database("one"), blocks: own, source: Source(2) }]);
    }
    let (a, b) = (author.engine.replica(&database("one")).unwrap(), rig.engine.replica(&database("one")).unwrap());
    assert_eq!((a.vv(), a.meta().digest, a.heads()), (b.vv(), b.meta().digest, b.heads()));
}

#[test]
fn work_for_a_database_that_is_not_open_is_refused() {
    let mut rig = Rig::new(1);
    let outcome = rig.turn(vec![put("one", "/a", "1", Durability::Buffered), Work::Close(database("one"))]);
    assert!(written(&outcome.replies[0]).is_ok(), "what waits is done before the close");
    assert_eq!(outcome.closed, [database("one")]);
    let outcome = rig.turn(vec![put("one", "/a", "1", Durability::Buffered)]);
    assert!(matches!(written(&outcome.replies[0]), Err(WriteError::Closed)));
}

#[test]
fn news_of_an_earlier_sync_that_come_late_take_nothing_back() {
    let desk = super::news::NewsDesk::default();
    let mut feed = desk.feed();
    let replica = crdt::ReplicaId([1; 16]);
    for seq in [6, 5] {
        let covered = [(database("one"), [(replica, seq)].into())].into();
        desk.put(|gathering| gathering.synced(&covered));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let news = runtime.block_on(feed.next()).unwrap();
    assert!(matches!(&news[..], [super::port::News::Advanced(_, progress)] if progress.durable == [(replica, 6)]), "{news:?}");
}

#[test]
fn what_a_failed_sync_did_not_cover_is_not_called_durable() {
    let mut author = Rig::new(1);
    let blocks = sealed(author.turn(vec![put("one", "/k", "v", Durability::Buffered)]));
    let mut rig = Rig::new(2);
    rig.turn(vec![Work::Blocks { database: database("one"), blocks, source: Source(1) }]);
    let owed = rig.engine.unsynced();
    assert_eq!(owed.len(), 1);
    // The sync that was begun has not ended, or has failed: closing and opening must not forget the debt.
    rig.turn(vec![Work::Close(database("one"))]);
    rig.turn(vec![Work::Open(database("one"))]);
    assert!(rig.engine.durable(&database("one")).is_empty());
    rig.engine.synced(owed.clone());
    assert_eq!(rig.engine.durable(&database("one")).len(), 1);
}

/// A store whose syncs wait until the gate opens.
#[derive(Clone)]
struct GatedStore {
    inner: MemoryStore,
    gate: std::sync::Arc<std::sync::Mutex<()>>,
}

impl Store for GatedStore {
    type Error = MemoryStoreError;
    type View<'a> = MemoryView<'a>;

    fn view(&self, database: &DatabaseId) -> Result<MemoryView<'_>, MemoryStoreError> {
        self.inner.view(database)
    }

    fn commit(&mut self, writes: &[WriteSet], durability: Durability) -> Result<(), MemoryStoreError> {
        drop(self.gate.lock().unwrap());
        self.inner.commit(writes, durability)
    }
}

#[test]
fn s12_what_the_store_refuses_is_told_while_a_turn_waits_for_the_disk() {
    let store = GatedStore { inner: MemoryStore::default(), gate: std::sync::Arc::default() };
    let gate = std::sync::Arc::clone(&store.gate);
    let handle = super::EngineHandle::start(store, std::sync::Arc::new(Ed25519Signer::from_seed([1; 32]))).unwrap();
    let closed = gate.lock().unwrap();
    let (waiting, asking) = (handle.clone(), handle.clone());
    let synced = std::thread::spawn(move || futures::executor::block_on(waiting.sync()));
    std::thread::sleep(std::time::Duration::from_millis(100));
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send((asking.poison(), asking.waiting_bytes())));
    assert_eq!(answered.recv_timeout(std::time::Duration::from_secs(10)).unwrap().0, None);
    assert!(!synced.is_finished(), "the turn does not wait for the disk, so that this shows nothing");
    drop(closed);
    synced.join().unwrap().unwrap();
    handle.stop();
}
