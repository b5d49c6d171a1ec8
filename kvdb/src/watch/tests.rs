//! Watchers over the engine's turn and a store in memory.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use bytes::Bytes;
use crdt::testing::MemoryStore;
use crdt::{Block, Change, DatabaseId, DatabaseName, Dot, Durability, Ed25519Signer, Expiry, Key, LocalOp, Prefix, Source};
use crdt::{Store as _, View as _, WallTime};

use super::*;
use crate::engine::machine::{Engine, Reply, TurnEnv, TurnOutcome, Work};
use crate::limits::{MAX_RECENT_BYTES, MAX_WATCH_BATCH_EVENTS};

const NOW: WallTime = WallTime(1_000_000);

/// One node: the engine, what it remembers for watchers, and its clock.
struct Node {
    engine: Engine<MemoryStore>,
    signer: Ed25519Signer,
    nonce: u64,
    recent: Recent,
    now: WallTime,
}

fn id() -> DatabaseId {
    DatabaseId::of(&DatabaseName::parse("d").unwrap(), 0)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn root() -> Prefix {
    Prefix::root()
}

impl Node {
    fn new(seed: u8) -> Self {
        let mut store = MemoryStore::default();
        store.create(id());
        let signer = Ed25519Signer::from_seed([seed; 32]);
        let mut node = Self { engine: Engine::new(store), signer, nonce: 0, recent: Recent::new(0), now: NOW };
        node.turn(vec![Work::Open(id())]);
        node.engine.set_watched(BTreeSet::from([id()]));
        node
    }

    fn turn(&mut self, works: Vec<Work>) -> TurnOutcome {
        let nonce = &mut self.nonce;
        let mut random = || {
            *nonce += 1;
            *nonce
        };
        let env = &mut TurnEnv { now: self.now, signer: &self.signer, random: &mut random };
        let outcome = self.engine.turn(works, env);
        for advance in &outcome.advanced {
            self.recent.advance(advance.meta.revision, advance.changes.clone());
        }
        outcome
    }

    fn write(&mut self, ops: &[(&str, Option<&str>)]) -> Vec<Block> {
        let op = |(key_text, value): &(&str, Option<&str>)| {
            let put = |value: &&str| Change::Put { value: Bytes::copy_from_slice(value.as_bytes()), expiry: None };
            LocalOp::new(key(key_text), value.as_ref().map_or(Change::Tombstone, put))
        };
        self.write_ops(ops.iter().map(op).collect())
    }

    fn write_ops(&mut self, ops: Vec<LocalOp>) -> Vec<Block> {
        let work = Work::Write { database: id(), ops, request: None, durability: Durability::Buffered };
        let mut outcome = self.turn(vec![work]);
        assert!(matches!(outcome.replies[0], Reply::Written(Ok(_))));
        outcome.advanced.pop().map(|advance| advance.sealed).unwrap_or_default()
    }

    fn put(&mut self, key: &str, value: &str) -> Vec<Block> {
        self.write(&[(key, Some(value))])
    }

    fn receive(&mut self, blocks: Vec<Block>) {
        self.turn(vec![Work::Blocks { database: id(), blocks, source: Source(1) }]);
    }

    fn watcher(&self, prefix: &str) -> Watcher {
        Watcher::new(Prefix::parse(prefix).unwrap(), false, self.position(), &self.recent)
    }

    fn position(&self) -> Position {
        let view = self.engine.store().view(&id()).unwrap();
        let latest = self.recent.latest();
        let dot = view.log(latest.revision).next().map(|entry| entry.unwrap().dot);
        Position { dot, ..latest }
    }

    fn resume(&self, token: WatchToken) -> Option<Watcher> {
        let view = self.engine.store().view(&id()).unwrap();
        let good = Watcher::can_resume(&token, self.recent.latest(), &view).unwrap();
        good.then(|| Watcher::resume(root(), false, token, &self.recent))
    }

    /// Everything that the watcher has to tell now.
    fn events(&self, watcher: &mut Watcher) -> Vec<WatchEvent> {
        let mut all = Vec::new();
        while watcher.look(&self.recent) {
            all.extend(watcher.read(&self.engine.store().view(&id()).unwrap(), self.now).unwrap());
        }
        all
    }

    fn told(&self, watcher: &mut Watcher) -> Vec<String> {
        self.events(watcher).iter().map(text).collect()
    }

    fn list(&self) -> BTreeMap<Key, Dot> {
        let mut found = BTreeMap::new();
        let options = crate::list::ListOptions::new(root());
        let view = self.engine.store().view(&id()).unwrap();
        let mut take = |item: crate::list::ListItem| {
            let crate::list::ListItem::Entry(entry) = item else { panic!("a prefix") };
            found.insert(entry.key, entry.dot);
            true
        };
        crate::list::walk(&view, &options, self.now, &mut take, &|| true).unwrap();
        found
    }
}

fn text(event: &WatchEvent) -> String {
    match &event.change {
        WatchChange::Put(put) => {
            let value = put.value.as_deref().map_or("?".into(), String::from_utf8_lossy);
            format!("{}={value}", put.key)
        }
        WatchChange::Deleted(key) => format!("{key}-"),
        WatchChange::Listed => "listed".to_owned(),
        WatchChange::Reset => "reset".to_owned(),
    }
}

fn apply(map: &mut BTreeMap<Key, Dot>, events: &[WatchEvent]) {
    for event in events {
        match &event.change {
            WatchChange::Put(put) => drop(map.insert(put.key.clone(), put.dot)),
            WatchChange::Deleted(key) => drop(map.remove(key)),
            WatchChange::Listed | WatchChange::Reset => panic!("{event:?}"),
        }
    }
}

#[test]
fn f01_a_change_of_the_winner_is_an_event_and_a_losing_sibling_is_none() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let mut watcher = a.watcher("/");
    let first = a.put("/k", "1");
    assert_eq!(a.told(&mut watcher), ["/k=1"]);
    assert!(a.told(&mut watcher).is_empty());
    // Concurrent puts: the clock of b is behind, then ahead.
    b.now = WallTime(NOW.0 - 5_000);
    let losing = b.put("/k", "loses");
    a.receive(losing);
    assert!(a.told(&mut watcher).is_empty(), "get answers what it answered before");
    let mut c = Node::new(3);
    c.now = WallTime(NOW.0 + 5_000);
    let winning = c.put("/k", "wins");
    a.receive(winning);
    assert_eq!(a.told(&mut watcher), ["/k=wins"]);
    // A delete that has seen only the first put leaves the winner alone.
    let mut d = Node::new(4);
    d.receive(first);
    let tombstone = d.write(&[("/k", None)]);
    a.receive(tombstone);
    assert!(a.told(&mut watcher).is_empty());
    a.write(&[("/k", None), ("/other", Some("x"))]);
    assert_eq!(a.told(&mut watcher), ["/k-", "/other=x"]);
    a.write(&[("/absent", None)]);
    assert!(a.told(&mut watcher).is_empty());
}

