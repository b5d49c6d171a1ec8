//! The contract that every [`Store`] must keep, as checks that any crate can run on its own.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test: a broken store is to panic")]

use std::ops::Bound;

use crate::block::{Block, RequestId};
use crate::clock::{Stamp, WallTime};
use crate::database::{DatabaseId, DatabaseName};
use crate::dot::{Dot, ReplicaId};
use crate::effect::{Effect, OpOutcome};
use crate::heads::HeadsChange;
use crate::input::Input;
use crate::key::{Key, KeyRange, Prefix};
use crate::limits::{MAX_PACKED_HEADS, MAX_VALUE_BYTES};
use crate::pending::Source;
use crate::store::{Durability, Meta, Order, Projection, ReplicaState, Store, Truncation, View, WriteSet};
use crate::testing::rig::{ContractHost, Rig, delete, foreign, forget, key, put, put_until, write};

/// One promise of a store, to be tried on a fresh one.
pub type ContractCheck<H> = fn(&mut H);

/// The checks by name, so that a test runner can show each.
#[must_use]
pub fn checks<H: ContractHost>() -> Vec<(&'static str, ContractCheck<H>)> {
    vec![
        ("an empty database", empty_database::<H>),
        ("an unknown database", unknown_database::<H>),
        ("rows round trip", rows_round_trip::<H>),
        ("values of all sizes", values_of_all_sizes::<H>),
        ("a row rewritten beside a big value", rewritten_beside_a_big_value::<H>),
        ("many siblings", many_siblings::<H>),
        ("scans", scans::<H>),
        ("narrowed scans", narrowed_scans::<H>),
        ("the log from a revision", log_from::<H>),
        ("state after many commits", state_after_many_commits::<H>),
        ("heads across the packing border", heads_across_the_border::<H>),
        ("requests", requests::<H>),
        ("requests are forgotten from the oldest on", requests_are_forgotten::<H>),
        ("what has expired is found", what_has_expired::<H>),
        ("history is dropped from its oldest end", history_is_dropped::<H>),
        ("the log from a floor", log_from_a_floor::<H>),
        ("a snapshot is staged", super::snapshots::staging::<H>),
        ("rows are built and switched to", super::snapshots::built_rows::<H>),
        ("rows that are built change nothing before the switch", super::snapshots::given_up::<H>),
        ("databases do not leak", databases_do_not_leak::<H>),
        ("one batch for several databases", one_batch_for_several_databases::<H>),
        ("a batch is written whole or not at all", whole_or_not_at_all::<H>),
    ]
}

/// Runs all checks, each on a fresh store. Values may be kept inline or apart.
///
/// # Panics
/// When the store breaks the contract.
pub fn store_contract<H: ContractHost>(host: &mut H) {
    for (name, check) in checks::<H>() {
        // The name of the check that fails is the last one printed.
        println!("store contract: {name}");
        check(host);
    }
}

pub(super) fn open<H: ContractHost>(host: &mut H, names: &[&str]) -> (Rig<H::Store>, Vec<DatabaseId>) {
    let mut store = host.fresh();
    let ids: Vec<DatabaseId> = names.iter().map(|name| host.create(&mut store, &DatabaseName::parse(name).unwrap())).collect();
    let mut rig = Rig::new(store);
    for id in &ids {
        rig.open(*id);
    }
    (rig, ids)
}

pub(super) fn open_one<H: ContractHost>(host: &mut H) -> (Rig<H::Store>, DatabaseId) {
    let (rig, ids) = open(host, &["demo"]);
    (rig, *ids.first().unwrap())
}

fn empty_database<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    rig.check(database);
    assert_eq!(rig.store.view(&database).unwrap().state().unwrap(), ReplicaState::default());
    let nobody = Dot { replica: ReplicaId([7; 16]), seq: 1 };
    {
        let view = rig.store.view(&database).unwrap();
        assert!(view.row(&key("/absent")).unwrap().is_empty());
        assert_eq!(view.value(&key("/absent"), &nobody).unwrap(), None);
        assert_eq!(view.block(&nobody).unwrap(), None);
        assert_eq!(view.block_hash(&nobody).unwrap(), None);
        assert_eq!(view.request(&RequestId([7; 16])).unwrap(), None);
    }
    rig.store.commit(&[], Durability::Sync).expect("an empty commit syncs what came before");
    rig.store.commit(&[], Durability::Buffered).expect("an empty commit");
    rig.reopen(host).check(database);
}

