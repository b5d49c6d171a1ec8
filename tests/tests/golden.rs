//! Data directories of each format on disk, kept in `tests/golden`: opened by this program, they hold what they held.
//!
//! `KVDB_WRITE_GOLDEN=tests/golden/v1 cargo test --release --workspace --test tests -- golden` makes those of the present
//! format anew. It is done once for each format; afterwards they stay as they are.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvdb::store::RocksStore;
use kvdb::{
    Batch, CompactOptions, Database, Dot, Durability, Expiry, HistoryOptions, Key, ListItem, ListOptions, NetworkOptions, Node,
    NodeOptions, Op, Prefix, StoreOptions,
};

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);
/// The year 2100: never reached by a test.
const FAR: u64 = 4_102_444_800_000;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

async fn open(home: &Path, network: bool) -> Node {
    let history = HistoryOptions { interval: None, min_age: Duration::ZERO, ..HistoryOptions::default() };
    let mut options = NodeOptions::new(home).durability(Durability::Sync).history(history);
    if network {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        options = options.network(NetworkOptions { listen, ..NetworkOptions::default() });
    }
    Node::open(options).await.unwrap()
}

/// Everything that a reader sees of a node's databases, as text.
async fn describe(node: &Node) -> String {
    let mut text = String::new();
    for info in node.databases().unwrap() {
        let db = node.database(&info.name).await.unwrap();
        let stats = db.stats().unwrap();
        let vv = stats.vv_hash.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        writeln!(text, "database {} generation {} id {}", info.name, info.generation, info.id).unwrap();
        writeln!(text, "  keys {} digest {} heads {} vv {vv}", stats.keys, stats.digest, stats.heads).unwrap();
        writeln!(text, "  revision {} log floor {} history {}", stats.revision, stats.log_floor, stats.history_bytes).unwrap();
        rows(&db, &mut text);
        assert!(db.verify().await.unwrap().is_sound(), "{}", info.name);
    }
    text
}

