//! New writers without end, and blocks that can never be merged.

use crdt::{Author, Change, Draft, Ed25519Signer, Key, Op, Signer as _, Stamp};

use super::hostile::{against, hello};
use super::*;
use crate::net::limits::{
    MAX_CREDIT_DELAY, MAX_STRANGE_ENTRIES, NEW_WRITERS_PER_PEER, NEW_WRITERS_PER_PEER_PER_SECOND, UNREADY_BYTES_PER_PEER,
};

/// A block of the writer with this nonce, whose parents are whatever was before.
fn block(nonce: u64, seq: u64, len: usize) -> Block {
    let signer = Ed25519Signer::from_seed([77; 32]);
    let author = Author { public_key: signer.public_key(), nonce };
    let change = Change::Put { value: vec![b'v'; len].into(), expiry: None };
    let op = Op { key: Key::parse("/k").unwrap(), change, superseded: Vec::new() };
    let (database, stamp) = (database("d"), Stamp(seq));
    let draft = Draft { database, author, seq, stamp, parents: Vec::new(), ops: vec![op], answers: Vec::new() };
    Block::seal(draft, &signer).unwrap()
}

/// A node that a peer speaks to: the peer's frames go in, and what the node has to do is done.
struct Talk {
    world: World,
    peer: PeerId,
}

impl Talk {
    fn new() -> Self {
        let mut world = against(vec![hello(), Frame::Open(database("d"))]);
        let peer = world.nodes[1].id;
        while world.step() {}
        Self { world, peer }
    }

    fn blocks(&mut self, blocks: &[Block]) {
        let blocks = blocks.iter().map(|block| block.bytes().clone()).collect();
        self.world.receive(0, self.peer, &Frame::Blocks { database: database("d"), blocks });
        while self.world.step() {}
        assert_eq!(self.world.nodes[0].cut, []);
    }

    fn writers(&self) -> u64 {
        self.world.nodes[0].engine.replica(&database("d")).vv().len() as u64
    }

    fn session(&self) -> &Session {
        self.world.nodes[0].machine.session_of(&self.peer, &database("d")).unwrap()
    }

    fn put_off(&self) -> bool {
        self.world.nodes[0].reports.iter().any(|report| matches!(report, Report::WritersPutOff(..)))
    }
}

#[test]
fn so_many_new_writers_at_once_and_the_others_later() {
    let mut talk = Talk::new();
    let own = talk.writers();
    let (all, more) = (NEW_WRITERS_PER_PEER, 100);
    for nonces in (0..all).collect::<Vec<_>>().chunks(500) {
        talk.blocks(&nonces.iter().map(|nonce| block(*nonce, 1, 1)).collect::<Vec<_>>());
    }
    assert_eq!((talk.writers() - own, talk.put_off()), (all, false));
    let rest: Vec<Block> = (all..all + more).map(|nonce| block(nonce, 1, 1)).collect();
    talk.blocks(&rest);
    assert_eq!((talk.writers() - own, talk.put_off()), (all, true));
    let (session, now) = (talk.session(), talk.world.now);
    assert!(!session.settled && session.due.is_some(), "what was put off is asked for again");
    assert_eq!(session.consumed, session.received, "and the credit for it comes back");
    // A writer that is known already writes on.
    talk.blocks(&[block(3, 2, 1)]);
    assert_eq!(talk.session().consumed, talk.session().received);
    assert!(talk.world.nodes[0].machine.locals()[&database("d")].covers(&block(3, 2, 1).dot()));
    // With time some of the others come in, as often as they are sent.
    talk.world.now = now + Duration::from_secs(5);
    talk.blocks(&rest);
    assert_eq!(talk.writers() - own, all + 5 * NEW_WRITERS_PER_PEER_PER_SECOND);
    // Whom this node was told to connect to may bring any number.
    let peer = talk.peer;
    talk.world.nodes[0].machine.trust(peer);
    talk.blocks(&rest);
    assert_eq!(talk.writers() - own, all + more);
}

#[test]
fn a_later_block_of_an_unknown_writer_does_not_fill_the_pool() {
    let mut talk = Talk::new();
    talk.blocks(&(2..500).map(|seq| block(1, seq, 10)).collect::<Vec<_>>());
    assert_eq!(talk.world.nodes[0].engine.replica(&database("d")).pending(), (0, 0));
    assert!(!talk.session().settled);
    // In order it is merged, in one frame or in several.
    talk.blocks(&[block(1, 1, 10), block(1, 2, 10)]);
    talk.blocks(&[block(1, 3, 10)]);
    assert!(talk.world.nodes[0].machine.locals()[&database("d")].covers(&block(1, 3, 10).dot()));
}

