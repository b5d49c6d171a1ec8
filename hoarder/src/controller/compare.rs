//! Comparing the registry with at least half of the members.

use std::collections::BTreeMap;

use crdt::VersionVector;
use kvdb::PeerId;

use super::talk::Ask;
use super::{Controller, Output};
use crate::Moment;
use crate::limits::ASK_AGAIN;
use crate::registry::{StoreRecord, half, store_key};
use crate::wire::{Frame, Report};

/// Comparisons have numbers, so that whoever needs one can say from which on it counts.
#[derive(Debug, Default)]
pub(super) struct Comparisons {
    /// The last one that is finished.
    pub(super) done: u64,
    /// When it began.
    pub(super) done_at: Moment,
    /// The last one that somebody needs.
    wanted: u64,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    number: u64,
    started: Moment,
    asked: Option<Moment>,
    /// What the others have on disk, and whether their store has been in the fleet before.
    answers: BTreeMap<PeerId, (VersionVector, bool)>,
}

impl Comparisons {
    /// The number of the next one that begins.
    pub(super) fn next(&self) -> u64 {
        self.running.as_ref().map_or(self.done, |running| running.number) + 1
    }

    pub(super) fn want(&mut self, number: u64) {
        self.wanted = self.wanted.max(number);
    }
}

impl Controller {
    /// Begins or goes on with a comparison, if somebody needs one.
    pub(super) fn compare_on(&mut self, now: Moment) {
        if !self.store_checked {
            self.comparisons.want(1);
        }
        if self.comparisons.running.is_none() && self.comparisons.wanted > self.comparisons.done {
            let number = self.comparisons.next();
            self.comparisons.running = Some(Running { number, started: now, asked: None, answers: BTreeMap::new() });
        }
        let Some(running) = &mut self.comparisons.running else { return };
        if running.asked.is_none_or(|at| now >= at + ASK_AGAIN) {
            running.asked = Some(now);
            let number = running.number;
            let missing: Vec<PeerId> = self.membership.others().filter(|peer| !running.answers.contains_key(peer)).collect();
            for peer in missing {
                let id = self.ask(Ask::Comparison(number));
                self.out.push(Output::Send(peer, Frame::State { id, database: self.registry_id }));
            }
        }
        self.compared(now);
    }

    pub(super) fn comparison_answer(&mut self, number: u64, from: PeerId, report: Option<Report>, now: Moment) {
        let Some(running) = self.comparisons.running.as_mut().filter(|running| running.number == number) else { return };
        if let Some(report) = report {
            running.answers.insert(from, (report.vv, report.was_ready));
        }
        self.compared(now);
    }

    /// Whether the running comparison is finished: half of the members, counting only those whose store has been in the fleet
    /// before, since an empty one knows nothing; or all of them, which is how a fleet begins. Everybody who is live is waited
    /// for a while, so that one registry that is older than it should be is made good by the others.
    pub(super) fn compared(&mut self, now: Moment) {
        let Some(running) = &self.comparisons.running else { return };
        let mine = self.own(&self.registry_id);
        let covered: Vec<(&PeerId, bool)> = running
            .answers
            .iter()
            .filter(|(_, (vv, _))| mine.dominates(vv))
            .map(|(peer, (_, seasoned))| (peer, *seasoned))
            .collect();
        let known = self.membership.known();
        let seasoned = covered.iter().filter(|(_, seasoned)| *seasoned).count() + usize::from(self.is_seasoned());
        let all = covered.len() + 1 == known;
        // The first one after a start waits for everybody, whoever is live: others may know that this store is an old one.
        let first = !self.store_checked;
        let awaited = self.membership.others().filter(|peer| first || self.membership.live().contains(peer));
        let live = awaited.into_iter().all(|peer| covered.iter().any(|(other, _)| **other == peer));
        let patient = now < running.started + self.options.membership.dead_after;
        if !(all || (seasoned >= half(known) && (live || !patient))) {
            return;
        }
        self.comparisons.done = running.number;
        self.comparisons.done_at = running.started;
        self.comparisons.running = None;
        self.check_store();
        self.want_joining();
        self.compare_on(now);
    }

    /// This store's registry has been compared before: it has this store's record.
    pub(super) fn is_seasoned(&self) -> bool {
        self.registry.store(&self.me).is_some_and(|record| record.store == self.store)
    }

    /// After the first comparison: an older image of a store finds that it was opened more often than it knows.
    fn check_store(&mut self) {
        if std::mem::replace(&mut self.store_checked, true) {
            return;
        }
        let record = self.registry.store(&self.me).copied();
        if record.is_some_and(|record| record.store == self.store && record.opening >= self.opening) {
            self.renew_store();
        } else {
            self.record_store();
        }
        self.want_all();
    }

    /// What is on disk cannot be relied on: the store gets another name, so that all holdings catch up from nothing.
    pub(super) fn renew_store(&mut self) {
        let (high, low) = ((self.random)(), (self.random)());
        let mut id = [0; 16];
        id.split_at_mut(8).0.copy_from_slice(&high.to_be_bytes());
        id.split_at_mut(8).1.copy_from_slice(&low.to_be_bytes());
        self.store = crate::StoreId(id);
        self.opening = 1;
        self.out.push(Output::SetStore(self.store));
        self.lost();
        self.record_store();
        self.want_all();
    }

    fn record_store(&mut self) {
        let record = StoreRecord { store: self.store, opening: self.opening };
        let token = self.id();
        if let Some(key) = store_key(&self.me) {
            self.out.push(Output::WriteRegistry(token, vec![(key, Some(record.encode()))]));
        }
    }
}
