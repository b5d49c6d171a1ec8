//! What views give back.

use bytes::Bytes;
use crdt::{Effect, Input, KeyRange, Order, Prefix, Projection, RequestId, Source, Store as _, View};
use tempfile::TempDir;

use super::{Fixture, Writer, key, open, put};
use crate::store::{Family, RocksStore, StoreError, layout};

fn keys<V: View>(view: &V, prefix: &str, order: Order) -> Vec<String> {
    let range = KeyRange::of(&Prefix::parse(prefix).unwrap());
    view.scan(range, order, Projection::Keys).map(|row| row.unwrap().0.to_string()).collect()
}

#[test]
fn k03_databases_do_not_see_each_other() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let (mut a, mut b) = (Writer::new(&store, "a"), Writer::new(&store, "b"));
    a.put(&mut store, "/same", b"a");
    b.put(&mut store, "/same", b"b");
    b.put(&mut store, "/other", b"b");
    let (a, b) = (store.view(&a.replica.database()).unwrap(), store.view(&b.replica.database()).unwrap());
    assert_eq!(a.row(&key("/same")).unwrap().siblings()[0].value.as_deref(), Some(&b"a"[..]));
    assert_eq!(keys(&a, "/", Order::Ascending), ["/same"]);
    assert_eq!(keys(&a, "/", Order::Descending), ["/same"]);
    assert_eq!(keys(&b, "/", Order::Ascending), ["/other", "/same"]);
    assert_eq!((a.log(0).count(), b.log(0).count()), (1, 2));
    assert_eq!((a.state().unwrap().vv.len(), b.state().unwrap().meta.keys), (1, 2));
    assert_eq!(a.state().unwrap().meta.keys, 1);
}

#[test]
fn r17_keys_come_in_byte_order_both_ways() {
    let mut fixture = Fixture::new();
    let mut expected = ["/a", "/a/b", "/a-b", "/ab", "/a/\u{1}", "/a/é", "/a/\u{10ffff}", "/A", "/z/0", "/a0"];
    for at in expected {
        fixture.put(at, b"");
    }
    expected.sort_unstable();
    let view = fixture.store.view(&fixture.writer.replica.database()).unwrap();
    assert_eq!(keys(&view, "/", Order::Ascending), expected);
    let below: Vec<&str> = expected.into_iter().filter(|key| key.starts_with("/a/")).collect();
    assert_eq!(keys(&view, "/a", Order::Ascending), below);
    let mut backwards = keys(&view, "/", Order::Descending);
    backwards.reverse();
    assert_eq!(backwards, expected);
    assert!(keys(&view, "/a/b", Order::Descending).is_empty());
    let empty = KeyRange { start: b"/z".to_vec(), end: b"/a".to_vec() };
    assert_eq!(view.scan(empty, Order::Ascending, Projection::Rows).count(), 0);
}

#[test]
fn s03_the_longest_key_is_kept_whole() {
    let mut fixture = Fixture::new();
    let longest = format!("/{}", "k".repeat(crdt::limits::MAX_KEY_BYTES - 1));
    fixture.put(&longest, &[1; 600]);
    let view = fixture.store.view(&fixture.writer.replica.database()).unwrap();
    let row = view.row(&key(&longest)).unwrap();
    assert_eq!(view.value(&key(&longest), &row.siblings()[0].dot).unwrap(), Some(Bytes::from(vec![1; 600])));
    assert_eq!(keys(&view, "/", Order::Ascending), [longest]);
}

#[test]
fn large_values_stand_apart_and_go_with_their_sibling() {
    let mut fixture = Fixture::new();
    let id = fixture.writer.replica.database();
    for len in [0, 1, 512, 513, crdt::limits::MAX_VALUE_BYTES] {
        let value = vec![7; len];
        fixture.put("/v", &value);
        let view = fixture.store.view(&id).unwrap();
        let row = view.row(&key("/v")).unwrap();
        let sibling = &row.siblings()[0];
        assert_eq!(usize::try_from(sibling.len).unwrap(), len);
        let apart = view.value(&key("/v"), &sibling.dot).unwrap();
        assert_eq!((sibling.value.is_some(), apart.is_some()), (len <= 512, len > 512), "{len}");
        assert_eq!(sibling.value.clone().or(apart).unwrap(), value);
    }
    let dot = fixture.store.view(&id).unwrap().row(&key("/v")).unwrap().siblings()[0].dot;
    fixture.delete("/v");
    assert_eq!(fixture.store.view(&id).unwrap().value(&key("/v"), &dot).unwrap(), None);
}

#[test]
fn a_large_sibling_stays_while_another_joins_it() {
    let mut one = Fixture::new();
    let mut two = Fixture::new();
    two.writer.nonce = 99;
    one.put("/v", &[1; 2_000]);
    let effects = two.put("/v", &[2; 3_000]);
    let Some(Effect::Sealed { block, .. }) = effects.into_iter().find(|effect| matches!(effect, Effect::Sealed { .. })) else {
        panic!("nothing sealed")
    };
    one.writer.step(&mut one.store, Input::Blocks { blocks: vec![block], source: Source(1) }).unwrap();
    let view = one.store.view(&one.writer.replica.database()).unwrap();
    let row = view.row(&key("/v")).unwrap();
    let mut lengths: Vec<usize> =
        row.siblings().iter().map(|sibling| view.value(&key("/v"), &sibling.dot).unwrap().unwrap().len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [2_000, 3_000]);
}

