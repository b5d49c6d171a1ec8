//! Floods of blocks: valid, again and again, without their parents, forged, foreign, far in the future, deep and wide.

use std::time::Duration;

use crdt::limits::{MAX_PENDING_BLOCKS, MAX_PENDING_BYTES, MAX_UINT};
use crdt::{Block, BlockHash, Dot, Parent, ReplicaId};
use kvdb::DatabaseId;
use kvdb::net::limits::NEW_WRITERS_PER_PEER;

use super::arena::Arena;
use super::gossip::{GossipPeer, message};
use super::peer::{Pen, SyncPeer};
use crate::cluster::wait_equal;
use crate::crash::{ask, at};

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_valid_blocks_is_merged_by_all_and_duplicates_cost_nothing() {
    let arena = Arena::new();
    let keys = arena.figure("keys");
    arena.endures("valid blocks", 160, async {
        let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        let mut pen = Pen::new(peer.adversary.seed, arena.database);
        let blocks: Vec<Block> = (0..10_000).map(|n| pen.next(&format!("/flood/{n}"), &[b'f'; 100])).collect();
        assert!(peer.blocks(arena.database, &blocks).await, "a valid block is valid whoever sends it");
        let large = pen.next("/large", &vec![b'l'; 200_000]);
        for _ in 0..300 {
            assert!(peer.blocks(arena.database, std::slice::from_ref(&large)).await);
        }
    });
    wait_equal(&[&arena.victim, &arena.honest], |all| all >= keys + 10_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_orphans_fills_no_more_than_the_pool() {
    let arena = Arena::new();
    arena.endures("orphans", 160, async {
        let flood = |n: u64| {
            let arena = &arena;
            async move {
                let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
                let mut pen = Pen::new(peer.adversary.seed, arena.database);
                // Blocks of a writer of whom nothing is known do not even get into the pool.
                assert!(peer.blocks(arena.database, &[pen.next("/orphan", b"the first")]).await);
                for part in 0..4_u64 {
                    let size = if n == 0 { 20 } else { 30_000 };
                    let count = if n == 0 { 1_500 } else { 200 };
                    let missing = |i: u64| Parent {
                        dot: Dot { replica: ReplicaId(u128::from(i + 1).to_be_bytes()), seq: MAX_UINT },
                        hash: BlockHash([1; 32]),
                    };
                    // The second of each writer never comes.
                    let blocks: Vec<Block> = (0..count)
                        .map(|i| {
                            pen.make(3 + part * count + i, i + 1, vec![missing(i)], "/orphan", &vec![b'o'; size], Vec::new())
                        })
                        .collect();
                    // The credit for so much that cannot be merged comes back late.
                    let sending = peer.blocks(arena.database, &blocks);
                    drop(tokio::time::timeout(Duration::from_secs(2), sending).await);
                    let (held, bytes) = (arena.figure("pending_blocks"), arena.figure("pending_bytes"));
                    assert!(
                        held <= MAX_PENDING_BLOCKS as u64 && bytes <= MAX_PENDING_BYTES as u64,
                        "{held} blocks, {bytes} bytes"
                    );
                }
            }
        };
        futures::future::join_all((0..4).map(flood)).await;
        assert!(arena.figure("pending_blocks") > 1_000, "the flood did not arrive");
    });
}

/// What can be done to a signed block, each with a word of the answer.
fn forgeries(block: &Block, other: &Block) -> Vec<Vec<u8>> {
    let good = block.bytes().to_vec();
    let replace = |from: &[u8], to: &[u8]| {
        let at = good.windows(from.len()).position(|window| window == from).unwrap();
        [&good[..at], to, &good[at + from.len()..]].concat()
    };
    let mut cases = vec![
        // The last bit of the signature, and none at all.
        [&good[..good.len() - 1], &[good[good.len() - 1] ^ 1]].concat(),
        [&good[..good.len() - 64], &[0; 64]].concat(),
        good[..good.len() - 66].to_vec(),
        // Another author, another namespace, other parents, another value; bytes after the end; a floating-point number.
        replace(&block.author().public_key, &other.author().public_key),
        replace(&block.database().0, &[7; 32]),
        replace(&block.parents()[0].hash.0, &other.hash().0),
        replace(b"the value", b"the VALUE"),
        [&good[..], &[0]].concat(),
        [&[0xfb], &good[..]].concat(),
    ];
    let mut deep = good[..40].to_vec();
    deep.extend(vec![0x81; 100_000]);
    cases.push(deep);
    cases
}

#[tokio::test(flavor = "multi_thread")]
async fn x05_forged_and_changed_blocks_are_refused_on_every_way_and_spoil_nothing() {
    let arena = Arena::new();
    let mut pen = Pen::new(rand::random(), arena.database);
    let first = pen.next("/x05/first", b"first");
    let block = pen.next("/x05/second", b"the value");
    let other = Pen::new(rand::random(), arena.database).next("/x05/other", b"other");
    let (synced, rejected) = (arena.count("sync_misbehaviour"), arena.count("gossip_rejected"));
    let cases = forgeries(&block, &other);
    let count = cases.len() as u64;
    arena.endures("forgeries", 64, async {
        for bytes in &cases {
            let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
            peer.claimed(arena.database, vec![first.bytes().to_vec(), bytes.clone()]).await;
            peer.is_told_and_cut_off("broke the sync protocol").await;
            if bytes.len() <= 32 << 10 {
                let mut gossip = GossipPeer::new(&arena.address, arena.peer, arena.database).await;
                gossip.publish(&message(bytes)).await;
                gossip.adversary.is_cut_off().await;
            }
        }
        // A block of another database, whole and signed, in a frame for this one.
        let mut foreign = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        let elsewhere = Pen::new(rand::random(), DatabaseId([5; 32])).next("/k", b"v");
        foreign.claimed(arena.database, vec![elsewhere.bytes().to_vec()]).await;
        foreign.is_told_and_cut_off("another database").await;
        assert_eq!(ask(arena.victim.http, "GET", &at("/x05/second"), b"").unwrap().0, 404);
        // The bad copies have not poisoned anything: the good ones are merged.
        let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        assert!(peer.blocks(arena.database, &[first, block, other]).await);
    });
    assert_eq!(arena.count("sync_misbehaviour") - synced, count + 1);
    assert_eq!(arena.count("gossip_rejected") - rejected, count - 1);
    let value = |http| ask(http, "GET", &at("/x05/second"), b"").unwrap();
    assert_eq!(
        [value(arena.victim.http), value(arena.honest.http)],
        [(200, "the value".to_owned()), (200, "the value".to_owned())]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn c03_extreme_stamps_and_seqs_are_merged_or_wait_and_the_next_write_wins() {
    let arena = Arena::new();
    arena.endures("extremes", 64, async {
        let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        let mut pen = Pen::new(peer.adversary.seed, arena.database);
        let parent = pen.make(1, MAX_UINT, Vec::new(), "/extreme", b"from the far future", Vec::new());
        let past = pen.make(2, 0, pen.last.into_iter().collect(), "/past", b"from the beginning", Vec::new());
        let far = pen.make(MAX_UINT, MAX_UINT, Vec::new(), "/never", b"never ready", Vec::new());
        assert!(peer.blocks(arena.database, &[parent, past, far]).await);
        while ask(arena.victim.http, "GET", &at("/past"), b"").unwrap().0 != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(ask(arena.victim.http, "GET", &at("/extreme"), b"").unwrap().1, "from the far future");
        assert_eq!(ask(arena.victim.http, "PUT", &at("/extreme"), b"written after it was seen").unwrap().0, 200);
        assert_eq!(ask(arena.victim.http, "GET", &at("/extreme"), b"").unwrap().1, "written after it was seen");
    });
    assert_eq!(ask(arena.honest.http, "GET", &at("/extreme"), b"").unwrap().1, "written after it was seen");
    assert_eq!(ask(arena.honest.http, "GET", &at("/never"), b"").unwrap().0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_dag_of_many_writers_and_a_deep_one_are_merged() {
    let arena = Arena::new();
    arena.endures("wide and deep", 160, async {
        let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        let seed = peer.adversary.seed;
        // Each opening is a writer of its own, and each first block a head.
        let mut heads = Vec::new();
        let mut wide = Vec::new();
        for n in 0..2_000 {
            let mut pen = Pen::new(seed, arena.database);
            wide.push(pen.make(1, 1 + n, Vec::new(), "/wide", b"w", Vec::new()));
            heads.extend(pen.last);
        }
        assert!(peer.blocks(arena.database, &wide).await);
        let mut pen = Pen::new(seed, arena.database);
        let joins = heads.chunks(64).take(10).zip(1..);
        let joins: Vec<Block> = joins
            .map(|(heads, seq)| {
                let superseded = heads.iter().map(|head| head.dot).collect();
                pen.make(seq, 5_000 + seq, heads.to_vec(), "/wide", b"joined", superseded)
            })
            .collect();
        assert!(peer.blocks(arena.database, &joins).await);
        let mut pen = Pen::new(seed, arena.database);
        let deep: Vec<Block> = (0..5_000).map(|_| pen.next("/deep", b"d")).collect();
        // Backwards within each frame's credit: what comes too early waits or is dropped, and sync asks again.
        assert!(peer.blocks(arena.database, &deep).await);
    });
    assert!(arena.figure("replicas") > 2_000);
    let (status, body) = ask(arena.honest.http, "GET", "/v1/databases/demo/siblings?key=/wide", b"").unwrap();
    assert_eq!(status, 200);
    assert!(body.contains("\"dot\""), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_writers_without_end_are_let_in_slowly_and_honest_ones_write_on() {
    let arena = Arena::new();
    let each = NEW_WRITERS_PER_PEER;
    let own = arena.figure("replicas");
    arena.endures("new writers", 160, async {
        let mut peer = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
        let seed = peer.adversary.seed;
        for part in 0..=each / 500 + 2 {
            let first = |n| {
                let stamp = 1 + part * 500 + n;
                Pen::new(seed, arena.database).make(1, stamp, Vec::new(), &format!("/new/{stamp}"), b"n", Vec::new())
            };
            let blocks: Vec<Block> = (0..500).map(first).collect();
            assert!(peer.blocks(arena.database, &blocks).await, "nobody is cut off for it");
        }
    });
    assert!(arena.count("writers_put_off") > 0);
    assert!(arena.figure("replicas") - own >= each);
}
