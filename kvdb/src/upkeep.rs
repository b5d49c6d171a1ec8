//! What goes with time: values that have expired, and outcomes of requests that nobody asks for any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crdt::{DatabaseId, Durability, Stamp, View as _, WallTime};
use libp2p::PeerId;

use crate::clock::wall_time;
use crate::engine::port::WriteError;
use crate::error::ReadError;
use crate::expiry::{self, Due};
use crate::limits::{MAX_REQUESTS, REQUEST_RETENTION, UPKEEP_INTERVAL, UPKEEP_PAUSE, UPKEEP_REQUESTS};
use crate::net::NetHandle;
use crate::shards::{Shard, Shards};

/// What the upkeep needs of a node. Not the node itself, which must not live for its sake.
#[derive(Debug, Clone)]
pub(crate) struct Upkeep {
    pub(crate) me: PeerId,
    pub(crate) shards: Arc<Shards>,
    pub(crate) net: Option<NetHandle>,
    pub(crate) grace: Duration,
}

/// One look at a database.
struct Look {
    due: Due,
    requests: bool,
}

impl Upkeep {
    /// Runs until it is aborted.
    pub(crate) async fn run(self) {
        let interval = (self.grace / 4).clamp(UPKEEP_PAUSE, UPKEEP_INTERVAL);
        loop {
            tokio::time::sleep(interval).await;
            let peers = self.peers();
            for database in self.shards.open_databases() {
                // Closed meanwhile, perhaps.
                let Some(shard) = self.shards.of(&database) else { continue };
                match self.tidy(shard, database, peers.get(&database).map_or(&[], Vec::as_slice)).await {
                    // Closed meanwhile, or refusing writes, which everybody is told already.
                    Ok(()) | Err(WriteError::Closed | WriteError::Poisoned { .. }) => {}
                    Err(error) => tracing::warn!(%database, %error, "what has expired could not be deleted; tried again later"),
                }
            }
        }
    }

    /// The connected peers that have a database open.
    fn peers(&self) -> BTreeMap<DatabaseId, Vec<PeerId>> {
        let mut open: BTreeMap<DatabaseId, Vec<PeerId>> = BTreeMap::new();
        for peer in self.net.as_ref().map(NetHandle::peers).unwrap_or_default() {
            for session in &peer.databases {
                open.entry(session.database).or_default().push(peer.peer);
            }
        }
        open
    }

    /// Deletes all that is due in a database, a bounded piece at a time.
    async fn tidy(&self, shard: &Arc<Shard>, database: DatabaseId, peers: &[PeerId]) -> Result<(), WriteError> {
        let mine = expiry::is_mine(&database, &self.me, peers.iter().copied());
        loop {
            let now = wall_time();
            let before = Stamp(now.0.saturating_sub(u64::try_from(REQUEST_RETENTION.as_millis()).unwrap_or(u64::MAX)) << 16);
            let Look { due, requests } = look(shard, database, expiry::cutoff(now, self.grace, mine), before).await?;
            let mut more = due.more;
            if !due.ops.is_empty() {
                let keys = due.ops.len();
                shard.engine.write(database, due.ops, None, Durability::Buffered).await?;
                tracing::debug!(%database, keys, "what had expired was deleted");
            }
            if requests {
                more |= shard.engine.forget(database, before, MAX_REQUESTS, UPKEEP_REQUESTS).await? == UPKEEP_REQUESTS;
            }
            if !more {
                return Ok(());
            }
            tokio::time::sleep(UPKEEP_PAUSE).await;
        }
    }
}

/// Reads what is due; on a thread that may wait for the disk.
async fn look(shard: &Arc<Shard>, database: DatabaseId, until: WallTime, before: Stamp) -> Result<Look, WriteError> {
    let shard = Arc::clone(shard);
    let read = move || {
        shard.read(|store| {
            let view = store.snapshot(&database)?;
            let due = expiry::due(&view, until)?;
            let oldest = view.oldest_requests().next().transpose()?;
            let many = view.requests()? > MAX_REQUESTS;
            Ok(Look { due, requests: many || oldest.is_some_and(|(stamp, _)| stamp < before) })
        })
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(look)) => Ok(look),
        Ok(Err(ReadError::Closed)) => Err(WriteError::Closed),
        Ok(Err(error)) => Err(WriteError::Read { cause: error.to_string() }),
        Err(error) => Err(WriteError::Read { cause: error.to_string() }),
    }
}
