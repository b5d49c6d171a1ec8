//! Moving databases between the data directories of a node, ended at every step and killed at any moment.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kvdb::{
    Batch, CompactOptions, Digest, Durability, Expiry, ListItem, MoveError, MoveStep, Node, OpOutcome, RequestId, move_database,
};
use tempfile::TempDir;

use crate::shards::{directories, key, name, options, rows};

/// Everything that can be seen of a database.
#[derive(Debug, PartialEq)]
struct Seen {
    rows: Vec<ListItem>,
    digest: Digest,
    vv_hash: [u8; 32],
    figures: (u64, u64, u64, usize),
}

const REQUEST: RequestId = RequestId([7; 16]);

/// What a database has of every kind: large values, siblings of none, history with a floor, requests, what expires.
async fn fill(dir: &Path) -> Seen {
    let node = Node::open(options(dir, 2)).await.unwrap();
    let db = node.database(&name("demo")).await.unwrap();
    for at in 0..300 {
        let value = vec![b'v'; if at % 10 == 0 { 30_000 } else { 20 }];
        db.put(&key(&format!("/k/{}", at % 200)), value).await.unwrap();
    }
    db.compact(&CompactOptions { alone: true, min_age: Some(Duration::ZERO), max_bytes: Some(100_000) }, |_| {}).await.unwrap();
    let expiring = kvdb::Op::put_until(key("/expires"), "soon", Expiry::at_unix_ms(u64::MAX >> 2).unwrap());
    db.batch(Batch::from(expiring).request(REQUEST).durability(Durability::Sync)).await.unwrap();
    assert!(db.stats().unwrap().log_floor > 0, "it has a floor");
    node.database(&name("other")).await.unwrap().put(&key("/stays"), "here").await.unwrap();
    let seen = see(&node).await;
    node.close().await.unwrap();
    seen
}

async fn see(node: &Node) -> Seen {
    let db = node.database(&name("demo")).await.unwrap();
    assert!(db.verify().await.unwrap().is_sound());
    let stats = db.stats().unwrap();
    let figures = (stats.revision, stats.log_floor, stats.history_bytes, stats.replicas);
    Seen { rows: rows(&db), digest: stats.digest, vv_hash: stats.vv_hash, figures }
}

/// After a move, whole or not: everything is there once, and the other database too.
async fn check(dir: &Path, expected: &Seen) {
    let node = Node::open(options(dir, 2)).await.unwrap();
    let names: Vec<String> = node.databases().unwrap().iter().map(|info| info.name.to_string()).collect();
    assert_eq!(names, ["demo", "other"]);
    assert_eq!(see(&node).await, *expected);
    assert!(node.database(&name("other")).await.unwrap().get(&key("/stays")).unwrap().is_some());
    node.close().await.unwrap();
    // Neither store has anything of it that the other serves.
    let mut homes = 0;
    for disk in directories(dir, 2) {
        let store = kvdb::store::RocksStore::open(&disk.join("store"), &kvdb::StoreOptions::default()).unwrap();
        homes += usize::from(store.has_database(&name("demo")).unwrap());
        assert_eq!(store.dropped().unwrap(), [], "a move ends no generation");
    }
    assert_eq!(homes, 1);
}

/// The directory in which it is not.
fn other(dir: &Path) -> std::path::PathBuf {
    let here = |disk: &Path| {
        let store = kvdb::store::RocksStore::open(&disk.join("store"), &kvdb::StoreOptions::default()).unwrap();
        store.has_database(&name("demo")).unwrap()
    };
    directories(dir, 2).into_iter().find(|disk| !here(disk)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_ends_after_any_step_leaves_the_database_whole_in_one_directory() {
    let dir = TempDir::new().unwrap();
    let expected = fill(dir.path()).await;
    let mut ends = 0;
    loop {
        let (to, mut steps) = (other(dir.path()), 0);
        let mut last = None;
        let moved = move_database(&options(dir.path(), 2), &name("demo"), &to, &mut |step| {
            steps += 1;
            last = Some(step);
            if steps > ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        check(dir.path(), &expected).await;
        let served = other(dir.path()) != to;
        match moved {
            Err(MoveError::GivenUp) => {
                let arrived = !matches!(last, Some(MoveStep::Copying(_) | MoveStep::Compared));
                assert_eq!(served, arrived, "after {last:?}");
            }
            moved => {
                assert!(moved.unwrap().bytes > 500_000 && served);
                break;
            }
        }
        ends += 1;
    }
    assert!(ends >= 6, "each step was the last once");
    // A retry is still recognised, and the next write has a name of its own.
    let node = Node::open(options(dir.path(), 2)).await.unwrap();
    let db = node.database(&name("demo")).await.unwrap();
    let written = db.batch(Batch::new().put(key("/expires"), "again").request(REQUEST)).await.unwrap();
    assert!(matches!(written.ops[0], OpOutcome::Repeated) && db.get(&key("/expires")).unwrap().unwrap().value == "soon");
    let dot = db.put(&key("/new"), "1").await.unwrap();
    assert_eq!((dot.seq, db.stats().unwrap().replicas), (1, expected.figures.3 + 1), "a new writer");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_of_what_is_not_there_or_to_nowhere_is_refused() {
    let dir = TempDir::new().unwrap();
    fill(dir.path()).await;
    let disks = directories(dir.path(), 3);
    let go =
        |name_: &str, to: &Path| move_database(&options(dir.path(), 2), &name(name_), to, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(go("absent", &disks[1]), Err(MoveError::NotFound(_))));
    assert!(matches!(go("demo", &disks[2]), Err(MoveError::NotADirectory(_))));
    let there = directories(dir.path(), 2).into_iter().find(|disk| *disk != other(dir.path())).unwrap();
    assert_eq!(go("demo", &there).unwrap().bytes, 0, "it is there already");
    let node = Node::open(options(dir.path(), 2)).await.unwrap();
    assert!(matches!(go("demo", &disks[1]), Err(MoveError::Open(_))), "a running node has it");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_killed_at_any_moment_leaves_the_database_whole_in_one_directory() {
    let dir = TempDir::new().unwrap();
    let expected = fill(dir.path()).await;
    let disks = directories(dir.path(), 2);
    let mut whole = Duration::from_millis(400);
    for round in 0..crate::kills::kills() {
        let mut command = Command::new(crate::kills::program());
        command.args(["db", "move", "demo", "--to"]).arg(other(dir.path())).arg("--data-dir").arg(&disks[0]);
        command.arg("--store-directories").arg(&disks[1]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        if round == 0 {
            // How long a whole one takes here.
            assert!(child.wait().unwrap().success());
            whole = begun.elapsed();
        } else {
            std::thread::sleep(whole.mul_f64(rand::random_range(0.0..1.0)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        check(dir.path(), &expected).await;
    }
}
