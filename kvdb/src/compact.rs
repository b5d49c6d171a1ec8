//! Compacting: drops history that nobody needs, by the rule in [`crate::engine::history`], and gives its space back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crdt::{DatabaseId, Store as _, View as _};
use thiserror::Error;

use crate::clock;
use crate::database::Database;
use crate::engine::history::{Known, Plan, Unsafe, plan};
use crate::engine::port::WriteError;
use crate::engine::shared::Shared;
use crate::error::ReadError;
use crate::limits::{COMPACT_PIECE_BLOCKS, HISTORY_MAX_BYTES, RECLAIM_BYTES};
use crate::node;
use crate::shards::Shard;
use crate::store::Reclaim;

/// Longest pause between two pieces, and between two looks that a full history asks for.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How a compaction by command differs from the node's [`crate::HistoryOptions`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompactOptions {
    /// Keep history of at least this age.
    pub min_age: Option<Duration>,
    /// Keep at most so many bytes of history.
    pub max_bytes: Option<u64>,
    /// Drop also what no other node has. No row is lost by it, but whoever joins later needs a snapshot.
    pub alone: bool,
}

/// How far a compaction has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompactProgress {
    /// Blocks are being dropped.
    Dropping {
        /// Blocks dropped so far.
        blocks: u64,
        /// Blocks to drop.
        of: u64,
    },
    /// Files are being rewritten.
    Rewriting,
}

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compacted {
    /// Blocks dropped.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of blocks that are kept.
    pub kept_bytes: u64,
    /// Bytes of blocks, among the kept ones, that too few other nodes have on disk.
    pub unsafe_bytes: u64,
    /// The log revision up to which nothing is kept now.
    pub log_floor: u64,
}

