//! Engine and store as replication sees them, and the place from which all handles of a node reach its store.

use std::sync::{Arc, PoisonError, RwLock};

use crdt::{Block, Cursor, DatabaseId, Dot, SnapshotId, SnapshotWrite, Source};

use crate::engine::port::{Delivery, LogChunk, News, WriteError};
use crate::engine::{EngineHandle, NewsFeed};
use crate::error::ReadError;
use crate::net::port::{StandingView, opened_view};
use crate::net::ranges::{RangeRead, RangeTask, read_range};
use crate::net::sync::{OpenedView, ReadChunk};
use crate::net::{Backend, BackendError, LogSource, NewsSource};
use crate::store::{RocksStore, StandingRocks, StoreError};

/// The store while the node is open; empty afterwards, so that handles left over do not keep the directory.
#[derive(Debug, Clone)]
pub(crate) struct StoreSlot(Arc<RwLock<Option<RocksStore>>>);

impl StoreSlot {
    pub(crate) fn new(store: RocksStore) -> Self {
        Self(Arc::new(RwLock::new(Some(store))))
    }

    /// Reads from the store, which cannot be let go meanwhile.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&RocksStore) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let store = self.0.read().unwrap_or_else(PoisonError::into_inner);
        read(store.as_ref().ok_or(ReadError::Closed)?)
    }

    /// Lets go of the store once nobody reads.
    pub(crate) fn release(&self) {
        if let Some(store) = self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            store.stop_reclaiming();
        }
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// What replication needs of a node.
#[derive(Debug, Clone)]
pub(crate) struct EngineBackend {
    engine: EngineHandle<RocksStore>,
    store: StoreSlot,
}

impl EngineBackend {
    pub(crate) fn new(engine: EngineHandle<RocksStore>, store: StoreSlot) -> Self {
        Self { engine, store }
    }

    fn read<T>(&self, read: impl FnOnce(&RocksStore) -> Result<T, StoreError>) -> Result<T, BackendError> {
        let read = |store: &RocksStore| read(store).map_err(|error| crate::error::read_error(&error));
        self.store.read(read).map_err(|error| BackendError(error.to_string()))
    }
}

impl Backend for EngineBackend {
    async fn deliver(&self, database: DatabaseId, blocks: Vec<Block>, source: Source) -> Result<Delivery, WriteError> {
        self.engine.deliver(database, blocks, source).await
    }

    async fn stage(&self, database: DatabaseId, write: SnapshotWrite) -> Result<(), WriteError> {
        self.engine.stage(database, write).await
    }

    fn read_range(&self, database: &DatabaseId, task: &RangeTask) -> Result<RangeRead, BackendError> {
        self.read(|store| read_range(&store.snapshot(database)?, task))
    }

    type View = RocksStanding;

    fn view(&self, database: &DatabaseId) -> Result<RocksStanding, BackendError> {
        let store = self.store.read(|store| Ok(store.clone())).map_err(|error| BackendError(error.to_string()))?;
        StandingRocks::open(store, *database).map(RocksStanding).map_err(|error| BackendError(error.to_string()))
    }
}

/// A view of the store that stands still.
#[derive(Debug)]
pub(crate) struct RocksStanding(StandingRocks);

impl StandingView for RocksStanding {
    fn opened(&self, id: SnapshotId) -> Result<OpenedView, BackendError> {
        let state = self.0.state().map_err(|error| BackendError(error.to_string()))?;
        Ok(opened_view(id, &state))
    }

    fn read(&self, at: &Cursor) -> Result<ReadChunk, BackendError> {
        self.0.read(at).map(ReadChunk::from).map_err(|error| BackendError(error.to_string()))
    }
}

impl LogSource for EngineBackend {
    fn read_log(
        &self,
        database: &DatabaseId,
        from: u64,
        max_bytes: usize,
        skip: &dyn Fn(&Dot) -> bool,
    ) -> Result<LogChunk, BackendError> {
        self.read(|store| store.read_log(database, from, max_bytes, skip))
    }

    fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, BackendError> {
        self.read(|store| store.revision_of(database, dot))
    }
}

impl NewsSource for NewsFeed {
    async fn next(&mut self) -> Option<Vec<News>> {
        NewsFeed::next(self).await
    }
}
