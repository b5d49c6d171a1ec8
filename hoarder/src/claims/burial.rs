//! Removing the claim of a member that is gone, and raising the least number of holders: both only when K ready holders have
//! all that anybody reachable has.

use std::collections::{BTreeMap, BTreeSet};

use crdt::{DatabaseId, VersionVector};
use kvdb::PeerId;

use crate::Moment;
use crate::registry::Claim;
use crate::wire::{Cover, CoverAnswer, Purpose, Report, Verdict};

/// One attempt by the first ready holder.
#[derive(Debug)]
pub struct Burial {
    me: PeerId,
    started: Moment,
    attempt: u64,
    /// The members whose claims are to go.
    gone: BTreeSet<PeerId>,
    /// What the claimants that can be reached have, and with how many holders they confirm.
    reports: BTreeMap<PeerId, (VersionVector, u8)>,
    reachable: BTreeSet<PeerId>,
    asked: bool,
    yes: BTreeSet<PeerId>,
}

impl Burial {
    /// Begins; the caller asks all reachable claimants what they have.
    #[must_use]
    pub fn new(me: PeerId, gone: BTreeSet<PeerId>, reachable: BTreeSet<PeerId>, attempt: u64, now: Moment) -> Self {
        Self { me, started: now, attempt, gone, reports: BTreeMap::new(), reachable, asked: false, yes: BTreeSet::new() }
    }

    /// When it began.
    #[must_use]
    pub fn started(&self) -> Moment {
        self.started
    }

    /// Whom to ask what they have.
    #[must_use]
    pub fn reachable(&self) -> &BTreeSet<PeerId> {
        &self.reachable
    }

    /// A claimant has said what it has.
    pub fn report(&mut self, from: PeerId, report: Option<&Report>) {
        if self.reachable.contains(&from) {
            // Who has nothing confirms nothing.
            let said = report.map_or((VersionVector::default(), u8::MAX), |report| (report.vv.clone(), report.holders));
            self.reports.insert(from, said);
        }
    }

    /// Once all have reported: the question to put to the others, once.
    pub fn question(&mut self, database: DatabaseId, own: &VersionVector) -> Option<Cover> {
        if self.asked || self.reports.len() < self.reachable.len() {
            return None;
        }
        self.asked = true;
        let mut all = own.clone();
        for (replica, seq) in self.reports.values().flat_map(|(vv, _)| vv.iter()) {
            all.raise(replica, seq);
        }
        Some(Cover { attempt: self.attempt, database, purpose: Purpose::HandOver, vv: all })
    }

    /// Somebody has answered it.
    pub fn covered(&mut self, from: PeerId, answer: &CoverAnswer) {
        if self.asked && answer.attempt == self.attempt && answer.verdict == Verdict::Yes {
            self.yes.insert(from);
        }
    }

    /// Whether so many holders have everything that was confirmed before.
    #[must_use]
    pub fn is_done(&self, claims: &BTreeMap<PeerId, Claim>, live: &BTreeSet<PeerId>, holders: u8) -> bool {
        let counted = self.yes.iter().filter(|peer| claims.contains_key(peer)).count();
        // A claimant that has come since was not asked.
        let all_asked = claims.keys().filter(|peer| live.contains(peer)).all(|peer| self.asked_of(peer));
        counted >= usize::from(holders) && all_asked
    }

    fn asked_of(&self, peer: &PeerId) -> bool {
        *peer == self.me || self.reachable.contains(peer)
    }

    /// Once it is done: the claims that may go, of the members that are still gone.
    #[must_use]
    pub fn gone(&self, live: &BTreeSet<PeerId>) -> Vec<PeerId> {
        self.gone.iter().copied().filter(|peer| !live.contains(peer)).collect()
    }

    /// Once it is done: whether nobody can have confirmed anything since with fewer holders, or will. Then so many have every
    /// confirmed write, also those that were confirmed when the database had fewer.
    #[must_use]
    pub fn may_raise(&self, claims: &BTreeMap<PeerId, Claim>, holders: u8) -> bool {
        let acts = |peer: &PeerId| self.reports.get(peer).is_some_and(|(_, acts_on)| *acts_on >= holders);
        claims.keys().all(|peer| *peer == self.me || acts(peer))
    }
}
