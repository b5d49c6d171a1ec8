//! Changes of the registry: what comes in, and what callers at this node ask for.

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Dot, Key, VersionVector};
use kvdb::PeerId;
use thiserror::Error;

use super::{Controller, Output};
use crate::Moment;
use crate::barrier::Durability;
use crate::limits::MAX_HOLDERS;
use crate::registry::{Claim, Settings, Touched, claim_key, database_key, dropped_key, encode_number, forgotten_key};

/// What a change of the registry has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordDone {
    /// The database is there, under this id.
    Created(DatabaseId),
    /// It is dropped, on disk with more than half of the members.
    Dropped(DatabaseId),
    /// The change is on disk with more than half of the members.
    Changed,
}

/// Why a change of the registry did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The name is taken; nothing was written.
    #[error("a database of this name is there; nothing was written")]
    Exists,
    /// There is no such database; nothing was written.
    #[error("there is no database of this name; nothing was written")]
    NotThere,
    /// A number of holders that no database has; nothing was written.
    #[error("a database has 1 to {MAX_HOLDERS} holders, not {holders}; nothing was written")]
    Holders {
        /// What was asked for.
        holders: u8,
    },
    /// This node has not compared its registry with the others yet, or is cut off from them; nothing was written.
    #[error("this node does not know the fleet well enough yet; nothing was written")]
    NotReady,
    /// The registry could not be written; the change may exist.
    #[error("the registry could not be written; the change may exist")]
    Unknown,
    /// It is written here and will spread, but was not with more than half of the members at the deadline.
    #[error("written here, but not on disk with more than half of the members at the deadline")]
    Unconfirmed,
}

/// A change on its way.
#[derive(Debug)]
pub(super) struct Change {
    token: u64,
    done: RecordDone,
    deadline: Moment,
    /// The block that has it, once it is written here.
    dot: Option<VersionVector>,
}

impl Controller {
    pub(super) fn entries(&mut self, entries: &[(Key, Option<Bytes>)], now: Moment) {
        for (key, value) in entries {
            match self.registry.apply(key, value.as_ref()) {
                Touched::Databases(databases) => {
                    for database in databases {
                        self.touched(database);
                    }
                }
                Touched::Store(peer) => self.store_of(peer),
                Touched::Forgotten(peer) => {
                    self.membership.forget(&peer, now);
                    self.want_all();
                }
                Touched::Refused => {}
            }
        }
    }

    /// A member that speaks of another store has lost what it acknowledged of the registry on the one before.
    fn store_of(&mut self, peer: PeerId) {
        let store = self.registry.store(&peer).map(|record| record.store);
        let before = self.ack_stores.get(&(self.registry_id, peer)).copied();
        if peer != self.me && before.is_some() && before != store {
            self.barrier.forget(&self.registry_id, &peer);
        }
        self.ack_stores.extend(store.map(|store| ((self.registry_id, peer), store)));
    }

    fn touched(&mut self, database: DatabaseId) {
        self.all.insert(database);
        self.reconcile.want(database);
        self.note_holders(&database);
        // A member that speaks of another store, or whose claim went, does not have what it acknowledged before.
        let claims = self.registry.claims(&database);
        let every = self.ack_stores.iter().filter(|((of, _), _)| *of == database);
        let moved =
            every.filter(|((_, peer), store)| claims.get(peer).is_none_or(|claim| claim.store != **store || !claim.was_ready));
        let moved: Vec<PeerId> = moved.map(|((_, peer), _)| *peer).collect();
        for peer in moved.into_iter().filter(|peer| *peer != self.me) {
            self.barrier.forget(&database, &peer);
            self.ack_stores.remove(&(database, peer));
            self.falls.remove(&(database, peer));
        }
    }

    /// A lower number of holders is acted on only once more than half of the members know of it: whoever then compares the
    /// registry knows how few may have a confirmed write.
    fn note_holders(&mut self, database: &DatabaseId) {
        let Some(wanted) = self.registry.live(database).map(|live| live.settings.holders) else { return };
        let mark = self.own(&self.registry_id);
        let (current, lower) = self.holders.entry(*database).or_insert((wanted, None));
        if wanted >= *current {
            (*current, *lower) = (wanted, None);
        } else if lower.as_ref().is_none_or(|(to, _)| *to != wanted) {
            *lower = Some((wanted, mark));
        }
    }

    pub(super) fn lower_holders(&mut self, database: &DatabaseId) {
        let due = self.holders.get(database).and_then(|(_, lower)| lower.as_ref());
        if let Some((to, _)) = due.filter(|(_, mark)| self.is_durable(mark)) {
            self.holders.insert(*database, (*to, None));
        }
    }

    /// The number of holders that this node acts on.
    #[must_use]
    pub fn holders_of(&self, database: &DatabaseId) -> u8 {
        self.holders.get(database).map_or(crate::limits::DEFAULT_HOLDERS, |(holders, _)| *holders)
    }

    pub(super) fn write_claim(&mut self, database: DatabaseId, claim: Option<Claim>) {
        if self.writing.get(&database).is_some_and(|(_, writing)| *writing == claim) {
            return;
        }
        let Some(key) = claim_key(&database, &self.me) else { return };
        let token = self.id();
        self.writing.insert(database, (token, claim));
        self.marks.remove(&database);
        self.out.push(Output::WriteRegistry(token, vec![(key, claim.map(|claim| claim.encode()))]));
    }

