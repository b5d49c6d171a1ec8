//! Memory, and opening after a kill.

use std::time::{Duration, Instant};

use crate::child::{Remote, SMALL, watch};
use crate::ours;
use crate::report::{Bound, Report};
use crate::rows::{Scale, temp};

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Memory that has had time to go back.
fn at_rest_now(node: &Remote) -> u64 {
    std::thread::sleep(Duration::from_secs(3));
    node.memory()
}

/// What sender and receiver take above rest, by blocks and by snapshot, beyond the two small caches.
pub(crate) fn catch_up(scale: &Scale, report: &mut Report) {
    let dir = temp();
    let mut full = Remote::start(dir.path(), SMALL);
    let last = full.tell(&format!("load {} 64", scale.keys));
    for way in ["blocks", "snapshot"] {
        let empty_dir = temp();
        let mut empty = Remote::start(empty_dir.path(), SMALL);
        let rest = [at_rest_now(&full), empty.memory()];
        let ids = [full.id(), empty.id()];
        let address = full.address.clone();
        let peaks = watch(ids, || {
            empty.tell(&format!("dial {address}"));
            empty.tell(&format!("wait {last}"));
        });
        let [sender, receiver] = [0, 1].map(|at: usize| {
            let of = |all: [u64; 2]| all.get(at).copied().unwrap_or_default();
            mib(of(peaks).saturating_sub(of(rest)))
        });
        // The caches of a node that has just started are empty, and fill.
        let receiver = receiver - mib(2 * SMALL as u64);
        report.add(format!("catchup-memory.{way}.sender"), sender, "MiB more", Bound::AtMost(64.0));
        report.add(format!("catchup-memory.{way}.receiver"), receiver, "MiB more", Bound::AtMost(64.0));
        empty.close();
        full.tell("forget");
    }
    full.close();
}

/// What a node takes that has loaded so many keys and rests.
pub(crate) fn at_rest(scale: &Scale, report: &mut Report) {
    let [few, many] = [scale.keys, scale.keys * 10].map(|keys| {
        let dir = temp();
        let mut node = Remote::start(dir.path(), SMALL);
        node.tell(&format!("load {keys} 64"));
        let bytes = at_rest_now(&node);
        node.close();
        bytes
    });
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let per_key = many.saturating_sub(few) as f64 / (scale.keys * 9) as f64;
    report.add("memory.per-key", per_key, "bytes", Bound::AtMost(4.0));
    report.add("memory.ten-times-the-keys", mib(many) - mib(2 * SMALL as u64), "MiB", Bound::AtMost(256.0));
}

/// Opening a database of so many keys after a kill, up to the first read.
pub(crate) fn open(scale: &Scale, report: &mut Report) {
    let dir = temp();
    let mut node = Remote::start(dir.path(), kvdb::StoreOptions::default().write_buffer_bytes);
    node.tell(&format!("load {} 64", scale.keys));
    node.kill();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let start = Instant::now();
    let us = runtime.block_on(ours::open(dir.path(), false));
    assert!(us.db.get(&ours::typed_key(0)).expect("read").is_some());
    report.add("open", start.elapsed().as_secs_f64(), "s", Bound::AtMost(1.0));
    runtime.block_on(us.node.close()).expect("closes");
}
