//! Group commit: writes that wait together become one block where they can.

use crdt::limits::{
    MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_BLOCK_PARENTS, MAX_BLOCK_REQUESTS, MAX_KEY_BYTES, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES,
};
use crdt::{Block, Change, Dot, Effect, Input, LocalOp, OpOutcome, RequestId, Source, WriteOutcome, WriteRefusal};

use crate::world::{Node, delete, outcomes, put, put_until, sealed};

fn alone(writes: Vec<LocalOp>) -> Vec<(Option<RequestId>, Vec<LocalOp>)> {
    writes.into_iter().map(|op| (None, vec![op])).collect()
}

fn refusal(effects: &[Effect]) -> WriteRefusal {
    match effects {
        [Effect::Refused { refusal, .. }] => refusal.clone(),
        _ => panic!("not refused: {effects:?}"),
    }
}

/// One node with `count` concurrent siblings at `/k`, put by as many writers with rising clocks.
fn with_siblings(count: usize) -> Node {
    let mut node = Node::new(1);
    node.deliver(lone_blocks(count, "/k"), 1);
    node.check();
    node
}

/// Blocks of `count` writers that have seen nothing.
fn lone_blocks(count: usize, at: &str) -> Vec<Block> {
    let mut writer = Node::new(2);
    let empty = writer.store.clone();
    let one = |index: usize| {
        writer.now.0 += 1;
        // The same node opened anew over an empty disk: each time another replica.
        writer.restore(empty.clone());
        writer.put(at, index.to_string());
        writer.last_block()
    };
    (0..count).map(one).collect()
}

#[test]
fn writes_that_wait_together_become_one_block_in_their_order() {
    let mut node = Node::new(1);
    let effects = node.group(alone(vec![put("/b", "1"), put("/a", "1"), put("/b", "2"), put("/c", "1")]));
    let blocks = sealed(&effects);
    assert_eq!(blocks.len(), 1);
    let keys: Vec<&str> = blocks[0].ops().iter().map(|op| op.key.as_str()).collect();
    assert_eq!(keys, ["/a", "/b", "/c"]);
    assert_eq!(node.get("/b").unwrap(), "2");
    assert_eq!(node.row("/b").siblings().len(), 1, "per key only the last write is written");
    for (token, outcome) in outcomes(&effects) {
        let expected = if token == 1 { OpOutcome::Replaced } else { OpOutcome::Put };
        assert_eq!(outcome, WriteOutcome { dot: Some(blocks[0].dot()), ops: vec![expected] });
    }
    assert_eq!(outcomes(&effects).len(), 4);
    node.check();
}

#[test]
fn answers_come_after_the_block_that_they_name() {
    let mut node = Node::new(1);
    let effects = node.group(alone(vec![put("/a", "1"), put("/b", "1")]));
    let sealed = effects.iter().position(|effect| matches!(effect, Effect::Sealed { .. })).unwrap();
    let answered = effects.iter().position(|effect| matches!(effect, Effect::Written { .. })).unwrap();
    assert!(sealed < answered);
}

#[test]
fn the_last_write_of_a_group_supersedes_what_stood_before_the_group() {
    let mut node = with_siblings(3);
    let before: Vec<Dot> = node.row("/k").dots().collect();
    let blocks = sealed(&node.group(alone(vec![put("/k", "1"), delete("/k"), put("/k", "2")])));
    assert_eq!(blocks.len(), 1);
    let mut superseded = blocks[0].ops()[0].superseded.clone();
    let mut expected = before;
    superseded.sort();
    expected.sort();
    assert_eq!(superseded, expected);
    assert_eq!(node.row("/k").siblings().len(), 1);
    node.check();
}

