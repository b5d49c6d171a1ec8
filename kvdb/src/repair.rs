//! When two replicas with the same blocks differ, or one is damaged: at which keys, and replacing it by a peer's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crdt::Key;
use crdt::snapshot::Purpose;
use libp2p::PeerId;
use thiserror::Error;

use crate::database::Database;
use crate::engine::port::WriteError;
use crate::error::{ReadError, read_error};
use crate::limits::REPAIR_COVER_WAIT;
use crate::net::NetHandle;
use crate::net::sync::{CompareState, Comparison, RepairFailure};
use crate::store::{SalvageError, SavedSibling, Unreadable};
use crate::verify::{Damage, Verified};

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

/// Takes the values that a repair is about to give up, for a file or wherever they are to be kept.
pub trait Salvage: Send + 'static {
    /// The values at one key, the winner first.
    ///
    /// # Errors
    /// When they cannot be kept; the repair is then given up before anything has changed.
    fn save(&mut self, key: &Key, siblings: &[SavedSibling]) -> std::io::Result<()>;

    /// Nothing more comes. What was handed in must be safe when this returns.
    ///
    /// # Errors
    /// As [`Salvage::save`].
    fn finish(&mut self) -> std::io::Result<()>;
}

/// What may be lost by a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RepairLoss {
    /// Nothing that only this replica has merged: the repair waits until the peer has it, and is refused if it does not come to
    /// that.
    #[default]
    Refuse,
    /// Blocks that the peer lacks are given up. Their values are saved, and other nodes that have them bring them again.
    Accept,
}

/// What a repair has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// What was wrong with the replica by itself.
    pub verified: Verified,
    /// Where it differed from the peer's; `None` if they could not be compared.
    pub compared: Option<Comparison>,
    /// Keys whose values were saved: those that differ or are damaged, or all, if it is not known which ones are.
    pub saved: u64,
    /// What could not be saved.
    pub unreadable: Unreadable,
}

/// Why a replica was not replaced by a peer's. Unless the text says so, it is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The replicas cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// The transfer or the switch did not come about.
    #[error(transparent)]
    Failed(#[from] RepairFailure),
    /// The values that would go could not be saved.
    #[error("the values here could not be saved: {0}")]
    Save(std::io::Error),
    /// The replica cannot be read at all.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The engine does not take part.
    #[error(transparent)]
    Engine(#[from] WriteError),
    /// Another repair of this database is under way.
    #[error("another repair of this database is under way")]
    UnderWay,
}

impl Database {
    /// Replaces this replica by that of a connected peer, because they disagree or this one is damaged: version vector, heads,
    /// rows and outcomes of requests become the peer's, and no history is kept. Before that the values at all keys that differ, or
    /// whose values are damaged, are handed to `salvage`. The peer's replica comes as a snapshot and takes this one's place in one
    /// synced step; until then reads go on from the old one, and writes are refused as [`WriteError::Repairing`]. Watchers are
    /// told `Reset`. Whether the peer's replica is the right one of the two, the caller must know.
    ///
    /// # Errors
    /// See [`RepairError`].
    ///
    /// # Durability
    /// On disk when this returns. A process that ends before leaves the old replica, or, once all has come, goes on with the
    /// replacement when the database is opened.
    ///
    /// # Cancel safety
    /// Once polled it goes on when the future is dropped.
    pub async fn repair(&self, from: PeerId, loss: RepairLoss, salvage: Box<dyn Salvage>) -> Result<Repaired, RepairError> {
        let database = self.clone();
        let task = tokio::spawn(async move { database.repair_now(from, loss, salvage).await });
        task.await.unwrap_or_else(|error| Err(ReadError::Store { cause: error.to_string() }.into()))
    }

    async fn repair_now(&self, from: PeerId, loss: RepairLoss, salvage: Box<dyn Salvage>) -> Result<Repaired, RepairError> {
        // No compaction either: both change what is kept.
        let shared = Arc::clone(self.shared());
        let _one = shared.compacting.try_lock().map_err(|_| RepairError::UnderWay)?;
        let net = self.node().net().ok_or(CompareError::NoNetwork)?.clone();
        if !net.has_session(self.id(), from).await {
            return Err(CompareError::NotConnected { peer: from }.into());
        }
        let verified = self.verify().await?;
        let compared = self.compare(from).await.ok();
        let engine = self.shard().engine.clone();
        engine.freeze(self.id(), true).await?;
        let replaced = self.replace(&net, from, loss, salvage, (&verified, compared.as_ref())).await;
        if replaced.is_err() {
            // Whatever is staged is of no use; if this fails, the store is poisoned or the database closed.
            drop(engine.stage(self.id(), crdt::SnapshotWrite::Discard).await);
        }
        drop(engine.freeze(self.id(), false).await);
        let (saved, unreadable) = replaced?;
        // Both begin anew with each other; whoever asks next finds the peer there again, unless it was lost meanwhile.
        let met = async {
            while !net.has_session(self.id(), from).await {
                tokio::time::sleep(LOOK).await;
            }
        };
        drop(tokio::time::timeout(REPAIR_COVER_WAIT, met).await);
        tracing::warn!(database = %self.name(), peer = %from, saved, "the replica was replaced by the peer's");
        Ok(Repaired { verified, compared, saved, unreadable })
    }

    /// With nothing merged meanwhile: waits for the peer, saves, and replaces.
    async fn replace(
        &self,
        net: &NetHandle,
        from: PeerId,
        loss: RepairLoss,
        mut salvage: Box<dyn Salvage>,
        (verified, compared): (&Verified, Option<&Comparison>),
    ) -> Result<(u64, Unreadable), RepairError> {
        let purpose = match loss {
            RepairLoss::Accept => Purpose::ReplaceAndLose,
            RepairLoss::Refuse => {
                let covered = net.until_covered(self.id(), from, self.shared().vv());
                // If it does not come to that, the join finds what the peer lacks.
                drop(tokio::time::timeout(REPAIR_COVER_WAIT, covered).await);
                Purpose::Replace
            }
        };
        let keys = differing(verified, compared);
        let (store, id) = (self.read(|store| Ok(store.clone()))?, self.id());
        let saved = tokio::task::spawn_blocking(move || {
            let saved = store.salvage(&id, keys.as_ref(), &mut |key, siblings| salvage.save(key, siblings))?;
            salvage.finish().map_err(SalvageError::Save)?;
            Ok(saved)
        });
        let saved = saved.await.map_err(|error| ReadError::Store { cause: error.to_string() })?;
        let saved = saved.map_err(|error| match error {
            SalvageError::Store(error) => RepairError::Read(read_error(&error)),
            SalvageError::Save(error) => RepairError::Save(error),
        })?;
        net.repair(self.id(), from, purpose).await?;
        Ok(saved)
    }
}

/// The keys whose values go by a repair; `None` if it is not known, and all must be saved.
fn differing(verified: &Verified, compared: Option<&Comparison>) -> Option<BTreeSet<Key>> {
    let compared = compared.filter(|compared| compared.state == CompareState::Done && compared.more == 0)?;
    let mut keys: BTreeSet<Key> = compared.keys.keys().cloned().collect();
    if verified.more > 0 {
        return None;
    }
    for damage in &verified.damages {
        match damage {
            Damage::Value { key, .. } | Damage::NoValue { key, .. } | Damage::NotMerged { key, .. } => {
                keys.insert(key.clone());
            }
            Damage::Unreadable { .. } => return None,
            _ => {}
        }
    }
    Some(keys)
}
