//! Peers that say what no correct peer says, or much too much of it.

use super::*;
use crate::net::wire::HaveKind;

pub(super) fn hello() -> Frame {
    Frame::Hello(Hello { version: 1, features: 0, max_frame_bytes: MAX_FRAME_BYTES as u64, credit_bytes: 262_144 })
}

/// A node with one database of one block, and a peer that says what the test says.
pub(super) fn against(frames: Vec<Frame>) -> World {
    let mut world = World::of(2);
    let db = database("d");
    world.open(0, db);
    world.put(0, db, "/a", 1);
    while world.step() {}
    let other = world.nodes[1].id;
    world.input(0, Input::PeerUp(other));
    for frame in frames {
        world.receive(0, other, &frame);
    }
    world
}

#[test]
fn opening_and_closing_for_ever_costs_one_read_at_a_time() {
    let db = database("d");
    let list = Frame::HaveList { database: db, entries: vec![], last: true };
    let round = [Frame::Open(db), list, Frame::Close(db)];
    let mut frames = vec![hello()];
    (0..50).for_each(|_| frames.extend(round.iter().cloned()));
    frames.extend(round.iter().take(2).cloned());
    let mut world = against(frames);
    let reads = |world: &World| world.nodes[0].jobs.iter().filter(|job| matches!(job, Job::Read(..))).count();
    assert_eq!(reads(&world), 1);
    // Its answer belongs to a session that has ended; the one that stands reads then.
    while reads(&world) > 0 || !world.nodes[0].sent.contains_key("blocks") {
        assert!(world.step());
    }
}

#[test]
fn a_peer_that_breaks_the_protocol_is_cut_off_and_told_why() {
    let (db, other) = (database("d"), database("other"));
    let summary = Summary { vv_hash: [1; 32], count: 1, heads_hash: [1; 32], digest: crdt::Digest(1) };
    let version = Frame::Hello(Hello { version: 2, features: 0, max_frame_bytes: 1, credit_bytes: 1 });
    let small = Frame::Hello(Hello { version: 1, features: 0, max_frame_bytes: 1, credit_bytes: 1 });
    let list = |n: u8| {
        let entries = vec![HaveEntry { replica: ReplicaId([n; 16]), seq: 1, floor: 0 }];
        Frame::HaveList { database: db, entries, last: false }
    };
    let ack = |consumed, seq| Frame::Ack { database: db, consumed, durable: vec![(ReplicaId([1; 16]), seq)] };
    let block = |name: &str, len: usize| {
        let mut engine = ToyEngine::new(9);
        engine.open(database(name));
        engine.put(database(name), "/k", &vec![0; len]).0.bytes().clone()
    };
    let blocks = |blocks| Frame::Blocks { database: db, blocks };
    let have = |summary| Frame::Have { database: db, kind: HaveKind::Question, summary };
    let unasked = Frame::Have { database: db, kind: HaveKind::Answer, summary };
    let misbehaved = DisconnectReason::Misbehaved;
    let what = "the largest frame in bytes";
    let frame = DisconnectReason::Limit { what, value: 1, limit: MAX_FRAME_BYTES as u64 };
    let answers = |n| std::iter::repeat_n(unasked.clone(), n);
    for (frames, reason) in [
        (vec![Frame::Open(db)], misbehaved(Misbehaviour::BeforeHello)),
        (vec![blocks(vec![block("d", 1)])], misbehaved(Misbehaviour::BeforeHello)),
        (vec![hello(), hello()], misbehaved(Misbehaviour::SecondHello)),
        (vec![version], DisconnectReason::Version { theirs: 2 }),
        (vec![small], frame),
        (vec![hello(), Frame::HaveList { database: other, entries: vec![], last: true }], misbehaved(Misbehaviour::NotOpen)),
        (vec![hello(), Frame::Open(db), blocks(vec![block("other", 1)])], misbehaved(Misbehaviour::ForeignBlock)),
        (
            vec![hello(), Frame::Open(db), blocks(vec![block("d", 200_000)]), blocks(vec![block("d", 200_000)])],
            misbehaved(Misbehaviour::Credit),
        ),
        (vec![hello(), Frame::Open(db), ack(0, 5), ack(0, 4)], misbehaved(Misbehaviour::Ack)),
        (vec![hello(), Frame::Open(db), ack(1, 5)], misbehaved(Misbehaviour::Ack)),
        (vec![hello(), Frame::Open(db), list(2), list(2)], misbehaved(Misbehaviour::Order)),
        (
            [hello(), Frame::Open(db)].into_iter().chain(std::iter::repeat_n(have(summary), 21)).collect(),
            misbehaved(Misbehaviour::Questions),
        ),
        (
            vec![hello(), Frame::Error { code: ErrorCode::Limit, text: "no".into() }],
            DisconnectReason::Remote { code: ErrorCode::Limit, text: "no".into() },
        ),
        ([hello(), Frame::Open(db)].into_iter().chain(answers(3)).collect(), misbehaved(Misbehaviour::Unasked)),
    ] {
        let mut world = against(frames.clone());
        let other = world.nodes[1].id;
        assert_eq!(world.nodes[0].cut, [(other, reason)], "{frames:?}");
        // What else it says is not looked at.
        world.receive(0, other, &Frame::Open(db));
        assert_eq!(world.nodes[0].cut.len(), 1);
        assert!(world.nodes[0].machine.sessions.is_empty() && world.nodes[0].machine.timers.is_empty());
    }
}