fn unknown_database<H: ContractHost>(host: &mut H) {
    let (rig, _) = open_one(host);
    let unknown = DatabaseId::of(&DatabaseName::parse("never-created").unwrap(), 0);
    assert!(rig.store.view(&unknown).is_err(), "a view of an unknown database");
}

fn rows_round_trip<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    rig.write(database, None, vec![put("/a", "1"), put("/empty", ""), put_until("/soon", "x", 9_000)]);
    rig.check(database);
    let view = |rig: &Rig<H::Store>, at: &str| rig.store.view(&database).unwrap().row(&key(at)).unwrap();
    assert_eq!(view(&rig, "/soon").siblings().first().unwrap().expiry.unwrap().unix_ms(), 9_000);
    assert_eq!(view(&rig, "/empty").siblings().first().unwrap().len, 0);
    let one = foreign(database, 1, 1, &[], vec![(put("/a", ""), vec![]), (put("/b", "b"), vec![])]);
    let two = foreign(database, 2, 1, &[], vec![(put_until("/a", "2", 1), vec![])]);
    rig.deliver(database, vec![one, two]);
    rig.check(database);
    assert_eq!(view(&rig, "/a").siblings().len(), 3);
    rig = rig.reopen(host);
    rig.check(database);
    rig.write(database, None, vec![put("/a", "3"), delete("/b"), delete("/empty")]);
    rig.check(database);
    assert_eq!(view(&rig, "/a").siblings().len(), 1);
    assert!(view(&rig, "/b").is_empty());
    // A key once deleted can be put again; the longest key is a key.
    let longest = format!("/{}", "k".repeat(crate::limits::MAX_KEY_BYTES - 1));
    rig.write(database, None, vec![put("/b", "again"), put(&longest, "long")]);
    rig.write(database, None, vec![put("/x", "comes"), put("/y", "stays")]);
    rig.write(database, None, vec![delete("/x")]);
    rig.check(database);
    rig.reopen(host).check(database);
}

const SIZES: [usize; 9] = [0, 1, 511, 512, 513, 4_096, 70_000, MAX_VALUE_BYTES - 1, MAX_VALUE_BYTES];

fn values_of_all_sizes<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    for (index, size) in SIZES.into_iter().enumerate() {
        let fill = u8::try_from(index).unwrap();
        rig.write(database, None, vec![put(&format!("/size/{size}"), vec![fill; size])]);
        // The same key again and again, from one size to the next.
        rig.write(database, None, vec![put("/changing", vec![fill + 100; size])]);
        rig.check(database);
    }
    rig = rig.reopen(host);
    for size in SIZES.into_iter().rev() {
        rig.write(database, None, vec![put("/changing", vec![1; size]), delete(&format!("/size/{size}"))]);
        rig.check(database);
    }
    // A value put and superseded within one turn never counts.
    let ops = |value: usize| (database, write(None, vec![put("/turn", vec![value.to_le_bytes()[0]; value])]));
    rig.turn(vec![ops(70_000), ops(600), ops(80_000), (database, write(None, vec![delete("/turn")])), ops(700)]);
    rig.check(database);
    rig.reopen(host).check(database);
}

fn rewritten_beside_a_big_value<H: ContractHost>(host: &mut H) {
    for size in [0, 512, 513, 70_000, MAX_VALUE_BYTES] {
        let (mut rig, database) = open_one(host);
        let big = foreign(database, 1, 1, &[], vec![(put("/k", vec![9; size]), vec![])]);
        rig.deliver(database, vec![big.clone()]);
        // The row is read, its big value perhaps not, and written with one more sibling, then with one less.
        let small = foreign(database, 2, 1, &[], vec![(put("/k", "small"), vec![])]);
        rig.deliver(database, vec![small.clone()]);
        rig.check(database);
        let other = foreign(database, 3, 1, &[], vec![(put("/k", vec![8; size]), vec![])]);
        rig.deliver(database, vec![other.clone()]);
        rig = rig.reopen(host);
        let drop_small = foreign(database, 2, 2, &[&small], vec![(delete("/k"), vec![small.dot()])]);
        rig.deliver(database, vec![drop_small]);
        rig.check(database);
        let drop_big = foreign(database, 1, 2, &[&big], vec![(delete("/k"), vec![big.dot()])]);
        rig.deliver(database, vec![drop_big]);
        rig.check(database);
        rig.write(database, None, vec![delete("/k")]);
        rig.check(database);
        let view = rig.store.view(&database).unwrap();
        for block in [&big, &other] {
            assert_eq!(view.value(&key("/k"), &block.dot()).unwrap(), None, "a dropped value is gone");
        }
    }
}

