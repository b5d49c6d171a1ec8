//! Conditions, and writes that name what they have seen.
#![allow(clippy::needless_pass_by_value, reason = "quickcheck hands its values over")]

use crdt::limits::MAX_OP_SUPERSEDED;
use crdt::{Condition, Dot, Effect, LocalOp, OpOutcome, RequestId, Terms, WriteOutcome, WriteRefusal};
use quickcheck::{Arbitrary, Gen, QuickCheck};

use crate::world::{Node, delete, outcomes, put, put_until, sealed};

type Write = (Option<RequestId>, Vec<LocalOp>);

fn if_absent(op: LocalOp) -> LocalOp {
    with(op, Terms { condition: Some(Condition::IfAbsent), seen: None })
}

fn if_match(op: LocalOp, dot: Dot) -> LocalOp {
    with(op, Terms { condition: Some(Condition::IfMatch(dot)), seen: None })
}

fn seen(op: LocalOp, dots: &[Dot]) -> LocalOp {
    with(op, Terms { condition: None, seen: Some(dots.to_vec()) })
}

fn with(op: LocalOp, terms: Terms) -> LocalOp {
    LocalOp { terms: Some(Box::new(terms)), ..op }
}

fn alone(ops: Vec<LocalOp>) -> Vec<Write> {
    ops.into_iter().map(|op| (None, vec![op])).collect()
}

/// The refusals by token.
fn refusals(effects: &[Effect]) -> Vec<(u64, WriteRefusal)> {
    let refused = effects.iter().filter_map(|effect| match effect {
        Effect::Refused { token, refusal } => Some((token.0, refusal.clone())),
        _ => None,
    });
    refused.collect()
}

/// The dot that a refused write alone is answered with, its condition's key being `/k`.
fn current(node: &mut Node, ops: Vec<LocalOp>) -> Option<Dot> {
    let blocks = node.blocks().len();
    let effects = node.group(vec![(None, ops)]);
    let refused = refusals(&effects);
    let [(1, WriteRefusal::Condition { key, current })] = refused.as_slice() else { panic!("{effects:?}") };
    assert_eq!(key.as_str(), "/k");
    assert_eq!(node.blocks().len(), blocks, "a refused write leaves no trace");
    node.check();
    *current
}

/// A node with two concurrent values at `/k`: the winner's dot and the other one.
fn with_two_siblings() -> (Node, Dot, Dot) {
    let (mut node, mut other) = (Node::new(1), Node::new(2));
    let lost = node.put("/k", "earlier");
    other.now.0 += 10;
    let won = other.put("/k", "later");
    node.pull(&other);
    assert_eq!(node.row("/k").siblings().len(), 2);
    (node, won, lost)
}

#[test]
fn if_absent_holds_where_nothing_unexpired_is_alive() {
    let mut node = Node::new(1);
    let first = node.batch(vec![if_absent(put("/k", "1"))]);
    assert_eq!(first.ops, [OpOutcome::Put]);
    assert_eq!(current(&mut node, vec![if_absent(put("/k", "2"))]), first.dot);
    assert_eq!(node.get("/k").unwrap(), "1");
    node.delete("/k");
    assert!(node.batch(vec![if_absent(put("/k", "3"))]).dot.is_some(), "a deleted key is absent");
    let now = node.now.0;
    node.batch(vec![put_until("/k", "4", now + 5)]);
    assert!(current(&mut node, vec![if_absent(put("/k", "5"))]).is_some());
    node.now.0 += 5;
    assert!(node.batch(vec![if_absent(put("/k", "6"))]).dot.is_some(), "an expired value is not there");
    // A delete of what must not be there finds nothing, or is refused.
    assert!(current(&mut node, vec![if_absent(delete("/k"))]).is_some());
    node.delete("/k");
    assert_eq!(node.batch(vec![if_absent(delete("/k"))]).ops, [OpOutcome::Absent]);
}

