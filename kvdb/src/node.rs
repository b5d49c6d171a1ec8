//! A node: one process's identity, store and network.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crdt::{DatabaseId, DatabaseName, Digest, Durability, VersionVector};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;

use crate::backend::{AllNews, EngineBackend};
use crate::clock;
use crate::database::Database;
use crate::engine::port::WriteError;
use crate::engine::shared::Shared;
use crate::error::{CloseError, DropError, OpenDatabaseError, OpenError, ReadError};
use crate::identity;
use crate::limits::{CAUGHT_UP_GRACE, MAX_LIST_STREAMS, MAX_OPEN_DATABASES, MAX_WATCHERS};
use crate::net::{DialError, NetHandle, PeerStatus};
use crate::options::{HistoryOptions, NodeOptions};
use crate::remembered;
use crate::shards::{PlaceError, Shards, Stores};
use crate::store::{DatabaseRecord, DiskUse, RocksStore, StoreId};
use crate::upkeep::Upkeep;

/// A running node. Cloning is cheap. [`Node::close`] stops it cleanly; it also stops when the last handle of it and of its
/// databases is dropped, which blocks until what waits is written.
#[derive(Debug, Clone)]
pub struct Node(Arc<Inner>);

/// What the handles of a node and its databases share.
#[derive(Debug)]
pub(crate) struct Inner {
    peer_id: PeerId,
    home: PathBuf,
    signer: Identity,
    pub(crate) shards: Arc<Shards>,
    net: Option<NetHandle>,
    /// Whether bootstrap peers are configured.
    expects_peers: bool,
    opened: Instant,
    pub(crate) durability: Durability,
    pub(crate) history: HistoryOptions,
    /// Held while a database is opened or dropped.
    lifecycle: tokio::sync::Mutex<()>,
    /// A writer was refused because too much history is on no other node.
    pub(crate) history_full: Arc<Notify>,
    /// Ends with the node.
    upkeep: AbortHandle,
    /// Why a store is gone, if one is.
    gone: watch::Receiver<Option<String>>,
    pub(crate) streams: Arc<Semaphore>,
    /// Held while a backup is made.
    pub(crate) backup: std::sync::Mutex<()>,
    pub(crate) watchers: Arc<Semaphore>,
}

impl Inner {
    /// The time since the node was opened.
    pub(crate) fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }

    /// What each known peer of a database has on disk.
    pub(crate) async fn holders(&self, database: DatabaseId) -> Vec<VersionVector> {
        match &self.net {
            Some(net) => net.holders(database).await.into_values().collect(),
            None => Vec::new(),
        }
    }

    /// What a snapshot on its way to a peer needs of the log.
    pub(crate) async fn pinned(&self, database: DatabaseId) -> Option<u64> {
        self.net.as_ref()?.pinned(database).await
    }

    /// Whether a write may add to a history of which so much is on no other node. Without a network nobody else is
    /// waited for.
    pub(crate) fn admit(&self, shared: &Shared) -> Result<(), WriteError> {
        let (bytes, limit) = (shared.unsafe_bytes(), self.history.hard_bytes);
        if bytes <= limit || self.net.is_none() || self.history.holders == 0 {
            return Ok(());
        }
        self.history_full.notify_one();
        Err(WriteError::HistoryFull { bytes, limit })
    }

    pub(crate) fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    pub(crate) fn net(&self) -> Option<&NetHandle> {
        self.net.as_ref()
    }

    fn caught_up(&self) -> bool {
        let Some(net) = &self.net else { return true };
        let peers = net.peers();
        let mut sessions = peers.iter().flat_map(|peer| &peer.databases).peekable();
        if sessions.peek().is_some() {
            return sessions.all(|session| session.synced);
        }
        // Nobody to compare with: either nobody is expected, or nobody came.
        !self.expects_peers || self.opened.elapsed() >= CAUGHT_UP_GRACE
    }
}