fn many_siblings<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    let size = |nonce: usize| if nonce.is_multiple_of(2) { 3 } else { 600 };
    let one = |nonce: usize| {
        foreign(database, nonce as u64, 1, &[], vec![(put("/k", vec![nonce.to_le_bytes()[0]; size(nonce)]), vec![])])
    };
    rig.deliver(database, (0..500).map(one).collect());
    rig.check(database);
    rig.write(database, None, vec![put("/k", "one")]);
    rig.check(database);
    rig.reopen(host).check(database);
}

/// Keys that confuse prefixes, separators and successors.
const TRICKY: [&str; 24] = [
    "/a",
    "/a/1",
    "/a/2",
    "/a-b",
    "/ab",
    "/a/1/x",
    "/v",
    "/a/v",
    "/a/p",
    "/a/b",
    "/a/b/c",
    "/a0",
    "/aa",
    "/b",
    "/a/\u{ff}",
    "/a/\u{ff}\u{ff}",
    "/\u{10ffff}",
    "/\u{10ffff}/\u{10ffff}",
    "/a\u{1}",
    "/a ",
    "/~",
    "/heads",
    "/blocks/version",
    "/0",
];

fn scans<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    let mut keys: Vec<Key> = TRICKY.iter().map(|text| key(text)).collect();
    // In two commits, and in no order.
    rig.write(database, None, TRICKY.iter().rev().step_by(2).map(|at| put(at, *at)).collect());
    rig.write(database, None, TRICKY.iter().rev().skip(1).step_by(2).map(|at| put(at, vec![5; 600])).collect());
    keys.sort();
    rig.check(database);
    let rig = rig.reopen(host);
    let view = rig.store.view(&database).unwrap();
    for text in TRICKY.into_iter().chain(["/", "/absent", "/zz"]) {
        let prefix = Prefix::parse(text).unwrap();
        let mut expected: Vec<Key> = keys.iter().filter(|key| prefix.covers(key)).cloned().collect();
        for (order, projection) in [
            (Order::Ascending, Projection::Rows),
            (Order::Ascending, Projection::Keys),
            (Order::Descending, Projection::Keys),
            (Order::Descending, Projection::Rows),
        ] {
            if order == Order::Descending {
                expected.sort_by(|a, b| b.cmp(a));
            }
            let found: Vec<Key> = scan(&view, KeyRange::of(&prefix), order, projection);
            assert_eq!(found, expected, "{text} {order:?} {projection:?}");
        }
    }
}

fn scan<V: View>(view: &V, range: KeyRange, order: Order, projection: Projection) -> Vec<Key> {
    let mut keys = Vec::new();
    for item in view.scan(range, order, projection) {
        let (key, row) = item.unwrap();
        assert!(!row.is_empty(), "an empty row at {key}");
        for (read, stored) in row.siblings().iter().zip(view.row(&key).unwrap().siblings()) {
            assert_eq!((read.dot, read.stamp, read.expiry, read.len), (stored.dot, stored.stamp, stored.expiry, stored.len));
            assert_eq!(read.check, stored.check);
            match projection {
                Projection::Keys => assert_eq!(read.value, None, "a value in a scan of keys"),
                Projection::Rows => assert_eq!(read.value, stored.value),
            }
        }
        keys.push(key);
    }
    keys
}

