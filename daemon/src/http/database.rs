//! Whole databases: making, figures, batches, waiting.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::Response;
use kvdb::{Batch, Database, DatabaseInfo, DatabaseName, DatabaseStats, Dot, Durability, Key, OpOutcome};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::{App, Call, blocking, durability, json};
use super::body;
use crate::encoding::Encoding;
use crate::limits::{DEFAULT_WAIT_MS, MAX_BATCH_BODY_BYTES, MAX_JSON_BODY_BYTES, MAX_WAIT_MS};
use crate::problem::{Code, Problem};

/// `GET /v1/databases`
pub(super) async fn all(app: &App, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let node = app.node().clone();
    let infos = blocking(move || Ok(node.databases()?)).await?;
    let databases: Vec<Value> = infos.iter().map(info).collect();
    json(StatusCode::OK, &json!({ "databases": databases }))
}

fn info(info: &DatabaseInfo) -> Value {
    json!({ "name": info.name.as_str(), "id": info.id.to_string(), "generation": info.generation, "open": info.open })
}

/// `GET /v1/databases/{db}`: its figures.
pub(super) async fn one(app: &App, name: &DatabaseName, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let database = app.database(name).await?;
    json(StatusCode::OK, &blocking(move || figures(&database)).await?)
}

/// The figures of an open database.
pub(super) fn figures(database: &Database) -> Result<Value, Problem> {
    let DatabaseStats {
        keys, digest, heads, replicas, vv_hash, revision, clock, pending_blocks, pending_bytes, disk_bytes, ..
    } = database.stats()?;
    Ok(json!({
        "name": database.name().as_str(), "id": database.id().to_string(), "keys": keys, "digest": digest.to_string(),
        "heads": heads, "replicas": replicas, "vv_hash": hex(&vv_hash), "revision": revision, "clock": clock.to_string(),
        "pending_blocks": pending_blocks, "pending_bytes": pending_bytes, "disk_bytes": disk_bytes,
    }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// `PUT /v1/databases/{db}`: 201 when it is new, 200 when it was there.
pub(super) async fn create(app: &App, name: &DatabaseName, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let body = body::read(call.body, &call.headers, MAX_JSON_BODY_BYTES, Code::BodyTooLong).await?;
    // Whoever sends a body meant something by it, most likely a value for a key that a client has cut from the path.
    if !body.is_empty() {
        return Err(Problem::new(Code::BadRequest, "making a database takes no body; a key goes to …/keys/{key}"));
    }
    let status = if app.has(name).await? { StatusCode::OK } else { StatusCode::CREATED };
    let database = app.open(name).await?;
    json(status, &json!({ "name": name.as_str(), "id": database.id().to_string() }))
}

/// `GET …/wait?dot=`: answers once this node has merged the dot.
pub(super) async fn wait(database: &Database, mut call: Call) -> Result<Response, Problem> {
    let text = call.query.need("dot")?;
    let dot: Dot = text.parse().map_err(|error| Problem::new(Code::BadRequest, format!("dot={text:?}: {error}")))?;
    let millis = call.query.take_number("timeout_ms", 0..=MAX_WAIT_MS)?.unwrap_or(DEFAULT_WAIT_MS);
    call.query.finish()?;
    database.wait_for(dot, Duration::from_millis(millis)).await?;
    json(StatusCode::OK, &json!({ "dot": dot.to_string(), "covered": true }))
}

/// A batch as one document.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchDocument {
    ops: Vec<OpDocument>,
    durability: Option<String>,
}

/// One op: `put` with a value, or `delete`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpDocument {
    put: Option<String>,
    delete: Option<String>,
    encoding: Option<Encoding>,
    value: Option<String>,
}

/// `POST …/batch`: everything or nothing.
pub(super) async fn batch(database: &Database, mut call: Call) -> Result<Response, Problem> {
    let mut durability = durability(&mut call.query)?;
    call.query.finish()?;
    let lines = match call.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("?")) {
        None => false,
        Some(kind) if kind.starts_with("application/json") => false,
        Some(kind) if kind.starts_with("application/x-ndjson") => true,
        Some(kind) => {
            let detail = format!("content-type {kind:?}: application/json or application/x-ndjson is needed");
            return Err(Problem::new(Code::BadRequest, detail));
        }
    };
    let body = body::read(call.body, &call.headers, MAX_BATCH_BODY_BYTES, Code::BodyTooLong).await?;
    let ops = if lines {
        let lines = body.split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.trim_ascii().is_empty());
        lines.map(|(line, number)| parse(line, &format!("line {number}: "))).collect::<Result<_, _>>()?
    } else {
        let document: BatchDocument = parse(&body, "")?;
        durability = match document.durability.as_deref() {
            None => durability,
            Some("sync") => Some(Durability::Sync),
            Some("buffered") => Some(Durability::Buffered),
            Some(other) => {
                let detail = format!("durability {other:?}: one of sync, buffered is needed");
                return Err(Problem::new(Code::BadRequest, detail));
            }
        };
        document.ops
    };
    // Decoding megabytes of base64 is short, but there may be many at once.
    let mut batch = blocking(move || collect(ops)).await?;
    if let Some(durability) = durability {
        batch = batch.durability(durability);
    }
    let written = database.batch(batch).await?;
    let outcomes: Vec<&str> = written.ops.iter().map(|outcome| word(*outcome)).collect();
    json(StatusCode::OK, &json!({ "dot": written.dot.map(|dot| dot.to_string()), "ops": outcomes }))
}

fn parse<T: for<'de> Deserialize<'de>>(json: &[u8], place: &str) -> Result<T, Problem> {
    serde_json::from_slice(json).map_err(|error| {
        // The parser's message quotes a mistyped value, which may be a secret: say where, and the kind of error.
        let what = match error.classify() {
            serde_json::error::Category::Syntax => "is not JSON",
            serde_json::error::Category::Eof => "breaks off",
            _ => "is not a batch: {\"ops\": [{\"put\": key, \"encoding\": \"utf8\" or \"base64\", \"value\": text}, {\"delete\": key}]}",
        };
        Problem::new(Code::BadRequest, format!("{place}the body {what} (line {}, column {})", error.line(), error.column()))
    })
}

fn collect(ops: Vec<OpDocument>) -> Result<Batch, Problem> {
    ops.into_iter().zip(1..).try_fold(Batch::new(), |batch, (op, number)| {
        add(batch, op).map_err(|mut problem: Problem| {
            problem.detail = format!("op {number}: {}", problem.detail);
            problem
        })
    })
}

fn add(batch: Batch, op: OpDocument) -> Result<Batch, Problem> {
    match op {
        OpDocument { put: Some(key), delete: None, encoding, value: Some(value) } => {
            let value = encoding.unwrap_or(Encoding::Utf8).decode(value);
            let value = value.map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
            Ok(batch.put(Key::parse(&key)?, value))
        }
        OpDocument { put: None, delete: Some(key), encoding: None, value: None } => Ok(batch.delete(Key::parse(&key)?)),
        _ => Err(Problem::new(Code::BadRequest, "an op is a put with a value, or a delete without one")),
    }
}

fn word(outcome: OpOutcome) -> &'static str {
    match outcome {
        OpOutcome::Put => "put",
        OpOutcome::Deleted => "deleted",
        OpOutcome::Absent => "absent",
        OpOutcome::Overridden => "overridden",
        OpOutcome::Replaced => "replaced",
        OpOutcome::Repeated => "repeated",
    }
}
