//! A victim in a process of its own, an honest node beside it, and what must hold while somebody attacks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvdb::{DatabaseId, Multiaddr, PeerId};
use serde_json::Value;

use crate::cluster::{Node, wait_equal};
use crate::crash::{ask, at};

pub(super) struct Arena {
    pub(super) victim: Node,
    pub(super) honest: Node,
    pub(super) address: Multiaddr,
    pub(super) peer: PeerId,
    pub(super) database: DatabaseId,
}

/// What the honest clients of the victim saw.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) puts: usize,
    pub(super) p99: Duration,
    /// How much the victim's memory grew, in MiB.
    pub(super) grown: u64,
}

impl Arena {
    pub(super) fn new() -> Self {
        let (mut victim, mut honest) = (Node::new(), Node::new());
        honest.start(&[]);
        victim.start(&[honest.peer]);
        for node in [&victim, &honest] {
            assert_eq!(ask(node.http, "PUT", &at(&format!("/of/{}", node.http)), b"1").unwrap().0, 200);
        }
        wait_equal(&[&victim, &honest], |keys| keys == 2);
        let address = format!("/ip4/127.0.0.1/tcp/{}", victim.peer).parse().unwrap();
        let peer = status(&victim)["peer_id"].as_str().unwrap().parse().unwrap();
        Self { victim, honest, address, peer, database: DatabaseId::of(&"demo".parse().unwrap(), 0) }
    }

    /// How often something happened at the victim since its start.
    pub(super) fn count(&self, what: &str) -> u64 {
        status(&self.victim)["network"][what].as_u64().unwrap_or(0)
    }

    /// A figure of the victim's database.
    pub(super) fn figure(&self, what: &str) -> u64 {
        status(&self.victim)["databases"][0][what].as_u64().unwrap()
    }

    /// Attacks while honest clients write to both nodes: every put must succeed, the victim's memory may grow by so many
    /// MiB only, and in the end both are equal.
    pub(super) fn endures(&self, name: &str, most_mib: u64, attack: impl Future<Output = ()>) -> Report {
        let before = self.resident();
        let stop = AtomicBool::new(false);
        let (victim, honest) = (self.victim.http, self.honest.http);
        let report = std::thread::scope(|scope| {
            let writers = [victim, honest].map(|http| {
                let stop = &stop;
                scope.spawn(move || write(http, name, stop))
            });
            let memory = scope.spawn(|| {
                let mut peak = before;
                while !stop.load(Ordering::Relaxed) {
                    peak = peak.max(self.resident());
                    std::thread::sleep(Duration::from_millis(50));
                }
                peak
            });
            let stop_at_end = StopAtEnd(&stop);
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(attack));
            drop(stop_at_end);
            let [times, _] = writers.map(|writer| writer.join().unwrap());
            let peak = memory.join().unwrap();
            Report { puts: times.len(), p99: times[times.len() * 99 / 100], grown: peak.saturating_sub(before) >> 20 }
        });
        println!("{name}: {report:?}");
        assert!(report.grown <= most_mib, "{name}: memory grew by {} MiB, {most_mib} are allowed", report.grown);
        wait_equal(&[&self.victim, &self.honest], |_| true);
        report
    }

    fn resident(&self) -> u64 {
        let id = self.victim.child.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.victim.log();
            let last = log.lines().rev().take(15).collect::<Vec<_>>();
            eprintln!("the victim's last words:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Ends the writers even when the attack panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn status(node: &Node) -> Value {
    let (_, body) = node.get("/v1/status").expect("the node answers");
    serde_json::from_str(&body).unwrap()
}

/// Puts again and again; the time of each, ascending.
fn write(http: u16, name: &str, stop: &AtomicBool) -> Vec<Duration> {
    let (mut times, name) = (Vec::new(), name.replace(' ', "-"));
    while !stop.load(Ordering::Relaxed) || times.is_empty() {
        let key = format!("/honest/{http}/{name}/{}", times.len() % 100);
        let start = Instant::now();
        let answer = ask(http, "PUT", &at(&key), b"an honest value").expect("an answer");
        assert_eq!(answer.0, 200, "{}", answer.1);
        times.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort();
    times
}
