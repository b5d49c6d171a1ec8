//! The ways in which gossip goes deaf without a word, each over real sockets.

use std::collections::BTreeSet;

use futures::future::BoxFuture;

use super::*;
use crate::net::limits::{GOSSIP_FRAME_BYTES, MAX_GOSSIP_MESSAGE_BYTES, MAX_OPEN_DATABASES};

fn topic(n: usize) -> String {
    gossip::topic(&database(&format!("d{n}")))
}

/// Two swarms without anything above them: what one publishes the other hears by gossip, or not at all.
struct Pair {
    speaker: Network,
    ear: Network,
    /// Lengths and first bytes of what was heard.
    heard: BTreeSet<(usize, u8)>,
}

impl Pair {
    /// Both subscribe to so many topics before they meet.
    fn meet(topics: usize) -> BoxFuture<'static, Self> {
        Box::pin(Self::meeting(topics))
    }

    async fn meeting(topics: usize) -> Self {
        let mut speaker = Network::new(&keypair(1), &options(), &[]).unwrap();
        let mut ear = Network::new(&keypair(2), &options(), &[]).unwrap();
        for n in 0..topics {
            speaker.subscribe(&topic(n)).unwrap();
            ear.subscribe(&topic(n)).unwrap();
        }
        let address = loop {
            if let Event::Listening(address) = speaker.next().await {
                break address;
            }
        };
        ear.dial(None, vec![address]).unwrap();
        let mut this = Self { speaker, ear, heard: BTreeSet::new() };
        let mut known = 0;
        this.until("all topics known", |event| {
            known += usize::from(matches!(event, Some(Event::Subscribed(..))));
            known == topics
        })
        .await;
        this
    }

    /// Lets both run until the speaker's event, or nothing but time, makes it true.
    async fn until(&mut self, what: &str, mut done: impl FnMut(Option<&Event>) -> bool) {
        let run = async {
            loop {
                tokio::select! {
                    event = self.speaker.next() => if done(Some(&event)) { return },
                    event = self.ear.next() => if let Event::Gossip { data, .. } = event {
                        self.heard.insert((data.len(), data[0]));
                        return;
                    },
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), run).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    async fn hears(&mut self, what: &str, len: usize, first: u8) {
        while !self.heard.contains(&(len, first)) {
            self.until(what, |_| false).await;
        }
    }

    fn says(&mut self, on: usize, len: usize, first: u8) -> Result<(), &'static str> {
        let mut data = vec![7; len];
        data[0] = first;
        self.speaker.publish(&topic(on), data.into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaf_by_more_topics_than_the_usual_filter_takes_and_a_hello_above_the_usual_size() {
    // All of them in one hello: some 200 KiB.
    let mut pair = Pair::meet(MAX_OPEN_DATABASES).await;
    for (first, on) in [(1, 0), (2, 101), (3, MAX_OPEN_DATABASES - 1)] {
        pair.says(on, 100, first).unwrap();
        pair.hears("a message of a late topic", 100, first).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaf_by_a_message_at_the_limit_of_its_size() {
    let mut pair = Pair::meet(1).await;
    for (round, len) in (1..).zip([MAX_GOSSIP_MESSAGE_BYTES - 1, MAX_GOSSIP_MESSAGE_BYTES, GOSSIP_FRAME_BYTES / 2]) {
        pair.says(0, len, round).unwrap();
        pair.hears("a large message", len, round).await;
    }
    // What is too large is refused here, and does not end the stream.
    assert!(pair.says(0, GOSSIP_FRAME_BYTES + 1, 9).is_err());
    pair.says(0, 10, 10).unwrap();
    pair.hears("a small message after one that was too large", 10, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaf_by_a_burst_larger_than_a_frame() {
    let mut pair = Pair::meet(1).await;
    let count = 80;
    assert!(usize::from(count) * MAX_GOSSIP_MESSAGE_BYTES > 2 * GOSSIP_FRAME_BYTES);
    for n in 0..count {
        pair.says(0, MAX_GOSSIP_MESSAGE_BYTES, n).unwrap();
    }
    for n in 0..count {
        pair.hears("all of the burst", MAX_GOSSIP_MESSAGE_BYTES, n).await;
    }
}

fn fast() -> NetworkOptions {
    NetworkOptions { rebroadcast_interval: Duration::from_millis(100), ..options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaf_whoever_is_subscribed_and_says_nothing_is_connected_anew() {
    let db = database("d");
    let node = Node::start(1, fast()).await;
    node.backend.open(db);
    let mut silent = Network::new(&keypair(2), &options(), &[]).unwrap();
    silent.subscribe(&gossip::topic(&db)).unwrap();
    silent.dial(None, vec![node.address()]).unwrap();
    let mut met = 0;
    let talk = async {
        loop {
            match silent.next().await {
                Event::Connected { .. } => met += 1,
                // It comes back, as whoever was configured does.
                Event::Disconnected { left: 0, .. } if met < 2 => drop(silent.dial(None, vec![node.address()])),
                _ => {}
            }
            if met == 2 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), talk).await.expect("it is left in its silence");
    assert!(node.count("gossip_reconnects") >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_after_quick_restarts_with_the_same_identity_everything_is_fetched() {
    let db = database("d");
    let a = Node::start(1, fast()).await;
    let mut b = Node::start(2, dialling(fast(), &[&a])).await;
    a.backend.open(db);
    b.backend.open(db);
    for round in 0..4_u8 {
        eventually("it hears", || b.count("gossip_accepted") > 0).await;
        let heard = a.count("gossip_accepted");
        eventually("and is heard", || a.count("gossip_accepted") > heard).await;
        let dot = a.backend.put(db, &format!("/k{round}"), b"v");
        eventually("the block", || b.state(&db).0.covers(&dot)).await;
        let store = b.backend.with(|engine| engine.store.clone());
        b.net.close().await;
        for n in 0..200 {
            a.backend.put(db, &format!("/away/{round}/{n}"), b"v");
        }
        let mut engine = ToyEngine::new(20 + round);
        engine.store = store;
        b = Node::with(engine, 2, dialling(fast(), &[&a])).await;
        b.backend.open(db);
        equal(&[&a, &b], &db).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaf_after_a_long_idle_time() {
    let db = database("d");
    let a = Node::start(1, fast()).await;
    let b = Node::start(2, dialling(fast(), &[&a])).await;
    a.backend.open(db);
    b.backend.open(db);
    // By usual intervals many minutes in which nobody writes.
    eventually("sixty announcements of each", || a.count("gossip_accepted").min(b.count("gossip_accepted")) >= 60).await;
    let heard = b.count("gossip_accepted");
    let dot = a.backend.put(db, "/after", b"v");
    eventually("the block", || b.state(&db).0.covers(&dot)).await;
    eventually("more gossip", || b.count("gossip_accepted") > heard).await;
}
