//! Watches: server-sent events over HTTP, and `kvdb watch` over connections that break.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvdb::limits::{MAX_WATCH_VALUE_BYTES, MAX_WATCHERS};
use kvdb::{Prefix, WatchOptions};
use serde_json::Value;

use crate::support::{TestNode, command};

/// An open watch, read event by event.
struct Watch {
    head: String,
    lines: BufReader<TcpStream>,
    id: String,
}

/// Kind, data, and the id after it.
type Event = (String, Value, String);

impl Watch {
    fn open(node: &TestNode, query: &str, headers: &str) -> Self {
        let url = node.url();
        let address = url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // An answer to HTTP/1.0 has no chunks.
        let request = format!("GET /v1/databases/d/watch?{query} HTTP/1.0\r\nhost: {address}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut watch = Self { head: String::new(), lines: BufReader::new(stream), id: String::new() };
        while !watch.head.ends_with("\r\n\r\n") {
            assert!(watch.lines.read_line(&mut watch.head).unwrap() > 0, "{}", watch.head);
        }
        watch
    }

    /// The next event that is more than a comment; `None` at the end.
    fn next(&mut self) -> Option<Event> {
        let (mut kind, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("event", value)) => value.clone_into(&mut kind),
                Some(("data", value)) => value.clone_into(&mut data),
                Some(("id", value)) => value.clone_into(&mut self.id),
                _ if line.trim_end() == "id:" => self.id.clear(),
                None if line.trim_end().is_empty() && !kind.is_empty() => {
                    return Some((kind, serde_json::from_str(&data).unwrap(), self.id.clone()));
                }
                _ => {}
            }
        }
    }

    fn told(&mut self) -> String {
        let (kind, data, _) = self.next().expect("an event");
        format!("{kind} {} {}", data["key"].as_str().unwrap_or("-"), data["value"].as_str().unwrap_or("-"))
    }
}

fn put(node: &TestNode, key: &str, value: &str) {
    assert_eq!(node.db("PUT", &format!("keys{key}"), value.as_bytes()).status, 200);
}

#[test]
fn f01_events_carry_key_value_and_the_token_to_resume_from() {
    let mut node = TestNode::start();
    let mut watch = Watch::open(&node, "prefix=/a", "");
    assert!(watch.head.starts_with("HTTP/1.0 200") && watch.head.contains("text/event-stream"), "{}", watch.head);
    put(&node, "/b/1", "elsewhere");
    put(&node, "/a/1", "one");
    let (kind, data, token) = watch.next().unwrap();
    assert_eq!((kind.as_str(), data["key"].as_str(), data["value"].as_str()), ("put", Some("/a/1"), Some("one")));
    assert_eq!((data["encoding"].as_str(), data["length"].as_u64()), (Some("utf8"), Some(3)));
    assert_eq!(node.db("GET", "keys/a/1", b"").header("kvdb-dot"), data["dot"].as_str());
    drop(watch);
    put(&node, "/a/2", "two");
    assert_eq!(node.db("DELETE", "keys/a/1", b"").status, 200);
    node.restart();
    for (query, header) in
        [(format!("prefix=/a&from={token}"), String::new()), ("prefix=/a".to_owned(), format!("last-event-id: {token}\r\n"))]
    {
        let mut watch = Watch::open(&node, &query, &header);
        assert_eq!([watch.told(), watch.told()], ["delete /a/1 -", "put /a/2 two"], "{query} {header}");
    }
    let mut listed = Watch::open(&node, "from=list&values=base64", "");
    assert_eq!([listed.told(), listed.told(), listed.told()], ["put /a/2 dHdv", "put /b/1 ZWxzZXdoZXJl", "listed - -"]);
    put(&node, "/a/3", &"x".repeat(MAX_WATCH_VALUE_BYTES + 1));
    let (_, data, _) = listed.next().unwrap();
    assert_eq!((data["value"].as_str(), data["length"].as_u64()), (None, Some(MAX_WATCH_VALUE_BYTES as u64 + 1)));
    let mut keys = Watch::open(&node, "from=list&keys_only=true&prefix=/b", "");
    assert_eq!(keys.told(), "put /b/1 -");
}

#[test]
fn a_token_that_is_no_longer_good_is_refused_or_told_by_a_reset() {
    let (node, other) = (TestNode::start(), TestNode::start());
    put(&node, "/a", "1");
    let mut watch = Watch::open(&node, "from=list", "");
    watch.next().unwrap();
    let token = watch.next().unwrap().2;
    assert!(token.starts_with("1-"), "{token}");
    put(&other, "/b", "1");
    let refused = other.db("GET", &format!("watch?from={token}"), b"");
    assert_eq!((refused.status, refused.json()["code"].as_str()), (410, Some("too_old")));
    // Whoever connects again by itself gets a stream that says so.
    let mut watch = Watch::open(&other, "", &format!("last-event-id: {token}\r\n"));
    assert_eq!(watch.next().unwrap().0, "reset");
    put(&other, "/c", "1");
    assert_eq!(watch.told(), "put /c 1");
    for bad in ["from=1", "from=yesterday", "prefix=..", "values=hex", "limit=3"] {
        let refused = node.db("GET", &format!("watch?{bad}"), b"");
        assert_eq!(refused.status, 400, "{bad}: {}", refused.text());
    }
    assert_eq!(node.send("GET", "/v1/databases/none/watch", &[], b"").status, 404);
    assert_eq!(node.db("POST", "watch", b"").status, 405);
}

