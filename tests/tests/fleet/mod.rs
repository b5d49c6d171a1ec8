//! Fleets of `kvdb run` processes on real sockets and disks.

mod forward;
mod restarts;
mod situations;
mod strangers;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::{Node, PATIENCE};

/// Rounds of a test: `CYCLES` makes it go on for longer.
fn cycles(usual: u64) -> u64 {
    std::env::var("CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Times of the fleet's members, in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    dead: u64,
    quiet: u64,
}

/// Quick enough for a test; a machine that is busy makes them no wrong ones, only a slower test.
const QUICK: Times = Times { dead: 2_000, quiet: 3_600_000 };

/// Several members. Each one's identity is made before any of them starts, since all must know all.
struct Fleet {
    nodes: Vec<Node>,
    ids: Vec<String>,
}

/// An answer.
#[derive(Debug, Clone)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    fn holders(&self) -> Vec<String> {
        strings(&self.json()["holders"])
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// One request; `None` if there is no answer.
fn request(port: u16, method: &str, path: &str, headers: &str, body: &[u8]) -> Option<Answer> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n{headers}\r\n");
    socket.write_all(head.as_bytes()).ok()?;
    socket.write_all(body).ok()?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).ok()?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some(Answer { status: head.split(' ').nth(1)?.parse().ok()?, head: head.to_owned(), body: body.to_owned() })
}

/// Waits until the condition gives something.
fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(25));
    }
}

impl Fleet {
    /// Members that know each other, none of them started.
    fn new(count: usize, times: Times) -> Self {
        let mut nodes: Vec<Node> = (0..count).map(|_| Node::new()).collect();
        let ids: Vec<String> = nodes.iter().map(Node::init).collect();
        let members = ids.join(",");
        for node in &mut nodes {
            let mut set = |name: &'static str, value: String| node.env.push((name, PathBuf::from(value)));
            set("KVDB_FLEET_MEMBERS", members.clone());
            set("KVDB_FLEET_BEAT_MS", (times.dead / 10).clamp(50, 200).to_string());
            set("KVDB_FLEET_SUSPECT_MS", (times.dead / 2).min(1_000).to_string());
            set("KVDB_FLEET_DEAD_MS", times.dead.to_string());
            set("KVDB_FLEET_SETTLE_MS", "1000".into());
            set("KVDB_FLEET_QUIET_MS", times.quiet.to_string());
        }
        Self { nodes, ids }
    }

    /// All of them running, with a database `demo` of so many holders, all of them ready.
    fn start(count: usize, holders: usize, times: Times) -> Self {
        let mut fleet = Self::new(count, times);
        for node in &mut fleet.nodes {
            node.env.push(("KVDB_FLEET_HOLDERS", holders.to_string().into()));
        }
        for at in 0..count {
            fleet.spawn(at);
        }
        fleet.wait_holders(holders);
        fleet
    }

    fn spawn(&mut self, at: usize) {
        let ports: Vec<u16> = self.nodes.iter().map(|node| node.peer).collect();
        self.nodes[at].spawn(&ports);
    }

    fn at(&self, id: &str) -> usize {
        self.ids.iter().position(|known| known == id).unwrap()
    }

    fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].child.is_some())
    }

    fn ask(&self, at: usize, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
        request(self.nodes[at].http, method, path, "", body)
    }

    /// A put of a key of `demo`.
    fn put(&self, at: usize, key: &str, value: &str, query: &str) -> Option<Answer> {
        put(self.nodes[at].http, key, value, query)
    }

    fn get(&self, at: usize, key: &str) -> Option<Answer> {
        self.ask(at, "GET", &format!("/v1/databases/demo/keys{key}"), &[])
    }

    /// The value at a key, from any holder that is ready by and by: an absent key is no answer to wait over.
    fn value(&self, at: usize, key: &str) -> String {
        wait_for(&format!("{key} at node {at}"), || {
            let answer = self.get(at, key)?;
            assert_ne!(answer.status, 404, "{key} is lost: {answer:?}\n{}", self.logs());
            (answer.status == 200).then_some(answer.body)
        })
    }

    /// The placement of `demo` as a node sees it.
    fn placement(&self, at: usize) -> Option<Value> {
        let answer = self.ask(at, "GET", "/v1/fleet/placement/demo", &[])?;
        (answer.status == 200).then(|| answer.json())
    }

    /// The ready and live holders of `demo`, once every running node sees at least so many.
    fn wait_holders(&self, count: usize) -> Vec<usize> {
        self.wait_ready(|ready| ready.len() >= count)
    }

    /// The ready and live holders of `demo`, in their order, once every running node sees the same, and these are right.
    fn wait_ready(&self, right: impl Fn(&[usize]) -> bool) -> Vec<usize> {
        let end = Instant::now() + PATIENCE;
        loop {
            let views: Vec<Option<Value>> = self.running().map(|at| self.placement(at)).collect();
            let ready: Vec<Vec<String>> =
                views.iter().map(|view| view.as_ref().map(|view| strings(&view["ready"])).unwrap_or_default()).collect();
            let first: Vec<usize> = ready[0].iter().map(|id| self.at(id)).collect();
            if ready.iter().all(|other| *other == ready[0]) && right(&first) {
                return first;
            }
            assert!(Instant::now() < end, "these are never the ready holders: {views:?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The holders of `demo` once nothing moves any more: all see all, and those hold it that should, and nobody else.
    fn wait_settled(&self, count: usize) -> Vec<usize> {
        let live = self.running().count();
        wait_for("the fleet settles", || self.running().all(|at| self.is_settled(at, count, live) == Some(true)).then_some(()));
        self.wait_holders(count)
    }

    fn is_settled(&self, at: usize, count: usize, live: usize) -> Option<bool> {
        let members = self.ask(at, "GET", "/v1/fleet/members", &[])?;
        let view = self.placement(at)?;
        let (mut desired, mut ready) = (strings(&view["desired"]), strings(&view["ready"]));
        desired.sort();
        ready.sort();
        let claims = view["claims"].as_array()?.len();
        Some(members.json()["fleet"]["live"] == live && desired == ready && ready.len() == count && claims == count)
    }

    fn logs(&self) -> String {
        let log = |node: &Node| node.log().lines().rev().take(20).collect::<Vec<_>>().join("\n");
        self.nodes.iter().map(log).collect::<Vec<_>>().join("\n---\n")
    }

    /// All keys of `demo` with their values, by a listing at a node.
    fn all(&self, at: usize) -> std::collections::BTreeMap<String, String> {
        wait_for("a whole listing", || {
            let answer = self.ask(at, "GET", "/v1/databases/demo/list", &[])?;
            let records: Vec<Value> = answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            records.last()?.get("end")?;
            let text = |record: &Value, field: &str| record[field].as_str().unwrap_or_default().to_owned();
            let entries = records.iter().filter(|record| record.get("key").is_some());
            Some(entries.map(|record| (text(record, "key"), text(record, "value"))).collect())
        })
    }
}

fn put(port: u16, key: &str, value: &str, query: &str) -> Option<Answer> {
    request(port, "PUT", &format!("/v1/databases/demo/keys{key}{query}"), "", value.as_bytes())
}

/// Writers at all nodes until told to stop. Each remembers what was confirmed to it.
struct Writers {
    stop: Arc<AtomicBool>,
    confirmed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Writers {
    fn start(fleet: &Fleet) -> Self {
        let (stop, confirmed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writer = |(number, node): (usize, &Node)| {
            let (stop, total, port) = (Arc::clone(&stop), Arc::clone(&confirmed), node.http);
            std::thread::spawn(move || {
                let mut keys = Vec::new();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("/writer/{number}/{n:06}");
                    let answer = put(port, &key, &key, "?durability=require(2)&deadline_ms=3000");
                    if answer.is_some_and(|answer| answer.status == 200) {
                        keys.push(key);
                        total.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
                keys
            })
        };
        let threads = fleet.nodes.iter().enumerate().map(writer).collect();
        Self { stop, confirmed, threads }
    }

    /// Waits until so many more writes are confirmed.
    fn wait_more(&self, count: u64) {
        let from = self.confirmed.load(Ordering::Relaxed);
        wait_for("writes go on", || (self.confirmed.load(Ordering::Relaxed) >= from + count).then_some(()));
    }

    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

/// Every key that was confirmed is listed at every running node, with its value.
fn assert_kept(fleet: &Fleet, keys: &[String]) {
    for at in fleet.running() {
        let all = fleet.all(at);
        for key in keys {
            assert_eq!(all.get(key), Some(key), "{key} at node {at}\n{}", fleet.logs());
        }
    }
}

fn drain(fleet: &Fleet, at: usize, body: &Value) -> Answer {
    fleet.ask(at, "POST", "/v1/fleet/drain", body.to_string().as_bytes()).unwrap()
}

#[test]
fn a_fleet_of_one_confirms_by_itself_if_it_is_told_to_and_only_then() {
    let mut node = Node::new();
    node.env.push(("KVDB_FLEET_SINGLE", "true".into()));
    node.env.push(("KVDB_FLEET_SETTLE_MS", "0".into()));
    node.start(&[]);
    let port = node.http;
    let answer = wait_for("a write", || put(port, "/a", "1", "").filter(|answer| answer.status == 200));
    assert_eq!(answer.holders().len(), 1);
    let answer = put(port, "/a", "1", "?durability=require(2)").unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"), "{answer:?}");
    // It survives a restart.
    assert_eq!(node.stop(), Some(0), "{}", node.log());
    node.start(&[]);
    let read = wait_for("a read", || request(port, "GET", "/v1/databases/demo/keys/a", "", &[]).filter(|a| a.status == 200));
    assert_eq!(read.body, "1");
    let made = request(port, "PUT", "/v1/databases/two", "", json!({ "holders": 2 }).to_string().as_bytes()).unwrap();
    assert_eq!(made.status, 400, "{made:?}");
}
