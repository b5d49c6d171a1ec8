//! Many identities, readers that do not read, broken multiplexing, and several attacks at once.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{AsyncWriteExt as _, FutureExt as _};
use kvdb::net::wire::Frame;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::core::{Endpoint, transport::PortUse, upgrade};
use libp2p::{Transport as _, core::transport::DialOpts, noise, tcp};

use super::arena::Arena;
use super::gossip::{GossipPeer, message};
use super::peer::{Adversary, Pen, SyncPeer, keypair};
use crate::cluster::wait_equal;
use crate::crash::{ask, at};

#[tokio::test(flavor = "multi_thread")]
async fn c04_five_hundred_identities_are_capped_and_a_configured_peer_gets_in() {
    let mut arena = Arena::new();
    let mut others = Vec::new();
    for _ in 0..9 {
        let batch = (0..60).map(|_| Adversary::connect(&arena.address, arena.peer, rand::random()));
        others.extend(futures::future::join_all(batch).await.into_iter().flatten());
    }
    // The victim may still be busy with the last of them.
    let refused = || arena.count("incoming_failed") > 0;
    for _ in 0..300 {
        if refused() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(refused(), "nobody was refused, {} are connected", others.len());
    let peers = arena.victim.get("/metrics").unwrap().1;
    let peers = peers.lines().find_map(|line| line.strip_prefix("kvdb_peers ")).unwrap().parse::<usize>().unwrap();
    assert!(peers <= 512, "{peers}");
    // The configured one goes and comes back, though the limit is reached.
    arena.honest.kill();
    assert_eq!(ask(arena.victim.http, "PUT", &at("/while/away"), b"1").unwrap().0, 200);
    arena.honest.spawn(&[arena.victim.peer]);
    wait_equal(&[&arena.victim, &arena.honest], |keys| keys == 3);
    drop(others);
}

#[tokio::test(flavor = "multi_thread")]
async fn g06_a_peer_that_does_not_read_costs_no_more_than_its_queue() {
    let arena = Arena::new();
    let value = vec![b'v'; 20_000];
    arena.endures("a stopped reader", 200, async {
        arena.honest.signal("STOP");
        // And one that lets nothing in, after it has asked for everything.
        let mut greedy = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        for n in 0..200 {
            greedy.say(&Frame::HaveList { database: arena.database, entries: Vec::new(), last: true }).await;
            let path = format!("{}?durability=buffered", at(&format!("/big/{n}")));
            for _ in 0..10 {
                assert_eq!(ask(arena.victim.http, "PUT", &path, &value).unwrap().0, 200);
            }
        }
        arena.honest.signal("CONT");
    });
    wait_equal(&[&arena.victim, &arena.honest], |keys| keys >= 202);
}

/// Speaks of yamux, and leaves the encrypted socket to whoever dialled.
#[derive(Clone)]
struct RawYamux;

struct Raw<C>(C);

impl UpgradeInfo for RawYamux {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;
    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once("/yamux/1.0.0")
    }
}

impl<C: Send + 'static> OutboundConnectionUpgrade<C> for RawYamux {
    type Output = Raw<C>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Raw<C>, Self::Error>>;
    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        std::future::ready(Ok(Raw(socket)))
    }
}

impl<C: Send + 'static> InboundConnectionUpgrade<C> for RawYamux {
    type Output = Raw<C>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Raw<C>, Self::Error>>;
    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        std::future::ready(Ok(Raw(socket)))
    }
}

