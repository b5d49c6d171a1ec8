//! What a node answers of databases that it does not hold.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use kvdb::{NetworkOptions, NodeOptions, PeerId};
use serde_json::{Value, json};

use super::{Answer, Fleet, Times, request, strings, wait_for};
use crate::cluster::PATIENCE;

fn fill(fleet: &Fleet, at: usize, count: usize) {
    let ops: Vec<Value> = (0..count).map(|n| json!({ "put": format!("/k/{n:04}"), "value": format!("value {n}") })).collect();
    let answer = fleet.ask(at, "POST", "/v1/databases/demo/batch", json!({ "ops": ops }).to_string().as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Nobody is called dead, so that nothing moves but by what a test does.
const STILL: Times = Times { dead: 300_000, quiet: 500 };

/// A node that holds nothing, once the one that made the database has let go of it, and those that hold it.
fn outsider(fleet: &Fleet) -> (usize, Vec<usize>) {
    let holders = fleet.wait_settled(2);
    ((0..fleet.nodes.len()).find(|at| !holders.contains(at)).unwrap(), holders)
}

#[test]
fn r24_every_operation_works_at_a_node_that_holds_nothing_and_names_who_served() {
    let fleet = Fleet::start(3, 2, STILL);
    let (at, holders) = outsider(&fleet);
    fill(&fleet, at, 600);
    let ids: Vec<&String> = holders.iter().map(|at| &fleet.ids[*at]).collect();
    let ask = |method: &str, path: &str| {
        let answer = fleet.ask(at, method, &format!("/v1/databases/demo{path}"), &[]).unwrap();
        let by = answer.header("kvdb-served-by").map(str::to_owned);
        assert!(by.as_ref().is_some_and(|by| ids.contains(&by)), "{path}: {answer:?}");
        answer
    };
    let listed = ask("GET", "/list?keys_only=true");
    assert_eq!(listed.body.lines().count(), 601, "600 keys and an end");
    assert!(listed.body.ends_with("{\"end\":{\"count\":600,\"next\":null}}\n"));
    let got = ask("GET", "/keys/k/0007");
    assert_eq!((got.status, got.body.as_str()), (200, "value 7"));
    // One write is one block, at whichever holder it is read: nothing is done over again at another.
    let dot = got.header("kvdb-dot").unwrap().to_owned();
    for holder in &holders {
        let there = fleet.get(*holder, "/k/0007").unwrap();
        assert_eq!((there.header("kvdb-dot"), there.header("kvdb-siblings")), (Some(dot.as_str()), Some("1")));
    }
    assert_eq!(ask("HEAD", "/keys/k/0007").header("content-length"), Some("7"));
    assert_eq!(ask("GET", "/keys/none").code(), "key_not_found");
    assert_eq!(ask("GET", "/siblings?key=/k/0007").json()["siblings"][0]["dot"], dot.as_str());
    assert_eq!(ask("GET", "/conflicts").body.lines().count(), 1);
    assert_eq!(ask("GET", "").json()["keys"], 600);
    assert_eq!(ask("GET", &format!("/wait?dot={dot}")).json()["covered"], true);
    assert_eq!(ask("GET", &format!("/keys/k/0007?at={dot}&confirmed=true")).body, "value 7");
    assert_eq!(ask("GET", "/list?limit=x").code(), "bad_request");
    // The command line, and what is done on one node only.
    let exported = fleet.nodes[at].client(&["export", "/k"], "");
    assert_eq!((exported.status.code(), String::from_utf8(exported.stdout).unwrap().lines().count()), (Some(0), 601));
    assert_eq!(fleet.ask(at, "GET", "/v1/databases/demo/verify", &[]).unwrap().code(), "not_held_here");
    assert_eq!(fleet.ask(holders[0], "GET", "/v1/databases/demo/verify", &[]).unwrap().json()["sound"], true);
    assert_eq!(fleet.ask(at, "GET", "/v1/databases/nothing/list", &[]).unwrap().code(), "database_not_found");
    // Its own records are no database of anybody.
    assert_eq!(fleet.ask(at, "GET", "/v1/databases/_fleet/list", &[]).unwrap().code(), "database_not_found");
    assert_eq!(fleet.ask(at, "PUT", "/v1/databases/_fleet/keys/a", b"x").unwrap().code(), "database_not_found");
}

/// A watch that is being read.
struct Watching(BufReader<TcpStream>);

impl Watching {
    fn start(port: u16, path: &str, header: &str) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(socket, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{header}\r\n").unwrap();
        Self(BufReader::new(socket))
    }

    /// Reads on to a line that begins so; `None` when the watch has ended before.
    fn until(&mut self, start: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(rest) = line.strip_prefix(start) {
                return Some(rest.trim().to_owned());
            }
        }
    }
}

#[test]
fn a_watch_through_another_node_follows_and_never_goes_on_in_silence_elsewhere() {
    let mut fleet = Fleet::start(3, 2, STILL);
    let (at, holders) = outsider(&fleet);
    fill(&fleet, at, 3);
    let port = fleet.nodes[at].http;
    let path = "/v1/databases/demo/watch?from=list&keys_only=true";
    let mut watch = Watching::start(port, path, "");
    let served_by = fleet.at(&watch.until("kvdb-served-by: ").unwrap());
    assert!(holders.contains(&served_by));
    watch.until("event: listed").unwrap();
    watch.until("data: ").unwrap();
    let answer = fleet.put(at, "/live", "1", "").unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(watch.until("data: ").unwrap().contains("/live"));
    let token = watch.until("id: ").unwrap();
    assert!(token.ends_with(&format!("@{}", fleet.ids[served_by])), "{token}");
    // The token is good with the one who gave it.
    let good = Watching::start(port, path, &format!("Last-Event-ID: {token}\r\n"));
    drop(good);
    fleet.nodes[served_by].kill();
    assert_eq!(watch.until("event: put"), None, "it has ended");
    // Another one's log has another order: who resumes is told to list again.
    let reset = wait_for("another holder", || {
        let mut again = Watching::start(port, "/v1/databases/demo/watch", &format!("Last-Event-ID: {token}\r\n"));
        let status = again.until("HTTP/1.0 ")?;
        (status == "200 OK").then(|| again.until("event: "))
    });
    assert_eq!(reset.as_deref(), Some("reset"));
    let query = format!("/v1/databases/demo/watch?from={}", token.replace('@', "%40"));
    let refused = wait_for("an answer", || request(port, "GET", &query, "", &[]).filter(|answer| answer.status != 503));
    assert_eq!((refused.status, refused.code().as_str()), (410, "too_old"));
}

/// Sends a request as a member does that passes one on.
async fn pass_on(node: &kvdb::Node, to: PeerId, text: &str) -> Answer {
    let mut streams = node.streams().unwrap();
    let mut stream = loop {
        match tokio::time::timeout(PATIENCE, streams.open(to, "/kvdb/fleet-http/1")).await.expect("no stream in time") {
            Ok(stream) => break stream,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    };
    stream.write_all(format!("{text} HTTP/1.1\r\nhost: member\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("no answer in time").unwrap();
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// A member's identity in this process, connected to all others.
async fn stand_in(fleet: &Fleet, at: usize) -> kvdb::Node {
    let addresses = fleet.nodes.iter().map(|node| format!("/ip4/127.0.0.1/tcp/{}", node.peer).parse().unwrap());
    let bootstrap = addresses.enumerate().filter(|(other, _)| *other != at).map(|(_, address)| address).collect();
    let network = NetworkOptions { listen: Vec::new(), bootstrap, ..NetworkOptions::default() };
    let options = NodeOptions::new(fleet.nodes[at].dir.path().join("data")).network(network);
    kvdb::Node::open(options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_view_is_answered_with_the_right_one_and_members_pass_on_reads_only() {
    let mut fleet = Fleet::start(4, 2, STILL);
    let (_, holders) = outsider(&fleet);
    let others: Vec<usize> = (0..4).filter(|at| !holders.contains(at)).collect();
    let (asked, played) = (others[0], others[1]);
    fill(&fleet, asked, 3);
    assert_eq!(fleet.nodes[played].stop(), Some(0), "{}", fleet.nodes[played].log());
    let member = stand_in(&fleet, played).await;
    let peer: PeerId = fleet.ids[asked].parse().unwrap();
    let list = "/v1/databases/demo/list";
    let stale = pass_on(&member, peer, &format!("GET {list}")).await;
    assert_eq!((stale.status, stale.code().as_str()), (503, "stale_view"), "{stale:?}");
    let named: Vec<&str> = stale.header("kvdb-holders").unwrap().split(',').collect();
    assert_eq!(named, holders.iter().map(|at| fleet.ids[*at].as_str()).collect::<Vec<_>>());
    let holder: PeerId = fleet.ids[holders[0]].parse().unwrap();
    let listed = pass_on(&member, holder, &format!("GET {list}")).await;
    assert!(listed.status == 200 && listed.body.contains("/k/0002") && listed.body.contains("\"end\""), "{listed:?}");
    // No way around tokens, and none to write past the fleet's own calls.
    for wrong in [
        "PUT /v1/databases/demo/keys/x".to_owned(),
        "DELETE /v1/databases/demo".to_owned(),
        "GET /v1/status".to_owned(),
        "POST /v1/databases/demo/batch".to_owned(),
        "POST /v1/fleet/members/x/forget".to_owned(),
    ] {
        let refused = pass_on(&member, holder, &wrong).await;
        assert!([400, 403].contains(&refused.status), "{wrong}: {refused:?}");
    }
    member.close().await.unwrap();
    let metrics = fleet.nodes[asked].get("/metrics").unwrap().1;
    assert!(metrics.contains("kvdb_fleet_member_requests_total{outcome=\"member\"} 1"), "{metrics}");
    assert!(strings(&fleet.placement(asked).unwrap()["ready"]).len() == 2);
}
