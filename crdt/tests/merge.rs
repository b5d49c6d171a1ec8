//! Merging beyond the scripts: disagreements, copied replicas, deep and wide graphs, the pending pool.

use std::collections::BTreeSet;

use bytes::Bytes;
use crdt::testing::{FakeSigner, FakeVerifier, Reference};
use crdt::{
    Author, Block, BlockHash, Change, Dot, Draft, Effect, Op, Parent, PendingLimits, Source, Stamp, WriteOutcome, limits,
};

use crate::world::{Node, Rng, database, key, put};

fn author(number: u8, nonce: u64) -> Author {
    Author { public_key: [number; 32], nonce }
}

fn dot(author: Author, seq: u64) -> Dot {
    Dot { replica: author.replica(&database()), seq }
}

/// A block with one put.
fn block(author: Author, seq: u64, parents: Vec<Parent>, at: &str, value: &str) -> Block {
    let change = Change::Put { value: Bytes::copy_from_slice(value.as_bytes()), expiry: None };
    let ops = vec![Op { key: key(at), change, superseded: Vec::new() }];
    sealed(author, seq, parents, ops)
}

fn sealed(author: Author, seq: u64, parents: Vec<Parent>, ops: Vec<Op>) -> Block {
    let draft = Draft { database: database(), author, seq, stamp: Stamp(seq), parents, ops, answers: Vec::new() };
    Block::seal(draft, &FakeSigner(author.public_key)).unwrap()
}

fn parent(block: &Block) -> Parent {
    Parent { dot: block.dot(), hash: block.hash() }
}

/// `len` blocks of one author, each the parent of the next and superseding its put.
fn chain(author: Author, len: u64) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for seq in 1..=len {
        let parents = blocks.last().map(parent).into_iter().collect();
        let superseded = blocks.last().map(Block::dot).into_iter().collect();
        let change = Change::Put { value: Bytes::from_static(b"x"), expiry: None };
        blocks.push(sealed(author, seq, parents, vec![Op { key: key("/k"), change, superseded }]));
    }
    blocks
}

#[test]
fn two_blocks_with_one_name_are_a_disagreement_and_the_first_stays() {
    let (first, second) = (block(author(9, 1), 1, vec![], "/k", "1"), block(author(9, 1), 1, vec![], "/k", "2"));
    let expected = Effect::Disagreement { dot: first.dot(), kept: first.hash(), other: second.hash(), source: Source(4) };
    let mut node = Node::new(1);
    node.deliver(vec![first.clone()], 3);
    let before = node.check();
    assert_eq!(node.deliver(vec![second.clone()], 4), std::slice::from_ref(&expected));
    assert_eq!(node.check(), before);
    // No longer a head, and in one turn with the first.
    node.put("/j", "1");
    let before = node.check();
    assert_eq!(node.deliver(vec![second.clone()], 4), std::slice::from_ref(&expected));
    assert_eq!(node.check(), before);
    let mut node = Node::new(1);
    let effects = node.deliver(vec![first.clone(), second.clone()], 4);
    assert_eq!(effects.last(), Some(&expected));
    let child = block(author(9, 1), 2, vec![parent(&first)], "/k", "3");
    let mut node = Node::new(1);
    let effects = node.deliver(vec![first.clone(), child, second], 4);
    assert_eq!(effects.last(), Some(&expected), "found although it is no head any more");
    assert_eq!(node.get("/k").unwrap(), "3");
    node.check();
}

#[test]
fn a_parent_with_another_address_is_a_disagreement_and_the_block_merges() {
    let first = block(author(9, 1), 1, vec![], "/k", "1");
    let wrong = Parent { dot: first.dot(), hash: BlockHash([7; 32]) };
    let child = block(author(8, 1), 1, vec![wrong], "/c", "1");
    let alarm = Effect::Disagreement { dot: first.dot(), kept: first.hash(), other: BlockHash([7; 32]), source: Source(4) };
    for together in [false, true] {
        let mut node = Node::new(1);
        let effects = if together {
            node.deliver(vec![first.clone(), child.clone()], 4)
        } else {
            node.deliver(vec![first.clone()], 4);
            node.deliver(vec![child.clone()], 4)
        };
        assert!(effects.contains(&alarm), "{effects:?}");
        assert_eq!(node.get("/c").unwrap(), "1");
        assert_eq!(node.heads(), [child.dot()], "the state follows from the names alone");
    }
}