fn rows(db: &Database, text: &mut String) {
    for item in db.list(&ListOptions::new(Prefix::root())).unwrap().items {
        let ListItem::Entry(entry) = item else { panic!("a prefix") };
        for sibling in db.siblings(&entry.key).unwrap() {
            let value = sibling.value.as_ref();
            let shown = if value.len() > 40 { format!("{} bytes of {}", value.len(), value[0]) } else { format!("{value:?}") };
            let expiry = sibling.expiry.map_or(0, Expiry::unix_ms);
            writeln!(text, "    {:?} {} {} expires {expiry}: {shown}", entry.key.as_str(), sibling.dot, sibling.stamp).unwrap();
        }
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::write(to.join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn golden_directories_hold_what_they_held() {
    let mut seen = 0;
    for format in fs::read_dir(golden()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        for kept in fs::read_dir(format.path()).unwrap().map(Result::unwrap) {
            let temp = tempfile::tempdir().unwrap();
            copy(&kept.path(), temp.path());
            {
                // Before anything is opened, offline as well.
                let store = RocksStore::open(&temp.path().join("store"), &StoreOptions::default()).unwrap();
                for record in store.databases().unwrap() {
                    assert!(store.verify(&record.id).unwrap().is_sound(), "{:?} {}", kept.path(), record.name);
                }
            }
            let node = open(temp.path(), false).await;
            let expected = fs::read_to_string(kept.path().join("expected.txt")).unwrap();
            assert_eq!(describe(&node).await, expected, "{:?}", kept.path());
            // And it can be written on.
            for info in node.databases().unwrap() {
                let db = node.database(&info.name).await.unwrap();
                db.put(&key("/written/later"), "v").await.unwrap();
                assert_eq!(db.get(&key("/written/later")).unwrap().unwrap().value.as_ref(), b"v");
                assert!(db.verify().await.unwrap().is_sound());
            }
            node.close().await.unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} directories in {:?}", golden());
}

/// A database with a row of every kind.
async fn fill(node: &Node) {
    let values = node.database(&"values".parse().unwrap()).await.unwrap();
    values.put(&key("/empty"), "").await.unwrap();
    values.put(&key("/short"), "short").await.unwrap();
    values.put(&key("/caf\u{e9}/\u{1f980}"), vec![0, 255, 254]).await.unwrap();
    values.put(&key("/large"), vec![7; 3_000]).await.unwrap();
    values.put(&key("/large"), vec![8; 5_000]).await.unwrap();
    values.batch((0..50).fold(Batch::new(), |batch, n| batch.put(key(&format!("/many/{n:02}")), format!("{n}")))).await.unwrap();
    let siblings = node.database(&"siblings".parse().unwrap()).await.unwrap();
    for value in ["one", "two", "three"] {
        siblings.batch(Op::put(key("/k"), value).seen(Vec::<Dot>::new())).await.unwrap();
    }
    siblings.batch(Op::put(key("/large"), vec![1; 600]).seen(Vec::<Dot>::new())).await.unwrap();
    siblings.batch(Op::put(key("/large"), vec![2; 700]).seen(Vec::<Dot>::new())).await.unwrap();
    let deleted = node.database(&"deleted".parse().unwrap()).await.unwrap();
    for n in 0..10 {
        deleted.put(&key(&format!("/{n}")), "v").await.unwrap();
        if n % 2 == 0 {
            deleted.delete(&key(&format!("/{n}"))).await.unwrap();
        }
    }
    let expiring = node.database(&"expiring".parse().unwrap()).await.unwrap();
    let late = Expiry::at_unix_ms(FAR).unwrap();
    expiring.batch(Op::put_until(key("/late"), "v", late)).await.unwrap();
    expiring.put(&key("/never"), "v").await.unwrap();
    let cut = node.database(&"cut".parse().unwrap()).await.unwrap();
    for n in 0..20 {
        cut.put(&key(&format!("/{}", n % 4)), format!("{n}")).await.unwrap();
    }
    let alone = CompactOptions { alone: true, min_age: Some(Duration::ZERO), max_bytes: Some(0) };
    cut.compact(&alone, |_| {}).await.unwrap();
    cut.put(&key("/after"), "the cut").await.unwrap();
    let again = "again".parse().unwrap();
    node.database(&again).await.unwrap().put(&key("/old"), "gone").await.unwrap();
    node.drop_database(&again).await.unwrap();
    node.database(&again).await.unwrap().put(&key("/new"), "here").await.unwrap();
}

/// What is kept of a directory: neither identity, logs nor settings, which are made anew.
fn keep(home: &Path, to: &Path, expected: &str) {
    let _ = fs::remove_dir_all(to);
    copy(&home.join("store"), &to.join("store"));
    for entry in fs::read_dir(to.join("store")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("LOG") || name.starts_with("OPTIONS") || name == "LOCK" || name == "kvdb.lock" {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    fs::write(to.join("expected.txt"), expected).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn golden_directories_are_made() {
    let Some(to) = std::env::var_os("KVDB_WRITE_GOLDEN").map(PathBuf::from) else { return };
    // Cargo runs tests in the directory of their crate.
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(to);
    let homes = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let node = open(homes[0].path(), false).await;
    fill(&node).await;
    node.close().await.unwrap();
    // Another replica, by a snapshot, with a write of its own and one above it.
    let (node, other) = (open(homes[0].path(), true).await, open(homes[1].path(), true).await);
    let (cut, joined) =
        (node.database(&"cut".parse().unwrap()).await.unwrap(), other.database(&"cut".parse().unwrap()).await.unwrap());
    joined.put(&key("/mine"), vec![9; 1_000]).await.unwrap();
    node.dial(other.listen_addresses()[0].clone()).await.unwrap();
    let end = Instant::now() + PATIENCE;
    while joined.stats().unwrap().digest != cut.stats().unwrap().digest {
        assert!(Instant::now() < end, "never equal");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    joined.put(&key("/later"), "v").await.unwrap();
    other.close().await.unwrap();
    node.close().await.unwrap();
    for (home, name) in homes.iter().zip(["plain", "joined"]) {
        let node = open(home.path(), false).await;
        let expected = describe(&node).await;
        node.close().await.unwrap();
        keep(home.path(), &to.join(name), &expected);
    }
}
