//! `import` and `export`: one JSON record a line, byte-exact both ways.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Read, Write as _};
use std::time::{Duration, Instant, SystemTime};

use kvdb::{Key, Prefix};
use serde::{Deserialize, Serialize};
use serde_json::json;
use ureq::http::Method;

use super::args::{ExportArgs, ImportArgs};
use super::client::{DatabaseClient, Lines, Next, encode, read_body, read_json};
use super::failure::Failure;
use super::key::{durability, joined};
use crate::encoding::Encoding;
use crate::limits::{IMPORT_ATTEMPTS, IMPORT_BATCH_BYTES, IMPORT_BATCH_OPS, IMPORT_PAUSE, MAX_VALUE_BYTES};
use crate::problem::Code;

/// One line of an export.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueLine {
    key: String,
    encoding: Encoding,
    value: String,
    /// When it expires, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

/// The last line of an export.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: Count,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    count: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    End(EndLine),
    Value(ValueLine),
}

/// `kvdb export`
pub(super) fn export(args: &ExportArgs) -> Result<(), Failure> {
    let prefix = Prefix::parse(&args.prefix).map_err(Failure::bad_input)?;
    let client = DatabaseClient::new(&args.client)?;
    let mut records = client.list(&format!("prefix={}", encode(prefix.as_str())))?;
    let mut output = BufWriter::new(std::io::stdout().lock());
    let mut count = 0;
    loop {
        let line = match records.next() {
            Ok(Next::Record(record, line)) => match (record.key, record.encoding, record.value) {
                (Some(key), ..) if args.siblings => siblings(&client, &key, record.siblings, line)?,
                (Some(key), Some(encoding), Some(value)) => {
                    json!(ValueLine { key, encoding, value, expires_ms: record.expires_ms })
                }
                _ => return Err(Failure::retry("the listing holds a record without key or value")),
            },
            Ok(Next::End(end)) if end.count == count => break,
            Ok(Next::End(end)) => {
                return Err(Failure::retry(format!("the listing has {} records, {count} arrived", end.count)));
            }
            Err(failure) => {
                drop(output.flush());
                return Err(failure);
            }
        };
        count += 1;
        writeln!(output, "{line}").map_err(|error| Failure::output(&error))?;
    }
    let end = json!(EndLine { end: Count { count } });
    writeln!(output, "{end}").and_then(|()| output.flush()).map_err(|error| Failure::output(&error))
}

/// All that is alive at a key, as a line: from the listing's record, unless there is more than that tells.
fn siblings(client: &DatabaseClient, key: &str, count: Option<usize>, line: &[u8]) -> Result<serde_json::Value, Failure> {
    let malformed = |error| Failure::retry(format!("the listing holds a record that is none: {error}"));
    let mut winner: serde_json::Value = serde_json::from_slice(line).map_err(malformed)?;
    if let Some(fields) = winner.as_object_mut() {
        fields.retain(|field, _| ["dot", "stamp", "expires_ms", "encoding", "value"].contains(&field.as_str()));
    }
    let mut all = json!([winner]);
    if count != Some(1) {
        let answer: serde_json::Value =
            read_json(client.send(Method::GET, &format!("siblings?key={}", encode(key)), "", &[])?, true)?;
        // Deleted since the listing was begun: then its winner stands.
        if let Some(found) = answer.get("siblings").filter(|found| found.as_array().is_some_and(|found| !found.is_empty())) {
            all = found.clone();
        }
    }
    Ok(json!({ "key": key, "siblings": all }))
}

/// `kvdb import`
pub(super) fn import(args: &ImportArgs) -> Result<(), Failure> {
    let client = DatabaseClient::new(&args.client)?;
    let mut import = Import {
        client,
        path: format!("batch{}", joined(&durability(&args.write))),
        ops: Vec::new(),
        bytes: 0,
        imported: 0,
        progress: Progress::new(args.progress),
    };
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = File::open(&args.file);
        Box::new(opened.map_err(|error| Failure::bad_input(format!("cannot read {}: {error}", args.file.display())))?)
    };
    let ended = import.read(input);
    import.progress.finish();
    let ended = ended.map_err(|failure| failure.and(&format!("; {} keys were imported before", import.imported)))?;
    if !ended {
        eprintln!("kvdb: the input has no end record, so it cannot be told whether it is whole");
    }
    eprintln!("kvdb: imported {} keys", import.imported);
    Ok(())
}

