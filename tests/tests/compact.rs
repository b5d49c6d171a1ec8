//! History that is dropped, and the space that comes back.

use std::path::Path;
use std::time::{Duration, Instant};

use kvdb::{
    Batch, CompactOptions, CompactProgress, Compacted, Database, Durability, HistoryOptions, Key, ListOptions, NetworkOptions,
    Node, NodeOptions, WriteError,
};
use tempfile::TempDir;

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rounds and keys of the two large tests, which `KVDB_TEST_FULL=1` makes as large as they are meant to be.
fn size(usual: u32, full: u32) -> u32 {
    if std::env::var_os("KVDB_TEST_FULL").is_some() { full } else { usual }
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// History looked at by command only, and no age.
fn history() -> HistoryOptions {
    HistoryOptions { min_age: Duration::ZERO, interval: None, ..HistoryOptions::default() }
}

async fn open(dir: &Path, history: HistoryOptions, network: Option<NetworkOptions>) -> (Node, Database) {
    let mut options = NodeOptions::new(dir).durability(Durability::Buffered).history(history);
    options.network = network;
    let node = Node::open(options).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    (node, db)
}

#[expect(clippy::unnecessary_wraps, reason = "as the options want it")]
fn network() -> Option<NetworkOptions> {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    Some(NetworkOptions { listen, ..NetworkOptions::default() })
}

async fn connect(from: &Node, to: &Node) {
    from.dial(to.listen_addresses().first().unwrap().clone()).await.unwrap();
}

fn alone() -> CompactOptions {
    CompactOptions { alone: true, ..CompactOptions::default() }
}

async fn compact(db: &Database, options: &CompactOptions) -> Compacted {
    db.compact(options, |_| {}).await.unwrap()
}

fn disk(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| {
        // A file may go while it is looked at.
        let Ok(data) = entry.metadata() else { return 0 };
        if data.is_dir() { disk(&entry.path()) } else { data.len() }
    });
    sizes.sum()
}