#[test]
fn if_match_compares_the_winner_as_get_sees_it() {
    let (mut node, won, lost) = with_two_siblings();
    assert_eq!(current(&mut node, vec![if_match(put("/k", "x"), lost)]), Some(won));
    let outcome = node.batch(vec![if_match(put("/k", "x"), won)]);
    assert_eq!((outcome.ops.as_slice(), node.row("/k").siblings().len()), ([OpOutcome::Put].as_slice(), 1));
    assert_eq!(current(&mut node, vec![if_match(put("/k", "y"), won)]), outcome.dot);
    let deleted = node.batch(vec![if_match(delete("/k"), outcome.dot.unwrap())]);
    assert_eq!(deleted.ops, [OpOutcome::Deleted]);
    assert_eq!(current(&mut node, vec![if_match(put("/k", "z"), won)]), None, "nothing is there");
    // Once the winner has expired, the next one is what get sees.
    let (mut node, mut other) = (Node::new(1), Node::new(2));
    let stays = node.put("/k", "stays");
    other.now.0 += 10;
    let now = other.now.0;
    let expires = other.batch(vec![put_until("/k", "expires", now + 10)]).dot.unwrap();
    node.pull(&other);
    assert_eq!(current(&mut node, vec![if_match(put("/k", "x"), stays)]), Some(expires));
    node.now.0 = now + 10;
    assert_eq!(current(&mut node, vec![if_match(put("/k", "x"), expires)]), Some(stays));
    assert!(node.batch(vec![if_match(put("/k", "x"), stays)]).dot.is_some());
}

#[test]
fn one_condition_that_fails_refuses_the_whole_batch() {
    let mut node = Node::new(1);
    let dot = node.put("/k", "1");
    let ops = vec![put("/a", "1"), if_absent(put("/b", "1")), if_absent(put("/k", "2")), delete("/k")];
    assert_eq!(current(&mut node, ops), Some(dot), "a condition counts though a later op on its key is the one written");
    assert_eq!((node.get("/a"), node.get("/b")), (None, None));
    // The ops of a batch do not see each other.
    let both = node.batch(vec![if_absent(put("/new", "1")), if_absent(put("/new", "2"))]);
    assert_eq!(both.ops, [OpOutcome::Overridden, OpOutcome::Put]);
    let moved = node.batch(vec![if_match(delete("/k"), dot), if_absent(put("/l", "1"))]);
    assert_eq!(moved.ops, [OpOutcome::Deleted, OpOutcome::Put]);
    node.check();
}

#[test]
fn conditions_in_a_group_see_what_stands_before_them_under_its_dot() {
    let mut node = Node::new(1);
    let writes = vec![if_absent(put("/k", "1")), if_absent(put("/k", "2")), put("/j", "1"), if_absent(put("/j", "2"))];
    let effects = node.group(alone(writes));
    let dot = outcomes(&effects)[&1].dot;
    let refused = |token: u64, at: &str| {
        let dot = outcomes(&effects)[&if at == "/k" { 1 } else { 3 }].dot;
        (token, WriteRefusal::Condition { key: crate::world::key(at), current: dot })
    };
    assert_eq!(refusals(&effects), [refused(2, "/k"), refused(4, "/j")]);
    assert_eq!(sealed(&effects).len(), 2, "a condition on a key of the group, and only that, begins a block");
    assert_eq!(node.get("/k").unwrap(), "1");
    // A value that a condition has let through has its dot to itself.
    let dot = dot.unwrap();
    let effects = node.group(alone(vec![if_match(put("/k", "2"), dot), put("/k", "3"), if_match(put("/k", "4"), dot)]));
    let (second, third) = (outcomes(&effects)[&1].dot, outcomes(&effects)[&2].dot);
    assert!(second != third && node.get("/k").unwrap() == "3");
    assert!(matches!(refusals(&effects).as_slice(), [(3, WriteRefusal::Condition { current, .. })] if *current == third));
    // Writes to other keys stay together.
    let apart = (0..20).map(|index| if_absent(put(&format!("/apart/{index}"), "1"))).collect();
    assert_eq!(sealed(&node.group(alone(apart))).len(), 1);
    node.check();
}

