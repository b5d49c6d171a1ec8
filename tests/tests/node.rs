//! One node by its public API, on a real disk.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use kvdb::limits::{MAX_LIST_STREAMS, MAX_OPEN_DATABASES, MAX_PAGE_ITEMS};
use kvdb::{
    After, Batch, Database, Durability, Key, ListItem, ListOptions, Node, NodeOptions, OpOutcome, OpenError, Order, Prefix,
    ReadError, WaitError, WriteError,
};
use tempfile::TempDir;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

async fn open(dir: &TempDir) -> (Node, Database) {
    let node = Node::open(NodeOptions::new(dir.path()).durability(Durability::Buffered)).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    (node, db)
}

/// As `open`, once the listing streams of the last opening have let go of the directory.
async fn reopen(dir: &TempDir) -> (Node, Database) {
    for _ in 0..1_000 {
        match Node::open(NodeOptions::new(dir.path()).durability(Durability::Buffered)).await {
            Ok(node) => {
                let db = node.database(&"demo".parse().unwrap()).await.unwrap();
                return (node, db);
            }
            Err(OpenError::Store(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the directory stayed locked");
}

fn names(items: &[ListItem]) -> Vec<String> {
    let name = |item: &ListItem| match item {
        ListItem::Entry(entry) => entry.key.to_string(),
        ListItem::CommonPrefix(prefix) => format!("{prefix}/"),
    };
    items.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let big = vec![7u8; 1 << 20];
    db.put(&key("/a"), "1").await.unwrap();
    db.put(&key("/empty"), "").await.unwrap();
    db.put(&key("/big"), big.clone()).await.unwrap();
    db.put(&key("/gone"), "x").await.unwrap();
    assert!(db.delete(&key("/gone")).await.unwrap().is_some());
    assert_eq!(db.delete(&key("/gone")).await.unwrap(), None);
    let stats = db.stats().unwrap();
    let peer = node.peer_id();
    node.close().await.unwrap();
    assert!(matches!(db.get(&key("/a")), Err(ReadError::Closed)));
    assert!(matches!(db.put(&key("/a"), "2").await, Err(WriteError::Closed)));

    let (node, db) = open(&dir).await;
    assert_eq!(node.peer_id(), peer);
    assert_eq!(db.get(&key("/a")).unwrap().unwrap().value, "1");
    assert_eq!(db.get(&key("/empty")).unwrap().unwrap().value, "");
    assert_eq!(db.get(&key("/big")).unwrap().unwrap().value, big);
    assert_eq!(db.get(&key("/gone")).unwrap(), None);
    let again = db.stats().unwrap();
    assert_eq!((again.keys, again.digest, again.vv_hash), (stats.keys, stats.digest, stats.vv_hash));
    let dot = db.put(&key("/a"), "2").await.unwrap();
    assert_eq!(dot.seq, 1, "a new opening writes as a new replica");
    assert_eq!(db.stats().unwrap().replicas, 2);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn m13_fast_successive_writes_are_all_visible_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    for n in 0..10_000 {
        db.put(&key(&format!("/one/{n:05}")), format!("{n}")).await.unwrap();
    }
    let count = |db: &Database, prefix: &str| {
        let options = ListOptions::new(Prefix::parse(prefix).unwrap()).keys_only();
        db.list(&options).unwrap().items.len()
    };
    assert_eq!(count(&db, "/one"), 10_000);
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let db = db.clone();
            tokio::spawn(async move {
                for n in (task..10_000).step_by(64) {
                    let key = key(&format!("/many/{n:05}"));
                    let dot = db.put(&key, format!("{n}")).await.unwrap();
                    let entry = db.get(&key).unwrap().unwrap();
                    assert_eq!((entry.dot, entry.value.as_ref()), (dot, format!("{n}").as_bytes()));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(count(&db, "/many"), 10_000);
    let stats = db.stats().unwrap();
    assert_eq!((stats.keys, stats.heads), (20_000, 1));
    node.close().await.unwrap();
    let (node, db) = open(&dir).await;
    assert_eq!((count(&db, "/one"), count(&db, "/many")), (10_000, 10_000));
    let again = db.stats().unwrap();
    assert_eq!((again.keys, again.heads, again.digest), (20_000, 1, stats.digest));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_tells_the_outcome_of_each_op() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let batch = Batch::new().put(key("/good"), "1").put(key("/good"), "2").delete(key("/absent"));
    assert_eq!(db.batch(batch).await.unwrap().ops, [OpOutcome::Overridden, OpOutcome::Put, OpOutcome::Absent]);
    assert_eq!(db.get(&key("/good")).unwrap().unwrap().value, "2");
    let nothing = db.batch(Batch::new().delete(key("/absent"))).await.unwrap();
    assert_eq!((nothing.dot, nothing.ops), (None, vec![OpOutcome::Absent]));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_listing_equals_a_naive_reference() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let texts = ["/a", "/a/1", "/a/2", "/a-b", "/ab", "/a/1/x", "/a/1/y", "/v", "/a/v", "/a/p", "/a/1-", "/a/é", "/z/q/r"];
    let mut model = BTreeMap::new();
    for (n, text) in texts.iter().enumerate() {
        db.put(&key(text), format!("{n}")).await.unwrap();
        model.insert((*text).to_owned(), format!("{n}"));
    }
    for prefix in ["", "/", "/a", "/a/", "/a/1", "/ab", "/nothing", "/z"] {
        let prefix = Prefix::parse(prefix).unwrap();
        let start = String::from_utf8(prefix.start()).unwrap();
        for (delimiter, reverse, limit) in
            [(false, false, 3), (false, true, 1), (true, false, 2), (true, true, 1), (false, false, 100)]
        {
            let mut expected: Vec<String> = Vec::new();
            for name in model.keys().filter(|name| name.starts_with(&start)) {
                let rest = name.strip_prefix(&start).unwrap();
                let name = match rest.split_once('/') {
                    Some((segment, _)) if delimiter => format!("{start}{segment}/"),
                    _ => name.clone(),
                };
                if !expected.contains(&name) {
                    expected.push(name);
                }
            }
            let mut options = ListOptions::new(prefix.clone());
            options.delimiter = delimiter;
            if reverse {
                options.order = Order::Descending;
                expected.reverse();
            }
            let stream: Vec<ListItem> = db.list_stream(options.clone()).unwrap().map(Result::unwrap).collect().await;
            assert_eq!(names(&stream), expected, "{options:?}");
            // The same in pages, by the place that each page gives and as it is written in a URL.
            let mut pages = Vec::new();
            let mut after: Option<After> = None;
            loop {
                let page = db.list(&options.clone().after(after.clone()).limit(limit)).unwrap();
                assert!(page.items.len() <= limit);
                pages.extend(names(&page.items));
                match page.next {
                    Some(next) => after = Some(next.to_string().parse().unwrap()),
                    None => break,
                }
            }
            assert_eq!(pages, expected, "{options:?} in pages of {limit}");
            for item in stream {
                if let ListItem::Entry(entry) = item {
                    assert_eq!(entry.value.as_ref(), model[entry.key.as_str()].as_bytes());
                }
            }
        }
    }
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_one_snapshot_however_slow_its_reader_and_their_number_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    // Values that are kept apart from their rows: rows and values must come from one state, not only the rows.
    let value = |text: &str| text.repeat(200);
    let fill = |from: usize, text: &str| {
        let half = from..from + MAX_PAGE_ITEMS / 2;
        half.fold(Batch::new(), |batch, n| batch.put(key(&format!("/k/{n:05}")), value(text)))
    };
    for from in [0, MAX_PAGE_ITEMS / 2] {
        db.batch(fill(from, "old")).await.unwrap();
    }
    let mut stream = db.list_stream(ListOptions::new(Prefix::root())).unwrap();
    let mut seen = vec![stream.next().await.unwrap().unwrap()];
    for from in [0, MAX_PAGE_ITEMS / 2] {
        db.batch(fill(from, "new")).await.unwrap();
    }
    for n in 0..MAX_PAGE_ITEMS / 2 {
        db.delete(&key(&format!("/k/{n:05}"))).await.unwrap();
    }
    while let Some(item) = stream.next().await {
        seen.push(item.unwrap());
    }
    assert_eq!(seen.len(), MAX_PAGE_ITEMS);
    assert!(seen.iter().all(|item| matches!(item, ListItem::Entry(entry) if entry.value == value("old"))));
    drop(stream);
    let mut open: Vec<_> = (0..MAX_LIST_STREAMS).map(|_| db.list_stream(ListOptions::new(Prefix::root())).unwrap()).collect();
    let refused = db.list_stream(ListOptions::new(Prefix::root())).unwrap_err();
    assert!(matches!(refused, ReadError::TooManyStreams { limit: MAX_LIST_STREAMS }), "{refused}");
    assert!(refused.to_string().contains("64"), "{refused}");
    assert!(open.last_mut().unwrap().next().await.unwrap().is_ok(), "each of them makes progress");
    drop(open);
    assert!(db.list_stream(ListOptions::new(Prefix::root())).is_ok());
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_bounded_in_bytes_and_says_where_to_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    for n in 0..20 {
        db.put(&key(&format!("/big/{n:02}")), vec![7u8; 1 << 20]).await.unwrap();
    }
    let mut options = ListOptions::new(Prefix::root());
    let mut pages = Vec::new();
    loop {
        let page = db.list(&options).unwrap();
        pages.push(page.items.len());
        let Some(next) = page.next else { break };
        options = options.after(next);
    }
    assert_eq!(pages, [16, 4]);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn k03_databases_do_not_leak_into_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (node, first) = open(&dir).await;
    let mut all = vec![first];
    for name in ["sub1", "sub10", "rows", "heads", "blocks", "version"] {
        all.push(node.database(&name.parse().unwrap()).await.unwrap());
    }
    for (n, db) in all.iter().enumerate() {
        for name in ["/heads", "/blocks", "/sub1/x", "/rows"] {
            db.put(&key(name), format!("{n}")).await.unwrap();
        }
    }
    assert!(all[1].delete(&key("/heads")).await.unwrap().is_some());
    for (n, db) in all.iter().enumerate() {
        let items = db.list(&ListOptions::new(Prefix::root())).unwrap().items;
        assert_eq!(items.len(), if n == 1 { 3 } else { 4 });
        assert!(items.iter().all(|item| matches!(item, ListItem::Entry(entry) if entry.value == format!("{n}"))));
    }
    assert_eq!(node.databases().unwrap().len(), 7);
    all[2].close().await.unwrap();
    assert!(matches!(all[2].get(&key("/rows")), Err(ReadError::Closed)));
    assert!(all[3].get(&key("/rows")).unwrap().is_some());
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_has_one_node_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let dot = db.put(&key("/a"), "1").await.unwrap();
    let error = Node::open(NodeOptions::new(dir.path())).await.unwrap_err();
    assert!(matches!(error, OpenError::Store(_)), "{error}");
    assert_eq!(db.get(&key("/a")).unwrap().unwrap().dot, dot, "the first goes on");
    node.close().await.unwrap();
    drop((node, db));
    for _ in 0..20 {
        let (node, db) = open(&dir).await;
        assert!(db.get(&key("/a")).unwrap().is_some());
        // Dropped without a close: the next opening must find the directory free.
        drop((node, db));
    }
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error = Node::open(NodeOptions::new(&file)).await.unwrap_err();
    assert!(matches!(error, OpenError::Directory { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_dot_ends_when_it_comes_in_time_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let dot = db.put(&key("/a"), "1").await.unwrap();
    db.wait_for(dot, Duration::from_secs(5)).await.unwrap();
    let next = kvdb::Dot { replica: dot.replica, seq: dot.seq + 1 };
    let error = db.wait_for(next, Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, WaitError::NotCovered { .. }), "{error}");
    let again = key("/a");
    let (waited, put) = tokio::join!(db.wait_for(next, Duration::from_secs(30)), db.put(&again, "2"));
    waited.unwrap();
    assert_eq!(put.unwrap(), next);
    let beyond = kvdb::Dot { replica: dot.replica, seq: u64::MAX };
    let (waited, closed) = tokio::join!(db.wait_for(beyond, Duration::from_secs(30)), db.close());
    closed.unwrap();
    assert!(matches!(waited.unwrap_err(), WaitError::Closed));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_write_wedges_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    for n in 0..1_000 {
        let key = key(&format!("/k{n}"));
        // Dropped right after the first poll: the write may happen or not, never half.
        let put = std::pin::pin!(db.put_with(&key, "v", Durability::Sync));
        drop(futures::future::select(put, futures::future::ready(())).await);
    }
    db.put(&key("/last"), "v").await.unwrap();
    db.sync().await.unwrap();
    assert!(db.stats().unwrap().keys >= 1);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_closing_during_writes_reads_and_waits_ends_them_and_the_next_start_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let mut kept: u64 = 0;
    for round in 0..15 {
        let (node, db) = reopen(&dir).await;
        assert!(db.stats().unwrap().keys >= kept, "what was answered is there in round {round}");
        let writer = |name: &'static str, durability| {
            let db = db.clone();
            tokio::spawn(async move {
                let mut written = 0_u64;
                for n in 0.. {
                    let at = key(&format!("/{round}/{name}/{n}"));
                    match db.put_with(&at, vec![1; 600], durability).await {
                        Ok(_) => written += 1,
                        Err(WriteError::Closed) => return written,
                        Err(error) => panic!("{error}"),
                    }
                }
                written
            })
        };
        let writers = [writer("sync", Durability::Sync), writer("buffered", Durability::Buffered)];
        let others = db.clone();
        let reader = tokio::spawn(async move {
            loop {
                let Ok(mut stream) = others.list_stream(ListOptions::new(Prefix::root())) else { return };
                while let Some(item) = stream.next().await {
                    if item.is_err() {
                        return;
                    }
                }
            }
        });
        let waiting = db.clone();
        let never = kvdb::Dot { replica: kvdb::ReplicaId([0; 16]), seq: 1 };
        let waiter = tokio::spawn(async move { waiting.wait_for(never, Duration::from_secs(600)).await });
        tokio::time::sleep(Duration::from_millis(round * 7)).await;
        // The database alone, the node, or both at once.
        match round % 3 {
            0 => db.close().await.unwrap(),
            1 => {}
            _ => assert!(tokio::join!(db.close(), node.close()).0.is_ok()),
        }
        node.close().await.unwrap();
        for writer in writers {
            kept += writer.await.unwrap();
        }
        assert!(matches!(waiter.await.unwrap(), Err(WaitError::Closed)));
        reader.await.unwrap();
        assert!(matches!(db.get(&key("/a")), Err(ReadError::Closed)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_a_database_is_opened_and_closed_a_thousand_times() {
    let dir = tempfile::tempdir().unwrap();
    let (node, _) = open(&dir).await;
    let name = "demo".parse().unwrap();
    for n in 0..1_000 {
        let db = node.database(&name).await.unwrap();
        if n % 100 == 0 {
            db.put(&key(&format!("/{n}")), "v").await.unwrap();
        }
        db.close().await.unwrap();
    }
    assert_eq!(node.status().open_databases, 0);
    let stats = node.database(&name).await.unwrap().stats().unwrap();
    // A writer is drawn at the first write of an opening, not at each opening.
    assert_eq!((stats.keys, stats.replicas), (10, 10));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_databases_are_open_as_may_be_and_one_more_is_refused_with_the_number() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::open(NodeOptions::new(dir.path())).await.unwrap();
    let name = |n: usize| format!("d{n}").parse().unwrap();
    for n in 0..MAX_OPEN_DATABASES {
        node.database(&name(n)).await.unwrap();
    }
    let refused = node.database(&name(MAX_OPEN_DATABASES)).await.unwrap_err();
    assert!(refused.to_string().contains(&MAX_OPEN_DATABASES.to_string()), "{refused}");
    let again = node.database(&name(0)).await.unwrap();
    again.put(&key("/a"), "1").await.unwrap();
    again.close().await.unwrap();
    node.database(&name(MAX_OPEN_DATABASES)).await.unwrap();
    assert!(node.database(&name(0)).await.is_err());
    node.close().await.unwrap();
}