#[test]
fn a_scan_of_keys_brings_no_values() {
    let mut fixture = Fixture::new();
    fixture.put("/v", b"value");
    let view = fixture.store.view(&fixture.writer.replica.database()).unwrap();
    let range = || KeyRange::of(&Prefix::root());
    let (_, bare) = view.scan(range(), Order::Ascending, Projection::Keys).next().unwrap().unwrap();
    let (_, full) = view.scan(range(), Order::Ascending, Projection::Rows).next().unwrap().unwrap();
    assert_eq!((bare.siblings()[0].value.as_deref(), bare.siblings()[0].len), (None, 5));
    assert_eq!(full, view.row(&key("/v")).unwrap());
}

#[test]
fn a_snapshot_stands_still_while_commits_go_on() {
    let mut fixture = Fixture::new();
    let id = fixture.writer.replica.database();
    for n in 0..100 {
        fixture.put(&format!("/old/{n:03}"), b"old");
    }
    let reader = fixture.store.clone();
    let pinned = reader.snapshot(&id).unwrap();
    let live = reader.view(&id).unwrap();
    let mut scan = pinned.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows);
    let first = scan.next().unwrap().unwrap();
    for n in 0..100 {
        fixture.put(&format!("/new/{n:03}"), b"new");
        fixture.put(&format!("/old/{n:03}"), b"changed");
    }
    fixture.delete("/old/050");
    assert_eq!(1 + scan.filter(|row| row.as_ref().unwrap().1.siblings()[0].value.as_deref() == Some(b"old")).count(), 100);
    assert_eq!(first.0, key("/old/000"));
    assert_eq!(pinned.state().unwrap().meta.revision, 100);
    assert_eq!(pinned.row(&key("/old/050")).unwrap().siblings().len(), 1);
    assert_eq!(pinned.log(0).count(), 100);
    assert!(live.row(&key("/old/050")).unwrap().is_empty());
    assert_eq!(live.state().unwrap().meta.revision, 301);
}

#[test]
fn the_log_is_read_in_pieces() {
    let mut fixture = Fixture::new();
    let id = fixture.writer.replica.database();
    for n in 0..10 {
        fixture.put(&format!("/{n}"), &[0; 1_000]);
    }
    let read = |from, max_bytes, skipped: u64| {
        let chunk = fixture.store.read_log(&id, from, max_bytes, &|dot| dot.seq <= skipped).unwrap();
        (chunk.blocks.iter().map(|(revision, _, _)| *revision).collect::<Vec<_>>(), chunk.next, chunk.end)
    };
    assert_eq!(read(0, usize::MAX, 0), ((1..=10).collect(), 11, true));
    assert_eq!(read(1, 0, 0), (vec![1], 2, false));
    assert_eq!(read(2, 4_000, 0), (vec![2, 3, 4], 5, false));
    assert_eq!(read(0, 4_000, 8), (vec![9, 10], 11, true));
    assert_eq!(read(0, 0, 8), (vec![9], 10, false));
    assert_eq!(read(0, 0, 10), (vec![], 11, true));
    assert_eq!(read(11, 0, 0), (vec![], 11, true));
    let view = fixture.store.view(&id).unwrap();
    let crdt::LogEntry { revision, dot, .. } = view.log(4).next().unwrap().unwrap();
    let block = view.block(&dot).unwrap().unwrap();
    assert_eq!((revision, block.revision), (4, 4));
    assert_eq!(view.block_hash(&dot).unwrap(), Some(block.hash));
    assert_eq!(crdt::BlockHash::of(&block.bytes), block.hash);
    assert_eq!(fixture.store.revision_of(&id, &dot).unwrap(), Some(4));
    assert_eq!(fixture.store.revision_of(&id, &crdt::Dot { seq: 77, ..dot }).unwrap(), None);
}

#[test]
fn an_answered_request_is_found_again() {
    let mut fixture = Fixture::new();
    let id = fixture.writer.replica.database();
    let request = RequestId([3; 16]);
    fixture.writer.write(&mut fixture.store, "/a", put(b"1"), Some(request)).unwrap();
    let (dir, _) = fixture.close();
    let store = open(dir.path());
    let view = store.view(&id).unwrap();
    let record = view.request(&request).unwrap().unwrap();
    assert_eq!((record.dot.seq, record.ops), (1, vec![0]));
    assert_eq!(view.request(&RequestId([4; 16])).unwrap(), None);
}

