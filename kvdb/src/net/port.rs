//! What replication needs of the engine and the store.

use std::future::Future;

use crdt::{Block, DatabaseId, Dot, Source, VersionVector};
use thiserror::Error;

use super::sync::ReadFrom;
use crate::engine::port::{Delivery, LogChunk, News, WriteError};

/// The store could not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the store cannot read: {0}")]
pub struct BackendError(pub String);

/// Engine and store, as replication sees them.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Hands verified blocks of one database to the engine; resolves after they are committed or held.
    fn deliver(
        &self,
        database: DatabaseId,
        blocks: Vec<Block>,
        source: Source,
    ) -> impl Future<Output = Result<Delivery, WriteError>> + Send;

    /// Reads the log in merge order from a revision, without the blocks that `skip` names; at least one block even when
    /// it is larger than `max_bytes`. Blocks the thread.
    ///
    /// # Errors
    /// When the store cannot read.
    fn read_log(
        &self,
        database: &DatabaseId,
        from: u64,
        max_bytes: usize,
        skip: &dyn Fn(&Dot) -> bool,
    ) -> Result<LogChunk, BackendError>;

    /// The revision at which a block was merged, if it is kept. Blocks the thread.
    ///
    /// # Errors
    /// When the store cannot read.
    fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, BackendError>;
}

/// Where the engine's news come from.
pub trait NewsSource: Send + 'static {
    /// Waits for news; `None` when the engine is gone. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<Vec<News>>> + Send;
}

impl NewsSource for tokio::sync::mpsc::Receiver<Vec<News>> {
    async fn next(&mut self) -> Option<Vec<News>> {
        self.recv().await
    }
}

/// Does what `Output::ReadLog` asks for. Blocks the thread.
///
/// # Errors
/// When the store cannot read.
pub fn read<B: Backend>(
    backend: &B,
    database: &DatabaseId,
    from: &ReadFrom,
    max_bytes: usize,
    skip: &VersionVector,
) -> Result<LogChunk, BackendError> {
    let from = match from {
        ReadFrom::Revision(revision) => *revision,
        ReadFrom::Lowest(dots) => {
            let mut lowest = None;
            for dot in dots {
                let revision = backend.revision_of(database, dot)?;
                lowest = lowest.into_iter().chain(revision).min();
            }
            lowest.unwrap_or(1)
        }
    };
    backend.read_log(database, from, max_bytes, &|dot| skip.covers(dot))
}
