mod deaf;

use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::identity::ed25519;

use super::*;
use crate::net::gossip;
use crate::net::options::NetworkKey;
use crate::net::testing::{ToyBackend, ToyEngine, database};

fn keypair(seed: u8) -> Keypair {
    Keypair::from(ed25519::Keypair::from(ed25519::SecretKey::try_from_bytes([seed; 32]).unwrap()))
}

struct Node {
    backend: ToyBackend,
    net: NetHandle,
}

fn options() -> NetworkOptions {
    NetworkOptions { listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()], ..NetworkOptions::default() }
}

impl Node {
    async fn start(seed: u8, options: NetworkOptions) -> Self {
        Self::with(ToyEngine::new(seed), seed, options).await
    }

    async fn with(engine: ToyEngine, seed: u8, options: NetworkOptions) -> Self {
        let (backend, news) = ToyBackend::new(engine);
        let listens = !options.listen.is_empty();
        let net = spawn(&options, &keypair(seed), backend.clone(), news).unwrap();
        let node = Self { backend, net };
        eventually("listening", || !listens || !node.net.listen_addresses().is_empty()).await;
        node
    }

    fn address(&self) -> Multiaddr {
        self.net.listen_addresses()[0].clone()
    }

    fn state(&self, db: &DatabaseId) -> (crdt::VersionVector, crdt::Heads, crdt::Digest) {
        self.backend.with(|engine| {
            let replica = engine.replica(db);
            (replica.vv(), replica.heads().clone(), replica.meta().digest)
        })
    }