#[test]
fn the_same_block_again_is_a_duplicate() {
    let first = block(author(9, 1), 1, vec![], "/k", "1");
    let mut node = Node::new(1);
    let effects = node.deliver(vec![first.clone(), first.clone()], 4);
    let duplicate = Effect::Duplicate { dot: first.dot(), source: Source(4) };
    assert_eq!(effects[1], duplicate);
    assert_eq!(node.deliver(vec![first.clone()], 4), [duplicate]);
    assert_eq!(node.blocks().len(), 1);
    node.check();
}

/// A node copied with its memory: both copies write under one replica id.
fn copied() -> (Node, Vec<Block>) {
    let (mut node, mut copy) = (Node::new(1), Node::new(1));
    node.put("/k", "mine");
    copy.put("/k", "mine");
    assert_eq!(node.blocks(), copy.blocks(), "until now they are one");
    copy.put("/k", "theirs");
    copy.put("/j", "theirs");
    (node, copy.blocks())
}

fn writes_as_somebody_else(node: &mut Node, old: Dot) -> WriteOutcome {
    let outcome = node.batch(vec![put("/new", "1")]);
    let new = outcome.dot.unwrap();
    assert_ne!(new.replica, old.replica, "a new nonce");
    assert_eq!(new.seq, 1);
    node.check();
    outcome
}

#[test]
fn the_own_name_in_a_strange_block_draws_a_new_nonce() {
    // The next one of the own chain, merged.
    let (mut node, theirs) = copied();
    let own = theirs[0].dot();
    node.deliver(vec![theirs[1].clone()], 1);
    writes_as_somebody_else(&mut node, own);
    // One that must wait.
    let (mut node, theirs) = copied();
    node.deliver(vec![theirs[2].clone()], 1);
    writes_as_somebody_else(&mut node, own);
    node.deliver(theirs, 1);
    node.check();
}

#[test]
fn the_own_name_in_a_block_that_was_written_here_otherwise_draws_a_new_nonce() {
    let (mut node, theirs) = copied();
    let own = node.put("/k", "mine too");
    assert_eq!(own, theirs[1].dot());
    let effects = node.deliver(vec![theirs[1].clone()], 1);
    assert!(matches!(effects.as_slice(), [Effect::Disagreement { .. }]), "{effects:?}");
    writes_as_somebody_else(&mut node, own);
}

#[test]
fn the_own_name_among_parents_or_superseded_dots_draws_a_new_nonce() {
    let tombstone = |superseded| vec![Op { key: key("/k"), change: Change::Tombstone, superseded }];
    let (_, theirs) = copied();
    let own = theirs[0].dot();
    let unknown = Parent { dot: dot(author(50, 1), 1), hash: BlockHash([1; 32]) };
    let other_hash = Parent { dot: own, hash: BlockHash([1; 32]) };
    let cases = [
        block(author(9, 1), 1, vec![parent(&theirs[1])], "/c", "1"),
        sealed(author(9, 1), 1, vec![], tombstone(vec![theirs[2].dot()])),
        // Whatever else it waits for.
        block(author(9, 1), 7, vec![unknown, parent(&theirs[1])], "/c", "1"),
        block(author(9, 1), 1, vec![other_hash], "/c", "1"),
    ];
    for strange in cases {
        let (mut node, _) = copied();
        node.deliver(vec![strange], 1);
        writes_as_somebody_else(&mut node, own);
    }
    // Blocks that name what was written here are no sign of anything.
    let (mut node, _) = copied();
    node.deliver(vec![theirs[0].clone(), block(author(9, 1), 1, vec![parent(&theirs[0])], "/c", "1")], 1);
    assert_eq!(node.put("/k", "2"), Dot { replica: own.replica, seq: 2 });
}

#[test]
fn whoever_only_names_this_writer_makes_it_draw_a_nonce_once_a_minute() {
    let mut node = Node::new(1);
    let mut own = node.put("/k", "1");
    let mut drawn = Vec::new();
    // Anybody can sign a block that names a block to come of this writer.
    for round in 0..200_u64 {
        let named = Parent { dot: Dot { replica: own.replica, seq: own.seq + 1_000 }, hash: BlockHash([1; 32]) };
        node.deliver(vec![block(author(9, round), 1, vec![named], "/c", "1")], 1);
        let next = node.put("/k", "2");
        if next.replica != own.replica {
            drawn.push(round);
        }
        own = next;
        node.now.0 += 1_000;
    }
    assert_eq!(drawn, [0, 60, 120, 180]);
    // A clock that was set back does not make it wait longer.
    node.now.0 -= 100_000;
    let named = Parent { dot: Dot { replica: own.replica, seq: own.seq + 1_000 }, hash: BlockHash([1; 32]) };
    node.deliver(vec![block(author(9, 999), 1, vec![named], "/c", "1")], 1);
    assert_ne!(node.put("/k", "3").replica, own.replica);
    node.check();
}

