//! What replication needs of the engine and the store.

use std::future::Future;

use crdt::limits::CHUNK_BYTES;
use crdt::snapshot::{Piece, chunk_hash, read_piece, snapshot_head};
use crdt::{
    Block, Cursor, DatabaseId, Dot, LogEntry, ReplicaState, SnapshotId, SnapshotWrite, Source, Store, VersionVector, View,
};
use thiserror::Error;

use super::ranges::{RangeRead, RangeTask};
use super::sync::{OpenedView, ReadChunk, ReadFrom};
use crate::engine::port::{Delivery, LogChunk, News, WriteError};

/// The store could not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the store cannot read: {0}")]
pub struct BackendError(pub String);

/// The change logs of a store, as replication sees them. Both calls block the thread.
pub trait LogSource {
    /// Reads the log in merge order from a revision, without the blocks that `skip` names; at least one block even when
    /// it is larger than `max_bytes`.
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

    /// The revision at which a block was merged, if it is kept.
    ///
    /// # Errors
    /// When the store cannot read.
    fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, BackendError>;
}

/// A view of one replica that stands still, to send it as a snapshot. Both calls block the thread.
pub trait StandingView: Send + Sync + 'static {
    /// Head and version vector, under this id.
    ///
    /// # Errors
    /// When the store cannot read.
    fn opened(&self, id: SnapshotId) -> Result<OpenedView, BackendError>;

    /// The chunk at a place.
    ///
    /// # Errors
    /// When the store cannot read.
    fn read(&self, at: &Cursor) -> Result<ReadChunk, BackendError>;
}

/// Engine and store, as replication sees them.
pub trait Backend: LogSource + Clone + Send + Sync + 'static {
    /// Hands verified blocks of one database to the engine; resolves after they are committed or held.
    fn deliver(
        &self,
        database: DatabaseId,
        blocks: Vec<Block>,
        source: Source,
    ) -> impl Future<Output = Result<Delivery, WriteError>> + Send;

    /// Hands a verified part of a snapshot to the engine; resolves after it is committed.
    fn stage(&self, database: DatabaseId, write: SnapshotWrite) -> impl Future<Output = Result<(), WriteError>> + Send;

    /// Reads a range of keys in short, see [`super::ranges::read_range`]. Blocks the thread.
    ///
    /// # Errors
    /// When the store cannot read.
    fn read_range(&self, database: &DatabaseId, task: &RangeTask) -> Result<RangeRead, BackendError>;

    /// What [`Backend::view`] opens.
    type View: StandingView;

    /// Opens a view that stands still for as long as it lives. Blocks the thread.
    ///
    /// # Errors
    /// When the store cannot read.
    fn view(&self, database: &DatabaseId) -> Result<Self::View, BackendError>;
}

/// A copy of a store as a view that stands still: for tests and simulations.
#[derive(Debug)]
pub struct PlainView<S>(pub S, pub DatabaseId);

impl<S: Store + Send + Sync + 'static> StandingView for PlainView<S> {
    fn opened(&self, id: SnapshotId) -> Result<OpenedView, BackendError> {
        let view = self.0.view(&self.1).map_err(|error| cannot_read(&error))?;
        let state = view.state().map_err(|error| cannot_read(&error))?;
        Ok(opened_view(id, &state))
    }

    fn read(&self, at: &Cursor) -> Result<ReadChunk, BackendError> {
        let view = self.0.view(&self.1).map_err(|error| cannot_read(&error))?;
        let state = view.state().map_err(|error| cannot_read(&error))?;
        read_view(&view, &state, at, CHUNK_BYTES)
    }
}

/// A replica's state as the start of a snapshot.
#[must_use]
pub fn opened_view(id: SnapshotId, state: &ReplicaState) -> OpenedView {
    let vv = state.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
    OpenedView { head: snapshot_head(id, state), vv, revision: state.meta.revision }
}

impl From<Piece> for ReadChunk {
    fn from(piece: Piece) -> Self {
        Self { hash: chunk_hash(&piece.bytes), bytes: piece.bytes, next: piece.next }
    }
}

/// The chunk at a place of a view, of about so many bytes, with its hash.
///
/// # Errors
/// When the store cannot read.
pub fn read_view<V: View>(view: &V, state: &ReplicaState, at: &Cursor, max_bytes: usize) -> Result<ReadChunk, BackendError> {
    let piece = read_piece(view, state, at, max_bytes).map_err(|error| cannot_read(&error))?;
    Ok(piece.into())
}

/// Any store, read in the plain way: for tests and simulations. RocksDB has a faster one.
#[derive(Debug)]
pub struct PlainLog<'a, S>(pub &'a S);

impl<S: Store> LogSource for PlainLog<'_, S> {
    fn read_log(
        &self,
        database: &DatabaseId,
        from: u64,
        max_bytes: usize,
        skip: &dyn Fn(&Dot) -> bool,
    ) -> Result<LogChunk, BackendError> {
        let view = self.0.view(database).map_err(|error| cannot_read(&error))?;
        let mut chunk = LogChunk { next: from, end: true, blocks: Vec::new() };
        let mut bytes = 0;
        for entry in view.log(from) {
            let LogEntry { revision, dot, .. } = entry.map_err(|error| cannot_read(&error))?;
            if !skip(&dot) {
                let missing = || BackendError("a block of the log is missing".to_owned());
                let block = view.block(&dot).map_err(|error| cannot_read(&error))?.ok_or_else(missing)?.bytes;
                if !chunk.blocks.is_empty() && bytes + block.len() > max_bytes {
                    chunk.end = false;
                    break;
                }
                bytes += block.len();
                chunk.blocks.push((revision, dot, block));
            }
            chunk.next = revision + 1;
        }
        if chunk.end {
            // What was dropped is not to be read again.
            let state = view.state().map_err(|error| cannot_read(&error))?;
            chunk.next = chunk.next.max(state.meta.revision + 1);
        }
        Ok(chunk)
    }

    fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, BackendError> {
        let view = self.0.view(database).map_err(|error| cannot_read(&error))?;
        let block = view.block(dot).map_err(|error| cannot_read(&error))?;
        Ok(block.map(|block| block.revision))
    }
}

fn cannot_read(error: &dyn std::error::Error) -> BackendError {
    BackendError(error.to_string())
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
pub fn read<L: LogSource>(
    logs: &L,
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
                let revision = logs.revision_of(database, dot)?;
                lowest = lowest.into_iter().chain(revision).min();
            }
            lowest.unwrap_or(1)
        }
    };
    logs.read_log(database, from, max_bytes, &|dot| skip.covers(dot))
}
