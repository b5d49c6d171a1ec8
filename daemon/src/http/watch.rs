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
    let issuer = Issuer(app.member().map(|member| member.id().to_string()));
    let resumed = issuer.last_event(&call.headers)?;
    let (options, values) = options(&issuer, &mut call.query)?;
    call.query.finish()?;
    let (stream, reset) = blocking(move || {
        let from = match resumed {
            None => options.from,
            Some(Known::Here(token)) => WatchFrom::Token(token),
            Some(Known::Elsewhere) => return Ok((database.watch(options)?, true)),
        };
        match database.watch(options.clone().from(from)) {
            // Whoever connects again by itself, as a browser does, would take a status for the end of everything.
            Err(WatchError::TooOld { .. }) if resumed.is_some() => Ok((database.watch(options)?, true)),
            opened => Ok((opened?, false)),
        }
    })
    .await?;
    let events = Events { stream, issuer, values, stopping: app.stopping(), listed: 0, ended: false };
    let token = events.stream.token();
    let first = if reset { events.issuer.reset_event(token) } else { events.issuer.alive(token) };
    let following = stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((event, events))
    });
    let all: Pin<Box<dyn Stream<Item = Event> + Send>> = Box::pin(stream::once(async { first }).chain(following));
    Ok(Sse::new(all.map(Ok::<_, Infallible>)).into_response())
}

fn options(issuer: &Issuer, query: &mut Query) -> Result<(WatchOptions, Values), Problem> {
    let prefix = Prefix::parse(&query.take("prefix").unwrap_or_default())?;
    let from = match query.take("from").as_deref() {
        None | Some("now") => WatchFrom::Now,
        Some("list") => WatchFrom::List,
        Some(text) => match issuer.token("from", text)? {
            Known::Here(token) => WatchFrom::Token(token),
            Known::Elsewhere => return Err(Problem::new(Code::TooOld, "the token is of another node; list again")),
        },
    };
    let options = WatchOptions::new(prefix).from(from);
    let values = Values::of(query)?;
    Ok((if values == Values::None { options.keys_only() } else { options }, values))
}

/// A token as a client gives it back.
#[derive(Clone, Copy)]
enum Known {
    Here(WatchToken),
    /// It is of another node. The order of its log is not that of this one's, so what follows the same block there may have come
    /// before it here.
    Elsewhere,
}

/// Who gives tokens: in a fleet they bear the member's name, since clients may be served by another one next.
struct Issuer(Option<String>);

impl Issuer {
    fn token(&self, name: &str, text: &str) -> Result<Known, Problem> {
        let (token, by) = text.split_once('@').map_or((text, None), |(token, by)| (token, Some(by)));
        let parsed: WatchToken = token
            .parse()
            .map_err(|error| Problem::new(Code::BadRequest, format!("{name} {text:?}: {error}; or now, or list")))?;
        // The beginning is the same everywhere.
        let here = by == self.0.as_deref() || token == "0";
        Ok(if here { Known::Here(parsed) } else { Known::Elsewhere })
    }

    fn text(&self, token: WatchToken) -> String {
        let by = self.0.as_ref().map(|member| format!("@{member}")).unwrap_or_default();
        format!("{token}{by}")
    }

    /// The id of the last event that a client has had, by its own word.
    fn last_event(&self, headers: &HeaderMap) -> Result<Option<Known>, Problem> {
        let Some(value) = headers.get("last-event-id") else { return Ok(None) };
        self.token("Last-Event-ID", value.to_str().unwrap_or("?")).map(Some)
    }

    /// A client that has an id must not resume from it any more, so a reset without a token takes it away.
    fn reset_event(&self, token: Option<WatchToken>) -> Event {
        let id = token.map(|token| self.text(token)).unwrap_or_default();
        record("reset", &json!({ "reason": "changes were missed; list again" })).id(id)
    }

    /// A comment. Its id moves the place to resume from, without an event.
    fn alive(&self, token: Option<WatchToken>) -> Event {
        let comment = Event::default().comment("alive");
        token.map_or_else(|| comment.clone(), |token| comment.clone().id(self.text(token)))
    }
}

struct Events {
    stream: WatchStream,
    issuer: Issuer,
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
            () = tokio::time::sleep(WATCH_KEEP_ALIVE) => return Some(self.issuer.alive(self.stream.token())),
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
            WatchChange::Reset => return self.issuer.reset_event(event.token),
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
        event.token.map_or_else(|| told.clone(), |token| told.clone().id(self.issuer.text(token)))
    }
}

fn record(kind: &str, data: &Value) -> Event {
    Event::default().event(kind).data(data.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_with_the_member_that_gave_it_only() {
        let token = format!("7-{}-3", "ab".repeat(16));
        let (plain, member) = (Issuer(None), Issuer(Some("12D3Koo".into())));
        let here = |issuer: &Issuer, text: &str| matches!(issuer.token("from", text), Ok(Known::Here(_)));
        let signed = member.text(token.parse().unwrap());
        assert_eq!(signed, format!("{token}@12D3Koo"));
        assert!(here(&plain, &token) && here(&member, &signed) && here(&member, "0") && here(&plain, "0"));
        for (issuer, text) in [(&plain, signed.as_str()), (&member, &token), (&member, &format!("{token}@12D3Kop"))] {
            assert!(matches!(issuer.token("from", text), Ok(Known::Elsewhere)), "{text}");
        }
        assert!(member.token("from", "7@12D3Koo").is_err());
    }
}
