//! One open database: the public API for reading and writing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Digest, Dot, Durability, Key, ReplicaId, Stamp, Store as _, View as _};
use libp2p::PeerId;
use tokio::sync::oneshot;

use crate::batch::Batch;
use crate::clock::wall_time;
use crate::engine::port::{WriteError, Written};
use crate::engine::shared::{Shared, WaitEnd};
use crate::error::{CloseError, ReadAtError, ReadError, WaitError, read_error};
use crate::limits::{MAX_LIST_STREAMS, MAX_PAGE_BYTES, MAX_PAGE_ITEMS};
use crate::list::{Entry, ListItem, ListOptions, Page, visible, walk};
use crate::node;
use crate::shards::Shard;
use crate::store::{RocksStore, RocksView};
use crate::stream::ListStream;
use crate::watch::Position;

/// An open database. Cloning is cheap; all clones and other handles of the same database on a node are one.
///
/// Reads are local, see this node's own writes at once and may lag behind those of other nodes. They may wait for the
/// disk: from async code put reads of data that may be cold into `spawn_blocking`. Writes are async.
#[derive(Debug, Clone)]
pub struct Database(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: DatabaseName,
    id: DatabaseId,
    shared: Arc<Shared>,
    place: Arc<Shard>,
    node: Arc<node::Inner>,
}

/// Figures of a database on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseStats {
    /// Keys at which something is alive.
    pub keys: u64,
    /// Sum over all that is alive: equal on nodes that hold the same state.
    pub digest: Digest,
    /// Blocks that no other merged block builds on.
    pub heads: usize,
    /// Writers that have ever written: one for each opening with writes, on any node.
    pub replicas: usize,
    /// SHA-256 of the version vector: equal on nodes that have merged the same blocks.
    pub vv_hash: [u8; 32],
    /// Blocks merged here since this replica was made.
    pub revision: u64,
    /// The last stamp given or seen.
    pub clock: Stamp,
    /// Received blocks that wait for others.
    pub pending_blocks: usize,
    /// Their bytes.
    pub pending_bytes: usize,
    /// Bytes in files, about: rows with values up to 512 bytes, blocks, log. What is still in memory, and larger values,
    /// are not counted.
    pub disk_bytes: u64,
    /// Bytes of the blocks that are kept for nodes that are behind.
    pub history_bytes: u64,
    /// Of these, bytes that too few other nodes have on disk, by what is known of them.
    pub unsafe_bytes: u64,
    /// Log revision up to which blocks are not kept any more.
    pub log_floor: u64,
}

impl Database {
    pub(crate) fn new(
        name: DatabaseName,
        id: DatabaseId,
        shared: Arc<Shared>,
        place: Arc<Shard>,
        node: Arc<node::Inner>,
    ) -> Self {
        Self(Arc::new(Inner { name, id, shared, place, node }))
    }

    /// The name.
    pub fn name(&self) -> &DatabaseName {
        &self.0.name
    }

    /// The id, the same on every node.
    pub fn id(&self) -> DatabaseId {
        self.0.id
    }

    /// Puts a value with the node's default durability and returns the block's name.
    ///
    /// # Errors
    /// See [`WriteError`]; a value may have 1 MiB.
    ///
    /// # Durability
    /// The default of [`crate::NodeOptions::durability`].
    ///
    /// # Cancel safety
    /// Once polled the put may happen even when the future is dropped; never half of it.
    pub async fn put(&self, key: &Key, value: impl Into<Bytes>) -> Result<Dot, WriteError> {
        self.put_with(key, value, self.0.node.durability).await
    }