#[test]
fn of_plain_puts_that_share_a_block_all_but_the_last_are_told_so() {
    let mut node = Node::new(1);
    let effects = node.group(alone(vec![put("/k", "1"), put("/j", "1"), put("/k", "2"), put("/k", "3")]));
    assert_eq!(sealed(&effects).len(), 1);
    let ops: Vec<OpOutcome> = outcomes(&effects).into_values().map(|outcome| outcome.ops[0]).collect();
    assert_eq!(ops, [OpOutcome::Replaced, OpOutcome::Put, OpOutcome::Replaced, OpOutcome::Put]);
    // So nobody takes another's value for its own: the dot is the last one's.
    let (last, dot) = (outcomes(&effects)[&4].clone(), node.row("/k").siblings()[0].dot);
    assert_eq!(last, WriteOutcome { dot: Some(dot), ops: vec![OpOutcome::Put] });
    node.check();
}

#[test]
fn a_retry_gets_the_first_outcome_though_its_condition_would_fail_now() {
    let mut node = Node::new(1);
    let request = Some(RequestId([7; 16]));
    let write = || vec![(request, vec![if_absent(put("/k", "1"))])];
    let first = outcomes(&node.group(write()))[&1].clone();
    let again = outcomes(&node.group(write()))[&1].clone();
    assert_eq!((again.dot, again.ops.as_slice()), (first.dot, [OpOutcome::Repeated].as_slice()));
    node.reopen();
    let mut other = Node::new(2);
    other.pull(&node);
    for node in [&mut node, &mut other] {
        assert_eq!(outcomes(&node.group(write()))[&1].dot, first.dot);
    }
    // Both attempts in one group: the second joins the first.
    let request = Some(RequestId([8; 16]));
    let write = || (request, vec![if_absent(put("/j", "1"))]);
    let answers = outcomes(&node.group(vec![write(), write()]));
    assert_eq!((answers[&1].dot, answers[&2].ops.as_slice()), (answers[&2].dot, [OpOutcome::Repeated].as_slice()));
    // A refused one left no trace: its retry is a new attempt.
    let request = Some(RequestId([9; 16]));
    let write = || vec![(request, vec![if_absent(put("/k", "2"))])];
    assert_eq!(refusals(&node.group(write())).len(), 1);
    node.delete("/k");
    assert_eq!(outcomes(&node.group(write()))[&1].ops, [OpOutcome::Put]);
}

#[test]
fn a_write_that_names_what_it_has_seen_replaces_no_more() {
    let (mut node, won, lost) = with_two_siblings();
    let gone = Dot { seq: 99, ..won };
    node.batch(vec![seen(put("/k", "resolved"), &[lost, gone])]);
    let dots: Vec<Dot> = node.row("/k").dots().collect();
    assert!(dots.len() == 2 && dots.contains(&won), "{dots:?}");
    assert_eq!(node.last_block().ops()[0].superseded, [lost], "what is not alive is not named");
    node.batch(vec![seen(put("/k", "beside"), &[])]);
    assert_eq!(node.row("/k").siblings().len(), 3);
    assert_eq!(node.batch(vec![seen(delete("/k"), &[lost, gone])]).ops, [OpOutcome::Absent]);
    assert_eq!(node.batch(vec![seen(delete("/k"), &[won])]).ops, [OpOutcome::Deleted]);
    assert_eq!(node.row("/k").siblings().len(), 2);
    let left: Vec<Dot> = node.row("/k").dots().collect();
    let many: Vec<Dot> = (1..100).map(|seq| Dot { seq, ..gone }).chain(left).collect();
    assert_eq!(node.batch(vec![seen(delete("/k"), &many)]).ops, [OpOutcome::Deleted]);
    assert!(node.row("/k").is_empty());
    // What has expired is hidden and yet can be named: so it is deleted in the end.
    let now = node.now.0;
    let expired = node.batch(vec![put_until("/k", "x", now)]).dot.unwrap();
    assert_eq!(node.delete("/k"), None);
    assert_eq!(node.batch(vec![seen(delete("/k"), &[expired])]).ops, [OpOutcome::Deleted]);
    assert!(node.row("/k").is_empty());
    node.check();
}

