//! What a store must promise of snapshots: staging, building, switching.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test: a broken store is to panic")]

use bytes::Bytes;

use crate::block::Block;
use crate::database::DatabaseId;
use crate::key::{KeyRange, Prefix};
use crate::snapshot::{Cursor, SnapshotId, SnapshotJoin, read_piece, snapshot_head};
use crate::store::{Order, Projection, SnapshotWrite, Staged, Store, View};
use crate::testing::contract::{open, open_one};
use crate::testing::rig::{ContractHost, Rig, delete, foreign, key, put, put_until};

pub(super) fn staging<H: ContractHost>(host: &mut H) {
    let (mut rig, ids) = open(host, &["one", "two"]);
    let [one, two] = ids.as_slice() else { panic!("two databases") };
    let staged = |rig: &Rig<H::Store>, database: &DatabaseId| rig.store.view(database).unwrap().staged().unwrap();
    assert_eq!((staged(&rig, one), staged(&rig, two)), (None, None));
    let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
    for database in &ids {
        rig.stage(*database, vec![SnapshotWrite::Begin { head: bytes("old") }]);
        rig.stage(*database, vec![SnapshotWrite::Chunk { index: 0, next: bytes("x"), bytes: bytes("gone") }]);
        rig.stage(*database, vec![SnapshotWrite::Begin { head: bytes("head") }]);
    }
    assert_eq!(staged(&rig, one), Some(Staged { head: bytes("head"), chunks: 0, next: None }));
    assert_eq!(rig.store.view(one).unwrap().staged_chunk(0).unwrap(), None, "a chunk of an earlier snapshot");
    for index in 0..300_u64 {
        let next = if index == 299 { Bytes::new() } else { Bytes::from(index.to_be_bytes().to_vec()) };
        let chunk = SnapshotWrite::Chunk { index, next, bytes: vec![index.to_le_bytes()[0]; 500].into() };
        rig.stage(*one, vec![chunk]);
    }
    let mut rig = rig.reopen(host);
    let found = staged(&rig, one).unwrap();
    assert!(found.is_complete());
    assert_eq!(found, Staged { head: bytes("head"), chunks: 300, next: Some(Bytes::new()) });
    for index in [0, 1, 255, 256, 298] {
        let (next, chunk) = rig.store.view(one).unwrap().staged_chunk(index).unwrap().expect("a staged chunk");
        assert_eq!((next.as_ref(), chunk.len()), (index.to_be_bytes().as_slice(), 500));
    }
    assert_eq!(rig.store.view(one).unwrap().staged_chunk(300).unwrap(), None);
    assert_eq!(staged(&rig, two).unwrap().chunks, 0);
    rig.stage(*one, vec![SnapshotWrite::Discard]);
    assert_eq!(staged(&rig, one), None);
    assert!(staged(&rig, two).is_some(), "another database's snapshot");
    let rig = rig.reopen(host);
    assert_eq!(staged(&rig, one), None);
}

/// What a sender has: small and large values, siblings, deletes, and requests of no consequence.
fn sender<H: ContractHost>(host: &mut H) -> (Rig<H::Store>, DatabaseId, Vec<Block>) {
    let (mut rig, database) = open_one(host);
    let sizes = [0, 10, 512, 513, 70_000];
    let lone = |nonce: u64, at: &str, size: usize| foreign(database, nonce, 1, &[], vec![(put(at, vec![7; size]), vec![])]);
    for (nonce, size) in (100..).zip(sizes) {
        rig.deliver(database, vec![lone(nonce, "/crowded", size), lone(nonce + 50, &format!("/size/{size}"), size)]);
    }
    for index in 0..60 {
        // What expires must be found in the rows that are built as well.
        let expires = put_until(&format!("/expires/{index:02}"), "x", 1 + index as u64 % 3);
        rig.write(database, None, vec![put(&format!("/k/{index:02}"), vec![1; 40 * index]), expires]);
    }
    rig.write(database, None, (0..60).step_by(3).map(|index| delete(&format!("/k/{index:02}"))).collect());
    let blocks = rig.blocks(database).to_vec();
    (rig, database, blocks)
}

/// What the receiver has: some of it, and some of its own, at the same keys and at others.
fn receiver<H: ContractHost>(host: &mut H, theirs: &[Block]) -> (Rig<H::Store>, DatabaseId, Vec<Block>) {
    let (mut rig, database) = open_one(host);
    rig.draw_from(1_000);
    rig.deliver(database, theirs.iter().take(30).cloned().collect());
    let own = |nonce: u64, at: &str, size: usize| foreign(database, nonce, 1, &[], vec![(put(at, vec![9; size]), vec![])]);
    let mine = [("/crowded", 600), ("/crowded", 3), ("/own/a", 600), ("/zz", 70_000), ("/a", 5)];
    rig.deliver(database, (500..).zip(mine).map(|(nonce, (at, size))| own(nonce, at, size)).collect());
    let blocks = rig.blocks(database).to_vec();
    (rig, database, blocks)
}

