//! What the rest of the node sees of the network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crdt::snapshot::Purpose;
use crdt::{DatabaseId, Dot, VersionVector};
use libp2p::{Multiaddr, PeerId};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::limits::LISTEN_WAIT;
use super::member::Streams;
use super::sync::{Comparison, RepairFailure};

/// One connected peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer.
    pub peer: PeerId,
    /// Its addresses, as dialled or as it says.
    pub addresses: Vec<Multiaddr>,
    /// How long it has been connected.
    pub connected_for: Duration,
    /// Whether this node dialled it.
    pub outgoing: bool,
    /// Its software, by its own word.
    pub agent: String,
    /// Its protocol family, by its own word.
    pub protocol: String,
    /// Whether the sync stream stands.
    pub syncing: bool,
    /// The databases that both have open.
    pub databases: Vec<DatabaseStatus>,
    /// The last round-trip time.
    pub round_trip: Option<Duration>,
    /// How often it broke the protocol.
    pub misbehaviour: u64,
}

/// One database with one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that vary independently")]
pub struct DatabaseStatus {
    /// The database.
    pub database: DatabaseId,
    /// By the last comparison this node lacks nothing that the peer has.
    pub synced: bool,
    /// New blocks go to the peer at once.
    pub feeding: bool,
    /// Bytes of blocks on their way to the peer.
    pub in_flight: u64,
    /// The peer lacks blocks that are not kept here any more: a snapshot, or another peer, must bring it on.
    pub needs_snapshot: bool,
    /// Blocks are lacking here that the peer does not keep any more.
    pub below_floor: bool,
    /// Both had the same blocks and yet different heads or digests, or two blocks of one name, at least once.
    pub disagrees: bool,
}

/// Why a dial did not lead to a connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DialError {
    /// The network is closed.
    #[error("the network is closed")]
    Closed,
    /// As many addresses as may be are dialled already.
    #[error("already {limit} addresses to dial")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// No connection came about.
    #[error("cannot connect to {address}: {cause}")]
    Failed {
        /// The address.
        address: Multiaddr,
        /// Why, with the setting that it likely comes from.
        cause: String,
    },
}

/// What the driver tells the handles.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) listen: Vec<Multiaddr>,
    pub(super) peers: Vec<PeerStatus>,
    /// When that list was made.
    pub(super) peers_at: Option<Instant>,
    pub(super) counters: BTreeMap<&'static str, u64>,
    /// Counts acknowledgements, for those who wait for one.
    pub(super) acks: tokio::sync::watch::Sender<u64>,
}

/// What a handle asks of the driver.
#[derive(Debug)]
pub(super) enum Command {
    Dial(Multiaddr, oneshot::Sender<Result<(), String>>, oneshot::Sender<bool>),
    Durable(DatabaseId, oneshot::Sender<Vec<(PeerId, VersionVector)>>),
    Holders(DatabaseId, oneshot::Sender<BTreeMap<PeerId, VersionVector>>),
    Pinned(DatabaseId, oneshot::Sender<Option<u64>>),
    Dropped(Vec<DatabaseId>),
    /// The peers that have the block on disk.
    HeldBy(DatabaseId, Dot, oneshot::Sender<Vec<PeerId>>),
    /// Whether the peer has all of these blocks on disk.
    Covers(DatabaseId, PeerId, Arc<VersionVector>, oneshot::Sender<bool>),
    /// Whether a comparison with the peer was begun.
    Compare(DatabaseId, PeerId, oneshot::Sender<bool>),
    Comparisons(DatabaseId, oneshot::Sender<Vec<Comparison>>),
    Repair(DatabaseId, PeerId, Purpose, oneshot::Sender<Result<(), RepairFailure>>),
    /// Whether the peer has the database open with this node.
    HasSession(DatabaseId, PeerId, oneshot::Sender<bool>),
    Close(oneshot::Sender<()>),
}

/// The running network. Cloning is cheap; when the last handle is dropped, the network goes on until the engine closes.
#[derive(Debug, Clone)]
pub struct NetHandle {
    pub(super) peer: PeerId,
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) streams: Streams,
}

