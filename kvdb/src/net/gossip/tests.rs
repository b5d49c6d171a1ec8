use crdt::{Digest, Ed25519Signer, ReplicaId, Zip215};

use super::super::local::Local;
use super::*;
use crate::engine::port::News;
use crate::net::limits::{DEAF_AFTER_INTERVALS, GOSSIP_BLOCKS_PER_SECOND};
use crate::net::testing::{ToyEngine, database};

const INTERVAL: Duration = Duration::from_secs(10);

fn peer(seed: u8) -> PeerId {
    peer_of(&Ed25519Signer::from_seed([seed; 32]).public_key()).unwrap()
}

fn machine(seed: u8) -> GossipMachine {
    let options = GossipOptions { boot: u64::from(seed), interval: INTERVAL };
    let signer = Ed25519Signer::from_seed([seed; 32]);
    GossipMachine::new(
        peer(seed),
        options,
        Box::new(signer),
        Box::new(Zip215(rand::make_rng::<rand::rngs::StdRng>())),
        Box::new(|| 300),
    )
}

fn secs(secs: u64) -> Moment {
    Duration::from_secs(secs)
}

struct Node {
    machine: GossipMachine,
    engine: ToyEngine,
    locals: Locals,
}

impl Node {
    fn new(seed: u8, db: DatabaseId) -> Self {
        let mut node = Self { machine: machine(seed), engine: ToyEngine::new(seed), locals: Locals::new() };
        let News::Opened(_, progress) = node.engine.open(db) else { panic!() };
        node.locals.insert(db, Local::opened(&progress));
        assert_eq!(node.handle(Input::Opened(db), secs(0)), [Output::Subscribe(db)]);
        node
    }

    fn handle(&mut self, input: Input<'_>, now: Moment) -> Vec<Output> {
        self.machine.handle(input, &self.locals, now)
    }

    fn put(&mut self, db: DatabaseId, len: usize, fed: bool, now: Moment) -> (Block, Vec<Output>) {
        let (block, news) = self.engine.put(db, "/k", &vec![0; len]);
        let News::Advanced(_, progress) = news else { panic!() };
        self.locals.get_mut(&db).unwrap().advance(&progress);
        (block, self.handle(Input::Advanced { database: db, progress: &progress, fed }, now))
    }

    fn message(&mut self, db: DatabaseId, from: PeerId, data: &Bytes, now: Moment) -> (Verdict, Vec<Output>) {
        let mut outputs = self.handle(Input::Message { database: db, from, data: data.clone() }, now);
        let Output::Verdict(verdict) = outputs.remove(0) else { panic!() };
        (verdict, outputs)
    }
}

fn published(outputs: &[Output]) -> Vec<Bytes> {
    outputs.iter().filter_map(|output| if let Output::Publish(_, data) = output { Some(data.clone()) } else { None }).collect()
}

#[test]
fn a_block_is_published_judged_and_delivered_once() {
    let db = database("d");
    let (mut a, mut b) = (Node::new(1, db), Node::new(2, db));
    let (block, outputs) = a.put(db, 10, false, secs(1));
    let data = published(&outputs).remove(0);
    let (verdict, outputs) = b.message(db, peer(3), &data, secs(1));
    assert_eq!(verdict, Verdict::Accept);
    assert_eq!(outputs, [Output::Deliver { database: db, from: peer(3), author: peer(1), block: block.clone() }]);
    let (_, news) = b.engine.deliver(db, vec![block], crdt::Source(1));
    let Some(News::Advanced(_, progress)) = news else { panic!() };
    b.locals.get_mut(&db).unwrap().advance(&progress);
    // Known by now: not passed on.
    assert_eq!(b.message(db, peer(3), &data, secs(2)), (Verdict::Ignore, vec![]));
}

#[test]
fn a_block_that_waits_for_others_starts_a_sync_with_its_author_if_connected() {
    let db = database("d");
    let mut b = Node::new(2, db);
    let held = Input::Delivered { database: db, from: peer(3), author: peer(1), merged: false };
    assert_eq!(b.handle(held, secs(1)), [Output::StartSync(db, peer(3), None)]);
    b.handle(Input::Connected(peer(1)), secs(1));
    let held = Input::Delivered { database: db, from: peer(3), author: peer(1), merged: false };
    assert_eq!(b.handle(held, secs(1)), [Output::StartSync(db, peer(1), None)]);
}

