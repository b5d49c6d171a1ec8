//! A slow disk stalls nobody but those who wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ask;
use super::sick::{Disk, Field};
use crate::cluster::{Node, wait_equal};

/// Far above what an answer takes, far below what a stall of the executor would last here.
const BOUND: Duration = Duration::from_secs(5);

/// Asks again and again until told to stop; the time of each answer, ascending.
fn ask_often(http: u16, path: &str, stop: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        assert!(ask(http, "GET", path, b"").is_some(), "{path} was not answered");
        times.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    times.sort();
    times
}

fn disconnections(node: &Node) -> u64 {
    let (_, body) = node.get("/v1/status").unwrap();
    let status: Value = serde_json::from_str(&body).unwrap();
    status["network"]["disconnections"].as_u64().unwrap_or(0)
}

#[test]
fn s12_health_answers_and_no_peer_is_dropped_while_a_slow_disk_is_busy() {
    let (mut node, mut late) = (Node::new(), Node::new());
    let (Some(disk), Some(other)) = (Disk::under(&mut node), Disk::under(&mut late)) else { return };
    node.start(&[]);
    assert!(node.import("/k", 0, 60_000));
    node.kill();
    // Nothing is cached any more.
    node.start(&[]);
    for disk in [&disk, &other] {
        disk.set(Field::Rate, 5 << 20);
    }
    late.spawn(&[node.peer]);
    late.wait_up();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let paths = ["/healthz", "/readyz", "/v1/status"];
        let askers: Vec<_> = [node.http, late.http]
            .iter()
            .flat_map(|http| paths.map(|path| (*http, path)))
            .map(|(http, path)| {
                (
                    path,
                    scope.spawn({
                        let stop = &stop;
                        move || ask_often(http, path, stop)
                    }),
                )
            })
            .collect();
        let listing = scope.spawn(|| ask(node.http, "GET", "/v1/databases/demo/list?limit=60000", b""));
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (stop, http) = (&stop, node.http);
                scope.spawn(move || {
                    for n in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return n;
                        }
                        let kind = if writer % 2 == 0 { "sync" } else { "buffered" };
                        let path = format!("{}?durability={kind}", super::at(&format!("/w/{writer}/{n}")));
                        assert_eq!(ask(http, "PUT", &path, &[b'v'; 4_000]).unwrap().0, 200);
                    }
                    0
                })
            })
            .collect();
        let listed = listing.join().unwrap();
        wait_equal_for(&node, &late);
        stop.store(true, Ordering::Relaxed);
        let written: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        for (path, asker) in askers {
            let times = asker.join().unwrap();
            let (middle, worst) = (times[times.len() / 2], times[times.len() - 1]);
            println!("{path}: {} answers, median {middle:?}, worst {worst:?}", times.len());
            assert!(worst < BOUND, "{path} took {worst:?}");
        }
        println!("{written} puts meanwhile");
        assert!(written > 0);
        assert!(listed.is_some_and(|(status, body)| status == 200 && body.contains("\"end\"")), "the listing is not whole");
    });
    disk.heal();
    other.heal();
    wait_equal(&[&node, &late], |keys| keys > 60_000);
    let [[_, _, read, _], [written, synced, ..]] = [disk.calls(), other.calls()];
    assert!(read > 0 && written > 0 && synced > 0, "the slow disks were not in use");
    assert_eq!((disconnections(&node), disconnections(&late)), (0, 0), "a peer was dropped");
}

/// Waits until the late one has caught up with what was there at its start.
fn wait_equal_for(node: &Node, late: &Node) {
    let end = Instant::now() + crate::cluster::PATIENCE;
    while late.state().is_none_or(|(keys, _)| keys < 60_000) {
        assert!(Instant::now() < end, "{:?} of {:?}\n{}", late.state(), node.state(), late.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}
