//! Nodes in processes of their own, so that the memory of one can be told from that of another, and one can be killed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvdb::{Database, Dot, Multiaddr, NetworkOptions, Node, NodeOptions};

use crate::ours;

/// What a child is started with, in the place of rows; directory and the bytes of each cache follow.
pub(crate) const ARGUMENT: &str = "--node";

/// Caches so small that they are full at rest, and memory that grows is memory that the work takes.
pub(crate) const SMALL: usize = 8 << 20;

/// A node that does what it is told, one line each: `load ROWS PER_BLOCK`, `forget`, `dial ADDRESS`, `wait DOT`.
pub(crate) fn main(dir: &Path, cache: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (node, db) = runtime.block_on(async {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")];
        let history = kvdb::HistoryOptions { interval: None, ..kvdb::HistoryOptions::default() };
        let mut options = NodeOptions::new(dir).history(history).network(NetworkOptions { listen, ..NetworkOptions::default() });
        (options.store.block_cache_bytes, options.store.write_buffer_bytes) = (cache, cache);
        let node = Node::open(options).await.expect("a node opens");
        let db = node.database(&"bench".parse().expect("a name")).await.expect("a database opens");
        (node, db)
    });
    say(node.listen_addresses().first().expect("listens"));
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let answer = runtime.block_on(obey(&node, &db, &line));
        say(&answer);
    }
    runtime.block_on(node.close()).expect("closes");
}

fn say(what: &impl std::fmt::Display) {
    let mut out = std::io::stdout();
    writeln!(out, "{what}").and_then(|()| out.flush()).expect("somebody reads");
}

async fn obey(node: &Node, db: &Database, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |word: &str| word.parse::<usize>().expect("a number");
    match words.as_slice() {
        ["load", rows, per_block] => ours::load(db, number(rows), number(per_block)).await.to_string(),
        ["forget"] => {
            ours::forget(db).await;
            String::new()
        }
        ["dial", address] => {
            node.dial(address.parse::<Multiaddr>().expect("an address")).await.expect("connects");
            String::new()
        }
        ["wait", dot] => {
            db.wait_for(dot.parse::<Dot>().expect("a dot"), Duration::from_secs(600)).await.expect("arrives");
            String::new()
        }
        _ => panic!("unknown command {line:?}"),
    }
}

/// The other end of such a process.
pub(crate) struct Remote {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub address: String,
}

impl Remote {
    pub(crate) fn start(dir: &Path, cache: usize) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .arg(ARGUMENT)
            .arg(dir)
            .arg(cache.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut remote = Self { child, input, output, address: String::new() };
        remote.address = remote.answer();
        remote
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).expect("a line") > 0, "the child has ended");
        line.trim_end().to_owned()
    }

    /// Tells it what to do, and waits until it is done.
    pub(crate) fn tell(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("the child reads");
        self.answer()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        memory(self.child.id())
    }

    /// Ends it without a warning.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    pub(crate) fn close(mut self) {
        drop(self.input);
        self.output.read_to_end(&mut Vec::new()).expect("read");
        assert!(self.child.wait().expect("ended").success(), "a child failed");
    }
}

fn memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() << 10
}

/// The greatest resident memory of both while `work` runs, sampled every 5 ms.
pub(crate) fn watch(ids: [u32; 2], work: impl FnOnce()) -> [u64; 2] {
    let peaks = Arc::new([const { AtomicU64::new(0) }; 2]);
    let done = Arc::new(AtomicBool::new(false));
    let sampler = {
        let (peaks, done) = (Arc::clone(&peaks), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for (id, peak) in ids.iter().zip(peaks.iter()) {
                    peak.fetch_max(memory(*id), Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    };
    work();
    done.store(true, Ordering::Relaxed);
    sampler.join().expect("the sampler ends");
    [0, 1].map(|at: usize| peaks.get(at).map_or(0, |peak| peak.load(Ordering::Relaxed)))
}
