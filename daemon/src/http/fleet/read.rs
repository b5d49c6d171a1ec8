//! Reads: here, by a call to a holder, or passed on to one as they are.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use axum::response::{IntoResponse as _, Response};
use hoarder::{FleetError, PeerId, ReadDone, ReadOptions, Serving};
use kvdb::{Database, DatabaseName};

use super::super::app::{App, Call};
use super::super::keys;
use super::super::route::{KeyMethod, Route};
use super::super::terms::at;
use super::forward::{HOLDERS, Passed};
use super::{Asker, Member, SERVED_BY};
use crate::limits::{FORWARD_AGAIN, MAX_FORWARDS};
use crate::problem::{Code, Problem};

/// The header of an answer of one who was not ready just then.
const STALE: &str = "kvdb-stale";

/// Where a database is served, as this node sees it.
enum Seat {
    Here(Database),
    /// Nobody is known to be ready; this node was, on what it has.
    Stale(Database),
    /// The ready holders, in the order in which they are asked.
    There(Vec<PeerId>),
}

impl Member {
    async fn seat(&self, name: &DatabaseName) -> Result<Seat, Problem> {
        match self.fleet().serving(name).await {
            Ok(Serving::Here(database)) => Ok(Seat::Here(database)),
            Ok(Serving::Stale(database)) => Ok(Seat::Stale(database)),
            Ok(Serving::There(holders)) => Ok(Seat::There(holders)),
            Err(FleetError::NotReady) => Ok(Seat::There(Vec::new())),
            Err(FleetError::NoDatabase) => Err(no_database(name)),
            Err(error) => Err(error.into()),
        }
    }

    /// The database, if this node serves it.
    ///
    /// # Errors
    /// When the fleet is closed.
    pub(in super::super) async fn served(&self, name: &DatabaseName) -> Result<Option<Database>, Problem> {
        match self.seat(name).await {
            Ok(Seat::Here(database)) => Ok(Some(database)),
            Err(problem) if problem.code == Code::Closed => Err(problem),
            _ => Ok(None),
        }
    }
}

pub(super) fn no_database(name: &DatabaseName) -> Problem {
    let detail = format!("there is no database {name} in the fleet; PUT /v1/databases/{name} makes it");
    Problem::new(Code::DatabaseNotFound, detail)
}

/// The database, which must be served here.
pub(super) async fn held_here(member: &Member, name: &DatabaseName) -> Result<Database, Problem> {
    match member.seat(name).await? {
        Seat::Here(database) => Ok(database),
        Seat::There(holders) => {
            let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
            let held = if holders.is_empty() { "by nobody just now".to_owned() } else { format!("by {}", holders.join(", ")) };
            Err(Problem::new(Code::NotHeldHere, format!("this is done at a holder of {name}, which is held {held}")))
        }
        Seat::Stale(_) => Err(Problem::new(Code::NotReady, format!("this node is no ready holder of {name} just now"))),
    }
}

/// A read of a database of the fleet.
pub(super) async fn read(
    app: &App,
    member: &Member,
    name: &DatabaseName,
    route: Route,
    mut call: Call,
    asker: Asker,
) -> Result<Response, Problem> {
    let lenient = call.query.take_flag("stale")?;
    let confirmed = call.query.take_flag("confirmed")?;
    let is_get = matches!(route, Route::Key(_, KeyMethod::Get | KeyMethod::Head, _));
    if confirmed && !is_get {
        return Err(Problem::new(Code::BadRequest, "confirmed= is for reads of one key"));
    }
    let end = Instant::now() + member.0.deadline;
    loop {
        let holders = match member.seat(name).await? {
            Seat::Here(database) if !confirmed => match app.local(route.clone(), Some(database), call.clone()).await {
                // Let go of between the look and the read.
                Err(problem) if problem.code == Code::Closed && Instant::now() < end => Vec::new(),
                answered => return answered,
            },
            Seat::Stale(database) if lenient && !confirmed => {
                let answered = app.local(route.clone(), Some(database), call.clone()).await;
                return answered.map(|response| with(response, STALE, "true"));
            }
            Seat::There(holders) => holders,
            Seat::Here(_) | Seat::Stale(_) => Vec::new(),
        };
        if asker == Asker::Member {
            return Ok(stale_view(name, &holders));
        }
        if let Route::Key(_, _, text) = route {
            return get(member, name, text, call, ReadOptions { stale: lenient, confirmed, ..ReadOptions::default() }).await;
        }
        if let Some(response) = pass_on(member, holders, &call).await? {
            return Ok(response);
        }
        if Instant::now() >= end {
            let detail = format!("no ready holder of {name} was reached within {:?}", member.0.deadline);
            return Err(Problem::new(Code::NotReady, detail));
        }
        tokio::time::sleep(FORWARD_AGAIN).await;
    }
}

/// One key, by a call of the fleet.
async fn get(
    member: &Member,
    name: &DatabaseName,
    text: Option<String>,
    mut call: Call,
    options: ReadOptions,
) -> Result<Response, Problem> {
    let key = keys::key(text, &mut call.query)?;
    let at = at(&mut call.query)?;
    call.query.finish()?;
    let deadline = member.0.deadline + at.map_or(Duration::ZERO, |(_, wait)| wait);
    let options = ReadOptions { at: at.map(|(dot, _)| dot), deadline, ..options };
    let ReadDone { entry, served_by, stale, .. } = match member.fleet().get(name, &key, options).await {
        Err(FleetError::NoDatabase) => return Err(no_database(name)),
        read => read?,
    };
    let response = keys::found(entry, &key, &call.headers).unwrap_or_else(Problem::into_response);
    let response = with(response, SERVED_BY, &served_by.to_string());
    Ok(if stale { with(response, STALE, "true") } else { response })
}

fn with(mut response: Response, name: &'static str, value: &str) -> Response {
    response.headers_mut().insert(name, keys::text_header(value));
    response
}

/// Asks one holder after the other, and those whom they name. Reads may be repeated, so any failure before the answer leads on.
async fn pass_on(member: &Member, holders: Vec<PeerId>, call: &Call) -> Result<Option<Response>, Problem> {
    let mut tried = BTreeSet::from([member.0.me]);
    let mut holders = std::collections::VecDeque::from(holders);
    while let Some(peer) = holders.pop_front() {
        if tried.len() > MAX_FORWARDS || !tried.insert(peer) {
            continue;
        }
        match member.0.forwarder.pass_on(peer, call, member.counters()).await {
            Passed::Answer(response) => return Ok(Some(response)),
            // It knows better than this node, or is about to let go.
            Passed::StaleView(named) => named.into_iter().rev().for_each(|peer| holders.push_front(peer)),
            Passed::Missed => {}
            Passed::Full(limit) => {
                let detail = format!("{limit} requests are passed on to other members at once, which is the limit");
                return Err(Problem::new(Code::TooManyStreams, detail).with_limit(limit));
            }
        }
    }
    Ok(None)
}

/// This node does not serve the database: who does, as it sees it.
fn stale_view(name: &DatabaseName, holders: &[PeerId]) -> Response {
    let mut response = Problem::new(Code::StaleView, format!("{name} is not served here")).into_response();
    let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
    let value = HeaderValue::from_str(&holders.join(",")).unwrap_or_else(|_| HeaderValue::from_static(""));
    response.headers_mut().insert(HOLDERS, value);
    response
}