    fn count(&self, what: &str) -> u64 {
        self.net.counters().get(what).copied().unwrap_or(0)
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn equal(nodes: &[&Node], db: &DatabaseId) {
    eventually("all nodes equal", || nodes.iter().all(|node| node.state(db) == nodes[0].state(db))).await;
}

fn dialling(options: NetworkOptions, to: &[&Node]) -> NetworkOptions {
    NetworkOptions { bootstrap: to.iter().map(|node| node.address()).collect(), ..options }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d13_two_nodes_over_sockets_are_equal_without_a_write_and_then_live() {
    let db = database("d");
    let a = Node::start(1, options()).await;
    let b = Node::start(2, dialling(options(), &[&a])).await;
    for (node, key) in [(&a, "/a"), (&b, "/b")] {
        node.backend.open(db);
        for i in 0..200 {
            node.backend.put(db, &format!("{key}{i}"), &[7; 3_000]);
        }
    }
    equal(&[&a, &b], &db).await;
    assert_eq!(a.state(&db).0.iter().map(|(_, seq)| seq).sum::<u64>(), 400);
    let dot = a.backend.put(db, "/live", b"v");
    eventually("the live block", || b.state(&db).0.covers(&dot)).await;
    let durable = a.net.durable(db).await;
    eventually("a synced peer in the status", || a.net.peers().iter().any(|peer| peer.databases[0].synced)).await;
    assert_eq!(durable[0].0, b.net.peer_id());
    let peer = &a.net.peers()[0];
    assert!(peer.syncing && peer.databases[0].feeding && peer.misbehaviour == 0 && !peer.outgoing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_in_a_line_over_quic_and_tcp_converge() {
    let db = database("d");
    let quic = NetworkOptions { listen: vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()], ..NetworkOptions::default() };
    let a = Node::start(1, quic).await;
    let b = Node::start(2, dialling(options(), &[&a])).await;
    let c = Node::start(3, dialling(options(), &[&b])).await;
    for node in [&a, &b, &c] {
        node.backend.open(db);
    }
    for i in 0..50 {
        a.backend.put(db, &format!("/a{i}"), b"v");
        c.backend.put(db, &format!("/c{i}"), b"v");
    }
    equal(&[&a, &b, &c], &db).await;
    assert_eq!(a.state(&db).0.iter().map(|(_, seq)| seq).sum::<u64>(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g02_r22_writes_without_any_peer_are_no_error_and_arrive_later() {
    let db = database("d");
    let a = Node::start(1, NetworkOptions { rebroadcast_interval: Duration::from_millis(100), ..options() }).await;
    a.backend.open(db);
    for i in 0..100 {
        a.backend.put(db, &format!("/k{i}"), b"v");
    }
    eventually("publishing to nobody counted", || a.count("gossip_publish_no_peers") > 0).await;
    let b = Node::start(2, dialling(options(), &[&a])).await;
    b.backend.open(db);
    equal(&[&a, &b], &db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d01_a_restarted_peer_is_dialled_again_and_caught_up() {
    let db = database("d");
    let a = Node::start(1, options()).await;
    let address = a.address();
    let b = Node::start(2, dialling(options(), &[&a])).await;
    a.backend.open(db);
    b.backend.open(db);
    a.backend.put(db, "/1", b"v");
    equal(&[&a, &b], &db).await;
    a.net.close().await;
    assert!(a.net.dial(b.address()).await.is_err());
    eventually("the loss is seen", || b.net.peers().is_empty()).await;
    eventually("a redial that fails", || b.count("dials_failed") > 0).await;
    b.backend.put(db, "/2", b"v");
    let mut engine = ToyEngine::new(11);
    engine.store = a.backend.with(|engine| engine.store.clone());
    let a = Node::with(engine, 1, NetworkOptions { listen: vec![address], ..options() }).await;
    a.backend.open(db);
    a.backend.put(db, "/3", b"v");
    equal(&[&a, &b], &db).await;
    assert_eq!(b.state(&db).0.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c04_nodes_that_dial_each_other_at_once_stay_connected() {
    let db = database("d");
    for round in 0..40 {
        let a = Node::start(1, options()).await;
        let b = Node::start(2, options()).await;
        a.backend.open(db);
        b.backend.open(db);
        a.backend.put(db, "/a", &[round]);
        b.backend.put(db, "/b", &[round]);
        let (there, back) = tokio::join!(a.net.dial(b.address()), b.net.dial(a.address()));
        assert!(there.is_ok() && back.is_ok(), "{there:?} {back:?}");
        equal(&[&a, &b], &db).await;
        a.net.close().await;
        b.net.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_a_wrong_network_key_and_a_missing_name_say_which_setting() {
    let key = |digit: &str| Some(NetworkKey::from_hex(&digit.repeat(64)).unwrap());
    let a = Node::start(1, NetworkOptions { network_key: key("1"), ..options() }).await;
    let same = Node::start(2, NetworkOptions { network_key: key("1"), ..options() }).await;
    let other = Node::start(3, NetworkOptions { network_key: key("2"), ..options() }).await;
    let none = Node::start(4, options()).await;
    same.net.dial(a.address()).await.unwrap();
    for node in [&other, &none] {
        let error = node.net.dial(a.address()).await.unwrap_err().to_string();
        assert!(error.contains("network_key"), "{error}");
    }
    let allow = Some([same.net.peer_id()].into_iter().collect());
    let guarded = Node::start(5, NetworkOptions { allow, ..options() }).await;
    // The dialler's own list answers at once; at the other end the connection is cut after the handshake.
    let error = guarded.net.dial(none.address()).await.unwrap_err().to_string();
    assert!(error.contains("`allow`"), "{error}");
    let wrong: Multiaddr = format!("{}/p2p/{}", none.address(), a.net.peer_id()).parse().unwrap();
    let error = Node::start(6, options()).await.net.dial(wrong).await.unwrap_err().to_string();
    assert!(error.contains("/p2p"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_stay_dialling_itself() {
    let a = Node::start(1, options()).await;
    assert!(a.net.dial(a.address()).await.is_err());
    assert!(a.net.peers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g08_more_databases_than_the_default_filter_takes_all_hear_gossip() {
    let interval = Duration::from_millis(300);
    let fast = || NetworkOptions { rebroadcast_interval: interval, ..options() };
    let a = &Node::start(1, fast()).await;
    let b = &Node::start(2, dialling(fast(), &[a])).await;
    let dbs: Vec<DatabaseId> = (0..150).map(|i| database(&format!("d{i}"))).collect();
    for db in &dbs {
        a.backend.open(*db);
        b.backend.open(*db);
    }
    eventually("announcements of all", || b.count("gossip_accepted") > 400).await;
    // By now each knows what the other is subscribed to: none of the topics is published to nobody.
    let calm = |accepted: u64, before: (u64, u64)| async move {
        eventually("more announcements of all", || b.count("gossip_accepted") > accepted + 300).await;
        (a.count("gossip_publish_no_peers"), b.count("gossip_reconnects")) == before
    };
    // A machine that stood still for a second has them connect anew: then once more.
    for round in 0.. {
        let before = (a.count("gossip_publish_no_peers"), b.count("gossip_reconnects"));
        if calm(b.count("gossip_accepted"), before).await {
            break;
        }
        assert!(round < 20, "it never settles");
    }
    a.backend.put(dbs[149], "/k", b"v");
    equal(&[a, b], &dbs[149]).await;
}

/// A peer with the real transports that says what it likes. Its id is smaller than the other's, so that it opens the stream.
async fn stranger(than: PeerId, to: Multiaddr) -> (PeerId, Network) {
    let identity = (10..=255).map(keypair).find(|pair| pair.public().to_peer_id() < than).unwrap();
    let mut network = Network::new(&identity, &options(), &[]).unwrap();
    network.dial(None, vec![to]).unwrap();
    loop {
        if let Event::Connected { .. } = network.next().await {
            return (identity.public().to_peer_id(), network);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_bytes_on_the_sync_stream_cost_their_sender_the_connection() {
    use futures::AsyncWriteExt as _;
    let db = database("d");
    // No frame, a length beyond all frames, and a header with nothing after it but the end.
    for (round, bytes) in [&[0, 0, 0, 3, 1, 2, 3][..], &[0xff; 8], &[0, 0, 0, 9, 1]].into_iter().enumerate() {
        let a = Node::start(1, options()).await;
        a.backend.open(db);
        let before = a.state(&db);
        let (_, mut network) = stranger(a.net.peer_id(), a.address()).await;
        let mut control = network.control();
        let peer = a.net.peer_id();
        let polling = tokio::spawn(async move {
            loop {
                if let Event::Disconnected { .. } = network.next().await {
                    return;
                }
            }
        });
        let mut stream = control.open_stream(peer, SYNC).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.close().await.unwrap();
        if round == 2 {
            // Cut off in a frame: the stream ends, which may be anybody's fault.
            eventually("stream ended", || a.count("sync_streams") >= 1 && a.net.peers().iter().all(|peer| !peer.syncing)).await;
            polling.abort();
            continue;
        }
        tokio::time::timeout(Duration::from_secs(30), polling).await.unwrap().unwrap();
        assert_eq!((a.count("sync_misbehaviour"), a.state(&db)), (1, before));
        // Connecting again before the penalty is over is of no use.
        let (_, mut again) = stranger(a.net.peer_id(), a.address()).await;
        while !matches!(again.next().await, Event::Disconnected { .. }) {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_gossip_costs_its_sender_the_connection() {
    let db = database("d");
    let a = Node::start(1, options()).await;
    a.backend.open(db);
    let before = a.state(&db);
    let (_, mut network) = stranger(a.net.peer_id(), a.address()).await;
    network.subscribe(&gossip::topic(&db)).unwrap();
    let mut every = tokio::time::interval(Duration::from_millis(200));
    let cut = async {
        for n in 0_u64.. {
            tokio::select! {
                event = network.next() => if let Event::Disconnected { .. } = event { return },
                // Published again until the other has subscribed; a new message each time.
                _ = every.tick() => drop(network.publish(&gossip::topic(&db), n.to_be_bytes().to_vec().into())),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), cut).await.unwrap();
    assert!(a.count("gossip_rejected") >= 1);
    assert_eq!(a.state(&db), before);
}
