//! The daemon as a process: init, run, stop, and what keeps it from starting.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;

use crate::support::{command, failed, kvdb, send};

/// A daemon process that is ready.
struct Running {
    child: Child,
    url: String,
    /// Reads what it logs, so that a long log does not stop it.
    log: JoinHandle<String>,
}

fn run(args: &[&str], env: &[(&str, &str)]) -> Running {
    let mut command = command(&[&["run", "--http-listen", "127.0.0.1:0"], args].concat());
    let mut child = command
        .env("KVDB_P2P_LISTEN", "/ip4/127.0.0.1/tcp/0")
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.split(' ').nth(1).unwrap_or_else(|| panic!("not ready: {line:?}")).to_owned();
    let mut stderr = child.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut log = String::new();
        stderr.read_to_string(&mut log).unwrap();
        log
    });
    Running { child, url, log }
}

impl Running {
    /// Stops it gracefully and returns what it logged.
    fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let log = self.log.join().unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{log}");
        log
    }
}

fn refused(args: &[&str]) -> (i32, String) {
    failed(&command(args).output().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn init_run_stop_and_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let made = command(&["init", "--data-dir", text(&data)]).output().unwrap();
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success() && said.contains("peer ") && said.contains("next: kvdb run --config "), "{said}");
    let config = std::fs::read_to_string(data.join("kvdb.toml")).unwrap();
    let (code, line) = refused(&["init", "--data-dir", text(&data)]);
    assert!(code == 2 && line.contains("exists already"), "{line}");
    assert_eq!(std::fs::read_to_string(data.join("kvdb.toml")).unwrap(), config);
    // The file names the database default, the environment wins over it, the flag over both.
    let node = run(&["--data-dir", text(&data)], &[]);
    assert!(kvdb(&node.url, &["put", "/a", "kept", "--db", "default"], b"").status.success());
    node.stop();
    let node = run(
        &["--config", text(&data.join("kvdb.toml")), "--databases", "flag"],
        &[("KVDB_DATABASES", "env"), ("KVDB_LOG", "warn"), ("KVDB_HTTP_LISTN", "typo")],
    );
    assert_eq!(kvdb(&node.url, &["get", "/a", "--db", "default"], b"").stdout, b"kept");
    assert_eq!(kvdb(&node.url, &["db", "list"], b"").stdout, b"default\nflag\n");
    let peer = said.lines().next().unwrap().strip_prefix("peer ").unwrap().to_owned();
    assert!(String::from_utf8(kvdb(&node.url, &["status"], b"").stdout).unwrap().contains(&peer), "the identity stays");
    let log = node.stop();
    assert!(!log.contains("INFO"), "the log filter comes from the environment");
    assert!(log.contains("KVDB_HTTP_LISTN"), "a mistyped variable is seen");
}