/// The whole listing, values included.
fn rows(db: &Database) -> Vec<(String, Vec<u8>)> {
    let (mut rows, mut options) = (Vec::new(), ListOptions::new(kvdb::Prefix::root()));
    loop {
        let page = db.list(&options).unwrap();
        rows.extend(page.items.iter().map(|item| match item {
            kvdb::ListItem::Entry(entry) => (entry.key.to_string(), entry.value.to_vec()),
            kvdb::ListItem::CommonPrefix(prefix) => panic!("{prefix:?}"),
        }));
        let Some(next) = page.next else { return rows };
        options = options.after(next);
    }
}

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s09_t01_overwritten_values_leave_the_disk() {
    let dir = TempDir::new().unwrap();
    let (node, db) = open(dir.path(), history(), None).await;
    let (rounds, keys) = (size(40, 1_000), 1_000);
    for round in 0..rounds {
        for first in (0..keys).step_by(100) {
            let put = |batch: Batch, n: u32| batch.put(key(&format!("/key/{n}")), noise(u64::from(round * keys + n), 1_024));
            db.batch((first..first + 100).fold(Batch::new(), put)).await.unwrap();
        }
    }
    let before = (disk(dir.path()), rows(&db), db.stats().unwrap());
    let mut steps = Vec::new();
    let done = db.compact(&alone(), |progress| steps.push(progress)).await.unwrap();
    assert_eq!((done.blocks, done.kept_bytes), (u64::from(rounds * 10), 0));
    assert!(
        matches!(steps.first(), Some(CompactProgress::Dropping { blocks: 0, of }) if *of == u64::from(rounds * 10)),
        "{steps:?}"
    );
    assert_eq!(steps.last(), Some(&CompactProgress::Rewriting));
    let after = db.stats().unwrap();
    assert_eq!(rows(&db), before.1);
    assert_eq!(
        (after.keys, after.digest, after.vv_hash, after.heads),
        (1_000, before.2.digest, before.2.vv_hash, before.2.heads)
    );
    assert_eq!((after.history_bytes, after.log_floor), (0, after.revision));
    let live = 1_000 * 1_024;
    // Files that nothing refers to go soon after.
    until("the disk has at most three times the live data", || disk(dir.path()) <= 3 * live).await;
    println!("{rounds} rounds: {} bytes on disk before, {} after, {live} live", before.0, disk(dir.path()));
    node.close().await.unwrap();
    let (node, db) = open(dir.path(), history(), None).await;
    assert_eq!(rows(&db), before.1);
    db.put(&key("/key/1"), "goes on").await.unwrap();
    assert_eq!(db.stats().unwrap().revision, after.revision + 1);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn s01_t07_nothing_is_left_of_deleted_keys_but_the_version_vector() {
    let dir = TempDir::new().unwrap();
    let (node, db) = open(dir.path(), history(), None).await;
    let keys = size(20_000, 1_000_000);
    for first in (0..keys).step_by(1_000) {
        let all = first..first + 1_000;
        db.batch(all.clone().fold(Batch::new(), |batch, n| batch.put(key(&format!("/key/{n}")), "value"))).await.unwrap();
    }
    for first in (0..keys).step_by(1_000) {
        let all = first..first + 1_000;
        db.batch(all.fold(Batch::new(), |batch, n| batch.delete(key(&format!("/key/{n}"))))).await.unwrap();
    }
    compact(&db, &alone()).await;
    let stats = db.stats().unwrap();
    assert_eq!((stats.keys, stats.digest.to_string().trim_matches('0'), stats.replicas), (0, "", 1));
    assert_eq!((stats.history_bytes, stats.log_floor, stats.disk_bytes), (0, u64::from(keys) / 500, stats.disk_bytes));
    assert!(rows(&db).is_empty());
    until("less than 1 MiB is left", || disk(dir.path()) < 1 << 20).await;
    let left = disk(dir.path());
    println!("{keys} keys put and deleted: {left} bytes on disk, {} in files of the database", stats.disk_bytes);
    assert!(stats.disk_bytes < 10_000, "{stats:?}");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn t06_history_is_kept_for_a_known_peer_that_is_away() {
    let (dirs, network) = ([TempDir::new().unwrap(), TempDir::new().unwrap()], network());
    let (a, db_a) = open(dirs[0].path(), history(), network.clone()).await;
    let nothing = compact(&db_a, &CompactOptions::default()).await;
    assert_eq!(nothing, Compacted::default());
    for n in 0..500 {
        db_a.put(&key(&format!("/k/{}", n % 50)), noise(n, 700)).await.unwrap();
    }
    // Nobody else has it.
    let nothing = compact(&db_a, &CompactOptions::default()).await;
    let history_bytes = db_a.stats().unwrap().history_bytes;
    assert_eq!((nothing.blocks, nothing.kept_bytes, nothing.unsafe_bytes), (0, history_bytes, history_bytes));
    assert_eq!(db_a.stats().unwrap().unsafe_bytes, history_bytes);

    let (b, db_b) = open(dirs[1].path(), history(), network.clone()).await;
    connect(&b, &a).await;
    until("all is on the other disk", || {
        let db = db_a.clone();
        let done = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async move { compact(&db, &CompactOptions::default()).await })
        });
        done.log_floor == 500 && done.unsafe_bytes == 0
    })
    .await;
    b.close().await.unwrap();
    for n in 0..300 {
        db_a.put(&key(&format!("/k/{}", n % 50)), noise(n + 1_000, 700)).await.unwrap();
        db_a.delete(&key(&format!("/k/{}", (n + 7) % 50))).await.unwrap();
    }
    let floor = db_a.stats().unwrap().log_floor;
    let kept = compact(&db_a, &CompactOptions { max_bytes: Some(0), ..CompactOptions::default() }).await;
    assert_eq!((kept.blocks, kept.log_floor), (0, floor), "what is on no other disk stays, whatever it costs");
    assert!(kept.unsafe_bytes > 300 * 700 && kept.unsafe_bytes == kept.kept_bytes);
    // The one that was away has not forgotten anything, and needs nothing but the log.
    let (b, db_b2) = open(dirs[1].path(), history(), network).await;
    drop(db_b);
    connect(&b, &a).await;
    until("both are equal", || db_a.stats().unwrap().vv_hash == db_b2.stats().unwrap().vv_hash).await;
    assert_eq!(rows(&db_a), rows(&db_b2));
    assert_eq!(db_a.stats().unwrap().digest, db_b2.stats().unwrap().digest);
    for node in [a, b] {
        node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_refused_while_too_much_history_is_on_no_other_node() {
    let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let few = HistoryOptions {
        hard_bytes: 100_000,
        max_bytes: Some(50_000),
        interval: Some(Duration::from_millis(50)),
        ..HistoryOptions::default()
    };
    let (a, db) = open(dirs[0].path(), few, network()).await;
    let mut written = 0;
    let refused = loop {
        match db.put(&key(&format!("/k/{written}")), noise(written, 1_000)).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, WriteError::HistoryFull { limit: 100_000, bytes } if bytes > 100_000), "{refused}");
    assert!((80..120).contains(&written), "{written}");
    // Reads, and what others write, go on.
    assert_eq!(rows(&db).len() as u64, written);
    let (b, other) = open(dirs[1].path(), history(), network()).await;
    connect(&b, &a).await;
    other.put(&key("/other"), "x").await.unwrap();
    until("another node has it", || db.get(&key("/other")).unwrap().is_some() && db.stats().unwrap().unsafe_bytes < 100_000)
        .await;
    db.put(&key("/again"), "x").await.unwrap();
    until("history is dropped on schedule", || db.stats().unwrap().history_bytes <= 52_000).await;
    for node in [a, b] {
        node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t02_compactions_beside_writes_and_each_other_change_no_row() {
    let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let (a, db) = open(dirs[0].path(), history(), network()).await;
    let (b, other) = open(dirs[1].path(), history(), network()).await;
    connect(&b, &a).await;
    let write = |db: Database, who: u64| async move {
        for n in 0..1_500 {
            let at = key(&format!("/k/{who}/{}", n % 97));
            if n % 3 == 2 {
                db.delete(&at).await.unwrap();
            } else {
                db.put(&at, noise(n, if n % 5 == 0 { 2_000 } else { 50 })).await.unwrap();
            }
        }
    };
    let compacting = |db: Database| async move {
        let mut dropped = 0;
        for _ in 0..10 {
            dropped += compact(&db, &CompactOptions::default()).await.blocks;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        dropped
    };
    let all = [tokio::spawn(write(db.clone(), 1)), tokio::spawn(write(other.clone(), 2)), tokio::spawn(write(db.clone(), 3))];
    let compactions =
        [tokio::spawn(compacting(db.clone())), tokio::spawn(compacting(db.clone())), tokio::spawn(compacting(other.clone()))];
    for task in all {
        task.await.unwrap();
    }
    for task in compactions {
        task.await.unwrap();
    }
    until("both are equal", || db.stats().unwrap().vv_hash == other.stats().unwrap().vv_hash).await;
    assert_eq!(rows(&db), rows(&other));
    until("all is dropped on both", || {
        let dbs = [db.clone(), other.clone()];
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async move {
                for db in &dbs {
                    compact(db, &CompactOptions::default()).await;
                }
            });
        });
        db.stats().unwrap().history_bytes == 0 && other.stats().unwrap().history_bytes == 0
    })
    .await;
    // What each writer left is what the listing has.
    let stats = (db.stats().unwrap(), other.stats().unwrap());
    assert_eq!((stats.0.digest, stats.0.keys), (stats.1.digest, stats.1.keys));
    let listed = rows(&db);
    assert_eq!(listed.len() as u64, stats.0.keys);
    for node in [a, b] {
        node.close().await.unwrap();
    }
    let (node, db) = open(dirs[0].path(), history(), None).await;
    assert_eq!(rows(&db), listed);
    node.close().await.unwrap();
}
