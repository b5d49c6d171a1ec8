//! A node that was away for longer than the history of the others, over real sockets and on real disks.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvdb::{CompactOptions, Database, Durability, HistoryOptions, Key, NetworkOptions, Node, NodeOptions};

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

async fn open(dir: &Path, network: bool) -> (Node, Database) {
    let history = HistoryOptions { min_age: Duration::ZERO, interval: None, ..HistoryOptions::default() };
    let mut options = NodeOptions::new(dir).durability(Durability::Buffered).history(history);
    if network {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        options = options.network(NetworkOptions { listen, ..NetworkOptions::default() });
    }
    let node = Node::open(options).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    (node, db)
}

async fn connect(from: &Node, to: &Node) {
    from.dial(to.listen_addresses().first().unwrap().clone()).await.unwrap();
}

fn state(db: &Database) -> (u64, kvdb::Digest, usize, [u8; 32]) {
    let stats = db.stats().unwrap();
    (stats.keys, stats.digest, stats.heads, stats.vv_hash)
}

async fn until_equal(all: &[&Database]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let states: Vec<_> = all.iter().map(|db| state(db)).collect();
        if states.iter().all(|state| *state == states[0]) {
            return;
        }
        assert!(Instant::now() < end, "never equal: {states:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes and deletes until told to stop; every value differs.
fn writer(db: Database, name: &'static str, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<u64> {
    tokio::spawn(async move {
        let mut count = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let value = vec![count.to_le_bytes()[0]; if count.is_multiple_of(5) { 3_000 } else { 20 }];
            db.put(&key(&format!("/shared/{}", count % 97)), value).await.unwrap();
            db.put(&key(&format!("/{name}/{count}")), "v").await.unwrap();
            db.delete(&key(&format!("/old/{}", count % 300))).await.unwrap();
            count += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        count
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn d03_d08_a_node_away_for_longer_than_the_history_is_equal_again_while_all_write() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (a, db_a) = open(dirs[0].path(), true).await;
    let (b, db_b) = open(dirs[1].path(), true).await;
    let (c, db_c) = open(dirs[2].path(), true).await;
    connect(&b, &a).await;
    connect(&c, &a).await;
    for n in 0..300 {
        db_a.put(&key(&format!("/old/{n}")), vec![1; if n % 7 == 0 { 2_000 } else { 30 }]).await.unwrap();
    }
    until_equal(&[&db_a, &db_b, &db_c]).await;
    c.close().await.unwrap();

    // Away: it writes alone, the others go on and forget how they came there.
    let (c, db_c) = open(dirs[2].path(), false).await;
    db_c.put(&key("/c/alone"), vec![3; 1_000]).await.unwrap();
    db_c.put(&key("/shared/1"), "c").await.unwrap();
    db_c.delete(&key("/old/7")).await.unwrap();
    c.close().await.unwrap();
    for n in 0..1_000 {
        db_a.put(&key(&format!("/new/{}", n % 400)), vec![2; if n % 9 == 0 { 5_000 } else { 50 }]).await.unwrap();
    }
    for n in (0..300).step_by(2) {
        db_b.delete(&key(&format!("/old/{n}"))).await.unwrap();
    }
    until_equal(&[&db_a, &db_b]).await;
    // Known nodes are waited for only as long as there is room.
    let everything = CompactOptions { alone: true, max_bytes: Some(0), ..CompactOptions::default() };
    for db in [&db_a, &db_b] {
        assert_eq!(db.compact(&everything, |_| {}).await.unwrap().kept_bytes, 0);
    }

    let stop = Arc::new(AtomicBool::new(false));
    let (c, db_c) = open(dirs[2].path(), true).await;
    let writers = [(&db_a, "a"), (&db_b, "b"), (&db_c, "c")].map(|(db, name)| writer(db.clone(), name, Arc::clone(&stop)));
    connect(&c, &a).await;
    connect(&c, &b).await;
    let end = Instant::now() + PATIENCE;
    while db_c.get(&key("/new/399")).unwrap().is_none() {
        assert!(Instant::now() < end, "the snapshot never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    until_equal(&[&db_a, &db_b, &db_c]).await;
    assert_eq!(c.network_counters().get("sync_snapshots_asked_for"), Some(&1));
    for n in (0..300).step_by(2).chain([7]) {
        for db in [&db_a, &db_b, &db_c] {
            assert!(db.get(&key(&format!("/old/{n}"))).unwrap().is_none(), "/old/{n} has come back");
        }
    }
    assert_eq!(db_a.get(&key("/c/alone")).unwrap().unwrap().value.len(), 1_000);
    assert_eq!(db_c.get(&key("/new/9")).unwrap().unwrap().value.len(), db_a.get(&key("/new/9")).unwrap().unwrap().value.len());
    // What it has now is on its disk, and the next start finds it.
    c.close().await.unwrap();
    let (c, db_c) = open(dirs[2].path(), true).await;
    assert_eq!(state(&db_a), state(&db_c));
    connect(&c, &a).await;
    db_c.put(&key("/after"), "1").await.unwrap();
    until_equal(&[&db_a, &db_b, &db_c]).await;
    for db in [&db_a, &db_b, &db_c] {
        let verified = db.verify().await.unwrap();
        assert!(verified.is_sound(), "{:?}", verified.damages);
    }
    for node in [a, b, c] {
        node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_ends_at_any_point_of_a_snapshot_comes_back_and_is_equal() {
    let (full, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, db_a) = open(full.path(), true).await;
    for n in 0..3_000 {
        db_a.put(&key(&format!("/k/{n}")), vec![1; if n % 11 == 0 { 4_000 } else { 100 }]).await.unwrap();
    }
    db_a.compact(&CompactOptions { alone: true, ..CompactOptions::default() }, |_| {}).await.unwrap();
    for pause in [0, 10, 20, 40, 80, 120, 200, 400] {
        let (b, db_b) = open(empty.path(), true).await;
        connect(&b, &a).await;
        db_b.put(&key(&format!("/b/{pause}")), "1").await.unwrap();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // No good-bye: handles are dropped in the middle of whatever is going on.
        drop((b, db_b));
    }
    let (b, db_b) = open(empty.path(), true).await;
    connect(&b, &a).await;
    until_equal(&[&db_a, &db_b]).await;
    assert_eq!(db_b.get(&key("/k/2999")).unwrap().unwrap().value.len(), 100);
    for node in [a, b] {
        node.close().await.unwrap();
    }
}
