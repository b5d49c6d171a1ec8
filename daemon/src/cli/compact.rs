//! `compact`

use std::io::{IsTerminal as _, Write as _};

use serde_json::Value;
use ureq::Body;
use ureq::http::{Method, Response};

use super::args::CompactArgs;
use super::client::{DatabaseClient, Lines};
use super::failure::Failure;
use crate::problem::Problem;

/// `kvdb compact`
pub(super) fn compact(args: &CompactArgs) -> Result<(), Failure> {
    let mut query = vec![format!("alone={}", args.alone)];
    query.extend(args.min_age_seconds.map(|seconds| format!("min_age_seconds={seconds}")));
    query.extend(args.max_bytes.map(|bytes| format!("max_bytes={bytes}")));
    let client = DatabaseClient::new(&args.client)?;
    let end = follow(client.send(Method::POST, &format!("compact?{}", query.join("&")), "", &[])?)?;
    let word = |field: &str| end.get(field).map(Value::to_string).unwrap_or_default();
    let fields = ["blocks", "bytes", "history_bytes", "unsafe_bytes", "log_floor"];
    let fields = fields.map(|field| format!("{field}={}", word(field))).join(" ");
    writeln!(std::io::stdout(), "{fields}").map_err(|error| Failure::output(&error))
}

/// Reads records to their end, which is returned; shows those before it.
pub(super) fn follow(response: Response<Body>) -> Result<Value, Failure> {
    let mut lines = Lines::new(response.into_body().into_reader());
    let broken = |why: &dyn std::fmt::Display| Failure::retry(format!("the answer broke off, repeat the command: {why}"));
    let show = std::io::stderr().is_terminal();
    loop {
        let line = lines.next().map_err(|error| broken(&error))?.ok_or_else(|| broken(&"no end"))?;
        let record: Value = serde_json::from_slice(line).map_err(|error| broken(&error))?;
        if let Some(problem) = record.get("error") {
            let problem: Problem = serde_json::from_value(problem.clone()).map_err(|error| broken(&error))?;
            return Err(problem.into());
        }
        if let Some(end) = record.get("end") {
            return Ok(end.clone());
        }
        if show {
            // For eyes only.
            drop(writeln!(std::io::stderr(), "kvdb: {record}"));
        }
    }
}
