//! Several nodes in one process, over real sockets on loopback.

use std::collections::BTreeSet;
use std::time::Duration;

use crdt::limits::MAX_VALUE_BYTES;
use kvdb::{
    Batch, Database, Dot, Durability, Key, NetworkKey, NetworkOptions, Node, NodeOptions, Op, OpOutcome, PeerId, RequestId,
};
use tempfile::TempDir;

/// How long anything may take on a slow machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

struct Peer {
    dir: TempDir,
    node: Node,
    db: Database,
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

/// No rebroadcast comes to the rescue: what is not delivered by feed, gossip or the meeting itself stays away.
fn network() -> NetworkOptions {
    NetworkOptions {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        rebroadcast_interval: Duration::from_secs(3_600),
        ..NetworkOptions::default()
    }
}

async fn start(network: NetworkOptions) -> Peer {
    let dir = tempfile::tempdir().unwrap();
    let options = NodeOptions::new(dir.path()).durability(Durability::Buffered).network(network);
    let node = Node::open(options).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    Peer { dir, node, db }
}

impl Peer {
    async fn connect(&self, other: &Self) {
        let address = other.node.listen_addresses().first().unwrap().clone();
        self.node.dial(address).await.unwrap();
    }

    async fn put(&self, text: &str) -> Dot {
        self.db.put(&key(text), "v").await.unwrap()
    }

    async fn covers(&self, dot: Dot) {
        self.db.wait_for(dot, PATIENCE).await.unwrap();
    }

