//! When two replicas with the same blocks differ: at which keys.

use std::time::Duration;

use libp2p::PeerId;
use thiserror::Error;

use crate::database::Database;
use crate::net::sync::{CompareState, Comparison};

/// How often a comparison is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Why a replica cannot be compared with a peer's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The node has no network.
    #[error("this node has no network, so there is nobody to compare with")]
    NoNetwork,
    /// The peer is not connected, or does not have this database, of this generation, open.
    #[error("{peer} is not connected, or does not have this database, of this generation, open")]
    NotConnected {
        /// The peer.
        peer: PeerId,
    },
    /// The database or the node was closed.
    #[error("the database is closed")]
    Closed,
}

impl Database {
    /// Compares all rows with those of a connected peer and tells at which keys they differ. Reads both replicas, in pieces;
    /// an answer counts only if both had merged the same blocks at that moment, so with many writes it may end as
    /// [`CompareState::Moving`]. It compares the checks that are kept beside the values; whether a value is what its check
    /// says, [`Database::verify`] tells.
    ///
    /// # Errors
    /// See [`CompareError`]: when the peer is lost meanwhile, too.
    ///
    /// # Cancel safety
    /// When the future is dropped, the comparison goes on, and [`Database::disagreements`] tells of it.
    pub async fn compare(&self, peer: PeerId) -> Result<Comparison, CompareError> {
        let net = self.node().net().ok_or(CompareError::NoNetwork)?;
        let lost = CompareError::NotConnected { peer };
        if !net.compare(self.id(), peer).await {
            return Err(lost);
        }
        loop {
            if self.shared().is_closed() {
                return Err(CompareError::Closed);
            }
            let so_far = net.comparisons(self.id()).await.into_iter().find(|comparison| comparison.peer == peer);
            let connected = net.has_session(self.id(), peer).await;
            match so_far {
                Some(comparison) if comparison.state != CompareState::Running => return Ok(comparison),
                Some(_) if connected => tokio::time::sleep(LOOK).await,
                _ => return Err(lost),
            }
        }
    }

    /// Where this replica and peers' replicas with the same blocks were found to differ since they were opened, and what
    /// [`Database::compare`] has found. Empty without a network.
    pub async fn disagreements(&self) -> Vec<Comparison> {
        match self.node().net() {
            Some(net) => net.comparisons(self.id()).await,
            None => Vec::new(),
        }
    }
}
