//! `import` and `export`: one JSON record a line, byte-exact both ways.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Read, Write as _};
use std::time::{Duration, Instant};

use kvdb::{Key, Prefix};
use serde::{Deserialize, Serialize};
use serde_json::json;
use ureq::http::Method;

use super::args::{ExportArgs, ImportArgs};
use super::client::{DatabaseClient, Lines, Next, encode, read_body};
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
    let mut records = DatabaseClient::new(&args.client)?.list(&format!("prefix={}", encode(prefix.as_str())))?;
    let mut output = BufWriter::new(std::io::stdout().lock());
    let mut count = 0;
    loop {
        let line = match records.next() {
            Ok(Next::Record(record, _)) => match (record.key, record.encoding, record.value) {
                (Some(key), Some(encoding), Some(value)) => json!(ValueLine { key, encoding, value }),
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
            let line = serde_json::from_slice(line).map_err(|_| {
                at_line(&"not a record: {\"key\": text, \"encoding\": \"utf8\" or \"base64\", \"value\": text} is needed")
            })?;
            match line {
                Line::Value(line) => {
                    let (op, bytes) = check(line).map_err(|error| at_line(&error))?;
                    records += 1;
                    self.add(op, bytes)?;
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

/// Checks a record here, so that a fault is named by its line.
fn check(line: ValueLine) -> Result<(serde_json::Value, usize), String> {
    let ValueLine { key, encoding, value } = line;
    let key = Key::parse(&key).map_err(|error| error.to_string())?;
    let op = json!({ "put": key.as_str(), "encoding": encoding, "value": value });
    let bytes = encoding.decode(value).map_err(|error| error.to_string())?.len();
    if bytes > MAX_VALUE_BYTES {
        return Err(format!("the value has {bytes} bytes, the limit is {MAX_VALUE_BYTES}"));
    }
    Ok((op, key.as_bytes().len() + bytes))
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