#[test]
fn m02_deletes_of_absent_keys_make_no_block() {
    let mut node = Node::new(1);
    node.put("/other", "1");
    let heads = node.heads();
    let effects = node.group(vec![(None, vec![delete("/a"), delete("/b")]), (None, vec![delete("/a")])]);
    assert!(sealed(&effects).is_empty());
    assert_eq!(node.heads(), heads);
    for (_, WriteOutcome { dot, ops }) in outcomes(&effects) {
        assert_eq!(dot, None);
        assert!(ops.iter().all(|op| *op == OpOutcome::Absent));
    }
    let mixed = node.batch(vec![delete("/a"), put("/b", "1"), delete("/other")]);
    assert_eq!(mixed.ops, [OpOutcome::Absent, OpOutcome::Put, OpOutcome::Deleted]);
    assert_eq!(node.last_block().ops().len(), 2, "the absent key is not in the block");
    node.check();
}

#[test]
fn a_write_without_ops_writes_nothing() {
    let mut node = Node::new(1);
    assert_eq!(node.batch(Vec::new()), WriteOutcome { dot: None, ops: Vec::new() });
    assert!(node.blocks().is_empty());
}

#[test]
fn a_delete_of_a_put_of_the_same_group_over_nothing_begins_the_next_block() {
    let mut node = Node::new(1);
    let effects = node.group(alone(vec![put("/a", "1"), put("/k", "1"), delete("/k"), put("/b", "1")]));
    let blocks = sealed(&effects);
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0].ops().len(), 2);
    let [b, k] = blocks[1].ops() else { panic!("two ops") };
    assert_eq!((b.key.as_str(), k.key.as_str(), &k.change), ("/b", "/k", &Change::Tombstone));
    assert_eq!(k.superseded, [blocks[0].dot()]);
    let answers = outcomes(&effects);
    assert_eq!(answers[&3], WriteOutcome { dot: Some(blocks[1].dot()), ops: vec![OpOutcome::Deleted] });
    assert_eq!(answers[&2].dot, Some(blocks[0].dot()));
    assert_eq!(node.get("/k"), None);
    node.check();
}

#[test]
fn put_and_delete_in_one_group_again_and_again() {
    let mut node = Node::new(1);
    let writes = (0..20).flat_map(|index| [put("/k", index.to_string()), delete("/k"), delete("/k")]).collect();
    let effects = node.group(alone(writes));
    for (token, outcome) in outcomes(&effects) {
        let expected = [OpOutcome::Absent, OpOutcome::Put, OpOutcome::Deleted][usize::try_from(token % 3).unwrap()];
        assert_eq!(outcome.ops, [expected], "write {token}");
    }
    assert_eq!(node.get("/k"), None);
    node.check();
}

#[test]
fn m03_each_delete_names_only_what_is_alive() {
    let mut node = Node::new(1);
    let mut sizes = Vec::new();
    for index in 0..500 {
        let put = node.put("/k", "x");
        node.delete("/k");
        let block = node.last_block();
        assert_eq!(block.ops()[0].superseded, [put], "delete {index}");
        sizes.push(block.bytes().len());
    }
    // Own seq, parent's seq and superseded seq grow from one byte to three; nothing else does.
    assert!(sizes[499] <= sizes[0] + 6, "{} bytes, the first {}", sizes[499], sizes[0]);
    assert_eq!(sizes[499], sizes[200]);
}

#[test]
fn a_batch_is_never_split() {
    let mut node = Node::new(1);
    let half = MAX_BLOCK_OPS / 2 + 1;
    let batch = |prefix: &str| (None, (0..half).map(|index| put(&format!("/{prefix}/{index}"), "x")).collect::<Vec<_>>());
    let effects = node.group(vec![batch("a"), batch("b"), batch("c")]);
    let blocks = sealed(&effects);
    assert_eq!(blocks.iter().map(|block| block.ops().len()).collect::<Vec<_>>(), [half; 3]);
    for (token, outcome) in outcomes(&effects) {
        assert_eq!(outcome.dot, Some(blocks[usize::try_from(token).unwrap() - 1].dot()));
    }
    assert!(blocks.iter().all(|block| block.bytes().len() <= MAX_BLOCK_BYTES));
    let values =
        |prefix: &str| (None, (0..3).map(|index| put(&format!("/{prefix}/{index}"), vec![1; MAX_VALUE_BYTES])).collect());
    let blocks = sealed(&node.group(vec![values("x"), values("y")]));
    assert_eq!(blocks.iter().map(|block| block.ops().len()).collect::<Vec<_>>(), [3, 3]);
    assert!(blocks.iter().all(|block| block.bytes().len() <= MAX_BLOCK_BYTES));
}

