//! Several `kvdb` processes on real sockets and disks: killed, stopped, away, started wrongly.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long nodes may take to become ready or equal on a slow machine; nothing is measured by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The program under test: cargo puts it beside the directory of this test.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("kvdb");
    assert!(program.exists(), "{} is not built; test the whole workspace", program.display());
    program
}

fn kvdb() -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KVDB_")) {
        command.env_remove(name);
    }
    command
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) struct Node {
    pub(crate) dir: TempDir,
    pub(crate) http: u16,
    pub(crate) peer: u16,
    pub(crate) child: Option<Child>,
    /// Variables that the process gets beside its own.
    pub(crate) env: Vec<(&'static str, PathBuf)>,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), http: free_port(), peer: free_port(), child: None, env: Vec::new() }
    }

    pub(crate) fn command(&self, bootstrap: &[u16]) -> Command {
        let peers: Vec<String> = bootstrap.iter().map(|port| format!("/ip4/127.0.0.1/tcp/{port}")).collect();
        let mut command = kvdb();
        command.arg("run").arg("--data-dir").arg(self.dir.path().join("data"));
        command.args(["--databases", "demo", "--http-listen", &format!("127.0.0.1:{}", self.http)]);
        command.args(["--p2p-listen", &format!("/ip4/127.0.0.1/tcp/{}", self.peer)]);
        if !peers.is_empty() {
            command.args(["--p2p-bootstrap", &peers.join(",")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Makes the identity, and returns it, without starting anything.
    pub(crate) fn init(&self) -> String {
        let made = kvdb().arg("init").arg("--data-dir").arg(self.dir.path().join("data")).output().unwrap();
        let text = String::from_utf8(made.stdout).unwrap();
        text.lines().find_map(|line| line.strip_prefix("peer ")).unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    pub(crate) fn spawn(&mut self, bootstrap: &[u16]) {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        self.child = Some(self.command(bootstrap).stderr(log).spawn().unwrap());
    }

    /// Starts the process and waits until it says that it is ready.
    pub(crate) fn start(&mut self, bootstrap: &[u16]) {
        self.spawn(bootstrap);
        self.wait_ready();
    }

    pub(crate) fn wait_ready(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.get("/readyz").is_none_or(|(status, _)| status != 200) {
            assert!(Instant::now() < end, "not ready:\n{}", self.log());
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "ended with {ended:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the process answers at all.
    pub(crate) fn wait_up(&self) {
        let end = Instant::now() + PATIENCE;
        while self.get("/healthz").is_none() {
            assert!(Instant::now() < end, "does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.http)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(socket, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\n\r\n", self.http).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// Keys and digest.
    pub(crate) fn state(&self) -> Option<(u64, String)> {
        let (_, body) = self.get("/v1/databases/demo")?;
        let figures: serde_json::Value = serde_json::from_str(&body).ok()?;
        Some((figures.get("keys")?.as_u64()?, figures.get("digest")?.as_str()?.to_owned()))
    }

    pub(crate) fn client(&self, args: &[&str], input: &str) -> Output {
        let mut command = kvdb();
        command.args(args).args(["--server", &format!("http://127.0.0.1:{}", self.http), "--db", "demo"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        // In a thread of its own, so that neither side waits for the other's pipe.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        output
    }

    pub(crate) fn import(&self, prefix: &str, from: usize, count: usize) -> bool {
        let mut lines = String::new();
        for n in from..from + count {
            writeln!(lines, r#"{{"key":"{prefix}/{n:06}","encoding":"utf8","value":"value {n}"}}"#).unwrap();
        }
        self.client(&["import", "--durability", "buffered"], &lines).status.success()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([format!("-{name}"), id]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks the process to end and returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal("TERM");
        let status = self.child.take().unwrap().wait().unwrap();
        status.code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

pub(crate) fn wait_equal(nodes: &[&Node], keys: impl Fn(u64) -> bool) -> (u64, String) {
    let end = Instant::now() + PATIENCE;
    loop {
        let states: Vec<_> = nodes.iter().map(|node| node.state()).collect();
        if let Some(Some(first)) = states.first()
            && states.iter().all(|state| state.as_ref() == Some(first))
            && keys(first.0)
        {
            return first.clone();
        }
        let logs = || nodes.iter().map(|node| node.log()).collect::<Vec<_>>().join("\n---\n");
        assert!(Instant::now() < end, "not equal: {states:?}\n{}", logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn three() -> [Node; 3] {
    let mut nodes = [Node::new(), Node::new(), Node::new()];
    let ports = nodes.each_ref().map(|node| node.peer);
    for node in &mut nodes {
        node.spawn(&ports);
    }
    for node in &mut nodes {
        node.wait_ready();
    }
    nodes
}

/// Writers on all nodes until told to stop; they count what was confirmed and put up with a node that is away.
fn write_on(nodes: &[Node], stop: &Arc<AtomicBool>) -> Vec<(std::thread::JoinHandle<()>, Arc<AtomicUsize>)> {
    let writer = |(number, node): (usize, &Node)| {
        let (stop, confirmed) = (Arc::clone(stop), Arc::new(AtomicUsize::new(0)));
        let http = node.http;
        let count = Arc::clone(&confirmed);
        let thread = std::thread::spawn(move || {
            let server = format!("http://127.0.0.1:{http}");
            while !stop.load(Ordering::Relaxed) {
                let n = count.load(Ordering::Relaxed);
                let key = format!("/writer/{number}/{n:06}");
                let mut put = kvdb();
                put.args(["put", &key, &format!("{n}"), "--server", &server, "--db", "demo", "--durability", "sync"]);
                let done = put.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success();
                if done {
                    count.fetch_add(1, Ordering::Relaxed);
                } else {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        });
        (thread, confirmed)
    };
    nodes.iter().enumerate().map(writer).collect()
}

#[test]
fn three_daemons_stay_equal_through_a_kill_and_a_pause_of_30_s_with_writers_on_all() {
    let mut nodes = three();
    let ports = nodes.each_ref().map(|node| node.peer);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = write_on(&nodes, &stop);
    std::thread::sleep(Duration::from_secs(2));
    nodes[1].kill();
    std::thread::sleep(Duration::from_secs(2));
    nodes[1].start(&ports);
    nodes[2].signal("STOP");
    std::thread::sleep(Duration::from_secs(30));
    nodes[2].signal("CONT");
    std::thread::sleep(Duration::from_secs(2));
    stop.store(true, Ordering::Relaxed);
    let mut confirmed = Vec::new();
    for (thread, count) in writers {
        thread.join().unwrap();
        confirmed.push(count.load(Ordering::Relaxed));
    }
    assert!(confirmed.iter().all(|count| *count > 10), "{confirmed:?}");
    let least = u64::try_from(confirmed.iter().sum::<usize>()).unwrap();
    // A put whose answer was lost may be there too.
    wait_equal(&[&nodes[0], &nodes[1], &nodes[2]], |keys| keys >= least);
    // Every confirmed put is on every node, the killed one's own included.
    for (number, count) in confirmed.iter().enumerate() {
        let listed = nodes[2].client(&["ls", &format!("/writer/{number}")], "");
        assert!(listed.status.success());
        let text = String::from_utf8(listed.stdout).unwrap();
        for n in 0..*count {
            let key = format!("/writer/{number}/{n:06}");
            assert!(text.lines().any(|line| line == key), "{key} is lost");
        }
    }
    for node in &mut nodes {
        assert_eq!(node.stop(), Some(0), "{}", node.log());
    }
}

#[test]
fn one_that_was_away_for_100_000_writes_catches_up() {
    let mut nodes = three();
    let ports = nodes.each_ref().map(|node| node.peer);
    assert!(nodes[2].import("/first", 0, 100));
    wait_equal(&[&nodes[0], &nodes[1], &nodes[2]], |keys| keys == 100);
    assert_eq!(nodes[2].stop(), Some(0), "{}", nodes[2].log());
    std::thread::scope(|scope| {
        let halves = nodes.iter().take(2).enumerate();
        let done: Vec<_> =
            halves.map(|(number, node)| scope.spawn(move || node.import(&format!("/away/{number}"), 0, 50_000))).collect();
        assert!(done.into_iter().all(|half| half.join().unwrap()));
    });
    nodes[2].start(&ports);
    wait_equal(&[&nodes[0], &nodes[1], &nodes[2]], |keys| keys == 100_100);
}

#[test]
fn d01_a_node_killed_while_it_catches_up_completes_without_a_new_write() {
    let mut first = Node::new();
    first.start(&[]);
    assert!(first.import("/k", 0, 60_000));
    let mut second = Node::new();
    for share in [20, 50, 90] {
        second.spawn(&[first.peer]);
        let enough = 60_000 * share / 100;
        let end = Instant::now() + PATIENCE;
        loop {
            let ready = second.get("/readyz").is_some_and(|(status, _)| status == 200);
            let keys = second.state().map_or(0, |(keys, _)| keys);
            assert!(!ready || keys == 60_000, "ready with {keys} keys");
            if keys >= enough {
                break;
            }
            assert!(Instant::now() < end, "{}", second.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        second.kill();
    }
    second.start(&[first.peer]);
    assert_eq!(second.state(), first.state(), "ready means caught up");
    wait_equal(&[&first, &second], |keys| keys == 60_000);
}

#[test]
fn d13_two_that_wrote_apart_become_equal_when_they_meet_without_a_new_write() {
    let (mut a, mut b) = (Node::new(), Node::new());
    a.start(&[]);
    assert!(a.import("/a", 0, 50));
    b.start(&[]);
    assert!(b.import("/b", 0, 50));
    assert_eq!(b.stop(), Some(0));
    b.start(&[a.peer]);
    wait_equal(&[&a, &b], |keys| keys == 100);
}

#[test]
fn a_database_written_by_the_library_opens_in_the_daemon() {
    let mut node = Node::new();
    let data = node.dir.path().join("data");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let digest = runtime.block_on(async {
        let library = kvdb::Node::open(kvdb::NodeOptions::new(&data)).await.unwrap();
        let db = library.database(&"demo".parse().unwrap()).await.unwrap();
        db.put(&kvdb::Key::parse("/by/library").unwrap(), vec![0u8, 1, 0xff, 0xfe]).await.unwrap();
        let digest = db.stats().unwrap().digest.to_string();
        library.close().await.unwrap();
        digest
    });
    node.start(&[]);
    assert_eq!(node.state(), Some((1, digest)));
    let got = node.client(&["get", "/by/library"], "");
    assert_eq!(got.stdout, [0, 1, 0xff, 0xfe]);
    assert!(node.client(&["put", "/by/daemon", "x"], "").status.success());
    assert_eq!(node.stop(), Some(0));
    runtime.block_on(async {
        let library = kvdb::Node::open(kvdb::NodeOptions::new(&data)).await.unwrap();
        let db = library.database(&"demo".parse().unwrap()).await.unwrap();
        assert_eq!(db.get(&kvdb::Key::parse("/by/daemon").unwrap()).unwrap().unwrap().value, "x");
        library.close().await.unwrap();
    });
}

#[test]
fn a_wrong_start_says_why_in_one_line_and_changes_nothing() {
    let mut node = Node::new();
    node.start(&[]);
    assert!(node.client(&["put", "/a", "1"], "").status.success());
    let fails = |command: &mut Command, words: &[&str]| {
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let last = text.lines().last().unwrap_or_default().to_lowercase();
        assert!(matches!(output.status.code(), Some(2 | 3)), "{:?}: {text}", output.status);
        assert!(words.iter().all(|word| last.contains(word)), "{words:?} not in {last:?}");
    };
    // A second process on the same data directory.
    let mut second = Node::new();
    std::mem::swap(&mut second.dir, &mut node.dir);
    fails(&mut second.command(&[]), &["in use"]);
    std::mem::swap(&mut second.dir, &mut node.dir);
    // A port that is taken: HTTP and peers.
    second.http = node.http;
    fails(&mut second.command(&[]), &[&node.http.to_string(), "in use"]);
    second.http = free_port();
    second.peer = node.peer;
    fails(&mut second.command(&[]), &[&node.peer.to_string()]);
    // A directory that cannot be written: a file stands in its place.
    second.peer = free_port();
    std::fs::remove_dir_all(second.dir.path().join("data")).ok();
    std::fs::write(second.dir.path().join("data"), "not a directory").unwrap();
    fails(&mut second.command(&[]), &["data"]);
    assert_eq!(std::fs::read_to_string(second.dir.path().join("data")).unwrap(), "not a directory");
    // The first node noticed nothing.
    assert_eq!(node.client(&["get", "/a"], "").stdout, b"1");
    assert_eq!(node.stop(), Some(0));
}
