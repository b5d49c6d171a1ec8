//! Single keys.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use kvdb::{Database, Dot, Entry, Key};
use serde_json::json;

use super::app::{Call, blocking, durability, json};
use super::body;
use super::route::Query;
use crate::encoding::Encoding;
use crate::limits::MAX_VALUE_BYTES;
use crate::problem::{Code, Problem};

/// `GET` and `HEAD`: the winner's bytes.
pub(super) async fn get(database: Database, text: Option<String>, mut call: Call) -> Result<Response, Problem> {
    let key = key(text, &mut call.query)?;
    call.query.finish()?;
    let wanted = key.clone();
    let entry = blocking(move || Ok(database.get(&wanted)?)).await?;
    let entry = entry.ok_or_else(|| Problem::new(Code::KeyNotFound, format!("there is nothing at {key}")))?;
    let mut response = Response::new(Body::from(entry.value.clone()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.value.len()));
    name_dot(headers, entry.dot);
    headers.insert("kvdb-stamp", text_header(&entry.stamp.to_string()));
    headers.insert("kvdb-siblings", HeaderValue::from(entry.siblings));
    Ok(response)
}

/// `PUT`: the body becomes the value.
pub(super) async fn put(database: &Database, text: Option<String>, mut call: Call) -> Result<Response, Problem> {
    refuse_conditions(&call.headers)?;
    let key = key(text, &mut call.query)?;
    let durability = durability(&mut call.query)?;
    call.query.finish()?;
    let value = body::read(call.body, &call.headers, MAX_VALUE_BYTES, Code::ValueTooLong).await?;
    let dot = match durability {
        Some(durability) => database.put_with(&key, value, durability).await?,
        None => database.put(&key, value).await?,
    };
    written(Some(dot))
}

/// `DELETE`; the dot is null when there was nothing.
pub(super) async fn delete(database: &Database, text: Option<String>, mut call: Call) -> Result<Response, Problem> {
    refuse_conditions(&call.headers)?;
    let key = key(text, &mut call.query)?;
    let durability = durability(&mut call.query)?;
    call.query.finish()?;
    let dot = match durability {
        Some(durability) => database.batch(kvdb::Batch::new().delete(key).durability(durability)).await?.dot,
        None => database.delete(&key).await?,
    };
    written(dot)
}

/// `GET …/siblings?key=`: all values alive at the key, winner first.
pub(super) async fn siblings(database: Database, mut call: Call) -> Result<Response, Problem> {
    let key = key(None, &mut call.query)?;
    call.query.finish()?;
    let wanted = key.clone();
    let found = blocking(move || Ok(database.siblings(&wanted)?)).await?;
    let siblings: Vec<serde_json::Value> = found.iter().map(sibling).collect();
    json(StatusCode::OK, &json!({ "key": key.as_str(), "siblings": siblings }))
}

fn sibling(entry: &Entry) -> serde_json::Value {
    let (encoding, value) = Encoding::encode(&entry.value);
    json!({ "dot": entry.dot.to_string(), "stamp": entry.stamp.to_string(), "encoding": encoding, "value": value })
}

/// The key from the path, or from `?key=`: never from both.
fn key(path: Option<String>, query: &mut Query) -> Result<Key, Problem> {
    let text = match (path, query.take("key")) {
        (Some(_), Some(_)) => return Err(Problem::new(Code::BadRequest, "the key is in the path and in ?key=; one is enough")),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => return Err(Problem::new(Code::BadRequest, "no key: give it in the path after keys/, or as ?key=")),
    };
    Ok(Key::parse(&text)?)
}

/// A condition that was silently ignored would be a lost update.
fn refuse_conditions(headers: &HeaderMap) -> Result<(), Problem> {
    for name in [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_UNMODIFIED_SINCE, header::IF_MODIFIED_SINCE] {
        if headers.contains_key(&name) {
            let detail = format!("the header {name} is not supported yet; nothing was written");
            return Err(Problem::new(Code::ConditionUnsupported, detail));
        }
    }
    Ok(())
}

fn written(dot: Option<Dot>) -> Result<Response, Problem> {
    let mut response = json(StatusCode::OK, &json!({ "dot": dot.map(|dot| dot.to_string()) }))?;
    if let Some(dot) = dot {
        name_dot(response.headers_mut(), dot);
    }
    Ok(response)
}

fn name_dot(headers: &mut HeaderMap, dot: Dot) {
    headers.insert(header::ETAG, text_header(&format!("\"{dot}\"")));
    headers.insert("kvdb-dot", text_header(&dot.to_string()));
}

fn text_header(text: &str) -> HeaderValue {
    // Dots and stamps are hex digits, numbers and dashes.
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("?"))
}
