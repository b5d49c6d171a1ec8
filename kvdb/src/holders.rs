//! Waiting until other nodes have something on disk.

use std::time::Duration;

use crdt::Dot;
use libp2p::PeerId;
use thiserror::Error;

use crate::database::Database;
use crate::engine::port::WriteError;

/// Why a wait for other nodes ended without what was waited for.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum HoldersError {
    /// Fewer nodes than asked for have said in time that they have it on disk. More may have it, or get it later.
    #[error("{dot} is known to be on the disks of {} of {wanted} nodes after {waited:?}", .holders.len())]
    TooFew {
        /// The block.
        dot: Dot,
        /// How many were asked for.
        wanted: usize,
        /// The nodes that have it on disk, this one included if it has.
        holders: Vec<PeerId>,
        /// How long.
        waited: Duration,
    },
    /// The peer has not said in time that it has everything on disk, or is not connected.
    #[error("{peer} is not known to have everything on disk after {waited:?}")]
    PeerBehind {
        /// The peer.
        peer: PeerId,
        /// How long.
        waited: Duration,
    },
    /// The node has no network, so nobody else will ever have it.
    #[error("this node has no network, so no other can have it")]
    NoNetwork,
    /// The database or the node was closed.
    #[error("the database is closed")]
    Closed,
    /// This node could not bring it to its own disk.
    #[error("it is not known to be on this node's disk: {0}")]
    Sync(WriteError),
}

impl Database {
    /// Waits until so many nodes, this one included, have the block on disk, and names them. A node counts while it is
    /// connected and has said so itself. What a node wrote with `buffered` is on its own disk only after its next sync, so
    /// the writer may be the last to count.
    ///
    /// This is no barrier of a fleet: it counts whoever has the database open and promises nothing about who keeps it.
    ///
    /// # Errors
    /// See [`HoldersError`]. The block stays what it is: here, and on its way to others.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn wait_for_holders(&self, dot: Dot, count: usize, timeout: Duration) -> Result<Vec<PeerId>, HoldersError> {
        let mut holders = Vec::new();
        let held = self.until_held(dot, count, &mut holders);
        match tokio::time::timeout(timeout, held).await {
            Ok(held) => held.map(|()| holders),
            Err(_) => Err(HoldersError::TooFew { dot, wanted: count, holders, waited: timeout }),
        }
    }

    /// Keeps in `holders` who is known to have it on disk.
    async fn until_held(&self, dot: Dot, count: usize, holders: &mut Vec<PeerId>) -> Result<(), HoldersError> {
        // The caller's time-out ends this one too.
        self.wait_for(dot, Duration::MAX).await.map_err(|_| HoldersError::Closed)?;
        self.sync().await.map_err(|error| match error {
            WriteError::Closed => HoldersError::Closed,
            error => HoldersError::Sync(error),
        })?;
        holders.push(self.node().peer_id());
        if count <= 1 {
            return Ok(());
        }
        let net = self.node().net().ok_or(HoldersError::NoNetwork)?;
        let mut enough = |peers: Vec<PeerId>| {
            holders.truncate(1);
            holders.extend(peers);
            holders.len() >= count
        };
        if net.until_held(self.id(), dot, &mut enough).await { Ok(()) } else { Err(HoldersError::Closed) }
    }

    /// Waits until a connected peer has said that everything merged here at the time of the call is on its disk.
    ///
    /// # Errors
    /// See [`HoldersError`].
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn wait_for_peer(&self, peer: PeerId, timeout: Duration) -> Result<(), HoldersError> {
        if self.is_closed() {
            return Err(HoldersError::Closed);
        }
        let net = self.node().net().ok_or(HoldersError::NoNetwork)?;
        match tokio::time::timeout(timeout, net.until_covered(self.id(), peer, self.shared().vv())).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(HoldersError::Closed),
            Err(_) => Err(HoldersError::PeerBehind { peer, waited: timeout }),
        }
    }
}
