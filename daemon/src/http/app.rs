//! What every handler shares, and the way from a request to its answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use kvdb::{Database, DatabaseId, DatabaseName, Node};
use serde::Serialize;
use tokio::sync::watch as signal;

use super::body::Upload;
use super::fleet::{self, Asker, Member, Target};
use super::guard::Guard;
use super::metrics::Metrics;
use super::route::{KeyMethod, Query, Route};
use super::{backup, batch, compact, database, keys, list, metrics, node, repair, watch};
use crate::config::{FleetConfig, HttpConfig};
use crate::problem::{Code, Problem};

/// The running node as HTTP serves it. Cloning is cheap.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    node: Node,
    /// Absent: the node keeps replicas on its own.
    member: Option<Member>,
    guard: Guard,
    metrics: Metrics,
    started: Instant,
    /// Turns true when the server stops: streams without an end of their own end then.
    stopping: signal::Sender<bool>,
    /// Handles of open databases, so that a request need not ask the catalogue. Bounded by what a node may have open.
    open: Mutex<BTreeMap<DatabaseName, Database>>,
}

/// A request without its route.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: Method,
    /// Path and query as they were sent.
    pub(super) target: Uri,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) body: Upload,
}

impl App {
    /// Serves this node, and with a fleet what its other members hold.
    pub fn new(node: Node, http: &HttpConfig, fleet: Option<(hoarder::Fleet, &FleetConfig)>) -> Self {
        let guard = Guard::new(http);
        let (metrics, open, stopping) = (Metrics::default(), Mutex::default(), signal::Sender::new(false));
        let member = fleet.and_then(|(fleet, config)| Member::new(fleet, &node, config));
        let app = Self(Arc::new(Inner { node, member, guard, metrics, started: Instant::now(), stopping, open }));
        if let Some(member) = app.member() {
            member.accept(&app);
        }
        app
    }

    /// Makes the databases that are configured and not there, as soon as the fleet can; nothing without a fleet.
    pub fn create_databases(&self, databases: Vec<DatabaseName>) {
        if let Some(member) = self.member() {
            tokio::spawn(fleet::create_configured(member.clone(), databases));
        }
    }

    /// The fleet's member that this node is.
    pub(super) fn member(&self) -> Option<&Member> {
        self.0.member.as_ref()
    }

