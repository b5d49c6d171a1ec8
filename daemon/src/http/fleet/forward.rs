//! Requests that one member passes on to another: HTTP/1.1 over a stream between them, one request each.
//!
//! The one who passes on has judged token and scope; the other one lets members in only, and passes nothing on a second time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt as _;
use hoarder::PeerId;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kvdb::net::{Stream, Streams};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::compat::FuturesAsyncReadCompatExt as _;

use super::super::app::{App, Call};
use super::Member;
use super::figures::{Counted, Counters};
use crate::limits::{FORWARD_HEAD_TIMEOUT, FORWARD_SILENCE, MAX_FORWARDED, MAX_HEAD_BYTES, MAX_MEMBER_REQUESTS, MAX_WAIT_MS};
use crate::problem::{Code, Problem};

/// The protocol between members.
const PROTOCOL: &str = "/kvdb/fleet-http/1";
/// In the answer of one who does not serve the database: who does.
pub(super) const HOLDERS: &str = "kvdb-holders";
/// Headers of a client's request that mean something to a read.
const REQUEST_HEADERS: [HeaderName; 2] = [header::IF_NONE_MATCH, HeaderName::from_static("last-event-id")];
/// Headers of an answer that concern one connection only.
const CONNECTION_HEADERS: [HeaderName; 3] = [header::CONNECTION, header::TRANSFER_ENCODING, header::DATE];

/// Passes requests on, and takes those of others.
pub(super) struct Forwarder {
    streams: Streams,
    places: Arc<Semaphore>,
}

/// What became of a request that was passed on.
pub(super) enum Passed {
    Answer(Response),
    /// The other one does not serve it, and sees these as those who do.
    StaleView(Vec<PeerId>),
    /// It was not reached, or did not begin to answer in time.
    Missed,
    /// Too many are under way: so many.
    Full(usize),
}

impl Forwarder {
    pub(super) fn new(streams: Streams) -> Self {
        Self { streams, places: Arc::new(Semaphore::new(MAX_FORWARDED)) }
    }

    /// Serves what other members pass on, until the node closes.
    pub(super) fn accept(&self, app: App, member: Member) {
        let mut streams = self.streams.clone();
        let Some(mut incoming) = streams.accept(PROTOCOL) else {
            tracing::error!("requests of other members are taken by somebody else already");
            return;
        };
        let places = Arc::new(Semaphore::new(MAX_MEMBER_REQUESTS));
        tokio::spawn(async move {
            while let Some((peer, stream)) = incoming.next().await {
                let known = member.fleet().look(move |fleet, _| fleet.membership().is_member(&peer)).await;
                if known != Ok(true) {
                    member.counters().count(Counted::Stranger);
                    tracing::warn!(%peer, "a request of somebody who is not in the fleet");
                    continue;
                }
                // Without a place it is dropped: whoever asks tries another holder.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    member.counters().count(Counted::Overload);
                    continue;
                };
                member.counters().count(Counted::Taken);
                tokio::spawn(serve(stream, app.clone(), place));
            }
        });
    }

    /// Passes a request on to a member.
    pub(super) async fn pass_on(&self, peer: PeerId, call: &Call, counters: &Counters) -> Passed {
        self.send(peer, call, Body::empty(), counters).await
    }

    /// As [`Forwarder::pass_on`], with a body.
    pub(super) async fn send(&self, peer: PeerId, call: &Call, body: Body, counters: &Counters) -> Passed {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Passed::Full(MAX_FORWARDED) };
        let answered = match self.exchange(peer, call, body).await {
            Ok(answered) => answered,
            Err(cause) => {
                counters.count(Counted::Missed);
                tracing::debug!(%peer, cause, "a member did not answer a request that was passed on");
                return Passed::Missed;
            }
        };
        if let Some(holders) = answered.headers().get(HOLDERS) {
            counters.count(Counted::StaleView);
            let text = holders.to_str().unwrap_or_default();
            return Passed::StaleView(text.split(',').filter_map(|peer| peer.parse().ok()).collect());
        }
        counters.count(Counted::PassedOn);
        let (mut head, body) = answered.into_parts();
        for name in &CONNECTION_HEADERS {
            head.headers.remove(name);
        }
        let kind = Kind::of(&head.headers);
        Passed::Answer(Response::from_parts(head, relay(body, kind, place)))
    }

    async fn exchange(&self, peer: PeerId, call: &Call, body: Body) -> Result<Response<hyper::body::Incoming>, String> {
        let opened = timeout(FORWARD_HEAD_TIMEOUT, self.streams.clone().open(peer, PROTOCOL)).await;
        let stream = opened.map_err(|_| "no stream in time".to_owned())??;
        let io = TokioIo::new(stream.compat());
        let shaken = hyper::client::conn::http1::handshake(io).await;
        let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
        // Ends with the answer's body, or when that is dropped.
        tokio::spawn(async move { drop(connection.await) });
        let mut request = Request::builder().method(call.method.clone()).uri(call.target.clone());
        request = request.header(header::HOST, "member");
        for name in &REQUEST_HEADERS {
            for value in call.headers.get_all(name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(body).map_err(|error| error.to_string())?;
        let patience = FORWARD_HEAD_TIMEOUT + waits(call);
        let answered = timeout(patience, sender.send_request(request)).await;
        answered.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())
    }
}

