//! Batches: several ops that become visible together.

use axum::http::header;
use axum::response::Response;
use kvdb::{Batch, Key, Op, OpOutcome};
use serde::Deserialize;
use serde_json::{Map, json};
use std::time::Duration;

use super::app::{Call, blocking};
use super::body;
use super::fleet::{Target, Way, durability};
use super::terms::dot;
use crate::encoding::Encoding;
use crate::limits::{MAX_BATCH_BODY_BYTES, MAX_TTL_MS};
use crate::problem::{Code, Problem};

/// A batch as one document.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchDocument {
    ops: Vec<OpDocument>,
    durability: Option<String>,
}

/// One op: `put` with a value, or `delete`; and what must hold for it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OpDocument {
    put: Option<String>,
    delete: Option<String>,
    encoding: Option<Encoding>,
    value: Option<String>,
    ttl_ms: Option<u64>,
    #[serde(default)]
    if_absent: bool,
    if_match: Option<String>,
    seen: Option<Vec<String>>,
}

/// `POST …/batch`: everything or nothing.
pub(super) async fn batch(target: &Target, mut call: Call) -> Result<Response, Problem> {
    let mut way = Way::take(&call.headers, &mut call.query)?;
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
        if let Some(word) = &document.durability {
            way.asked = Some(durability(word)?);
        }
        document.ops
    };
    // Decoding megabytes of base64 is short, but there may be many at once.
    let batch = blocking(move || collect(ops)).await?;
    let done = target.write(batch, way).await?;
    let outcomes: Vec<&str> = done.written.ops.iter().map(|outcome| word(*outcome)).collect();
    let dot = done.written.dot.map(|dot| dot.to_string());
    done.answer(&mut Map::from_iter([("dot".to_owned(), json!(dot)), ("ops".to_owned(), json!(outcomes))]))
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
    ops.into_iter().zip(1..).try_fold(Batch::new(), |batch, (document, number)| {
        let op = op(document).map_err(|mut problem: Problem| {
            problem.detail = format!("op {number}: {}", problem.detail);
            problem
        });
        Ok(batch.op(op?))
    })
}

fn op(document: OpDocument) -> Result<Op, Problem> {
    let bad = |detail: &str| Problem::new(Code::BadRequest, detail);
    let OpDocument { put, delete, encoding, value, ttl_ms, if_absent, if_match, seen } = document;
    let mut op = match (put, delete, value) {
        (Some(key), None, Some(value)) => {
            let value = encoding.unwrap_or(Encoding::Utf8).decode(value).map_err(|error| bad(&error.to_string()))?;
            let key = Key::parse(&key)?;
            match ttl_ms {
                None => Op::put(key, value),
                Some(ms) if (1..=MAX_TTL_MS).contains(&ms) => Op::put_for(key, value, Duration::from_millis(ms)),
                Some(ms) => return Err(bad(&format!("ttl_ms {ms}: a whole number from 1 to {MAX_TTL_MS} is needed"))),
            }
        }
        (None, Some(key), None) if encoding.is_none() && ttl_ms.is_none() => Op::delete(Key::parse(&key)?),
        _ => return Err(bad("an op is a put with a value, or a delete without one")),
    };
    op = match (if_absent, if_match) {
        (true, Some(_)) => return Err(bad("if_absent and if_match cannot both hold")),
        (true, None) => op.if_absent(),
        (false, Some(text)) => op.if_match(dot(&text)?),
        (false, None) => op,
    };
    match seen {
        None => Ok(op),
        Some(dots) => Ok(op.seen(dots.iter().map(|text| dot(text)).collect::<Result<Vec<_>, _>>()?)),
    }
}

/// What an op did, in one word.
pub(super) fn word(outcome: OpOutcome) -> &'static str {
    match outcome {
        OpOutcome::Put => "put",
        OpOutcome::Deleted => "deleted",
        OpOutcome::Absent => "absent",
        OpOutcome::Overridden => "overridden",
        OpOutcome::Replaced => "replaced",
        OpOutcome::Repeated => "repeated",
    }
}