#[test]
fn a_new_opening_never_reuses_a_seq() {
    let mut node = Node::new(1);
    let mut dots = BTreeSet::new();
    let image = node.store.clone();
    for _ in 0..20 {
        assert!(dots.insert(node.put("/k", "1")));
        assert!(dots.insert(node.put("/k", "2")));
        node.restore(image.clone());
        assert!(dots.insert(node.put("/k", "1")));
        node.reopen();
    }
}

/// Runs with a stack of 512 KiB.
fn on_a_small_stack(test: fn()) {
    std::thread::Builder::new().stack_size(512 << 10).spawn(test).unwrap().join().unwrap();
}

#[test]
fn d16_a_chain_of_200_000_blocks_in_order_on_a_small_stack() {
    on_a_small_stack(|| {
        let blocks = chain(author(9, 1), 200_000);
        let mut node = Node::new(1);
        for part in blocks.chunks(1_000) {
            node.deliver(part.to_vec(), 1);
        }
        assert_eq!(node.vv().get(&blocks[0].dot().replica), 200_000);
        assert_eq!(node.heads(), [blocks.last().unwrap().dot()]);
        drop(node);
        drop(blocks);
    });
}

#[test]
fn d16_a_chain_delivered_in_reverse_within_the_pools_limits() {
    on_a_small_stack(|| {
        let len = limits::MAX_PENDING_BLOCKS as u64;
        let mut blocks = chain(author(9, 1), len);
        let expected = Reference::fold(&blocks);
        blocks.reverse();
        let mut node = Node::new(1);
        // Two senders, so that neither fills its share.
        for (number, block) in blocks.into_iter().enumerate() {
            node.deliver(vec![block], number as u64 % 2);
        }
        assert_eq!(node.check(), expected);
        assert_eq!(node.replica.pending(), (0, 0));
    });
}

#[test]
fn d16_verified_blocks_in_order_and_reversed_in_one_turn() {
    on_a_small_stack(|| {
        let bytes: Vec<Bytes> = chain(author(9, 1), 2_000).iter().map(|block| block.bytes().clone()).collect();
        let mut blocks: Vec<Block> = Block::verify_all(bytes, &mut FakeVerifier).into_iter().map(Result::unwrap).collect();
        blocks.reverse();
        let mut node = Node::new(1);
        node.deliver(blocks.clone(), 1);
        assert_eq!(node.check(), Reference::fold(&blocks));
    });
}

#[test]
fn d16_a_wide_graph_where_each_block_has_50_parents() {
    let mut layers: Vec<Vec<Block>> = Vec::new();
    for layer in 1..=20 {
        let parents: Vec<Parent> = layers.last().map(|blocks| blocks.iter().map(parent).collect()).unwrap_or_default();
        layers.push((0..50).map(|number| block(author(number, 1), layer, parents.clone(), "/k", "x")).collect());
    }
    let mut all: Vec<Block> = layers.concat();
    let expected = Reference::fold(&all);
    Rng(1).shuffle(&mut all);
    let mut node = Node::new(200);
    node.deliver(all.clone(), 1);
    assert_eq!(node.check(), expected);
    let mut singly = Node::new(201);
    for (number, block) in all.into_iter().enumerate() {
        singly.deliver(vec![block], number as u64);
    }
    assert_eq!(singly.check(), expected);
}

