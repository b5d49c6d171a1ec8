//! Compacting a database: progress as records, one a line, and at the end what was done.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use kvdb::{CompactError, CompactOptions, CompactProgress, Compacted, Database};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::app::Call;
use crate::limits::STREAM_CHUNKS;
use crate::problem::{Code, Problem};

/// `POST …/compact`. A client that goes away ends it after the piece under way.
pub(super) fn compact(database: Database, mut call: Call) -> Result<Response, Problem> {
    let options = CompactOptions {
        min_age: call.query.take_number("min_age_seconds", 0..=u64::from(u32::MAX))?.map(Duration::from_secs),
        max_bytes: call.query.take_number("max_bytes", 0..=u64::MAX)?,
        alone: call.query.take_flag("alone")?,
    };
    call.query.finish()?;
    let (sender, receiver) = mpsc::channel(STREAM_CHUNKS);
    tokio::spawn(async move {
        // Progress that finds no room is out of date by the time there is some.
        let progress = |at| drop(sender.try_send(line(&step(at))));
        tokio::select! {
            done = database.compact(&options, progress) => {
                let record = match done {
                    Ok(done) => json!({ "end": outcome(&done) }),
                    Err(error) => json!({ "error": Problem::from(error) }),
                };
                drop(sender.send(line(&record)).await);
            }
            () = sender.closed() => {}
        }
    });
    Ok(records(receiver))
}

/// Records as they come, one a line.
pub(super) fn records(receiver: mpsc::Receiver<Bytes>) -> Response {
    let lines = futures::stream::unfold(receiver, |mut receiver| async {
        let line: Result<Bytes, std::io::Error> = Ok(receiver.recv().await?);
        Some((line, receiver))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

fn step(progress: CompactProgress) -> Value {
    match progress {
        CompactProgress::Dropping { blocks, of } => json!({ "dropping": { "blocks": blocks, "of": of } }),
        _ => json!({ "rewriting": true }),
    }
}

fn outcome(done: &Compacted) -> Value {
    json!({
        "blocks": done.blocks, "bytes": done.bytes, "history_bytes": done.kept_bytes, "unsafe_bytes": done.unsafe_bytes,
        "log_floor": done.log_floor,
    })
}

pub(super) fn line(record: &Value) -> Bytes {
    Bytes::from(format!("{record}\n"))
}

impl From<CompactError> for Problem {
    fn from(error: CompactError) -> Self {
        match error {
            CompactError::Read(error) => error.into(),
            CompactError::Write(error) => error.into(),
            other => Self::new(Code::Internal, other.to_string()),
        }
    }
}
