//! A daemon in this process, a plain HTTP client that sends paths as they are, and the binary.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use daemon::config::{Config, Raw};
use daemon::run::Daemon;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A daemon with a database `d` on a free port.
pub(crate) struct TestNode {
    runtime: Runtime,
    daemon: Option<Daemon>,
    dir: TempDir,
    more: String,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl TestNode {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// With more configuration.
    pub(crate) fn with(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut node = Self { runtime, daemon: None, dir, more: more.to_owned() };
        node.open();
        node
    }

    fn open(&mut self) {
        let data_dir = self.dir.path().join("data").to_str().unwrap().to_owned();
        let text = format!(
            "data_dir = {data_dir:?}\ndatabases = [\"d\"]\ndurability = \"buffered\"\n{}\n[p2p]\nenabled = false\n[http]\nlisten = \"127.0.0.1:0\"\n",
            self.more
        );
        // What is asked for more comes first where it has tables of its own.
        let raw: Raw = toml::from_str(&text).unwrap();
        let config = Config::resolve(raw).unwrap();
        self.daemon = Some(self.runtime.block_on(Daemon::start(config)).unwrap());
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        self.open();
    }

    pub(crate) fn stop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            self.runtime.block_on(daemon.stop()).unwrap();
        }
    }

    pub(crate) fn url(&self) -> String {
        self.daemon.as_ref().unwrap().url()
    }

    /// The database `d` by the library.
    pub(crate) fn database(&self) -> kvdb::Database {
        let node = self.daemon.as_ref().unwrap().node();
        self.runtime.block_on(node.database(&"d".parse().unwrap())).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Sends a request below the database `d`.
    pub(crate) fn db(&self, method: &str, below: &str, body: &[u8]) -> Answer {
        self.send(method, &format!("/v1/databases/d/{below}"), &[], body)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        send(&self.url(), method, path, headers, body)
    }

    /// The records of a listing, and its end.
    pub(crate) fn list(&self, query: &str) -> (Vec<Value>, Value) {
        let answer = self.db("GET", &format!("list?{query}"), b"");
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        let mut records: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let end = records.pop().unwrap()["end"].take();
        assert_eq!(end["count"], records.len(), "{query}");
        (records, end)
    }

    /// Runs the binary against this node.
    pub(crate) fn kvdb(&self, args: &[&str], input: &[u8]) -> Output {
        kvdb(&self.url(), args, input)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        pairs.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Sends one request with the path byte by byte as given.
pub(crate) fn send(url: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let address = url.strip_prefix("http://").unwrap();
    let given: String = headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
    let host = if headers.iter().any(|(name, _)| *name == "host") { String::new() } else { format!("host: {address}\r\n") };
    let chunked = headers.iter().any(|(name, _)| *name == "transfer-encoding");
    let length = if chunked { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{length}{host}{given}");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    // The server may have answered and gone before it took all of a body that it refuses.
    drop(stream.write_all(body));
    let mut bytes = Vec::new();
    drop(stream.read_to_end(&mut bytes));
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
    let head = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { status, head, body: bytes[split + 4..].to_vec() };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.body = unchunk(&answer.body);
    }
    answer
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = bytes.windows(2).position(|two| two == b"\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[line + 2..line + 2 + length]);
        bytes = &bytes[line + 4 + length..];
    }
}

/// A command of the binary with a clean environment and the database `d`.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvdb"));
    command.args(args).env_clear().env("KVDB_DB", "d");
    command
}

pub(crate) fn kvdb(url: &str, args: &[&str], input: &[u8]) -> Output {
    let mut command = command(args);
    command.env("KVDB_SERVER", url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// The exit code and the one line of an error.
pub(crate) fn failed(output: &Output) -> (i32, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "an error is one line: {text}");
    (output.status.code().unwrap(), text)
}