fn narrowed_scans<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    rig.write(database, None, TRICKY.iter().map(|at| put(at, "x")).collect());
    let mut keys: Vec<Key> = TRICKY.iter().map(|text| key(text)).collect();
    keys.sort();
    let view = rig.store.view(&database).unwrap();
    for at in &keys {
        for bound in [Bound::Included(at.as_bytes()), Bound::Excluded(at.as_bytes())] {
            let mut range = KeyRange::of(&Prefix::root());
            range.start_from(bound);
            let skipped = usize::from(matches!(bound, Bound::Excluded(_)));
            let expected: Vec<Key> = keys.iter().filter(|key| *key >= at).skip(skipped).cloned().collect();
            assert_eq!(scan(&view, range, Order::Ascending, Projection::Rows), expected, "from {bound:?}");
        }
        let mut range = KeyRange::of(&Prefix::root());
        range.end_before(at.as_bytes());
        let expected: Vec<Key> = keys.iter().filter(|key| *key < at).rev().cloned().collect();
        assert_eq!(scan(&view, range, Order::Descending, Projection::Rows), expected, "before {at}");
    }
    // A range whose end is not above its start has nothing in it, in either order.
    for (start, end) in [("/b", "/a"), ("/a", "/a")] {
        let range = KeyRange { start: start.into(), end: end.into() };
        for order in [Order::Ascending, Order::Descending] {
            assert!(scan(&view, range.clone(), order, Projection::Rows).is_empty(), "{start} to {end}");
        }
    }
}

fn log_from<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two"]);
    for index in 0..300 {
        let database = *ids.get(index % 2).unwrap();
        rig.write(database, None, vec![put("/k", index.to_string())]);
    }
    let rig = rig.reopen(host);
    for database in ids {
        log_reads(&rig, database, 0);
    }
}

fn log_reads<S: Store>(rig: &Rig<S>, database: DatabaseId, floor: u64) {
    let dots: Vec<(u64, Dot)> = (1..).zip(rig.blocks(database).iter().map(Block::dot)).collect();
    let view = rig.store.view(&database).unwrap();
    for from in [0, 1, 2, 149, 150, 151, 1_000, u64::MAX] {
        let expected: Vec<(u64, Dot)> =
            dots.iter().filter(|(revision, _)| *revision >= from && *revision > floor).copied().collect();
        let log: Vec<(u64, Dot)> = view.log(from).map(Result::unwrap).map(|entry| (entry.revision, entry.dot)).collect();
        assert_eq!(log, expected, "the log from {from}");
    }
}

fn log_from_a_floor<H: ContractHost>(host: &mut H) {
    for floor in [1, 149, 150, 151, 299, 300] {
        let (mut rig, database) = open_one(host);
        (0..300).for_each(|index| drop(rig.write(database, None, vec![put("/k", index.to_string())])));
        assert_eq!(rig.truncate(database, floor, usize::MAX) as u64, floor);
        log_reads(&rig, database, floor);
        let rig = rig.reopen(host);
        log_reads(&rig, database, floor);
    }
}