#[test]
fn r29_malformed_forged_and_foreign_messages_are_rejected() {
    let (db, other) = (database("d"), database("other"));
    let (mut a, mut b) = (Node::new(1, db), Node::new(2, db));
    let (block, _) = a.put(db, 10, false, secs(0));
    let mut forged = block.bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let foreign = Node::new(3, other).put(other, 10, false, secs(0)).0;
    let announce = |database, change: fn(&mut Announce)| {
        let mut announce = Announce {
            database,
            publisher: [0; 32],
            boot: 1,
            counter: 1,
            heads_hash: [0; 32],
            vv_hash: [0; 32],
            digest: Digest(0),
            signature: [0; 64],
        }
        .signed(&Ed25519Signer::from_seed([1; 32]));
        change(&mut announce);
        Message::Announce(Box::new(announce)).encode()
    };
    for (what, data) in [
        ("no message", Bytes::from_static(b"xyz")),
        ("a forged block", Message::Block(forged.into()).encode()),
        ("a block of another database", Message::Block(foreign.bytes().clone()).encode()),
        ("an announcement of another database", announce(other, |_| {})),
        ("a changed announcement", announce(db, |announce| announce.counter += 1)),
        ("another's name", announce(db, |announce| announce.publisher = Ed25519Signer::from_seed([3; 32]).public_key())),
    ] {
        assert_eq!(b.message(db, peer(3), &data, secs(1)), (Verdict::Reject, vec![]), "{what}");
    }
    assert_eq!(b.message(db, peer(3), &announce(db, |_| {}), secs(1)).0, Verdict::Accept);
}

#[test]
fn g03_more_and_larger_blocks_than_gossip_takes_are_announced_within_the_gap() {
    let db = database("d");
    let mut a = Node::new(1, db);
    assert!(published(&a.put(db, MAX_GOSSIP_BLOCK_BYTES, false, secs(1)).1).is_empty());
    assert_eq!(a.machine.wake(), Some(secs(1)));
    let sent = published(&a.handle(Input::Tick, secs(1)));
    assert!(matches!(Message::decode(sent[0].clone()), Ok(Message::Announce(_))));
    let sent: usize = (0..100).map(|_| published(&a.put(db, 10, false, secs(1)).1).len()).sum();
    assert_eq!(sent as u64, GOSSIP_BLOCKS_PER_SECOND);
    // The next announcement keeps its distance.
    assert_eq!(a.machine.wake(), Some(secs(1) + MIN_ANNOUNCE_GAP));
    assert!(a.handle(Input::Tick, secs(1)).is_empty());
}

#[test]
fn what_the_feeds_carry_is_not_published() {
    let db = database("d");
    let mut a = Node::new(1, db);
    assert!(a.put(db, 10, true, secs(1)).1.is_empty());
    assert!(a.machine.wake().unwrap() > secs(5));
}

#[test]
fn announcements_repeat_by_the_interval_and_each_is_new() {
    let db = database("d");
    let mut a = Node::new(1, db);
    let mut all = std::collections::BTreeSet::new();
    let mut now = secs(0);
    while now < secs(100) {
        now = a.machine.wake().unwrap();
        all.extend(published(&a.handle(Input::Tick, now)));
    }
    assert_eq!(all.len(), 10);
}

#[test]
fn r20_the_first_announcement_that_comes_through_starts_a_sync() {
    let db = database("d");
    let (mut a, mut b) = (Node::new(1, db), Node::new(2, db));
    b.handle(Input::Connected(peer(1)), secs(0));
    let mut announcements = Vec::new();
    for n in 1..=51 {
        a.put(db, 10, true, secs(n));
        a.machine.announce_at(db, secs(n));
        announcements.extend(published(&a.handle(Input::Tick, secs(n))));
    }
    assert_eq!(announcements.len(), 51);
    let hash = a.locals[&db].summary().vv_hash;
    let (verdict, outputs) = b.message(db, peer(3), &announcements[50], secs(60));
    assert_eq!((verdict, outputs), (Verdict::Accept, vec![Output::StartSync(db, peer(1), Some(hash))]));
    // Older ones are stale now, and the same again is too.
    for stale in [&announcements[49], &announcements[50], &announcements[0]] {
        assert_eq!(b.message(db, peer(3), stale, secs(61)), (Verdict::Ignore, vec![]));
    }
}

#[test]
fn g05_announcements_of_an_earlier_boot_are_stale_too() {
    let db = database("d");
    let (mut first, mut again, mut b) = (Node::new(1, db), Node::new(1, db), Node::new(2, db));
    again.machine.options.boot = 77;
    let announce = |node: &mut Node, n| {
        node.machine.announce_at(db, secs(n));
        published(&node.handle(Input::Tick, secs(n))).remove(0)
    };
    let old = [announce(&mut first, 1), announce(&mut first, 2)];
    let new = announce(&mut again, 3);
    for data in [&old[0], &old[1], &new] {
        assert_eq!(b.message(db, peer(1), data, secs(4)).0, Verdict::Accept);
    }
    for data in [&old[0], &old[1], &new] {
        assert_eq!(b.message(db, peer(1), data, secs(5)).0, Verdict::Ignore);
    }
}

