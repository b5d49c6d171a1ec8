//! Laws, over random histories of several nodes. `QUICKCHECK_TESTS` sets how many.
#![allow(clippy::needless_pass_by_value, reason = "quickcheck hands its values over")]

use std::collections::BTreeSet;

use crdt::testing::{MemoryStore, Reference};
use crdt::{
    Block, Effect, Input, LocalOp, OpOutcome, PendingLimits, RequestId, Row, Sibling, Source, Terms, VersionVector, WallTime,
};
use quickcheck::{Arbitrary, Gen, QuickCheck};

use crate::world::{Node, Rng, delete, outcomes, put, put_until};

const NODES: u8 = 4;
const KEYS: [&str; 4] = ["/a", "/a/b", "/c", "/d"];

/// One thing that happens to a node.
#[derive(Debug, Clone)]
enum Event {
    /// Local writes, each a batch, that wait together.
    Write(Vec<Vec<Change>>),
    /// Part of another node's blocks arrive, in any order, some twice.
    Receive {
        from: u8,
        seed: u64,
    },
    /// Another node's blocks arrive in order.
    Pull {
        from: u8,
    },
    /// The process ends and starts again.
    Reopen,
    /// The disk is copied, or the copy put back.
    Save,
    Restore,
    /// The node's clock jumps.
    Clock(u64),
}

#[derive(Debug, Clone)]
enum Change {
    Put {
        key: u8,
        len: u8,
    },
    PutUntil {
        key: u8,
        at: u64,
    },
    /// A put that has seen nothing: one more sibling.
    Beside {
        key: u8,
        len: u8,
    },
    Delete {
        key: u8,
    },
}

impl Arbitrary for Change {
    fn arbitrary(g: &mut Gen) -> Self {
        let key = u8::arbitrary(g) % 4;
        match u8::arbitrary(g) % 8 {
            0..3 => Self::Put { key, len: u8::arbitrary(g) % 40 },
            3 => Self::PutUntil { key, at: 999_990 + u64::from(u8::arbitrary(g) % 20) },
            4 => Self::Beside { key, len: u8::arbitrary(g) % 40 },
            _ => Self::Delete { key },
        }
    }
}