#[test]
fn values_at_the_limit_and_above() {
    let mut node = Node::new(1);
    node.put("/k", vec![1; MAX_VALUE_BYTES]);
    assert_eq!(node.get("/k").unwrap().len(), MAX_VALUE_BYTES);
    let over = vec![(None, vec![put("/ok", "1"), put("/k", vec![1; MAX_VALUE_BYTES + 1])])];
    let refusal = refusal(&node.group(over));
    assert_eq!(refusal, WriteRefusal::ValueTooLarge { bytes: MAX_VALUE_BYTES + 1 });
    assert!(refusal.to_string().contains("1048577") && refusal.to_string().contains("1048576"), "{refusal}");
    assert_eq!(node.blocks().len(), 1, "a refused write leaves no trace");
    assert_eq!(node.get("/ok"), None);
}

#[test]
fn ops_at_the_limit_and_above() {
    let mut node = Node::new(1);
    let ops = |count: usize| (0..count).map(|index| put(&format!("/{index}"), "x")).collect::<Vec<_>>();
    let outcome = node.batch(ops(MAX_BLOCK_OPS));
    assert_eq!(outcome.ops.len(), MAX_BLOCK_OPS);
    assert_eq!(node.last_block().ops().len(), MAX_BLOCK_OPS);
    let over = refusal(&node.group(vec![(None, ops(MAX_BLOCK_OPS + 1))]));
    assert_eq!(over, WriteRefusal::TooManyOps { ops: MAX_BLOCK_OPS + 1 });
    assert!(over.to_string().contains("16385") && over.to_string().contains("16384"), "{over}");
    // What counts is keys, not ops: the last op on a key is the only one written.
    let mut twice = ops(MAX_BLOCK_OPS);
    twice.push(put("/0", "last"));
    assert_eq!(node.batch(twice).ops[0], OpOutcome::Overridden);
    assert_eq!(node.get("/0").unwrap(), "last");
}

#[test]
fn bytes_of_a_batch_at_the_limit_and_above() {
    let mut node = Node::new(1);
    let batch = |last: usize| {
        let mut ops: Vec<LocalOp> = (0..3).map(|index| put(&format!("/{index}"), vec![1; MAX_VALUE_BYTES])).collect();
        ops.push(put("/last", vec![1; last]));
        vec![(None, ops)]
    };
    // The bound is an upper one: find where it lies. Everything up to it must make a valid block.
    let (mut fits, mut over) = (0, MAX_VALUE_BYTES);
    while over - fits > 1 {
        let middle = usize::midpoint(fits, over);
        if outcomes(&node.group(batch(middle))).is_empty() { over = middle } else { fits = middle }
    }
    let slack = MAX_BLOCK_BYTES - 3 * MAX_VALUE_BYTES - fits;
    assert!(slack < 8 * 1024, "the bound wastes {slack} bytes");
    node.group(batch(fits));
    assert!(node.last_block().bytes().len() <= MAX_BLOCK_BYTES);
    let blocks = node.blocks().len();
    let refusal = refusal(&node.group(batch(over)));
    assert_eq!(refusal, WriteRefusal::BatchTooLarge { bytes: MAX_BLOCK_BYTES + 1 });
    assert!(refusal.to_string().contains("4194305") && refusal.to_string().contains("4194304"), "{refusal}");
    assert_eq!(node.blocks().len(), blocks);
}

#[test]
fn the_bound_on_a_blocks_bytes_is_never_too_low() {
    // The worst case for each part: long keys, every op over siblings of other replicas, requests for each.
    let mut node = with_siblings(300);
    let long = |index: usize| format!("/{index:04}{}", "k".repeat(MAX_KEY_BYTES - 5));
    let writes = (0..=MAX_BLOCK_REQUESTS)
        .map(|index| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&index.to_be_bytes());
            (Some(RequestId(id)), vec![put_until(&long(index % 3_000), vec![7; 300], u64::MAX >> 1), put("/k", "x")])
        })
        .collect();
    let effects = node.group(writes);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Refused { .. })));
    let blocks = sealed(&effects);
    assert!(blocks.len() > 1);
    assert!(blocks.iter().all(|block| block.bytes().len() <= MAX_BLOCK_BYTES && block.answers().len() <= MAX_BLOCK_REQUESTS));
    node.check();
}

