//! R21: very many writers at once, and a very long chain. In full with `R21=full`: 500 writers with 100 concurrent blocks
//! each, and a chain of 200,000 blocks.

use bytes::Bytes;
use crdt::testing::FakeSigner;
use crdt::{Author, Block, Change, DatabaseId, Dot, Draft, Heads, Key, Op, Stamp};
use simulations::checkers;
use simulations::scenario::{Faults, Scenario, Topology, Workload};
use simulations::time::Time;
use simulations::world::World;

/// Writers, blocks of each, and the length of the chain.
fn size() -> (u64, u64, u64) {
    if std::env::var("R21").is_ok_and(|size| size == "full") { (500, 100, 200_000) } else { (120, 20, 3_000) }
}

/// The blocks of one writer who knows nobody else, one after the other.
fn branch(database: DatabaseId, writer: u64, count: u64) -> Vec<Block> {
    let signer = FakeSigner([1; 32]);
    let author = Author { public_key: [1; 32], nonce: writer };
    let replica = author.replica(&database);
    let mut heads = Heads::default();
    let mut last: Option<Dot> = None;
    let key = Key::parse(&format!("/writers/{writer}")).unwrap();
    (1..=count)
        .map(|seq| {
            let change = Change::Put { value: Bytes::from(format!("{writer}/{seq}")), expiry: None };
            let op = Op { key: key.clone(), change, superseded: last.into_iter().collect() };
            let (parents, stamp) = (heads.parents(Some(replica)), Stamp((writer << 32) + seq));
            let draft = Draft { database, author, seq, stamp, parents, ops: vec![op], answers: Vec::new() };
            let block = Block::seal(draft, &signer).unwrap();
            heads.merge(&block);
            last = Some(block.dot());
            block
        })
        .collect()
}

/// One node has the blocks, the next gets them from it, and a third from that one.
fn spread(name: &str, make: impl Fn(DatabaseId) -> Vec<Block>) {
    let scenario = Scenario {
        nodes: 3,
        topology: Topology::Line,
        workload: Workload { clients: 0, ..Workload::default() },
        faults: Faults { gap_ms: 0, ..Faults::default() },
        ..Scenario::default()
    };
    let mut world = World::new(&scenario, 1, checkers::all(&scenario));
    while world.step(Time::secs(2)) {}
    let database = world.view().databases()[0];
    let blocks = make(database);
    for some in blocks.chunks(200) {
        world.deliver(0, some.to_vec());
    }
    let all = |world: &World| {
        let have = |node| world.view().replica(node, &database).map_or(0, |replica| replica.meta().revision);
        (0..3).all(|node| have(node) == blocks.len() as u64)
    };
    let mut until = Time::secs(2);
    while !all(&world) && until < Time::secs(900) && world.violation().is_none() {
        until = until + Time::ms(250);
        while world.step(until) {}
    }
    world.finish();
    assert_eq!(world.violation(), None, "{name}");
    assert!(all(&world) && world.all_equal(), "{name}: not equal after {until} s");
    let frames = world.counters().get("frames_sent").copied().unwrap_or(0);
    // Acknowledgements of durable entries included; no question for each block.
    assert!(frames < blocks.len() as u64 / 4 + 500, "{name}: {frames} frames for {} blocks", blocks.len());
}

#[test]
fn r21_very_many_concurrent_writers_and_a_long_chain() {
    let (writers, each, chain) = size();
    spread("writers", |database| {
        let mut branches: Vec<_> = (0..writers).map(|writer| branch(database, writer, each).into_iter()).collect();
        // Turn by turn, as they would come.
        (0..each).flat_map(|_| branches.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()).collect()
    });
    spread("chain", |database| branch(database, 0, chain));
}
