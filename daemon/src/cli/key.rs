//! `put`, `get`, `rm`, `siblings`.

use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};

use kvdb::Key;
use serde_json::{Value, json};
use ureq::http::Method;

use super::args::{AtArgs, FleetWriteArgs, GetArgs, PutArgs, RmArgs, SiblingsArgs, TermsArgs, WriteArgs};
use super::client::{DatabaseClient, encode, key_path, read_body, read_json};
use super::failure::{Exit, Failure};
use crate::encoding::Encoding;
use crate::limits::MAX_VALUE_BYTES;

/// `kvdb put`
pub(super) fn put(args: &PutArgs) -> Result<(), Failure> {
    let key = parse(&args.key)?;
    let value = value(args)?;
    if value.len() > MAX_VALUE_BYTES {
        return Err(Failure::bad_input(format!("the value has more than {MAX_VALUE_BYTES} bytes, which is the limit")));
    }
    let (mut query, condition) = terms(&args.terms, &args.write);
    query.extend(args.ttl.map(|ttl| format!("ttl_ms={}", ttl.as_millis())));
    let path = key_path(&key) + &joined(&query);
    let client = DatabaseClient::new(&args.client)?;
    let header = condition.as_ref().map(|(name, value)| (*name, value.as_str()));
    let response = client.send_with(Method::PUT, &path, "application/octet-stream", header, &value)?;
    let answer: Value = read_json(response, false)?;
    show(&answer, args.json)
}

