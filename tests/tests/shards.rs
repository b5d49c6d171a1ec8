//! Nodes with several data directories.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvdb::limits::MAX_SHARDS;
use kvdb::{
    Batch, Database, DatabaseName, DropError, Durability, Key, ListItem, ListOptions, Multiaddr, NetworkOptions, Node,
    NodeOptions, OpenDatabaseError, OpenError, Prefix,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directories of a node below one.
pub(crate) fn directories(dir: &Path, count: usize) -> Vec<PathBuf> {
    (0..count).map(|at| dir.join(format!("disk{at}"))).collect()
}

pub(crate) fn options(dir: &Path, count: usize) -> NodeOptions {
    let mut all = directories(dir, count).into_iter();
    NodeOptions::new(all.next().unwrap()).directories(all).durability(Durability::Buffered)
}

async fn open(dir: &Path, count: usize) -> Node {
    Node::open(options(dir, count)).await.unwrap()
}

pub(crate) fn name(text: &str) -> DatabaseName {
    text.parse().unwrap()
}

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// Everything that is alive, with dots, stamps and values.
pub(crate) fn rows(database: &Database) -> Vec<ListItem> {
    let mut rows = Vec::new();
    let mut options = ListOptions::new(Prefix::root());
    loop {
        let page = database.list(&options).unwrap();
        rows.extend(page.items);
        match page.next {
            Some(next) => options.after = Some(next),
            None => return rows,
        }
    }
}

/// Waits until it holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A few databases have most of the data: puts, overwrites, deletes, values of all sizes.
async fn write_skewed(node: &Node, names: &[DatabaseName], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for step in 0..300u64 {
        // Thrice reduced: the first have most.
        let at = (0..3).fold(names.len(), |below, _| random.random_range(1..=below)) - 1;
        let database = node.database(&names[at]).await.unwrap();
        let mut batch = Batch::new();
        for _ in 0..random.random_range(1..8) {
            let at = key(&format!("/k/{}", random.random_range(0..60)));
            let len = if random.random_bool(0.1) { random.random_range(500..20_000) } else { random.random_range(0..64) };
            batch = if random.random_bool(0.25) { batch.delete(at) } else { batch.put(at, vec![(step % 251) as u8; len]) };
        }
        database.batch(batch).await.unwrap();
    }
}

fn network(bootstrap: &[Multiaddr]) -> NetworkOptions {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    NetworkOptions { listen, bootstrap: bootstrap.to_vec(), ..NetworkOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_data_look_the_same_on_one_two_and_five_directories() {
    let names: Vec<DatabaseName> = (0..20).map(|at| name(&format!("db-{at:02}"))).collect();
    let (source_dir, mut seen) = (TempDir::new().unwrap(), Vec::new());
    let source = Node::open(options(source_dir.path(), 1).network(network(&[]))).await.unwrap();
    write_skewed(&source, &names, 7).await;
    for name in &names {
        source.database(name).await.unwrap();
    }
    for count in [1, 2, 5] {
        let dir = TempDir::new().unwrap();
        let node = Node::open(options(dir.path(), count).network(network(&source.listen_addresses()))).await.unwrap();
        for name in names.iter().rev() {
            node.database(name).await.unwrap();
        }
        let figures = |node: &Node| -> Vec<_> {
            node.databases().unwrap().into_iter().map(|info| (info.name, info.id, info.keys, info.digest)).collect()
        };
        let expected = figures(&source);
        until("the databases become equal", || figures(&node) == expected).await;
        node.close().await.unwrap();
        let node = open(dir.path(), count).await;
        let infos = node.databases().unwrap();
        let used: BTreeSet<_> = infos.iter().map(|info| &info.directory).collect();
        assert_eq!(used.len(), count, "every directory has some");
        let mut all = Vec::new();
        for info in &infos {
            let database = node.database(&info.name).await.unwrap();
            assert!(database.verify().await.unwrap().is_sound());
            let vv_hash = database.stats().unwrap().vv_hash;
            all.push((info.name.clone(), info.id, info.keys, info.digest, vv_hash, rows(&database)));
        }
        // Pages of one make the same listing.
        let mut paged: Vec<DatabaseName> = Vec::new();
        while let Some(info) = node.databases_after(paged.last(), 1).unwrap().pop() {
            paged.push(info.name);
        }
        assert!(paged.iter().eq(&names));
        seen.push(all);
        node.close().await.unwrap();
    }
    assert!(
        seen[0].iter().all(|all| all.3 == source.databases().unwrap().iter().find(|info| info.name == all.0).unwrap().digest)
    );
    assert!(seen.iter().all(|other| *other == seen[0]));
    source.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_directory_keeps_its_layout_and_new_databases_go_to_the_least_loaded_one() {
    let dir = TempDir::new().unwrap();
    let node = open(dir.path(), 1).await;
    node.database(&name("old")).await.unwrap().put(&key("/a"), "1").await.unwrap();
    node.close().await.unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(dir.path().join("disk0")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["identity.key", "store"], "nothing of several directories");
    // Another one is added: what is there stays, new ones go to the emptier one, then in turn.
    let node = open(dir.path(), 2).await;
    for new in ["new-1", "new-2", "new-3"] {
        node.database(&name(new)).await.unwrap();
    }
    let places: Vec<_> = node.databases().unwrap().into_iter().map(|info| (info.name.to_string(), info.directory)).collect();
    let disks = directories(dir.path(), 2);
    let expected = [("new-1", 1), ("new-2", 0), ("new-3", 1), ("old", 0)];
    assert_eq!(places, expected.map(|(name, disk)| (name.to_owned(), disks[disk].clone())));
    assert_eq!(node.database(&name("old")).await.unwrap().get(&key("/a")).unwrap().unwrap().value, "1");
    node.close().await.unwrap();
}

/// What a failed disk looks like at the next start, and how it is taken back.
fn break_it(disk: &Path, how: &str) {
    let store = disk.join("store");
    std::fs::rename(disk, disk.with_extension("away")).unwrap();
    match how {
        "not mounted" => std::fs::create_dir(disk).unwrap(),
        "gone" => {}
        _ => {
            std::fs::create_dir_all(&store).unwrap();
            for file in std::fs::read_dir(disk.with_extension("away").join("store")).unwrap() {
                let file = file.unwrap();
                let bytes = if file.file_name() == "CURRENT" { b"rubbish".to_vec() } else { std::fs::read(file.path()).unwrap() };
                std::fs::write(store.join(file.file_name()), bytes).unwrap();
            }
        }
    }
}

fn mend(disk: &Path) {
    // What stood in its place, if anything.
    drop(std::fs::remove_dir_all(disk));
    std::fs::rename(disk.with_extension("away"), disk).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_opened_takes_only_its_own_databases_away() {
    let dir = TempDir::new().unwrap();
    let disks = directories(dir.path(), 3);
    let node = open(dir.path(), 3).await;
    for at in 0..6 {
        let database = node.database(&name(&format!("db-{at}"))).await.unwrap();
        database.put(&key("/a"), format!("db-{at}")).await.unwrap();
    }
    // A name that was dropped counts as well: its next generation is known there only.
    node.drop_database(&name("db-1")).await.unwrap();
    let before = node.databases().unwrap();
    assert_eq!(before.iter().filter(|info| info.directory == disks[1]).count(), 1, "db-4; db-1 was dropped");
    node.close().await.unwrap();
    for how in ["not mounted", "gone", "unreadable"] {
        break_it(&disks[1], how);
        let node = open(dir.path(), 3).await;
        let status = node.status();
        assert!(status.shards.iter().all(|shard| shard.unavailable.is_some() == (shard.directory == disks[1])), "{how}");
        let listed = node.databases().unwrap();
        assert_eq!(listed.iter().filter(|info| info.unavailable.is_some()).count(), 1, "what is not to be had is listed, {how}");
        for info in listed {
            let opened = node.database(&info.name).await;
            if info.directory == disks[1] {
                let error = opened.unwrap_err();
                assert!(matches!(&error, OpenDatabaseError::Unavailable { directory, .. } if *directory == disks[1]), "{error}");
                assert!(info.unavailable.is_some() && node.has_database(&info.name).unwrap());
                let error = node.drop_database(&info.name).await.unwrap_err();
                assert!(matches!(error, DropError::Unavailable { .. }), "{error}");
            } else {
                let value = opened.unwrap().get(&key("/a")).unwrap().unwrap().value;
                assert_eq!(value, info.name.to_string());
            }
        }
        let dropped = node.database(&name("db-1")).await.unwrap_err();
        assert!(matches!(dropped, OpenDatabaseError::Unavailable { .. }), "{dropped}");
        // New ones are made beside it.
        let new = format!("new-{}", how.len());
        node.database(&name(&new)).await.unwrap().put(&key("/a"), new).await.unwrap();
        node.close().await.unwrap();
        assert_eq!(disks[1].exists(), how != "gone", "nothing is made in its place");
        mend(&disks[1]);
        let node = open(dir.path(), 3).await;
        let after = node.databases().unwrap();
        assert!(before.iter().all(|info| after.iter().any(|now| (&now.name, now.digest) == (&info.name, info.digest))), "{how}");
        assert!(node.status().shards.iter().all(|shard| shard.unavailable.is_none()));
        node.close().await.unwrap();
    }
    let node = open(dir.path(), 3).await;
    node.database(&name("db-1")).await.unwrap();
    assert_eq!(node.databases().unwrap().iter().find(|info| info.name == name("db-1")).unwrap().generation, 1);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_are_left_out_exchanged_or_given_twice_are_refused() {
    let dir = TempDir::new().unwrap();
    let disks = directories(dir.path(), 3);
    let node = open(dir.path(), 2).await;
    for at in 0..4 {
        node.database(&name(&format!("db-{at}"))).await.unwrap();
    }
    node.close().await.unwrap();
    let error = Node::open(options(dir.path(), 1)).await.unwrap_err();
    assert!(matches!(&error, OpenError::MissingDirectory { directory, .. } if *directory == disks[1]), "{error}");
    // Another disk in its place, with a store of its own.
    std::fs::rename(&disks[1], &disks[2]).unwrap();
    let other = Node::open(NodeOptions::new(&disks[1])).await.unwrap();
    other.close().await.unwrap();
    let error = open_error(options(dir.path(), 2)).await;
    assert!(matches!(&error, OpenError::MissingDirectory { .. }), "{error}");
    // The same store at another path is the same.
    let node = Node::open(NodeOptions::new(&disks[0]).directories([disks[2].clone()])).await.unwrap();
    assert_eq!(node.databases().unwrap().len(), 4);
    node.close().await.unwrap();
    let twice = disks[2].join("..").join("disk2");
    let error = open_error(NodeOptions::new(&disks[0]).directories([disks[2].clone(), twice])).await;
    assert!(matches!(error, OpenError::SameDirectory { .. }), "{error}");
    let many = (0..MAX_SHARDS).map(|at| dir.path().join(format!("many{at}")));
    let error = open_error(NodeOptions::new(&disks[0]).directories(many)).await;
    assert!(matches!(error, OpenError::TooManyDirectories { .. }) && error.to_string().contains("16"), "{error}");
    // Given up, as the message says.
    std::fs::remove_file(disks[0].join("shards")).unwrap();
    let node = open(dir.path(), 1).await;
    assert_eq!(node.databases().unwrap().len(), 2);
    node.close().await.unwrap();
}

async fn open_error(options: NodeOptions) -> OpenError {
    Node::open(options).await.unwrap_err()
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// `DATABASES=10000 cargo test --release --test tests many_databases -- --nocapture` measures.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_many_databases_opens_and_all_are_listed() {
    let count: usize = std::env::var("DATABASES").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let dir = TempDir::new().unwrap();
    let node = open(dir.path(), 2).await;
    for at in 0..count {
        let database = node.database(&name(&format!("db-{at:05}"))).await.unwrap();
        database.put(&key("/a"), at.to_string()).await.unwrap();
        database.close().await.unwrap();
    }
    node.close().await.unwrap();
    let begun = std::time::Instant::now();
    let node = open(dir.path(), 2).await;
    let opened = begun.elapsed();
    let begun = std::time::Instant::now();
    let infos = node.databases().unwrap();
    let listed = begun.elapsed();
    assert!(infos.len() == count && infos.iter().all(|info| info.keys == 1));
    assert!(infos.iter().map(|info| &info.name).is_sorted());
    let before = resident();
    let mut all = Vec::new();
    for info in infos.iter().take(kvdb::limits::MAX_OPEN_DATABASES) {
        all.push(node.database(&info.name).await.unwrap());
    }
    let each = resident().saturating_sub(before) / all.len() as u64;
    println!("{count} databases: opened in {opened:?}, listed in {listed:?}; {each} KiB for each of {} that are open", all.len());
    node.close().await.unwrap();
}
