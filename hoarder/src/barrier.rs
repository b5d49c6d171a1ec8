//! The wait between the local commit and the confirmation, until k holders have the write on disk.
//!
//! Acknowledgements are version vectors and so cumulative: writes are pipelined, and one acknowledgement releases all that it
//! covers. A holder that hangs beside one that does not delays nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crdt::{DatabaseId, Dot, ReplicaId, VersionVector};
use kvdb::PeerId;
use thiserror::Error;

use crate::limits::{MAX_HOLDERS, MAX_WAITING_WRITES};
use crate::{Epoch, Moment};

/// When a write counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Once so many holders have it on disk; else it is reported as unconfirmed.
    Require(u8),
    /// Once so many holders have it on disk, or at the deadline.
    Prefer(u8),
    /// Once it is on disk here.
    Local,
}

impl Durability {
    pub(crate) fn numbers(self) -> (u64, u64) {
        match self {
            Self::Require(k) => (0, u64::from(k)),
            Self::Prefer(k) => (1, u64::from(k)),
            Self::Local => (2, 0),
        }
    }

    pub(crate) fn from_numbers(mode: u64, k: u64) -> Option<Self> {
        let k = u8::try_from(k).ok()?;
        match mode {
            0 | 1 if !(1..=MAX_HOLDERS).contains(&k) => None,
            0 => Some(Self::Require(k)),
            1 => Some(Self::Prefer(k)),
            2 if k == 0 => Some(Self::Local),
            _ => None,
        }
    }

    /// How many holders it waits for.
    #[must_use]
    pub fn needed(self) -> u8 {
        match self {
            Self::Require(k) | Self::Prefer(k) => k,
            Self::Local => 1,
        }
    }
}

/// Why a write is not confirmed. It is committed here and will be replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Error)]
#[non_exhaustive]
pub enum UnconfirmedReason {
    /// Too few holders had it on disk at the deadline.
    #[error("too few holders had it on disk at the deadline")]
    Deadline,
    /// The database was dropped meanwhile.
    #[error("the database was dropped meanwhile")]
    Dropped,
    /// The holders do not agree on who decides conditional writes.
    #[error("the holders do not agree on who decides conditional writes")]
    Views,
}

/// What a write has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The write.
    pub dot: Dot,
    /// The holders that have it on disk, as far as is known here.
    pub holders: Vec<PeerId>,
    /// `None` if it is confirmed, or its durability does not ask for that.
    pub unconfirmed: Option<UnconfirmedReason>,
}

/// A write that is refused before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// Too few holders are ready, and none is joining.
    #[error("{ready} holders are ready, the write asks for {needed}; nothing was written")]
    NotEnoughHolders {
        /// Ready holders, this one included.
        ready: usize,
        /// What was asked for.
        needed: u8,
    },
    /// More than the database has holders.
    #[error("the write asks for {needed} holders, the database has {holders}; nothing was written")]
    MoreThanHolders {
        /// What was asked for.
        needed: u8,
        /// What the database has.
        holders: u8,
    },
    /// Too many writes wait already.
    #[error("{MAX_WAITING_WRITES} writes wait for their confirmation; nothing was written")]
    TooManyWaiting,
}

/// The agreement that a conditional write needs besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The question's number.
    pub attempt: u64,
    /// The view under which it was decided.
    pub epoch: Epoch,
    /// Who decided.
    pub decider: PeerId,
    agreed: BTreeSet<PeerId>,
    /// Somebody sees it otherwise.
    split: bool,
}

impl Agreement {
    /// Nobody has agreed yet.
    #[must_use]
    pub fn new(attempt: u64, epoch: Epoch, decider: PeerId) -> Self {
        Self { attempt, epoch, decider, agreed: BTreeSet::new(), split: false }
    }
}

#[derive(Debug)]
struct Wait {
    durability: Durability,
    deadline: Moment,
    agreement: Option<Agreement>,
}

/// A waiting write: its dot in the order of its writer, and the caller's number.
type Place = (ReplicaId, u64, u64);