/// Several writers in two databases, dropped in pieces of every size, beside writes and across openings: rows, vector,
/// heads and digest stay, and what comes later builds on what is gone.
fn history_is_dropped<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two"]);
    let [one, two] = ids.as_slice() else { panic!("two databases") };
    let mut last: Option<Block> = None;
    for seq in 1..=40 {
        for database in &ids {
            rig.write(*database, None, vec![put(&format!("/k/{}", seq % 5), vec![1; 600])]);
            rig.write(*database, None, vec![delete(&format!("/k/{}", seq % 3))]);
        }
        let parents: Vec<&Block> = last.iter().collect();
        let block = foreign(*one, 9, seq, &parents, vec![(put("/f", seq.to_string()), vec![])]);
        rig.deliver(*one, vec![block.clone()]);
        last = Some(block);
    }
    for database in &ids {
        rig.check(*database);
    }
    assert_eq!(rig.truncate(*one, 0, 10), 0);
    assert_eq!(rig.truncate(*one, 10, 0), 0);
    assert_eq!(rig.truncate(*one, 10, 3), 3);
    rig.check(*one);
    assert_eq!(rig.truncate(*one, 10, 100), 7);
    assert_eq!(rig.truncate(*one, 10, 100), 0, "nothing is dropped twice");
    rig.check(*one);
    rig.check(*two);
    rig = rig.reopen(host);
    rig.check(*one);
    // Beside writes, and in two pieces of one turn.
    let truncate = |through: u64, limit: usize| Input::Truncate { token: crate::input::Token(0), through, limit };
    let both = vec![
        (*one, write(None, vec![put("/new", "1"), delete("/f")])),
        (*one, truncate(30, 5)),
        (*two, truncate(u64::MAX, 2)),
        (*one, truncate(30, 6)),
    ];
    rig.turn(both);
    assert_eq!(rig.store.view(one).unwrap().state().unwrap().meta.log_floor, 21);
    for database in &ids {
        rig.check(*database);
    }
    // Everything, but for what the same turn merges.
    rig.turn(vec![(*one, write(None, vec![put("/last", "1")])), (*one, truncate(u64::MAX, usize::MAX))]);
    rig.check(*one);
    assert_eq!(rig.store.view(one).unwrap().log(0).count(), 1);
    rig = rig.reopen(host);
    rig.truncate(*one, u64::MAX, usize::MAX);
    rig.check(*one);
    // A parent whose block is gone, and a block that is.
    let last = last.unwrap();
    let next = foreign(*one, 9, 41, &[&last], vec![(put("/f", "41"), vec![last.dot()])]);
    let effects = rig.turn(vec![(*one, Input::Blocks { blocks: vec![last, next], source: Source(1) })]);
    assert!(matches!(effects.as_slice(), [Effect::Duplicate { .. }, Effect::Merged { .. }]), "{effects:?}");
    rig.check(*one);
    rig.write(*one, None, vec![delete("/f"), put("/again", vec![2; 70_000])]);
    let rig = rig.reopen(host);
    for database in &ids {
        rig.check(*database);
    }
}

fn state_after_many_commits<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    for index in 0..200_u64 {
        if index % 3 == 0 {
            let nonce = index / 3;
            rig.deliver(database, vec![foreign(database, nonce, 1, &[], vec![(put("/f", "x"), vec![])])]);
        } else {
            rig.write(database, None, vec![put(&format!("/k/{}", index % 7), index.to_string())]);
        }
        if index % 20 == 0 {
            rig.check(database);
            // A new opening writes under a new replica id.
            rig = rig.reopen(host);
        }
    }
    rig.check(database);
}

fn heads_across_the_border<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    let lone = |nonce: u64| foreign(database, nonce, 1, &[], vec![(put(&format!("/{nonce}"), "x"), vec![])]);
    let heads = |rig: &Rig<H::Store>| rig.store.view(&database).unwrap().state().unwrap().heads.len();
    // Up to the border and over it one by one, down by one merge, up and down again in one commit each.
    for nonce in 0..=MAX_PACKED_HEADS as u64 + 2 {
        rig.deliver(database, vec![lone(nonce)]);
        assert_eq!(heads(&rig) as u64, nonce + 1);
        if nonce > 60 {
            rig.check(database);
            rig = rig.reopen(host);
        }
    }
    rig.write(database, None, vec![put("/down", "1")]);
    assert_eq!(heads(&rig), 4);
    rig.check(database);
    rig.deliver(database, (100..200).map(lone).collect());
    assert_eq!(heads(&rig), 104);
    rig.check(database);
    rig.write(database, None, vec![put("/down", "2")]);
    assert_eq!(heads(&rig), 41);
    rig.check(database);
    // From spilled to spilled, with records added and removed.
    rig.deliver(database, (200..300).map(lone).collect());
    let child = foreign(database, 250, 2, &[&lone(250), &lone(251)], vec![(put("/child", "x"), vec![])]);
    rig.deliver(database, vec![child, lone(301)]);
    assert_eq!(heads(&rig), 141);
    rig.check(database);
    rig = rig.reopen(host);
    rig.check(database);
    rig.write(database, None, vec![put("/down", "3")]);
    rig.write(database, None, vec![put("/down", "4")]);
    rig.write(database, None, vec![put("/down", "5")]);
    assert_eq!(heads(&rig), 1);
    rig.check(database);
    rig.reopen(host).check(database);
}

