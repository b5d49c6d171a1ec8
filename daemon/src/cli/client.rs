//! The client side of the HTTP interface.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use ureq::http::{Method, Request, Response};
use ureq::{Agent, Body, Error, Timeout};

use super::args::{ClientArgs, ServerArgs};
use super::failure::{Exit, Failure};
use crate::limits::{ANSWER_TIMEOUT, CONNECT_TIMEOUT, MAX_IMPORT_LINE_BYTES, WATCH_SILENCE};
use crate::problem::Problem;

/// Everything but what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes a segment of a path or a parameter.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// A node's HTTP interface.
pub(super) struct Client {
    agent: Agent,
    server: String,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(args: &ServerArgs) -> Result<Self, Failure> {
        Self::with_silence(args, None)
    }

    /// A client to which a body that is silent for so long has broken off.
    fn with_silence(args: &ServerArgs, silence: Option<Duration>) -> Result<Self, Failure> {
        let server = args.server.trim_end_matches('/').to_owned();
        if !server.starts_with("http://") {
            return Err(Failure::bad_input(format!("--server {server:?} must start with http://")));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // A proxy for the web has no business between a user and a node.
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(silence)
            .build();
        Ok(Self { agent: config.into(), server, token: args.token.clone() })
    }

    /// Sends a request. A failure says whether a write may have happened.
    pub(super) fn send(&self, method: Method, path: &str, kind: &str, body: &[u8]) -> Result<Response<Body>, Failure> {
        self.send_with(method, path, kind, None, body)
    }

    /// As [`Client::send`], with one more header.
    fn send_with(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        header: Option<(&str, &str)>,
        body: &[u8],
    ) -> Result<Response<Body>, Failure> {
        let reads = method == Method::GET;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.server));
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        let bad = |error| Failure::bad_input(format!("--server or --token is malformed: {error}"));
        let sent =
            if reads { self.agent.run(request.body(()).map_err(bad)?) } else { self.agent.run(request.body(body).map_err(bad)?) };
        let response = sent.map_err(|error| self.unreached(&error, reads))?;
        if response.status().is_success() { Ok(response) } else { Err(refused(response)) }
    }

    fn unreached(&self, error: &Error, reads: bool) -> Failure {
        let before_sending = match error {
            Error::HostNotFound | Error::ConnectionFailed | Error::Timeout(Timeout::Resolve | Timeout::Connect) => true,
            Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
            Error::BadUri(_) | Error::InvalidProxyUrl => return Failure::bad_input(format!("--server: {error}")),
            _ => false,
        };
        if reads || before_sending {
            return Failure::retry(format!("cannot reach {}: {error}", self.server));
        }
        let message = format!("no answer from {}, so the write may or may not have happened: {error}", self.server);
        Failure::new(Exit::Unknown, message)
    }

    /// Gets a JSON document.
    pub(super) fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read_json(self.send(Method::GET, path, "", &[])?, true)
    }

    /// Posts a JSON document and reads the answer.
    pub(super) fn post_json<T: DeserializeOwned>(&self, path: &str, document: &serde_json::Value) -> Result<T, Failure> {
        read_json(self.send(Method::POST, path, "application/json", document.to_string().as_bytes())?, false)
    }
}

/// One database of a node.
pub(super) struct DatabaseClient {
    client: Client,
    /// The path of the database, without a slash at the end.
    path: String,
}

impl DatabaseClient {
    pub(super) fn new(args: &ClientArgs) -> Result<Self, Failure> {
        Ok(Self { client: Client::new(&args.server)?, path: format!("/v1/databases/{}", args.db) })
    }

    /// A client for answers without an end, in which something is sent all the time.
    pub(super) fn watching(args: &ClientArgs) -> Result<Self, Failure> {
        let client = Client::with_silence(&args.server, Some(WATCH_SILENCE))?;
        Ok(Self { client, path: format!("/v1/databases/{}", args.db) })
    }

    /// Sends a request to a path below the database.
    pub(super) fn send(&self, method: Method, below: &str, kind: &str, body: &[u8]) -> Result<Response<Body>, Failure> {
        self.client.send(method, &format!("{}/{below}", self.path), kind, body)
    }

    /// As [`DatabaseClient::send`], with one more header.
    pub(super) fn send_with(
        &self,
        method: Method,
        below: &str,
        kind: &str,
        header: Option<(&str, &str)>,
        body: &[u8],
    ) -> Result<Response<Body>, Failure> {
        self.client.send_with(method, &format!("{}/{below}", self.path), kind, header, body)
    }

    /// The listing with these parameters, record by record.
    pub(super) fn list(&self, query: &str) -> Result<Records<impl Read + use<>>, Failure> {
        self.records(&format!("list?{query}"))
    }

    /// A listing from any path below the database.
    pub(super) fn records(&self, below: &str) -> Result<Records<impl Read + use<>>, Failure> {
        let response = self.send(Method::GET, below, "", &[])?;
        Ok(Records { lines: Lines::new(response.into_body().into_reader()), done: false })
    }
}

