//! Waiting for other nodes' disks, and finding them again.

use std::time::Duration;

use kvdb::{Database, Durability, HoldersError, Key, Multiaddr, NetworkOptions, Node, NodeOptions, PeerId};
use tempfile::TempDir;

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);
/// For what is known not to come.
const SHORT: Duration = Duration::from_millis(300);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

async fn open(dir: &TempDir, network: Option<NetworkOptions>) -> (Node, Database) {
    let mut options = NodeOptions::new(dir.path()).durability(Durability::Buffered);
    options.network = network;
    let node = Node::open(options).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    (node, db)
}

fn network(bootstrap: &[Multiaddr]) -> NetworkOptions {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    NetworkOptions { listen, bootstrap: bootstrap.to_vec(), ..NetworkOptions::default() }
}

fn sorted(mut peers: Vec<PeerId>) -> Vec<PeerId> {
    peers.sort();
    peers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_holders_names_who_has_it_on_disk_and_no_others() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (a, in_a) = open(&dirs[0], Some(network(&[]))).await;
    let dot = in_a.put(&key("/a"), "1").await.unwrap();
    // Alone: its own disk only.
    assert_eq!(in_a.wait_for_holders(dot, 1, PATIENCE).await.unwrap(), [a.peer_id()]);
    let alone = in_a.wait_for_holders(dot, 2, SHORT).await.unwrap_err();
    assert!(matches!(&alone, HoldersError::TooFew { wanted: 2, holders, .. } if *holders == [a.peer_id()]), "{alone}");
    assert!(alone.to_string().contains("1 of 2"), "{alone}");
    // Begun before there is anybody: the acknowledgement wakes it.
    let waiting = tokio::spawn({
        let db = in_a.clone();
        async move { db.wait_for_holders(dot, 2, PATIENCE).await }
    });
    let addresses = a.listen_addresses();
    let (b, in_b) = open(&dirs[1], Some(network(&addresses))).await;
    assert_eq!(sorted(waiting.await.unwrap().unwrap()), sorted(vec![a.peer_id(), b.peer_id()]));
    // A node that is connected, but has not got the database open, is none.
    let c = Node::open(NodeOptions::new(dirs[2].path()).network(network(&addresses))).await.unwrap();
    while a.peers().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(in_a.wait_for_holders(dot, 3, SHORT).await, Err(HoldersError::TooFew { .. })));
    // What another node wrote, asked for here.
    let theirs = in_b.put_with(&key("/b"), "1", Durability::Sync).await.unwrap();
    assert_eq!(in_a.wait_for_holders(theirs, 2, PATIENCE).await.unwrap().len(), 2);
    // A buffered write counts at its author's only once that has synced, however many others have it.
    let buffered = in_b.put(&key("/buffered"), "1").await.unwrap();
    assert_eq!(in_a.wait_for_holders(buffered, 1, PATIENCE).await.unwrap(), [a.peer_id()]);
    in_b.sync().await.unwrap();
    assert_eq!(in_a.wait_for_holders(buffered, 2, PATIENCE).await.unwrap().len(), 2);
    in_a.put(&key("/c"), "1").await.unwrap();
    in_a.wait_for_peer(b.peer_id(), PATIENCE).await.unwrap();
    assert!(in_b.get(&key("/c")).unwrap().is_some());
    let behind = in_a.wait_for_peer(c.peer_id(), SHORT).await.unwrap_err();
    assert!(matches!(behind, HoldersError::PeerBehind { peer, .. } if peer == c.peer_id()));
    c.close().await.unwrap();
    b.close().await.unwrap();
    // Gone: no longer counted, and a wait under way ends with the node.
    let waiting = tokio::spawn({
        let db = in_a.clone();
        async move { db.wait_for_holders(dot, 3, PATIENCE).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    a.close().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(HoldersError::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_network_only_the_own_disk_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir, None).await;
    let dot = db.put(&key("/a"), "1").await.unwrap();
    assert_eq!(db.wait_for_holders(dot, 1, PATIENCE).await.unwrap(), [node.peer_id()]);
    assert!(matches!(db.wait_for_holders(dot, 2, PATIENCE).await, Err(HoldersError::NoNetwork)));
    assert!(matches!(db.wait_for_peer(node.peer_id(), PATIENCE).await, Err(HoldersError::NoNetwork)));
    let unknown = kvdb::Dot { seq: dot.seq + 1, ..dot };
    assert!(matches!(db.wait_for_holders(unknown, 1, SHORT).await, Err(HoldersError::TooFew { .. })));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_are_listed_page_by_page_with_their_figures() {
    let dir = tempfile::tempdir().unwrap();
    let (node, demo) = open(&dir, None).await;
    let names: Vec<String> = (0..25).map(|n| format!("db-{n:02}")).collect();
    for name in &names {
        let db = node.database(&name.parse().unwrap()).await.unwrap();
        db.put(&key("/a"), name.clone()).await.unwrap();
        if name.ends_with('3') {
            db.close().await.unwrap();
        }
    }
    let mut found = Vec::new();
    loop {
        let after = found.last().map(|info: &kvdb::DatabaseInfo| info.name.clone());
        let page = node.databases_after(after.as_ref(), 4).unwrap();
        assert!(page.len() <= 4);
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, node.databases().unwrap());
    let expected: Vec<&str> = names.iter().map(String::as_str).chain(["demo"]).collect();
    assert_eq!(found.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), expected);
    for info in &found {
        assert_eq!(info.open, !info.name.as_str().ends_with('3'), "{}", info.name);
        assert_eq!(info.keys, u64::from(info.name.as_str() != "demo"));
    }
    assert_eq!(found.last().unwrap().digest, demo.stats().unwrap().digest);
    assert!(node.has_database(&"db-03".parse().unwrap()).unwrap() && !node.has_database(&"db-0".parse().unwrap()).unwrap());
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c05_peers_of_an_earlier_run_are_found_when_the_bootstrap_peer_is_gone() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let (a, _) = open(&dirs[0], Some(network(&[]))).await;
    let bootstrap = a.listen_addresses();
    let (b, _) = open(&dirs[1], Some(network(&bootstrap))).await;
    // C reached B by itself: only B's memory can bring them together again.
    let (c, in_c) = open(&dirs[2], Some(network(&[]))).await;
    b.dial(c.listen_addresses().first().unwrap().clone()).await.unwrap();
    let file = dirs[1].path().join("peers");
    let remembered = async {
        while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&c.peer_id().to_string())) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, remembered).await.unwrap();
    b.close().await.unwrap();
    a.close().await.unwrap();
    let dot = in_c.put(&key("/late"), "1").await.unwrap();
    let (b, in_b) = open(&dirs[1], Some(network(&bootstrap))).await;
    in_b.wait_for(dot, PATIENCE).await.unwrap();
    b.close().await.unwrap();
    // A damaged file is no obstacle, and is written anew.
    std::fs::write(&file, b"\xff\xfe rubbish").unwrap();
    let (b, _) = open(&dirs[1], Some(network(&bootstrap))).await;
    b.dial(c.listen_addresses().first().unwrap().clone()).await.unwrap();
    let remembered = async {
        while !std::fs::read_to_string(&file).is_ok_and(|text| text.starts_with("kvdb-peers 1\n")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, remembered).await.unwrap();
    b.close().await.unwrap();
    c.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c05_a_node_opens_and_closes_twenty_times_in_one_process() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (other, in_other) = open(&other_dir, Some(network(&[]))).await;
    let (node, _) = open(&dir, Some(network(&other.listen_addresses()))).await;
    // From here on always the same port, which must be free again each time.
    let listen = node.listen_addresses();
    node.close().await.unwrap();
    for n in 0..20 {
        let options = NetworkOptions { listen: listen.clone(), ..network(&other.listen_addresses()) };
        let (node, db) = open(&dir, Some(options)).await;
        let dot = db.put(&key("/n"), n.to_string()).await.unwrap();
        in_other.wait_for(dot, PATIENCE).await.unwrap();
        node.close().await.unwrap();
    }
    other.close().await.unwrap();
}
