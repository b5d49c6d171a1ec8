//! Whole databases: making, figures, waiting.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use kvdb::{Database, DatabaseInfo, DatabaseName, DatabaseStats, Dot};
use serde_json::{Value, json};

use super::app::{App, Call, blocking, json};
use super::body;
use crate::limits::{DEFAULT_WAIT_MS, MAX_DATABASES_PAGE, MAX_HOLDERS, MAX_JSON_BODY_BYTES, MAX_WAIT_MS};
use crate::problem::{Code, Problem};

/// `GET /v1/databases`
pub(super) async fn all(app: &App, mut call: Call) -> Result<Response, Problem> {
    let after = call.query.take("after").map(|name| DatabaseName::parse(&name)).transpose()?;
    let limit = call.query.take_number("limit", 1..=MAX_DATABASES_PAGE)?.unwrap_or(MAX_DATABASES_PAGE);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    call.query.finish()?;
    let node = app.node().clone();
    // One more than asked tells whether there is more.
    let mut infos = blocking(move || Ok(node.databases_after(after.as_ref(), limit + 1)?)).await?;
    let more = infos.len() > limit;
    infos.truncate(limit);
    let next = infos.last().filter(|_| more).map(|info| info.name.as_str());
    let databases: Vec<Value> = infos.iter().map(info).collect();
    json(StatusCode::OK, &json!({ "databases": databases, "next": next }))
}

fn info(info: &DatabaseInfo) -> Value {
    json!({
        "name": info.name.as_str(), "id": info.id.to_string(), "generation": info.generation, "open": info.open,
        "keys": info.keys, "digest": info.digest.to_string(), "revision": info.revision,
        "directory": info.directory.display().to_string(), "unavailable": info.unavailable,
    })
}

/// `GET /v1/databases/{db}`: its figures.
pub(super) async fn one(database: Database, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    json(StatusCode::OK, &blocking(move || figures(&database)).await?)
}

/// The figures of an open database.
pub(super) fn figures(database: &Database) -> Result<Value, Problem> {
    let DatabaseStats {
        keys,
        digest,
        heads,
        replicas,
        vv_hash,
        revision,
        clock,
        pending_blocks,
        pending_bytes,
        disk_bytes,
        history_bytes,
        unsafe_bytes,
        log_floor,
        ..
    } = database.stats()?;
    Ok(json!({
        "name": database.name().as_str(), "id": database.id().to_string(), "keys": keys, "digest": digest.to_string(),
        "heads": heads, "replicas": replicas, "vv_hash": hex(&vv_hash), "revision": revision, "clock": clock.to_string(),
        "pending_blocks": pending_blocks, "pending_bytes": pending_bytes, "disk_bytes": disk_bytes,
        "history_bytes": history_bytes, "unsafe_bytes": unsafe_bytes, "log_floor": log_floor,
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

/// `DELETE /v1/databases/{db}`: the name is free when this answers.
pub(super) async fn drop(app: &App, name: &DatabaseName, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    app.node().drop_database(name).await?;
    json(StatusCode::OK, &json!({ "name": name.as_str(), "dropped": true }))
}

/// `GET …/wait?dot=&holders=`: answers once this node has merged the dot, and so many nodes have it on disk.
pub(super) async fn wait(database: &Database, mut call: Call) -> Result<Response, Problem> {
    let text = call.query.need("dot")?;
    let dot: Dot = text.parse().map_err(|error| Problem::new(Code::BadRequest, format!("dot={text:?}: {error}")))?;
    let millis = call.query.take_number("timeout_ms", 0..=MAX_WAIT_MS)?.unwrap_or(DEFAULT_WAIT_MS);
    let holders = call.query.take_number("holders", 1..=MAX_HOLDERS)?;
    call.query.finish()?;
    let timeout = Duration::from_millis(millis);
    let mut document = json!({ "dot": dot.to_string(), "covered": true });
    match holders {
        None => database.wait_for(dot, timeout).await?,
        Some(count) => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let holders = database.wait_for_holders(dot, count, timeout).await?;
            let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
            document.as_object_mut().map(|fields| fields.insert("holders".into(), json!(holders)));
        }
    }
    json(StatusCode::OK, &document)
}
