//! Peers that lack blocks which are not kept any more, and what they do as long as nobody can send a snapshot.

use super::*;

/// Two nodes with a database, of which the first has dropped all its history, the second lacking some of it.
fn below_the_floor() -> (World, DatabaseId) {
    let mut world = World::of(2);
    world.snapshots = false;
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    (0..50).for_each(|i| world.put(0, db, &format!("/k{i}"), 100));
    while world.step() {}
    world.truncate(0, db, 40);
    while world.step() {}
    (world, db)
}

#[test]
fn d03_a_peer_below_the_floor_is_told_and_nothing_loops() {
    let (mut world, db) = below_the_floor();
    world.put(1, db, "/own", 10);
    world.connect(0, 1);
    world.settle();
    let (a, b) = (world.nodes[0].id, world.nodes[1].id);
    // What the one lacks has come; what the other lacks is not there to be sent.
    assert_eq!(world.nodes[0].engine.replica(&db).meta().revision, 51);
    assert_eq!(world.nodes[1].engine.replica(&db).meta().revision, 1);
    assert_eq!(world.nodes[0].reports, [Report::NeedsSnapshot(b, db)]);
    assert_eq!(world.nodes[1].reports, [Report::BelowFloor(a, db)]);
    let status = |n: usize, other: PeerId| world.nodes[n].machine.sessions(&other).next().unwrap().1;
    assert!(status(0, b).needs_snapshot && !status(0, b).below_floor && status(0, b).synced);
    assert!(status(1, a).below_floor && !status(1, a).needs_snapshot && !status(1, a).synced);
    assert_eq!(world.nodes[1].engine.replica(&db).pending(), (0, 0), "nothing came that cannot be merged");
    // Neither an hour of waiting nor writes on either side make it busy.
    world.nodes.iter_mut().for_each(|node| node.sent.clear());
    world.pass(Duration::from_secs(3_600));
    let sent =
        |world: &World, kind: &str| world.nodes.iter().map(|node| node.sent.get(kind).copied().unwrap_or(0)).sum::<usize>();
    assert!(sent(&world, "have") < 60, "{}", sent(&world, "have"));
    assert_eq!(sent(&world, "blocks"), 0);
    assert_eq!(world.nodes[0].reports.len(), 1, "said once");
}

#[test]
fn writes_of_both_go_on_below_a_floor_and_only_what_merges_is_sent() {
    let (mut world, db) = below_the_floor();
    world.connect(0, 1);
    world.settle();
    for i in 0..20 {
        world.put(1, db, &format!("/late{i}"), 10);
        world.put(0, db, &format!("/early{i}"), 10);
        world.settle();
    }
    assert_eq!(world.nodes[0].engine.replica(&db).meta().revision, 90);
    assert_eq!(world.nodes[1].engine.replica(&db).pending(), (0, 0));
    let (a, b) = (world.nodes[0].id, world.nodes[1].id);
    assert_eq!(world.nodes[0].reports, [Report::NeedsSnapshot(b, db)]);
    assert_eq!(world.nodes[1].reports, [Report::BelowFloor(a, db)]);
}

#[test]
fn what_one_peer_no_longer_keeps_comes_from_another() {
    for seed in 0..30 {
        let mut world = World::new((1..=3).map(ToyEngine::new).collect(), seed);
        let db = database("d");
        (0..3).for_each(|n| world.open(n, db));
        (0..60).for_each(|i| world.put(0, db, &format!("/k{}", i % 7), 2_000));
        world.connect(0, 2);
        world.settle();
        world.truncate(0, db, 30);
        world.connect(0, 1);
        if seed % 2 == 0 {
            world.settle();
        }
        (0..seed).for_each(|_| {
            world.step();
        });
        world.put(0, db, "/later", 10);
        world.put(1, db, "/own", 10);
        world.connect(1, 2);
        world.settle();
        world.assert_equal(&db);
    }
}

#[test]
fn history_dropped_while_it_is_sent_is_noticed() {
    for steps in 0..60 {
        let mut world = World::of(2);
        world.snapshots = false;
        let db = database("d");
        (0..2).for_each(|n| world.open(n, db));
        (0..400).for_each(|i| world.put(0, db, &format!("/k{i}"), 2_000));
        while world.step() {}
        world.connect(0, 1);
        (0..steps * 10).for_each(|_| {
            world.step();
        });
        world.truncate(0, db, 400);
        world.settle();
        let b = world.nodes[1].id;
        if world.equal(&db) {
            assert!(!world.nodes[0].machine.sessions(&b).next().unwrap().1.needs_snapshot);
        } else {
            assert!(
                world.nodes[0].reports.contains(&Report::NeedsSnapshot(b, db)),
                "after {steps}: {:?}",
                world.nodes[0].reports
            );
        }
        assert_eq!(world.nodes[1].engine.replica(&db).pending(), (0, 0));
        assert!(world.nodes.iter().all(|node| node.cut.is_empty()));
    }
}

