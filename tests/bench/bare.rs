//! The other side: RocksDB by itself, tuned like our store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteBatch, WriteOptions};

use crate::rows::{key, value};

pub(crate) fn open(dir: &Path) -> DB {
    let store = kvdb::StoreOptions::default();
    let cache = Cache::new_lru_cache(store.block_cache_bytes);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_block_based_table_factory(&table);
    options.set_db_write_buffer_size(store.write_buffer_bytes);
    options.increase_parallelism(2);
    DB::open(&options, dir).expect("bare RocksDB opens")
}

/// `threads` callers, one row per batch; rows per second.
pub(crate) fn put_each(db: &Arc<DB>, threads: usize, rows: usize, first: usize, sync: bool) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let callers: Vec<_> = (0..threads)
        .map(|_| {
            let (db, next) = (Arc::clone(db), Arc::clone(&next));
            std::thread::spawn(move || {
                let mut options = WriteOptions::default();
                options.set_sync(sync);
                loop {
                    let row = next.fetch_add(1, Ordering::Relaxed);
                    if row >= rows {
                        return;
                    }
                    let mut batch = WriteBatch::default();
                    batch.put(key(first + row), value(first + row));
                    db.write_opt(batch, &options).expect("written");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("a caller ends");
    }
    per_second(rows, start)
}

/// One thread, several rows per batch; rows per second.
pub(crate) fn put_batches(db: &DB, rows: usize, per_batch: usize, first: usize) -> f64 {
    let start = Instant::now();
    let mut row = 0;
    while row < rows {
        let end = (row + per_batch).min(rows);
        let mut batch = WriteBatch::default();
        for at in row..end {
            batch.put(key(first + at), value(first + at));
        }
        db.write(batch).expect("written");
        row = end;
    }
    per_second(rows, start)
}

/// Random reads of present keys; reads per second.
pub(crate) fn get(db: &DB, order: &[usize]) -> f64 {
    let start = Instant::now();
    for at in order {
        let found = db.get_pinned(key(*at)).expect("read");
        assert!(found.is_some_and(|value| value.len() == 100));
    }
    per_second(order.len(), start)
}

/// A walk over all keys; keys per second.
pub(crate) fn scan(db: &DB, keys: usize) -> f64 {
    let start = Instant::now();
    let mut walk = db.raw_iterator();
    walk.seek_to_first();
    let mut count = 0;
    while walk.valid() {
        assert!(walk.key().is_some_and(|key| key.len() == 32));
        count += 1;
        walk.next();
    }
    walk.status().expect("no error");
    assert_eq!(count, keys);
    per_second(keys, start)
}

#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub(crate) fn per_second(rows: usize, start: Instant) -> f64 {
    rows as f64 / start.elapsed().as_secs_f64()
}
