//! Listings: one record a line, streamed, and at the end a record that says that this is the end.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use kvdb::{After, Database, ListItem, ListOptions, Order, Patterns, Prefix, ReadError};
use serde_json::json;
use tokio::sync::mpsc;

use super::app::Call;
use super::route::Query;
use super::terms::cover;
use crate::encoding::Encoding;
use crate::limits::{STREAM_CHUNK_BYTES, STREAM_CHUNKS, STREAM_STALL_TIMEOUT};
use crate::problem::Problem;

/// How values are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// Text where it is UTF-8, else base64.
    Auto,
    /// Always base64.
    Base64,
    /// Not at all.
    None,
}

impl Values {
    /// Takes `values=` and `keys_only=` out of a query.
    pub(super) fn of(query: &mut Query) -> Result<Self, Problem> {
        let values = query.take_word("values", &[("auto", Self::Auto), ("base64", Self::Base64)])?.unwrap_or(Self::Auto);
        Ok(if query.take_flag("keys_only")? { Self::None } else { values })
    }

    /// Adds a value to a record.
    pub(super) fn add(self, value: &[u8], fields: &mut serde_json::Map<String, serde_json::Value>) {
        let (encoding, value) = match self {
            Self::None => return,
            Self::Auto => Encoding::encode(value),
            Self::Base64 => (Encoding::Base64, Encoding::base64(value)),
        };
        fields.insert("encoding".into(), json!(encoding));
        fields.insert("value".into(), json!(value));
    }
}

/// Which keys to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those with more than one value alive.
    Conflicts,
}