#[test]
fn k02_a_watched_prefix_is_made_of_whole_segments() {
    let mut node = Node::new(1);
    for (prefix, expected) in [
        ("/foo", vec!["/foo/1=x"]),
        ("/foo/", vec!["/foo/1=x"]),
        ("/fo", vec![]),
        ("", vec!["/foo=x", "/foo-1=x", "/foo/1=x", "/foobar=x"]),
    ] {
        let mut watcher = node.watcher(prefix);
        node.write(&[("/foo", Some("x")), ("/foo/1", Some("x")), ("/foobar", Some("x")), ("/foo-1", Some("x"))]);
        assert_eq!(node.told(&mut watcher), expected, "{prefix}");
    }
}

#[test]
fn changes_of_one_key_become_one_event_with_the_value_of_now() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    for n in 0..50 {
        node.put("/a", &n.to_string());
        node.put("/b", "x");
        node.write(&[("/b", None)]);
    }
    assert_eq!(node.told(&mut watcher), ["/a=49", "/b-"]);
}

#[test]
fn a_token_resumes_behind_itself_and_nowhere_else() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    node.put("/a", "1");
    let events = node.events(&mut watcher);
    let token = events[0].token.unwrap();
    assert_eq!(token.to_string().parse::<WatchToken>(), Ok(token));
    node.put("/b", "1");
    node.write(&[("/a", None)]);
    assert_eq!(node.told(&mut node.resume(token).unwrap()), ["/a-", "/b=1"]);
    let start: WatchToken = "0".parse().unwrap();
    assert_eq!(node.told(&mut node.resume(start).unwrap()), ["/a-", "/b=1"]);
    let last = node.events(&mut watcher).pop().unwrap().token.unwrap();
    assert!(node.told(&mut node.resume(last).unwrap()).is_empty());
    // Another block at that revision, a revision that is not there yet, another node's log.
    let dot = token.dot.unwrap();
    for bad in [format!("2-{dot}"), format!("9-{dot}"), format!("1-{}-7", dot.replica)] {
        assert!(node.resume(bad.parse().unwrap()).is_none(), "{bad}");
    }
    assert!(Node::new(2).resume(token).is_none());
    for bad in ["", "1", "-1", "00", &format!("01-{dot}"), &format!("+1-{dot}"), &format!("0-{dot}"), "1-x-1"] {
        assert!(bad.parse::<WatchToken>().is_err(), "{bad}");
    }
}

