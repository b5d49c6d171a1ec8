//! Watching a database by the library's API, on a real disk.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use kvdb::limits::MAX_WATCHERS;
use kvdb::{
    Batch, Database, Dot, Durability, Key, ListItem, ListOptions, Node, NodeOptions, Prefix, ReadError, WatchChange, WatchError,
    WatchEvent, WatchFrom, WatchOptions, WatchStream, WatchToken,
};
use tempfile::TempDir;

/// Far longer than any of these waits takes.
const BOUND: Duration = Duration::from_secs(60);

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn all() -> WatchOptions {
    WatchOptions::new(Prefix::root())
}

async fn open(dir: &TempDir) -> (Node, Database) {
    let node = Node::open(NodeOptions::new(dir.path()).durability(Durability::Buffered)).await.unwrap();
    let db = node.database(&"demo".parse().unwrap()).await.unwrap();
    (node, db)
}

async fn next(watch: &mut WatchStream) -> WatchEvent {
    tokio::time::timeout(BOUND, watch.next()).await.expect("an event").expect("no end").unwrap()
}

fn put(event: &WatchEvent) -> (&str, &[u8]) {
    match &event.change {
        WatchChange::Put(put) => (put.key.as_str(), put.value.as_deref().unwrap()),
        other => panic!("{other:?}"),
    }
}

fn list(db: &Database) -> BTreeMap<Key, Dot> {
    let mut found = BTreeMap::new();
    let mut options = ListOptions::new(Prefix::root()).keys_only();
    loop {
        let page = db.list(&options).unwrap();
        for item in page.items {
            let ListItem::Entry(entry) = item else { panic!("a prefix") };
            found.insert(entry.key, entry.dot);
        }
        let Some(next) = page.next else { return found };
        options = options.after(next);
    }
}

