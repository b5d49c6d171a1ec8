//! Peers that come back after more than the history, under faults of every kind.

use super::*;

/// The first nodes have written and dropped history, the last one has been away.
fn away(nodes: u8, seed: u64) -> (World, DatabaseId) {
    let mut world = World::new((1..=nodes).map(ToyEngine::new).collect(), seed);
    let db = database("d");
    let last = usize::from(nodes) - 1;
    (0..=last).for_each(|n| world.open(n, db));
    for a in 0..last {
        (a + 1..=last).for_each(|b| world.connect(a, b));
    }
    (0..20).for_each(|i| world.put(i % (last + 1), db, &format!("/k{i}"), 30));
    world.settle();
    (0..last).for_each(|n| world.disconnect(n, last));
    for i in 0..30 {
        world.put(i % last, db, &format!("/k{}", i % 9), 40);
        world.delete(i % last, db, &format!("/k{}", 10 + i % 5));
        world.put(last, db, &format!("/own{}", i % 4), 20);
    }
    world.settle();
    (0..last).for_each(|n| world.truncate(n, db, u64::MAX));
    world.settle();
    (world, db)
}

impl World {
    /// The chunks of the one snapshot that a node is sending.
    fn chunks_of_view(&self, n: usize) -> usize {
        let PlainView(store, db) = self.nodes[n].views.values().next().unwrap();
        let view = store.view(db).unwrap();
        let (state, mut at, mut count) = (view.state().unwrap(), Some(Cursor::START), 0);
        while let Some(place) = at {
            at = read_view(&view, &state, &place, self.chunk_bytes).unwrap().next;
            count += 1;
        }
        count
    }
}

fn connect_all(world: &mut World, last: usize) {
    (0..last).for_each(|n| world.connect(n, last));
}

#[test]
fn d03_a_node_that_was_away_for_longer_than_the_history_comes_back_by_a_snapshot() {
    for seed in 0..20 {
        let (mut world, db) = away(3, seed);
        connect_all(&mut world, 2);
        world.settle();
        world.assert_equal(&db);
        assert_eq!(world.nodes[2].begun, 1, "one snapshot, whoever offers one");
        assert!(world.nodes.iter().all(|node| node.views.is_empty()), "views are closed");
        let db = &db;
        assert!(world.nodes.iter().all(|node| node.machine.snapshot_views(db).next().is_none()), "nothing is held back");
        // A feed like any other from now on.
        world.put(0, *db, "/later", 10);
        world.put(2, *db, "/later too", 10);
        world.settle();
        world.assert_equal(db);
        assert_eq!(world.nodes[2].begun, 1);
    }
}

#[test]
fn each_may_lack_what_the_other_has_dropped() {
    for seed in 0..20 {
        let (mut world, db) = away(2, seed);
        world.truncate(1, db, u64::MAX);
        world.connect(0, 1);
        world.settle();
        world.assert_equal(&db);
        assert_eq!((world.nodes[0].begun, world.nodes[1].begun), (1, 1));
    }
}

#[test]
fn a_cut_transfer_goes_on_with_the_same_view_only() {
    let chunks = |world: &World| world.nodes[0].sent.get("chunks").copied().unwrap_or(0);
    for restart in [false, true] {
        let (mut world, db) = away(2, 1);
        world.connect(0, 1);
        while chunks(&world) < 5 {
            assert!(world.step());
        }
        let total = world.chunks_of_view(0);
        world.disconnect(0, 1);
        if restart {
            // The receiver keeps what it has staged.
            world.restart(1, &[db]);
        }
        world.settle();
        let before = chunks(&world);
        let staged = world.nodes[1].engine.store.view(&db).unwrap().staged().unwrap().unwrap();
        assert!(staged.chunks > 0 && !staged.is_complete());
        world.put(0, db, "/meanwhile", 10);
        world.connect(0, 1);
        world.settle();
        world.assert_equal(&db);
        let all = usize::try_from(staged.chunks).unwrap() + chunks(&world) - before;
        assert_eq!(all, total, "nothing is sent twice by the same view");
        // In a sender that has started anew there is no such view: all of it comes again.
        let (mut other, db) = away(2, 1);
        other.connect(0, 1);
        while chunks(&other) < 5 {
            assert!(other.step());
        }
        other.restart(0, &[db]);
        let before = chunks(&other);
        other.connect(0, 1);
        other.settle();
        other.assert_equal(&db);
        assert!(chunks(&other) - before >= total, "everything comes again by another view");
    }
}

#[test]
fn a_silent_sender_is_given_up_for_another_one() {
    let (mut world, db) = away(3, 4);
    world.connect(0, 2);
    while !world.nodes[2].machine.takes_snapshot(&db) {
        assert!(world.step());
    }
    // Node 0 reads nothing from its store any more.
    for _ in 0..10_000 {
        world.nodes[0].jobs.retain(|job| !matches!(job, Job::OpenView(..) | Job::ReadView(..)));
        if !world.step() {
            break;
        }
    }
    world.connect(1, 2);
    world.pass(Duration::from_secs(400));
    world.assert_equal(&db);
    assert!(world.nodes[2].begun > 1);
}