/// How long the request itself asks the other one to wait before it answers.
fn waits(call: &Call) -> Duration {
    let asked = ["wait", "timeout_ms"].iter().filter_map(|name| call.query.peek(name)?.parse::<u64>().ok()).max();
    let usual =
        if call.query.peek("at").is_some() || call.query.peek("dot").is_some() { crate::limits::DEFAULT_WAIT_MS } else { 0 };
    Duration::from_millis(asked.unwrap_or(usual).min(MAX_WAIT_MS))
}

/// How a stream that breaks off is told to the client, so that it is not taken for whole.
#[derive(Clone, Copy)]
enum Kind {
    /// A record a line: the last one says it.
    Lines,
    /// The connection breaks off, as the one behind it did. Another event would end half a one, as if it were whole.
    Other,
}

impl Kind {
    fn of(headers: &HeaderMap) -> Self {
        match headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes) {
            Some(b"application/x-ndjson") => Self::Lines,
            _ => Self::Other,
        }
    }

    /// The last words about an answer that broke off.
    fn last_words(self, cause: &str) -> Result<Bytes, std::io::Error> {
        let detail = format!("the member that served this stopped half way: {cause}");
        let record = json!({ "error": Problem::new(Code::NotReady, detail.clone()) });
        match self {
            // The line before it may be half a one, which is no record.
            Self::Lines => Ok(format!("\n{record}\n").into()),
            Self::Other => Err(std::io::Error::other(detail)),
        }
    }
}

/// The body of an answer, at the pace of the client.
fn relay(body: hyper::body::Incoming, kind: Kind, place: OwnedSemaphorePermit) -> Body {
    let data = Body::new(body).into_data_stream();
    Body::from_stream(futures::stream::unfold(Some((data, place)), move |state| async move {
        let (mut data, place) = state?;
        match timeout(FORWARD_SILENCE, data.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some((data, place)))),
            Ok(Some(Err(error))) => Some((kind.last_words(&error.to_string()), None)),
            Err(_) => Some((kind.last_words("it was silent for too long"), None)),
        }
    }))
}

/// Answers the one request of a stream.
async fn serve(stream: Stream, app: App, place: OwnedSemaphorePermit) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(app.answer_member(request.map(Body::new)).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(FORWARD_HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream.compat()), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a request of a member broke off");
    }
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a05_what_breaks_off_half_way_is_never_taken_for_whole() {
        let lines = Kind::Lines.last_words("gone").unwrap();
        let text = std::str::from_utf8(&lines).unwrap();
        let record: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(record["error"]["code"], "not_ready");
        assert!(text.starts_with('\n'), "half a line before it stays half a line");
        assert!(Kind::Other.last_words("gone").is_err());
    }
}
