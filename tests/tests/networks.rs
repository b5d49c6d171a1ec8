//! Two daemons in network namespaces of their own, with a bad wire between them: loss, delay, reordering, cuts in one
//! direction, flapping, other addresses. Needs Linux, root and a C compiler; skipped with a message elsewhere.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::program;
use crate::crash::c_program;

/// How long anything may take over a bad wire on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
const DEVICE: &str = "wire0";

/// What the wire does.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    loss: u32,
    delay: u32,
    jitter: u32,
    cut: [bool; 2],
}

struct Wire {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Wire {
    fn lay(spaces: &[String; 2]) -> Option<Self> {
        let program = c_program("wire.c", &[])?;
        let mut command = Command::new(program);
        command.args([&spaces[0], &spaces[1], DEVICE]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut this = Self { process, input, output };
        (this.answer() == "ready").then_some(this)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        let _ = self.output.read_line(&mut line);
        line.trim().to_owned()
    }

    fn be(&mut self, weather: Weather) {
        let Weather { loss, delay, jitter, cut: [a, b] } = weather;
        writeln!(self.input, "{loss} {delay} {jitter} {} {}", u8::from(a), u8::from(b)).unwrap();
        assert_eq!(self.answer(), "done");
    }
}

/// One daemon in its namespace.
struct Host {
    space: String,
    dir: TempDir,
    address: String,
    child: Option<Child>,
}

impl Host {
    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space, program]).stdin(Stdio::null());
        command
    }

    fn ip(&self, args: &[&str]) {
        let done = Command::new("ip").args(["-n", &self.space]).args(args).output().unwrap();
        assert!(done.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn start(&mut self, bootstrap: &str) {
        self.run(&["--p2p-bootstrap", &format!("/ip4/{bootstrap}/tcp/7071")]);
    }

    fn run(&mut self, args: &[&str]) {
        let log = std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = self.inside(program().to_str().unwrap());
        command.arg("run").arg("--data-dir").arg(self.dir.path().join("data")).args(["--databases", "demo"]);
        command.args(["--http-listen", "127.0.0.1:7070", "--p2p-listen", "/ip4/0.0.0.0/tcp/7071"]);
        command.args(["--p2p-rebroadcast-seconds", "1"]).args(args);
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while self.status().is_none() {
            assert!(Instant::now() < end, "does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn status(&self) -> Option<Value> {
        let output = self.inside(program().to_str()?).args(["status", "--json"]).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    fn state(&self) -> Option<(u64, String)> {
        let status = self.status()?;
        let figures = status.get("databases")?.get(0)?;
        Some((figures.get("keys")?.as_u64()?, figures.get("digest")?.as_str()?.to_owned()))
    }

    fn put(&self, key: &str) {
        let put = self.inside(program().to_str().unwrap()).args(["put", key, "value", "--db", "demo"]).output().unwrap();
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    }

    fn import(&self, prefix: &str, count: usize, len: usize) {
        let mut lines = String::new();
        for n in 0..count {
            writeln!(lines, r#"{{"key":"{prefix}/{n:06}","encoding":"utf8","value":"{}"}}"#, "v".repeat(len)).unwrap();
        }
        let file = self.dir.path().join("import");
        std::fs::write(&file, lines).unwrap();
        let mut import = self.inside(program().to_str().unwrap());
        let done = import.args(["import", "--durability", "buffered", "--db", "demo"]).arg(file).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
        drop(Command::new("ip").args(["netns", "del", &self.space]).status());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Two hosts and the wire between them; all of it is gone when this is dropped.
struct Net {
    hosts: [Host; 2],
    wire: Wire,
}

impl Net {
    fn build() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let spaces = ["a", "b"].map(|side| format!("kvdb{}-{number}{side}", std::process::id()));
        let host = |side: usize| Host {
            space: spaces[side].clone(),
            dir: tempfile::tempdir().unwrap(),
            address: format!("10.77.0.{}", side + 1),
            child: None,
        };
        let hosts = [host(0), host(1)];
        for host in &hosts {
            let made = Command::new("ip").args(["netns", "add", &host.space]).output();
            if !made.is_ok_and(|output| output.status.success()) {
                eprintln!("skipped: no network namespaces may be made here");
                return None;
            }
        }
        let Some(wire) = Wire::lay(&spaces) else {
            eprintln!("skipped: no TAP devices may be made here");
            return None;
        };
        let this = Self { hosts, wire };
        for host in &this.hosts {
            host.ip(&["link", "set", "lo", "up"]);
            host.ip(&["addr", "add", &format!("{}/24", host.address), "dev", DEVICE]);
            host.ip(&["link", "set", DEVICE, "up"]);
        }
        Some(this)
    }

    /// Builds the net and starts both daemons, each with the other as bootstrap peer.
    fn started() -> Option<Self> {
        let mut this = Self::build()?;
        let addresses = this.hosts.each_ref().map(|host| host.address.clone());
        this.hosts[0].start(&addresses[1]);
        this.hosts[1].start(&addresses[0]);
        this.hosts[0].put("/met");
        this.wait_equal("the first meeting", 1);
        Some(this)
    }

    fn wait_equal(&self, when: &str, keys: u64) {
        let end = Instant::now() + PATIENCE;
        loop {
            let states = self.hosts.each_ref().map(Host::state);
            if states[0].is_some() && states[0] == states[1] && states[0].as_ref().is_some_and(|(count, _)| *count >= keys) {
                return;
            }
            assert!(Instant::now() < end, "{when}: {states:?}\n{}\n---\n{}", self.hosts[0].log(), self.hosts[1].log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Both write, and both end equal, in this weather.
    fn exchange(&self, when: &str, keys: &mut u64) {
        for (side, host) in self.hosts.iter().enumerate() {
            host.put(&format!("/{}/{side}", when.replace(' ', "/")));
            *keys += 1;
        }
        self.wait_equal(when, *keys);
    }
}

#[test]
fn loss_delay_and_reordering_delay_and_lose_nothing() {
    let Some(mut net) = Net::started() else { return };
    let mut keys = 1;
    for (when, weather) in [
        ("loss", Weather { loss: 10, ..Weather::default() }),
        ("delay", Weather { delay: 200, ..Weather::default() }),
        ("reordering", Weather { delay: 5, jitter: 40, ..Weather::default() }),
        ("all of it", Weather { loss: 5, delay: 50, jitter: 50, ..Weather::default() }),
    ] {
        net.wire.be(weather);
        net.hosts[0].import(&format!("/bulk/{}", when.replace(' ', "-")), 300, 1_000);
        keys += 300;
        net.exchange(when, &mut keys);
    }
}

#[test]
fn cuts_in_one_direction_and_flapping_heal_without_a_write() {
    let Some(mut net) = Net::started() else { return };
    let mut keys = 1;
    for cut in [[true, false], [false, true], [true, true]] {
        net.wire.be(Weather { cut, ..Weather::default() });
        for (side, host) in net.hosts.iter().enumerate() {
            host.put(&format!("/cut/{}{}/{side}", cut[0], cut[1]));
            keys += 1;
        }
        std::thread::sleep(Duration::from_secs(3));
        let states = net.hosts.each_ref().map(Host::state);
        assert_ne!(states[0], states[1], "the wire is not cut");
        net.wire.be(Weather::default());
        // Nobody writes any more: what was cut off must come by itself.
        net.wait_equal(&format!("after the cut {cut:?}"), keys);
    }
    for round in 0..10 {
        net.wire.be(Weather { cut: [round % 2 == 0; 2], ..Weather::default() });
        net.hosts[round % 2].put(&format!("/flap/{round}"));
        keys += 1;
        std::thread::sleep(Duration::from_millis(700));
    }
    net.wire.be(Weather::default());
    net.wait_equal("after flapping", keys);
}

#[test]
fn c04_a_quick_restart_with_the_same_identity_over_a_dead_connection() {
    let Some(mut net) = Net::started() else { return };
    let mut keys = 1;
    for round in 0..3 {
        // The end of the connection is never heard of on the other side.
        net.wire.be(Weather { cut: [true; 2], ..Weather::default() });
        net.hosts[1].kill();
        net.hosts[0].put(&format!("/restart/{round}"));
        keys += 1;
        net.wire.be(Weather::default());
        let bootstrap = net.hosts[0].address.clone();
        net.hosts[1].start(&bootstrap);
        net.exchange(&format!("restart {round}"), &mut keys);
    }
}

#[test]
fn g10_an_address_that_goes_another_that_comes_and_the_first_again() {
    let Some(net) = Net::started() else { return };
    let mut keys = 1;
    let change = |from: &str, to: &str| {
        net.hosts[1].ip(&["addr", "del", &format!("{from}/24"), "dev", DEVICE]);
        std::thread::sleep(Duration::from_secs(2));
        net.hosts[1].ip(&["addr", "add", &format!("{to}/24"), "dev", DEVICE]);
    };
    change("10.77.0.2", "10.77.0.9");
    net.exchange("another address", &mut keys);
    change("10.77.0.9", "10.77.0.2");
    net.exchange("the first address", &mut keys);
}

#[test]
fn nodes_of_a_local_network_find_each_other_when_they_are_told_to() {
    let Some(mut net) = Net::build() else { return };
    for host in &mut net.hosts {
        host.run(&["--p2p-mdns", "true"]);
    }
    net.hosts[0].put("/found");
    net.wait_equal("nobody was told of the other", 1);
}
