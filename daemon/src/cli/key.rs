//! `put`, `get`, `rm`.

use std::fs::File;
use std::io::{IsTerminal as _, Read, Write as _};

use kvdb::Key;
use serde_json::json;
use ureq::http::Method;

use super::args::{GetArgs, PutArgs, RmArgs, WriteArgs};
use super::client::{DatabaseClient, key_path, read_body, read_json};
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
    let path = key_path(&key) + &durability(&args.write);
    let client = DatabaseClient::new(&args.client)?;
    client.send(Method::PUT, &path, "application/octet-stream", &value).map(drop)
}

/// `kvdb get`
pub(super) fn get(args: &GetArgs) -> Result<(), Failure> {
    let key = parse(&args.key)?;
    let response = DatabaseClient::new(&args.client)?.send(Method::GET, &key_path(&key), "", &[])?;
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (dot, stamp) = (header("kvdb-dot"), header("kvdb-stamp"));
    let value = read_body(response, true)?;
    let output = if args.json {
        let (encoding, value) = Encoding::encode(&value);
        let record = json!({ "key": key.as_str(), "dot": dot, "stamp": stamp, "encoding": encoding, "value": value });
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
    let path = key_path(&key) + &durability(&args.write);
    let response = DatabaseClient::new(&args.client)?.send(Method::DELETE, &path, "", &[])?;
    let answer: serde_json::Value = read_json(response, false)?;
    match answer.get("dot") {
        Some(serde_json::Value::Null) => Err(Failure::new(Exit::Absent, format!("there is nothing at {key}"))),
        _ => Ok(()),
    }
}

/// The query that asks for a durability.
pub(super) fn durability(args: &WriteArgs) -> String {
    args.durability.as_ref().map(|word| format!("?durability={word}")).unwrap_or_default()
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
