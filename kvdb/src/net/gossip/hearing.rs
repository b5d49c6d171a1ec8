//! Who should be heard of, and who has been silent for too long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crdt::DatabaseId;
use libp2p::PeerId;

use crate::net::Moment;
use crate::net::limits::{DEAF_AFTER_INTERVALS, MAX_OPEN_DATABASES};

/// Longest patience, in doublings: a peer that stays silent after new connections is asked less and less.
const MAX_DOUBLINGS: u32 = 6;

/// The co-subscribers among the connected peers.
#[derive(Debug)]
pub(super) struct Hearing {
    patience: Duration,
    connected: BTreeSet<PeerId>,
    /// Until when each must be heard of in each of its databases.
    until: BTreeMap<PeerId, BTreeMap<DatabaseId, Moment>>,
    by_time: BTreeSet<(Moment, PeerId, DatabaseId)>,
    /// How often a peer was found silent. A word from it changes nothing: it may only have a longer interval than this
    /// node, and must not lose its connection in each of them.
    silent: BTreeMap<PeerId, u32>,
}

impl Hearing {
    pub(super) fn new(interval: Duration) -> Self {
        // An interval is up to 30 % longer by its jitter.
        let patience = interval * DEAF_AFTER_INTERVALS * 13 / 10;
        Self { patience, connected: BTreeSet::new(), until: BTreeMap::new(), by_time: BTreeSet::new(), silent: BTreeMap::new() }
    }

    pub(super) fn connected(&mut self, peer: PeerId) {
        self.connected.insert(peer);
    }

    pub(super) fn disconnected(&mut self, peer: &PeerId) {
        self.connected.remove(peer);
        for (database, at) in self.until.remove(peer).unwrap_or_default() {
            self.by_time.remove(&(at, *peer, database));
        }
        // Whoever stays away is forgotten; the count bounds itself by the connected peers and those just lost.
        if self.silent.len() > self.connected.len() + 64 {
            self.silent.retain(|peer, _| self.connected.contains(peer));
        }
    }

    pub(super) fn is_connected(&self, peer: &PeerId) -> bool {
        self.connected.contains(peer)
    }

    pub(super) fn subscribed(&mut self, peer: PeerId, database: DatabaseId, now: Moment) {
        let databases = self.until.entry(peer).or_default();
        if databases.len() < MAX_OPEN_DATABASES || databases.contains_key(&database) {
            self.set(peer, database, now);
        }
    }

    pub(super) fn unsubscribed(&mut self, peer: &PeerId, database: &DatabaseId) {
        let at = self.until.get_mut(peer).and_then(|databases| databases.remove(database));
        if let Some(at) = at {
            self.by_time.remove(&(at, *peer, *database));
        }
    }

    pub(super) fn heard(&mut self, peer: PeerId, database: DatabaseId, now: Moment) {
        if self.until.get(&peer).is_some_and(|databases| databases.contains_key(&database)) {
            self.set(peer, database, now);
        }
    }

    pub(super) fn subscribers(&self, database: DatabaseId) -> impl Iterator<Item = PeerId> + '_ {
        self.until.iter().filter(move |(_, databases)| databases.contains_key(&database)).map(|(peer, _)| *peer)
    }

    pub(super) fn wake(&self) -> Option<Moment> {
        self.by_time.first().map(|(at, _, _)| *at)
    }

    /// Peers that have been silent too long, each with one of its databases; not the same again soon.
    pub(super) fn deaf(&mut self, now: Moment) -> Vec<(PeerId, DatabaseId)> {
        let mut deaf = BTreeMap::new();
        while let Some((_, peer, database)) = self.by_time.first().copied().filter(|(at, _, _)| *at <= now) {
            if deaf.insert(peer, database).is_none() {
                *self.silent.entry(peer).or_default() += 1;
            }
            self.set(peer, database, now);
        }
        deaf.into_iter().collect()
    }

    fn set(&mut self, peer: PeerId, database: DatabaseId, now: Moment) {
        let doublings = self.silent.get(&peer).copied().unwrap_or(0).min(MAX_DOUBLINGS);
        let until = now + self.patience * (1 << doublings);
        if let Some(before) = self.until.entry(peer).or_default().insert(database, until) {
            self.by_time.remove(&(before, peer, database));
        }
        self.by_time.insert((until, peer, database));
    }
}
