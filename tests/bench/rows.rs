//! The rows of the budget.

use std::sync::Arc;

use kvdb::Durability;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use tempfile::TempDir;

use crate::report::{Bound, Report, median, quantile};
use crate::{bare, memory, ours, probe};

pub(crate) struct Row {
    pub name: &'static str,
    pub measure: fn(&Scale, &mut Report),
}

pub(crate) const ROWS: &[Row] = &[
    Row { name: "put64-buffered", measure: put64_buffered },
    Row { name: "put64-sync", measure: put64_sync },
    Row { name: "put64-bulk", measure: put64_bulk },
    Row { name: "put1-buffered", measure: put1_buffered },
    Row { name: "put1-sync", measure: put1_sync },
    Row { name: "get", measure: get },
    Row { name: "list", measure: list },
    Row { name: "delete-versions", measure: delete_versions },
    Row { name: "catchup-64", measure: |scale, report| catch_up("catchup-64", scale, report, 64, false, 0.2) },
    Row { name: "catchup-1", measure: |scale, report| catch_up("catchup-1", scale, report, 1, false, 0.06) },
    Row { name: "snapshot", measure: |scale, report| catch_up("snapshot", scale, report, 64, true, 0.6) },
    Row { name: "visible", measure: visible },
    Row { name: "compaction", measure: compaction },
    Row { name: "list-after-deletes", measure: list_after_deletes },
    Row { name: "catchup-memory", measure: memory::catch_up },
    Row { name: "memory", measure: memory::at_rest },
    Row { name: "open", measure: memory::open },
];

/// How much is measured.
pub(crate) struct Scale {
    rounds: usize,
    puts: usize,
    synced_puts: usize,
    pub keys: usize,
    reads: usize,
    latencies: usize,
}

impl Scale {
    pub(crate) fn full() -> Self {
        Self { rounds: 5, puts: 200_000, synced_puts: 20_000, keys: 1_000_000, reads: 300_000, latencies: 1_000 }
    }

    pub(crate) fn quick() -> Self {
        Self { rounds: 1, puts: 2_000, synced_puts: 200, keys: 5_000, reads: 2_000, latencies: 20 }
    }
}