fn stage_all<S: Store>(to: &mut Rig<S>, from: &Rig<S>, database: DatabaseId) {
    let view = from.store.view(&database).unwrap();
    let state = view.state().unwrap();
    let head = snapshot_head(SnapshotId { boot: 1, view: 1 }, &state).encode();
    to.stage(database, vec![SnapshotWrite::Begin { head }]);
    let (mut at, mut index) = (Some(Cursor::START), 0);
    while let Some(cursor) = at {
        let piece = read_piece(&view, &state, &cursor, 4_000).unwrap();
        let next = piece.next.as_ref().map(Cursor::encode).unwrap_or_default();
        to.stage(database, vec![SnapshotWrite::Chunk { index, next, bytes: piece.bytes }]);
        (at, index) = (piece.next, index + 1);
    }
}

fn begin<S: Store>(rig: &Rig<S>, database: DatabaseId) -> SnapshotJoin {
    let staged = rig.store.view(&database).unwrap().staged().unwrap().expect("a staged snapshot");
    assert!(staged.is_complete());
    SnapshotJoin::new(database, staged.head, rig.revision(database)).unwrap()
}

pub(super) fn built_rows<H: ContractHost>(host: &mut H) {
    let (from, database, theirs) = sender(host);
    for busy in [false, true] {
        let (mut rig, _, mine) = receiver(host, &theirs);
        stage_all(&mut rig, &from, database);
        let mut all = [theirs.clone(), mine.clone()].concat();
        // Also after a restart in the middle, which keeps what was staged and no more.
        let mut join = begin(&rig, database);
        rig.join(database, &mut join);
        rig = rig.reopen(host);
        rig.check_state(database, &mine);
        join = begin(&rig, database);
        rig.join(database, &mut join);
        if busy {
            rig.write(database, None, vec![put("/k/05", vec![3; 900]), put("/new", vec![4; 900]), delete("/zz")]);
            rig.write(database, None, vec![delete("/new"), delete("/crowded"), put("/size/513", "x")]);
            all.extend(rig.blocks(database).iter().rev().take(2).cloned());
        }
        let before = rig.revision(database);
        while !rig.join(database, &mut join) {}
        rig.check_state(database, &all);
        let entries = |rig: &Rig<H::Store>| {
            let entries = rig.store.view(&database).unwrap().log(before).map(Result::unwrap).collect::<Vec<_>>();
            entries.into_iter().map(|entry| (entry.revision, entry.names_block())).collect::<Vec<_>>()
        };
        assert_eq!(entries(&rig), [(before, true), (before + 1, false)]);
        assert_eq!(rig.store.view(&database).unwrap().staged().unwrap(), None);
        let mut rig = rig.reopen(host);
        rig.check_state(database, &all);
        assert_eq!(entries(&rig), [(before, true), (before + 1, false)]);
        // The new rows are rows like any others.
        rig.write(database, None, vec![put("/after", vec![5; 700]), delete("/size/70000"), delete("/own/a")]);
        all.extend(rig.blocks(database).last().cloned());
        rig.check_state(database, &all);
        // And once more, over what a snapshot brought.
        stage_all(&mut rig, &from, database);
        let mut again = begin(&rig, database);
        while !rig.join(database, &mut again) {}
        let rig = rig.reopen(host);
        rig.check_state(database, &all);
    }
}

pub(super) fn given_up<H: ContractHost>(host: &mut H) {
    let (from, database, theirs) = sender(host);
    let (mut rig, _, mine) = receiver(host, &theirs);
    stage_all(&mut rig, &from, database);
    let mut join = begin(&rig, database);
    while rig.store.view(&database).unwrap().built(&key("/k/01")).map_or(true, |row| row.is_empty()) {
        assert!(!rig.join(database, &mut join), "the rows are to be read before the switch");
        rig.check_state(database, &mine);
    }
    let everything = KeyRange::of(&Prefix::root());
    let count = |rig: &Rig<H::Store>| {
        rig.store.view(&database).unwrap().scan(everything.clone(), Order::Ascending, Projection::Keys).count()
    };
    let before = count(&rig);
    rig.stage(database, vec![SnapshotWrite::Discard]);
    rig.check_state(database, &mine);
    let rig = rig.reopen(host);
    rig.check_state(database, &mine);
    assert_eq!((count(&rig), rig.store.view(&database).unwrap().staged().unwrap()), (before, None));
}