/// Applies events to the map until it equals the listing of a database that is not written any more.
async fn follow(watch: &mut WatchStream, map: &mut BTreeMap<Key, Dot>, db: &Database) -> Vec<WatchEvent> {
    let expected = list(db);
    let mut seen = Vec::new();
    while *map != expected {
        let event = next(watch).await;
        match &event.change {
            WatchChange::Put(put) => drop(map.insert(put.key.clone(), put.dot)),
            WatchChange::Deleted(key) => drop(map.remove(key)),
            WatchChange::Listed => {}
            WatchChange::Reset => panic!("nothing was reset"),
        }
        seen.push(event);
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_resumes_across_a_restart_and_a_foreign_one_is_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let mut watch = db.watch(all()).unwrap();
    db.put(&key("/a"), "1").await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!(put(&event), ("/a", &b"1"[..]));
    let token = event.token.unwrap();
    assert_eq!(watch.token(), Some(token));
    db.put(&key("/b"), "2").await.unwrap();
    node.close().await.unwrap();
    // Whether it has told of /b before the close or not: it ends with an error, never silently.
    loop {
        match tokio::time::timeout(BOUND, watch.next()).await.unwrap() {
            Some(Ok(event)) => assert_eq!(put(&event).0, "/b"),
            Some(Err(WatchError::Read(ReadError::Closed))) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(watch.next().await.is_none());

    let (node, db) = open(&dir).await;
    let text: WatchToken = token.to_string().parse().unwrap();
    let mut watch = db.watch(all().from(WatchFrom::Token(text))).unwrap();
    assert_eq!(put(&next(&mut watch).await), ("/b", &b"2"[..]));
    let other = node.database(&"other".parse().unwrap()).await.unwrap();
    let refused = other.watch(all().from(WatchFrom::Token(token))).unwrap_err();
    assert!(matches!(refused, WatchError::TooOld { token: named } if named == token), "{refused}");
    assert!(refused.to_string().contains(&token.to_string()));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_list_then_follow_has_no_gap_and_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    for chunk in 0..20 {
        let ops = (0..1_000).fold(Batch::new(), |batch, n| batch.put(key(&format!("/s/{chunk:02}{n:03}")), "old"));
        db.batch(ops).await.unwrap();
    }
    let writer = db.clone();
    let writing = tokio::spawn(async move {
        for n in 0..3_000u32 {
            let key = key(&format!("/s/{:05}", n.wrapping_mul(7_919) % 20_000));
            match n % 3 {
                0 => drop(writer.delete(&key).await.unwrap()),
                _ => drop(writer.put(&key, n.to_string()).await.unwrap()),
            }
            if n % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    // Given up at any point, and begun again.
    for n in 0..50 {
        let mut watch = db.watch(all().from(WatchFrom::List)).unwrap();
        for _ in 0..n {
            next(&mut watch).await;
        }
    }
    assert_eq!(node.status().watchers, 0);
    let mut watch = db.watch(all().from(WatchFrom::List)).unwrap();
    let mut map = BTreeMap::new();
    let mut events = Vec::new();
    // The listing goes on while there are writes; what follows it too.
    loop {
        let event = next(&mut watch).await;
        let listed = event.change == WatchChange::Listed;
        if let WatchChange::Put(put) = &event.change {
            assert_eq!(event.token, None, "nothing to resume from inside of a listing");
            assert_eq!(map.insert(put.key.clone(), put.dot), None, "a listing names a key once");
        }
        events.push(event);
        if listed {
            break;
        }
    }
    assert!(events.last().unwrap().token.is_some());
    writing.await.unwrap();
    events.extend(follow(&mut watch, &mut map, &db).await);
    let puts = events.iter().filter_map(|event| match &event.change {
        WatchChange::Put(put) => Some((put.key.clone(), put.dot)),
        _ => None,
    });
    let listed = events.iter().take_while(|event| event.change != WatchChange::Listed).count();
    let before: std::collections::BTreeSet<(Key, Dot)> = puts.clone().take(listed).collect();
    assert!(puts.skip(listed).all(|put| !before.contains(&put)), "what was listed is not told again");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn g11_watchers_that_do_not_read_harm_nobody_and_find_everything_later() {
    const PUTS: usize = 30_000;
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let mut idle = Vec::new();
    for n in 0..500 {
        let mut watch = db.watch(all()).unwrap();
        // Some have waited for an event when they stopped reading, some have never begun.
        if n % 2 == 0 {
            assert!(futures::poll!(watch.next()).is_pending());
        }
        idle.push(watch);
    }
    let before = resident();
    let value = vec![7; 1_000];
    for chunk in 0..PUTS / 100 {
        let ops =
            (0..100).fold(Batch::new(), |batch, n| batch.put(key(&format!("/{}", (chunk * 100 + n) % 5_000)), value.clone()));
        db.batch(ops).await.unwrap();
    }
    // A queue for each would hold 15 GB by now.
    let grown = resident().saturating_sub(before);
    assert!(grown < 500 << 20, "500 idle watchers and {PUTS} puts took {} MiB", grown >> 20);
    for mut watch in idle.into_iter().step_by(249) {
        let mut map = BTreeMap::new();
        let events = follow(&mut watch, &mut map, &db).await;
        assert!(events.len() < PUTS, "changes of one key become one event");
    }
    node.close().await.unwrap();
}

/// This process's memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_limited_and_one_that_goes_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let mut open: Vec<WatchStream> = (0..MAX_WATCHERS).map(|_| db.watch(all()).unwrap()).collect();
    assert_eq!(node.status().watchers, MAX_WATCHERS);
    let refused = db.watch(all()).unwrap_err();
    assert!(matches!(refused, WatchError::TooManyWatchers { limit: MAX_WATCHERS }));
    assert!(refused.to_string().contains(&MAX_WATCHERS.to_string()));
    open.pop();
    let mut watch = db.watch(all()).unwrap();
    db.put(&key("/a"), "1").await.unwrap();
    assert_eq!(put(&next(&mut watch).await).0, "/a");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn r07_a_watcher_may_read_write_and_close_from_its_own_event() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let mut watch = db.watch(WatchOptions::new(Prefix::parse("/in").unwrap())).unwrap();
    db.put(&key("/in/0"), "0").await.unwrap();
    for n in 0..100 {
        let event = next(&mut watch).await;
        let WatchChange::Put(told) = &event.change else { panic!("{event:?}") };
        let entry = db.get(&told.key).unwrap().expect("at least the state of the event");
        assert!(entry.stamp >= told.stamp);
        db.put(&key("/out"), told.value.clone().unwrap()).await.unwrap();
        db.delete(&told.key).await.unwrap();
        assert_eq!(next(&mut watch).await.change, WatchChange::Deleted(told.key.clone()));
        db.put(&key(&format!("/in/{}", n + 1)), n.to_string()).await.unwrap();
    }
    next(&mut watch).await;
    db.close().await.unwrap();
    let end = tokio::time::timeout(BOUND, watch.next()).await.unwrap();
    assert!(matches!(end, Some(Err(WatchError::Read(ReadError::Closed)))), "{end:?}");
    assert!(matches!(db.watch(all()), Err(WatchError::Read(ReadError::Closed))));
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_token_move_on_only_below_the_prefix_and_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let options = WatchOptions::new(Prefix::parse("/a").unwrap()).keys_only();
    let mut watch = db.watch(options).unwrap();
    db.put(&key("/b/1"), "x").await.unwrap();
    db.put(&key("/a/1"), "longer").await.unwrap();
    let event = next(&mut watch).await;
    let WatchChange::Put(told) = &event.change else { panic!("{event:?}") };
    assert_eq!((told.key.as_str(), &told.value, told.len), ("/a/1", &None, 6));
    let token = watch.token().unwrap();
    db.put(&key("/b/2"), "x").await.unwrap();
    // The token of a quiet prefix moves on all the same, so that it does not grow too old.
    let moved = async {
        while watch.token() == Some(token) {
            assert!(futures::poll!(watch.next()).is_pending());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(BOUND, moved).await.unwrap();
    let resumed = WatchOptions::new(Prefix::root()).from(WatchFrom::Token(watch.token().unwrap()));
    let mut behind = db.watch(resumed).unwrap();
    db.put(&key("/b/3"), "x").await.unwrap();
    assert_eq!(put(&next(&mut behind).await).0, "/b/3");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn r08_zero_and_absurd_values_of_reads_and_waits_have_a_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let (node, db) = open(&dir).await;
    let dot = db.put(&key("/a"), "1").await.unwrap();
    db.put(&key("/b"), "1").await.unwrap();
    let options = ListOptions::new(Prefix::root());
    // A page has one item at least, so that whoever asks for none goes on all the same.
    let page = db.list(&options.clone().limit(0)).unwrap();
    assert_eq!((page.items.len(), page.next.is_some()), (1, true));
    assert_eq!(db.list_stream(options.clone().limit(0)).unwrap().count().await, 0);
    for most in [usize::MAX, usize::MAX - 1] {
        assert_eq!(db.list(&options.clone().limit(most)).unwrap().items.len(), 2);
        assert_eq!(db.list_stream(options.clone().limit(most)).unwrap().count().await, 2);
    }
    assert!(node.databases_after(None, 0).unwrap().is_empty());
    // No time: an answer at once. All the time: an answer when there is one.
    let unknown = Dot { seq: u64::MAX, ..dot };
    assert!(matches!(db.wait_for(unknown, Duration::ZERO).await, Err(kvdb::WaitError::NotCovered { .. })));
    assert!(matches!(db.wait_for_holders(unknown, 1, Duration::ZERO).await, Err(kvdb::HoldersError::TooFew { .. })));
    db.wait_for(dot, Duration::MAX).await.unwrap();
    assert_eq!(db.wait_for_holders(dot, 0, Duration::MAX).await.unwrap(), [node.peer_id()]);
    assert!(matches!(db.wait_for_holders(dot, usize::MAX, Duration::MAX).await, Err(kvdb::HoldersError::NoNetwork)));
    // A token from the end of time.
    let token: WatchToken = format!("{}-{dot}", u64::MAX).parse().unwrap();
    assert!(matches!(db.watch(all().from(WatchFrom::Token(token))), Err(WatchError::TooOld { .. })));
    node.close().await.unwrap();
}
