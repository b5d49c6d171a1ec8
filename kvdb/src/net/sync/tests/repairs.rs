//! Replicas that are replaced by a peer's: equal in the end, and the old state or the new one whatever happens meanwhile.

use crdt::snapshot::Purpose;
use crdt::{Key, Row};

use super::*;

fn key(i: usize) -> Key {
    Key::parse(&format!("/k/{i:05}")).unwrap()
}

/// The first of two replicas has lost rows that it should have; its figures say nothing of it.
fn damaged(seed: u64) -> (World, DatabaseId) {
    let mut world = World::new((1..=2).map(ToyEngine::new).collect(), seed);
    let db = database("d");
    (0..2).for_each(|n| world.open(n, db));
    (0..60).for_each(|i| world.put(i % 2, db, &key(i).to_string(), 40));
    world.connect(0, 1);
    world.settle();
    world.assert_equal(&db);
    for lost in [3, 30, 59] {
        world.nodes[0].engine.store.damage(&db, &key(lost), |row, _| *row = Row::default());
    }
    (world, db)
}

impl World {
    fn repair(&mut self, db: DatabaseId, purpose: Purpose) {
        let other = self.nodes[1].id;
        let outputs = self.nodes[0].machine.repair(db, other, purpose);
        for output in outputs {
            match output {
                Output::Send(to, frame) => {
                    let (to, from) = (self.index(&to), self.nodes[0].id);
                    self.nodes[to].links.get_mut(&from).unwrap().push_back(frame);
                }
                Output::Repaired(_, outcome) => self.nodes[0].repairs.push(outcome),
                Output::Report(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn keys(&self, n: usize, db: &DatabaseId) -> usize {
        let view = self.nodes[n].engine.store.view(db).unwrap();
        let all = crdt::KeyRange::of(&crdt::Prefix::root());
        view.scan(all, crdt::Order::Ascending, crdt::Projection::Keys).count()
    }

    /// The rows are whole, and the figures those of the rows.
    fn assert_whole(&self, n: usize, db: &DatabaseId) {
        let view = self.nodes[n].engine.store.view(db).unwrap();
        let found = crate::verify::verify(&view, db, &mut crdt::Zip215(rand::rng()));
        assert!(found.is_sound(), "{:?}", found.damages);
    }
}

#[test]
fn d08_a_replica_is_replaced_and_the_sync_goes_on() {
    for seed in 0..20 {
        let (mut world, db) = damaged(seed);
        assert_eq!(world.keys(0, &db), 57);
        world.repair(db, Purpose::Replace);
        world.settle();
        assert_eq!(world.nodes[0].repairs, [Ok(())]);
        assert_eq!(world.keys(0, &db), 60);
        world.assert_whole(0, &db);
        world.assert_equal(&db);
        assert!(world.nodes.iter().all(|node| node.views.is_empty()), "views are closed");
        // No history is left, and what is new is fed both ways; the next write is another writer's.
        let before = world.nodes[0].engine.replica(&db).vv();
        (0..4).for_each(|i| world.put(i % 2, db, "/new", 10));
        world.settle();
        world.assert_equal(&db);
        assert_eq!(world.nodes[0].engine.replica(&db).vv().len(), before.len() + 1);
        assert_eq!(world.nodes[1].machine.durable(&world.nodes[0].id, &db), Some(&world.nodes[0].engine.replica(&db).vv()));
    }
}

#[test]
fn what_the_peer_lacks_is_not_lost_unless_that_is_accepted() {
    let (mut world, db) = damaged(1);
    world.disconnect(0, 1);
    // The peer has dropped what this one needs to go on, so that neither can bring the other on by itself.
    let missing = database("elsewhere");
    assert_ne!(missing, db);
    world.nodes[0].engine.put(db, "/mine", b"only here");
    world.nodes[1].machine.handle(Input::Tick, world.now);
    world.connect(0, 1);
    world.repair(db, Purpose::Replace);
    world.settle();
    // Not connected is what the machine says before both have said what they have open.
    assert_eq!(world.nodes[0].repairs, [Err(RepairFailure::NotConnected)]);
    world.nodes[0].engine.put(db, "/mine", b"and this");
    world.repair(db, Purpose::Replace);
    world.settle();
    assert!(matches!(world.nodes[0].repairs[1], Err(RepairFailure::Lacking(_))), "{:?}", world.nodes[0].repairs);
    assert_eq!(world.keys(0, &db), 58, "as it was");
    assert!(world.nodes[0].cut.is_empty() && world.nodes[1].cut.is_empty());
    world.repair(db, Purpose::ReplaceAndLose);
    world.settle();
    assert_eq!(world.nodes[0].repairs[2], Ok(()));
    world.assert_whole(0, &db);
    world.assert_equal(&db);
}

#[test]
fn a_repair_that_is_cut_or_ends_with_its_process_leaves_the_old_replica_or_the_new_one() {
    let (mut old, mut new, mut cut) = (0, 0, 0);
    for seed in 0..60 {
        let (mut world, db) = damaged(seed);
        world.repair(db, Purpose::Replace);
        let steps = world.random(600);
        (0..steps).for_each(|_| _ = world.step());
        if seed % 3 == 0 {
            world.disconnect(0, 1);
            while world.step() {}
            cut += usize::from(matches!(world.nodes[0].repairs[..], [Err(_)]));
        } else {
            world.restart(usize::from(seed % 3 == 2), &[db]);
            while world.step() {}
        }
        match world.keys(0, &db) {
            57 => old += 1,
            60 => {
                new += 1;
                world.assert_whole(0, &db);
            }
            keys => panic!("{keys} keys: neither the old replica nor the new one"),
        }
        world.connect(0, 1);
        world.settle();
        world.nodes[0].repairs.clear();
        world.repair(db, Purpose::Replace);
        world.settle();
        assert_eq!(world.nodes[0].repairs, [Ok(())], "seed {seed}");
        world.assert_whole(0, &db);
        assert!(world.equal(&db), "seed {seed}");
    }
    assert!(old > 0 && new > 0 && cut > 0, "{old} old, {new} new, {cut} cut");
}
