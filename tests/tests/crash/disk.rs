//! Syncs and reads that fail, and a disk that is full: what is refused, what goes on, and what a restart brings back.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::sick::{Disk, Field};
use super::{ask, at};
use crate::cluster::{Node, PATIENCE, wait_equal};

/// A problem's status, code and outcome.
fn problem(answer: Option<(u16, String)>) -> (u16, String, String) {
    let (status, body) = answer.expect("an answer");
    let body: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{status} {body}: {error}"));
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("outcome"))
}

fn put(node: &Node, key: &str, value: &[u8]) -> Option<(u16, String)> {
    ask(node.http, "PUT", &format!("{}?durability=sync", at(key)), value)
}

fn get(node: &Node, key: &str) -> (u16, String) {
    ask(node.http, "GET", &at(key), b"").expect("an answer")
}

fn expect(status: u16, code: &str, outcome: &str) -> (u16, String, String) {
    (status, code.to_owned(), outcome.to_owned())
}

#[test]
fn a_failed_sync_poisons_and_a_restart_heals() {
    let mut node = Node::new();
    let Some(disk) = Disk::under(&mut node) else { return };
    node.start(&[]);
    assert_eq!(put(&node, "/before", b"1").unwrap().0, 200);
    disk.set(Field::FailSync, 1);
    assert_eq!(problem(put(&node, "/during", b"2")), expect(503, "commit_failed", "maybe_written"));
    assert_eq!(disk.get(Field::Failed), 1);
    // The next sync would succeed, but what became of the lost one nobody knows.
    assert_eq!(problem(put(&node, "/after", b"3")), expect(503, "poisoned", "not_written"));
    assert_eq!(problem(ask(node.http, "PUT", &at("/after"), b"3")).1, "poisoned");
    assert_eq!(problem(node.get("/readyz")).1, "poisoned");
    assert_eq!(get(&node, "/before"), (200, "1".to_owned()));
    assert_eq!(get(&node, "/after").0, 404);
    assert!(node.get("/metrics").unwrap().1.contains("kvdb_poisoned 1"));
    node.kill();
    node.start(&[]);
    assert_eq!(get(&node, "/before"), (200, "1".to_owned()));
    assert_eq!(get(&node, "/after").0, 404);
    let (status, value) = get(&node, "/during");
    assert!(status == 404 || value == "2", "{status} {value}");
    assert_eq!(put(&node, "/after", b"3").unwrap().0, 200);
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn a_failed_sync_of_what_a_peer_sent_is_never_acknowledged() {
    let (mut node, mut peer) = (Node::new(), Node::new());
    let Some(disk) = Disk::under(&mut node) else { return };
    peer.start(&[]);
    node.start(&[peer.peer]);
    assert_eq!(put(&peer, "/met", b"1").unwrap().0, 200);
    wait_equal(&[&node, &peer], |keys| keys == 1);
    disk.set(Field::FailSync, 1_000);
    assert_eq!(put(&peer, "/unsynced", b"2").unwrap().0, 200);
    let end = Instant::now() + PATIENCE;
    while node.get("/readyz").is_none_or(|(status, _)| status == 200) {
        assert!(Instant::now() < end, "the sync did not fail, or nobody said so\n{}", node.log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // It is visible here, as merged but not durable; what comes now is refused.
    assert_eq!(put(&peer, "/refused", b"3").unwrap().0, 200);
    assert_eq!(get(&node, "/met").0, 200);
    assert_eq!(problem(put(&node, "/own", b"4")).1, "poisoned");
    node.kill();
    disk.heal();
    node.start(&[peer.peer]);
    wait_equal(&[&node, &peer], |keys| keys == 3);
}

#[test]
fn a_read_that_fails_is_an_error_and_never_an_absence_or_an_end() {
    let (mut node, mut late) = (Node::new(), Node::new());
    let Some(disk) = Disk::under(&mut node) else { return };
    node.start(&[]);
    assert!(node.import("/k", 0, 2_000));
    node.kill();
    // The log has become tables, none of which was read yet.
    node.start(&[]);
    disk.set(Field::FailRead, 1);
    let failed = |answer| {
        let (status, code, outcome) = problem(answer);
        assert_eq!((status, code.as_str()), (500, "read_failed"), "{outcome}");
    };
    failed(ask(node.http, "GET", &at("/k/000777"), b""));
    failed(ask(node.http, "GET", "/v1/databases/demo/siblings?key=/k/000777", b""));
    assert!(disk.get(Field::Failed) > 0);
    // A write that has to read what it supersedes is refused as a whole.
    let (status, code, outcome) = problem(put(&node, "/k/000778", b"other"));
    assert_eq!((status, code.as_str(), outcome.as_str()), (500, "read_failed", "not_written"));
    // A listing has begun when the read fails.
    let mut cut = false;
    if let Some((_, text)) = node.get("/v1/databases/demo/list") {
        assert!(!text.contains("\"end\""), "{text}");
        cut = text.contains("\"error\"") || text.contains("read_failed");
    }
    assert!(cut, "a listing over a broken disk must say so");
    assert!(!node.client(&["ls", "/k"], "").status.success());
    // A peer that lacks the blocks gets nothing yet, and is not taken for one that has all.
    late.spawn(&[node.peer]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_ne!(late.state().map(|(keys, _)| keys), Some(2_000));
    assert!(late.get("/readyz").is_none_or(|(status, _)| status != 200), "ready without anything:\n{}", late.log());
    disk.heal();
    assert_eq!(get(&node, "/k/000778"), (200, "value 778".to_owned()));
    // A compaction that could not read stops all writing until the next start; else it goes on as if nothing had been.
    let again = put(&node, "/k/000778", b"other").unwrap();
    if again.0 != 200 {
        assert_eq!(again.0, 503, "{}", again.1);
        node.kill();
        node.start(&[]);
        assert_eq!(put(&node, "/k/000778", b"other").unwrap().0, 200);
    }
    late.wait_ready();
    wait_equal(&[&node, &late], |keys| keys == 2_000);
}

/// Fills the disk with confirmed puts until one fails, and returns how many were confirmed.
fn fill(node: &Node, most: usize, len: usize) -> (usize, (u16, String, String)) {
    let value = vec![b'v'; len];
    for n in 0..most {
        let answer = put(node, &format!("/fill/{n:06}"), &value);
        if answer.as_ref().is_none_or(|(status, _)| *status != 200) {
            return (n, problem(answer));
        }
    }
    panic!("the disk took {most} puts");
}

fn all_there(node: &Node, count: usize, len: usize) {
    for n in 0..count {
        let (status, value) = get(node, &format!("/fill/{n:06}"));
        assert!(status == 200 && value.len() == len, "{n} of {count}: {status}");
    }
}

#[test]
fn s06_a_full_disk_heals_by_itself_once_there_is_room() {
    let (mut node, mut peer) = (Node::new(), Node::new());
    let Some(disk) = Disk::under(&mut node) else { return };
    peer.start(&[]);
    node.start(&[peer.peer]);
    let mut confirmed = 0;
    for round in 0..3 {
        disk.set(Field::Room, 300_000);
        disk.set(Field::Full, 1);
        let (count, first) = fill(&node, 100, 20_000);
        assert_eq!((first.0, first.1.as_str()), (507, "disk_full"), "{first:?}");
        confirmed = confirmed.max(count);
        // Reads go on, what the peer writes waits, and nothing is taken for written.
        all_there(&node, confirmed, 20_000);
        assert_eq!(put(&peer, &format!("/peer/{round}"), b"x").unwrap().0, 200);
        disk.heal();
        let end = Instant::now() + PATIENCE;
        while put(&node, &format!("/healed/{round}"), b"x").is_none_or(|(status, _)| status != 200) {
            assert!(Instant::now() < end, "it does not heal:\n{}", node.log());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        all_there(&node, confirmed, 20_000);
        wait_equal(&[&node, &peer], |keys| keys > confirmed as u64);
        assert_eq!(get(&node, &format!("/peer/{round}")).0, 200);
    }
    assert!(node.child.as_mut().unwrap().try_wait().unwrap().is_none(), "it was the same process all the time");
    node.kill();
    node.start(&[peer.peer]);
    all_there(&node, confirmed, 20_000);
    wait_equal(&[&node, &peer], |keys| keys > confirmed as u64);
}

#[test]
fn s06_a_full_disk_is_told_reads_go_on_and_room_heals() {
    let mut node = Node::new();
    let Some(disk) = Disk::under(&mut node) else { return };
    node.start(&[]);
    let mut confirmed = 0;
    for _ in 0..3 {
        disk.set(Field::Room, 300_000);
        disk.set(Field::Full, 1);
        let (count, first) = fill(&node, 100, 20_000);
        assert_eq!((first.0, first.1.as_str()), (507, "disk_full"), "{first:?}");
        confirmed = confirmed.max(count);
        assert_eq!(problem(put(&node, "/more", b"x")).0, 507);
        all_there(&node, confirmed, 20_000);
        assert_eq!(node.get("/healthz").unwrap().0, 200);
        // Started on a disk that is still full: it serves or ends with a reason, and breaks nothing.
        node.kill();
        node.spawn(&[]);
        let end = Instant::now() + PATIENCE;
        loop {
            if node.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                assert!(node.log().to_lowercase().contains("no space"), "{}", node.log());
                node.child = None;
                break;
            }
            if node.get("/healthz").is_some() {
                all_there(&node, confirmed, 20_000);
                node.kill();
                break;
            }
            assert!(Instant::now() < end, "{}", node.log());
        }
        disk.heal();
        node.start(&[]);
        all_there(&node, confirmed, 20_000);
        assert_eq!(put(&node, "/more", b"x").unwrap().0, 200);
    }
    assert_eq!(node.stop(), Some(0));
}

/// A file system of a few MiB in a file; unmounted when dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(file: &Path, at: &Path) -> Option<Self> {
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
        };
        std::fs::File::create(file).unwrap().set_len(160 << 20).unwrap();
        let made = run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), file.as_os_str()])
            && run("mount", &["-o".as_ref(), "loop".as_ref(), file.as_os_str(), at.as_os_str()]);
        made.then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn s06_a_small_real_file_system_that_runs_full() {
    let mut node = Node::new();
    let data = node.dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let Some(_mounted) = Small::mount(&node.dir.path().join("image"), &data) else {
        eprintln!("skipped: no loop file system may be mounted here");
        return;
    };
    let ballast = data.join("ballast");
    std::fs::write(&ballast, vec![1; 70 << 20]).unwrap();
    node.start(&[]);
    let (confirmed, first) = fill(&node, 1_000, 500_000);
    assert_eq!((first.0, first.1.as_str()), (507, "disk_full"), "{first:?}");
    all_there(&node, confirmed, 500_000);
    node.kill();
    std::fs::remove_file(&ballast).unwrap();
    node.start(&[]);
    all_there(&node, confirmed, 500_000);
    assert_eq!(put(&node, "/more", b"x").unwrap().0, 200);
    assert_eq!(node.stop(), Some(0));
}