    async fn close(self) -> TempDir {
        self.node.close().await.unwrap();
        self.dir
    }
}

fn assert_equal(peers: &[Peer]) {
    let first = peers[0].db.stats().unwrap();
    for peer in peers {
        let stats = peer.db.stats().unwrap();
        assert_eq!(
            (stats.keys, stats.digest, stats.heads, stats.vv_hash),
            (first.keys, first.digest, first.heads, first.vv_hash)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g02_puts_without_a_peer_and_right_after_meeting_one_arrive() {
    let a = start(network()).await;
    let mut last = a.put("/first").await;
    for n in 0..1_000 {
        last = a.put(&format!("/alone/{n}")).await;
    }
    let b = start(network()).await;
    b.connect(&a).await;
    let at_once = (a.put("/met/a").await, b.put("/met/b").await);
    b.covers(last).await;
    b.covers(at_once.0).await;
    a.covers(at_once.1).await;
    assert_equal(&[a, b]);
}

#[tokio::test(flavor = "multi_thread")]
async fn g08_every_pair_hears_each_other_in_clusters_of_every_small_size() {
    for size in [2, 3, 4, 7] {
        let mut peers: Vec<Peer> = Vec::new();
        for _ in 0..size {
            let peer = start(network()).await;
            for other in &peers {
                peer.connect(other).await;
            }
            peers.push(peer);
        }
        meet(&peers).await;
        for peer in peers {
            peer.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g08_the_spokes_of_a_star_hear_each_other() {
    let hub = start(network()).await;
    let mut peers = vec![hub];
    for _ in 0..14 {
        let spoke = start(network()).await;
        spoke.connect(&peers[0]).await;
        peers.push(spoke);
    }
    meet(&peers).await;
}

/// Each writes a key straight away, and each gets the keys of all.
async fn meet(peers: &[Peer]) {
    let mut dots = Vec::new();
    for (n, peer) in peers.iter().enumerate() {
        dots.push(peer.put(&format!("/of/{n}")).await);
    }
    for peer in peers {
        for dot in &dots {
            peer.covers(*dot).await;
        }
    }
    assert_equal(peers);
}

#[tokio::test(flavor = "multi_thread")]
async fn r22_a_write_that_nobody_hears_is_a_success_and_arrives_later() {
    let (a, b) = (start(network()).await, start(network()).await);
    b.connect(&a).await;
    let met = a.put("/met").await;
    b.covers(met).await;
    let gone = b.node.peer_id();
    let dir = b.close().await;
    let mut dots = Vec::new();
    for n in 0..100 {
        dots.push(a.put(&format!("/unheard/{n}")).await);
    }
    let options = NodeOptions::new(dir.path()).network(network());
    let node = Node::open(options).await.unwrap();
    assert_eq!(node.peer_id(), gone);
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    node.dial(a.node.listen_addresses().first().unwrap().clone()).await.unwrap();
    for dot in dots {
        db.wait_for(dot, PATIENCE).await.unwrap();
    }
    assert_eq!(db.stats().unwrap().digest, a.db.stats().unwrap().digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_opened_after_the_meeting_is_replicated_too() {
    let (a, b) = (start(network()).await, start(network()).await);
    b.connect(&a).await;
    let later = a.node.database(&"later".parse().unwrap()).await.unwrap();
    let dot = later.put(&key("/k"), "v").await.unwrap();
    let other = b.node.database(&"later".parse().unwrap()).await.unwrap();
    other.wait_for(dot, PATIENCE).await.unwrap();
    other.close().await.unwrap();
    let unseen = later.put(&key("/k2"), "v").await.unwrap();
    let again = b.node.database(&"later".parse().unwrap()).await.unwrap();
    again.wait_for(unseen, PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_peers_are_dialled_again_after_both_sides_were_away() {
    let a = start(network()).await;
    let address = a.node.listen_addresses().first().unwrap().clone();
    let b = start(NetworkOptions { bootstrap: vec![address.clone()], ..network() }).await;
    b.covers(a.put("/one").await).await;
    let dir = a.close().await;
    let unheard = b.put("/two").await;
    let network = NetworkOptions { listen: vec![address], ..network() };
    let node = Node::open(NodeOptions::new(dir.path()).network(network)).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    db.wait_for(unheard, PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_a_peer_that_is_not_allowed_any_more_is_gone_and_what_it_wrote_stays() {
    let a = start(network()).await;
    let address = a.node.listen_addresses().first().unwrap().clone();
    let b = start(NetworkOptions { bootstrap: vec![address.clone()], ..network() }).await;
    let kept = b.put("/before").await;
    a.covers(kept).await;
    let removed = b.node.peer_id();
    let dir = a.close().await;
    let friend = start(network()).await;
    let allow = Some([friend.node.peer_id()].into());
    let options = NetworkOptions { listen: vec![address.clone()], allow, ..network() };
    let node = Node::open(NodeOptions::new(dir.path()).network(options)).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    // It dials again and again, and is not let in; others are.
    let end = tokio::time::Instant::now() + PATIENCE;
    while !node.network_counters().contains_key("incoming_failed") {
        assert!(tokio::time::Instant::now() < end, "nobody was refused");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    b.put("/after").await;
    friend.node.dial(node.listen_addresses().first().unwrap().clone()).await.unwrap();
    friend.covers(db.put(&key("/friend"), "v").await.unwrap()).await;
    assert!(node.peers().iter().all(|peer| peer.peer != removed));
    assert_eq!(db.get(&key("/before")).unwrap().map(|entry| entry.dot), Some(kept));
    assert!(db.get(&key("/after")).unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_key_and_an_allow_list_let_in_whom_they_name_only() {
    let secret = || Some(NetworkKey::from_hex(&"ab".repeat(32)).unwrap());
    let a = start(NetworkOptions { network_key: secret(), ..network() }).await;
    let same = start(NetworkOptions { network_key: secret(), ..network() }).await;
    let other = Some(NetworkKey::from_hex(&"cd".repeat(32)).unwrap());
    let wrong = start(NetworkOptions { network_key: other, ..network() }).await;
    let none = start(network()).await;
    let address = a.node.listen_addresses().first().unwrap().clone();
    same.connect(&a).await;
    assert!(wrong.node.dial(address.clone()).await.is_err());
    assert!(none.node.dial(address).await.is_err());
    same.covers(a.put("/secret").await).await;

    let friend = start(network()).await;
    let allow: BTreeSet<PeerId> = [friend.node.peer_id()].into();
    let guarded = start(NetworkOptions { allow: Some(allow), ..network() }).await;
    let stranger = start(network()).await;
    let address = guarded.node.listen_addresses().first().unwrap().clone();
    friend.connect(&guarded).await;
    let dot = guarded.put("/guarded").await;
    friend.covers(dot).await;
    drop(stranger.node.dial(address).await);
    let refused = stranger.db.wait_for(dot, Duration::from_millis(500)).await;
    assert!(refused.is_err(), "a stranger got what it must not see");
    assert!(guarded.node.peers().iter().all(|peer| peer.peer == friend.node.peer_id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_at_another_node_gets_the_first_outcome_and_a_read_there_sees_the_write() {
    let (a, b) = (start(network()).await, start(network()).await);
    b.connect(&a).await;
    let write = || Batch::from(Op::put(key("/k"), "1").if_absent()).request(RequestId([7; 16]));
    let dot = a.db.batch(write()).await.unwrap().dot.unwrap();
    assert_eq!(b.db.get_at(&key("/k"), dot, PATIENCE).await.unwrap().unwrap().dot, dot);
    let retried = b.db.batch(write()).await.unwrap();
    assert_eq!((retried.dot, retried.ops), (Some(dot), vec![OpOutcome::Repeated]));
    assert_eq!(b.db.author(&dot.replica).unwrap(), Some(a.node.peer_id()));
    assert_equal(&[a, b]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a09_what_a_put_takes_every_inner_layer_carries() {
    let (a, b) = (start(network()).await, start(network()).await);
    b.connect(&a).await;
    let sizes = [0, 1, 512, 513, 32_768, 65_535, 65_536, 262_144, MAX_VALUE_BYTES - 1, MAX_VALUE_BYTES];
    let value = |size: usize| vec![u8::try_from(size % 251).unwrap(); size];
    let mut last = a.put("/first").await;
    for size in sizes {
        last = a.db.put(&key(&format!("/size/{size}")), value(size)).await.unwrap();
    }
    // As much as one batch may hold, and many small ones at once.
    let whole = (0..3).fold(Batch::new(), |batch, n| batch.put(key(&format!("/whole/{n}")), value(MAX_VALUE_BYTES)));
    a.db.batch(whole.put(key("/whole/rest"), value(1_000_000))).await.unwrap();
    for n in 0..5_000 {
        last = a.put(&format!("/small/{n}")).await.max(last);
    }
    b.covers(last).await;
    for size in sizes {
        let there = b.db.get(&key(&format!("/size/{size}"))).unwrap().unwrap();
        assert_eq!(there.value, value(size), "{size}");
    }
    assert_equal(&[a, b]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_deleted_on_all_nodes_whoever_does_it() {
    let mut peers = Vec::new();
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let options = NodeOptions::new(dir.path()).expiry_grace(Duration::from_millis(100)).network(network());
        let node = Node::open(options).await.unwrap();
        let db = node.database(&"demo".parse().unwrap()).await.unwrap();
        peers.push(Peer { dir, node, db });
    }
    peers[1].connect(&peers[0]).await;
    peers[2].connect(&peers[0]).await;
    let kept = peers[0].put("/kept").await;
    for (n, peer) in peers.iter().enumerate() {
        peer.covers(kept).await;
        peer.db.batch(Op::put_for(key(&format!("/{n}")), "x", Duration::from_millis(1))).await.unwrap();
    }
    for peer in &peers {
        for _ in 0..3_000 {
            let stats = peer.db.stats().unwrap();
            // One block for what is kept, three puts and at least one delete.
            if stats.keys == 1 && stats.revision >= 5 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(peer.db.stats().unwrap().keys, 1);
    }
}