#[test]
fn every_event_but_the_last_of_a_round_carries_the_token_before_it() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    let texts: Vec<String> = (0..MAX_WATCH_BATCH_EVENTS * 2 + 3).map(|n| format!("/{n:04}")).collect();
    node.write(&texts.iter().map(|text| (text.as_str(), Some("x"))).collect::<Vec<_>>());
    let events = node.events(&mut watcher);
    assert_eq!(events.len(), texts.len());
    let start: WatchToken = "0".parse().unwrap();
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event.token == Some(start)), "a resume in between tells all of them again");
    assert_eq!(last.token, node.position().token());
}

#[test]
fn a_watcher_that_falls_behind_the_memory_reads_the_log() {
    let mut node = Node::new(1);
    let (mut slow, mut quick) = (node.watcher("/"), node.watcher("/"));
    let (mut of_slow, mut of_quick) = (BTreeMap::new(), BTreeMap::new());
    let long = "k".repeat(900);
    for n in 0..1_000 {
        node.put(&format!("/{}/{long}", n % 700), &n.to_string());
        assert!(node.recent.bytes() <= MAX_RECENT_BYTES);
        if n % 10 == 0 {
            apply(&mut of_quick, &node.events(&mut quick));
        }
    }
    assert!(node.recent.since(0).is_none(), "the memory does not reach back to the start");
    let events = node.events(&mut slow);
    assert!(events.len() <= 1_000);
    apply(&mut of_slow, &events);
    apply(&mut of_quick, &node.events(&mut quick));
    assert_eq!(of_slow, node.list());
    assert_eq!(of_quick, node.list());
    // One turn larger than the memory.
    let texts: Vec<String> = (0..1_000).map(|n| format!("/big/{n}/{long}")).collect();
    node.write(&texts.iter().map(|text| (text.as_str(), Some("x"))).collect::<Vec<_>>());
    assert!(node.recent.bytes() <= MAX_RECENT_BYTES);
    apply(&mut of_slow, &node.events(&mut slow));
    assert_eq!(of_slow, node.list());
}

#[test]
fn a_turn_that_nobody_recorded_is_found_in_the_log() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    node.engine.set_watched(BTreeSet::new());
    node.put("/a", "1");
    assert!(node.recent.since(0).is_none());
    assert_eq!(node.told(&mut watcher), ["/a=1"], "without a further write");
    node.put("/b", "1");
    node.engine.set_watched(BTreeSet::from([id()]));
    node.put("/c", "1");
    assert_eq!(node.told(&mut watcher), ["/b=1", "/c=1"]);
}

#[test]
fn a_reset_drops_what_waits_and_says_so() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    node.put("/a", "1");
    assert!(watcher.look(&node.recent));
    node.recent.reset(node.recent.latest().revision);
    let events = node.events(&mut watcher);
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["reset"]);
    assert_eq!(events[0].token, None, "the log has nothing to resume from yet");
    node.put("/b", "1");
    let events = node.events(&mut watcher);
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["/b=1"]);
    assert!(events[0].token.is_some());
}