#[test]
fn lists_and_acknowledgements_without_end_are_not_kept_and_do_not_end_the_sync() {
    let db = database("d");
    let entry = |part: usize, n: usize| ReplicaId(((part * MAX_FRAME_ENTRIES + n + 1) as u128).to_be_bytes());
    let parts = 0..200_usize;
    let ack = |part| {
        let durable = (0..MAX_FRAME_ENTRIES).map(|n| (entry(part, n), 1)).collect();
        Frame::Ack { database: db, consumed: 0, durable }
    };
    let list = |part| {
        let entries = (0..MAX_FRAME_ENTRIES).map(|n| HaveEntry { replica: entry(part, n), seq: 1, floor: 0 }).collect();
        Frame::HaveList { database: db, entries, last: part == 199 }
    };
    let frames = [hello(), Frame::Open(db)].into_iter().chain(parts.clone().map(list)).chain(parts.map(ack)).collect();
    let world = against(frames);
    assert_eq!(world.nodes[0].cut, []);
    let other = world.nodes[1].id;
    let session = world.nodes[0].machine.session_of(&other, &db).unwrap();
    let most = 1 + MAX_STRANGE_ENTRIES;
    // What it acknowledges it has.
    assert!(session.assumed.len() <= 2 * most && session.durable.len() <= most, "{}", session.assumed.len());
    assert!(session.durable_more && !session.settled, "that there is more is remembered");
}

#[test]
fn what_was_not_kept_of_acknowledgements_is_said_again_once_the_writers_are_known() {
    let mut world = World::of(2);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    let many: Vec<Block> = (0..MAX_STRANGE_ENTRIES as u64 + 500).map(|nonce| block(nonce, 1, 1)).collect();
    for blocks in many.chunks(500) {
        let (_, news) = world.nodes[0].engine.deliver(db, blocks.to_vec(), Source(9));
        let News::Advanced(_, progress) = news.unwrap() else { panic!() };
        world.news(0, News::Advanced(db, Progress { durable: progress.vv.clone(), ..progress }));
    }
    while world.step() {}
    world.connect(0, 1);
    world.settle();
    world.assert_equal(&db);
    let (first, second) = (world.nodes[0].id, &world.nodes[1]);
    let known = second.machine.durable(&first, &db).unwrap();
    assert!(many.iter().all(|block| known.covers(&block.dot())), "{} of {}", known.len(), many.len());
}

#[test]
fn the_credit_for_what_cannot_be_merged_comes_back_late() {
    let mut talk = Talk::new();
    talk.blocks(&[block(1, 1, 1)]);
    let mut sent = 0;
    let mut seq = 3;
    while talk.session().late.is_none() {
        let orphan = block(1, seq, 60_000);
        assert!(sent <= UNREADY_BYTES_PER_PEER + 60_500, "{sent} bytes came for nothing, and nothing is late");
        talk.blocks(std::slice::from_ref(&orphan));
        (sent, seq) = (sent + orphan.bytes().len() as u64, seq + 1);
    }
    assert!(sent > UNREADY_BYTES_PER_PEER, "{sent}");
    let before = talk.session().told;
    assert!(before < talk.session().received);
    let wake = talk.world.nodes[0].machine.wake().unwrap();
    assert!(wake <= talk.world.now + MAX_CREDIT_DELAY);
    talk.world.pass(MAX_CREDIT_DELAY);
    assert_eq!(talk.session().told, talk.session().received, "late, but not lost");
    // Who does not wait for it breaks the protocol.
    while talk.session().late.is_none() {
        talk.blocks(&[block(1, seq, 60_000)]);
        seq += 1;
    }
    for _ in 0..5 {
        let more = Frame::Blocks { database: database("d"), blocks: vec![block(1, seq, 60_000).bytes().clone()] };
        talk.world.receive(0, talk.peer, &more);
        while talk.world.step() {}
        seq += 1;
    }
    assert!(matches!(talk.world.nodes[0].cut[..], [(_, DisconnectReason::Misbehaved(Misbehaviour::Credit))]));
}