#[derive(Debug, Default)]
struct Acks {
    durable: BTreeMap<PeerId, VersionVector>,
    waits: BTreeMap<Place, Wait>,
}

/// All writes of one node that wait.
#[derive(Debug)]
pub struct Barrier {
    me: PeerId,
    databases: BTreeMap<DatabaseId, Acks>,
    deadlines: BTreeSet<(Moment, DatabaseId, Place)>,
}

/// Whether a write may be made at all.
///
/// # Errors
/// When it could not be confirmed.
pub fn admit(durability: Durability, holders: u8, ready: usize, joining: usize, waiting: usize) -> Result<(), Refused> {
    let needed = durability.needed();
    if needed > holders {
        return Err(Refused::MoreThanHolders { needed, holders });
    }
    if waiting >= MAX_WAITING_WRITES {
        return Err(Refused::TooManyWaiting);
    }
    match durability {
        Durability::Require(k) if ready < usize::from(k) && joining == 0 => Err(Refused::NotEnoughHolders { ready, needed: k }),
        _ => Ok(()),
    }
}

impl Barrier {
    /// Nothing waits.
    #[must_use]
    pub fn new(me: PeerId) -> Self {
        Self { me, databases: BTreeMap::new(), deadlines: BTreeSet::new() }
    }

    /// A member, or this node itself, has this on disk.
    pub fn ack(&mut self, database: DatabaseId, from: PeerId, durable: &VersionVector) {
        let known = self.databases.entry(database).or_default().durable.entry(from).or_default();
        for (replica, seq) in durable.iter() {
            known.raise(replica, seq);
        }
    }

    /// A member's store is another one: what it acknowledged is void.
    pub fn forget(&mut self, database: &DatabaseId, peer: &PeerId) {
        if let Some(acks) = self.databases.get_mut(database) {
            acks.durable.remove(peer);
        }
    }

    /// What a member has acknowledged.
    #[must_use]
    pub fn acked(&self, database: &DatabaseId, peer: &PeerId) -> Option<&VersionVector> {
        self.databases.get(database)?.durable.get(peer)
    }

    /// How many writes of a database wait.
    #[must_use]
    pub fn waiting(&self, database: &DatabaseId) -> usize {
        self.databases.get(database).map_or(0, |acks| acks.waits.len())
    }

    /// A write was committed here and waits; `token` is the caller's.
    pub fn wait(
        &mut self,
        database: DatabaseId,
        dot: Dot,
        token: u64,
        durability: Durability,
        deadline: Moment,
        agreement: Option<Agreement>,
    ) {
        let place = (dot.replica, dot.seq, token);
        self.deadlines.insert((deadline, database, place));
        self.databases.entry(database).or_default().waits.insert(place, Wait { durability, deadline, agreement });
    }

    /// A holder covers a conditional write, and says how it sees the fleet.
    pub fn agreed(&mut self, database: &DatabaseId, from: PeerId, attempt: u64, epoch: Epoch, decider: Option<PeerId>) {
        let waits = self.databases.get_mut(database).into_iter().flat_map(|acks| acks.waits.values_mut());
        for agreement in waits.filter_map(|wait| wait.agreement.as_mut()).filter(|agreement| agreement.attempt == attempt) {
            if (agreement.epoch, Some(agreement.decider)) == (epoch, decider) {
                agreement.agreed.insert(from);
            } else {
                agreement.split = true;
            }
        }
    }

