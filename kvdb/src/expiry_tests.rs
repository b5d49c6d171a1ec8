//! Who deletes what has expired, and what exactly.

use std::collections::BTreeMap;

use bytes::Bytes;
use crdt::testing::{FakeSigner, MemoryStore};
use crdt::{
    DatabaseName, Durability, Effect, Env, Expiry, Input, LocalWrite, OpOutcome, PendingLimits, Replica, Row, Step, Store, Token,
};

use super::*;

fn peer(seed: u8) -> PeerId {
    crate::net::gossip::peer_of(&crdt::Signer::public_key(&crdt::Ed25519Signer::from_seed([seed; 32]))).unwrap()
}

fn database(name: &str) -> DatabaseId {
    DatabaseId::of(&DatabaseName::parse(name).unwrap(), 0)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// One replica over a store in memory.
struct Node {
    store: MemoryStore,
    replica: Replica,
    now: WallTime,
}

impl Node {
    fn new() -> Self {
        let mut store = MemoryStore::default();
        store.create(database("d"));
        let state = store.view(&database("d")).unwrap().state().unwrap();
        Self { store, replica: Replica::resume(database("d"), state, PendingLimits::default()), now: WallTime(1_000) }
    }

    fn write(&mut self, ops: Vec<LocalOp>) -> Vec<OpOutcome> {
        self.turn(vec![ops])
    }

    /// Several writes in one turn; the outcome of the first.
    fn turn(&mut self, writes: Vec<Vec<LocalOp>>) -> Vec<OpOutcome> {
        let mut turn = self.replica.begin();
        let mut random = || 7;
        let mut env = Env { now: self.now, signer: &FakeSigner([1; 32]), random: &mut random };
        let writes = writes.into_iter().map(|ops| LocalWrite { token: Token(0), request: None, ops });
        let write = Input::Write(writes.collect());
        let view = self.store.view(&database("d")).unwrap();
        self.replica.handle(write, &mut env, &view, &mut turn).unwrap();
        let step = self.replica.finish(turn);
        let committed = Step::commit_all(vec![step], &mut self.store, Durability::Buffered).unwrap();
        let outcome = |effect| if let Effect::Written { outcome, .. } = effect { Some(outcome.ops) } else { None };
        committed.into_iter().flat_map(|one| one.effects).find_map(outcome).unwrap()
    }

    fn put(&mut self, at: &str, ms: Option<u64>) {
        self.write(vec![beside(at, ms)]);
    }

    fn due(&self, until: u64) -> Due {
        due(&self.store.view(&database("d")).unwrap(), WallTime(until)).unwrap()
    }

    fn row(&self, at: &str) -> Row {
        self.store.view(&database("d")).unwrap().row(&key(at)).unwrap()
    }
}

/// One more value beside what is at the key.
fn beside(at: &str, ms: Option<u64>) -> LocalOp {
    let change = Change::Put { value: Bytes::from_static(b"x"), expiry: ms.and_then(Expiry::at_unix_ms) };
    let terms = Terms { condition: None, seen: Some(Vec::new()) };
    LocalOp { terms: Some(Box::new(terms)), ..LocalOp::new(key(at), change) }
}

#[test]
fn of_all_that_have_a_database_open_it_is_the_turn_of_one_and_not_always_the_same() {
    let peers: Vec<PeerId> = (1..=5).map(peer).collect();
    let mut turns: BTreeMap<PeerId, usize> = BTreeMap::new();
    for n in 0..100 {
        let database = database(&format!("d{n}"));
        let mine = |me: &&PeerId| is_mine(&database, me, peers.iter().filter(|other| other != me).copied());
        let [one] = peers.iter().filter(mine).collect::<Vec<_>>()[..] else { panic!("not one for d{n}") };
        *turns.entry(*one).or_default() += 1;
    }
    assert_eq!(turns.len(), 5, "{turns:?}");
    assert!(is_mine(&database("d"), &peers[0], []), "alone it is always one's own turn");
}

#[test]
fn the_others_wait_longer_than_the_one_whose_turn_it_is() {
    let grace = Duration::from_secs(60);
    let now = WallTime(10_000_000);
    assert_eq!(cutoff(now, grace, true), WallTime(9_940_000));
    assert_eq!(cutoff(now, grace, false), WallTime(9_400_000));
    assert_eq!(cutoff(WallTime(5), grace, true), WallTime(0));
    assert_eq!(cutoff(WallTime(5), Duration::MAX, false), WallTime(0));
}

#[test]
fn only_what_has_expired_is_deleted_and_what_came_meanwhile_stays() {
    let mut node = Node::new();
    node.put("/a", Some(100));
    node.put("/a", Some(200));
    node.put("/a", None);
    node.put("/b", Some(100));
    node.put("/c", Some(300));
    node.put("/c", Some(100));
    assert_eq!(node.due(99), Due::default());
    let due = node.due(100);
    assert_eq!(due.ops.iter().map(|op| op.key.as_str()).collect::<Vec<_>>(), ["/a", "/b", "/c"]);
    assert!(!due.more);
    // Between the look and the write somebody puts a value that has not expired, and one deletes another.
    node.put("/b", None);
    let gone = node.row("/c").dots().collect::<Vec<_>>();
    let terms = Terms { condition: None, seen: Some(gone) };
    node.write(vec![LocalOp { terms: Some(Box::new(terms)), ..LocalOp::new(key("/c"), Change::Tombstone) }]);
    assert_eq!(node.write(due.ops.clone()), [OpOutcome::Deleted, OpOutcome::Deleted, OpOutcome::Absent]);
    assert_eq!((node.row("/a").siblings().len(), node.row("/b").siblings().len()), (2, 1));
    // Twice is harmless.
    let revision = node.replica.meta().revision;
    assert_eq!(node.write(due.ops), [OpOutcome::Absent; 3]);
    assert_eq!((node.replica.meta().revision, node.due(100)), (revision, Due::default()));
    node.write(node.due(200).ops);
    assert_eq!(node.row("/a").siblings().len(), 1);
}

#[test]
fn one_write_takes_so_many_keys_and_says_when_there_are_more() {
    let mut node = Node::new();
    for n in 0..=UPKEEP_KEYS {
        node.put(&format!("/k/{n:04}"), Some(10 + n as u64));
    }
    node.turn((0..=MAX_OP_SUPERSEDED).map(|_| vec![beside("/crowded", Some(1))]).collect());
    let first = node.due(u64::MAX);
    assert!(first.more && first.ops.len() == UPKEEP_KEYS && first.ops[0].key == key("/crowded"));
    node.write(first.ops);
    assert_eq!(node.row("/crowded").siblings().len(), 1);
    let second = node.due(u64::MAX);
    assert_eq!((second.ops.len(), second.more), (3, false));
    node.write(second.ops);
    assert_eq!(node.due(u64::MAX), Due::default());
    assert_eq!(node.replica.meta().keys, 0);
}