struct Import {
    client: DatabaseClient,
    path: String,
    ops: Vec<serde_json::Value>,
    bytes: usize,
    imported: usize,
    progress: Progress,
}

impl Import {
    /// Imports all lines; whether there was an end record.
    fn read(&mut self, input: impl Read) -> Result<bool, Failure> {
        let mut lines = Lines::new(input);
        let mut number = 0;
        let mut records = 0;
        let mut ended = false;
        loop {
            number += 1;
            let at_line = |what: &dyn std::fmt::Display| Failure::bad_input(format!("line {number}: {what}"));
            let Some(line) = lines.next().map_err(|error| at_line(&error))? else { break };
            if line.trim_ascii().is_empty() {
                continue;
            }
            if ended {
                return Err(at_line(&"there is more after the end record"));
            }
            let line = serde_json::from_slice(line).map_err(|_| at_line(&no_record(line)))?;
            match line {
                Line::Value(line) => {
                    records += 1;
                    if let Some((op, bytes)) = check(line).map_err(|error| at_line(&error))? {
                        self.add(op, bytes)?;
                    }
                }
                Line::End(EndLine { end: Count { count } }) if count == records => ended = true,
                Line::End(EndLine { end: Count { count } }) => {
                    return Err(at_line(&format!("the end record counts {count} records, the input has {records}")));
                }
            }
        }
        self.flush()?;
        Ok(ended)
    }

    fn add(&mut self, op: serde_json::Value, bytes: usize) -> Result<(), Failure> {
        if self.ops.len() >= IMPORT_BATCH_OPS || self.bytes + bytes > IMPORT_BATCH_BYTES {
            self.flush()?;
        }
        self.ops.push(op);
        self.bytes += bytes;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        if self.ops.is_empty() {
            return Ok(());
        }
        let ops = std::mem::take(&mut self.ops);
        let count = ops.len();
        let body = json!({ "ops": ops }).to_string();
        let mut attempt = 1;
        let response = loop {
            match self.client.send(Method::POST, &self.path, "application/json", body.as_bytes()) {
                Err(failure) if failure.code == Some(Code::QueueFull) && attempt < IMPORT_ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(IMPORT_PAUSE);
                }
                answer => break answer?,
            }
        };
        read_body(response, false)?;
        self.bytes = 0;
        self.imported += count;
        self.progress.show(self.imported);
        Ok(())
    }
}

/// What is wrong with a line that is no record.
fn no_record(line: &[u8]) -> &'static str {
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(line);
    if parsed.is_ok_and(|parsed| parsed.get("siblings").is_some()) {
        return "not a record: an export with --siblings is to be looked at, one without is to be imported";
    }
    "not a record: {\"key\": text, \"encoding\": \"utf8\" or \"base64\", \"value\": text} is needed"
}

/// Checks a record here, so that a fault is named by its line. `None` when it has expired.
fn check(line: ValueLine) -> Result<Option<(serde_json::Value, usize)>, String> {
    let ValueLine { key, encoding, value, expires_ms } = line;
    let key = Key::parse(&key).map_err(|error| error.to_string())?;
    let mut op = json!({ "put": key.as_str(), "encoding": encoding, "value": value });
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let left = expires_ms.map(|at| u128::from(at).saturating_sub(now));
    if let (Some(left), Some(fields)) = (left, op.as_object_mut()) {
        fields.insert("ttl_ms".to_owned(), json!(u64::try_from(left).unwrap_or(u64::MAX)));
    }
    let bytes = encoding.decode(value).map_err(|error| error.to_string())?.len();
    if bytes > MAX_VALUE_BYTES {
        return Err(format!("the value has {bytes} bytes, the limit is {MAX_VALUE_BYTES}"));
    }
    Ok((left != Some(0)).then(|| (op, key.as_bytes().len() + bytes)))
}

/// Shows how far an import is: rewriting one line on a terminal, else a line now and then.
struct Progress {
    shown: bool,
    terminal: bool,
    last: Option<Instant>,
}

impl Progress {
    fn new(forced: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { shown: terminal || forced, terminal, last: None }
    }

    fn show(&mut self, imported: usize) {
        let pause = if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(1) };
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        self.last = Some(Instant::now());
        if self.terminal {
            eprint!("\rimported {imported} keys");
        } else {
            eprintln!("imported {imported} keys");
        }
    }

    fn finish(&self) {
        if self.terminal && self.last.is_some() {
            eprintln!();
        }
    }
}
