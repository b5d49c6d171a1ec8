//! Single keys.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use kvdb::{Database, Dot, Entry, Key, Op, OpOutcome};
use serde_json::{Map, Value, json};

use super::app::{Call, blocking, json};
use super::batch::word;
use super::body;
use super::fleet::{Done, Target};
use super::route::Query;
use super::terms::{Terms, cover, ttl};
use crate::encoding::Encoding;
use crate::limits::MAX_VALUE_BYTES;
use crate::problem::{Code, Problem};

/// `GET` and `HEAD`: the winner's bytes.
pub(super) async fn get(database: Database, text: Option<String>, mut call: Call) -> Result<Response, Problem> {
    let key = key(text, &mut call.query)?;
    cover(&database, &mut call.query).await?;
    call.query.finish()?;
    let wanted = key.clone();
    let entry = blocking(move || Ok(database.get(&wanted)?)).await?;
    found(entry, &key, &call.headers)
}

/// What was found at a key, as an answer.
pub(super) fn found(entry: Option<Entry>, key: &Key, headers: &HeaderMap) -> Result<Response, Problem> {
    let entry = entry.ok_or_else(|| Problem::new(Code::KeyNotFound, format!("there is nothing at {key}")))?;
    let known = is_known(headers, &entry.dot);
    let mut response = Response::new(if known { Body::empty() } else { Body::from(entry.value.clone()) });
    let headers = response.headers_mut();
    if !known {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.value.len()));
    }
    headers.insert(header::ETAG, text_header(&format!("\"{}\"", entry.dot)));
    headers.insert("kvdb-dot", text_header(&entry.dot.to_string()));
    headers.insert("kvdb-stamp", text_header(&entry.stamp.to_string()));
    headers.insert("kvdb-siblings", HeaderValue::from(entry.siblings));
    if let Some(expiry) = entry.expiry {
        headers.insert("kvdb-expires-ms", HeaderValue::from(expiry.unix_ms()));
    }
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    Ok(response)
}

/// Whether the client has this value by its own word. Weak tags match as well: a dot names bytes.
fn is_known(headers: &HeaderMap, dot: &Dot) -> bool {
    let dot = dot.to_string();
    let tags = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let known = |tag: &str| tag == "*" || tag.trim_start_matches("W/").trim_matches('"') == dot;
    tags.flat_map(|tags| tags.split(',')).any(|tag| known(tag.trim()))
}

/// `PUT`: the body becomes the value.
pub(super) async fn put(target: &Target, text: Option<String>, mut call: Call) -> Result<Response, Problem> {
    let terms = Terms::take(&call.headers, &mut call.query)?;
    let key = key(text, &mut call.query)?;
    let ttl = ttl(&mut call.query)?;
    call.query.finish()?;
    let value = body::read(call.body, &call.headers, MAX_VALUE_BYTES, Code::ValueTooLong).await?;
    let op = match ttl {
        Some(ttl) => Op::put_for(key, value, ttl),
        None => Op::put(key, value),
    };
    let way = terms.way;
    written(&target.write(terms.apply(op).into(), way).await?)
}

/// `DELETE`; the dot is null when there was nothing.
pub(super) async fn delete(target: &Target, text: Option<String>, mut call: Call) -> Result<Response, Problem> {
    let terms = Terms::take(&call.headers, &mut call.query)?;
    let key = key(text, &mut call.query)?;
    call.query.finish()?;
    let way = terms.way;
    written(&target.write(terms.apply(Op::delete(key)).into(), way).await?)
}

/// `GET …/siblings?key=`: all values alive at the key, winner first.
pub(super) async fn siblings(database: Database, mut call: Call) -> Result<Response, Problem> {
    let key = key(None, &mut call.query)?;
    cover(&database, &mut call.query).await?;
    call.query.finish()?;
    let wanted = key.clone();
    let read = move || {
        let found = database.siblings(&wanted)?;
        found.iter().map(|entry| sibling(&database, entry)).collect::<Result<Vec<Value>, Problem>>()
    };
    let siblings = blocking(read).await?;
    json(StatusCode::OK, &json!({ "key": key.as_str(), "siblings": siblings }))
}

fn sibling(database: &Database, entry: &Entry) -> Result<Value, Problem> {
    let (encoding, value) = Encoding::encode(&entry.value);
    let author = database.author(&entry.dot.replica)?.map(|peer| peer.to_string());
    Ok(json!({
        "dot": entry.dot.to_string(), "stamp": entry.stamp.to_string(), "author": author,
        "expires_ms": entry.expiry.map(kvdb::Expiry::unix_ms), "encoding": encoding, "value": value,
    }))
}

/// The key from the path, or from `?key=`: never from both.
pub(super) fn key(path: Option<String>, query: &mut Query) -> Result<Key, Problem> {
    let text = match (path, query.take("key")) {
        (Some(_), Some(_)) => return Err(Problem::new(Code::BadRequest, "the key is in the path and in ?key=; one is enough")),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => return Err(Problem::new(Code::BadRequest, "no key: give it in the path after keys/, or as ?key=")),
    };
    Ok(Key::parse(&text)?)
}

fn written(done: &Done) -> Result<Response, Problem> {
    let written = &done.written;
    let outcome = written.ops.first().copied().unwrap_or(OpOutcome::Absent);
    let dot = written.dot.map(|dot| dot.to_string());
    let mut document = Map::from_iter([("dot".to_owned(), json!(dot)), ("op".to_owned(), json!(word(outcome)))]);
    let mut response = done.answer(&mut document)?;
    if let Some(dot) = dot {
        let headers = response.headers_mut();
        // The tag of the value at the key: of one that another write has replaced by now, there is none.
        if matches!(outcome, OpOutcome::Put) {
            headers.insert(header::ETAG, text_header(&format!("\"{dot}\"")));
        }
        headers.insert("kvdb-dot", text_header(&dot));
    }
    Ok(response)
}

/// A header of hex digits, numbers and dashes.
pub(super) fn text_header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("?"))
}
