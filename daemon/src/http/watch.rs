//! Watches as server-sent events. The id of an event is the token to resume from.

use std::convert::Infallible;
use std::pin::Pin;

use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::{Stream, StreamExt as _, stream};
use kvdb::{Database, Prefix, WatchChange, WatchError, WatchEvent, WatchFrom, WatchOptions, WatchStream, WatchToken};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::app::{App, Call, blocking};
use super::list::Values;
use super::route::Query;
use crate::limits::WATCH_KEEP_ALIVE;
use crate::problem::{Code, Problem};

/// `GET …/watch`
pub(super) async fn watch(app: &App, database: Database, mut call: Call) -> Result<Response, Problem> {
    let resumed = last_event(&call.headers)?;
    let (options, values) = options(&mut call.query)?;
    call.query.finish()?;
    let from = resumed.map_or(options.from, WatchFrom::Token);
    let (stream, reset) = blocking(move || match database.watch(options.clone().from(from)) {
        // Whoever connects again by itself, as a browser does, would take a status for the end of everything.
        Err(WatchError::TooOld { .. }) if resumed.is_some() => Ok((database.watch(options)?, true)),
        opened => Ok((opened?, false)),
    })
    .await?;
    let events = Events { stream, values, stopping: app.stopping(), listed: 0, ended: false };
    let first = if reset { reset_event(events.stream.token()) } else { alive(events.stream.token()) };
    let following = stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((event, events))
    });
    let all: Pin<Box<dyn Stream<Item = Event> + Send>> = Box::pin(stream::once(async { first }).chain(following));
    Ok(Sse::new(all.map(Ok::<_, Infallible>)).into_response())
}

fn options(query: &mut Query) -> Result<(WatchOptions, Values), Problem> {
    let prefix = Prefix::parse(&query.take("prefix").unwrap_or_default())?;
    let from = match query.take("from").as_deref() {
        None | Some("now") => WatchFrom::Now,
        Some("list") => WatchFrom::List,
        Some(text) => WatchFrom::Token(token("from", text)?),
    };
    let options = WatchOptions::new(prefix).from(from);
    let values = Values::of(query)?;
    Ok((if values == Values::None { options.keys_only() } else { options }, values))
}

fn token(name: &str, text: &str) -> Result<WatchToken, Problem> {
    text.parse().map_err(|error| Problem::new(Code::BadRequest, format!("{name} {text:?}: {error}; or now, or list")))
}

/// The id of the last event that a client has had, by its own word.
fn last_event(headers: &HeaderMap) -> Result<Option<WatchToken>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    token("Last-Event-ID", value.to_str().unwrap_or("?")).map(Some)
}

struct Events {
    stream: WatchStream,
    values: Values,
    stopping: watch::Receiver<bool>,
    listed: u64,
    ended: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = tokio::select! {
            event = self.stream.next() => event,
            // Nothing to tell: the client sees that it is not forgotten, and how far it is.
            () = tokio::time::sleep(WATCH_KEEP_ALIVE) => return Some(alive(self.stream.token())),
            _ = self.stopping.wait_for(|stopping| *stopping) => {
                self.ended = true;
                return Some(record("end", &json!({ "end": { "reason": "the node stops" } })));
            }
        };
        match event? {
            Ok(event) => Some(self.tell(event)),
            Err(error) => {
                self.ended = true;
                Some(record("error", &json!({ "error": Problem::from(error) })))
            }
        }
    }

    fn tell(&mut self, event: WatchEvent) -> Event {
        let (kind, data) = match event.change {
            WatchChange::Reset => return reset_event(event.token),
            WatchChange::Deleted(key) => ("delete", json!({ "key": key.as_str() })),
            WatchChange::Listed => ("listed", json!({ "count": self.listed })),
            WatchChange::Put(put) => {
                self.listed += 1;
                let mut data = json!({
                    "key": put.key.as_str(), "dot": put.dot.to_string(), "stamp": put.stamp.to_string(),
                    "siblings": put.siblings, "length": put.len,
                });
                if let (Some(value), Some(fields)) = (&put.value, data.as_object_mut()) {
                    self.values.add(value, fields);
                }
                ("put", data)
            }
        };
        let told = record(kind, &data);
        event.token.map_or_else(|| told.clone(), |token| told.clone().id(token.to_string()))
    }
}

fn record(kind: &str, data: &Value) -> Event {
    Event::default().event(kind).data(data.to_string())
}

/// A client that has an id must not resume from it any more, so a reset without a token takes it away.
fn reset_event(token: Option<WatchToken>) -> Event {
    let id = token.map(|token| token.to_string()).unwrap_or_default();
    record("reset", &json!({ "reason": "changes were missed; list again" })).id(id)
}

/// A comment. Its id moves the place to resume from, without an event.
fn alive(token: Option<WatchToken>) -> Event {
    let comment = Event::default().comment("alive");
    token.map_or_else(|| comment.clone(), |token| comment.clone().id(token.to_string()))
}