#[test]
fn a_node_serves_few_snapshots_at_a_time_and_the_others_come_later() {
    let mut world = World::of(7);
    let db = database("d");
    world.open(0, db);
    (0..40).for_each(|i| world.put(0, db, &format!("/k{i}"), 50));
    while world.step() {}
    world.truncate(0, db, u64::MAX);
    (1..7).for_each(|n| world.open(n, db));
    while world.step() {}
    (1..7).for_each(|n| world.connect(0, n));
    let mut most = 0;
    for _ in 0..100_000 {
        most = most.max(world.nodes[0].views.len());
        if !world.step() {
            break;
        }
    }
    world.settle();
    world.assert_equal(&db);
    assert!(most <= 2, "{most} views at a time");
}

#[test]
fn views_and_history_are_not_kept_for_ever() {
    let (mut world, db) = away(2, 3);
    world.connect(0, 1);
    while world.nodes[0].views.is_empty() || !world.nodes[0].sent.contains_key("chunks") {
        assert!(world.step());
    }
    world.disconnect(0, 1);
    assert_eq!(world.nodes[0].machine.snapshot_views(&db).count(), 1);
    world.pass(Duration::from_secs(900));
    assert_eq!(world.nodes[0].machine.snapshot_views(&db).count(), 0);
    assert!(world.nodes[0].views.is_empty());
}

#[test]
fn a_sender_of_bad_snapshots_is_cut_off_and_another_one_is_asked() {
    let (mut world, db) = away(3, 9);
    world.connect(0, 2);
    let (bad, to) = (world.nodes[0].id, world.nodes[2].id);
    'damage: for _ in 0..100_000 {
        assert!(world.step());
        for frame in world.nodes[2].links.get_mut(&bad).unwrap() {
            if let Frame::Snapshot(_, SnapshotFrame::Head { head, .. }) = frame {
                let mut wrong = crdt::SnapshotHead::decode(head.clone()).unwrap();
                wrong.digest.0 ^= 1;
                *head = wrong.encode();
                break 'damage;
            }
        }
    }
    let before = world.nodes[2].engine.replica(&db).vv();
    world.settle();
    assert!(matches!(
        world.nodes[2].cut.as_slice(),
        [(peer, DisconnectReason::Misbehaved(Misbehaviour::Snapshot(_)))] if *peer == bad
    ));
    assert_eq!(world.nodes[2].engine.replica(&db).vv(), before, "nothing has changed");
    assert_eq!(world.nodes[2].engine.store.view(&db).unwrap().staged().unwrap(), None);
    world.nodes[2].cut.clear();
    world.nodes[0].links.remove(&to);
    world.input(0, Input::PeerDown(to));
    world.nodes.iter_mut().for_each(|node| node.cut.clear());
    world.connect(1, 2);
    world.settle();
    world.assert_equal(&db);
}

#[test]
fn a_node_whose_disk_cannot_join_asks_for_snapshots_less_and_less_often() {
    let (mut world, db) = away(3, 11);
    world.nodes[2].engine.joins_fail = true;
    connect_all(&mut world, 2);
    world.pass(Duration::from_secs(600));
    let sent = |world: &World| world.nodes[0].machine.snapshot_count() + world.nodes[1].machine.snapshot_count();
    let asked = sent(&world);
    assert!((2..=10).contains(&asked), "{asked} snapshots in ten minutes");
    assert!(world.nodes.iter().all(|node| node.cut.is_empty()), "nobody is cut off for it");
    world.nodes[2].engine.joins_fail = false;
    world.pass(Duration::from_secs(900));
    world.assert_equal(&db);
}

quickcheck! {
    /// Senders and receivers die, streams are cut, history is dropped and everybody writes while snapshots are on their
    /// way: in the end all are equal.
    fn snapshots_under_any_faults_end_equal(seed: u64) -> bool {
        let (mut world, db) = away(3, seed);
        let mut linked = [[false; 3]; 3];
        linked[0][1] = true;
        for _ in 0..world.random(30) {
            match world.random(9) {
                0..=2 => {
                    let (a, b) = [(0, 1), (0, 2), (1, 2)][world.random(3)];
                    if std::mem::replace(&mut linked[a][b], true) {
                        linked[a][b] = false;
                        world.disconnect(a, b);
                    } else {
                        world.connect(a, b);
                    }
                }
                3 => {
                    let n = world.random(3);
                    world.restart(n, &[db]);
                    (0..3).for_each(|other| (linked[n][other], linked[other][n]) = (false, false));
                }
                4 => {
                    let n = world.random(3);
                    world.truncate(n, db, u64::MAX);
                }
                5 => world.pass(Duration::from_secs(30)),
                _ => {
                    let (n, key) = (world.random(3), format!("/k{}", world.random(15)));
                    if world.random(3) == 0 { world.delete(n, db, &key) } else { world.put(n, db, &key, 60) }
                }
            }
            for _ in 0..world.random(200) {
                world.step();
            }
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            if !linked[a][b] {
                world.connect(a, b);
            }
        }
        world.settle();
        world.assert_equal(&db);
        true
    }
}
