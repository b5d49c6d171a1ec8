//! A member of a fleet as HTTP serves it: every database of the fleet at every node.
//!
//! Writes, and reads of one key, go through [`Fleet`], which routes, repeats and confirms them. Whatever else is read is answered
//! here if this node is a ready holder; else the request is passed on to one as it is, over a stream between members ([`forward`]), so
//! that there is one implementation of each.

mod admin;
mod errors;
mod figures;
mod forward;
mod read;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use hoarder::{Fleet, PeerId};
use kvdb::Node;

use super::app::{App, Call};
use super::keys::text_header;
use super::route::{KeyMethod, Route};
use crate::config::FleetConfig;
use crate::problem::{Code, Problem};

pub(super) use admin::create_configured;
use figures::describe;
pub(super) use figures::status;
pub(super) use write::{Done, Target, Way, durability};

/// What the handlers of a fleet share. Cloning is cheap.
#[derive(Clone)]
pub(super) struct Member(Arc<Inner>);

struct Inner {
    fleet: Fleet,
    me: PeerId,
    /// Holders of a database that names no number.
    holders: u8,
    deadline: Duration,
    forwarder: forward::Forwarder,
    counters: figures::Counters,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// A client of this node.
    Client,
    /// Another member, for a client of its own: such a request is not passed on again.
    Member,
}

impl Member {
    /// Serves this member; `None` without a network.
    pub(super) fn new(fleet: Fleet, node: &Node, config: &FleetConfig) -> Option<Self> {
        let forwarder = forward::Forwarder::new(node.streams()?);
        let (me, holders, deadline) = (node.peer_id(), config.holders, config.deadline);
        Some(Self(Arc::new(Inner { fleet, me, holders, deadline, forwarder, counters: figures::Counters::default() })))
    }

    pub(super) fn fleet(&self) -> &Fleet {
        &self.0.fleet
    }

    /// This node.
    pub(super) fn id(&self) -> PeerId {
        self.0.me
    }

    fn counters(&self) -> &figures::Counters {
        &self.0.counters
    }

    /// Accepts what other members pass on.
    pub(super) fn accept(&self, app: &App) {
        self.0.forwarder.accept(app.clone(), self.clone());
    }
}

/// Answers one request of a client of a fleet, or of another member.
pub(super) async fn dispatch(app: &App, member: &Member, route: Route, call: Call, asker: Asker) -> Result<Response, Problem> {
    if asker == Asker::Member && !is_forwarded(&route) {
        return Err(Problem::new(Code::Forbidden, "members pass on reads and drains only"));
    }
    let answered = match route {
        Route::Members => admin::members(member, call).await,
        Route::Forget(peer) => admin::forget(member, peer, call).await,
        Route::Placements => admin::placements(member, call).await,
        Route::Placement(name) => admin::placement(member, name, call).await,
        Route::Claims => admin::claims(member, call).await,
        Route::Drain => admin::drain(member, call, asker).await,
        Route::Databases => admin::databases(app, member, call).await,
        Route::CreateDatabase(name) => admin::create(member, &name, call).await,
        Route::ChangeDatabase(name) => admin::change(member, &name, call).await,
        Route::DropDatabase(name) => admin::drop(member, &name, call).await,
        Route::Key(_, KeyMethod::Put | KeyMethod::Delete, _) | Route::Batch(_) => write::write(member, route, call).await,
        Route::Verify(ref name) | Route::Disagreements(ref name) | Route::Repair(ref name) | Route::Compact(ref name) => {
            let database = read::held_here(member, name).await?;
            app.local(route, Some(database), call).await
        }
        Route::Key(ref name, ..)
        | Route::Database(ref name)
        | Route::List(ref name)
        | Route::Conflicts(ref name)
        | Route::Siblings(ref name)
        | Route::Wait(ref name)
        | Route::Watch(ref name) => {
            let name = name.clone();
            read::read(app, member, &name, route, call, asker).await
        }
        Route::Health | Route::Ready | Route::Metrics | Route::Status | Route::Peers | Route::Dial | Route::Backup => {
            app.local(route, None, call).await
        }
    };
    let mut response = match (answered, asker) {
        (Ok(response), _) => response,
        // Whoever passed the request on must not take the refusal for its own.
        (Err(problem), Asker::Member) => problem.into_response(),
        (Err(problem), Asker::Client) => return Err(problem),
    };
    let headers = response.headers_mut();
    if !headers.contains_key(SERVED_BY) {
        headers.insert(SERVED_BY, text_header(&member.0.me.to_string()));
    }
    Ok(response)
}

/// The header that names who answered.
const SERVED_BY: &str = "kvdb-served-by";

/// What one member passes on to another.
fn is_forwarded(route: &Route) -> bool {
    match route {
        Route::Key(_, method, _) => matches!(method, KeyMethod::Get | KeyMethod::Head),
        Route::Database(_)
        | Route::List(_)
        | Route::Conflicts(_)
        | Route::Siblings(_)
        | Route::Wait(_)
        | Route::Watch(_)
        | Route::Drain => true,
        _ => false,
    }
}
