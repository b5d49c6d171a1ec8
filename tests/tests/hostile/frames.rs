//! Bytes that are no frames, frames that lie, and streams that say nothing.

use std::time::Duration;

use crdt::{Digest, ReplicaId};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use kvdb::DatabaseId;
use kvdb::net::wire::{Frame, HaveEntry, HaveKind, Hello, Summary, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::arena::Arena;
use super::peer::{Adversary, GOSSIP, PATIENCE, Pen, SYNC, SyncPeer, hello};

/// Bytes after a correct hello.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |body: &[u8]| [&header(body).unwrap()[..], body].concat();
    let nested = vec![0x81; 100_000];
    let empty = [&[0x9a, 0, 0x0f, 0x42, 0x40][..], &vec![0x40; 1_000_000]].concat();
    vec![
        ("4294967295 bytes", (-1_i32).to_be_bytes().to_vec()),
        ("0 bytes", vec![0; 4]),
        ("2147483647 bytes", i32::MAX.to_be_bytes().to_vec()),
        ("4259841 bytes", 4_259_841_u32.to_be_bytes().to_vec()),
        ("malformed", framed(b"\xff\xff\xff garbage")),
        ("malformed", framed(&[0x9a, 0xff, 0xff, 0xff, 0xff])),
        ("malformed", framed(&[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])),
        ("malformed", framed(&[0x82, 0x01, 0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])),
        ("malformed", framed(&nested)),
        ("malformed", framed(&empty)),
        ("unknown kind 9", framed(&[0x81, 0x09])),
        ("malformed", framed(&[0x82, 0x01, 0x58, 0x20])),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn r29_x07_garbage_and_lengths_that_lie_are_told_and_cost_the_connection() {
    let arena = Arena::new();
    let before = arena.count("sync_misbehaviour");
    let cases = garbage();
    let count = cases.len() as u64;
    arena.endures("garbage", 64, async {
        for (words, bytes) in cases {
            let mut peer = SyncPeer::silent(&arena.address, arena.peer).await;
            peer.say(&hello()).await;
            peer.raw(&bytes).await;
            peer.is_told_and_cut_off(words).await;
            // It is refused for a while, whatever it does.
            let again = Adversary::connect(&arena.address, arena.peer, peer.adversary.seed).await;
            if let Some(again) = again {
                again.is_cut_off().await;
            }
        }
    });
    assert_eq!(arena.count("sync_misbehaviour") - before, count);
}

/// Frames that no correct peer sends, with what the victim answers.
fn lies(database: DatabaseId) -> Vec<(&'static str, Vec<Frame>)> {
    let summary = Summary { vv_hash: [1; 32], count: 1, heads_hash: [2; 32], digest: Digest(3) };
    let have = |kind, summary| Frame::Have { database, kind, summary };
    let ack = |consumed, seq| Frame::Ack { database, consumed, durable: vec![(ReplicaId([1; 16]), seq)] };
    let other = DatabaseId([7; 32]);
    let open = Frame::Open(database);
    let list = |entries| Frame::HaveList { database, entries, last: false };
    let entry = |n: u32| HaveEntry { replica: ReplicaId(u128::from(n).to_be_bytes()), seq: 1, floor: 0 };
    let part = |n: u32| (n * 2_048 + 1..=(n + 1) * 2_048).map(entry).collect();
    let many = || std::iter::once(hello()).chain([open.clone()]);
    vec![
        ("a frame before Hello", vec![open.clone()]),
        ("a second Hello", vec![hello(), hello()]),
        ("version 7", vec![Frame::Hello(Hello { version: 7, features: 0, max_frame_bytes: 1, credit_bytes: 1 })]),
        ("the credit", vec![Frame::Hello(Hello { version: 1, features: 0, max_frame_bytes: 4_259_840, credit_bytes: 1 << 40 })]),
        ("not open here", vec![hello(), Frame::HaveList { database: other, entries: vec![], last: true }]),
        ("an answer without a question", many().chain((0..4).map(|_| have(HaveKind::Answer, summary))).collect()),
        ("questions within a second", many().chain((0..40).map(|_| have(HaveKind::Question, summary))).collect()),
        ("out of order", many().chain([list(part(1)), list(part(0))]).collect()),
        ("an acknowledgement", many().chain([ack(0, 5), ack(0, 4)]).collect()),
        ("an acknowledgement", many().chain([ack(1 << 40, 5)]).collect()),
        ("more than 4096 databases", std::iter::once(hello()).chain((0..5_000_u32).map(named)).collect()),
    ]
}

fn named(number: u32) -> Frame {
    let mut id = [9; 32];
    id[..4].copy_from_slice(&number.to_be_bytes());
    Frame::Open(DatabaseId(id))
}

#[tokio::test(flavor = "multi_thread")]
async fn lying_vectors_and_acknowledgements_are_told_and_cut_off() {
    let arena = Arena::new();
    let before = arena.count("sync_misbehaviour") + arena.count("sync_incompatible");
    let cases = lies(arena.database);
    let count = cases.len() as u64;
    arena.endures("lies", 64, async {
        for (words, frames) in cases {
            let mut peer = SyncPeer::silent(&arena.address, arena.peer).await;
            for frame in &frames {
                if !peer.say(frame).await {
                    break;
                }
            }
            peer.is_told(words).await;
        }
    });
    let after = arena.count("sync_misbehaviour") + arena.count("sync_incompatible");
    assert_eq!(after - before, count);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_have_with_a_million_entries_is_read_and_not_kept() {
    let arena = Arena::new();
    let database = arena.database;
    let report = arena.endures("a million entries", 64, async {
        let peers = (0..3).map(|_| async {
            let mut peer = SyncPeer::polite(&arena.address, arena.peer, database).await;
            let summary = Summary { vv_hash: [1; 32], count: 1_000_000, heads_hash: [2; 32], digest: Digest(3) };
            assert!(peer.say(&Frame::Have { database, kind: HaveKind::Question, summary }).await);
            for part in 0..500_u32 {
                let entry = |n: u32| HaveEntry { replica: ReplicaId(u128::from(n).to_be_bytes()), seq: 1, floor: 0 };
                let entries = (part * 2_048 + 1..=(part + 1) * 2_048).map(entry).collect();
                assert!(peer.say(&Frame::HaveList { database, entries, last: part == 499 }).await);
            }
            // It is still listened to.
            let mut pen = Pen::new(peer.adversary.seed, database);
            assert!(peer.blocks(database, &[pen.next("/after/a/million", b"1")]).await);
            assert!(peer.heard(|heard| heard.error.is_none()));
        });
        futures::future::join_all(peers).await;
    });
    assert!(report.puts > 0);
    assert!(arena.figure("replicas") < 100, "names alone are nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn x03_silence_and_drops_on_every_stream_hold_up_nobody() {
    let arena = Arena::new();
    let half_open = arena.count("incoming_failed");
    arena.endures("slow loris", 64, async {
        // A header and then silence, before and after the hello; a hello that drips; a length without its bytes.
        let mut header_only = SyncPeer::silent(&arena.address, arena.peer).await;
        header_only.raw(&[0, 0, 1, 0]).await;
        let mut cut_short = SyncPeer::silent(&arena.address, arena.peer).await;
        cut_short.say(&hello()).await;
        cut_short.raw(&[0, 0x10, 0, 0, 1, 2, 3]).await;
        let wordless = SyncPeer::silent(&arena.address, arena.peer).await;
        let dripping = SyncPeer::silent(&arena.address, arena.peer).await;
        let gossip = Adversary::new(&arena.address, arena.peer).await;
        let mut gossip_stream = gossip.open(GOSSIP).await.unwrap();
        gossip_stream.write_all(&[0xff, 0xff, 0x3f, 0x0a]).await.unwrap();
        gossip_stream.flush().await.unwrap();
        // Connections without a word, and some that begin the negotiation: more than may be pending at once.
        let port = arena.victim.peer;
        let mut silent = Vec::new();
        for n in 0..150 {
            if let Ok(mut socket) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
                if n % 2 == 0 {
                    drop(socket.write_all(b"\x13/multistream/1.0").await);
                }
                silent.push(socket);
            }
        }
        let drip = async {
            let mut dripping = dripping;
            let frame = hello().encode();
            for byte in [&header(&frame).unwrap()[..], &frame].concat() {
                if !dripping.raw(&[byte]).await || dripping.heard(|heard| heard.ended) {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        let ended = async {
            header_only.hears(|heard| heard.ended).await;
            cut_short.hears(|heard| heard.ended).await;
            wordless.hears(|heard| heard.ended).await;
        };
        futures::future::join(drip, ended).await;
        // All silent connections were closed by the victim.
        for mut socket in silent {
            let mut rest = Vec::new();
            let closed = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
            assert!(closed.is_ok(), "a silent connection stays");
        }
        // And their places are free again.
        SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
    });
    assert!(arena.count("incoming_failed") > half_open);
}

#[tokio::test(flavor = "multi_thread")]
async fn x03_connections_that_say_nothing_keep_nobody_out() {
    let arena = Arena::new();
    let port = arena.victim.peer;
    let mut silent = Vec::new();
    arena.endures("silent connections", 64, async {
        for _ in 0..5 {
            // Three times as many as may be waited for.
            for _ in 0..200 {
                silent.push(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap());
            }
            let honest = Adversary::connect(&arena.address, arena.peer, rand::random()).await;
            assert!(honest.is_some(), "somebody who speaks was kept out by {} who do not", silent.len());
        }
    });
    let words = "others want to connect";
    assert!(arena.victim.log().contains(words), "whoever had to make room is told of");
}

#[tokio::test(flavor = "multi_thread")]
async fn x03_six_hundred_streams_on_one_connection() {
    let arena = Arena::new();
    arena.endures("streams", 96, async {
        let adversary = Adversary::new(&arena.address, arena.peer).await;
        let mut streams = Vec::new();
        for n in 0..600 {
            let protocol = if n % 2 == 0 { SYNC } else { GOSSIP };
            // The multiplexer's limit may end the connection, and gossip takes a few streams only; of sync each stream
            // replaces the one before.
            let open = tokio::time::timeout(Duration::from_secs(2), adversary.open(protocol)).await;
            if let Ok(Some(mut stream)) = open {
                let write = async { stream.write_all(&[0]).await.is_ok() && stream.flush().await.is_ok() };
                let _ = tokio::time::timeout(Duration::from_millis(200), write).await;
                streams.push(stream);
            }
        }
        println!("{} of 600 streams", streams.len());
        let mut last = [0; 1];
        if let Some(stream) = streams.last_mut() {
            drop(tokio::time::timeout(Duration::from_secs(1), stream.read(&mut last)).await);
        }
    });
    // One stream for each peer is all that the victim keeps.
    let mut polite = SyncPeer::polite(&arena.address, arena.peer, arena.database).await;
    assert!(polite.say(&Frame::Close(arena.database)).await);
}
