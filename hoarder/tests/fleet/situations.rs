//! The situations that must be shown, each by its name.

use hoarder::Durability;
use hoarder::wire::Code;

use crate::world::{SECOND, World};

/// A fleet with one database that has its holders.
fn with_database(seed: u64, size: usize, holders: u8) -> (World, crdt::DatabaseId) {
    let mut world = World::up(seed, size);
    let database = world.create(0, 1, "a", holders);
    world.least.insert(database, holders);
    world.until("created", 20, |world| world.records.contains_key(&1));
    assert!(world.records[&1].is_ok(), "{:?}", world.records[&1]);
    world.until("held", 60, |world| world.ready(&database).len() == usize::from(holders));
    (world, database)
}

#[test]
fn a_fleet_comes_up_makes_a_database_and_confirms_a_write_from_any_node() {
    let (mut world, database) = with_database(1, 3, 2);
    for node in 0..3 {
        world.write(node, 10 + node as u64, 100 + node as u64, database, Durability::Require(2));
    }
    world.until("answered", 10, |world| world.replies.len() == 3);
    for (code, answer) in world.replies.values() {
        assert_eq!(*code, Code::Done);
        assert_eq!(answer.holders.len(), 2);
    }
    world.run(SECOND);
}