#[test]
fn what_keeps_a_daemon_from_starting_is_one_line_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let node = run(&["--data-dir", text(&data)], &[]);
    let (code, line) = refused(&["run", "--data-dir", text(&data), "--http-listen", "127.0.0.1:0", "--p2p-enabled", "false"]);
    assert!(code == 3 && line.contains("in use"), "{code} {line}");
    let other = dir.path().join("other");
    let busy = node.url.strip_prefix("http://").unwrap();
    let (code, line) = refused(&["run", "--data-dir", text(&other), "--http-listen", busy]);
    assert!(code == 3 && line.contains(busy) && line.contains("in use"), "{code} {line}");
    assert!(!other.exists(), "a busy port is found before anything is made");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let shared = format!("/ip4/127.0.0.1/tcp/{taken}");
    let third = dir.path().join("third");
    let first = run(&["--data-dir", text(&third), "--p2p-listen", &shared], &[]);
    let (code, line) = refused(&["run", "--data-dir", text(&other), "--http-listen", "127.0.0.1:0", "--p2p-listen", &shared]);
    assert!(code == 3 && line.contains(&shared) && line.contains("in use"), "{code} {line}");
    first.stop();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    for (args, said) in [
        (&["--data-dir", text(&file)][..], "file"),
        (&["--data-dir", text(&file.join("below"))], "below"),
        (&[], "data_dir"),
        (&["--data-dir", text(&other), "--http-listen", "0.0.0.0:0"], "http.tokens"),
        (&["--data-dir", text(&other), "--http-listen", "nonsense"], "http.listen"),
        (&["--data-dir", text(&other), "--databases", ".x,ok"], "databases"),
        (&["--data-dir", text(&other), "--store-block-cache-mib", "0"], "from 1 to"),
        (&["--data-dir", text(&other), "--store-block-cache-mib", "many"], "many"),
        (&["--data-dir", text(&other), "--config", text(&dir.path().join("none.toml"))], "none.toml"),
        (&["--data-dir", text(&other), "--config", text(&file)], "line 1"),
        (&["--data-dir", text(&other), "--log", "a=b=c"], "log"),
        (&["--data-dir", text(&other), "--p2p-network-key", "12"], "p2p.network_key"),
    ] {
        let port: &[&str] = if args.contains(&"--http-listen") { &[] } else { &["--http-listen", "127.0.0.1:0"] };
        let (code, line) = refused(&[&["run"], port, args].concat());
        assert!(code == 2 && line.contains(said), "{args:?}: {code} {line}");
    }
    assert!(!other.exists());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a directory");
    assert_eq!(send(&node.url, "GET", "/healthz", &[], b"").status, 200);
    node.stop();
}

#[test]
fn r16_values_never_appear_in_logs() {
    let dir = tempfile::tempdir().unwrap();
    let node = run(&["--data-dir", text(&dir.path().join("data")), "--databases", "d"], &[("KVDB_LOG", "trace")]);
    let secret = "swordfish";
    let batch = format!(
        "{{\"ops\":[{{\"put\":\"/b\",\"value\":\"{secret}\"}},{{\"put\":\"/c\",\"value\":\"{secret}\",\"encoding\":\"base64\"}}]}}"
    );
    for (method, below, body) in [
        ("PUT", "keys/a", secret),
        ("POST", "batch", &batch),
        ("POST", "batch", &batch.replace(",\"encoding\":\"base64\"", "")),
        ("POST", "batch", &format!("{{\"ops\": \"{secret}\"}}")),
        ("POST", "batch", &format!("{{\"ops\": [{{\"put\": \"/a\", \"value\": \"\", \"encoding\": \"{secret}\"}}]}}")),
        ("GET", "list", ""),
        ("GET", "keys/a", ""),
        ("GET", "siblings?key=/a", ""),
    ] {
        let answer = send(&node.url, method, &format!("/v1/databases/d/{below}"), &[], body.as_bytes());
        assert!(answer.status == 200 || !answer.text().contains(secret), "{}", answer.text());
    }
    let log = node.stop();
    // Nor as a list of numbers, as bytes are shown by default, nor in base64.
    for shape in [secret, "115, 119, 111", "c3dvcmRmaXNo"] {
        assert!(log.contains("started") && !log.contains(shape), "{shape}");
    }
}

#[test]
fn a08_what_was_answered_survives_a_kill_and_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut written = Vec::new();
    for round in 0..3 {
        let mut node = run(&["--data-dir", text(&data), "--databases", "d"], &[]);
        for at in &written {
            let answer = send(&node.url, "GET", &format!("/v1/databases/d/keys/{at}"), &[], b"");
            assert_eq!((answer.status, answer.body.as_slice()), (200, b"v".as_slice()), "{at} in round {round}");
        }
        for durability in ["sync", "buffered"] {
            for n in 0..50 {
                let at = format!("{round}/{durability}/{n}");
                let path = format!("/v1/databases/d/keys/{at}?durability={durability}");
                assert_eq!(send(&node.url, "PUT", &path, &[], b"v").status, 200);
                written.push(at);
            }
        }
        if round == 1 {
            node.stop();
        } else {
            node.child.kill().unwrap();
            node.child.wait().unwrap();
        }
    }
}