    /// As [`Database::put`] with a given durability.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn put_with(&self, key: &Key, value: impl Into<Bytes>, durability: Durability) -> Result<Dot, WriteError> {
        let batch = Batch::new().put(key.clone(), value).durability(durability);
        let written = self.batch(batch).await?;
        // A put always makes or joins a block.
        written.dot.ok_or(WriteError::Closed)
    }

    /// Deletes what this node sees at the key: a concurrent put elsewhere survives. `None` when there was nothing.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn delete(&self, key: &Key) -> Result<Option<Dot>, WriteError> {
        Ok(self.batch(Batch::new().delete(key.clone())).await?.dot)
    }

    /// Writes a batch, or a single [`crate::Op`]: one block, visible as a whole on every node.
    ///
    /// The dot names the block. It stands for the value that an op has put only if the op's outcome is
    /// [`crate::OpOutcome::Put`]: several callers' puts to one key may share a block, in which the last one counts, and the
    /// others are told [`crate::OpOutcome::Replaced`].
    ///
    /// # Errors
    /// See [`WriteError`]; a batch may have 16,384 ops and make a block of 4 MiB. A condition that does not hold refuses all
    /// of it, with the dot that is there.
    ///
    /// # Durability
    /// The batch's own, else the node's default.
    ///
    /// # Cancel safety
    /// Once polled the batch may be written even when the future is dropped; never half of it.
    pub async fn batch(&self, batch: impl Into<Batch>) -> Result<Written, WriteError> {
        let batch = batch.into();
        if self.0.shared.is_closed() {
            return Err(self.unwritten(WriteError::Closed));
        }
        self.0.node.admit(&self.0.shared)?;
        let durability = batch.durability.unwrap_or(self.0.node.durability);
        let written = self.0.place.engine.write(self.0.id, batch.ops, batch.request, durability).await;
        written.map_err(|error| self.unwritten(error))
    }

    /// The value at a key: of several siblings the winner.
    ///
    /// # Errors
    /// When the database is closed or the store cannot read; never for a key that is not there.
    pub fn get(&self, key: &Key) -> Result<Option<Entry>, ReadError> {
        let now = wall_time();
        let row = self.read(|store| store.view(&self.0.id).and_then(|view| view.row(key)).map_err(|error| read_error(&error)))?;
        let Some(winner) = row.winner(now) else { return Ok(None) };
        if let Some(value) = &winner.value {
            let siblings = row.visible(now).count();
            let (dot, stamp, expiry, len) = (winner.dot, winner.stamp, winner.expiry, winner.len);
            return Ok(Some(Entry { key: key.clone(), value: value.clone(), len, dot, stamp, expiry, siblings }));
        }
        // The value is kept apart: read both from one snapshot, so that no write comes between.
        Ok(self.siblings(key)?.into_iter().next())
    }

    /// All values alive at a key, winner first; more than one is a conflict that a later write resolves.
    ///
    /// # Errors
    /// As [`Database::get`].
    pub fn siblings(&self, key: &Key) -> Result<Vec<Entry>, ReadError> {
        self.read(|store| {
            let view = store.snapshot(&self.0.id).map_err(|error| read_error(&error))?;
            let row = view.row(key).map_err(|error| read_error(&error))?;
            visible(&view, key, &row, wall_time())
        })
    }

    /// As [`Database::get`], once this node has merged the block of a dot: a dot returned by a write on any node gives
    /// read-your-writes here. The value may be a later one.
    ///
    /// # Errors
    /// When the block has not come in time, or as [`Database::get`].
    pub async fn get_at(&self, key: &Key, dot: Dot, timeout: Duration) -> Result<Option<Entry>, ReadAtError> {
        self.wait_for(dot, timeout).await?;
        let (database, key) = (self.clone(), key.clone());
        let read = tokio::task::spawn_blocking(move || database.get(&key)).await;
        read.map_err(|error| ReadError::Store { cause: error.to_string() })?.map_err(ReadAtError::Read)
    }

    /// The node that writes under a replica id, as in a dot; `None` when none of its blocks has been merged here.
    ///
    /// # Errors
    /// As [`Database::get`].
    pub fn author(&self, replica: &ReplicaId) -> Result<Option<PeerId>, ReadError> {
        let key = self.read(|store| store.author(&self.0.id, replica).map_err(|error| read_error(&error)))?;
        Ok(key.and_then(|author| crate::net::gossip::peer_of(&author.public_key)))
    }

    /// One page of a listing: at least one item if there is any, 10,000 items or about 16 MiB at most.
    ///
    /// # Errors
    /// As [`Database::get`].
    pub fn list(&self, options: &ListOptions) -> Result<Page, ReadError> {
        let limit = options.limit.unwrap_or(MAX_PAGE_ITEMS).clamp(1, MAX_PAGE_ITEMS);
        // One item more than asked tells whether there is more.
        let options = options.clone().limit(limit + 1);
        let mut items: Vec<ListItem> = Vec::new();
        let mut bytes = 0;
        self.read(|store| {
            let view = store.snapshot(&self.0.id).map_err(|error| read_error(&error))?;
            walk(
                &view,
                &options,
                wall_time(),
                &mut |item| {
                    bytes += item.bytes();
                    items.push(item);
                    bytes <= MAX_PAGE_BYTES
                },
                &|| true,
            )
        })?;
        let more = items.len() > limit || bytes > MAX_PAGE_BYTES;
        items.truncate(limit);
        let next = if more { items.last().map(ListItem::position) } else { None };
        Ok(Page { items, next })
    }

    /// A listing of any length as a stream from one snapshot. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the database is closed, or too many streams are open on this node.
    pub fn list_stream(&self, options: ListOptions) -> Result<ListStream, ReadError> {
        self.list_from(options, None)
    }

    /// As [`Database::list_stream`]; tells where in the log its snapshot stands.
    pub(crate) fn list_from(
        &self,
        options: ListOptions,
        opened: Option<oneshot::Sender<Position>>,
    ) -> Result<ListStream, ReadError> {
        let store = self.read(|store| Ok(store.clone()))?;
        let place = Arc::clone(&self.0.node.streams)
            .try_acquire_owned()
            .map_err(|_| ReadError::TooManyStreams { limit: MAX_LIST_STREAMS })?;
        let shared = Arc::clone(&self.0.shared);
        Ok(ListStream::start(store, (self.0.id, shared), options, place, opened))
    }

    /// Waits until this node has merged the block: a dot returned by a write on any node gives read-your-writes here.
    ///
    /// # Errors
    /// When it has not come in time, or the database was closed.
    pub async fn wait_for(&self, dot: Dot, timeout: Duration) -> Result<(), WaitError> {
        self.0.shared.wait_for(&dot, timeout).await.map_err(|end| match end {
            WaitEnd::TimedOut => WaitError::NotCovered { dot, waited: timeout },
            WaitEnd::Closed => WaitError::Closed,
        })
    }

    /// Figures of this replica.
    ///
    /// # Errors
    /// As [`Database::get`].
    pub fn stats(&self) -> Result<DatabaseStats, ReadError> {
        let sizes = self.read(|store| store.stats(&self.0.id).map_err(|error| read_error(&error)))?;
        let figures = self.0.shared.figures();
        let vv = self.0.shared.vv();
        Ok(DatabaseStats {
            keys: figures.meta.keys,
            digest: figures.meta.digest,
            heads: figures.heads,
            replicas: vv.len(),
            vv_hash: vv.hash(),
            revision: figures.meta.revision,
            clock: figures.meta.clock,
            pending_blocks: figures.pending_blocks,
            pending_bytes: figures.pending_bytes,
            disk_bytes: sizes.rows + sizes.blocks + sizes.other,
            history_bytes: figures.meta.history_bytes,
            unsafe_bytes: self.0.shared.unsafe_bytes(),
            log_floor: figures.meta.log_floor,
        })
    }

    /// Returns once every write that was answered before is on this node's disk.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn sync(&self) -> Result<(), WriteError> {
        self.0.place.engine.sync().await
    }

    /// Closes the database on this node, for all handles: it is no longer replicated until it is opened again.
    ///
    /// # Errors
    /// When the last sync failed; the database is closed all the same.
    pub async fn close(&self) -> Result<(), CloseError> {
        let synced = self.0.place.engine.sync().await;
        match self.0.place.engine.close_database(self.0.id).await.and(synced) {
            Ok(()) | Err(WriteError::Closed) => Ok(()),
            Err(error) => Err(CloseError::Sync(error)),
        }
    }

    /// Closes the database as [`Database::close`], and then says what of it is on this node's disk: all that was ever merged.
    ///
    /// # Errors
    /// When the sync failed; the database is closed all the same.
    pub async fn close_and_tell(&self) -> Result<crdt::VersionVector, CloseError> {
        let closed = self.0.place.engine.close_database(self.0.id).await;
        // Nothing is merged from here on, so that this sync covers everything.
        match self.0.place.engine.sync().await.and(closed) {
            Ok(()) => Ok(self.0.shared.vv()),
            Err(error) => Err(CloseError::Sync(error)),
        }
    }

    /// Whether the database was closed.
    pub fn is_closed(&self) -> bool {
        self.0.shared.is_closed()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.0.place
    }

    pub(crate) fn node(&self) -> &Arc<node::Inner> {
        &self.0.node
    }

    /// Reads from one snapshot.
    pub(crate) fn with_view<T>(&self, read: impl FnOnce(&RocksView<'_>) -> Result<T, ReadError>) -> Result<T, ReadError> {
        self.read(|store| read(&store.snapshot(&self.0.id).map_err(|error| read_error(&error))?))
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&RocksStore) -> Result<T, ReadError>) -> Result<T, ReadError> {
        if self.is_closed() || self.0.shared.is_dropped() { Err(self.gone()) } else { self.0.place.store.read(read) }
    }

    /// Why a database that is not open any more cannot be read.
    pub(crate) fn gone(&self) -> ReadError {
        if self.0.shared.is_dropped() { ReadError::Dropped } else { ReadError::Closed }
    }

    fn unwritten(&self, error: WriteError) -> WriteError {
        let dropped = matches!(error, WriteError::Closed) && self.0.shared.is_dropped();
        if dropped { WriteError::Dropped } else { error }
    }
}