/// The signer, without a word about it in debug output.
struct Identity(Arc<dyn crdt::Signer + Send + Sync>);

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.upkeep.abort();
        // The network ends when the engine's news do.
        self.shards.stop();
    }
}

/// A database in this node's catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// The name.
    pub name: DatabaseName,
    /// The id, the same on every node.
    pub id: DatabaseId,
    /// 0 unless the database was dropped and made again.
    pub generation: u64,
    /// Whether it is open, and so replicated.
    pub open: bool,
    /// Keys at which something is alive.
    pub keys: u64,
    /// Sum over all that is alive: equal on nodes that hold the same state.
    pub digest: Digest,
    /// Blocks merged here.
    pub revision: u64,
    /// The data directory that it is in.
    pub directory: PathBuf,
    /// Why it cannot be opened, if its directory could not be; its figures are then not known, and zero.
    pub unavailable: Option<String>,
}

/// One data directory of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardStatus {
    /// The directory.
    pub directory: PathBuf,
    /// The id of the store in it: another id is another copy.
    pub store_id: StoreId,
    /// Databases open.
    pub open_databases: usize,
    /// Why its store refuses writes, if it does.
    pub poisoned: Option<String>,
    /// Why it could not be opened, if it could not; its databases answer so, and the others are served.
    pub unavailable: Option<String>,
}

/// Figures of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// Why writes are refused, if they are: by one of the stores, of which `shards` tells more.
    pub poisoned: Option<String>,
    /// Bytes of writes and received blocks that wait for the engine.
    pub waiting_bytes: usize,
    /// Databases open.
    pub open_databases: usize,
    /// Watchers open.
    pub watchers: usize,
    /// Whether reads can be taken for complete as far as this node knows: no connected peer has what is lacking here,
    /// and one has been compared with, unless none is configured or none answered for [`CAUGHT_UP_GRACE`].
    pub caught_up: bool,
    /// The data directories.
    pub shards: Vec<ShardStatus>,
}

