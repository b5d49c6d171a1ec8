//! The node itself: health, status, peers.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use kvdb::{Multiaddr, PeerStatus, ShardStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::{App, Call, blocking, json};
use super::{body, database, fleet};
use crate::limits::MAX_JSON_BODY_BYTES;
use crate::problem::{Code, Problem};

/// `GET /healthz`: the process answers.
pub(super) fn health(call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    Ok(text("alive\n"))
}

/// `GET /readyz`: the store takes writes and, as far as this node knows, lacks nothing that its peers have.
pub(super) async fn ready(app: &App, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let status = app.node().status();
    let lost = status.shards.iter().find_map(|shard| Some((&shard.directory, shard.unavailable.as_ref()?)));
    if let Some((directory, cause)) = lost {
        let detail = format!("{} could not be opened, the other data directories are served: {cause}", directory.display());
        return Err(Problem::new(Code::DirectoryUnavailable, detail));
    }
    match status.poisoned {
        Some(cause) => Err(Problem::new(Code::Poisoned, format!("the store refuses writes: {cause}"))),
        None if let Some(member) = app.member() => member.check_ready().await.map(|()| text("ready\n")),
        None if status.caught_up => Ok(text("ready\n")),
        None => Err(Problem::new(Code::NotCaughtUp, "this node is catching up with its peers")),
    }
}

fn text(text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// `GET /v1/status`
pub(super) async fn status(app: &App, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let node = app.node();
    let mut databases = Vec::new();
    for database in open_databases(app).await? {
        databases.push(blocking(move || database::figures(&database)).await?);
    }
    let status = node.status();
    let disk = disk_use(app).await?;
    let addresses: Vec<String> = node.listen_addresses().iter().map(ToString::to_string).collect();
    let mut document = json!({
        "version": env!("CARGO_PKG_VERSION"), "peer_id": node.peer_id().to_string(), "listen": addresses,
        "uptime_seconds": app.uptime_seconds(), "poisoned": status.poisoned, "waiting_bytes": status.waiting_bytes, "caught_up": status.caught_up,
        "watchers": status.watchers, "directories": status.shards.iter().map(shard).collect::<Vec<_>>(),
        "disk": { "live_bytes": disk.live, "history_bytes": disk.history, "engine_bytes": disk.engine },
        "databases": databases, "peers": node.peers().iter().map(|status| peer(app, status)).collect::<Vec<_>>(),
        "network": node.network_counters(),
    });
    if let (Some(member), Some(fields)) = (app.member(), document.as_object_mut()) {
        fields.insert("fleet".into(), fleet::status(member).await?);
    }
    json(StatusCode::OK, &document)
}

fn shard(shard: &ShardStatus) -> Value {
    json!({
        "directory": shard.directory.display().to_string(), "store_id": shard.store_id.to_string(), "open_databases": shard.open_databases,
        "poisoned": shard.poisoned, "unavailable": shard.unavailable,
    })
}

/// What uses the disk.
pub(super) async fn disk_use(app: &App) -> Result<kvdb::store::DiskUse, Problem> {
    let node = app.node().clone();
    blocking(move || Ok(node.disk_use()?)).await
}

/// The databases that are open now.
pub(super) async fn open_databases(app: &App) -> Result<Vec<kvdb::Database>, Problem> {
    let node = app.node().clone();
    let infos = blocking(move || Ok(node.databases()?)).await?;
    let mut open = Vec::new();
    for info in infos.into_iter().filter(|info| info.open) {
        match app.member() {
            // One that is let go of must not be opened by a look at it.
            Some(member) => open.extend(member.served(&info.name).await?),
            None => open.push(app.database(&info.name).await?),
        }
    }
    Ok(open)
}

/// `GET /v1/peers`
pub(super) fn peers(app: &App, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let peers: Vec<Value> = app.node().peers().iter().map(|status| peer(app, status)).collect();
    json(StatusCode::OK, &json!({ "peers": peers }))
}

fn peer(app: &App, peer: &PeerStatus) -> Value {
    let database = |status: &kvdb::net::DatabaseStatus| {
        json!({
            "name": app.name_of(status.database), "id": status.database.to_string(), "synced": status.synced,
            "feeding": status.feeding, "in_flight_bytes": status.in_flight, "disagrees": status.disagrees,
            "needs_snapshot": status.needs_snapshot, "below_floor": status.below_floor,
        })
    };
    json!({
        "peer_id": peer.peer.to_string(), "outgoing": peer.outgoing, "syncing": peer.syncing,
        "addresses": peer.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "connected_seconds": peer.connected_for.as_secs(), "misbehaviour": peer.misbehaviour,
        "round_trip_ms": peer.round_trip.map(|time| time.as_secs_f64() * 1_000.0),
        "agent": peer.agent, "protocol": peer.protocol,
        "databases": peer.databases.iter().map(database).collect::<Vec<_>>(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DialDocument {
    address: String,
}

/// `POST /v1/peers`: connects to a peer now.
pub(super) async fn dial(app: &App, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let body = body::read(call.body, &call.headers, MAX_JSON_BODY_BYTES, Code::BodyTooLong).await?;
    let document: DialDocument = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(Code::BadRequest, format!("the body must be {{\"address\": multiaddr}}: {error}")))?;
    let address: Multiaddr = document
        .address
        .parse()
        .map_err(|error| Problem::new(Code::BadRequest, format!("address {:?} is not a multiaddr: {error}", document.address)))?;
    app.node().dial(address.clone()).await?;
    json(StatusCode::OK, &json!({ "address": address.to_string(), "connected": true }))
}