/// libp2p asks for a multiplexer; this one has no streams.
impl<C> StreamMuxer for Raw<C> {
    type Substream = futures::io::Cursor<Vec<u8>>;
    type Error = std::io::Error;
    fn poll_inbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
        Poll::Pending
    }
    fn poll_outbound(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<Self::Substream, Self::Error>> {
        Poll::Pending
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Self::Error>> {
        Poll::Pending
    }
}

/// A yamux header: version, kind, flags, stream, length.
fn yamux(version: u8, kind: u8, flags: u16, stream: u32, length: u32) -> Vec<u8> {
    [&[version, kind], &flags.to_be_bytes()[..], &stream.to_be_bytes(), &length.to_be_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn x01_malformed_multiplexing_ends_its_connection_only() {
    let arena = Arena::new();
    let (syn, ack, fin, rst) = (1, 2, 4, 8);
    let open = || yamux(0, 0, syn, 1, 4);
    let cases: Vec<Vec<u8>> = vec![
        yamux(1, 0, syn, 1, 0),
        yamux(0, 9, 0, 0, 0),
        yamux(0, 0, syn, 1, u32::MAX),
        yamux(0, 1, syn, 1, u32::MAX),
        yamux(0, 1, 0, 1, u32::MAX),
        [open(), b"abcd".to_vec(), yamux(0, 1, 0, 1, u32::MAX), yamux(0, 1, 0, 1, u32::MAX)].concat(),
        [open(), b"abcd".to_vec(), open(), b"abcd".to_vec()].concat(),
        [yamux(0, 0, syn | fin | rst | ack, 1, 0), yamux(0, 0, fin, 1, 0), yamux(0, 0, rst, 1, 0)].concat(),
        (0..2_000_u32).flat_map(|n| yamux(0, 1, syn, 2 * n + 1, 0)).collect(),
        (0..20_000_u32).flat_map(|n| yamux(0, 2, syn, 0, n)).collect(),
        yamux(0, 3, 0, 0, 0),
        yamux(0, 0, syn, 0, 0),
        yamux(0, 0, syn, 2, 0),
        vec![0xff; 4_096],
    ];
    arena.endures("yamux", 96, async {
        for bytes in cases {
            let key = keypair(rand::random());
            let mut transport = tcp::tokio::Transport::new(tcp::Config::default())
                .upgrade(upgrade::Version::V1)
                .authenticate(noise::Config::new(&key).unwrap())
                .multiplex(RawYamux);
            let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
            let dial = transport.dial(arena.address.clone(), opts).unwrap();
            let (_, Raw(mut socket)) = tokio::time::timeout(Duration::from_secs(20), dial).await.unwrap().unwrap();
            drop(socket.write_all(&bytes).await);
            drop(socket.flush().await);
            // Nobody need answer; nothing may fall.
            let mut answer = vec![0; 1_024];
            let read = futures::AsyncReadExt::read(&mut socket, &mut answer);
            drop(tokio::time::timeout(Duration::from_millis(100), read).await);
        }
    });
}

/// What an attack does, again and again until it is stopped.
async fn orphans(arena: &Arena) {
    loop {
        let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        let mut pen = Pen::new(peer.adversary.seed, arena.database);
        for n in 0..200 {
            let blocks: Vec<_> =
                (0..50).map(|i| pen.make(2 + n * 50 + i, 1, Vec::new(), "/o", &[b'o'; 500], Vec::new())).collect();
            if !peer.blocks(arena.database, &blocks).await {
                break;
            }
        }
    }
}

async fn rubbish(arena: &Arena) {
    loop {
        let mut peer = SyncPeer::silent(&arena.address, arena.peer).await;
        peer.say(&super::peer::hello()).await;
        peer.raw(&[0, 0, 1, 0]).await;
        peer.raw(&rand::random::<[u8; 32]>().repeat(8)).await;
        // Bytes drawn at random may as well read as a frame of an unknown kind.
        peer.is_told_and_cut_off("broke the sync protocol").await;
    }
}

async fn storm(arena: &Arena) {
    loop {
        let mut peer = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
        let mut pen = Pen::new(peer.adversary.seed, arena.database);
        for n in 0..500 {
            if !peer.publish(&message(pen.next(&format!("/storm/{}", n % 50), &[b's'; 500]).bytes())).await {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_attacks_at_once_while_two_honest_nodes_write() {
    let arena = Arena::new();
    let calm = arena.endures("calm", 64, tokio::time::sleep(Duration::from_secs(3)));
    // The store alone may take 192 MiB: its block cache and the memory for writes.
    let attacked = arena.endures("three attacks", 320, async {
        let attacks = futures::future::join3(orphans(&arena), rubbish(&arena), storm(&arena));
        let end = tokio::time::sleep(Duration::from_secs(6)).fuse();
        futures::pin_mut!(end);
        tokio::select! { () = &mut end => {}, _ = attacks => {} }
    });
    println!(
        "put p99: {:?} in peace, {:?} under attack, {:.1} times",
        calm.p99,
        attacked.p99,
        attacked.p99.as_secs_f64() / calm.p99.as_secs_f64()
    );
    assert!(arena.count("sync_misbehaviour") > 0);
}