/// What a write came to: all of it with `--json`, else in a fleet the dot and who has it on disk.
fn show(answer: &Value, json: bool) -> Result<(), Failure> {
    let word = |field: &str| answer.get(field).and_then(Value::as_str).unwrap_or("-").to_owned();
    let text = match answer.get("holders").and_then(Value::as_array) {
        _ if json => format!("{answer}\n"),
        None => return Ok(()),
        Some(holders) => {
            let holders: Vec<&str> = holders.iter().filter_map(Value::as_str).collect();
            let ms = answer.get("took_ms").and_then(Value::as_f64).unwrap_or_default();
            format!("{} on disk at {} in {ms} ms\n", word("dot"), holders.join(","))
        }
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// `kvdb get`
pub(super) fn get(args: &GetArgs) -> Result<(), Failure> {
    let key = parse(&args.key)?;
    let flags = [(args.confirmed, "confirmed=true"), (args.stale, "stale=true")];
    let mut query = at(&args.at);
    query.extend(flags.iter().filter(|(given, _)| *given).map(|(_, flag)| (*flag).to_owned()));
    let path = key_path(&key) + &joined(&query);
    let response = DatabaseClient::new(&args.client)?.send(Method::GET, &path, "", &[])?;
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (dot, stamp, served_by) = (header("kvdb-dot"), header("kvdb-stamp"), header("kvdb-served-by"));
    let value = read_body(response, true)?;
    let output = if args.json {
        let (encoding, value) = Encoding::encode(&value);
        let mut record = json!({ "key": key.as_str(), "dot": dot, "stamp": stamp, "encoding": encoding, "value": value });
        if let Some(fields) = record.as_object_mut().filter(|_| !served_by.is_empty()) {
            fields.insert("served_by".into(), json!(served_by));
        }
        format!("{record}\n").into_bytes()
    } else {
        value
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&output).and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// `kvdb rm`
pub(super) fn rm(args: &RmArgs) -> Result<(), Failure> {
    let key = parse(&args.key)?;
    let (query, condition) = terms(&args.terms, &args.write);
    let path = key_path(&key) + &joined(&query);
    let header = condition.as_ref().map(|(name, value)| (*name, value.as_str()));
    let response = DatabaseClient::new(&args.client)?.send_with(Method::DELETE, &path, "", header, &[])?;
    let answer: Value = read_json(response, false)?;
    match answer.get("dot") {
        Some(Value::Null) => Err(Failure::new(Exit::Absent, format!("there is nothing at {key}"))),
        _ => show(&answer, args.json),
    }
}

/// `kvdb siblings`
pub(super) fn siblings(args: &SiblingsArgs) -> Result<(), Failure> {
    let key = parse(&args.key)?;
    let mut query = at(&args.at);
    query.push(format!("key={}", encode(key.as_str())));
    let response = DatabaseClient::new(&args.client)?.send(Method::GET, &format!("siblings{}", joined(&query)), "", &[])?;
    let answer: Value = read_json(response, true)?;
    let siblings = answer.get("siblings").and_then(Value::as_array).cloned().unwrap_or_default();
    if siblings.is_empty() {
        return Err(Failure::new(Exit::Absent, format!("there is nothing at {key}")));
    }
    let text = if args.json { format!("{answer}\n") } else { siblings.iter().map(line).collect() };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

/// One sibling without its value.
fn line(sibling: &Value) -> String {
    let word = |field: &str| sibling.get(field).and_then(Value::as_str).unwrap_or("-").to_owned();
    let expires = sibling.get("expires_ms").and_then(Value::as_u64).map(|ms| format!(" expires_ms={ms}")).unwrap_or_default();
    format!("{} stamp={} author={}{expires}\n", word("dot"), word("stamp"), word("author"))
}

/// Parameters of a write, and the header that states its condition.
fn terms(args: &TermsArgs, write: &WriteArgs) -> (Vec<String>, Option<(&'static str, String)>) {
    let mut query = durability(write);
    if !args.seen.is_empty() {
        let dots: Vec<String> = args.seen.iter().map(ToString::to_string).collect();
        query.push(format!("seen={}", dots.join(",")));
    }
    query.extend(args.request.request.as_ref().map(|id| format!("request={id}")));
    let condition = match &args.if_match {
        Some(dot) => Some(("if-match", format!("\"{dot}\""))),
        None => args.if_absent.then(|| ("if-none-match", "*".to_owned())),
    };
    (query, condition)
}

fn at(args: &AtArgs) -> Vec<String> {
    let at = args.at.as_ref().map(|dot| format!("at={dot}"));
    at.into_iter().chain(args.wait.map(|wait| format!("wait={}", wait.as_millis()))).collect()
}

/// The parameters that say when a write is answered.
pub(super) fn durability(args: &WriteArgs) -> Vec<String> {
    let FleetWriteArgs { require, prefer, local, attempt, deadline } = &args.fleet;
    let word = match (require, prefer, local) {
        (Some(k), ..) => Some(format!("require({k})")),
        (None, Some(k), _) => Some(format!("prefer({k})")),
        (None, None, true) => Some("local".to_owned()),
        (None, None, false) => args.durability.clone(),
    };
    let deadline = deadline.map(|time| format!("deadline_ms={}", time.as_millis()));
    let attempt = attempt.then(|| "attempt=true".to_owned());
    word.map(|word| format!("durability={word}")).into_iter().chain(deadline).chain(attempt).collect()
}

/// A query string of parameters, if there are any.
pub(super) fn joined(parameters: &[String]) -> String {
    if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) }
}

fn parse(text: &str) -> Result<Key, Failure> {
    Key::parse(text).map_err(Failure::bad_input)
}

/// The value, or one byte more than a value may have.
fn value(args: &PutArgs) -> Result<Vec<u8>, Failure> {
    let stdin = || {
        if std::io::stdin().is_terminal() {
            return Err(Failure::bad_input("no value: give one, or --file, or pipe it in"));
        }
        bounded(std::io::stdin().lock(), &"standard input")
    };
    match (&args.value, &args.file) {
        (Some(value), _) if value == "-" => stdin(),
        (Some(value), _) => Ok(value.as_encoded_bytes().to_vec()),
        (None, Some(path)) if path.as_os_str() == "-" => stdin(),
        (None, Some(path)) => {
            let file =
                File::open(path).map_err(|error| Failure::bad_input(format!("cannot read {}: {error}", path.display())))?;
            bounded(file, &path.display())
        }
        (None, None) => stdin(),
    }
}

fn bounded(input: impl Read, name: &dyn std::fmt::Display) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = input.take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut value);
    read.map_err(|error| Failure::bad_input(format!("cannot read {name}: {error}")))?;
    Ok(value)
}