#[test]
fn the_pool_keeps_to_its_limits_and_to_each_senders_share() {
    let limits = PendingLimits { blocks: 10, bytes: 10_000, source_bytes: 5_000, source_blocks: 6 };
    let blocks = chain(author(9, 1), 30);
    let mut node = Node::with_limits(1, limits);
    let dropped = |effects: Vec<Effect>| effects.iter().filter(|effect| matches!(effect, Effect::Dropped { .. })).count();
    assert_eq!(dropped(node.deliver(blocks[1..7].to_vec(), 1)), 0);
    assert_eq!(dropped(node.deliver(blocks[7..9].to_vec(), 1)), 2, "one sender's share is full");
    assert_eq!(dropped(node.deliver(blocks[7..11].to_vec(), 2)), 0);
    assert_eq!(dropped(node.deliver(blocks[11..13].to_vec(), 3)), 2, "the pool is full");
    assert_eq!(node.replica.pending().0, 10);
    assert_eq!(node.replica.wanted().collect::<Vec<_>>(), [blocks[0].dot()], "what is wanted is what is not here");
    // A block that is here already takes no room twice.
    assert_eq!(dropped(node.deliver(blocks[1..7].to_vec(), 1)), 0);
    assert_eq!(node.replica.pending().0, 10);
    node.deliver(vec![blocks[0].clone()], 3);
    assert_eq!(node.replica.pending(), (0, 0));
    assert_eq!(node.vv().get(&blocks[0].dot().replica), 11);
    // The shares are free again.
    assert_eq!(dropped(node.deliver(blocks[12..18].to_vec(), 1)), 0);
    node.check();
    let tiny = PendingLimits { bytes: blocks[1].bytes().len(), source_bytes: 10_000, blocks: 10, source_blocks: 10 };
    let mut node = Node::with_limits(1, tiny);
    assert_eq!(dropped(node.deliver(vec![blocks[1].clone()], 1)), 0, "exactly at the limit");
    assert_eq!(dropped(node.deliver(vec![blocks[2].clone()], 1)), 1);
}

#[test]
fn a_superseded_dot_is_waited_for_though_no_parent_names_it() {
    let first = block(author(9, 1), 1, vec![], "/k", "1");
    let tombstone = Op { key: key("/k"), change: Change::Tombstone, superseded: vec![first.dot()] };
    let second = sealed(author(8, 1), 1, vec![], vec![tombstone]);
    let mut node = Node::new(1);
    let effects = node.deliver(vec![second.clone()], 1);
    assert_eq!(effects, [Effect::Held { dot: second.dot(), missing: first.dot(), source: Source(1) }]);
    node.deliver(vec![first], 1);
    assert!(node.row("/k").is_empty());
    node.check();
}

#[test]
fn a_dot_superseded_at_another_key_stays_alive_at_its_own() {
    let put = |at: &str| Op { key: key(at), change: Change::Put { value: Bytes::new(), expiry: None }, superseded: vec![] };
    let first = sealed(author(9, 1), 1, vec![], vec![put("/a"), put("/b")]);
    let tombstone = |at: &str| Op { key: key(at), change: Change::Tombstone, superseded: vec![first.dot()] };
    let second = sealed(author(8, 1), 1, vec![parent(&first)], vec![tombstone("/a"), tombstone("/c")]);
    let mut node = Node::new(1);
    node.deliver(vec![first.clone(), second], 1);
    assert_eq!(node.rows().into_keys().map(|key| key.to_string()).collect::<Vec<_>>(), ["/b"]);
    node.check();
}

#[test]
fn r19_fifteen_writers_with_fifty_concurrent_writes_each_then_one_more() {
    let mut nodes: Vec<Node> = (1..=15).map(Node::new).collect();
    for node in &mut nodes {
        for index in 0..50 {
            node.put("/k", format!("{index}"));
        }
    }
    let all: Vec<Block> = nodes.iter().flat_map(Node::blocks).collect();
    let mut rng = Rng(3);
    for node in &mut nodes {
        let mut blocks = all.clone();
        rng.shuffle(&mut blocks);
        node.deliver(blocks, 1);
        assert_eq!(node.row("/k").siblings().len(), 15);
    }
    nodes[0].put("/k", "last");
    let last = nodes[0].last_block();
    for node in &mut nodes {
        node.deliver(vec![last.clone()], 1);
        assert_eq!(node.get("/k").unwrap(), "last");
        assert_eq!(node.heads(), [last.dot()]);
    }
    let first = nodes[0].check();
    assert!(nodes.iter().all(|node| node.check() == first));
}

#[test]
fn m13_ten_thousand_puts_leave_ten_thousand_keys_and_one_head() {
    let mut node = Node::new(1);
    for index in 0..5_000 {
        node.put(&format!("/single/{index}"), "x");
    }
    for group in 0..100 {
        node.group((0..50).map(|index| (None, vec![put(&format!("/group/{group}/{index}"), "x")])).collect());
    }
    for _ in 0..2 {
        assert_eq!(node.check().rows.len(), 10_000);
        assert_eq!((node.blocks().len(), node.heads().len()), (5_100, 1));
        node.reopen();
    }
}
