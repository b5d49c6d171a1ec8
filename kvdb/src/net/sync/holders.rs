//! Who has what on disk, beyond the end of a stream: history that a peer which is away will want is not to be dropped.

use std::collections::BTreeMap;

use crdt::{DatabaseId, VersionVector};
use libp2p::PeerId;

use super::{Frame, Local, Moment, Output, SyncMachine};
use crate::net::limits::{MAX_DROPPED_DATABASES, MAX_KNOWN_HOLDERS};

/// The last word of peers whose sessions have ended, per database.
#[derive(Debug, Default)]
pub(super) struct Gone(BTreeMap<DatabaseId, BTreeMap<PeerId, (Moment, VersionVector)>>);

impl Gone {
    /// Remembers what a peer had on disk, as far as it is of use here. Of too many the one longest gone is forgotten.
    pub(super) fn remember(&mut self, database: DatabaseId, peer: PeerId, durable: &VersionVector, local: &Local, now: Moment) {
        let known = durable.iter().map(|(replica, seq)| (replica, seq.min(local.vv().get(&replica)))).collect();
        let peers = self.0.entry(database).or_default();
        peers.insert(peer, (now, known));
        if peers.len() > MAX_KNOWN_HOLDERS
            && let Some(oldest) = peers.iter().min_by_key(|(_, (at, _))| *at).map(|(peer, _)| *peer)
        {
            peers.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, database: &DatabaseId, peer: &PeerId) {
        if let Some(peers) = self.0.get_mut(database) {
            peers.remove(peer);
        }
    }

    pub(super) fn forget_all(&mut self, database: &DatabaseId) {
        self.0.remove(database);
    }
}

impl SyncMachine {
    /// These databases were dropped on this node: peers that were told of one, or that offer one, are told so.
    pub fn drop_databases(&mut self, databases: &[DatabaseId]) -> Vec<Output> {
        for database in databases.iter().take(MAX_DROPPED_DATABASES) {
            while self.dropped.len() >= MAX_DROPPED_DATABASES {
                self.dropped.pop_first();
            }
            self.dropped.insert(*database);
            let told = self.peers.iter().filter(|(_, peer)| peer.ever_offered.contains(database));
            let told: Vec<PeerId> = told.map(|(id, _)| *id).collect();
            for peer in told {
                self.send(peer, Frame::Dropped(*database));
            }
        }
        std::mem::take(&mut self.out)
    }

    /// The known peers of an open database with what they have on disk: those that have it open now, and up to
    /// [`MAX_KNOWN_HOLDERS`] that had it open with this node since this one opened it, as they last said. One that comes
    /// back counts with its new word once replicas have been compared.
    #[must_use]
    pub fn holders(&self, database: &DatabaseId) -> BTreeMap<PeerId, VersionVector> {
        let gone = self.gone.0.get(database);
        let mut holders: BTreeMap<PeerId, VersionVector> =
            gone.into_iter().flatten().map(|(peer, (_, durable))| (*peer, durable.clone())).collect();
        for id in self.ranks.get(database).into_iter().flat_map(BTreeMap::values) {
            let Some(session) = self.sessions.get(id) else { continue };
            if session.known || !holders.contains_key(&session.peer) {
                holders.insert(session.peer, session.durable.clone());
            }
        }
        holders
    }
}
