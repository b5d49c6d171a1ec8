//! Engines and stores as replication sees them, and the place from which all handles of a node reach a store.

use std::sync::{Arc, PoisonError, RwLock};

use crdt::{Block, Cursor, DatabaseId, Dot, SnapshotId, SnapshotWrite, Source};
use futures::future::select_all;

use crate::engine::NewsFeed;
use crate::engine::port::{Delivery, LogChunk, News, WriteError};
use crate::error::ReadError;
use crate::net::port::{StandingView, opened_view};
use crate::net::ranges::{RangeRead, RangeTask, read_range};
use crate::net::sync::{OpenedView, ReadChunk};
use crate::net::{Backend, BackendError, LogSource, NewsSource};
use crate::shards::Shards;
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

    /// Puts another store in the place of this one, if it is `free`, which nobody reads meanwhile; `None` if it is not. If the
    /// other one cannot be opened, none is left.
    pub(crate) fn renew<E>(
        &self,
        free: impl FnOnce(&RocksStore) -> bool,
        open: impl FnOnce() -> Result<RocksStore, E>,
    ) -> Option<Result<RocksStore, E>> {
        let mut slot = self.0.write().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().filter(|store| free(store))?;
        // The files are closed with the last clone, and opened again after that.
        drop(slot.take());
        Some(open().inspect(|store| *slot = Some(store.clone())))
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
pub(crate) struct EngineBackend(Arc<Shards>);

impl EngineBackend {
    pub(crate) fn new(shards: Arc<Shards>) -> Self {
        Self(shards)
    }

    fn read<T>(&self, database: &DatabaseId, read: impl FnOnce(&RocksStore) -> Result<T, StoreError>) -> Result<T, BackendError> {
        let shard = self.0.of(database).ok_or_else(|| BackendError(ReadError::Closed.to_string()))?;
        shard.read(read).map_err(|error| BackendError(error.to_string()))
    }
}

impl Backend for EngineBackend {
    async fn deliver(&self, database: DatabaseId, blocks: Vec<Block>, source: Source) -> Result<Delivery, WriteError> {
        let shard = self.0.of(&database).ok_or(WriteError::Closed)?;
        shard.engine.deliver(database, blocks, source).await
    }

    async fn stage(&self, database: DatabaseId, write: SnapshotWrite) -> Result<(), WriteError> {
        let shard = self.0.of(&database).ok_or(WriteError::Closed)?;
        shard.engine.stage(database, write).await
    }

    fn read_range(&self, database: &DatabaseId, task: &RangeTask) -> Result<RangeRead, BackendError> {
        self.read(database, |store| read_range(&store.snapshot(database)?, task))
    }

    type View = RocksStanding;

    fn view(&self, database: &DatabaseId) -> Result<RocksStanding, BackendError> {
        let store = self.read(database, |store| Ok(store.clone()))?;
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
        self.read(database, |store| store.read_log(database, from, max_bytes, skip))
    }

    fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, BackendError> {
        self.read(database, |store| store.revision_of(database, dot))
    }
}

/// The news of all engines of a node.
#[derive(Debug)]
pub(crate) struct AllNews(Vec<NewsFeed>);

impl AllNews {
    pub(crate) fn of(shards: &Shards) -> Self {
        Self(shards.all().iter().map(|shard| shard.engine.news()).collect())
    }
}

impl NewsSource for AllNews {
    /// Ends with the last engine.
    async fn next(&mut self) -> Option<Vec<News>> {
        loop {
            let (news, at) = match self.0.as_mut_slice() {
                [] => return None,
                [only] => (only.next().await, 0),
                all => {
                    let (news, at, _) = select_all(all.iter_mut().map(|feed| Box::pin(feed.next()))).await;
                    (news, at)
                }
            };
            if news.is_some() {
                // Whoever was heard is asked last next time, so that a busy engine keeps no other one waiting.
                self.0.rotate_left(at + 1);
                return news;
            }
            self.0.remove(at);
        }
    }
}
