//! Backups of running nodes, what is restored from them, and what an end at any moment leaves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvdb::backup::{RestoreOptions, restore, verify};
use kvdb::{BackupError, BackupInfo, BackupOptions, Node, NodeOptions, OpenError};
use tempfile::TempDir;

use crate::cluster::{Node as Process, wait_equal};
use crate::kills::kills;
use crate::shards::{directories, key, name, options, rows};

async fn back_up(node: &Node, to: &Path, keep: usize) -> BackupInfo {
    node.backup(to, &BackupOptions { keep }, |_| {}).await.unwrap()
}

fn restore_to(backup: &Path, to: &[PathBuf], number: Option<u64>) -> Result<BackupInfo, BackupError> {
    restore(backup, to, &RestoreOptions { number, keep_identity: false }, &mut |_| {})
}

/// Everything in every database.
async fn contents(node: &Node) -> Vec<(String, kvdb::Digest, Vec<kvdb::ListItem>)> {
    let mut all = Vec::new();
    for info in node.databases().unwrap() {
        let database = node.database(&info.name).await.unwrap();
        assert!(database.verify().await.unwrap().is_sound());
        all.push((info.name.to_string(), info.digest, rows(&database)));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn f03_a_backup_copies_what_is_new_and_restores_to_its_moment_as_another_node() {
    let (dir, backup, target) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let node = Node::open(options(dir.path(), 2)).await.unwrap();
    for text in ["one", "two"] {
        let database = node.database(&name(text)).await.unwrap();
        for at in 0..200 {
            database.put(&key(&format!("/{at}")), vec![b'v'; if at % 20 == 0 { 40_000 } else { 10 }]).await.unwrap();
        }
    }
    let first = contents(&node).await;
    let to = backup.path().join("made");
    let one = back_up(&node, &to, 7).await;
    assert_eq!((one.number, one.copied, one.directories.len()), (1, one.bytes, 2));
    node.database(&name("one")).await.unwrap().put(&key("/new"), "1").await.unwrap();
    node.database(&name("two")).await.unwrap().delete(&key("/20")).await.unwrap();
    let second = contents(&node).await;
    let two = back_up(&node, &to, 7).await;
    assert!(two.number == 2 && two.copied < two.bytes / 2, "{two:?}");
    let checked = verify(&to, &mut |_| {}).unwrap();
    assert_eq!((checked.backups.len(), checked.damages.len()), (2, 0));
    // Each restores to its moment, with an identity and store ids of its own.
    for (number, expected) in [(None, &second), (Some(1), &first)] {
        let disks = directories(&target.path().join(format!("{number:?}")), 2);
        restore_to(&to, &disks, number).unwrap();
        let restored = Node::open(NodeOptions::new(&disks[0]).directories([disks[1].clone()])).await.unwrap();
        assert_eq!(contents(&restored).await, *expected);
        assert_ne!(restored.peer_id(), node.peer_id());
        let ids = |node: &Node| node.status().shards.iter().map(|shard| shard.store_id).collect::<Vec<_>>();
        assert!(ids(&restored).iter().all(|id| !ids(&node).contains(id)), "another copy");
        let before = ids(&restored);
        restored.close().await.unwrap();
        let restored = Node::open(NodeOptions::new(&disks[0]).directories([disks[1].clone()])).await.unwrap();
        assert_eq!(ids(&restored), before, "and stays that");
        restored.close().await.unwrap();
    }
    // The identity only if it is asked for, and only the last one is kept if that is.
    let three = back_up(&node, &to, 1).await;
    let checked = verify(&to, &mut |_| {}).unwrap();
    assert_eq!(checked.backups.iter().map(|backup| backup.number).collect::<Vec<_>>(), [three.number]);
    let peer_id = node.peer_id();
    node.close().await.unwrap();
    let disks = directories(&target.path().join("kept"), 2);
    restore(&to, &disks, &RestoreOptions { number: None, keep_identity: true }, &mut |_| {}).unwrap();
    let restored = Node::open(NodeOptions::new(&disks[0]).directories([disks[1].clone()])).await.unwrap();
    assert_eq!(restored.peer_id(), peer_id);
    restored.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_backup_not_empty_or_damaged_is_told() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let node = Node::open(options(dir.path(), 1)).await.unwrap();
    node.database(&name("demo")).await.unwrap().put(&key("/a"), vec![1; 100_000]).await.unwrap();
    std::fs::write(other.path().join("mine"), "precious").unwrap();
    let refused = node.backup(other.path(), &BackupOptions::default(), |_| {}).await.unwrap_err();
    assert!(matches!(refused, BackupError::NotABackup { .. }), "{refused}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1, "left as it was");
    assert!(matches!(verify(other.path(), &mut |_| {}), Err(BackupError::NotABackup { .. })));
    let to = dir.path().join("backup");
    back_up(&node, &to, 7).await;
    let into = |text: &str| vec![dir.path().join(text)];
    let refused = restore_to(&to, &[other.path().to_owned()], None).unwrap_err();
    assert!(matches!(refused, BackupError::NotEmpty { .. }), "{refused}");
    let refused = restore_to(&to, &directories(dir.path(), 2), None).unwrap_err();
    assert!(matches!(refused, BackupError::Directories { given: 2, .. }), "{refused}");
    assert!(matches!(restore_to(&to, &into("new"), Some(9)), Err(BackupError::NoSuchBackup { .. })));
    // One bit of one file.
    let objects = std::fs::read_dir(to.join("objects")).unwrap().map(|entry| entry.unwrap().path());
    let largest = objects.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&largest, &bytes).unwrap();
    let checked = verify(&to, &mut |_| {}).unwrap();
    let damaged = largest.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(checked.damages.len() == 1 && checked.damages[0].contains(&damaged), "{:?}", checked.damages);
    let error = restore_to(&to, &into("new"), None).unwrap_err();
    assert!(matches!(&error, BackupError::Damaged { what } if what.contains(&damaged)), "{error}");
    // What it left is no node, and a whole backup can be restored over it.
    let error = Node::open(NodeOptions::new(dir.path().join("new"))).await.unwrap_err();
    assert!(matches!(error, OpenError::Unfinished { .. }), "{error}");
    bytes[50] ^= 1;
    std::fs::write(&largest, bytes).unwrap();
    restore_to(&to, &into("new"), None).unwrap();
    Node::open(NodeOptions::new(dir.path().join("new"))).await.unwrap().close().await.unwrap();
    node.close().await.unwrap();
}

fn cli(args: &[&str]) -> std::process::Output {
    Command::new(crate::kills::program()).args(args).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_backup_restored_as_a_fourth_node_joins_and_is_equal() {
    let mut nodes = [Process::new(), Process::new(), Process::new()];
    nodes[0].start(&[]);
    let first = nodes[0].peer;
    nodes[1].start(&[first]);
    nodes[2].start(&[first]);
    assert!(nodes[1].import("/before", 0, 2_000));
    wait_equal(&nodes.each_ref(), |keys| keys == 2_000);
    // Others write while the backup is made.
    let (backup, stop) = (TempDir::new().unwrap(), Arc::new(AtomicBool::new(false)));
    let (http, stopped) = (nodes[2].http, Arc::clone(&stop));
    let writer = std::thread::spawn(move || {
        let mut written = 0;
        while !stopped.load(Ordering::Acquire) {
            let answer = crate::crash::ask(http, "PUT", &crate::crash::at(&format!("/during/{written}")), b"1");
            assert_eq!(answer.unwrap().0, 200);
            written += 1;
        }
        written
    });
    let server = format!("http://127.0.0.1:{}", nodes[1].http);
    let made = cli(&["backup", text(backup.path()), "--server", &server]);
    assert!(made.status.success() && String::from_utf8_lossy(&made.stdout).starts_with("backup=1 "), "{made:?}");
    stop.store(true, Ordering::Release);
    let during = writer.join().unwrap();
    assert!(nodes[0].client(&["rm", "/before/000001"], "").status.success());
    assert!(nodes[2].import("/after", 0, 500));
    let checked = cli(&["backup", "verify", text(backup.path())]);
    assert!(checked.status.success() && String::from_utf8_lossy(&checked.stdout).contains("sound: "), "{checked:?}");
    let mut fourth = Process::new();
    let data = fourth.dir.path().join("data");
    let restored = cli(&["restore", text(backup.path()), text(&data)]);
    assert!(restored.status.success(), "{restored:?}");
    fourth.start(&[first]);
    let keys = 2_000 - 1 + during + 500;
    let all = [&nodes[0], &nodes[1], &nodes[2], &fourth];
    wait_equal(&all, |there| there == keys);
    // It writes like any other.
    assert!(fourth.import("/fourth", 0, 10));
    wait_equal(&all, |there| there == keys + 10);
    assert!(nodes[0].get("/v1/databases/demo/keys/before/000001").unwrap().0 == 404, "deleted since, and not brought back");
}

#[test]
fn a_backup_killed_at_any_moment_leaves_the_earlier_ones_whole() {
    let mut node = Process::new();
    node.start(&[]);
    assert!(node.import("/k", 0, 3_000));
    let backup = TempDir::new().unwrap();
    let dir = backup.path().join("backups");
    let begun = Instant::now();
    let server = format!("http://127.0.0.1:{}", node.http);
    assert!(cli(&["backup", text(&dir), "--server", &server]).status.success());
    let whole = begun.elapsed();
    for round in 0..kills() {
        assert!(node.import("/more", usize::try_from(round).unwrap() * 1_000, 1_000));
        let mut client = Command::new(crate::kills::program());
        let client = client.args(["backup", text(&dir), "--server", &server]).stdout(std::process::Stdio::null());
        let mut client = client.stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(rand::random_range(0.0..1.2)));
        node.kill();
        client.wait().unwrap();
        let checked = verify(&dir, &mut |_| {}).unwrap();
        assert!(!checked.backups.is_empty() && checked.damages.is_empty(), "{:?}", checked.damages);
        node.start(&[]);
    }
    // The next one works, and nothing of those that were killed is left.
    assert!(cli(&["backup", text(&dir), "--keep", "1", "--server", &server]).status.success());
    let checked = verify(&dir, &mut |_| {}).unwrap();
    let left = std::fs::read_dir(dir.join("objects")).unwrap().count();
    assert_eq!((checked.backups.len(), checked.files), (1, left as u64));
    assert!(!node.dir.path().join("data/backup-view").exists());
    let into = backup.path().join("into");
    restore_to(&dir, std::slice::from_ref(&into), None).unwrap();
    assert_eq!(node.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_killed_at_any_moment_is_whole_or_refused_and_can_be_repeated() {
    let dir = TempDir::new().unwrap();
    let node = Node::open(options(dir.path(), 2)).await.unwrap();
    for text in ["one", "two"] {
        let database = node.database(&name(text)).await.unwrap();
        for at in 0..100 {
            database.put(&key(&format!("/{at}")), vec![at; 20_000]).await.unwrap();
        }
    }
    let (expected, backup) = (contents(&node).await, dir.path().join("backup"));
    back_up(&node, &backup, 7).await;
    node.close().await.unwrap();
    let mut whole = Duration::ZERO;
    let (mut refused, mut opened) = (0, 0);
    let disks = directories(&dir.path().join("new"), 2);
    for round in 0..kills() {
        let begun = Instant::now();
        let mut command = Command::new(crate::kills::program());
        let command = command.arg("restore").arg(&backup).args(&disks).stdout(std::process::Stdio::null());
        let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        if round == 0 {
            assert!(child.wait().unwrap().success());
            whole = begun.elapsed();
        } else {
            std::thread::sleep(whole.mul_f64(rand::random_range(0.0..1.0)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // Before its first mark there is nothing, which would be a new node: not opened then.
        if !disks[0].exists() || std::fs::read_dir(&disks[0]).unwrap().next().is_none() {
            continue;
        }
        match Node::open(NodeOptions::new(&disks[0]).directories([disks[1].clone()])).await {
            Ok(restored) => {
                assert_eq!(contents(&restored).await, expected);
                restored.close().await.unwrap();
                opened += 1;
                // Whole: the next one begins with nothing.
                std::fs::remove_dir_all(dir.path().join("new")).unwrap();
            }
            Err(error) => {
                assert!(matches!(error, OpenError::Unfinished { .. }), "{error}");
                refused += 1;
            }
        }
    }
    assert!(opened > 0, "the first one was whole; {refused} were refused");
    drop(std::fs::remove_dir_all(dir.path().join("new")));
    restore_to(&backup, &disks, None).unwrap();
    let restored = Node::open(NodeOptions::new(&disks[0]).directories([disks[1].clone()])).await.unwrap();
    assert_eq!(contents(&restored).await, expected);
    restored.close().await.unwrap();
}