impl Node {
    /// Opens the store in the data directory, makes an identity at the first time, and starts the network.
    ///
    /// # Errors
    /// See [`OpenError`]. A directory that another process has open, that cannot be written, that has a newer format or
    /// that is damaged is left as it was.
    pub async fn open(options: NodeOptions) -> Result<Self, OpenError> {
        let NodeOptions { data_dir, directories, store: store_options, network, durability, history, expiry_grace: grace } =
            options;
        // First what may be wrong or taken, so that nothing is made in vain.
        if let Some(network) = &network {
            network.check()?;
        }
        let home = data_dir.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let directory = |source| OpenError::Directory { path: data_dir.clone(), source };
            std::fs::create_dir_all(&data_dir).map_err(directory)?;
            let stores = Stores::open(&data_dir, &directories, &store_options)?;
            let keypair = identity::load_or_create(&data_dir)?;
            let signer = identity::signer(&keypair)
                .ok_or_else(|| OpenError::Identity { path: data_dir.clone(), reason: "it is not an ed25519 key".to_owned() })?;
            let signer: Arc<dyn crdt::Signer + Send + Sync> = Arc::new(signer);
            Ok::<_, OpenError>((stores.start(&signer)?, keypair, signer))
        });
        let (shards, keypair, signer) = opened.await.map_err(|error| OpenError::Thread(error.into()))??;
        let (shards, peer_id) = (Arc::new(shards), keypair.public().to_peer_id());
        let backend = EngineBackend::new(Arc::clone(&shards));
        let listeners = network.as_ref().map_or(0, |network| network.listeners().count());
        let expects_peers = network.as_ref().is_some_and(|network| !network.bootstrap.is_empty());
        let start = |network| crate::net::spawn(&network, &keypair, backend, AllNews::of(&shards));
        let net = network.map(start).transpose().inspect_err(|_| shards.stop())?;
        if let Some(net) = &net {
            net.listening(listeners).await;
            tokio::spawn(remembered::run(net.clone(), home.clone()));
        }
        let upkeep = Upkeep { me: peer_id, shards: Arc::clone(&shards), net: net.clone(), grace };
        let (gone, is_gone) = watch::channel(None);
        let heal = crate::heal::run(Arc::clone(&shards), store_options, gone);
        let upkeep = tokio::spawn(async { tokio::join!(upkeep.run(), heal) }).abort_handle();
        let (streams, watchers) = (Semaphore::new(MAX_LIST_STREAMS), Semaphore::new(MAX_WATCHERS));
        let node = Arc::new(Inner {
            peer_id,
            home,
            signer: Identity(signer),
            shards,
            net,
            expects_peers,
            opened: clock::now(),
            durability,
            history,
            lifecycle: tokio::sync::Mutex::new(()),
            history_full: Arc::new(Notify::new()),
            upkeep,
            gone: is_gone,
            streams: Arc::new(streams),
            backup: std::sync::Mutex::new(()),
            watchers: Arc::new(watchers),
        });
        crate::compact::schedule(&node);
        if let Some(net) = &node.net {
            net.dropped(node.shards.dropped().unwrap_or_default()).await;
        }
        // What a crash has left.
        remove_dropped(&node);
        Ok(Self(node))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// What this node signs with, for what is built on top of it.
    pub fn signer(&self) -> Arc<dyn crdt::Signer + Send + Sync> {
        Arc::clone(&self.0.signer.0)
    }

    /// Streams of other protocols over this node's connections; `None` without a network.
    pub fn streams(&self) -> Option<crate::net::Streams> {
        self.0.net.as_ref().map(NetHandle::streams)
    }

    /// What each connected peer with this database has on disk, as it has acknowledged, and what this node has; nothing of a
    /// database that is not open here, or without a network.
    pub async fn durable(&self, database: DatabaseId) -> Vec<(PeerId, crdt::VersionVector)> {
        match &self.0.net {
            Some(net) => net.durable(database).await,
            None => Vec::new(),
        }
    }

    /// The data directory, the first one if there are several.
    pub fn data_dir(&self) -> &Path {
        &self.0.home
    }

    /// The node's identity.
    pub fn peer_id(&self) -> PeerId {
        self.0.peer_id
    }

    /// Addresses at which the node listens; empty without a network.
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        self.0.net.as_ref().map(NetHandle::listen_addresses).unwrap_or_default()
    }

    /// The peers connected now.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.0.net.as_ref().map(NetHandle::peers).unwrap_or_default()
    }

    /// Counters of the network since the start.
    pub fn network_counters(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.0.net.as_ref().map(NetHandle::counters).unwrap_or_default()
    }

    /// Connects to a peer now; once it has succeeded, the peer is dialled again whenever it is lost while this node is
    /// open. Bootstrap peers are dialled for ever.
    ///
    /// # Errors
    /// When there is no network or nobody answers there.
    pub async fn dial(&self, address: Multiaddr) -> Result<(), DialError> {
        match &self.0.net {
            Some(net) => net.dial(address).await,
            None => Err(DialError::Closed),
        }
    }

    /// Opens a database, making it when it is not there. Two nodes that make one name independently have one database.
    ///
    /// # Errors
    /// See [`OpenDatabaseError`].
    pub async fn database(&self, name: &DatabaseName) -> Result<Database, OpenDatabaseError> {
        self.open_database(name, None).await
    }

    /// As [`Node::database`], of one generation and no other, for whoever counts generations for several nodes: made when
    /// neither it nor another one is here and it was not dropped.
    ///
    /// # Errors
    /// [`OpenDatabaseError::Generation`] if another one is here, or it was dropped.
    pub async fn database_at(&self, name: &DatabaseName, generation: u64) -> Result<Database, OpenDatabaseError> {
        self.open_database(name, Some(generation)).await
    }

    async fn open_database(&self, name: &DatabaseName, generation: Option<u64>) -> Result<Database, OpenDatabaseError> {
        // Nothing is dropped between the look into the catalogue and the opening.
        let _one = self.0.lifecycle.lock().await;
        let (shards, wanted, open) = (Arc::clone(&self.0.shards), name.clone(), self.0.shards.open_databases());
        let found = tokio::task::spawn_blocking(move || {
            let is_open = |(_, record): &(_, DatabaseRecord)| open.contains(&record.id);
            if open.len() >= MAX_OPEN_DATABASES && !shards.find(&wanted)?.as_ref().is_some_and(is_open) {
                return Ok(None);
            }
            let here = if generation.is_some() { Some(shards.generation(&wanted)?) } else { None };
            match (generation, here) {
                (Some(generation), Some(here)) if here > generation || (here < generation && shards.find(&wanted)?.is_some()) => {
                    Err(OpenDatabaseError::Generation { here })
                }
                _ => Ok(Some(shards.find_or_make(&wanted, generation.unwrap_or(0))?)),
            }
        });
        let found = found.await.map_err(|error| OpenDatabaseError::Store { cause: error.to_string() })??;
        let (place, record) = found.ok_or(OpenDatabaseError::TooManyOpen { limit: MAX_OPEN_DATABASES })?;
        let shared = place.engine.open(record.id).await.map_err(|error| match error {
            WriteError::Closed => OpenDatabaseError::Closed,
            error => OpenDatabaseError::Store { cause: error.to_string() },
        })?;
        Ok(Database::new(name.clone(), record.id, shared, place, Arc::clone(&self.0)))
    }

    /// Drops a database on this node: its name is free at once, its data are removed in the background. Handles, streams
    /// and watches that are left over answer that it was dropped. Opened again, the name is a new database, of the next
    /// generation: nodes that have the old one do not merge it with the new one, whatever was offline meanwhile.
    ///
    /// # Errors
    /// See [`DropError`].
    ///
    /// # Durability
    /// On disk when this returns.
    ///
    /// # Cancel safety
    /// Once polled it goes on when the future is dropped.
    pub async fn drop_database(&self, name: &DatabaseName) -> Result<(), DropError> {
        let task = tokio::spawn(drop_database(Arc::clone(&self.0), name.clone(), None, Leaves::Generation));
        task.await.unwrap_or_else(|error| Err(DropError::Store { cause: error.to_string() }))
    }

    /// As [`Node::drop_database`], of this generation only: another one stays.
    ///
    /// # Errors
    /// See [`DropError`]; not found if another one is here.
    pub async fn drop_generation(&self, name: &DatabaseName, generation: u64) -> Result<(), DropError> {
        self.take_out(name, generation, Leaves::Generation).await
    }

    /// Deletes this node's copy of one generation of a database and nothing else: others keep theirs, no peer is told that it
    /// was dropped, and the same generation can be opened again, empty. Whether anybody else has the data is the caller's to know.
    ///
    /// # Errors
    /// See [`DropError`]; not found if another one is here.
    ///
    /// # Durability
    /// On disk when this returns.
    pub async fn remove_copy(&self, name: &DatabaseName, generation: u64) -> Result<(), DropError> {
        self.take_out(name, generation, Leaves::Nothing).await
    }

    async fn take_out(&self, name: &DatabaseName, generation: u64, leaves: Leaves) -> Result<(), DropError> {
        let task = tokio::spawn(drop_database(Arc::clone(&self.0), name.clone(), Some(generation), leaves));
        task.await.unwrap_or_else(|error| Err(DropError::Store { cause: error.to_string() }))
    }

    /// All databases in the catalogue, by name.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn databases(&self) -> Result<Vec<DatabaseInfo>, ReadError> {
        self.databases_after(None, usize::MAX)
    }

    /// Up to `limit` databases in the catalogue after a name, by name, open or not.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn databases_after(&self, after: Option<&DatabaseName>, limit: usize) -> Result<Vec<DatabaseInfo>, ReadError> {
        self.0.shards.databases_after(after, limit)
    }

    /// Whether a database is in the catalogue, open or not.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn has_database(&self, name: &DatabaseName) -> Result<bool, ReadError> {
        match self.0.shards.find(name) {
            Ok(found) => Ok(found.is_some()),
            Err(PlaceError::Unavailable { .. }) => Ok(true),
            Err(PlaceError::Read(error)) => Err(error),
            Err(PlaceError::Notes(cause)) => Err(ReadError::Store { cause }),
        }
    }

    /// What uses the disk. May wait for it.
    ///
    /// # Errors
    /// When the store's directory cannot be read.
    pub fn disk_use(&self) -> Result<DiskUse, ReadError> {
        self.0.shards.disk_use()
    }

    /// Figures of the node.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            poisoned: self.0.shards.poison(),
            waiting_bytes: self.0.shards.waiting_bytes(),
            open_databases: self.0.shards.open_databases().len(),
            watchers: MAX_WATCHERS.saturating_sub(self.0.watchers.available_permits()),
            caught_up: self.0.caught_up(),
            shards: self.0.shards.status(),
        }
    }

    /// Resolves with the reason once a store that its disk had failed was closed and could not be opened again: its databases
    /// are gone from this node until it is opened anew. Never as long as that does not happen.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn store_gone(&self) -> String {
        let mut gone = self.0.gone.clone();
        loop {
            if let Some(cause) = gone.borrow_and_update().clone() {
                return cause;
            }
            if gone.changed().await.is_err() {
                // The node is closed.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Stops: says good-bye to peers, finishes what waits, syncs, and lets go of the directory as soon as no listing
    /// stream is open any more. Every handle answers `Closed` afterwards.
    ///
    /// # Errors
    /// When the last sync failed; the node is closed all the same.
    pub async fn close(&self) -> Result<(), CloseError> {
        self.0.upkeep.abort();
        if let Some(net) = &self.0.net {
            net.close().await;
        }
        let closed = self.0.shards.close().await.map_err(CloseError::Sync);
        self.0.shards.release();
        closed
    }
}

/// What is left of a database that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// It was dropped: its name goes on with the next generation, and peers are told.
    Generation,
    /// Only this copy goes.
    Nothing,
}