/// The path of a key below its database: each segment encoded, so that nothing on the way can change it.
pub(super) fn key_path(key: &kvdb::Key) -> String {
    let segments: Vec<String> = key.as_str().split('/').skip(1).map(encode).collect();
    format!("keys/{}", segments.join("/"))
}

/// The body of an answer that is known to be small.
pub(super) fn read_body(response: Response<Body>, reads: bool) -> Result<Vec<u8>, Failure> {
    response.into_body().read_to_vec().map_err(|error| {
        let exit = if reads { Exit::Retry } else { Exit::Unknown };
        Failure::new(exit, format!("the answer broke off: {error}"))
    })
}

pub(super) fn read_json<T: DeserializeOwned>(response: Response<Body>, reads: bool) -> Result<T, Failure> {
    let body = read_body(response, reads)?;
    serde_json::from_slice(&body).map_err(|error| Failure::retry(format!("this is no kvdb node: its answer is {error}")))
}

fn refused(response: Response<Body>) -> Failure {
    let status = response.status();
    let body = response.into_body().read_to_vec().unwrap_or_default();
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => problem.into(),
        Err(_) => Failure::retry(format!("the server answers {status}; is it a kvdb node?")),
    }
}

/// Lines of bounded length, without their ends.
pub(super) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(64 << 10, input), line: Vec::new() }
    }

    /// The next line; `None` at the end.
    pub(super) fn next(&mut self) -> std::io::Result<Option<&[u8]>> {
        self.line.clear();
        let read = (&mut self.input).take(MAX_IMPORT_LINE_BYTES as u64 + 1).read_until(b'\n', &mut self.line)?;
        if read > MAX_IMPORT_LINE_BYTES {
            let message = format!("the line has more than {MAX_IMPORT_LINE_BYTES} bytes, which is the limit");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
        }
        Ok((read > 0).then(|| self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }
}

/// One record of a listing.
#[derive(serde::Deserialize)]
pub(super) struct Record {
    pub(super) key: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) encoding: Option<crate::encoding::Encoding>,
    pub(super) value: Option<String>,
    pub(super) siblings: Option<usize>,
    pub(super) expires_ms: Option<u64>,
    end: Option<End>,
    error: Option<Box<Problem>>,
}

/// The last record of a whole listing.
#[derive(serde::Deserialize)]
pub(super) struct End {
    pub(super) count: usize,
    pub(super) next: Option<String>,
}

/// The records of a listing.
pub(super) struct Records<R> {
    lines: Lines<R>,
    done: bool,
}

/// What comes next in a listing.
pub(super) enum Next<'a> {
    /// A record, parsed and as it was sent.
    Record(Record, &'a [u8]),
    /// The listing is whole.
    End(End),
}

impl<R: Read> Records<R> {
    /// The next record. A listing that stops without its end is a failure, never a short listing.
    pub(super) fn next(&mut self) -> Result<Next<'_>, Failure> {
        if self.done {
            return Err(Failure::retry("the listing has ended"));
        }
        let cut =
            |why: &dyn std::fmt::Display| Failure::retry(format!("the listing was cut short ({why}); what was shown is not all"));
        let line = self.lines.next().map_err(|error| cut(&error))?.ok_or_else(|| cut(&"no end record"))?;
        let mut record: Record = serde_json::from_slice(line).map_err(|_| cut(&"half a record"))?;
        if let Some(problem) = record.error.take() {
            return Err(Failure::retry(format!("the listing failed half way: {}; what was shown is not all", problem.detail)));
        }
        if let Some(end) = record.end.take() {
            self.done = true;
            return Ok(Next::End(end));
        }
        Ok(Next::Record(record, line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str) -> Records<&[u8]> {
        Records { lines: Lines::new(text.as_bytes()), done: false }
    }

    #[test]
    fn a05_a_listing_without_its_end_is_a_failure() {
        let whole = "{\"key\":\"/a\"}\n{\"end\":{\"count\":1,\"next\":null}}\n";
        let mut listing = records(whole);
        assert!(matches!(listing.next(), Ok(Next::Record(record, _)) if record.key.as_deref() == Some("/a")));
        assert!(matches!(listing.next(), Ok(Next::End(End { count: 1, next: None }))));
        for cut in ["", "{\"key\":\"/a\"}\n", "{\"key\":\"/a\"}\n{\"end\":{\"cou"] {
            let mut listing = records(cut);
            let failure = loop {
                match listing.next() {
                    Ok(Next::Record(..)) => {}
                    Ok(Next::End(_)) => panic!("{cut}"),
                    Err(failure) => break failure,
                }
            };
            assert_eq!(failure.exit, Exit::Retry, "{cut}");
            assert!(failure.message.contains("cut short"));
        }
        let failed = serde_json::json!({ "error": Problem::new(crate::problem::Code::ReadFailed, "bad sector") }).to_string();
        assert!(records(&failed).next().err().unwrap().message.contains("bad sector"));
    }

    #[test]
    fn k07_keys_are_encoded_segment_by_segment() {
        let key = kvdb::Key::parse("/a b/c%2F#?+;é/..x").unwrap();
        assert_eq!(key_path(&key), "keys/a%20b/c%252F%23%3F%2B%3B%C3%A9/..x");
    }
}