#[test]
fn r05_a_refused_write_does_not_disturb_its_neighbours() {
    let mut node = Node::new(1);
    let big = put("/big", vec![1; MAX_VALUE_BYTES + 1]);
    let effects = node.group(alone(vec![put("/a", "1"), big, put("/b", "1")]));
    assert_eq!(sealed(&effects).len(), 1);
    assert_eq!(outcomes(&effects).into_keys().collect::<Vec<_>>(), [1, 3]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Refused { token, .. } if token.0 == 2)));
    node.check();
}

#[test]
fn more_siblings_than_an_op_may_name_are_folded_by_further_blocks() {
    for delta in [0, 1, MAX_OP_SUPERSEDED] {
        let mut node = with_siblings(MAX_OP_SUPERSEDED + delta);
        let effects = node.group(alone(vec![put("/k", "one")]));
        let row = node.row("/k");
        assert_eq!((row.siblings().len(), node.get("/k").unwrap()), (1, "one".into()));
        assert_eq!(sealed(&effects).len(), [1, 2, 3][[0, 1, MAX_OP_SUPERSEDED].iter().position(|d| *d == delta).unwrap()]);
        node.check();
    }
    let mut node = with_siblings(MAX_OP_SUPERSEDED + 1);
    let effects = node.group(alone(vec![delete("/k")]));
    assert_eq!(sealed(&effects).len(), 2);
    assert_eq!(outcomes(&effects)[&1].ops, [OpOutcome::Deleted]);
    assert!(node.row("/k").is_empty());
    let mut other = Node::new(3);
    other.pull(&node);
    assert_eq!(other.check(), node.check());
}

#[test]
fn a_block_names_64_parents_and_the_other_heads_stay() {
    let mut node = Node::new(1);
    let own = node.put("/own", "1");
    let others = lone_blocks(MAX_BLOCK_PARENTS + 6, "/k");
    // The own clock stands below all others': its last block is named for being its own.
    node.deliver(others.clone(), 1);
    assert_eq!(node.heads().len(), MAX_BLOCK_PARENTS + 7);
    node.put("/own", "2");
    let block = node.last_block();
    assert_eq!(block.parents().len(), MAX_BLOCK_PARENTS);
    assert_eq!(block.parents()[0].dot, own, "index 0 is the author");
    let named: Vec<Dot> = block.parents().iter().map(|parent| parent.dot).collect();
    let (oldest, newest) = others.split_at(7);
    assert!(newest.iter().all(|block| named.contains(&block.dot())), "the greatest stamps are named");
    let mut left: Vec<Dot> = oldest.iter().map(Block::dot).chain([block.dot()]).collect();
    left.sort();
    assert_eq!(node.heads(), left);
    node.check();
    node.put("/own", "3");
    assert_eq!(node.heads().len(), 1);
    node.check();
}

#[test]
fn a_retry_is_answered_with_the_first_dot() {
    let mut node = Node::new(1);
    let request = Some(RequestId([7; 16]));
    let first = node.group(vec![(request, vec![put("/k", "1"), put("/j", "1")])]);
    let dot = outcomes(&first)[&1].dot;
    node.put("/k", "2");
    node.reopen();
    let again = node.group(vec![(request, vec![put("/k", "1"), put("/j", "1")])]);
    assert_eq!(outcomes(&again)[&1], WriteOutcome { dot, ops: vec![OpOutcome::Repeated; 2] });
    assert!(sealed(&again).is_empty());
    assert_eq!(node.get("/k").unwrap(), "2", "the retry wrote nothing");
    // At another node that has the block.
    let mut other = Node::new(2);
    other.pull(&node);
    let there = other.group(vec![(request, vec![put("/k", "1"), put("/j", "1")])]);
    assert_eq!(outcomes(&there)[&1].dot, dot);
    other.check();
}