impl Arbitrary for Event {
    fn arbitrary(g: &mut Gen) -> Self {
        let batch = |g: &mut Gen| (0..=u8::arbitrary(g) % 3).map(|_| Change::arbitrary(g)).collect();
        match u8::arbitrary(g) % 16 {
            0..6 => Self::Write((0..=u8::arbitrary(g) % 3).map(|_| batch(g)).collect()),
            6..10 => Self::Receive { from: u8::arbitrary(g) % NODES, seed: u64::arbitrary(g) },
            10..12 => Self::Pull { from: u8::arbitrary(g) % NODES },
            12 => Self::Reopen,
            13 => Self::Save,
            14 => Self::Restore,
            _ => Self::Clock(999_990 + u64::from(u8::arbitrary(g) % 20)),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match self {
            Self::Write(batches) if batches.len() > 1 || batches[0].len() > 1 => {
                let one = |change: &Change| Self::Write(vec![vec![change.clone()]]);
                Box::new(batches.iter().flatten().map(one).collect::<Vec<_>>().into_iter())
            }
            Self::Receive { from, .. } => Box::new(std::iter::once(Self::Pull { from: *from })),
            _ => Box::new(std::iter::empty()),
        }
    }
}

impl Change {
    fn op(&self) -> LocalOp {
        match self {
            Self::Put { key, len } => put(KEYS[usize::from(*key)], vec![*len; usize::from(*len)]),
            Self::PutUntil { key, at } => put_until(KEYS[usize::from(*key)], "soon", *at),
            Self::Beside { key, len } => {
                let terms = Terms { condition: None, seen: Some(Vec::new()) };
                LocalOp { terms: Some(Box::new(terms)), ..put(KEYS[usize::from(*key)], vec![*len; usize::from(*len)]) }
            }
            Self::Delete { key } => delete(KEYS[usize::from(*key)]),
        }
    }
}

/// Plays a history; after each event the node that it happened to must equal the reference of its own merged set.
fn play(history: &[(u8, Event)], limits: PendingLimits) -> Vec<Node> {
    let mut nodes: Vec<Node> = (0..NODES).map(|number| Node::with_limits(number, limits)).collect();
    let mut images: Vec<Option<MemoryStore>> = vec![None; usize::from(NODES)];
    for (number, event) in history {
        let at = usize::from(number % NODES);
        let vv_before = nodes[at].vv();
        let mut falls = false;
        match event {
            Event::Write(batches) => {
                let writes = batches.iter().map(|batch| (None, batch.iter().map(Change::op).collect())).collect();
                nodes[at].group(writes);
            }
            Event::Receive { from, seed } => {
                let blocks = some_of(nodes[usize::from(*from)].blocks(), &mut Rng(*seed));
                nodes[at].deliver(blocks, u64::from(*from));
            }
            Event::Pull { from } => {
                let blocks = nodes[usize::from(*from)].blocks();
                nodes[at].deliver(blocks, u64::from(*from));
            }
            Event::Reopen => nodes[at].reopen(),
            Event::Save => images[at] = Some(nodes[at].store.clone()),
            Event::Restore => {
                if let Some(image) = images[at].take() {
                    nodes[at].restore(image);
                    falls = true;
                }
            }
            Event::Clock(now) => nodes[at].now = WallTime(*now),
        }
        assert!(falls || nodes[at].vv().dominates(&vv_before), "a merged set shrank");
        nodes[at].check();
    }
    nodes
}

/// A random part in random order, some blocks twice.
fn some_of(mut blocks: Vec<Block>, rng: &mut Rng) -> Vec<Block> {
    rng.shuffle(&mut blocks);
    let again: Vec<Block> = blocks.iter().take(blocks.len() / 4).cloned().collect();
    blocks.truncate(blocks.len() - rng.below(blocks.len() / 2 + 1));
    blocks.extend(again);
    rng.shuffle(&mut blocks);
    blocks
}

fn quick(times: u64) -> QuickCheck {
    let times = std::env::var("QUICKCHECK_TESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(times);
    QuickCheck::new().tests(times)
}

#[test]
fn any_order_of_delivery_gives_the_state_of_the_reference() {
    fn law(history: Vec<(u8, Event)>, seed: u64) {
        let mut nodes = play(&history, PendingLimits::default());
        let mut rng = Rng(seed);
        let all: Vec<Block> = nodes.iter().flat_map(Node::blocks).collect();
        for node in &mut nodes {
            // What waits for blocks that only a lost disk had would wait for ever.
            node.reopen();
            let mut blocks = all.clone();
            rng.shuffle(&mut blocks);
            // In groups of any size, each a turn.
            while !blocks.is_empty() {
                let group = blocks.split_off(blocks.len() - 1 - rng.below(blocks.len().min(9)));
                node.deliver(group, rng.next() % 3);
                node.check();
            }
        }
        let expected = Reference::fold(&all);
        for node in &nodes {
            assert_eq!(node.check(), expected);
            assert_eq!(node.replica.pending(), (0, 0), "everything has arrived, nothing waits");
            assert_eq!(node.replica.wanted().count(), 0);
        }
        // One turn for all, from nothing.
        let mut fresh = Node::new(200);
        let mut blocks = all;
        rng.shuffle(&mut blocks);
        fresh.deliver(blocks, 1);
        assert_eq!(fresh.check(), expected);
    }
    quick(150).quickcheck(law as fn(Vec<(u8, Event)>, u64));
}

#[test]
fn a_full_pool_drops_blocks_and_a_later_delivery_brings_them() {
    fn law(history: Vec<(u8, Event)>, seed: u64) {
        let limits = PendingLimits { blocks: 5, bytes: 2_000, source_bytes: 1_500, source_blocks: 4 };
        let nodes = play(&history, limits);
        let mut rng = Rng(seed);
        let all: Vec<Block> = nodes.iter().flat_map(Node::blocks).collect();
        let expected = Reference::fold(&all);
        let mut fresh = Node::with_limits(200, limits);
        // Each round merges at least the first ready block.
        for _ in 0..=all.len() {
            let mut blocks = all.clone();
            rng.shuffle(&mut blocks);
            fresh.deliver(blocks, rng.next() % 3);
            fresh.check();
        }
        assert_eq!(fresh.check(), expected);
    }
    quick(60).quickcheck(law as fn(Vec<(u8, Event)>, u64));
}

#[test]
fn two_nodes_with_equal_sets_are_equal_whatever_their_paths() {
    fn law(history: Vec<(u8, Event)>) {
        let mut nodes = play(&history, PendingLimits::default());
        // Each pulls from the next, round and round: once to bring what others wait for, once to spread what they held.
        for round in 0..2 * usize::from(NODES).pow(2) {
            let at = round % nodes.len();
            let from = nodes[(at + 1) % nodes.len()].blocks();
            nodes[at].deliver(from, 1);
        }
        let first = nodes[0].check();
        for node in &nodes[1..] {
            assert_eq!(node.check(), first);
            assert_eq!(node.replica.heads().hash(), nodes[0].replica.heads().hash());
            assert_eq!(node.vv().hash(), nodes[0].vv().hash());
        }
    }
    quick(60).quickcheck(law as fn(Vec<(u8, Event)>));
}

#[test]
fn no_dot_ever_names_two_blocks() {
    fn law(history: Vec<(u8, Event)>) {
        let mut nodes = play(&history, PendingLimits::default());
        let all: Vec<Block> = nodes.iter().flat_map(Node::blocks).collect();
        let names: BTreeSet<_> = all.iter().map(|block| (block.dot(), block.hash())).collect();
        let dots: BTreeSet<_> = all.iter().map(Block::dot).collect();
        assert_eq!(names.len(), dots.len());
        let effects = nodes[0].deliver(all, 1);
        assert!(!effects.iter().any(|effect| matches!(effect, crdt::Effect::Disagreement { .. })), "{effects:?}");
    }
    quick(60).quickcheck(law as fn(Vec<(u8, Event)>));
}

#[test]
fn joining_rows_equals_merging_the_blocks_of_both() {
    fn row(node: &Node, key: &str) -> (Row, VersionVector) {
        (Row::new(node.rows().remove(&crate::world::key(key)).unwrap_or_default()), node.vv())
    }
    fn union(a: &VersionVector, b: &VersionVector) -> VersionVector {
        let mut both = a.clone();
        b.iter().for_each(|(replica, seq)| both.raise(replica, seq));
        both
    }
    fn law(history: Vec<(u8, Event)>) {
        let nodes = play(&history, PendingLimits::default());
        for key in KEYS {
            let [(a, av), (b, bv), (c, cv)] = [0, 1, 2].map(|number| row(&nodes[number], key));
            let ab = Row::join(&a, &av, &b, &bv);
            let abv = union(&av, &bv);
            assert_eq!(Row::join(&b, &bv, &a, &av), ab, "commutative");
            assert_eq!(Row::join(&a, &av, &a, &av), a, "idempotent");
            assert_eq!(Row::join(&ab, &abv, &b, &bv), ab, "what is in is in");
            let bc = Row::join(&b, &bv, &c, &cv);
            let left = Row::join(&ab, &abv, &c, &cv);
            assert_eq!(left, Row::join(&a, &av, &bc, &union(&bv, &cv)), "associative");
            let blocks: Vec<Block> = nodes[..3].iter().flat_map(Node::blocks).collect();
            let merged: Vec<Sibling> = Reference::fold(&blocks).rows.remove(&crate::world::key(key)).unwrap_or_default();
            assert_eq!(left.siblings(), merged, "equal to the merge of the blocks");
        }
    }
    quick(150).quickcheck(law as fn(Vec<(u8, Event)>));
}

/// A node and its twin in the same state, with concurrent siblings, and blocks that neither has.
fn twins(history: &[(u8, Event)], rng: &mut Rng) -> (Node, Node, Vec<Block>) {
    let mut all: Vec<Block> = play(history, PendingLimits::default()).iter().flat_map(Node::blocks).collect();
    rng.shuffle(&mut all);
    let later = all.split_off(all.len() / 2);
    let (mut one, mut two) = (Node::new(100), Node::new(100));
    one.deliver(all.clone(), 1);
    two.deliver(all, 1);
    (one, two, later)
}

/// Local writes, some of them retries of one another.
fn writes(batches: &[Vec<Change>], rng: &mut Rng) -> Vec<(Option<RequestId>, Vec<LocalOp>)> {
    let request = |rng: &mut Rng| (rng.below(3) == 0).then(|| RequestId([u8::try_from(rng.below(3)).unwrap(); 16]));
    batches.iter().map(|batch| (request(rng), batch.iter().map(Change::op).collect())).collect()
}

#[test]
fn a_group_does_what_its_writes_do_one_by_one() {
    fn law(history: Vec<(u8, Event)>, batches: Vec<Vec<Change>>, seed: u64) {
        let mut rng = Rng(seed);
        let (mut grouped, mut single, _) = twins(&history, &mut rng);
        let writes = writes(&batches, &mut rng);
        let together = outcomes(&grouped.group(writes.clone()));
        for (token, write) in (1..).zip(writes) {
            let alone = outcomes(&single.group(vec![write])).remove(&1).unwrap();
            // Alone nothing shares its block.
            let replaced = |op: &OpOutcome| if *op == OpOutcome::Replaced { OpOutcome::Put } else { *op };
            assert_eq!(alone.ops, together[&token].ops.iter().map(replaced).collect::<Vec<_>>(), "write {token}");
            assert_eq!(alone.dot.is_some(), together[&token].dot.is_some(), "write {token}");
        }
        for key in KEYS {
            assert_eq!(grouped.get(key), single.get(key), "{key}");
        }
        assert!(grouped.blocks().len() <= single.blocks().len());
        grouped.check();
    }
    quick(300).quickcheck(law as fn(Vec<(u8, Event)>, Vec<Vec<Change>>, u64));
}

#[test]
fn one_turn_does_what_many_turns_do() {
    fn law(history: Vec<(u8, Event)>, batches: Vec<Vec<Vec<Change>>>, seed: u64) {
        let mut rng = Rng(seed);
        let (mut whole, mut many, mut blocks) = twins(&history, &mut rng);
        blocks.extend(blocks.clone());
        rng.shuffle(&mut blocks);
        let mut inputs = Vec::new();
        for batches in batches.iter().take(12) {
            inputs.push(whole.local(writes(&batches[..batches.len().min(12)], &mut rng)));
            let part = blocks.split_off(blocks.len() - blocks.len().min(rng.below(4)));
            inputs.push(Input::Blocks { blocks: part, source: Source(rng.next() % 2) });
        }
        let one_by_one: Vec<Effect> = inputs.iter().flat_map(|input| many.turn(vec![input.clone()]).effects).collect();
        assert_eq!(whole.turn(inputs).effects, one_by_one);
        assert_eq!(whole.blocks(), many.blocks());
        assert_eq!(whole.check(), many.check());
        assert_eq!(whole.replica.pending(), many.replica.pending());
    }
    quick(150).quickcheck(law as fn(Vec<(u8, Event)>, Vec<Vec<Vec<Change>>>, u64));
}