/// `GET …/list` and `GET …/conflicts`
pub(super) async fn list(database: &Database, which: Which, mut call: Call) -> Result<Response, Problem> {
    let (options, values) = options(&mut call.query)?;
    cover(database, &mut call.query).await?;
    call.query.finish()?;
    let options = if which == Which::Conflicts { options.conflicts() } else { options };
    let limit = options.limit;
    // One item more than asked tells whether there is more.
    let options = match limit {
        Some(limit) => options.limit(limit.saturating_add(1)),
        None => options,
    };
    let items = database.list_stream(options)?;
    let (sender, receiver) = mpsc::channel(STREAM_CHUNKS);
    tokio::spawn(feed(items, limit, values, STREAM_STALL_TIMEOUT, sender));
    let chunks = futures::stream::unfold(receiver, |mut receiver| async {
        let chunk: Result<Bytes, std::io::Error> = receiver.recv().await?;
        Some((chunk, receiver))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

fn options(query: &mut Query) -> Result<(ListOptions, Values), Problem> {
    let prefix = Prefix::parse(&query.take("prefix").unwrap_or_default())?;
    let mut options = ListOptions::new(prefix);
    if let Some(after) = query.take("after") {
        options = options.after(after.parse::<After>()?);
    }
    if let Some(limit) = query.take_number("limit", 1..=u64::from(u32::MAX))? {
        options = options.limit(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    if query.take_flag("reverse")? {
        options = options.order(Order::Descending);
    }
    if query.take_word("delimiter", &[("/", ())])?.is_some() {
        options = options.delimiter();
    }
    let patterns = query.take_all("regex");
    if !patterns.is_empty() {
        options = options.matching(Patterns::new(patterns)?);
    }
    let values = Values::of(query)?;
    Ok((if values == Values::None { options.keys_only() } else { options }, values))
}

/// Writes the listing into the channel at the pace of its reader. A reader that is silent for very long is cut off: it
/// sees no end record.
async fn feed(
    items: impl Stream<Item = Result<ListItem, ReadError>>,
    limit: Option<usize>,
    values: Values,
    stall: Duration,
    sender: mpsc::Sender<Result<Bytes, std::io::Error>>,
) {
    let mut items = std::pin::pin!(items);
    let mut chunk = BytesMut::new();
    let mut count = 0;
    let mut last: Option<After> = None;
    loop {
        let record = match items.next().await {
            Some(Ok(_)) if limit == Some(count) => end(count, last.as_ref()),
            Some(Ok(item)) => {
                count += 1;
                let record = record(&item, values);
                last = Some(item.position());
                write(&mut chunk, &record);
                if chunk.len() < STREAM_CHUNK_BYTES {
                    continue;
                }
                if !send(&sender, stall, &mut chunk).await {
                    return;
                }
                continue;
            }
            Some(Err(error)) => json!({ "error": Problem::from(error) }),
            None => end(count, None),
        };
        write(&mut chunk, &record);
        send(&sender, stall, &mut chunk).await;
        return;
    }
}

async fn send(sender: &mpsc::Sender<Result<Bytes, std::io::Error>>, stall: Duration, chunk: &mut BytesMut) -> bool {
    let sent = tokio::time::timeout(stall, sender.send(Ok(chunk.split().freeze()))).await;
    match sent {
        Ok(sent) => sent.is_ok(),
        Err(_) => {
            tracing::info!("a listing was left unread for {stall:?} and was cut off");
            false
        }
    }
}

fn end(count: usize, next: Option<&After>) -> serde_json::Value {
    json!({ "end": { "count": count, "next": next.map(ToString::to_string) } })
}

fn record(item: &ListItem, values: Values) -> serde_json::Value {
    let entry = match item {
        ListItem::CommonPrefix(prefix) => return json!({ "prefix": prefix.as_str() }),
        ListItem::Entry(entry) => entry,
    };
    let mut record = json!({
        "key": entry.key.as_str(), "dot": entry.dot.to_string(), "stamp": entry.stamp.to_string(), "siblings": entry.siblings,
        "length": entry.len,
    });
    if let (Some(expiry), Some(fields)) = (entry.expiry, record.as_object_mut()) {
        fields.insert("expires_ms".into(), json!(expiry.unix_ms()));
    }
    if let Some(fields) = record.as_object_mut() {
        values.add(&entry.value, fields);
    }
    record
}

fn write(chunk: &mut BytesMut, record: &serde_json::Value) {
    // Writing JSON into memory cannot fail; if it did, the line would be broken and the client would refuse it.
    drop(serde_json::to_writer((&mut *chunk).writer(), record));
    chunk.put_u8(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a05_a_failure_half_way_is_an_error_record_and_no_end() {
        let prefix = ListItem::CommonPrefix(Prefix::parse("/a").unwrap());
        let items = vec![Ok(prefix), Err(ReadError::Store { cause: "bad sector".into() })];
        let (sender, mut receiver) = mpsc::channel(8);
        feed(futures::stream::iter(items), None, Values::Auto, STREAM_STALL_TIMEOUT, sender).await;
        let text = receiver.recv().await.unwrap().unwrap();
        let lines: Vec<serde_json::Value> =
            text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(lines[0], json!({ "prefix": "/a" }));
        assert_eq!(lines[1]["error"]["code"], "read_failed");
        assert_eq!((lines.len(), receiver.recv().await.is_none()), (2, true));
    }

    #[tokio::test]
    async fn r15_a_silent_reader_loses_nothing_and_one_silent_for_too_long_sees_no_end() {
        let prefix = ListItem::CommonPrefix(Prefix::parse(&format!("/{}", "p".repeat(1_000))).unwrap());
        let start = |stall| {
            let items = futures::stream::iter(vec![prefix.clone(); 200].into_iter().map(Ok));
            let (sender, receiver) = mpsc::channel(STREAM_CHUNKS);
            (tokio::spawn(feed(items, None, Values::Auto, stall, sender)), receiver)
        };
        let read = async |mut receiver: mpsc::Receiver<Result<Bytes, std::io::Error>>| {
            let mut text = Vec::new();
            while let Some(chunk) = receiver.recv().await {
                text.extend_from_slice(&chunk.unwrap());
            }
            String::from_utf8(text).unwrap()
        };
        let (task, receiver) = start(STREAM_STALL_TIMEOUT);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!task.is_finished(), "the listing waits for its reader");
        assert!(read(receiver).await.contains("\"end\":{\"count\":200"));
        // The bound is on the time in which nothing is taken, not on the whole: pauses of half of it, which together are longer.
        let (_, mut receiver) = start(Duration::from_millis(600));
        let mut text = Vec::new();
        while let Some(chunk) = receiver.recv().await {
            text.extend_from_slice(&chunk.unwrap());
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(String::from_utf8(text).unwrap().contains("\"end\":{\"count\":200"));
        let (task, receiver) = start(Duration::from_millis(1));
        task.await.unwrap();
        assert!(!read(receiver).await.contains("\"end\""));
    }
}
