//! Our side, by the public API.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kvdb::{Batch, Database, Dot, Durability, Key, ListOptions, NetworkOptions, Node, NodeOptions, Prefix};

use crate::bare::per_second;
use crate::rows::{key, value};

pub(crate) struct Ours {
    pub node: Node,
    pub db: Database,
}

pub(crate) async fn open(dir: &Path, network: bool) -> Ours {
    // History goes only where a row says so: a node that had dropped some would send a snapshot instead of blocks.
    let history = kvdb::HistoryOptions { interval: None, ..kvdb::HistoryOptions::default() };
    let mut options = NodeOptions::new(dir).history(history);
    if network {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")];
        options = options.network(NetworkOptions { listen, ..NetworkOptions::default() });
    }
    let node = Node::open(options).await.expect("a node opens");
    let db = node.database(&"bench".parse().expect("a name")).await.expect("a database opens");
    Ours { node, db }
}

pub(crate) fn typed_key(row: usize) -> Key {
    Key::parse(std::str::from_utf8(&key(row)).expect("text")).expect("a key")
}

/// `callers` tasks, one put each at a time; puts per second.
pub(crate) async fn put_each(db: &Database, callers: usize, rows: usize, first: usize, durability: Durability) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (db, next) = (db.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let row = next.fetch_add(1, Ordering::Relaxed);
                    if row >= rows {
                        return;
                    }
                    let value = bytes::Bytes::copy_from_slice(&value(first + row));
                    db.put_with(&typed_key(first + row), value, durability).await.expect("put");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a caller ends");
    }
    per_second(rows, start)
}

/// The times of single synced puts, in milliseconds.
pub(crate) async fn put_times_ms(db: &Database, rows: usize, first: usize) -> Vec<f64> {
    let mut times = Vec::with_capacity(rows);
    for row in first..first + rows {
        let start = Instant::now();
        let value = bytes::Bytes::copy_from_slice(&value(row));
        db.put_with(&typed_key(row), value, Durability::Sync).await.expect("put");
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times
}

/// Fills the database with blocks of `per_block` ops; returns the last block's name.
pub(crate) async fn load(db: &Database, rows: usize, per_block: usize) -> Dot {
    let mut last = None;
    let mut row = 0;
    while row < rows {
        let end = (row + per_block).min(rows);
        let mut batch = Batch::new().durability(Durability::Buffered);
        for at in row..end {
            batch = batch.put(typed_key(at), bytes::Bytes::copy_from_slice(&value(at)));
        }
        last = db.batch(batch).await.expect("a batch").dot;
        row = end;
    }
    db.sync().await.expect("synced");
    last.expect("at least one row")
}

pub(crate) fn get(db: &Database, order: &[usize]) -> f64 {
    let start = Instant::now();
    for at in order {
        let found = db.get(&typed_key(*at)).expect("read");
        assert!(found.is_some_and(|entry| entry.value.len() == 100));
    }
    per_second(order.len(), start)
}

pub(crate) async fn scan(db: &Database, keys: usize) -> f64 {
    let start = Instant::now();
    let mut stream = db.list_stream(ListOptions::new(Prefix::root()).keys_only()).expect("a listing");
    let mut count = 0;
    while let Some(item) = stream.next().await {
        item.expect("an item");
        count += 1;
    }
    assert_eq!(count, keys);
    per_second(keys, start)
}

/// Connects an empty node to a full one and waits until it has everything, on disk; keys per second.
pub(crate) async fn catch_up(full: &Ours, last: Dot, rows: usize, dir: &Path) -> f64 {
    let empty = open(dir, true).await;
    let start = Instant::now();
    let address = full.node.listen_addresses().first().expect("listens").clone();
    empty.node.dial(address).await.expect("connects");
    empty.db.wait_for(last, Duration::from_secs(600)).await.expect("catches up");
    empty.db.sync().await.expect("synced");
    let speed = per_second(rows, start);
    assert_eq!(empty.db.stats().expect("stats").digest, full.db.stats().expect("stats").digest);
    empty.node.close().await.expect("closes");
    speed
}

/// The times from a buffered put on one node to its being merged on another, in milliseconds.
pub(crate) async fn visible_ms(a: &Ours, b: &Ours, rounds: usize) -> Vec<f64> {
    let mut times = Vec::with_capacity(rounds);
    for row in 0..rounds {
        let start = Instant::now();
        let dot = a.db.put_with(&typed_key(row), "v", Durability::Buffered).await.expect("put");
        b.db.wait_for(dot, Duration::from_secs(30)).await.expect("arrives");
        times.push(start.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times
}

/// The times of single buffered puts until `done`, or of so many, in milliseconds.
pub(crate) async fn put_times_until(db: &Database, done: impl Future<Output = ()>, most: usize) -> Vec<f64> {
    let mut done = std::pin::pin!(done);
    let mut times = Vec::new();
    for row in 0..most {
        if futures::poll!(&mut done).is_ready() {
            break;
        }
        let start = Instant::now();
        let value = bytes::Bytes::copy_from_slice(&value(row));
        db.put_with(&typed_key(row % 1_000), value, Durability::Buffered).await.expect("put");
        times.push(start.elapsed().as_secs_f64() * 1e3);
        // Small writes of somebody who does other things as well.
        if row % 64 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    times
}

/// Drops all history, so that whoever comes needs a snapshot.
pub(crate) async fn forget(db: &Database) {
    let options = kvdb::CompactOptions { alone: true, min_age: Some(Duration::ZERO), max_bytes: None };
    db.compact(&options, |_| {}).await.expect("compacts");
}

/// One buffered put for each row.
pub(crate) async fn put_all(db: &Database, rows: Range<usize>) {
    for row in rows {
        db.put_with(&typed_key(row), bytes::Bytes::copy_from_slice(&value(row)), Durability::Buffered).await.expect("put");
    }
}

/// One buffered delete for each row; deletes per second.
pub(crate) async fn delete_each(db: &Database, rows: Range<usize>) -> f64 {
    let (start, count) = (Instant::now(), rows.len());
    for row in rows {
        db.batch(Batch::new().durability(Durability::Buffered).delete(typed_key(row))).await.expect("delete");
    }
    per_second(count, start)
}

/// Deletes a range of rows.
pub(crate) async fn delete(db: &Database, from: usize, to: usize) {
    for first in (from..to).step_by(64) {
        let batch = Batch::new().durability(Durability::Buffered);
        db.batch((first..to.min(first + 64)).fold(batch, |batch, row| batch.delete(typed_key(row)))).await.expect("a batch");
    }
    db.sync().await.expect("synced");
}