/// Why a compaction did not end. What was dropped before stays dropped.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum CompactError {
    /// The log cannot be read, or the database is closed.
    #[error("compaction: {0}")]
    Read(#[from] ReadError),
    /// The engine refuses.
    #[error("compaction: {0}")]
    Write(#[from] WriteError),
}

impl Database {
    /// Drops history that nobody needs any more and gives its space back, while reads and writes go on. No row changes.
    /// Waits for a compaction of this database that is under way. With nothing to drop the files are rewritten all the
    /// same, so that superseded values leave the disk.
    ///
    /// # Errors
    /// See [`CompactError`].
    ///
    /// # Durability
    /// What was dropped may be there again after a power failure; never half of it.
    ///
    /// # Cancel safety
    /// Dropping the future ends it after the piece under way.
    pub async fn compact(
        &self,
        options: &CompactOptions,
        mut progress: impl FnMut(CompactProgress) + Send,
    ) -> Result<Compacted, CompactError> {
        let (node, shared) = (self.node(), self.shared());
        run(node, self.shard(), self.id(), shared, options, Reclaim::Everything, &mut progress).await
    }
}

async fn run(
    node: &Arc<node::Inner>,
    place: &Arc<Shard>,
    id: DatabaseId,
    shared: &Arc<Shared>,
    options: &CompactOptions,
    reclaim: Reclaim,
    progress: &mut (impl FnMut(CompactProgress) + Send),
) -> Result<Compacted, CompactError> {
    let _one = shared.compacting.lock().await;
    let before = shared.figures().meta;
    // Nobody else waits for own buffered writes to reach the disk, but other nodes keep them until they have.
    if shared.history().synced != before.revision {
        place.engine.sync().await?;
        shared.history().synced = before.revision;
    }
    let (plan, needed) = look(node, place, id, shared, options).await?;
    let mut done = Compacted { log_floor: before.log_floor, ..Compacted::default() };
    let mut busy = Duration::ZERO;
    while done.log_floor < plan.through {
        progress(CompactProgress::Dropping { blocks: done.blocks, of: plan.blocks });
        let begun = clock::now();
        let piece = place.engine.truncate(id, plan.through, COMPACT_PIECE_BLOCKS).await?;
        done.blocks += piece.blocks as u64;
        done.bytes += piece.bytes;
        done.log_floor = piece.log_floor;
        if piece.blocks == 0 {
            break;
        }
        // As long for everybody else as for this, but timers know no part of a millisecond.
        busy += begun.elapsed();
        if busy >= Duration::from_millis(1) {
            tokio::time::sleep(std::mem::take(&mut busy).min(PAUSES.0)).await;
        }
    }
    let unsafe_bytes = if needed == 0 { 0 } else { before.history_bytes.saturating_sub(plan.safe_bytes) };
    let rewrite = {
        let mut history = shared.history();
        let shrunk = history.peak.shrunk(shared.figures().meta.keys);
        let reclaim = if shrunk { Reclaim::Everything } else { reclaim };
        history.unsafe_bytes = Unsafe::seen(unsafe_bytes, before.history_bytes.saturating_sub(done.bytes));
        history.garbage += done.bytes;
        let rewrite = reclaim == Reclaim::Everything || history.garbage >= RECLAIM_BYTES;
        if rewrite {
            history.garbage = 0;
        }
        rewrite.then_some(reclaim)
    };
    if let Some(reclaim) = rewrite {
        progress(CompactProgress::Rewriting);
        let place = Arc::clone(place);
        blocking(move || place.read(|store| store.reclaim(&id, reclaim))).await?;
    }
    Ok(Compacted { kept_bytes: shared.figures().meta.history_bytes, unsafe_bytes, ..done })
}

/// Looks at the log: what may go, and how many other nodes must have it.
async fn look(
    node: &Arc<node::Inner>,
    place: &Arc<Shard>,
    id: DatabaseId,
    shared: &Arc<Shared>,
    options: &CompactOptions,
) -> Result<(Plan, usize), CompactError> {
    let limits = &node.history;
    let (now, meta) = (node.uptime(), shared.figures().meta);
    let aged = {
        let ages = &mut shared.history().ages;
        ages.note(now, meta.revision, limits.min_age);
        ages.older_than(now, options.min_age.unwrap_or(limits.min_age))
    };
    let (peers, pinned) = (node.holders(id).await, node.pinned(id).await);
    let needed = if options.alone { 0 } else { limits.holders };
    let max_bytes = options.max_bytes.or(limits.max_bytes);
    let place = Arc::clone(place);
    let plan = blocking(move || {
        place.read(|store| {
            let rows = store.stats(&id)?.rows;
            let max_bytes = max_bytes.unwrap_or_else(|| rows.max(HISTORY_MAX_BYTES));
            let history_bytes = meta.history_bytes;
            let known = Known { peers: &peers, holders: needed, aged, history_bytes, max_bytes, pinned };
            plan(store.view(&id)?.log(0), &known)
        })
    });
    Ok((plan.await?, needed))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ReadError> + Send + 'static) -> Result<T, ReadError> {
    let failed = |error: tokio::task::JoinError| ReadError::Store { cause: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// Looks at the history of all open databases again and again, for as long as the node is there.
pub(crate) fn schedule(node: &Arc<node::Inner>) {
    let Some(interval) = node.history.interval else { return };
    let (node, asked) = (Arc::downgrade(node), Arc::clone(&node.history_full));
    tokio::spawn(async move {
        loop {
            let pause = interval.mul_f64(rand::random_range(0.75..1.25));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // A writer that is refused should not wait for long, nor have the log read all the time.
                () = asked.notified() => tokio::time::sleep(PAUSES.1.min(interval)).await,
            }
            if look_at_all(&node).await.is_none() {
                return;
            }
        }
    });
}

async fn look_at_all(node: &Weak<node::Inner>) -> Option<()> {
    let databases = node.upgrade()?.shards.open_databases();
    for id in databases {
        let node = node.upgrade()?;
        // Closed meanwhile, perhaps.
        let Some(place) = node.shards.of(&id) else { continue };
        let Some(shared) = place.engine.shared(&id) else { continue };
        match run(&node, place, id, &shared, &CompactOptions::default(), Reclaim::History, &mut |_| {}).await {
            Ok(Compacted { blocks: 0, .. })
            | Err(CompactError::Write(WriteError::Closed) | CompactError::Read(ReadError::Closed)) => {}
            Ok(done) => tracing::debug!(database = %id, blocks = done.blocks, bytes = done.bytes, "history was dropped"),
            Err(error) => tracing::warn!(database = %id, %error, "history cannot be dropped"),
        }
    }
    Some(())
}