#[test]
fn a_watch_that_the_node_ends_says_so() {
    let mut node = TestNode::start();
    let mut watch = Watch::open(&node, "", "");
    let reading = std::thread::spawn(move || (watch.next(), watch.next()));
    node.stop();
    let (last, after) = reading.join().unwrap();
    let (kind, data, _) = last.expect("the end is told, not cut off");
    assert_eq!((kind.as_str(), data["end"]["reason"].is_string(), after), ("end", true, None));
}

#[test]
fn watches_are_limited_with_the_number_and_a_figure() {
    let node = TestNode::start();
    let database = node.database();
    let options = WatchOptions::new(Prefix::root());
    let open: Vec<_> = (1..MAX_WATCHERS).map(|_| database.watch(options.clone()).unwrap()).collect();
    let mut watch = Watch::open(&node, "", "");
    assert!(node.send("GET", "/metrics", &[], b"").text().contains(&format!("kvdb_watchers {MAX_WATCHERS}\n")));
    let refused = node.db("GET", "watch", b"").json();
    assert_eq!((refused["code"].as_str(), refused["limit"].as_u64()), (Some("too_many_watchers"), Some(MAX_WATCHERS as u64)));
    assert_eq!(refused["retry"].as_bool(), Some(true));
    put(&node, "/a", "1");
    assert_eq!(watch.told(), "put /a 1");
    drop(open);
    assert_eq!(Watch::open(&node, "from=list", "").told(), "put /a 1");
}

/// Passes connections on to a node that can be exchanged, and breaks them.
struct Proxy {
    url: String,
    target: Arc<Mutex<String>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(node: &TestNode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = Arc::new(Mutex::new(node.url()));
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (to, kept) = (Arc::clone(&target), Arc::clone(&streams));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let address = to.lock().unwrap().strip_prefix("http://").unwrap().to_owned();
                let Ok(far) = TcpStream::connect(address) else { continue };
                kept.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    std::thread::spawn(move || copy(from, to));
                }
            }
        });
        Self { url, target, streams }
    }

    fn lead_to(&self, node: &TestNode) {
        *self.target.lock().unwrap() = node.url();
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4_096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
    drop(to.shutdown(std::net::Shutdown::Write));
}

/// `kvdb watch` as a process.
struct Command {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Command {
    fn start(url: &str, args: &[&str]) -> Self {
        let mut command = command(&[&["watch"], args].concat());
        let piped = command.env("KVDB_SERVER", url).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The first two words of the next line.
    fn told(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn the_command_goes_on_over_broken_connections_and_lists_again_when_it_must() {
    let (mut node, other) = (TestNode::start(), TestNode::start());
    put(&node, "/w/a", "1");
    put(&other, "/w/z", "1");
    let proxy = Proxy::start(&node);
    let mut watch = Command::start(&proxy.url, &["/w", "--list"]);
    assert_eq!([watch.told(), watch.told()], ["put /w/a", "listed"]);
    proxy.cut();
    put(&node, "/w/b", "1");
    assert_eq!(watch.told(), "put /w/b", "what happened meanwhile, and nothing else");
    // The node stops and starts again elsewhere, with the same log.
    node.stop();
    node.restart();
    put(&node, "/w/c", "1");
    proxy.lead_to(&node);
    assert_eq!(watch.told(), "put /w/c");
    // Another node's log does not know the token.
    proxy.lead_to(&other);
    proxy.cut();
    assert_eq!([watch.told(), watch.told(), watch.told()], ["reset", "put /w/z", "listed"]);
    assert_eq!(other.db("DELETE", "keys/w/z", b"").status, 200);
    assert_eq!(watch.told(), "delete /w/z");
}

#[test]
fn k02_a_watched_prefix_is_made_of_whole_segments_in_http_and_cli() {
    let node = TestNode::start();
    for key in ["/foo", "/foo/1", "/foobar", "/foo-1"] {
        put(&node, key, "x");
    }
    for (prefix, expected) in
        [("/foo", vec!["/foo/1"]), ("/foo/", vec!["/foo/1"]), ("/fo", vec![]), ("/", vec!["/foo", "/foo-1", "/foo/1", "/foobar"])]
    {
        let limit = (expected.len() + 1).to_string();
        let shown = node.kvdb(&["watch", prefix, "--list", "--json", "--limit", &limit], b"");
        assert_eq!(shown.status.code(), Some(0));
        let text = String::from_utf8(shown.stdout).unwrap();
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let keys: Vec<&str> = records.iter().filter_map(|record| record["key"].as_str()).collect();
        assert_eq!(keys, expected, "{prefix}");
        let last = records.last().unwrap();
        assert_eq!((last["event"].as_str(), last["count"].as_u64()), (Some("listed"), Some(expected.len() as u64)));
        assert!(last["token"].is_string());
    }
    let (code, line) = crate::support::failed(&node.kvdb(&["watch", "--from", "x"], b""));
    assert!(code == 2 && line.contains("token"), "{line}");
    let (code, line) = crate::support::failed(&crate::support::kvdb("http://127.0.0.1:1", &["watch"], b""));
    assert!(code == 3 && line.contains("cannot reach"), "{line}");
}