fn requests<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two"]);
    let [one, two] = ids.as_slice() else { panic!("two databases") };
    let request = RequestId([3; 16]);
    let first = rig.write(*one, Some(request), vec![put("/b", "1"), put("/a", "2")]);
    let Some(Effect::Written { outcome, .. }) = first.iter().find(|effect| matches!(effect, Effect::Written { .. })) else {
        panic!("no answer in {first:?}")
    };
    let mut rig = rig.reopen(host);
    let record = rig.store.view(one).unwrap().request(&request).unwrap().expect("an answered request");
    assert_eq!((Some(record.dot), record.ops.as_slice()), (outcome.dot, [0, 1].as_slice()));
    assert_eq!(record.stamp, rig.blocks(*one).first().unwrap().stamp());
    assert_eq!(rig.store.view(two).unwrap().request(&request).unwrap(), None, "a request of another database");
    assert_eq!(rig.store.view(one).unwrap().request(&RequestId([4; 16])).unwrap(), None);
    let again = rig.write(*one, Some(request), vec![put("/b", "1"), put("/a", "2")]);
    let Some(Effect::Written { outcome: repeated, .. }) = again.first() else { panic!("no answer in {again:?}") };
    assert_eq!((repeated.dot, repeated.ops.as_slice()), (outcome.dot, [OpOutcome::Repeated; 2].as_slice()));
    rig.check(*one);
}

fn requests_are_forgotten<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two"]);
    let [one, two] = ids.as_slice() else { panic!("two databases") };
    let id = |index: u8| RequestId([index; 16]);
    for index in (0..20).rev() {
        rig.write(*one, Some(id(index)), vec![put("/k", vec![index])]);
        rig.write(*two, Some(id(index)), vec![put("/k", vec![index])]);
    }
    rig.check(*one);
    let stamp = |rig: &Rig<H::Store>, index: u8| rig.store.view(one).unwrap().request(&id(index)).unwrap().unwrap().stamp;
    // By age: the stamps rose while the ids fell.
    let before = stamp(&rig, 15);
    assert_eq!(rig.forget(*one, before, u64::MAX, 100), 4);
    assert_eq!(rig.forget(*one, before, u64::MAX, 100), 0);
    rig.check(*one);
    rig = rig.reopen(host);
    // By number, and not more at once than asked for.
    assert_eq!(rig.forget(*one, Stamp::default(), 10, 2), 2);
    assert_eq!(rig.forget(*one, Stamp::default(), 10, 100), 4);
    rig.check(*one);
    let view = rig.store.view(one).unwrap();
    let left: Vec<RequestId> = view.oldest_requests().map(|entry| entry.unwrap().1).collect();
    assert_eq!(left, (0..10).rev().map(id).collect::<Vec<_>>());
    assert_eq!(view.request(&id(10)).unwrap(), None);
    drop(view);
    // Forgotten is forgotten: the same id is a new request. In one turn with others.
    let again = |ids: [u8; 2]| {
        let write = |index: u8| (*one, write(Some(id(index)), vec![put("/again", vec![index])]));
        vec![write(ids[0]), (*one, forget(Stamp::default(), 9, 100)), write(ids[1]), (*one, forget(Stamp::default(), 9, 100))]
    };
    rig.turn(again([19, 3]));
    rig.check(*one);
    assert_eq!(rig.store.view(one).unwrap().oldest_requests().count(), 9);
    rig.check(*two);
    assert_eq!(rig.reopen(host).store.view(two).unwrap().oldest_requests().count(), 20);
}