/// A key of 32 bytes; consecutive rows lie far apart, as callers' keys do.
pub(crate) fn key(row: usize) -> [u8; 32] {
    let mut key = [b'0'; 32];
    let spread = (row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    key.iter_mut().zip(format!("/{spread:016x}/").into_bytes()).for_each(|(to, from)| *to = from);
    key
}

/// A value of 100 bytes that does not compress.
pub(crate) fn value(row: usize) -> [u8; 100] {
    let mut value = [0; 100];
    rand::rngs::SmallRng::seed_from_u64(row as u64).fill_bytes(&mut value);
    value
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

pub(crate) fn temp() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Both sides in turn, `rounds` times; reports each side's median and the median of the ratios.
fn compare(
    name: &str,
    rounds: usize,
    least: f64,
    report: &mut Report,
    mut our: impl FnMut(usize) -> f64,
    mut bare: impl FnMut(usize) -> f64,
) {
    let (mut ours, mut bares, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (a, b) = (our(round), bare(round));
        eprintln!("  {name} round {round}: {a:.0}/s, bare {b:.0}/s");
        ours.push(a);
        bares.push(b);
        ratios.push(a / b);
    }
    report.add(name, median(ratios), "ratio", Bound::AtLeast(least));
    report.add(format!("{name}.ours"), median(ours), "per s", Bound::None);
    report.add(format!("{name}.bare"), median(bares), "per s", Bound::None);
}

/// Puts by `callers` against bare RocksDB by `bare_put`.
fn compare_puts(
    name: &str,
    (rounds, rows): (usize, usize),
    least: f64,
    report: &mut Report,
    (callers, durability): (usize, Durability),
    bare_put: impl Fn(&Arc<rocksdb::DB>, usize, usize) -> f64,
) {
    let (runtime, dir, bare_dir) = (runtime(), temp(), temp());
    let us = runtime.block_on(ours::open(dir.path(), false));
    let them = Arc::new(bare::open(bare_dir.path()));
    let our = |round: usize| {
        // Callers are tasks of the runtime, as in a program; the thread that started them only waits.
        let (db, first) = (us.db.clone(), round * rows);
        runtime.block_on(
            async move { tokio::spawn(async move { ours::put_each(&db, callers, rows, first, durability).await }).await },
        )
    };
    compare(name, rounds, least, report, |round| our(round).expect("measured"), |round| bare_put(&them, rows, round * rows));
    runtime.block_on(us.node.close()).expect("closes");
}

fn put64_buffered(scale: &Scale, report: &mut Report) {
    let size = (scale.rounds, scale.puts);
    compare_puts("put64-buffered", size, 1.5, report, (64, Durability::Buffered), |db, rows, first| {
        bare::put_each(db, 64, rows, first, false)
    });
}

fn put64_sync(scale: &Scale, report: &mut Report) {
    let dir = temp();
    report.add("put64-sync.fdatasync-before", probe::fdatasync_ms(dir.path(), 50), "ms", Bound::None);
    let size = (scale.rounds, scale.synced_puts);
    compare_puts("put64-sync", size, 1.0, report, (64, Durability::Sync), |db, rows, first| {
        bare::put_each(db, 64, rows, first, true)
    });
    report.add("put64-sync.fdatasync-after", probe::fdatasync_ms(dir.path(), 50), "ms", Bound::None);
}

fn put64_bulk(scale: &Scale, report: &mut Report) {
    let size = (scale.rounds, scale.puts);
    compare_puts("put64-bulk", size, 0.25, report, (64, Durability::Buffered), |db, rows, first| {
        bare::put_batches(db, rows, 64, first)
    });
}

fn put1_buffered(scale: &Scale, report: &mut Report) {
    let size = (scale.rounds, scale.puts / 4);
    compare_puts("put1-buffered", size, 0.1, report, (1, Durability::Buffered), |db, rows, first| {
        bare::put_batches(db, rows, 1, first)
    });
}

fn put1_sync(scale: &Scale, report: &mut Report) {
    let (runtime, dir) = (runtime(), temp());
    let us = runtime.block_on(ours::open(dir.path(), false));
    let (mut probes, mut puts) = (Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        probes.push(probe::fdatasync_ms(dir.path(), 100));
        let mut times = runtime.block_on(ours::put_times_ms(&us.db, scale.synced_puts / 40, round * scale.synced_puts));
        puts.push(quantile(&mut times, 0.5));
    }
    let extra = median(puts.iter().zip(&probes).map(|(put, probe)| put - probe).collect());
    report.add("put1-sync", extra, "ms more", Bound::AtMost(0.3));
    report.add("put1-sync.ours", median(puts), "ms p50", Bound::None);
    report.add("put1-sync.fdatasync", median(probes), "ms p50", Bound::None);
    runtime.block_on(us.node.close()).expect("closes");
}

/// The same keys on both sides.
fn loaded<T>(scale: &Scale, measure: impl FnOnce(&tokio::runtime::Runtime, &ours::Ours, &rocksdb::DB) -> T) -> T {
    let (runtime, dir, bare_dir) = (runtime(), temp(), temp());
    let us = runtime.block_on(ours::open(dir.path(), false));
    let them = bare::open(bare_dir.path());
    runtime.block_on(ours::load(&us.db, scale.keys, 64));
    bare::put_batches(&them, scale.keys, 1_000, 0);
    let result = measure(&runtime, &us, &them);
    runtime.block_on(us.node.close()).expect("closes");
    result
}

fn get(scale: &Scale, report: &mut Report) {
    let mut order: Vec<usize> = (0..scale.keys).collect();
    order.shuffle(&mut rand::rngs::SmallRng::seed_from_u64(1));
    order.truncate(scale.reads);
    loaded(scale, |_, us, them| {
        compare("get", scale.rounds, 0.8, report, |_| ours::get(&us.db, &order), |_| bare::get(them, &order));
    });
}

fn list(scale: &Scale, report: &mut Report) {
    loaded(scale, |runtime, us, them| {
        let our = |_| runtime.block_on(ours::scan(&us.db, scale.keys));
        compare("list", scale.rounds, 0.5, report, our, |_| bare::scan(them, scale.keys));
    });
}

/// An empty node gets everything from a full one: its blocks, or, if it has forgotten them, a snapshot.
fn catch_up(name: &str, scale: &Scale, report: &mut Report, per_block: usize, by_snapshot: bool, least: f64) {
    let (runtime, dir) = (runtime(), temp());
    let full = runtime.block_on(ours::open(dir.path(), true));
    let dot = runtime.block_on(ours::load(&full.db, scale.keys, per_block));
    if by_snapshot {
        runtime.block_on(ours::forget(&full.db));
    }
    let our = |_| {
        let empty = temp();
        runtime.block_on(ours::catch_up(&full, dot, scale.keys, empty.path()))
    };
    let bare = |_| {
        let dir = temp();
        bare::put_batches(&bare::open(dir.path()), scale.keys, 1_000, 0)
    };
    compare(name, scale.rounds.min(3), least, report, our, bare);
    runtime.block_on(full.node.close()).expect("closes");
}

/// Deletes of keys that were written often, against deletes of keys that were written once.
fn delete_versions(scale: &Scale, report: &mut Report) {
    const VERSIONS: usize = 1_000;
    let (runtime, dir) = (runtime(), temp());
    let us = runtime.block_on(ours::open(dir.path(), false));
    let keys = (scale.puts / 400).min(VERSIONS);
    let delete = |first: usize, versions: usize| {
        runtime.block_on(async {
            for _ in 0..versions {
                ours::put_all(&us.db, first..first + keys).await;
            }
            ours::delete_each(&us.db, first..first + keys).await
        })
    };
    let rounds = scale.rounds;
    compare(
        "delete-versions",
        rounds,
        0.9,
        report,
        |round| delete(2 * round * keys, VERSIONS),
        |round| delete((2 * round + 1) * keys, 1),
    );
    runtime.block_on(us.node.close()).expect("closes");
}

fn visible(scale: &Scale, report: &mut Report) {
    let (runtime, dirs) = (runtime(), (temp(), temp()));
    let mut times = runtime.block_on(async {
        let (a, b) = (ours::open(dirs.0.path(), true).await, ours::open(dirs.1.path(), true).await);
        b.node.dial(a.node.listen_addresses().first().expect("listens").clone()).await.expect("connects");
        let first = a.db.put(&ours::typed_key(usize::MAX), "first").await.expect("put");
        b.db.wait_for(first, std::time::Duration::from_secs(30)).await.expect("connected");
        let times = ours::visible_ms(&a, &b, scale.latencies).await;
        a.node.close().await.expect("closes");
        b.node.close().await.expect("closes");
        times
    });
    report.add("visible.p50", quantile(&mut times, 0.5), "ms", Bound::AtMost(3.0));
    report.add("visible.p99", quantile(&mut times, 0.99), "ms", Bound::AtMost(50.0));
}

/// Small buffered puts of one caller, first alone, then while a long compaction drops and rewrites what was loaded.
fn compaction(scale: &Scale, report: &mut Report) {
    let (runtime, dir) = (runtime(), temp());
    let (mut alone, mut beside, seconds) = runtime.block_on(async {
        let us = ours::open(dir.path(), false).await;
        ours::load(&us.db, scale.keys, 1).await;
        let alone = ours::put_times_until(&us.db, std::future::pending(), scale.reads / 10).await;
        let compacting = us.db.clone();
        let begun = std::time::Instant::now();
        let task = tokio::spawn(async move {
            ours::forget(&compacting).await;
        });
        let done = async {
            task.await.expect("ends");
        };
        let beside = ours::put_times_until(&us.db, done, usize::MAX).await;
        let seconds = begun.elapsed().as_secs_f64();
        us.node.close().await.expect("closes");
        (alone, beside, seconds)
    });
    let (quiet, busy) = (quantile(&mut alone, 0.99), quantile(&mut beside, 0.99));
    report.add("compaction.put-p99-alone", quiet, "ms", Bound::None);
    report.add("compaction.put-p99-beside", busy, "ms", Bound::None);
    report.add("compaction.put-p99-ratio", busy / quiet, "", Bound::AtMost(3.0));
    report.add("compaction.seconds", seconds, "s", Bound::None);
}

/// A full listing of what is left after five times as many other keys were deleted, against that of a database in which
/// they never were.
fn list_after_deletes(scale: &Scale, report: &mut Report) {
    let (runtime, dirs) = (runtime(), (temp(), temp()));
    let keys = scale.keys / 5;
    runtime.block_on(async {
        let (fresh, used) = (ours::open(dirs.0.path(), false).await, ours::open(dirs.1.path(), false).await);
        ours::load(&fresh.db, keys, 64).await;
        ours::load(&used.db, keys * 6, 64).await;
        ours::delete(&used.db, keys, keys * 6).await;
        let before = ours::scan(&fresh.db, keys).await / ours::scan(&used.db, keys).await;
        report.add("list-after-deletes.at-once", before, "", Bound::None);
        // What a node does by itself within a minute or so.
        used.db.compact(&kvdb::CompactOptions::default(), |_| {}).await.expect("compacts");
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..scale.rounds {
            without.push(ours::scan(&fresh.db, keys).await);
            with.push(ours::scan(&used.db, keys).await);
        }
        report.add("list-after-deletes.time-ratio", median(without) / median(with), "", Bound::AtMost(1.5));
        fresh.node.close().await.expect("closes");
        used.node.close().await.expect("closes");
    });
}
