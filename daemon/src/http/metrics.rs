//! `/metrics` in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::app::{App, Call, blocking};
use super::node::{disk_use, open_databases};
use crate::problem::Problem;

/// Counters of the HTTP interface.
#[derive(Default)]
pub(super) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    /// Counts an answered request. Routes and statuses are few, so the map stays small.
    pub(super) fn count(&self, route: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status)).or_default() += 1;
    }
}

/// The text being written.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Begins a metric.
    pub(super) fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample. Label values are route names, statuses and database names: nothing that needs escapes.
    pub(super) fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// All that was written.
    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// `GET /metrics`
pub(super) async fn render(app: &App, call: Call) -> Result<Response, Problem> {
    call.query.finish()?;
    let mut text = Text::default();
    text.metric("kvdb_http_requests_total", "counter", "HTTP requests answered, by route and status.");
    for ((route, status), count) in app.metrics().requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        text.sample("kvdb_http_requests_total", &format!("route=\"{route}\",status=\"{status}\""), count);
    }
    node(app, &mut text);
    if let Some(member) = app.member() {
        member.render(&mut text).await?;
    }
    let disk = disk_use(app).await?;
    text.metric("kvdb_disk_use_bytes", "gauge", "Bytes on disk by what they are for.");
    for (kind, bytes) in [("live", disk.live), ("history", disk.history), ("engine", disk.engine)] {
        text.sample("kvdb_disk_use_bytes", &format!("kind=\"{kind}\""), bytes);
    }
    let mut figures = Vec::new();
    for database in open_databases(app).await? {
        figures.push(blocking(move || Ok((database.name().clone(), database.stats()?))).await?);
    }
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&kvdb::DatabaseStats) -> u64| {
        text.metric(name, "gauge", help);
        for (database, stats) in &figures {
            text.sample(name, &format!("database=\"{database}\""), value(stats));
        }
    };
    gauge("kvdb_keys", "Keys at which something is alive.", &|stats| stats.keys);
    gauge("kvdb_revision", "Blocks merged on this node.", &|stats| stats.revision);
    gauge("kvdb_heads", "Blocks that no other merged block builds on.", &|stats| stats.heads as u64);
    gauge("kvdb_replicas", "Writers that have ever written.", &|stats| stats.replicas as u64);
    gauge("kvdb_pending_blocks", "Received blocks that wait for others.", &|stats| stats.pending_blocks as u64);
    gauge("kvdb_pending_bytes", "Bytes of received blocks that wait for others.", &|stats| stats.pending_bytes as u64);
    gauge("kvdb_history_bytes", "Bytes of blocks kept for nodes that are behind.", &|stats| stats.history_bytes);
    gauge("kvdb_unsafe_bytes", "Bytes of blocks that too few other nodes have.", &|stats| stats.unsafe_bytes);
    gauge("kvdb_disk_bytes", "Bytes on disk, about.", &|stats| stats.disk_bytes);
    let mut response = Response::new(Body::from(text.into_string()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn node(app: &App, text: &mut Text) {
    let status = app.node().status();
    let peers = app.node().peers();
    let disagreeing = peers.iter().filter(|peer| peer.databases.iter().any(|database| database.disagrees)).count();
    for (name, help, value) in [
        ("kvdb_peers", "Peers connected.", peers.len() as u64),
        ("kvdb_peers_disagreeing", "Peers that had the same blocks and another state.", disagreeing as u64),
        ("kvdb_poisoned", "1 when the store refuses writes.", u64::from(status.poisoned.is_some())),
        ("kvdb_waiting_bytes", "Bytes of writes and received blocks that wait for the engine.", status.waiting_bytes as u64),
        ("kvdb_watchers", "Watches open.", status.watchers as u64),
        ("kvdb_uptime_seconds", "Seconds since the start.", app.uptime_seconds()),
    ] {
        text.metric(name, "gauge", help);
        text.sample(name, "", value);
    }
    let state = |text: &mut Text, name: &str, help: &str, value: &dyn Fn(&kvdb::ShardStatus) -> bool| {
        text.metric(name, "gauge", help);
        for (at, shard) in status.shards.iter().enumerate() {
            text.sample(name, &format!("directory=\"{at}\""), u64::from(value(shard)));
        }
    };
    state(
        text,
        "kvdb_directory_poisoned",
        "1 when the store of a data directory refuses writes, in the order of the status.",
        &|shard| shard.poisoned.is_some(),
    );
    state(text, "kvdb_directory_unavailable", "1 when a data directory could not be opened.", &|shard| {
        shard.unavailable.is_some()
    });
    text.metric("kvdb_network_total", "counter", "Network events since the start, by kind.");
    for (kind, count) in app.node().network_counters() {
        text.sample("kvdb_network_total", &format!("kind=\"{kind}\""), count);
    }
}
