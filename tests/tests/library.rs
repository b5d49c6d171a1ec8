//! The library as its users call it: one node on a real disk, without a network.

use std::time::Duration;

use bytes::Bytes;
use crdt::limits::{MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use kvdb::{
    Batch, Database, DatabaseStats, Dot, Key, KeyError, ListItem, ListOptions, Node, NodeOptions, Op, OpOutcome, Prefix,
    ReadAtError, WaitError, WriteError, WriteRefusal,
};
use tempfile::TempDir;

async fn open() -> (TempDir, Node, Database) {
    let dir = TempDir::new().unwrap();
    let node = Node::open(NodeOptions::new(dir.path())).await.unwrap();
    let database = node.database(&"test".parse().unwrap()).await.unwrap();
    (dir, node, database)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn keys(database: &Database, prefix: &str) -> Vec<String> {
    let page = database.list(&ListOptions::new(Prefix::parse(prefix).unwrap())).unwrap();
    assert_eq!(page.next, None);
    let text = |item| match item {
        ListItem::Entry(entry) => entry.key.as_str().to_owned(),
        ListItem::CommonPrefix(prefix) => panic!("{prefix} was folded without a delimiter"),
    };
    page.items.into_iter().map(text).collect()
}

#[tokio::test]
async fn k04_put_batch_and_read_take_a_key_for_the_same() {
    let (_dir, node, database) = open().await;
    // The leading blank belongs to the key: it is the first segment.
    for (written, normal) in [(" /a//b/ ", "/ /a/b/ "), ("a//b/", "/a/b"), ("/c/d", "/c/d")] {
        database.put(&key(written), "put").await.unwrap();
        database.batch(Batch::new().put(key(written), "batch")).await.unwrap();
        for read in [written, normal] {
            let entry = database.get(&key(read)).unwrap().unwrap();
            assert_eq!((entry.key.as_str(), entry.value.as_ref(), entry.siblings), (normal, &b"batch"[..], 1), "{read:?}");
        }
    }
    assert_eq!(keys(&database, "/"), ["/ /a/b/ ", "/a/b", "/c/d"]);
    assert_eq!(keys(&database, "a//"), ["/a/b"]);
    assert!(database.delete(&key("/a/b/")).await.unwrap().is_some());
    assert_eq!(database.get(&key("a/b")).unwrap(), None);
    node.close().await.unwrap();
}

#[tokio::test]
async fn k06_the_largest_pass_and_one_more_is_refused_with_the_number() {
    let (_dir, node, database) = open().await;
    let longest = format!("/{}", "k".repeat(MAX_KEY_BYTES - 1));
    let value = Bytes::from(vec![7; MAX_VALUE_BYTES]);
    database.put(&key(&longest), value.clone()).await.unwrap();
    assert_eq!(database.get(&key(&longest)).unwrap().unwrap().value, value);
    let error = Key::parse(&format!("{longest}k")).unwrap_err();
    assert_eq!(error, KeyError::TooLong { bytes: MAX_KEY_BYTES + 1 });
    assert!(error.to_string().contains("1024"), "{error}");

    let before = database.stats().unwrap();
    let over = Bytes::from(vec![7; MAX_VALUE_BYTES + 1]);
    // In a batch, what is refused takes the rest with it.
    let refused = database.batch(Batch::new().put(key("/small"), "1").put(key("/over"), over)).await.unwrap_err();
    assert!(matches!(refused, WriteError::Refused(WriteRefusal::ValueTooLarge { .. })), "{refused:?}");
    assert!(refused.to_string().contains(&MAX_VALUE_BYTES.to_string()), "{refused}");
    let heavy = (0..5).fold(Batch::new(), |batch, n| batch.put(key(&format!("/heavy/{n}")), value.clone()));
    let refused = database.batch(heavy).await.unwrap_err();
    assert!(matches!(refused, WriteError::Refused(WriteRefusal::BatchTooLarge { .. })), "{refused:?}");
    assert!(refused.to_string().contains(&MAX_BLOCK_BYTES.to_string()), "{refused}");
    let batch = |ops: usize| (0..ops).fold(Batch::new(), |batch, n| batch.put(key(&format!("/many/{n}")), ""));
    let refused = database.batch(batch(MAX_BLOCK_OPS + 1)).await.unwrap_err();
    assert!(matches!(refused, WriteError::Refused(WriteRefusal::TooManyOps { .. })), "{refused:?}");
    assert!(refused.to_string().contains(&MAX_BLOCK_OPS.to_string()), "{refused}");
    assert_eq!(database.stats().unwrap(), before, "a refusal leaves no trace");

    database.batch(batch(MAX_BLOCK_OPS)).await.unwrap();
    assert_eq!(database.stats().unwrap().keys, before.keys + MAX_BLOCK_OPS as u64);
    node.close().await.unwrap();
}

#[tokio::test]
async fn r05_a_bad_batch_leaves_one_built_beside_it_alone() {
    let (_dir, node, database) = open().await;
    let good = Batch::new().put(key("/good/1"), "1");
    let bad = Batch::new().put(key("/bad/1"), "1").put(key("/bad/2"), vec![0; MAX_VALUE_BYTES + 1]);
    let good = good.put(key("/good/2"), "2");
    assert!(Key::parse("/bad/../3").is_err());
    let (bad, good) = tokio::join!(database.batch(bad), database.batch(good));
    assert!(matches!(bad, Err(WriteError::Refused(WriteRefusal::ValueTooLarge { .. }))), "{bad:?}");
    assert!(good.unwrap().dot.is_some());
    assert_eq!(keys(&database, "/"), ["/good/1", "/good/2"]);
    node.close().await.unwrap();
}

#[tokio::test]
async fn conditions_dots_seen_and_expiry_as_a_caller_uses_them() {
    let (_dir, node, database) = open().await;
    let (k, j) = (key("/k"), key("/j"));
    let first = database.batch(Op::put(k.clone(), "1").if_absent()).await.unwrap();
    let refused = database.batch(Op::put(k.clone(), "2").if_absent()).await.unwrap_err();
    let WriteError::Refused(WriteRefusal::Condition { key: at, current }) = &refused else { panic!("{refused:?}") };
    assert_eq!((at, *current), (&k, first.dot));
    assert!(refused.to_string().contains(&first.dot.unwrap().to_string()), "{refused}");
    let both = Batch::new().put(j.clone(), "x").op(Op::delete(k.clone()).if_match(first.dot.unwrap()));
    assert_eq!(database.batch(both).await.unwrap().ops, [OpOutcome::Put, OpOutcome::Deleted]);
    // A value that somebody else has put meanwhile stays beside that of a writer who has not seen it.
    let seen = database.put(&k, "read").await.unwrap();
    let beside = database.batch(Op::put(k.clone(), "theirs").seen([])).await.unwrap();
    database.batch(Op::put(k.clone(), "mine").seen([seen])).await.unwrap();
    let siblings = database.siblings(&k).unwrap();
    assert_eq!(siblings.iter().map(|entry| entry.value.as_ref()).collect::<Vec<_>>(), [&b"mine"[..], b"theirs"]);
    assert_eq!(Some(siblings[1].dot), beside.dot);
    assert_eq!(database.author(&seen.replica).unwrap(), Some(node.peer_id()));
    let conflicts = database.list(&ListOptions::new(Prefix::root()).conflicts()).unwrap();
    assert!(matches!(conflicts.items.as_slice(), [ListItem::Entry(entry)] if entry.key == k && entry.siblings == 2));
    // What has expired is not there for a read nor for a condition; what was put without an expiry surfaces.
    database.batch(Op::put_for(k.clone(), "soon", Duration::ZERO).seen([])).await.unwrap();
    assert_eq!(database.get(&k).unwrap().unwrap().value.as_ref(), b"mine");
    database.batch(Op::put_for(j.clone(), "gone", Duration::ZERO)).await.unwrap();
    assert_eq!((database.get(&j).unwrap(), database.delete(&j).await.unwrap()), (None, None));
    database.batch(Op::put_for(j.clone(), "for ever", Duration::MAX).if_absent()).await.unwrap();
    assert!(database.get(&j).unwrap().unwrap().expiry.is_some());
    node.close().await.unwrap();
}

#[tokio::test]
async fn a_read_at_a_dot_waits_and_never_answers_from_before_it() {
    let (_dir, node, database) = open().await;
    let k = key("/k");
    let dot = database.put(&k, "1").await.unwrap();
    let next = Dot { seq: dot.seq + 1, ..dot };
    let early = database.get_at(&k, next, Duration::from_millis(1)).await.unwrap_err();
    assert!(matches!(early, ReadAtError::Wait(WaitError::NotCovered { dot, .. }) if dot == next), "{early}");
    let reader = database.get_at(&k, next, Duration::from_secs(60));
    let (read, put) = tokio::join!(reader, database.put(&k, "2"));
    assert_eq!((read.unwrap().unwrap().value.as_ref(), put.unwrap()), (&b"2"[..], next));
    assert_eq!(database.get_at(&key("/none"), next, Duration::ZERO).await.unwrap(), None);
    node.close().await.unwrap();
    assert!(matches!(database.get_at(&k, next, Duration::ZERO).await, Err(ReadAtError::Read(_) | ReadAtError::Wait(_))));
}

#[tokio::test]
async fn r16_values_stay_out_of_debug_output() {
    let (_dir, node, database) = open().await;
    let op = || Op::put(key("/k"), "hunter2").if_absent();
    database.batch(op()).await.unwrap();
    let page = database.list(&ListOptions::new(Prefix::root())).unwrap();
    let shown = format!("{:?} {:?} {page:?} {:?}", op(), Batch::from(op()), database.get(&key("/k")).unwrap());
    // As text and as the bytes of it.
    assert!(shown.contains("/k") && !shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    node.close().await.unwrap();
}

/// Waits until a figure of the database is as wanted.
async fn until(database: &Database, wanted: impl Fn(&DatabaseStats) -> bool) {
    for _ in 0..3_000 {
        if wanted(&database.stats().unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?}", database.stats().unwrap());
}

#[tokio::test]
async fn what_has_expired_is_deleted_for_good_also_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let never = NodeOptions::new(dir.path());
    let node = Node::open(never.clone()).await.unwrap();
    let database = node.database(&"test".parse().unwrap()).await.unwrap();
    let soon = |at: &str| Op::put_for(key(at), "x", Duration::from_millis(1));
    let both = Batch::new().op(soon("/k").seen([])).op(soon("/gone")).put(key("/stays"), "x");
    database.put(&key("/k"), "beside").await.unwrap();
    database.batch(both).await.unwrap();
    node.close().await.unwrap();
    let node = Node::open(never.expiry_grace(Duration::ZERO)).await.unwrap();
    let database = node.database(&"test".parse().unwrap()).await.unwrap();
    until(&database, |stats| stats.keys == 2).await;
    assert_eq!(keys(&database, "/"), ["/k", "/stays"]);
    // Nothing is left to do: no block is made in vain.
    let revision = database.stats().unwrap().revision;
    database.batch(soon("/more")).await.unwrap();
    until(&database, |stats| stats.keys == 2 && stats.revision > revision).await;
    assert_eq!(database.stats().unwrap().revision, revision + 2);
    node.close().await.unwrap();
}