    /// Releases what the acknowledgements cover. `holders` are the ready holders as this node sees the registry, itself among
    /// them only while it is one.
    pub fn settle(&mut self, database: &DatabaseId, holders: &BTreeSet<PeerId>) -> Vec<(u64, Outcome)> {
        let Some(acks) = self.databases.get_mut(database) else { return Vec::new() };
        let me = self.me;
        let mine = acks.durable.get(&me).cloned().unwrap_or_default();
        let mut released = Vec::new();
        let replicas: BTreeSet<ReplicaId> = acks.waits.keys().map(|(replica, _, _)| *replica).collect();
        for replica in replicas {
            // What is not on disk here is not looked at; the waits are in the order of their writer.
            let reach = (replica, mine.get(&replica), u64::MAX);
            for (place, wait) in acks.waits.range((replica, 0, 0)..=reach) {
                let dot = Dot { replica, seq: place.1 };
                let have: Vec<PeerId> = acks
                    .durable
                    .iter()
                    .filter(|(peer, vv)| holders.contains(peer) && vv.covers(&dot))
                    .map(|(peer, _)| *peer)
                    .collect();
                let count = match &wait.agreement {
                    None => have.len(),
                    Some(agreement) => have.iter().filter(|peer| **peer == me || agreement.agreed.contains(peer)).count(),
                };
                let enough = match wait.durability {
                    // On disk here, and this node need not even be ready just now.
                    Durability::Local => true,
                    Durability::Require(k) | Durability::Prefer(k) => have.contains(&me) && count >= usize::from(k),
                };
                let split = wait.agreement.as_ref().is_some_and(|agreement| agreement.split);
                if enough || split {
                    let unconfirmed = (!enough).then_some(UnconfirmedReason::Views);
                    released.push((*place, Outcome { dot, holders: have, unconfirmed }));
                }
            }
        }
        self.remove(database, &released);
        released.into_iter().map(|(place, outcome)| (place.2, outcome)).collect()
    }

    /// Ends the waits whose deadline has come.
    pub fn expire(&mut self, now: Moment, holders: impl Fn(&DatabaseId) -> BTreeSet<PeerId>) -> Vec<(DatabaseId, u64, Outcome)> {
        let mut expired = Vec::new();
        while let Some((_, database, place)) = self.deadlines.first().copied().filter(|(at, _, _)| *at <= now) {
            self.deadlines.pop_first();
            let Some(acks) = self.databases.get_mut(&database) else { continue };
            let Some(wait) = acks.waits.remove(&place) else { continue };
            let dot = Dot { replica: place.0, seq: place.1 };
            let ready = holders(&database);
            let have = acks.durable.iter().filter(|(peer, vv)| ready.contains(peer) && vv.covers(&dot));
            let have = have.map(|(peer, _)| *peer).collect();
            let required = matches!(wait.durability, Durability::Require(_));
            let unconfirmed = required.then_some(UnconfirmedReason::Deadline);
            expired.push((database, place.2, Outcome { dot, holders: have, unconfirmed }));
        }
        expired
    }

    /// The database was dropped: nothing of it is confirmed any more.
    pub fn dropped(&mut self, database: &DatabaseId) -> Vec<(u64, Outcome)> {
        let Some(acks) = self.databases.remove(database) else { return Vec::new() };
        let end = |((replica, seq, token), wait): (Place, Wait)| {
            self.deadlines.remove(&(wait.deadline, *database, (replica, seq, token)));
            let dot = Dot { replica, seq };
            (token, Outcome { dot, holders: Vec::new(), unconfirmed: Some(UnconfirmedReason::Dropped) })
        };
        acks.waits.into_iter().map(end).collect()
    }

    /// When the next deadline comes.
    #[must_use]
    pub fn wake(&self) -> Option<Moment> {
        self.deadlines.first().map(|(at, _, _)| *at)
    }

    fn remove(&mut self, database: &DatabaseId, released: &[(Place, Outcome)]) {
        let Some(acks) = self.databases.get_mut(database) else { return };
        for (place, _) in released {
            if let Some(wait) = acks.waits.remove(place) {
                self.deadlines.remove(&(wait.deadline, *database, *place));
            }
        }
    }
}

/// The time left until a deadline, in whole milliseconds, for a call that is passed on.
#[must_use]
pub fn left(deadline: Moment, now: Moment) -> u64 {
    u64::try_from(deadline.saturating_sub(now).as_millis()).unwrap_or(u64::MAX)
}

