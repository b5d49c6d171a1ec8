//! Checkers that no mutation of the engine sets off are fed with a wrong history here.

use std::collections::BTreeMap;

use crdt::testing::{FakeSigner, Reference};
use crdt::{
    Author, Block, Change, DatabaseId, Dot, Draft, Durability, Heads, Key, LocalOp, Meta, Op, OpOutcome, ReplicaId, RequestId,
    Row, RowWrite, Stamp, Truncation, WallTime, WriteSet,
};
use kvdb::engine::port::Written;

use super::*;
use crate::observe::Watched;
use crate::runner::{Extras, run};

const DATABASE: DatabaseId = DatabaseId([7; 32]);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn put(value: &'static str) -> Change {
    Change::Put { value: value.into(), expiry: None }
}

/// A block of one op, on top of `parents`, which it supersedes.
fn block(writer: u8, seq: u64, stamp: u64, change: Change, superseded: &[&Block]) -> Block {
    let signer = FakeSigner([writer; 32]);
    let op = Op { key: key("/k"), change, superseded: superseded.iter().map(|block| block.dot()).collect() };
    let mut heads = Heads::default();
    for block in superseded {
        heads.merge(block);
    }
    let author = Author { public_key: [writer; 32], nonce: 1 };
    let parents = heads.parents(Some(author.replica(&DATABASE)));
    let draft = Draft { database: DATABASE, author, seq, stamp: Stamp(stamp), parents, ops: vec![op], answers: Vec::new() };
    Block::seal(draft, &signer).unwrap()
}

fn truth_of(blocks: &[&Block]) -> Truth {
    let mut truth = Truth::default();
    for block in blocks {
        truth.take(0, block);
    }
    truth
}

fn answered<'a>(answer: &'a Result<Written, kvdb::WriteError>, ops: &'a [LocalOp]) -> Observation<'a> {
    let (request, durability) = (RequestId([1; 16]), Durability::Buffered);
    Observation::Answered { client: 3, node: 0, database: DATABASE, request, ops, durability, answer }
}

#[test]
fn order_of_one_caller_notices_an_earlier_dot_after_a_later_one() {
    let mut check = order::Callers::default();
    let replica = ReplicaId([9; 16]);
    let mut say = |seq| {
        let answer = Ok(Written { dot: Some(Dot { replica, seq }), ops: vec![OpOutcome::Put] });
        check.seen(&answered(&answer, &[]), &Truth::default())
    };
    assert!(say(4).is_ok() && say(5).is_ok());
    assert!(say(3).unwrap_err().contains("after"));
}

#[test]
fn a_deleted_value_that_is_written_again_is_noticed() {
    let first = block(1, 1, 10, put("a"), &[]);
    let delete = block(2, 1, 20, Change::Tombstone, &[&first]);
    let truth = truth_of(&[&first, &delete]);
    let sibling = Reference::fold([&first]).rows[&key("/k")][0].clone();
    let mut set = empty_set();
    assert!(deleted::Deleted.committed(0, &set, &truth).is_ok());
    set.rows.push(RowWrite { key: key("/k"), row: Row::new(vec![sibling]), dropped: Vec::new() });
    assert!(deleted::Deleted.committed(0, &set, &truth).unwrap_err().contains("back"));
    assert!(rows::Rows.committed(0, &set, &truth).is_err());
}

fn empty_set() -> WriteSet {
    WriteSet {
        database: DATABASE,
        rows: Vec::new(),
        blocks: Vec::new(),
        vv: Vec::new(),
        heads: crdt::HeadsChange::None,
        meta: Meta::default(),
        requests: Vec::new(),
        forgotten: Vec::new(),
        truncation: Truncation::default(),
        snapshot: Vec::new(),
    }
}

/// Looks at the end of a run before it has come.
#[derive(Debug, Default)]
struct Early {
    found: std::rc::Rc<std::cell::RefCell<Vec<String>>>,
}

impl Checker for Early {
    fn name(&self) -> &'static str {
        "early"
    }

    fn observe(&mut self, _: Time, seen: &Observation<'_>, world: &WorldView<'_>) -> Verdict {
        if matches!(seen, Observation::Committed { .. }) && world.nodes() == 2 && world.is_up(0) && world.is_up(1) {
            self.found.borrow_mut().extend(equality::Equality.finish(world, &Truth::default()).err());
        }
        Ok(())
    }
}

#[test]
fn replicas_that_differ_are_noticed_and_those_that_do_not_are_not() {
    let scenario = Scenario {
        nodes: 2,
        workload: crate::scenario::Workload { clients: 1, operations: 5, ..Default::default() },
        faults: crate::scenario::Faults { seconds: 5, gap_ms: 0, ..Default::default() },
        ..Scenario::default()
    };
    let early = Early::default();
    let found = std::rc::Rc::clone(&early.found);
    let outcome = run(&scenario, 1, Extras { checkers: vec![Box::new(early)], ..Extras::default() });
    // In the end they are equal, and just after a write they are not.
    assert_eq!(outcome.violation, None);
    assert!(found.borrow().iter().any(|what| what.contains("version vectors")), "{:?}", found.borrow());
}

#[test]
fn watchers_that_are_told_less_or_go_on_from_nowhere_are_noticed() {
    let (one, two) = (block(1, 1, 10, put("a"), &[]), block(2, 1, 20, put("b"), &[]));
    let mut truth = truth_of(&[&one, &two]);
    let prefix = Prefix::root();
    let says = |truth: &Truth, what: Watched<'_>, check: &mut watch::Watching| {
        check.seen(&Observation::Watch { watcher: 0, node: 0, database: DATABASE, prefix: &prefix, what }, truth)
    };
    let mut check = watch::Watching::default();
    let (right, wrong) = (BTreeMap::from([(key("/k"), two.dot())]), BTreeMap::from([(key("/k"), one.dot())]));
    assert!(says(&truth, Watched::Listed { map: &right, at: 2, wall: WallTime(0) }, &mut check).is_ok());
    assert!(says(&truth, Watched::Listed { map: &wrong, at: 2, wall: WallTime(0) }, &mut check).is_err());
    assert!(says(&truth, Watched::CaughtUp { map: &right }, &mut check).is_ok());
    let token = |text: String| text.parse::<kvdb::WatchToken>().unwrap();
    let good = token(format!("1-{}", one.dot()));
    assert!(says(&truth, Watched::Resumed(good), &mut check).is_ok());
    assert!(says(&truth, Watched::CaughtUp { map: &wrong }, &mut check).is_err());
    assert!(says(&truth, Watched::TooOld(good), &mut check).is_err());
    assert!(says(&truth, Watched::Resumed(token(format!("1-{}", two.dot()))), &mut check).is_err());
    let mut set = empty_set();
    set.snapshot.push(crdt::SnapshotWrite::Switch { revision: 3 });
    truth.switch(0, &set).unwrap();
    assert!(says(&truth, Watched::TooOld(good), &mut check).is_ok());
    assert!(says(&truth, Watched::Resumed(good), &mut check).is_ok(), "the log has it; what came after it ends in a reset");
    assert!(says(&truth, Watched::CaughtUp { map: &right }, &mut check).unwrap_err().contains("snapshot"));
}