fn what_has_expired<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two"]);
    let [one, two] = ids.as_slice() else { panic!("two databases") };
    let found = |rig: &Rig<H::Store>, database: &DatabaseId, until: u64| -> Vec<(u64, String)> {
        let view = rig.store.view(database).unwrap();
        view.expired(WallTime(until)).map(Result::unwrap).map(|(at, key)| (at.unix_ms(), key.as_str().to_owned())).collect()
    };
    let pair = |at: u64, key: &str| (at, key.to_owned());
    rig.write(*one, None, vec![put_until("/b", "x", 10), put_until("/a", vec![1; 70_000], 20), put("/c", "for ever")]);
    rig.write(*two, None, vec![put_until("/b", "x", 5)]);
    assert_eq!(found(&rig, one, 9), []);
    assert_eq!(found(&rig, one, 10), [pair(10, "/b")]);
    assert_eq!(found(&rig, one, u64::MAX), [pair(10, "/b"), pair(20, "/a")]);
    // Siblings at one key: with another expiry, with the same, without.
    let beside = |nonce, ms| foreign(*one, nonce, 1, &[], vec![(put_until("/b", "y", ms), vec![])]);
    rig.deliver(*one, vec![beside(1, 10), beside(2, 8), beside(3, u64::MAX >> 1)]);
    assert_eq!(found(&rig, one, 30), [pair(8, "/b"), pair(10, "/b"), pair(20, "/a")]);
    rig.check(*one);
    // One of two with the same expiry goes: the other is still to be found.
    let first = rig.blocks(*one).first().unwrap().dot();
    let last = foreign(*one, 1, 2, &[], vec![(put("/b", "z"), vec![first])]);
    rig.deliver(*one, vec![last]);
    assert_eq!(found(&rig, one, 10), [pair(8, "/b"), pair(10, "/b")]);
    rig.check(*one);
    rig = rig.reopen(host);
    rig.write(*one, None, vec![put("/b", "all of them"), put_until("/a", "later", 30)]);
    assert_eq!(found(&rig, one, u64::MAX), [pair(30, "/a")]);
    rig.check(*one);
    rig.write(*one, None, vec![put_until("/t", "x", 40)]);
    // Put and gone within one turn.
    rig.turn(vec![
        (*one, write(None, vec![put_until("/u", "x", 5_000)])),
        (*one, write(None, vec![delete("/u"), put("/t", "x")])),
    ]);
    assert_eq!(found(&rig, one, u64::MAX), [pair(30, "/a")]);
    let rig = rig.reopen(host);
    rig.check(*one);
    assert_eq!(found(&rig, two, u64::MAX), [pair(5, "/b")]);
}

fn databases_do_not_leak<H: ContractHost>(host: &mut H) {
    let names = ["sub1", "sub10", "sub1.x", "heads", "blocks", "version", "a", "A"];
    let (mut rig, ids) = open(host, &names);
    for (name, database) in names.iter().zip(&ids) {
        rig.check(*database);
        let block = foreign(*database, 1, 1, &[], vec![(put("/same", vec![1; 600]), vec![])]);
        rig.deliver(*database, vec![block]);
        rig.write(*database, None, vec![put("/same", *name), put(&format!("/{name}"), "mine"), put("/heads", "")]);
    }
    rig.write(*ids.first().unwrap(), None, vec![delete("/same"), delete("/heads")]);
    rig.write(*ids.last().unwrap(), None, vec![delete("/same")]);
    rig = rig.reopen(host);
    for database in &ids {
        rig.check(*database);
    }
}

fn one_batch_for_several_databases<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two", "three"]);
    for round in 0..5 {
        let inputs = ids.iter().map(|database| (*database, write(None, vec![put("/k", round.to_string())]))).collect();
        rig.turn(inputs);
        let blocks = vec![foreign(*ids.first().unwrap(), round, 1, &[], vec![(put("/f", "x"), vec![])])];
        let received = (*ids.first().unwrap(), Input::Blocks { blocks, source: Source(2) });
        rig.turn(vec![received, (*ids.last().unwrap(), write(None, vec![put("/l", "x")]))]);
        for database in &ids {
            rig.check(*database);
        }
    }
    let rig = rig.reopen(host);
    for database in &ids {
        rig.check(*database);
    }
}

fn whole_or_not_at_all<H: ContractHost>(host: &mut H) {
    let (mut rig, database) = open_one(host);
    rig.write(database, None, vec![put("/before", "1")]);
    let unknown = DatabaseId::of(&DatabaseName::parse("never-created").unwrap(), 0);
    let set = |database: DatabaseId| WriteSet {
        database,
        rows: Vec::new(),
        blocks: vec![(9, foreign(database, 1, 1, &[], vec![(put("/k", "x"), vec![])]))],
        vv: Vec::new(),
        heads: HeadsChange::None,
        meta: Meta { revision: 9, ..Meta::default() },
        requests: Vec::new(),
        forgotten: Vec::new(),
        truncation: Truncation::default(),
        snapshot: Vec::new(),
    };
    let refused = rig.store.commit(&[set(database), set(unknown)], Durability::Sync);
    assert!(refused.is_err(), "a batch with an unknown database");
    let rig = rig.reopen(host);
    rig.check(database);
    assert!(rig.store.view(&unknown).is_err());
}