/// The deadline of a call that arrives with so much time left.
#[must_use]
pub fn deadline(left_ms: u64, now: Moment) -> Moment {
    now + Duration::from_millis(left_ms).min(crate::limits::MAX_DEADLINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::member;

    const DB: DatabaseId = DatabaseId([1; 32]);
    const R: ReplicaId = ReplicaId([7; 16]);

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn dot(seq: u64) -> Dot {
        Dot { replica: R, seq }
    }

    fn upto(seq: u64) -> VersionVector {
        [(R, seq)].into_iter().collect()
    }

    fn holders(count: u8) -> BTreeSet<PeerId> {
        (1..=count).map(member).collect()
    }

    fn tokens(released: &[(u64, Outcome)]) -> Vec<u64> {
        released.iter().map(|(token, _)| *token).collect()
    }

    fn require(barrier: &mut Barrier, seq: u64, k: u8) {
        barrier.wait(DB, dot(seq), seq, Durability::Require(k), at(10), None);
    }

    #[test]
    fn sixty_four_callers_do_not_take_turns_one_ack_releases_all_that_it_covers() {
        let mut barrier = Barrier::new(member(1));
        (1..=64).for_each(|seq| require(&mut barrier, seq, 2));
        barrier.ack(DB, member(1), &upto(64));
        assert!(barrier.settle(&DB, &holders(2)).is_empty());
        barrier.ack(DB, member(2), &upto(40));
        let released = barrier.settle(&DB, &holders(2));
        assert_eq!(tokens(&released), (1..=40).collect::<Vec<_>>());
        let mut both = vec![member(1), member(2)];
        both.sort();
        assert!(released.iter().all(|(_, outcome)| outcome.holders == both && outcome.unconfirmed.is_none()));
        // Acks are cumulative: an old one that comes late takes nothing back.
        barrier.ack(DB, member(2), &upto(3));
        barrier.ack(DB, member(2), &upto(64));
        assert_eq!(barrier.settle(&DB, &holders(2)).len(), 24);
        assert_eq!(barrier.waiting(&DB), 0);
    }

    #[test]
    fn situation_03_a_hung_holder_beside_a_healthy_one_does_not_matter_and_alone_it_leaves_the_write_unconfirmed() {
        let mut barrier = Barrier::new(member(1));
        require(&mut barrier, 1, 2);
        barrier.ack(DB, member(1), &upto(9));
        barrier.ack(DB, member(3), &upto(1));
        assert_eq!(tokens(&barrier.settle(&DB, &holders(3))), [1]);
        require(&mut barrier, 2, 2);
        barrier.wait(DB, dot(3), 3, Durability::Prefer(2), at(10), None);
        assert!(barrier.expire(at(9), |_| holders(3)).is_empty());
        let expired = barrier.expire(at(10), |_| holders(3));
        let reasons: Vec<_> = expired.iter().map(|(_, token, outcome)| (*token, outcome.unconfirmed)).collect();
        assert_eq!(reasons, [(2, Some(UnconfirmedReason::Deadline)), (3, None)]);
        assert_eq!(expired[0].2.holders, [member(1)]);
        // What comes after the deadline releases nobody a second time.
        barrier.ack(DB, member(2), &upto(9));
        assert!(barrier.settle(&DB, &holders(3)).is_empty());
        assert_eq!(barrier.wake(), None);
    }

    #[test]
    fn only_ready_holders_count_and_this_node_must_be_one_with_the_write_on_its_own_disk() {
        let mut barrier = Barrier::new(member(1));
        require(&mut barrier, 1, 2);
        barrier.ack(DB, member(2), &upto(1));
        barrier.ack(DB, member(3), &upto(1));
        assert!(barrier.settle(&DB, &holders(3)).is_empty(), "not on this disk");
        barrier.ack(DB, member(1), &upto(1));
        assert!(barrier.settle(&DB, &BTreeSet::from([member(1)])).is_empty(), "the others are not ready");
        assert!(barrier.settle(&DB, &BTreeSet::from([member(2), member(3)])).is_empty(), "this node is not ready");
        assert_eq!(tokens(&barrier.settle(&DB, &holders(2))), [1]);
        barrier.wait(DB, dot(2), 2, Durability::Local, at(10), None);
        assert!(barrier.settle(&DB, &BTreeSet::new()).is_empty());
        barrier.ack(DB, member(1), &upto(2));
        assert_eq!(tokens(&barrier.settle(&DB, &BTreeSet::new())), [2]);
    }

    #[test]
    fn any_k_up_to_five_waits_for_exactly_so_many() {
        for k in 1..=5 {
            let mut barrier = Barrier::new(member(1));
            require(&mut barrier, 1, k);
            for holder in 1..=k {
                assert!(barrier.settle(&DB, &holders(5)).is_empty(), "k = {k}, {holder}");
                barrier.ack(DB, member(holder), &upto(1));
            }
            assert_eq!(tokens(&barrier.settle(&DB, &holders(5))), [1]);
        }
        assert_eq!(Durability::from_numbers(0, 6), None);
        assert_eq!(Durability::from_numbers(1, 0), None);
    }

    #[test]
    fn too_few_holders_are_told_before_anything_is_written() {
        let require = Durability::Require(2);
        assert_eq!(admit(require, 2, 1, 0, 0), Err(Refused::NotEnoughHolders { ready: 1, needed: 2 }));
        assert_eq!(admit(require, 2, 1, 1, 0), Ok(()));
        assert_eq!(admit(require, 1, 2, 0, 0), Err(Refused::MoreThanHolders { needed: 2, holders: 1 }));
        assert_eq!(admit(Durability::Prefer(2), 2, 1, 0, 0), Ok(()));
        assert_eq!(admit(Durability::Local, 2, 0, 0, MAX_WAITING_WRITES), Err(Refused::TooManyWaiting));
        assert_eq!(admit(Durability::Local, 2, 0, 0, MAX_WAITING_WRITES - 1), Ok(()));
    }

    #[test]
    fn r26_a_conditional_write_counts_only_those_that_agree_on_who_decides() {
        let (epoch, other) = (Epoch([1; 16]), Epoch([2; 16]));
        let mut barrier = Barrier::new(member(1));
        let agreement = |attempt| Some(Agreement::new(attempt, epoch, member(1)));
        barrier.wait(DB, dot(1), 1, Durability::Require(2), at(10), agreement(5));
        barrier.wait(DB, dot(2), 2, Durability::Require(2), at(10), agreement(6));
        barrier.ack(DB, member(1), &upto(2));
        barrier.ack(DB, member(2), &upto(2));
        assert!(barrier.settle(&DB, &holders(3)).is_empty(), "an ack alone does not confirm it");
        barrier.agreed(&DB, member(2), 5, epoch, Some(member(1)));
        barrier.agreed(&DB, member(2), 6, other, Some(member(1)));
        let released = barrier.settle(&DB, &holders(3));
        let reasons: Vec<_> = released.iter().map(|(token, outcome)| (*token, outcome.unconfirmed)).collect();
        assert_eq!(reasons, [(1, None), (2, Some(UnconfirmedReason::Views))]);
    }

    #[test]
    fn situation_13_a_drop_that_races_writes_confirms_none_of_them() {
        let mut barrier = Barrier::new(member(1));
        require(&mut barrier, 1, 2);
        barrier.ack(DB, member(1), &upto(1));
        let ended = barrier.dropped(&DB);
        assert_eq!(ended[0].1.unconfirmed, Some(UnconfirmedReason::Dropped));
        assert_eq!(barrier.wake(), None);
    }

    #[test]
    fn deadlines_travel_as_time_left_and_are_bounded() {
        assert_eq!(left(at(10), at(7)), 3_000);
        assert_eq!(left(at(7), at(10)), 0);
        assert_eq!(deadline(3_000, at(7)), at(10));
        assert_eq!(deadline(u64::MAX, at(0)), crate::limits::MAX_DEADLINE);
    }
}