async fn drop_database(node: Arc<Inner>, name: DatabaseName, generation: Option<u64>, leaves: Leaves) -> Result<(), DropError> {
    let _one = node.lifecycle.lock().await;
    let dropped_for_all = leaves == Leaves::Generation;
    let found = node.shards.find(&name)?.filter(|(_, record)| generation.is_none_or(|wanted| wanted == record.generation));
    let (place, record) = found.ok_or_else(|| DropError::NotFound(name.clone()))?;
    let shared = place.engine.shared(&record.id).filter(|_| dropped_for_all);
    if let Some(shared) = &shared {
        shared.set_dropped();
    }
    // Closed first: no turn may write what is nobody's.
    let closed = place.engine.close_database(record.id).await.map_err(|error| match error {
        WriteError::Closed => DropError::Closed,
        error => DropError::Store { cause: error.to_string() },
    });
    let dropped = match closed {
        Ok(()) => {
            let shards = Arc::clone(&node.shards);
            let unlinked = tokio::task::spawn_blocking(move || shards.unlink(&place, &name, dropped_for_all)).await;
            let failed = |error: tokio::task::JoinError| Err(ReadError::Store { cause: error.to_string() }.into());
            unlinked.unwrap_or_else(failed).map_err(DropError::from)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = dropped {
        if let Some(shared) = &shared {
            shared.keep();
        }
        return Err(error);
    }
    if let Some(net) = node.net.as_ref().filter(|_| dropped_for_all) {
        net.dropped(vec![record.id]).await;
    }
    remove_dropped(&node);
    Ok(())
}

/// Removes the data of dropped databases in the background, in each directory on its own.
fn remove_dropped(node: &Inner) {
    for shard in node.shards.all().iter().map(Arc::clone) {
        tokio::task::spawn_blocking(move || match shard.read(RocksStore::remove_dropped) {
            Ok(()) | Err(ReadError::Closed) => {}
            Err(error) => tracing::warn!(%error, "the data of a dropped database are still there; the next start removes them"),
        });
    }
}