#[test]
fn what_the_log_no_longer_has_is_told_by_a_reset_or_refused() {
    let mut node = Node::new(1);
    let (mut behind, mut up_to_date) = (node.watcher("/"), node.watcher("/"));
    let long = "k".repeat(900);
    for n in 0..400 {
        node.put(&format!("/{n}/{long}"), "x");
    }
    let all = node.events(&mut up_to_date);
    let token = all[0].token.unwrap();
    assert!(node.recent.since(0).is_none() && node.resume(token).is_some());
    node.turn(vec![Work::Truncate { database: id(), through: 399, limit: 1_000 }]);
    assert!(node.resume(token).is_none(), "too old");
    assert_eq!(node.told(&mut behind), ["reset"]);
    assert!(node.told(&mut up_to_date).is_empty());
    // The last block is kept, and with it the token of now.
    assert!(node.resume(node.position().token().unwrap()).is_some());
    node.turn(vec![Work::Truncate { database: id(), through: 400, limit: 1_000 }]);
    assert!(node.told(&mut behind).is_empty());
    node.put("/after", "x");
    assert_eq!(node.told(&mut behind), ["/after=x"]);
    assert_eq!(node.told(&mut up_to_date), ["/after=x"]);
    assert!(node.resume("0".parse().unwrap()).is_none(), "the log does not begin at the beginning any more");
}

#[test]
fn expiry_alone_is_no_event_and_its_tombstone_is_one() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    let expiry = Expiry::at_unix_ms(NOW.0 + 1_000);
    let change = Change::Put { value: Bytes::from_static(b"x"), expiry };
    node.write_ops(vec![LocalOp::new(key("/t"), change)]);
    assert_eq!(node.told(&mut watcher), ["/t=x"]);
    // What had not seen it: a sibling that surfaces once the winner expires.
    let mut other = Node::new(2);
    other.now = WallTime(NOW.0 - 1_000);
    node.receive(other.put("/t", "older"));
    assert!(node.told(&mut watcher).is_empty());
    node.now = WallTime(NOW.0 + 2_000);
    assert!(node.told(&mut watcher).is_empty());
    // A losing sibling by rank, but what get answers now.
    let mut third = Node::new(3);
    third.now = WallTime(NOW.0 - 500);
    node.receive(third.put("/t", "newer"));
    assert_eq!(node.told(&mut watcher), ["/t=newer"]);
    node.write(&[("/t", None)]);
    assert_eq!(node.told(&mut watcher), ["/t-"]);
}

#[test]
fn long_values_are_left_to_get() {
    let mut node = Node::new(1);
    let mut watcher = node.watcher("/");
    let longest = "x".repeat(crate::limits::MAX_WATCH_VALUE_BYTES);
    node.write(&[("/a", Some(&longest)), ("/b", Some(&format!("{longest}x")))]);
    let puts: Vec<WatchPut> = node
        .events(&mut watcher)
        .into_iter()
        .map(|event| if let WatchChange::Put(put) = event.change { put } else { panic!("{event:?}") })
        .collect();
    assert_eq!(puts[0].value.as_deref(), Some(longest.as_bytes()));
    assert_eq!((&puts[1].value, puts[1].len as usize), (&None, longest.len() + 1));
}

/// Invariant: a watcher's events, applied to a map, give the listing, whatever was merged and whenever it looked.
#[test]
fn events_applied_to_a_map_give_the_listing_in_any_interleaving() {
    fn holds(script: Vec<(u8, u8, u8)>) -> bool {
        let mut nodes = [Node::new(1), Node::new(2), Node::new(3)];
        let mut sent: Vec<Block> = Vec::new();
        let mut watchers = [nodes[0].watcher("/"), nodes[0].watcher("/")];
        let mut maps = [BTreeMap::new(), BTreeMap::new()];
        for (what, which, n) in script {
            let writer = usize::from(which % 3);
            let key = format!("/{}", n % 5);
            nodes[writer].now = WallTime(NOW.0 + u64::from(n) * 10);
            match what % 6 {
                0 | 1 => sent.extend(nodes[writer].put(&key, "v")),
                2 => sent.extend(nodes[writer].write(&[(&key, None)])),
                3 => nodes[writer].receive(sent.iter().skip(usize::from(n) % 4).cloned().collect()),
                4 => {
                    let at = usize::from(which) % 2;
                    apply(&mut maps[at], &nodes[0].events(&mut watchers[at]));
                }
                _ => {
                    // The second watcher is cut off and resumes where its last event left it.
                    if let Some(token) = watchers[1].position().token() {
                        watchers[1] = nodes[0].resume(token).unwrap();
                    }
                }
            }
        }
        nodes[0].receive(sent);
        for (map, watcher) in maps.iter_mut().zip(&mut watchers) {
            apply(map, &nodes[0].events(watcher));
        }
        maps.iter().all(|map| *map == nodes[0].list())
    }
    quickcheck::QuickCheck::new().tests(100).quickcheck(holds as fn(Vec<(u8, u8, u8)>) -> bool);
}
