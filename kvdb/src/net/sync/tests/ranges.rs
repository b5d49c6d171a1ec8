//! Replicas of the same blocks that are not equal: the keys are found, whatever happens to the stream meanwhile.

use crdt::{Digest, Key, Row};

use super::*;
use crate::net::limits::MAX_DIFFERING_KEYS;

/// Two equal replicas of so many keys.
fn pair(keys: usize, seed: u64) -> (World, DatabaseId) {
    let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    (0..keys).for_each(|i| world.put(i % 2, db, &key(i).to_string(), 3));
    world.connect(0, 1);
    world.settle();
    world.assert_equal(&db);
    world.disconnect(0, 1);
    (world, db)
}

fn key(i: usize) -> Key {
    Key::parse(&format!("/k/{i:05}")).unwrap()
}

impl World {
    /// Another row at a key of one replica, and the digest that goes with it.
    fn damage(&mut self, n: usize, db: DatabaseId, key: &Key, change: impl FnOnce(&mut Row)) {
        let sum = |row: &Row| row.siblings().iter().fold(0_u128, |sum, one| sum.wrapping_add(one.check.0));
        self.nodes[n].engine.store.damage(&db, key, |row, digest| {
            let before = sum(row);
            change(row);
            *digest = Digest(digest.0.wrapping_sub(before).wrapping_add(sum(row)));
        });
    }

    fn lose(&mut self, n: usize, db: DatabaseId, key: &Key) {
        self.damage(n, db, key, |row| *row = Row::default());
    }

    /// Both start anew from what their stores have, so that they believe what is there.
    fn reopen(&mut self, db: DatabaseId) {
        (0..2).for_each(|n| self.restart(n, &[db]));
        self.connect(0, 1);
    }

    fn found(&self, n: usize, db: &DatabaseId) -> Comparison {
        self.nodes[n].machine.comparisons(db).next().cloned().unwrap()
    }
}

fn flip(row: &mut Row) {
    let mut siblings = row.siblings().to_vec();
    siblings[0].check.0 ^= 1;
    *row = Row::new(siblings);
}

#[test]
fn the_keys_that_differ_are_found_and_told_on_both_sides() {
    for (keys, seed) in [(1, 1), (5, 2), (63, 3), (64, 4), (65, 5), (700, 6)] {
        let (mut world, db) = pair(keys, seed);
        let (first, last, middle) = (key(0), key(keys - 1), key(keys / 2));
        world.damage(0, db, &first, flip);
        world.lose(1, db, &last);
        world.lose(0, db, &middle);
        world.reopen(db);
        world.settle();
        let mut expected = BTreeMap::from([(first, Side::Both), (last, Side::Here), (middle, Side::There)]);
        if keys == 1 {
            // One key lost by both.
            assert!(world.nodes[0].machine.comparisons(&db).next().is_none());
            continue;
        }
        let found = world.found(0, &db);
        assert_eq!((&found.state, &found.keys, found.more), (&CompareState::Done, &expected, 0), "{keys}");
        for side in expected.values_mut() {
            *side = match side {
                Side::Here => Side::There,
                Side::There => Side::Here,
                Side::Both => Side::Both,
            };
        }
        assert_eq!(world.found(1, &db).keys, expected, "{keys}");
        // Each level asks once about what differs.
        let asks = world.nodes[0].sent["asks"];
        assert!(asks <= 10, "{asks} questions for {keys} keys");
        assert!(world.nodes.iter().all(|node| node.cut.is_empty()));
    }
}

#[test]
fn a_whole_half_may_be_gone_and_what_is_beyond_the_list_is_counted() {
    let (mut world, db) = pair(2_600, 7);
    (300..2_300).for_each(|i| world.lose(1, db, &key(i)));
    world.reopen(db);
    world.settle();
    for n in 0..2 {
        let Comparison { state, keys, more, .. } = world.found(n, &db);
        let side = if n == 0 { Side::Here } else { Side::There };
        assert_eq!((state, keys.len()), (CompareState::Done, MAX_DIFFERING_KEYS));
        assert!(keys.values().all(|found| *found == side), "{n}");
        assert!(more >= 1_000, "{more}");
    }
}

#[test]
fn a_comparison_survives_cuts_and_writes_meanwhile() {
    for seed in 0..30 {
        let (mut world, db) = pair(400, seed);
        let lost = [3, 77, 78, 250, 399].map(key);
        for key in &lost {
            world.lose(1, db, key);
        }
        world.reopen(db);
        for round in 0..6 {
            for _ in 0..20 + 7 * seed {
                world.step();
            }
            world.put(round % 2, db, "/other", 5);
            world.disconnect(0, 1);
            while world.step() {}
            world.connect(0, 1);
            world.pass(Duration::from_millis(150));
        }
        world.settle();
        let expected: BTreeMap<Key, Side> = lost.iter().map(|key| (key.clone(), Side::Here)).collect();
        let found = world.found(0, &db);
        assert_eq!((found.state, found.keys), (CompareState::Done, expected), "seed {seed}");
    }
}

#[test]
fn what_is_mended_is_not_told_any_more() {
    let (mut world, db) = pair(20, 1);
    let kept = world.nodes[1].engine.store.clone();
    world.lose(1, db, &key(4));
    world.reopen(db);
    world.settle();
    assert_eq!(world.found(0, &db).keys.len(), 1);
    world.nodes[1].engine.store = kept;
    world.restart(1, &[db]);
    world.connect(0, 1);
    world.settle();
    assert!(world.nodes[0].machine.comparisons(&db).next().is_none());
}

#[test]
fn equal_replicas_are_compared_when_somebody_asks() {
    let (mut world, db) = pair(300, 1);
    world.connect(0, 1);
    world.settle();
    let other = world.nodes[1].id;
    assert!(!world.nodes[0].machine.compare(database("other"), other).0);
    let (begun, outputs) = world.nodes[0].machine.compare(db, other);
    assert!(begun && outputs.len() == 1);
    for output in outputs {
        let Output::Send(_, frame) = output else { panic!() };
        let from = world.nodes[0].id;
        world.nodes[1].links.get_mut(&from).unwrap().push_back(frame);
    }
    world.settle();
    assert!(world.found(0, &db).is_equal());
    assert_eq!(world.nodes[0].machine.comparisons(&database("other")).count(), 0);
}

#[test]
fn an_answer_that_has_nothing_to_do_with_the_question_ends_the_stream() {
    let part = |i: usize, keys| crate::net::wire::Part { through: key(i), keys, digest: Digest(1) };
    let cases = [(vec![], Some(key(1)), true), (vec![part(1, 1)], None, false), (vec![part(1, 1)], Some(key(5)), false)];
    for (parts, through, bad) in cases {
        let (mut world, db) = pair(20, 1);
        world.lose(1, db, &key(4));
        world.reopen(db);
        while !world.nodes[0].sent.contains_key("asks") {
            assert!(world.step());
        }
        let other = world.nodes[1].id;
        for number in 0..20 {
            let parts = parts.clone();
            let frame = RangeFrame::Parts { number, vv_hash: [0; 32], parts, through: through.clone() };
            world.receive(0, other, &Frame::Ranges(db, frame));
        }
        assert_eq!(!world.nodes[0].cut.is_empty(), bad, "{:?}", world.nodes[0].cut);
    }
}