/// A poisoned lock only means that a reader panicked: the data are whole.
pub(super) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NetHandle {
    /// This node.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        self.peer
    }

    /// Where this node listens, ports resolved.
    #[must_use]
    pub fn listen_addresses(&self) -> Vec<Multiaddr> {
        lock(&self.shared).listen.clone()
    }

    /// Waits until each of so many listeners has an address; not for ever, since one may have failed, which is logged.
    pub(crate) async fn listening(&self, listeners: usize) {
        let all = async {
            while lock(&self.shared).listen.len() < listeners {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(LISTEN_WAIT, all).await.is_err() {
            tracing::warn!(listeners, "not all listeners have an address after {LISTEN_WAIT:?}");
        }
    }

    /// The connected peers, as of their last change.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let shared = lock(&self.shared);
        let age = shared.peers_at.map_or(Duration::ZERO, |at| at.elapsed());
        let mut peers = shared.peers.clone();
        for peer in &mut peers {
            peer.connected_for += age;
        }
        peers
    }

    /// Counts of what happened since the start, by name.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.shared).counters.clone()
    }

    /// Connects to a peer; once it has succeeded, the peer is dialled again whenever it is lost.
    ///
    /// # Errors
    /// When no connection came about.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the attempt going on.
    pub async fn dial(&self, address: Multiaddr) -> Result<(), DialError> {
        let ((reply, outcome), (taken, room)) = (oneshot::channel(), oneshot::channel());
        let command = Command::Dial(address.clone(), reply, taken);
        self.commands.send(command).await.map_err(|_| DialError::Closed)?;
        if !room.await.map_err(|_| DialError::Closed)? {
            return Err(DialError::TooMany { limit: super::limits::MAX_CONFIGURED_ADDRESSES });
        }
        let outcome = outcome.await.map_err(|_| DialError::Closed)?;
        outcome.map_err(|cause| DialError::Failed { address, cause })
    }

    /// Streams of other protocols over the same connections.
    #[must_use]
    pub fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// What each peer with this database has on disk, by its acks, and this node itself if it has the database open.
    pub async fn durable(&self, database: DatabaseId) -> Vec<(PeerId, VersionVector)> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Durable(database, reply)).await.is_err() {
            return Vec::new();
        }
        answer.await.unwrap_or_default()
    }

    /// The known peers of an open database, those that are away included, with what they have on disk as they last said.
    pub async fn holders(&self, database: DatabaseId) -> BTreeMap<PeerId, VersionVector> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Holders(database, reply)).await.is_err() {
            return BTreeMap::new();
        }
        answer.await.unwrap_or_default()
    }

    /// The first log revision that follows a snapshot on its way to a peer.
    pub async fn pinned(&self, database: DatabaseId) -> Option<u64> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Pinned(database, reply)).await.ok()?;
        answer.await.ok()?
    }

    /// Begins to compare a database with a peer's by ranges; `false` when the peer does not have it open.
    pub(crate) async fn compare(&self, database: DatabaseId, peer: PeerId) -> bool {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Compare(database, peer, reply)).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Replaces this node's replica by a peer's; resolves when that is done, or has failed.
    pub(crate) async fn repair(&self, database: DatabaseId, peer: PeerId, purpose: Purpose) -> Result<(), RepairFailure> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Repair(database, peer, purpose, reply);
        self.commands.send(command).await.map_err(|_| RepairFailure::NotConnected)?;
        answer.await.unwrap_or(Err(RepairFailure::NotConnected))
    }

    /// Whether a peer has the database open with this node now.
    pub(crate) async fn has_session(&self, database: DatabaseId, peer: PeerId) -> bool {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::HasSession(database, peer, reply)).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Where this node's replica differs from peers' replicas with the same blocks, as far as it is known.
    pub async fn comparisons(&self, database: DatabaseId) -> Vec<Comparison> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Comparisons(database, reply)).await.is_err() {
            return Vec::new();
        }
        answer.await.unwrap_or_default()
    }

    /// These databases were dropped on this node: peers that offer one are told so.
    pub(crate) async fn dropped(&self, databases: Vec<DatabaseId>) {
        // A network that has ended tells nobody anything.
        let _ = self.commands.send(Command::Dropped(databases)).await;
    }

    /// Asks who has the block on disk, and again after each acknowledgement, until that is enough. `false` when the network
    /// has ended.
    pub(crate) async fn until_held(
        &self,
        database: DatabaseId,
        dot: Dot,
        enough: &mut (dyn FnMut(Vec<PeerId>) -> bool + Send),
    ) -> bool {
        self.until(|reply| Command::HeldBy(database, dot, reply), enough).await
    }

    /// Asks whether the peer has all of these blocks on disk, and again after each acknowledgement, until it has. `false`
    /// when the network has ended.
    pub(crate) async fn until_covered(&self, database: DatabaseId, peer: PeerId, vv: VersionVector) -> bool {
        let vv = Arc::new(vv);
        self.until(|reply| Command::Covers(database, peer, Arc::clone(&vv), reply), &mut |covers| covers).await
    }

    async fn until<A>(&self, ask: impl Fn(oneshot::Sender<A>) -> Command, enough: &mut (dyn FnMut(A) -> bool + Send)) -> bool {
        let mut acks = lock(&self.shared).acks.subscribe();
        loop {
            // Before the question, so that no acknowledgement slips in between.
            acks.mark_unchanged();
            let (reply, answer) = oneshot::channel();
            if self.commands.send(ask(reply)).await.is_err() {
                return false;
            }
            let Ok(answer) = answer.await else { return false };
            if enough(answer) {
                return true;
            }
            tokio::select! {
                _ = acks.changed() => {}
                () = self.commands.closed() => return false,
            }
        }
    }

    /// Resolves when the network has ended.
    pub(crate) async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Says good-bye and ends the network. Returns once nothing of it runs any more.
    pub async fn close(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::Close(reply)).await.is_ok() {
            // An error says that the driver has ended already.
            let _ = done.await;
        }
        self.commands.closed().await;
    }
}