#[test]
fn a_retry_within_one_turn_is_answered_with_the_first_dot() {
    let mut node = Node::new(1);
    let request = Some(RequestId([7; 16]));
    let write = || (request, vec![put("/k", "1")]);
    let effects = node.group(vec![write(), (None, vec![put("/k", "2")]), write()]);
    let answers = outcomes(&effects);
    assert_eq!(answers[&1].dot, answers[&3].dot);
    assert_eq!(answers[&3].ops, [OpOutcome::Repeated]);
    assert_eq!(node.get("/k").unwrap(), "2");
    // Two inputs of one turn.
    let mut node = Node::new(1);
    let inputs = vec![node.local(vec![write()]), node.local(vec![write(), (None, vec![put("/j", "1")])])];
    let effects = node.turn(inputs).effects;
    let repeated =
        effects.iter().filter(|effect| matches!(effect, Effect::Written { outcome, .. } if outcome.ops == [OpOutcome::Repeated]));
    assert_eq!(repeated.count(), 1);
    assert_eq!(sealed(&effects).len(), 2);
    node.check();
}

#[test]
fn a_request_answered_at_two_nodes_keeps_the_first_outcome_of_each() {
    let request = Some(RequestId([7; 16]));
    let write = || vec![(request, vec![put("/k", "1")])];
    let (mut one, mut two) = (Node::new(1), Node::new(2));
    let first = outcomes(&one.group(write()))[&1].dot;
    let second = outcomes(&two.group(write()))[&1].dot;
    one.pull(&two);
    two.pull(&one);
    assert_eq!(outcomes(&one.group(write()))[&1].dot, first);
    assert_eq!(outcomes(&two.group(write()))[&1].dot, second);
    // In one turn with the blocks of both.
    let mut three = Node::new(3);
    three.deliver([one.blocks(), two.blocks()].concat(), 1);
    assert_eq!(outcomes(&three.group(write()))[&1].dot, first);
}

#[test]
fn a_block_answers_its_requests_by_op_index() {
    let mut node = Node::new(1);
    let (one, two) = (RequestId([9; 16]), RequestId([3; 16]));
    let writes = vec![
        (Some(one), vec![put("/c", "1"), put("/a", "1")]),
        (None, vec![put("/b", "1")]),
        (Some(two), vec![put("/b", "2"), put("/d", "1")]),
    ];
    node.group(writes);
    let block = node.last_block();
    let answers: Vec<(RequestId, &[u32])> =
        block.answers().iter().map(|answer| (answer.request, answer.ops.as_slice())).collect();
    assert_eq!(answers, [(two, [1, 3].as_slice()), (one, [0, 2].as_slice())]);
}

#[test]
fn a_delete_sees_expiry_as_reads_do() {
    let mut node = Node::new(1);
    let now = node.now.0;
    node.batch(vec![put_until("/k", "soon", now)]);
    assert_eq!(node.delete("/k"), None, "an expired value is not there");
    // In a group: an expired put of the group itself is not there either, an unexpired one is.
    let effects = node.group(alone(vec![put_until("/j", "x", now), delete("/j"), put_until("/j", "x", now + 1), delete("/j")]));
    let ops: Vec<OpOutcome> = outcomes(&effects).into_values().map(|outcome| outcome.ops[0]).collect();
    assert_eq!(ops, [OpOutcome::Replaced, OpOutcome::Absent, OpOutcome::Put, OpOutcome::Deleted]);
    node.check();
}

#[test]
fn local_writes_and_received_blocks_share_a_turn() {
    let mut other = Node::new(2);
    other.put("/k", "theirs");
    let mut node = Node::new(1);
    let blocks = other.blocks();
    let mine = node.local(alone(vec![put("/k", "mine")]));
    let received = Input::Blocks { blocks, source: Source(1) };
    node.turn(vec![received, mine]);
    assert_eq!(node.row("/k").siblings().len(), 1, "the write had seen the block of its own turn");
    assert_eq!(node.heads().len(), 1);
    node.check();
}