#[test]
fn many_heads_are_spilled_and_packed_again() {
    let mut fixture = Fixture::new();
    let id = fixture.writer.replica.database();
    let mut blocks = Vec::new();
    for nonce in 1..=100 {
        let mut other = Fixture::new();
        other.writer.nonce = 1_000 + nonce;
        let effects = other.put("/h", &nonce.to_be_bytes());
        blocks.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Sealed { block, .. } => Some(block),
            _ => None,
        }));
    }
    for (count, block) in (1..).zip(blocks) {
        fixture.writer.step(&mut fixture.store, Input::Blocks { blocks: vec![block], source: Source(1) }).unwrap();
        let state = fixture.store.view(&id).unwrap().state().unwrap();
        assert_eq!((state.heads.len(), &state.heads), (count, fixture.writer.replica.heads()));
    }
    fixture.put("/h", b"all seen");
    let state = fixture.store.view(&id).unwrap().state().unwrap();
    assert_eq!((state.heads.len(), &state.heads), (37, fixture.writer.replica.heads()));
}

#[test]
fn a_poisoned_store_reads_and_does_not_write() {
    let mut fixture = Fixture::new();
    fixture.put("/a", b"1");
    assert_eq!(fixture.store.poison(), None);
    fixture.store.0.inner.poison_with("the disk is gone");
    let poisoned = StoreError::Poisoned { cause: "the disk is gone".to_owned() };
    assert_eq!(fixture.writer.write(&mut fixture.store, "/b", put(b"2"), None).unwrap_err(), poisoned);
    assert_eq!(fixture.store.commit(&[], crdt::Durability::Sync).unwrap_err(), poisoned);
    assert_eq!(fixture.store.open_database(&super::name("new")).unwrap_err(), poisoned);
    assert_eq!(fixture.store.poison().as_deref(), Some("the disk is gone"));
    let (dir, id) = fixture.close();
    let store = open(dir.path());
    assert_eq!(store.poison(), None);
    assert_eq!(keys(&store.view(&id).unwrap(), "/", Order::Ascending), ["/a"]);
}

#[test]
fn t06_a_log_without_its_beginning_is_read_from_its_floor_and_a_hole_above_it_is_damage() {
    let mut fixture = Fixture::new();
    let id = fixture.writer.replica.database();
    (1..=10_u32).for_each(|_| drop(fixture.put("/k", &[1; 1_000])));
    let number = fixture.store.numbers(&id).unwrap().number;
    let dots: Vec<crdt::Dot> = fixture.store.view(&id).unwrap().log(0).map(|entry| entry.unwrap().dot).collect();
    let pinned = fixture.store.snapshot(&id).unwrap();
    fixture.writer.step(&mut fixture.store.clone(), truncate(4)).unwrap();
    let revisions = |from: u64| {
        let chunk = fixture.store.read_log(&id, from, usize::MAX, &|_| false).unwrap();
        (chunk.blocks.iter().map(|(revision, _, _)| *revision).collect::<Vec<_>>(), chunk.next, chunk.end)
    };
    for from in 0..=5 {
        assert_eq!(revisions(from), ((5..=10).collect(), 11, true), "from {from}");
    }
    assert_eq!(fixture.store.revision_of(&id, &dots[3]).unwrap(), None, "dropped");
    assert_eq!(fixture.store.revision_of(&id, &dots[4]).unwrap(), Some(5));
    assert_eq!(fixture.store.revision_of(&id, &crdt::Dot { seq: 11, ..dots[0] }).unwrap(), None, "not merged");
    // A reader that began before goes on reading what was there.
    assert_eq!(pinned.log(0).count(), 10);
    assert_eq!(pinned.read_log(0, usize::MAX, &|_| false).unwrap().blocks.len(), 10);
    drop(pinned);
    // One that reads live, and whose blocks are dropped behind its cursor, is not told of damage.
    let view = fixture.store.view(&id).unwrap();
    let mut log = view.log(0);
    assert_eq!(log.next().unwrap().unwrap().revision, 5);
    fixture.writer.step(&mut fixture.store.clone(), truncate(6)).unwrap();
    assert_eq!(log.count(), 5);

    remove(&fixture.store, Family::Blocks, |key| _ = key.block_key(number, &dots[7]));
    let error = fixture.store.read_log(&id, 1, usize::MAX, &|_| false).unwrap_err();
    assert!(error.to_string().contains("a merged block is missing"), "{error}");
    assert_eq!(fixture.store.revision_of(&id, &dots[7]).unwrap_err(), error);
    remove(&fixture.store, Family::Log, |key| _ = key.log_key(number, 8));
    let error = fixture.store.read_log(&id, 1, usize::MAX, &|_| false).unwrap_err();
    assert!(error.to_string().contains("an entry of the log is missing"), "{error}");
    remove(&fixture.store, Family::Log, |key| _ = key.log_key(number, 10));
    let error = fixture.store.read_log(&id, 9, usize::MAX, &|_| false).unwrap_err();
    assert!(error.to_string().contains("an entry of the log is missing"), "its end: {error}");
}

/// Damage: a record is gone.
fn remove(store: &RocksStore, family: Family, key: impl FnOnce(&mut layout::Writer)) {
    let mut buffer = layout::Writer::default();
    key(&mut buffer);
    store.0.inner.rocks().delete_cf(store.0.inner.family(family), buffer.bytes()).unwrap();
}

fn truncate(through: u64) -> crdt::Input {
    crdt::Input::Truncate { token: crdt::Token(0), through, limit: usize::MAX }
}