    pub(super) fn node(&self) -> &Node {
        &self.0.node
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Ends streams that would go on for ever.
    pub(super) fn stop_streams(&self) {
        self.0.stopping.send_replace(true);
    }

    /// Turns true when the server stops.
    pub(super) fn stopping(&self) -> signal::Receiver<bool> {
        self.0.stopping.subscribe()
    }

    pub(super) fn uptime_seconds(&self) -> u64 {
        self.0.started.elapsed().as_secs()
    }

    /// Answers one request; every error is a problem document.
    pub async fn answer(&self, request: Request<Body>) -> Response {
        let (head, body) = request.into_parts();
        let route = Route::find(&head.method, head.uri.path());
        let label = route.as_ref().map_or("none", Route::label);
        let (upload, headers) = (Upload::new(body), head.headers.clone());
        let answered = async {
            self.0.guard.check_source(&head.headers, &head.uri)?;
            // A caller without the scope learns nothing, not even which routes there are.
            let scope = route.as_ref().map_or(Some(crate::config::Scope::Read), Route::scope);
            self.0.guard.check_token(&head.headers, scope)?;
            let query = Query::parse(head.uri.query())?;
            let target = target(&head.uri);
            let call = Call { method: head.method.clone(), target, query, headers: head.headers, body: upload.clone() };
            self.dispatch(route?, call, Asker::Client).await
        };
        let mut response = match answered.await {
            Ok(response) => response,
            Err(problem) => {
                upload.discard(&headers).await;
                problem.into_response()
            }
        };
        let status = response.status().as_u16();
        self.0.metrics.count(label, status);
        // Neither key nor value: whoever reads the log need not be allowed to read the data.
        tracing::debug!(method = %head.method, route = label, status, "answered");
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if head.method == Method::HEAD {
            // The length of what GET would send was set by the handler.
            *response.body_mut() = Body::empty();
        }
        response
    }

    /// Answers a request that another member of the fleet passes on, whose token it has judged.
    pub(super) async fn answer_member(&self, request: Request<Body>) -> Response {
        let (head, body) = request.into_parts();
        let answered = async {
            let route = Route::find(&head.method, head.uri.path())?;
            let query = Query::parse(head.uri.query())?;
            let call = Call { method: head.method, target: head.uri, query, headers: head.headers, body: Upload::new(body) };
            self.dispatch(route, call, Asker::Member).await
        };
        answered.await.unwrap_or_else(IntoResponse::into_response)
    }

    async fn dispatch(&self, route: Route, call: Call, asker: Asker) -> Result<Response, Problem> {
        match self.member() {
            Some(member) => fleet::dispatch(self, member, route, call, asker).await,
            None => match route.database().cloned() {
                Some(name) => self.local(route, Some(self.database(&name).await?), call).await,
                None => self.local(route, None, call).await,
            },
        }
    }

    /// Answers a request by what is on this node: `database` is the one that the route names, if it works on an open one.
    pub(super) async fn local(&self, route: Route, database: Option<Database>, call: Call) -> Result<Response, Problem> {
        match (route, database) {
            (Route::Health, _) => node::health(call),
            (Route::Ready, _) => node::ready(self, call).await,
            (Route::Metrics, _) => metrics::render(self, call).await,
            (Route::Status, _) => node::status(self, call).await,
            (Route::Peers, _) => node::peers(self, call),
            (Route::Dial, _) => node::dial(self, call).await,
            (Route::Backup, _) => backup::backup(self, call),
            (Route::Databases, _) => database::all(self, call).await,
            (Route::DropDatabase(name), _) => database::drop(self, &name, call).await,
            (Route::CreateDatabase(name), _) => database::create(self, &name, call).await,
            (route, _) if route.is_of_fleet() => {
                let detail = "this node is in no fleet; [fleet] in its configuration makes it a member";
                Err(Problem::new(Code::NoFleet, detail))
            }
            (Route::Database(_), Some(database)) => database::one(database, call).await,
            (Route::Key(_, method, text), Some(database)) => match method {
                KeyMethod::Get | KeyMethod::Head => keys::get(database, text, call).await,
                KeyMethod::Put => keys::put(&Target::Here(database), text, call).await,
                KeyMethod::Delete => keys::delete(&Target::Here(database), text, call).await,
            },
            (Route::List(_), Some(database)) => list::list(&database, list::Which::All, call).await,
            (Route::Conflicts(_), Some(database)) => list::list(&database, list::Which::Conflicts, call).await,
            (Route::Verify(_), Some(database)) => repair::verify(&database, call).await,
            (Route::Disagreements(_), Some(database)) => repair::disagreements(&database, call).await,
            (Route::Repair(_), Some(database)) => repair::repair(self, &database, call).await,
            (Route::Compact(_), Some(database)) => compact::compact(database, call),
            (Route::Batch(_), Some(database)) => batch::batch(&Target::Here(database), call).await,
            (Route::Siblings(_), Some(database)) => keys::siblings(database, call).await,
            (Route::Wait(_), Some(database)) => database::wait(&database, call).await,
            (Route::Watch(_), Some(database)) => watch::watch(self, database, call).await,
            _ => Err(Problem::new(Code::Internal, "a route without its database")),
        }
    }

    /// A database that is there; it is opened when it is not open.
    pub(super) async fn database(&self, name: &DatabaseName) -> Result<Database, Problem> {
        let known = self.0.open.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(database) = known.filter(|database| !database.is_closed()) {
            return Ok(database);
        }
        if !self.has(name).await? {
            let detail = format!("there is no database {name}; PUT /v1/databases/{name} makes it");
            return Err(Problem::new(Code::DatabaseNotFound, detail));
        }
        self.open(name).await
    }

    /// Opens a database, making it when it is not there.
    pub(super) async fn open(&self, name: &DatabaseName) -> Result<Database, Problem> {
        let database = self.node().database(name).await?;
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, database| !database.is_closed());
        open.insert(name.clone(), database.clone());
        Ok(database)
    }

    /// The name of an open database.
    pub(super) fn name_of(&self, id: DatabaseId) -> Option<String> {
        let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().find(|database| database.id() == id).map(|database| database.name().to_string())
    }

    /// Whether the database is in the catalogue.
    pub(super) async fn has(&self, name: &DatabaseName) -> Result<bool, Problem> {
        let node = self.node().clone();
        let name = name.clone();
        blocking(move || Ok(node.has_database(&name)?)).await
    }
}

/// Runs a read that may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a read panicked");
            Err(Problem::new(Code::Internal, "a read failed; see the log"))
        }
    }
}

/// An answer of one JSON document.
pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Result<Response, Problem> {
    let body = serde_json::to_vec(document).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Path and query alone.
fn target(uri: &Uri) -> Uri {
    uri.path_and_query().map_or_else(Uri::default, |target| Uri::from(target.clone()))
}