#[test]
fn what_was_read_before_the_peer_said_what_it_has_is_read_again() {
    let db = database("d");
    let mut world = against(vec![hello(), Frame::Open(db)]);
    let other = world.nodes[1].id;
    let list = Frame::HaveList { database: db, entries: Vec::new(), last: true };
    world.receive(0, other, &list);
    let Some(Job::Read(..)) = world.nodes[0].jobs.last() else { panic!() };
    world.receive(0, other, &list);
    let read = world.nodes[0].jobs.pop().unwrap();
    world.job(0, read);
    let have_read = world.nodes[0].jobs.pop().unwrap();
    world.job(0, have_read);
    assert!(world.nodes[0].order.is_empty());
    while world.step() {}
    assert_eq!(world.nodes[0].order, [db]);
}

#[test]
fn a_write_behind_the_back_of_a_read_goes_out_too() {
    let db = database("d");
    let mut world = World::of(2);
    (0..2).for_each(|n| world.open(n, db));
    world.connect(0, 1);
    world.settle();
    let next = |world: &mut World| {
        let job = world.nodes[0].jobs.pop().unwrap();
        world.job(0, job);
    };
    world.put(0, db, "/first", 1);
    next(&mut world);
    // Read, and before it is handed in:
    next(&mut world);
    world.put(0, db, "/second", 1);
    next(&mut world);
    while world.step() {}
    world.assert_equal(&db);
}

#[test]
fn databases_share_a_full_queue_in_turn() {
    let dbs: Vec<DatabaseId> = (0..8).map(|i| database(&format!("d{i}"))).collect();
    let mut world = World::of(2);
    let other = world.nodes[1].id;
    for db in &dbs {
        world.open(0, *db);
        (0..10).for_each(|i| world.put(0, *db, &format!("/k{i}"), 30_000));
    }
    while world.step() {}
    world.input(0, Input::PeerUp(other));
    world.receive(0, other, &hello());
    for db in &dbs {
        world.receive(0, other, &Frame::Open(*db));
        world.receive(0, other, &Frame::HaveList { database: *db, entries: Vec::new(), last: true });
    }
    while world.step() {}
    let queued = world.nodes[0].order.len();
    assert_eq!(queued, PEER_QUEUE_BYTES.div_ceil(60_200));
    for _ in 0..6 {
        world.input(0, Input::Written(other, 61_000));
    }
    let next: BTreeSet<DatabaseId> = world.nodes[0].order[queued..].iter().copied().collect();
    assert_eq!((world.nodes[0].order.len() - queued, next.len()), (6, 6));
}

#[test]
fn equal_vectors_with_another_digest_are_reported() {
    let mut world = against(vec![hello(), Frame::Open(database("d"))]);
    let db = database("d");
    let ours = world.nodes[0].machine.locals()[&db].summary();
    let theirs = Summary { digest: crdt::Digest(1), ..ours };
    let other = world.nodes[1].id;
    world.receive(0, other, &Frame::Have { database: db, kind: HaveKind::Question, summary: theirs });
    assert_eq!(world.nodes[0].reports, [Report::Disagreement(other, db)]);
}

#[test]
fn a_difference_that_never_heals_is_asked_about_less_and_less() {
    let mut world = against(vec![hello(), Frame::Open(database("d"))]);
    let (db, other) = (database("d"), world.nodes[1].id);
    let theirs = Summary { vv_hash: [1; 32], count: 1, heads_hash: [1; 32], digest: crdt::Digest(1) };
    let entries = vec![HaveEntry { replica: ReplicaId([1; 16]), seq: 1, floor: 0 }];
    world.receive(0, other, &Frame::Have { database: db, kind: HaveKind::Question, summary: theirs });
    world.receive(0, other, &Frame::HaveList { database: db, entries: entries.clone(), last: true });
    let mut questions = 0;
    while world.now < Duration::from_secs(3_600) {
        world.now = world.nodes[0].machine.wake().unwrap();
        let before = world.nodes[0].sent["have"];
        world.input(0, Input::Tick);
        while world.step() {}
        if world.nodes[0].sent["have"] > before {
            questions += 1;
            world.receive(0, other, &Frame::Have { database: db, kind: HaveKind::Answer, summary: theirs });
            world.receive(0, other, &Frame::HaveList { database: db, entries: entries.clone(), last: true });
        }
    }
    assert!((12..=30).contains(&questions), "{questions}");
}

quickcheck! {
    fn nodes_with_any_faults_are_equal_in_the_end(seed: u64, script: Vec<(u8, u8)>) -> bool {
        let mut world = World::new((1..=4).map(ToyEngine::new).collect(), seed);
        let dbs = [database("a"), database("b")];
        for db in dbs {
            (0..4).for_each(|n| world.open(n, db));
        }
        let pairs = [(0, 1), (0, 2), (1, 3), (2, 3)];
        for (what, with) in script {
            let n = usize::from(with) % 4;
            let (a, b) = pairs[n];
            let linked = world.nodes[a].links.contains_key(&world.nodes[b].id);
            match what % 8 {
                0 if !linked => world.connect(a, b),
                1 if linked => world.disconnect(a, b),
                2 => world.restart(n, &dbs),
                3 => (0..30).for_each(|i| world.put(n, dbs[i % 2], &format!("/k{i}"), 4_000)),
                4 => (0..300).for_each(|_| { world.step(); }),
                5 => { world.now += Duration::from_millis(400); world.input(n, Input::Tick); }
                _ => {
                    world.put(n, dbs[usize::from(what) % 2], &format!("/k{with}"), 10);
                    (0..what % 16).for_each(|_| { world.step(); });
                }
            }
        }
        for (a, b) in pairs {
            if !world.nodes[a].links.contains_key(&world.nodes[b].id) {
                world.connect(a, b);
            }
        }
        world.settle();
        // What the feeds did not carry is announced every interval.
        for db in dbs {
            world.assert_equal(&db);
        }
        true
    }
}