    /// A write of the registry is on disk here.
    pub(super) fn written(&mut self, token: u64, dot: Option<Dot>, now: Moment) {
        let mark: Option<VersionVector> = dot.map(|dot| [(dot.replica, dot.seq)].into_iter().collect());
        let claim = self.writing.iter().find(|(_, (writing, _))| *writing == token).map(|(database, _)| *database);
        if let Some(database) = claim {
            self.writing.remove(&database);
            self.marks.extend(mark.clone().map(|mark| (database, mark)));
            self.reconcile.want(database);
        }
        match (self.changes.get_mut(&token), mark) {
            (Some(change), Some(mark)) => change.dot = Some(mark),
            (Some(_), None) => self.end_change(token, Err(RecordError::Unknown)),
            (None, _) => {}
        }
        self.changes_on(now);
    }

    /// Ends changes that are durable or late.
    pub(super) fn changes_on(&mut self, now: Moment) {
        let durable = |change: &Change| change.dot.as_ref().is_some_and(|mark| self.is_durable(mark));
        let done: Vec<u64> = self.changes.iter().filter(|(_, change)| durable(change)).map(|(token, _)| *token).collect();
        for token in done {
            if let Some(done) = self.changes.get(&token).map(|change| change.done) {
                self.end_change(token, Ok(done));
            }
        }
        let late: Vec<u64> = self.changes.iter().filter(|(_, change)| now >= change.deadline).map(|(token, _)| *token).collect();
        for token in late {
            self.end_change(token, Err(RecordError::Unconfirmed));
        }
    }

    fn end_change(&mut self, number: u64, outcome: Result<RecordDone, RecordError>) {
        if let Some(change) = self.changes.remove(&number) {
            self.out.push(Output::Record(change.token, outcome));
        }
    }

    fn change(&mut self, token: u64, done: RecordDone, deadline: Moment, entry: Option<(Key, Bytes)>) {
        let Some((key, value)) = entry else { return self.out.push(Output::Record(token, Err(RecordError::NotThere))) };
        let number = self.id();
        self.changes.insert(number, Change { token, done, deadline, dot: None });
        self.out.push(Output::WriteRegistry(number, vec![(key, Some(value))]));
    }

    fn refuse(&mut self, token: u64, error: RecordError) {
        self.out.push(Output::Record(token, Err(error)));
    }

    pub(super) fn create(&mut self, token: u64, name: &DatabaseName, holders: u8, durability: Durability, deadline: Moment) {
        if !(1..=MAX_HOLDERS).contains(&holders) || durability.needed() > holders {
            return self.refuse(token, RecordError::Holders { holders });
        }
        if !self.store_checked {
            return self.refuse(token, RecordError::NotReady);
        }
        if self.registry.current(name).is_some() {
            return self.refuse(token, RecordError::Exists);
        }
        let generation = self.registry.dropped_below(name);
        let settings = Settings { holders, least: holders, durability, creator: self.me };
        let entry = database_key(name, generation).map(|key| (key, settings.encode()));
        self.change(token, RecordDone::Created(DatabaseId::of(name, generation)), deadline, entry);
    }

    pub(super) fn drop_database(&mut self, token: u64, name: &DatabaseName, deadline: Moment) {
        let Some((id, live)) = self.registry.current(name) else { return self.refuse(token, RecordError::NotThere) };
        let below = live.generation + 1;
        let entry = dropped_key(name, &self.me).map(|key| (key, encode_number(below)));
        self.change(token, RecordDone::Dropped(id), deadline, entry);
    }

    pub(super) fn set_holders(&mut self, token: u64, name: &DatabaseName, holders: u8, deadline: Moment) {
        if !(1..=MAX_HOLDERS).contains(&holders) {
            return self.refuse(token, RecordError::Holders { holders });
        }
        let Some((id, live)) = self.registry.current(name) else { return self.refuse(token, RecordError::NotThere) };
        // With fewer holders, what a member lost with its disk could be all there was: not while one recovers from that, or is away.
        let mut claims = self.registry.claims(&id).iter();
        let alive = self.membership.live();
        if holders < live.settings.holders
            && claims.any(|(peer, claim)| !alive.contains(peer) || claim.ever_ready != claim.was_ready)
        {
            return self.refuse(token, RecordError::NotReady);
        }
        // Who asked for all holders goes on asking for all.
        let durability = match live.settings.durability {
            Durability::Require(k) if k == live.settings.holders => Durability::Require(holders),
            Durability::Prefer(k) if k == live.settings.holders => Durability::Prefer(holders),
            other => other,
        };
        let least = live.settings.least.min(holders);
        let settings = Settings { holders, least, durability, creator: live.settings.creator };
        let entry = database_key(name, live.generation).map(|key| (key, settings.encode()));
        self.change(token, RecordDone::Changed, deadline, entry);
    }

    pub(super) fn forget(&mut self, token: u64, peer: PeerId, deadline: Moment) {
        if !self.membership.is_member(&peer) || peer == self.me {
            return self.refuse(token, RecordError::NotThere);
        }
        let entry = forgotten_key(&peer).map(|key| (key, encode_number(0)));
        self.change(token, RecordDone::Changed, deadline, entry);
    }

    pub(super) fn destroyed(&mut self, database: DatabaseId) {
        if let Some(holding) = self.holdings.get_mut(&database) {
            holding.destroyed();
        }
        self.barrier.forget(&database, &self.me);
        self.frozen.remove(&database);
        self.reconcile.want(database);
    }
}
