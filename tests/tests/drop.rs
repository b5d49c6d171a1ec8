//! Databases that are dropped and made again.

use futures::StreamExt as _;
use kvdb::{
    Batch, Database, DatabaseName, DropError, Durability, Key, ListOptions, NetworkOptions, Node, NodeOptions, Prefix, ReadError,
    WriteError,
};
use tempfile::TempDir;

use crate::compact::until;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn name(text: &str) -> DatabaseName {
    text.parse().unwrap()
}

async fn open(dir: &TempDir, network: bool) -> Node {
    let mut options = NodeOptions::new(dir.path()).durability(Durability::Buffered);
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    options.network = network.then(|| NetworkOptions { listen, ..NetworkOptions::default() });
    Node::open(options).await.unwrap()
}

async fn fill(db: &Database, keys: u32) {
    for first in (0..keys).step_by(1_000) {
        let put =
            |batch: Batch, n: u32| batch.put(key(&format!("/key/{n}")), vec![7; if n.is_multiple_of(10) { 1_000 } else { 10 }]);
        db.batch((first..keys.min(first + 1_000)).fold(Batch::new(), put)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t05_a_dropped_database_is_gone_at_once_and_for_ever() {
    let dir = TempDir::new().unwrap();
    let node = open(&dir, false).await;
    let (db, other) = (node.database(&name("demo")).await.unwrap(), node.database(&name("other")).await.unwrap());
    fill(&db, 20_000).await;
    fill(&other, 3_000).await;
    let untouched = other.stats().unwrap();
    let mut stream = db.list_stream(ListOptions::new(Prefix::root())).unwrap();
    stream.next().await.unwrap().unwrap();
    let mut watch = db.watch(kvdb::WatchOptions::new(Prefix::root())).unwrap();
    node.drop_database(&name("demo")).await.unwrap();
    // Whoever still has a hold of it is told what happened.
    assert!(matches!(db.get(&key("/key/1")), Err(ReadError::Dropped)));
    assert!(matches!(db.put(&key("/key/1"), "x").await, Err(WriteError::Dropped)));
    assert!(matches!(db.stats(), Err(ReadError::Dropped)));
    let mut last = None;
    while let Some(item) = stream.next().await {
        last = Some(item);
    }
    assert!(matches!(last, Some(Err(ReadError::Dropped))), "{last:?}");
    while let Some(event) = watch.next().await {
        if let Err(error) = event {
            assert_eq!(error.to_string(), "the database was dropped");
        }
    }
    let names = || node.databases().unwrap().into_iter().map(|info| (info.name.to_string(), info.generation)).collect::<Vec<_>>();
    assert_eq!(names(), [("other".to_owned(), 0)]);
    assert!(matches!(node.drop_database(&name("demo")).await, Err(DropError::NotFound(_))));

    let again = node.database(&name("demo")).await.unwrap();
    assert_ne!(again.id(), db.id());
    assert_eq!(names(), [("demo".to_owned(), 1), ("other".to_owned(), 0)]);
    assert_eq!(again.stats().unwrap().keys, 0);
    assert_eq!(again.get(&key("/key/1")).unwrap(), None);
    again.put(&key("/new"), "1").await.unwrap();
    node.close().await.unwrap();
    let node = open(&dir, false).await;
    let again = node.database(&name("demo")).await.unwrap();
    assert_eq!(again.stats().unwrap().keys, 1);
    let other = node.database(&name("other")).await.unwrap();
    assert_eq!((other.stats().unwrap().digest, other.stats().unwrap().keys), (untouched.digest, 3_000));
    node.drop_database(&name("demo")).await.unwrap();
    let third = node.database(&name("demo")).await.unwrap();
    assert_eq!((third.stats().unwrap().keys, third.stats().unwrap().revision), (0, 0));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn t05_a_peer_with_the_dropped_generation_never_brings_it_back() {
    let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let (a, b) = (open(&dirs[0], true).await, open(&dirs[1], true).await);
    let (db_a, db_b) = (a.database(&name("demo")).await.unwrap(), b.database(&name("demo")).await.unwrap());
    b.dial(a.listen_addresses()[0].clone()).await.unwrap();
    fill(&db_a, 500).await;
    until("both are equal", || db_a.stats().unwrap().vv_hash == db_b.stats().unwrap().vv_hash).await;
    a.drop_database(&name("demo")).await.unwrap();
    until("the peer is told", || b.network_counters().get("sync_dropped").is_some_and(|count| *count > 0)).await;
    let again = a.database(&name("demo")).await.unwrap();
    again.put(&key("/new"), "1").await.unwrap();
    // Its own copy stays, and stays apart: also after it was away.
    db_b.put(&key("/late"), "1").await.unwrap();
    b.close().await.unwrap();
    let b = open(&dirs[1], true).await;
    let db_b = b.database(&name("demo")).await.unwrap();
    b.dial(a.listen_addresses()[0].clone()).await.unwrap();
    until("the peer is told again", || b.network_counters().get("sync_dropped").is_some_and(|count| *count > 0)).await;
    assert_eq!((again.stats().unwrap().keys, db_b.stats().unwrap().keys), (1, 501));
    // Dropped there as well, it is the same database again.
    b.drop_database(&name("demo")).await.unwrap();
    let db_b = b.database(&name("demo")).await.unwrap();
    assert_eq!(db_b.id(), again.id());
    until("both are equal", || db_b.get(&key("/new")).unwrap().is_some()).await;
    assert_eq!(db_b.stats().unwrap().keys, 1);
    for node in [a, b] {
        node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drops_beside_openings_and_writes_harm_nothing_else() {
    let dir = TempDir::new().unwrap();
    let node = open(&dir, false).await;
    let tasks = (0..4).map(|task: u32| {
        let node = node.clone();
        tokio::spawn(async move {
            for round in 0..25 {
                match node.database(&name("shared")).await.unwrap().put(&key(&format!("/{task}/{round}")), "x").await {
                    Ok(_) | Err(WriteError::Dropped | WriteError::Closed) => {}
                    Err(error) => panic!("{error}"),
                }
                match node.drop_database(&name(if round % 2 == 0 { "shared" } else { "none" })).await {
                    Ok(()) | Err(DropError::NotFound(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                let own = node.database(&name(&format!("own{task}"))).await.unwrap();
                own.put(&key(&format!("/{round}")), "x").await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(node.status().poisoned, None);
    for task in 0..4 {
        assert_eq!(node.database(&name(&format!("own{task}"))).await.unwrap().stats().unwrap().keys, 25);
    }
    node.close().await.unwrap();
}