#[test]
fn dots_named_as_seen_at_the_limit_and_above() {
    let mut node = Node::new(1);
    let dot = node.put("/k", "1");
    let dots = |count: u64| (0..count).map(|seq| Dot { seq: seq + 1, ..dot }).collect::<Vec<_>>();
    let most = MAX_OP_SUPERSEDED as u64;
    let effects = node.group(alone(vec![seen(put("/k", "2"), &dots(most + 1))]));
    let refused = refusals(&effects);
    let [(1, refusal)] = refused.as_slice() else { panic!("{effects:?}") };
    assert_eq!(*refusal, WriteRefusal::TooManySeen { dots: MAX_OP_SUPERSEDED + 1 });
    assert!(refusal.to_string().contains("4097") && refusal.to_string().contains("4096"), "{refusal}");
    assert!(node.batch(vec![seen(put("/k", "2"), &dots(most))]).dot.is_some());
    assert_eq!(node.get("/k").unwrap(), "2");
    assert_eq!(node.row("/k").siblings().len(), 1);
}

#[test]
fn what_was_not_named_is_not_folded_away_either() {
    // More siblings than one op may name; a write that names as many as it may leaves the others alone.
    let mut writer = Node::new(2);
    let empty = writer.store.clone();
    let mut blocks = Vec::new();
    for index in 0..MAX_OP_SUPERSEDED + 3 {
        writer.now.0 += 1;
        writer.restore(empty.clone());
        writer.put("/k", index.to_string());
        blocks.push(writer.last_block());
    }
    let mut node = Node::new(1);
    node.deliver(blocks.clone(), 1);
    let named: Vec<Dot> = blocks.iter().take(MAX_OP_SUPERSEDED).map(crdt::Block::dot).collect();
    let effects = node.group(alone(vec![seen(put("/k", "x"), &named)]));
    assert_eq!((sealed(&effects).len(), node.row("/k").siblings().len()), (1, 4));
}

/// A write of the property below: small numbers pick keys and what is asked.
#[derive(Debug, Clone)]
struct Ask {
    key: u8,
    delete: bool,
    condition: Option<bool>,
    expires: bool,
}

impl Arbitrary for Ask {
    fn arbitrary(g: &mut Gen) -> Self {
        let condition = if bool::arbitrary(g) { Some(bool::arbitrary(g)) } else { None };
        Self { key: u8::arbitrary(g) % 3, delete: bool::arbitrary(g), condition, expires: u8::arbitrary(g).is_multiple_of(4) }
    }
}

impl Ask {
    fn op(&self, value: usize, dots: &[Option<Dot>; 3]) -> LocalOp {
        let at = format!("/{}", self.key);
        let op = match (self.delete, self.expires) {
            (true, _) => delete(&at),
            (false, true) => put_until(&at, value.to_string(), 1),
            (false, false) => put(&at, value.to_string()),
        };
        match (self.condition, dots[usize::from(self.key)]) {
            (None, _) => op,
            (Some(false), Some(dot)) => if_match(op, dot),
            _ => if_absent(op),
        }
    }
}

/// Writes judged as one group end as if each had come alone: the same are refused, and the same values are left.
#[test]
fn a_group_decides_as_its_writes_would_one_by_one() {
    fn law(asks: Vec<Ask>) {
        let (mut grouped, mut single) = (Node::new(1), Node::new(1));
        let mut dots = [None; 3];
        for (key, dot) in dots.iter_mut().enumerate().take(2) {
            *dot = Some(grouped.put(&format!("/{key}"), "before"));
            single.put(&format!("/{key}"), "before");
        }
        let ops: Vec<LocalOp> = asks.iter().enumerate().map(|(value, ask)| ask.op(value, &dots)).collect();
        let effects = grouped.group(alone(ops.clone()));
        for (token, op) in (1..).zip(ops) {
            let alone = single.group(alone(vec![op]));
            let refused = refusals(&effects).iter().any(|(other, _)| *other == token);
            assert_eq!(refused, !refusals(&alone).is_empty(), "write {token}");
            let wrote = |outcome: Option<&WriteOutcome>| outcome.is_some_and(|outcome| outcome.dot.is_some());
            assert_eq!(wrote(outcomes(&effects).get(&token)), wrote(outcomes(&alone).get(&1)), "write {token}");
        }
        grouped.check();
        let values = |node: &Node| {
            let row = |row: Vec<crdt::Sibling>| row.into_iter().map(|sibling| sibling.value).collect::<Vec<_>>();
            node.rows().into_iter().map(|(key, siblings)| (key, row(siblings))).collect::<Vec<_>>()
        };
        assert_eq!(values(&grouped), values(&single));
    }
    QuickCheck::new().tests(300).quickcheck(law as fn(Vec<Ask>));
}