#[test]
fn whoever_has_everything_does_not_mind_a_floor() {
    let mut world = World::of(2);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    world.connect(0, 1);
    (0..50).for_each(|i| world.put(i % 2, db, &format!("/k{i}"), 100));
    world.settle();
    (0..2).for_each(|n| world.truncate(n, db, u64::MAX));
    world.settle();
    (0..50).for_each(|i| world.put(i % 2, db, &format!("/k{i}"), 100));
    world.settle();
    world.assert_equal(&db);
    // Opened anew, from what the stores have.
    world.restart(0, &[db]);
    world.put(1, db, "/away", 1);
    world.connect(0, 1);
    world.settle();
    world.assert_equal(&db);
    let floors = |n: usize| world.nodes[n].machine.locals()[&db].floors().clone();
    assert_eq!((floors(0).len(), floors(1).len()), (2, 2));
    for node in &world.nodes {
        assert!(node.reports.iter().all(|report| matches!(report, Report::Synced(..))), "{:?}", node.reports);
    }
}

#[test]
fn dropped_history_is_told_without_waiting_for_a_comparison() {
    let mut world = World::of(2);
    let (db, other) = (database("d"), world.nodes[1].id);
    world.open(0, db);
    (0..3).for_each(|i| world.put(0, db, &format!("/k{i}"), 10));
    while world.step() {}
    world.input(0, Input::PeerUp(other));
    let hello = Hello { version: 1, features: 0, max_frame_bytes: MAX_FRAME_BYTES as u64, credit_bytes: 1 };
    for frame in [Frame::Hello(hello), Frame::Open(db), Frame::HaveList { database: db, entries: Vec::new(), last: true }] {
        world.receive(0, other, &frame);
    }
    // One block is on its way, for the next there is no credit.
    while world.step() {}
    assert_eq!(world.nodes[0].reports, []);
    world.truncate(0, db, 1);
    while world.step() {}
    assert_eq!(world.nodes[0].reports, []);
    world.truncate(0, db, 2);
    while world.step() {}
    assert_eq!(world.nodes[0].reports, [Report::NeedsSnapshot(other, db)]);
}

#[test]
fn t01_a_writer_below_the_floor_does_not_make_others_read_their_whole_log_again_and_again() {
    let (mut world, db) = below_the_floor();
    // Another writer's block, which builds on what is gone.
    world.restart(0, &[db]);
    world.put(0, db, "/k1", 10);
    world.connect(0, 1);
    world.settle();
    world.nodes[0].sent.clear();
    let begin = world.now;
    for i in 0..200 {
        world.put(1, db, &format!("/own{i}"), 10);
        world.pass(Duration::from_millis(200));
    }
    let (reads, seconds) = (world.nodes[0].sent.get("read").copied().unwrap_or(0), world.now.saturating_sub(begin).as_secs());
    assert_eq!(seconds, 40);
    // Each of them reads a chunk of the log, and that nothing follows it.
    assert!((1..=20).contains(&reads), "{reads} reads");
    assert_eq!(world.nodes[0].engine.replica(&db).meta().revision, 51 + 200);
}

#[test]
fn t06_a_peer_that_is_away_counts_with_its_last_word() {
    let mut world = World::of(2);
    let (db, other) = (database("d"), world.nodes[1].id);
    (0..2).for_each(|n| world.open(n, db));
    assert!(world.nodes[0].machine.holders(&db).is_empty());
    world.connect(0, 1);
    world.put(0, db, "/a", 1);
    world.settle();
    let all = world.nodes[0].engine.replica(&db).vv();
    let holders = |world: &World| world.nodes[0].machine.holders(&db);
    assert_eq!(holders(&world), BTreeMap::from([(other, all.clone())]));
    world.disconnect(0, 1);
    world.put(0, db, "/b", 1);
    world.settle();
    assert_eq!(holders(&world), BTreeMap::from([(other, all.clone())]));
    // Until it has said something new, and then that alone: it may have lost its disk.
    world.nodes[1].engine = ToyEngine::new(9);
    world.nodes[1].engine.lazy = true;
    world.open(1, db);
    world.connect(0, 1);
    assert_eq!(holders(&world), BTreeMap::from([(other, all)]));
    world.settle();
    world.assert_equal(&db);
    assert_eq!(holders(&world), BTreeMap::from([(other, VersionVector::default())]));
    world.nodes[0].engine.lazy = true;
    let closed = News::Closed(db);
    world.input(0, Input::News(closed));
    assert!(holders(&world).is_empty());
}

#[test]
fn t05_whoever_offers_a_dropped_database_is_told_so() {
    let mut world = World::of(2);
    let (db, kept) = (database("d"), database("kept"));
    for db in [db, kept] {
        (0..2).for_each(|n| world.open(n, db));
    }
    world.connect(0, 1);
    world.put(0, db, "/a", 1);
    world.settle();
    world.nodes[1].reports.clear();
    let drop_there = |world: &mut World| {
        let outputs = world.nodes[0].machine.drop_databases(&[db]);
        for output in outputs {
            let Output::Send(_, frame) = output else { panic!("{output:?}") };
            let from = world.nodes[0].id;
            world.receive(1, from, &frame);
        }
    };
    world.input(0, Input::News(News::Closed(db)));
    drop_there(&mut world);
    let a = world.nodes[0].id;
    assert_eq!(world.nodes[1].reports, [Report::Dropped(a, db)]);
    // Also one that was away meanwhile, once for each time it offers it, and nothing else comes of it.
    world.disconnect(0, 1);
    world.put(1, db, "/late", 1);
    world.connect(0, 1);
    world.settle();
    assert_eq!(world.nodes[1].reports.iter().filter(|report| **report == Report::Dropped(a, db)).count(), 2);
    assert!(world.nodes[1].machine.sessions(&a).all(|(with, _)| with == kept));
    assert!(world.nodes.iter().all(|node| node.cut.is_empty()));
}
