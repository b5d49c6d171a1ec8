//! Gossip by hand: malformed control messages, storms of subscriptions and messages, announcements again and again.

use std::time::Duration;

use crdt::{Digest, Ed25519Signer, Signer as _};
use futures::AsyncWriteExt as _;
use kvdb::net::gossip::topic;
use kvdb::net::wire::{Announce, Message};
use kvdb::{DatabaseId, Multiaddr, PeerId};
use libp2p::Stream;

use super::arena::Arena;
use super::peer::{Adversary, GOSSIP, SyncPeer};

/// A gossip stream to the victim; what the victim sends is not read.
pub(super) struct GossipPeer {
    pub(super) adversary: Adversary,
    stream: Stream,
    topic: String,
}

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2], &varint(bytes.len() as u64)[..], bytes].concat()
}

fn number(number: u8, value: u64) -> Vec<u8> {
    [&[number << 3], &varint(value)[..]].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        bytes.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return bytes;
        }
    }
}

/// A block as a gossip message.
pub(super) fn message(block: &[u8]) -> Vec<u8> {
    Message::Block(block.to_vec().into()).encode().to_vec()
}

impl GossipPeer {
    /// Connects and subscribes to the database's topic.
    pub(super) async fn new(address: &Multiaddr, victim: PeerId, database: DatabaseId) -> Self {
        let adversary = Adversary::new(address, victim).await;
        let stream = adversary.open(GOSSIP).await.expect("a gossip stream");
        let mut this = Self { adversary, stream, topic: topic(&database) };
        let name = this.topic.clone();
        this.rpc(&subscription(&name)).await;
        this
    }

    /// Sends one RPC; whether the stream took it.
    pub(super) async fn rpc(&mut self, rpc: &[u8]) -> bool {
        let bytes = [&varint(rpc.len() as u64)[..], rpc].concat();
        let write = async { self.stream.write_all(&bytes).await.is_ok() && self.stream.flush().await.is_ok() };
        tokio::time::timeout(Duration::from_secs(5), write).await.unwrap_or(false)
    }

    pub(super) async fn publish(&mut self, data: &[u8]) -> bool {
        let message = [field(2, data), field(4, self.topic.as_bytes())].concat();
        self.rpc(&field(2, &message)).await
    }

    async fn control(&mut self, control: &[u8]) -> bool {
        self.rpc(&field(3, control)).await
    }
}

fn subscription(topic: &str) -> Vec<u8> {
    field(1, &[number(1, 1), field(2, topic.as_bytes())].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn x01_prunes_of_any_back_off_and_control_messages_of_any_kind_stop_nobody() {
    let arena = Arena::new();
    arena.endures("control messages", 64, async {
        let mut peer = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
        let name = peer.topic.clone().into_bytes();
        let graft = field(3, &field(1, &name));
        for backoff in [0, 1, 1 << 32, 1 << 63, u64::MAX] {
            let prune = field(4, &[field(1, &name), number(3, backoff)].concat());
            for control in [&prune, &graft, &prune] {
                peer.control(control).await;
            }
            let strangers = (0..100).flat_map(|_| field(2, &field(1, &rand::random::<[u8; 32]>())));
            let strangers: Vec<u8> = strangers.collect();
            peer.control(&field(4, &[field(1, &name), strangers, number(3, backoff)].concat())).await;
        }
        let ids: Vec<u8> = (0..5_000).flat_map(|_| field(2, &rand::random::<[u8; 32]>())).collect();
        for _ in 0..50 {
            peer.control(&field(1, &[field(1, &name), ids.clone()].concat())).await;
            peer.control(&field(2, &ids)).await;
            peer.control(&field(5, &ids)).await;
        }
        // Not protobuf; a length that lies; one above the limit.
        for bytes in [vec![0xff; 1_000], varint(u64::MAX), varint(2 << 20), vec![0x80; 11]] {
            let adversary = Adversary::new(&arena.address, arena.peer).await;
            let mut stream = adversary.open(GOSSIP).await.unwrap();
            drop(stream.write_all(&bytes).await);
            drop(stream.flush().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn x02_subscriptions_without_end_fill_no_memory() {
    let arena = Arena::new();
    let report = arena.endures("subscriptions", 128, async {
        for _ in 0..3 {
            let mut peer = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
            for part in 0..40_u32 {
                let names = (0..2_000).map(|n| match n % 3 {
                    // Of the right form, of the wrong one, and long.
                    0 => format!("kvdb/1/{part:08x}{n:08x}{:016x}", rand::random::<u64>()),
                    1 => format!("other/{:032x}", rand::random::<u128>()),
                    _ => format!("kvdb/1/{}", "x".repeat(400)),
                });
                let all: Vec<u8> = names.flat_map(|name| subscription(&name)).collect();
                if !peer.rpc(&all).await {
                    break;
                }
            }
            drop(peer);
        }
    });
    assert!(report.puts > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn x09_announcements_again_and_again_are_ignored_and_the_honest_are_not_banned() {
    let arena = Arena::new();
    arena.endures("announcements", 96, async {
        let seed = super::peer::smaller_than(&arena.peer);
        let signer = Ed25519Signer::from_seed(seed);
        let announce = |counter: u64| {
            let announce = Announce {
                database: arena.database,
                publisher: signer.public_key(),
                boot: 1,
                counter,
                heads_hash: [1; 32],
                vv_hash: [u8::try_from(counter % 251).unwrap(); 32],
                digest: Digest(7),
                signature: [0; 64],
            };
            Message::Announce(Box::new(announce.signed(&signer))).encode()
        };
        // Each is new by its counter, and each claims another state.
        let mut peer = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
        for counter in 1..3_000 {
            assert!(peer.publish(&announce(counter)).await, "an announcement is no crime");
        }
        // Old ones under fresh wrappings: a longer encoding is refused, the same bytes are known.
        for counter in 1..500 {
            peer.publish(&announce(counter)).await;
        }
        // With a counter that another one signed.
        let mut forger = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
        let mut changed = announce(1 << 40).to_vec();
        let at = changed.len() - 10;
        changed[at] ^= 1;
        forger.publish(&changed).await;
        forger.adversary.is_cut_off().await;
    });
    assert!(arena.count("gossip_rejected") >= 1);
    assert_eq!(arena.count("sync_misbehaviour"), 0, "the honest node did nothing wrong");
    assert!(arena.victim.get("/v1/peers").unwrap().1.contains("\"syncing\":true"), "the honest node is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gossip_storm_of_blocks_and_rubbish() {
    let arena = Arena::new();
    let rejected = arena.count("gossip_rejected");
    arena.endures("gossip storm", 160, async {
        let storm = |kind: u8| {
            let arena = &arena;
            async move {
                let mut peer = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
                let mut pen = super::peer::Pen::new(peer.adversary.seed, arena.database);
                for n in 0..3_000_u64 {
                    let data = match kind {
                        0 => message(pen.next(&format!("/storm/{n}"), &[b's'; 1_000]).bytes()),
                        // Never ready.
                        1 => message(pen.make(n + 2, n, Vec::new(), "/storm", &[b's'; 4_000], Vec::new()).bytes()),
                        _ => rand::random::<[u8; 32]>().to_vec(),
                    };
                    if !peer.publish(&data).await {
                        return;
                    }
                }
            }
        };
        futures::future::join_all((0..3).map(storm)).await;
    });
    assert!(arena.count("gossip_rejected") > rejected, "rubbish was not rejected");
    let polite = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
    assert!(polite.heard(|heard| heard.error.is_none()));
}
