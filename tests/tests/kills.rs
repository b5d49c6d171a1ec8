//! Compactions and drops in a process that is killed at any moment of them.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvdb::{Batch, CompactOptions, Database, Durability, Key, ListItem, ListOptions, Node, NodeOptions, Prefix};
use tempfile::TempDir;

/// How long a process may take to answer on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kills in each test, many more with `KVDB_TEST_FULL=1`.
pub(crate) fn kills() -> u64 {
    if std::env::var_os("KVDB_TEST_FULL").is_some() { 100 } else { 5 }
}

pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("kvdb")
}

/// A process on the directory, and its URL.
fn spawn(dir: &Path) -> (Child, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(program());
    command.arg("run").arg("--data-dir").arg(dir).args(["--databases", "demo", "--p2p-enabled", "false"]);
    command.args(["--http-listen", &format!("127.0.0.1:{port}"), "--log", "warn"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "the process does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    (child, format!("http://127.0.0.1:{port}"))
}

/// Starts a command against a process and kills the process some time after.
fn kill_during(dir: &Path, args: &[&str], after: Duration) {
    let (mut daemon, url) = spawn(dir);
    let mut client = Command::new(program());
    client.args(args).args(["--server", &url]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = client.spawn().unwrap();
    std::thread::sleep(after);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    client.wait().unwrap();
}

async fn open(dir: &Path) -> Node {
    Node::open(NodeOptions::new(dir).durability(Durability::Buffered)).await.unwrap()
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn rows(db: &Database) -> Vec<(String, Vec<u8>)> {
    let row = |item: &ListItem| match item {
        ListItem::Entry(entry) => (entry.key.to_string(), entry.value.to_vec()),
        ListItem::CommonPrefix(prefix) => panic!("{prefix:?}"),
    };
    db.list(&ListOptions::new(Prefix::root())).unwrap().items.iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn t02_a_compaction_killed_at_any_moment_changes_no_row() {
    let dir = TempDir::new().unwrap();
    let mut dropped = 0;
    for round in 0..kills() {
        let node = open(dir.path()).await;
        let db = node.database(&"demo".parse().unwrap()).await.unwrap();
        for n in 0..1_500_u64 {
            let at = key(&format!("/{}", n % 61));
            if (n + round).is_multiple_of(7) {
                db.delete(&at).await.unwrap();
            } else {
                db.put(&at, format!("{round} {n}").repeat(if n % 50 == 0 { 100 } else { 1 })).await.unwrap();
            }
        }
        let (before, stats) = (rows(&db), db.stats().unwrap());
        node.close().await.unwrap();
        let after = Duration::from_millis((round * 157) % 800);
        kill_during(dir.path(), &["compact", "--db", "demo", "--alone", "--min-age-seconds", "0"], after);
        let node = open(dir.path()).await;
        let db = node.database(&"demo".parse().unwrap()).await.unwrap();
        let now = db.stats().unwrap();
        assert_eq!((&before, stats.digest, stats.vv_hash), (&rows(&db), now.digest, now.vv_hash), "round {round}");
        assert_eq!((stats.heads, stats.keys, stats.revision), (now.heads, now.keys, now.revision));
        dropped += now.log_floor - stats.log_floor;
        // What is kept is whole: it can be dropped to its end, and written on.
        if round % 3 == 2 {
            let done = db.compact(&CompactOptions { alone: true, min_age: Some(Duration::ZERO), max_bytes: None }, |_| {}).await;
            assert_eq!(done.unwrap().log_floor, now.revision);
            assert_eq!(rows(&db), before);
        }
        node.close().await.unwrap();
    }
    println!("{} kills, {dropped} blocks dropped by compactions that were killed", kills());
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_a_snapshot_killed_at_any_moment_leaves_the_old_state_or_the_new_one() {
    let (home, mut late) = (TempDir::new().unwrap(), crate::cluster::Node::new());
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let network = kvdb::NetworkOptions { listen, ..kvdb::NetworkOptions::default() };
    let options = NodeOptions::new(home.path()).durability(Durability::Buffered).network(network);
    let node = Node::open(options).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    let put = |batch: Batch, n: u64| batch.put(key(&format!("/{n}")), vec![1; if n.is_multiple_of(10) { 800 } else { 90 }]);
    for first in (0..6_000).step_by(500) {
        db.batch((first..first + 500).fold(Batch::new(), put)).await.unwrap();
    }
    let alone = CompactOptions { alone: true, min_age: Some(Duration::ZERO), max_bytes: Some(0) };
    db.compact(&alone, |_| {}).await.unwrap();
    let address = node.listen_addresses()[0].clone();
    let port = address.to_string().rsplit('/').next().unwrap().parse().unwrap();
    let (mut empty, mut whole) = (0, 0);
    for round in 0..kills() {
        late.spawn(&[port]);
        late.wait_up();
        std::thread::sleep(Duration::from_millis((round * 173) % 900));
        late.kill();
        {
            let path = late.dir.path().join("data/store");
            let store = kvdb::store::RocksStore::open(&path, &kvdb::StoreOptions::default()).unwrap();
            let record = store.databases().unwrap().into_iter().next();
            let Some(record) = record else { continue };
            let found = store.verify(&record.id).unwrap();
            assert!(found.is_sound(), "round {round}: {:?}", found.damages);
            assert!(found.keys == 0 || found.keys >= 6_000, "round {round}: {} keys", found.keys);
            if found.keys == 0 { empty += 1 } else { whole += 1 }
        }
        // What is there is not asked for again, but what came since is.
        db.put(&key(&format!("/round/{round}")), "v").await.unwrap();
    }
    late.start(&[port]);
    let digest = db.stats().unwrap().digest.to_string();
    let end = Instant::now() + PATIENCE;
    while late.state().is_none_or(|(_, there)| there != digest) {
        assert!(Instant::now() < end, "never equal:\n{}", late.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{} kills: {empty} times empty, {whole} times whole", kills());
    late.kill();
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn t05_a_drop_killed_at_any_moment_leaves_a_database_whole_or_gone() {
    let dir = TempDir::new().unwrap();
    let (mut whole, mut gone) = (0, 0);
    let mut generation = 0;
    for round in 0..kills() {
        let node = open(dir.path()).await;
        let (kept, victim) = (node.database(&"demo".parse().unwrap()).await.unwrap(), "victim".parse().unwrap());
        let db = node.database(&victim).await.unwrap();
        kept.put(&key("/round"), round.to_string()).await.unwrap();
        for first in (0..3_000).step_by(500) {
            let put =
                |batch: Batch, n: u64| batch.put(key(&format!("/{n}")), vec![1; if n.is_multiple_of(10) { 800 } else { 20 }]);
            db.batch((first..first + 500).fold(Batch::new(), put)).await.unwrap();
        }
        let (id, digest) = (db.id(), db.stats().unwrap().digest);
        node.close().await.unwrap();
        kill_during(dir.path(), &["drop", "victim", "--yes"], Duration::from_millis((round * 97 + 60) % 450));
        let node = open(dir.path()).await;
        let there = node.databases().unwrap().into_iter().find(|info| info.name == victim);
        if let Some(info) = there {
            whole += 1;
            assert_eq!((info.id, info.generation), (id, generation));
            assert_eq!(node.database(&victim).await.unwrap().stats().unwrap().digest, digest);
        } else {
            gone += 1;
            generation += 1;
            let again = node.database(&victim).await.unwrap();
            assert_eq!((again.stats().unwrap().keys, again.id() == id), (0, false));
        }
        let kept = node.database(&"demo".parse().unwrap()).await.unwrap();
        assert_eq!(kept.get(&key("/round")).unwrap().unwrap().value, round.to_string());
        node.close().await.unwrap();
    }
    println!("{} kills: {whole} times whole, {gone} times gone", kills());
}