#[test]
fn equal_vectors_with_another_digest_are_a_disagreement() {
    let db = database("d");
    let (mut a, mut b) = (Node::new(1, db), Node::new(2, db));
    let odd = Progress { digest: Digest(9), ..Progress::default() };
    a.locals.get_mut(&db).unwrap().advance(&odd);
    let now = a.machine.wake().unwrap();
    let data = published(&a.handle(Input::Tick, now)).remove(0);
    assert_eq!(b.message(db, peer(3), &data, now).1, [Output::Disagreement(db, peer(1))]);
}

#[test]
fn a_silent_co_subscriber_is_synced_with_and_connected_anew_less_and_less() {
    let db = database("d");
    let mut a = Node::new(1, db);
    let patience = INTERVAL * DEAF_AFTER_INTERVALS * 13 / 10;
    a.handle(Input::Connected(peer(2)), secs(0));
    a.handle(Input::Subscribed(peer(2), db), secs(0));
    let deaf = [Output::StartSync(db, peer(2), None), Output::Reconnect(peer(2))];
    let mut found = Vec::new();
    for now in 1..1_000 {
        let outputs = a.handle(Input::Tick, secs(now));
        if outputs.ends_with(&deaf) {
            found.push(now);
        }
    }
    let step = patience.as_secs();
    assert_eq!(found, [step, 3 * step, 7 * step, 15 * step]);
    // A word from it, and the patience begins again; it is not the first one, since the peer may just speak seldom.
    a.handle(Input::Message { database: db, from: peer(2), data: Bytes::from_static(b"x") }, secs(1_000));
    assert!(!a.handle(Input::Tick, secs(1_000 + 16 * step - 1)).ends_with(&deaf));
    assert!(a.handle(Input::Tick, secs(1_000 + 16 * step)).ends_with(&deaf));
    // Gone, or no longer subscribed: nothing is expected.
    a.handle(Input::Unsubscribed(peer(2), db), secs(2_000));
    assert!(!a.handle(Input::Tick, secs(9_000)).ends_with(&deaf));
}

#[test]
fn what_one_peer_says_too_much_is_not_looked_at_and_sync_brings_it() {
    let db = database("d");
    let mut node = Node::new(1, db);
    let block = Node::new(2, db).put(db, 100, false, secs(1)).0;
    let data = Message::Block(block.bytes().clone()).encode();
    let (flood, honest) = (peer(3), peer(4));
    for _ in 0..GOSSIP_COST_PER_PEER / GOSSIP_BLOCK_COST {
        assert_eq!(node.message(db, flood, &data, secs(1)).0, Verdict::Accept);
    }
    let put_off = (Verdict::Ignore, vec![Output::StartSync(db, flood, None)]);
    assert_eq!(node.message(db, flood, &data, secs(1)), put_off);
    // Not even what is no message is looked at.
    assert_eq!(node.message(db, flood, &Bytes::from_static(b"rubbish"), secs(1)), put_off);
    assert_eq!(node.message(db, honest, &data, secs(1)).0, Verdict::Accept, "nobody else pays for it");
    let later = (0..1_000).filter(|_| node.message(db, flood, &data, secs(2)).0 == Verdict::Accept).count();
    assert_eq!(later as u64, GOSSIP_COST_PER_PEER_PER_SECOND / GOSSIP_BLOCK_COST);
}

#[test]
fn publishers_are_remembered_up_to_a_limit() {
    let mut topic =
        Topic { counter: 0, rate: Rate::new(secs(0)), announce_at: secs(0), announced_at: None, publishers: BTreeMap::new() };
    let announce = |n: usize, boot| {
        let mut publisher = [0; 32];
        publisher[..16].copy_from_slice(&ReplicaId((n as u128).to_be_bytes()).0);
        let (database, heads_hash, vv_hash) = (database("d"), [0; 32], [0; 32]);
        Announce { database, publisher, boot, counter: 1, heads_hash, vv_hash, digest: Digest(0), signature: [0; 64] }
    };
    for n in 0..MAX_PUBLISHERS_PER_DATABASE + 5 {
        topic.remember(&announce(n, 0));
        assert!(topic.is_stale(&announce(n, 0)), "the newest is always remembered");
    }
    assert_eq!(topic.publishers.len(), MAX_PUBLISHERS_PER_DATABASE);
    for boot in 0..100 {
        topic.remember(&announce(7, boot));
    }
    assert_eq!(topic.publishers[&announce(7, 0).publisher].len(), MAX_BOOTS_PER_PUBLISHER);
}
