//! Sick disks, sudden ends, and what a slow disk does to the rest of a node.

mod disk;
mod executor;
mod points;
mod sick;

pub(crate) use sick::c_program;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// One request to a daemon: the status and the body, or nothing when no whole answer came.
pub(crate) fn ask(http: u16, method: &str, path: &str, body: &[u8]) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(("127.0.0.1", http)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{http}\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(&[head.as_bytes(), body].concat()).ok()?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    // A stream has no length; what it lacks at its end its last line tells.
    let length: Option<usize> = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let status = head.split(' ').nth(1)?.parse().ok()?;
    length.is_none_or(|length| body.len() == length).then(|| (status, body.to_owned()))
}

/// The path of a key of the database `demo`.
pub(crate) fn at(key: &str) -> String {
    format!("/v1/databases/demo/keys{key}")
}

/// How many rounds a long test takes: a number from the environment, else what CI has time for.
fn rounds(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
