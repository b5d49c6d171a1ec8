//! Replicas that are damaged on disk, by records changed behind the store's back: named, and replaced by a peer's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kvdb::store::{DatabaseRecord, Family, RocksStore};
use kvdb::{
    Database, Durability, Key, ListItem, ListOptions, NetworkOptions, Node, NodeOptions, Prefix, RepairLoss, Salvage,
    SavedSibling, StoreOptions, WatchChange, WatchOptions,
};

use crate::cluster;

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

async fn open(dir: &Path) -> Node {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let network = NetworkOptions { listen, ..NetworkOptions::default() };
    Node::open(NodeOptions::new(dir).durability(Durability::Buffered).network(network)).await.unwrap()
}

async fn connect(from: &Node, to: &Node) {
    from.dial(to.listen_addresses().first().unwrap().clone()).await.unwrap();
}

fn state(db: &Database) -> (u64, kvdb::Digest, usize, [u8; 32]) {
    let stats = db.stats().unwrap();
    (stats.keys, stats.digest, stats.heads, stats.vv_hash)
}

fn rows(db: &Database) -> Vec<(String, Vec<u8>)> {
    let row = |item: &ListItem| match item {
        ListItem::Entry(entry) => (entry.key.to_string(), entry.value.to_vec()),
        ListItem::CommonPrefix(prefix) => panic!("{prefix:?}"),
    };
    db.list(&ListOptions::new(Prefix::root())).unwrap().items.iter().map(row).collect()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "never {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether both nodes have this database open with each other.
async fn until_met(node: &Node, db: &Database) {
    let id = db.id();
    until("in session", || node.peers().iter().any(|peer| peer.databases.iter().any(|status| status.database == id))).await;
}

/// What a repair has saved, by key.
#[derive(Clone, Default)]
struct Saved(Arc<Mutex<BTreeMap<String, Vec<SavedSibling>>>>);

impl Salvage for Saved {
    fn save(&mut self, key: &Key, siblings: &[SavedSibling]) -> std::io::Result<()> {
        self.0.lock().unwrap().insert(key.to_string(), siblings.to_vec());
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A kind of damage: its name, a word of what `verify` says, and what is done to the records of one database.
type Damage = (&'static str, &'static str, fn(&RocksStore, &DatabaseRecord));

fn records(store: &RocksStore, family: Family, start: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = store.raw_records(family).unwrap();
    let found: Vec<_> = all.into_iter().filter(|(key, _)| key.starts_with(start)).collect();
    assert!(!found.is_empty(), "no record of {family:?} begins with {start:?}");
    found
}

/// Changes the last record whose key begins so.
fn change(store: &RocksStore, family: Family, start: &[u8], change: impl Fn(&mut Vec<u8>)) {
    let (key, mut record) = records(store, family, start).pop().unwrap();
    change(&mut record);
    store.put_raw(family, &key, Some(&record)).unwrap();
}

fn remove(store: &RocksStore, family: Family, start: &[u8]) {
    let (key, _) = records(store, family, start).pop().unwrap();
    store.put_raw(family, &key, None).unwrap();
}

fn of_rows(record: &DatabaseRecord, key: &str) -> Vec<u8> {
    [&record.row_number.to_be_bytes()[..], key.as_bytes()].concat()
}

fn tag(record: &DatabaseRecord, tag: u8) -> Vec<u8> {
    [&record.number.to_be_bytes()[..], &[tag]].concat()
}

#[expect(clippy::ptr_arg, reason = "it is one of several changes, of which some take bytes away")]
fn flip_last(record: &mut Vec<u8>) {
    *record.last_mut().unwrap() ^= 1;
}

const DAMAGES: &[Damage] = &[
    ("value", "does not have its check", |store, record| change(store, Family::Rows, &of_rows(record, "/k/1"), flip_last)),
    ("apart", "does not have its check", |store, record| change(store, Family::Values, &of_rows(record, ""), flip_last)),
    ("no-value", "is missing", |store, record| remove(store, Family::Values, &of_rows(record, ""))),
    // A hole, as one that was never filled.
    ("row", "keys, but", |store, record| remove(store, Family::Rows, &of_rows(record, "/k/2"))),
    ("extra", "does not have its check", |store, record| {
        let (_, row) = records(store, Family::Rows, &of_rows(record, "/k/3")).pop().unwrap();
        store.put_raw(Family::Rows, &of_rows(record, "/back/again"), Some(&row)).unwrap();
    }),
    ("record", "the rows cannot be read further", |store, record| {
        change(store, Family::Rows, &of_rows(record, "/k/4"), |record| record[0] = 9);
    }),
    ("block", "the block", |store, record| change(store, Family::Blocks, &record.number.to_be_bytes(), flip_last)),
    ("no-block", "it is missing", |store, record| remove(store, Family::Blocks, &record.number.to_be_bytes())),
    ("log", "not in the log", |store, record| remove(store, Family::Log, &record.number.to_be_bytes())),
    ("head", "the head", |store, record| change(store, Family::State, &tag(record, 2), |record| record[30] ^= 1)),
    ("no-head", "the head", |store, record| change(store, Family::State, &tag(record, 2), |record| record.truncate(1))),
    ("digest", "the digest", |store, record| change(store, Family::State, &tag(record, 1), |record| record[12] ^= 1)),
    ("keys", "are counted", |store, record| change(store, Family::State, &tag(record, 1), |record| record[40] ^= 1)),
    ("vv", "it counts as merged, but", |store, record| change(store, Family::State, &tag(record, 4), |record| record[8] += 1)),
    ("author", "is not who it says", |store, record| change(store, Family::State, &tag(record, 4), |record| record[9] ^= 1)),
];

async fn fill(node: &Node, peer: &Node, name: &str) -> (Database, Database) {
    let (db, other) =
        (node.database(&name.parse().unwrap()).await.unwrap(), peer.database(&name.parse().unwrap()).await.unwrap());
    for n in 0..6 {
        db.put(&key(&format!("/k/{n}")), format!("value {n}")).await.unwrap();
    }
    db.put(&key("/large"), vec![7; 2_000]).await.unwrap();
    db.delete(&key("/k/5")).await.unwrap();
    until("equal", || state(&db) == state(&other)).await;
    (db, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn d08_damage_of_every_kind_is_named_and_repaired_from_a_peer() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (a, b) = (open(dirs[0].path()).await, open(dirs[1].path()).await);
    connect(&a, &b).await;
    let mut others = BTreeMap::new();
    for name in DAMAGES.iter().map(|(name, ..)| *name).chain(["sound"]) {
        others.insert(name, fill(&a, &b, name).await.1);
    }
    a.close().await.unwrap();
    {
        let store = RocksStore::open(&dirs[0].path().join("store"), &StoreOptions::default()).unwrap();
        for record in store.databases().unwrap() {
            assert!(store.verify(&record.id).unwrap().is_sound(), "{}", record.name);
            let Some((name, says, damage)) = DAMAGES.iter().find(|(name, ..)| *name == record.name.as_str()) else { continue };
            damage(&store, &record);
            let found = store.verify(&record.id).unwrap();
            let said: Vec<String> = found.damages.iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|said| said.contains(says)), "{name}: {said:?}");
        }
    }
    let a = open(dirs[0].path()).await;
    connect(&a, &b).await;
    let sound = a.database(&"sound".parse().unwrap()).await.unwrap();
    let before = sound.stats().unwrap();
    for (name, says, _) in DAMAGES {
        let (db, other) = (a.database(&name.parse().unwrap()).await.unwrap(), &others[name]);
        until_met(&a, &db).await;
        let mut watch = db.watch(WatchOptions::new(Prefix::root())).unwrap();
        let found = db.verify().await.unwrap();
        assert!(found.damages.iter().any(|damage| damage.to_string().contains(says)), "{name}: {found:?}");
        let saved = Saved::default();
        let loss = if *name == "vv" { RepairLoss::Accept } else { RepairLoss::Refuse };
        let done = db.repair(b.peer_id(), loss, Box::new(saved.clone())).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!done.verified.is_sound());
        assert!(db.verify().await.unwrap().is_sound(), "{name}");
        assert_eq!((rows(&db), state(&db)), (rows(other), state(other)), "{name}");
        let saved = saved.0.lock().unwrap().clone();
        match *name {
            "value" => assert!(saved["/k/1"][0].value.as_ref().unwrap().starts_with(b"value")),
            "apart" => assert_eq!(saved["/large"][0].value.as_ref().unwrap().len(), 2_000),
            "no-value" => assert_eq!((saved["/large"][0].value.is_none(), done.unreadable.values), (true, 1)),
            "extra" => assert_eq!(saved.keys().collect::<Vec<_>>(), ["/back/again"]),
            "record" => assert_eq!((saved.len(), done.unreadable.rows), (5, 1), "all that can be read"),
            _ => {}
        }
        // Whoever watched must list again.
        while tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap().change != WatchChange::Reset {}
        // A writer as any other from now on, under a name of its own.
        let dot = db.put(&key("/after"), *name).await.unwrap();
        other.wait_for(dot, PATIENCE).await.unwrap();
        assert_eq!((rows(&db), state(&db)), (rows(other), state(other)), "{name}");
        assert!(db.compare(b.peer_id()).await.unwrap().is_equal(), "{name}");
    }
    assert_eq!(sound.stats().unwrap().revision, before.revision);
    a.close().await.unwrap();
    b.close().await.unwrap();
    let store = RocksStore::open(&dirs[0].path().join("store"), &StoreOptions::default()).unwrap();
    for record in store.databases().unwrap() {
        assert!(store.verify(&record.id).unwrap().is_sound(), "{}", record.name);
        assert_eq!(record.store_id != store.id(), record.name.as_str() != "sound", "a replaced replica has an id of its own");
    }
}

#[test]
fn d08_the_command_line_names_damage_and_repairs_it_from_a_peer() {
    let (mut a, mut b) = (cluster::Node::new(), cluster::Node::new());
    a.start(&[]);
    b.start(&[a.peer]);
    assert!(a.import("/k", 0, 50));
    let end = Instant::now() + PATIENCE;
    while b.state() != a.state() || a.state().is_none_or(|(keys, _)| keys != 50) {
        assert!(Instant::now() < end, "never equal");
        std::thread::sleep(Duration::from_millis(20));
    }
    let status: serde_json::Value = serde_json::from_str(&b.get("/v1/status").unwrap().1).unwrap();
    let peer = status["peer_id"].as_str().unwrap();
    a.signal("TERM");
    a.child.take().unwrap().wait().unwrap();
    let data = a.dir.path().join("data");
    {
        let store = RocksStore::open(&data.join("store"), &StoreOptions::default()).unwrap();
        let record = store.databases().unwrap().remove(0);
        remove(&store, Family::Rows, &of_rows(&record, "/k/000007"));
        change(&store, Family::Rows, &of_rows(&record, "/k/000011"), flip_last);
    }
    let run = |args: &[&str]| {
        let output = std::process::Command::new(cluster::program()).args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, _) = run(&["verify", "--data-dir", data.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(out.contains("DAMAGED") && out.contains("at /k/000011 does not have its check"), "{out}");
    a.start(&[b.peer]);
    let server = format!("http://127.0.0.1:{}", a.http);
    let once = |args: &[&str]| run(&[args, &["--server", &server, "--db", "demo"]].concat());
    // The peer may not be there just yet, which is told as such.
    let on = |args: &[&str]| {
        let end = Instant::now() + PATIENCE;
        loop {
            let done = once(args);
            if done.0 != Some(3) {
                return done;
            }
            assert!(Instant::now() < end, "{}", done.2);
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let (code, out, err) = on(&["verify", "--from", peer]);
    assert_eq!(code, Some(1), "{err}");
    assert!(out.contains("/k/000007 differs, at there") && out.contains("NOT EQUAL"), "{out}");
    let stranger = kvdb::Keypair::generate_ed25519().public().to_peer_id().to_string();
    assert_eq!(once(&["verify", "--repair", "--from", &stranger]).0, Some(3), "somebody who is not there");
    let (code, out, err) = on(&["verify", "--repair", "--from", peer]);
    assert_eq!(code, Some(0), "{err}");
    let file = out.trim_end().rsplit(' ').next().unwrap();
    let saved = std::fs::read_to_string(file).unwrap();
    assert!(saved.lines().count() == 1 && saved.contains("\"key\":\"/k/000011\""), "{saved}");
    let (code, out, err) = on(&["verify", "--from", peer]);
    assert_eq!(code, Some(0), "{out} {err}");
    assert!(out.contains("sound") && out.contains(": equal"), "{out}");
    let found: serde_json::Value = serde_json::from_str(&a.get("/v1/databases/demo/disagreements").unwrap().1).unwrap();
    assert_eq!(found["disagreements"][0]["equal"], true);
    assert_eq!(a.state(), b.state());
}
