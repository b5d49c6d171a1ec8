//! Looking at databases one by one: what the claim machine of each wants, and what follows for those who wait.

use std::collections::{BTreeMap, BTreeSet};

use crdt::DatabaseId;
use kvdb::PeerId;

use super::talk::Ask;
use super::{Controller, Output};
use crate::claims::{Burial, Context, Holding, Readiness, Want, is_enough};
use crate::registry::{ClaimState, Settings, claim_key, database_key};
use crate::wire::{CoverAnswer, Frame, Report, Verdict};
use crate::{Epoch, Moment};

/// This node is the first ready holder of a database and so decides conditional writes; but not before it has caught up with
/// what the one before it may have confirmed.
#[derive(Debug)]
pub(super) struct Deciding {
    epoch: Epoch,
    pub(super) attempt: u64,
    reports: BTreeMap<PeerId, Option<Report>>,
    asked: Option<Moment>,
    pub(super) caught_up: bool,
}

impl Controller {
    /// Works off what waits, a batch at a time.
    pub(super) fn reconcile(&mut self, now: Moment) {
        for database in self.reconcile.take() {
            self.look_at(database, now);
        }
    }

    fn look_at(&mut self, database: DatabaseId, now: Moment) {
        if database == self.registry_id {
            return;
        }
        self.lower_holders(&database);
        let before = self.readiness(&database);
        let wants = self.step(database, now);
        for want in wants {
            self.carry_out(database, want, now);
        }
        self.note(database);
        if before != self.readiness(&database) {
            // Who waited for it to be ready, or must look for another now.
            self.reconcile.want(database);
        }
        self.answer_questions(database);
        self.decide(database, now);
        self.confirm_on(database, now);
        self.bury(database, now);
        self.settle(database, now);
    }

    fn step(&mut self, database: DatabaseId, now: Moment) -> Vec<Want> {
        let random = (self.random)() >> 1;
        let claim_durable = !self.writing.contains_key(&database) && self.claim_is_durable(&database);
        let live = self.registry.live(&database);
        let desired = self.desired(&database);
        let claims = self.registry.claims(&database);
        let durable = self.own(&database);
        let yields = claims.iter().any(|(peer, claim)| {
            let ready = claim.state == ClaimState::Ready && self.membership.live().contains(peer);
            ready && *peer < self.me && !desired.contains(peer)
        });
        let context = Context {
            now,
            me: self.me,
            store: self.store,
            options: &self.options.claims,
            settings: live.map(|live| live.settings),
            holders: self.holders_of(&database),
            claims,
            desired: desired.contains(&self.me),
            live: self.membership.live(),
            may_move: self.may_move(now),
            may_join: self.joining.len() < self.options.max_joining,
            may_leave: self.letting_go.len() < self.options.max_leaving,
            healthy: self.is_healthy(now) && self.store_checked,
            compared: self.comparisons.done,
            compared_at: self.comparisons.done_at,
            next_comparison: self.comparisons.next(),
            claim_durable,
            yields,
            in_use: self.calls.uses(&database),
            durable: &durable,
            frozen: self.frozen.contains(&database),
            random,
        };
        if live.is_none() && !self.registry.is_dropped(&database) && claims.is_empty() {
            // Not of the fleet, or its record has not come yet.
            return Vec::new();
        }
        self.holdings.entry(database).or_insert_with(|| Holding::new(database, false)).step(&context)
    }

    fn claim_is_durable(&mut self, database: &DatabaseId) -> bool {
        if !self.marks.contains_key(database) {
            // Written in an earlier start: whatever the registry held here when this was first asked covers it.
            let mark = self.own(&self.registry_id);
            self.marks.insert(*database, mark);
        }
        self.marks.get(database).is_some_and(|mark| self.is_durable(mark))
    }

    fn carry_out(&mut self, database: DatabaseId, want: Want, now: Moment) {
        match want {
            Want::Open => self.out.push(Output::Open(database)),
            Want::Claim(claim) => self.write_claim(database, Some(claim)),
            Want::Unclaim => self.write_claim(database, None),
            Want::Compare(number) => {
                self.comparisons.want(number);
                self.compare_on(now);
            }
            Want::Ask(peers) => {
                let generation = self.holdings.get(&database).map_or(0, Holding::generation);
                for peer in peers {
                    let id = self.ask(Ask::Holding(database, generation));
                    self.out.push(Output::Send(peer, Frame::State { id, database }));
                }
            }
            Want::Cover(peers, cover) => {
                for peer in peers {
                    self.out.push(Output::Send(peer, Frame::Cover(cover.clone())));
                }
            }
            Want::Freeze => {
                self.frozen.remove(&database);
                self.out.push(Output::Freeze(database));
            }
            Want::Thaw => {
                self.frozen.remove(&database);
                self.out.push(Output::Thaw(database));
            }
            Want::Destroy => {
                let ended = self.barrier.dropped(&database);
                for (call, outcome) in ended {
                    self.outcome(call, outcome, now);
                }
                self.frozen.remove(&database);
                self.out.push(Output::Destroy(database));
            }
        }
    }

    /// Keeps the sets by which the work is bounded and timed.
    fn note(&mut self, database: DatabaseId) {
        let Some(holding) = self.holdings.get(&database) else { return };
        let desired = self.desired(&database).contains(&self.me);
        let put = |set: &mut BTreeSet<DatabaseId>, there| if there { set.insert(database) } else { set.remove(&database) };
        put(&mut self.joining, holding.is_joining());
        put(&mut self.letting_go, holding.readiness() == Readiness::Leaving);
        put(&mut self.undesired, holding.has_data() && !desired);
        if holding.is_idle() && self.registry.live(&database).is_none() {
            self.holdings.remove(&database);
            self.questions.remove(&database);
            self.deciding.remove(&database);
            self.burials.remove(&database);
        }
    }

    /// Answers who asked whether this node covers something, as far as it can be answered now.
    pub(super) fn answer_questions(&mut self, database: DatabaseId) {
        let Some(waiting) = self.questions.remove(&database) else { return };
        let durable = self.own(&database);
        let mut left = Vec::new();
        for (peer, cover) in waiting {
            let verdict = match self.holdings.get(&database) {
                Some(holding) => holding.judge(&cover.vv, &durable),
                None => Some(Verdict::Unknown),
            };
            match verdict {
                None => left.push((peer, cover)),
                Some(verdict) => {
                    let decider = self.serving(&database).first().copied();
                    let answer = CoverAnswer { attempt: cover.attempt, database, verdict, epoch: self.epoch, decider };
                    if peer == self.me {
                        if let Some(burial) = self.burials.get_mut(&database) {
                            burial.covered(peer, &answer);
                        }
                        self.reconcile.want(database);
                    } else {
                        self.out.push(Output::Send(peer, Frame::Covered(answer)));
                    }
                }
            }
        }
        if !left.is_empty() {
            self.questions.insert(database, left);
        }
    }

    /// Becomes, or ceases to be, the one that decides conditional writes.
    fn decide(&mut self, database: DatabaseId, now: Moment) {
        if self.serving(&database).first() != Some(&self.me) {
            self.deciding.remove(&database);
            return;
        }
        let Some(live) = self.registry.live(&database) else { return };
        let least = live.settings.least;
        let epoch = self.epoch;
        let fresh = |attempt| Deciding { epoch, attempt, reports: BTreeMap::new(), asked: None, caught_up: false };
        if self.deciding.get(&database).is_none_or(|deciding| deciding.epoch != epoch) {
            let attempt = self.id();
            self.deciding.insert(database, fresh(attempt));
        }
        let durable = self.own(&database);
        let claims = self.registry.claims(&database);
        let others: Vec<PeerId> = claims.keys().copied().filter(|peer| *peer != self.me).collect();
        let Some(deciding) = self.deciding.get_mut(&database).filter(|deciding| !deciding.caught_up) else { return };
        deciding.caught_up = is_enough(claims, &self.me, true, least, &deciding.reports, &durable);
        let ask = deciding.asked.is_none_or(|at| now >= at + self.options.claims.ask_again);
        if deciding.caught_up || !ask {
            return;
        }
        deciding.asked = Some(now);
        let attempt = deciding.attempt;
        for peer in others {
            let id = self.ask(Ask::Deciding(database, attempt));
            self.out.push(Output::Send(peer, Frame::State { id, database }));
        }
    }

    pub(super) fn decider_report(&mut self, database: DatabaseId, attempt: u64, from: PeerId, report: Option<Report>) {
        if let Some(deciding) = self.deciding.get_mut(&database).filter(|deciding| deciding.attempt == attempt) {
            deciding.reports.insert(from, report);
            self.reconcile.want(database);
        }
    }

    /// The first ready holder removes the claims of members that are gone for long, and notes that what was confirmed when the
    /// database had fewer holders is with more by now.
    fn bury(&mut self, database: DatabaseId, now: Moment) {
        let grace = self.options.claims.dead_claim_grace;
        let serving = self.serving(&database);
        let Some(settings) = self.registry.live(&database).map(|live| live.settings) else { return };
        let claims = self.registry.claims(&database);
        let gone = |peer: &PeerId| {
            let dead = self.dead_since.get(peer).is_some_and(|since| now >= *since + grace);
            dead || !self.membership.is_member(peer)
        };
        let gone: BTreeSet<PeerId> = claims.keys().copied().filter(|peer| *peer != self.me && gone(peer)).collect();
        let holders = self.holders_of(&database);
        let raise = settings.least < settings.holders && settings.holders == holders;
        let able = serving.first() == Some(&self.me) && serving.len() >= usize::from(holders) && self.may_move(now);
        if !able || (gone.is_empty() && !raise) {
            self.burials.remove(&database);
            return;
        }
        let live = self.membership.live();
        let reachable: BTreeSet<PeerId> = claims.keys().copied().filter(|peer| *peer != self.me && live.contains(peer)).collect();
        let stale = |burial: &Burial| now >= burial.started() + self.options.claims.leave_attempt;
        if self.burials.get(&database).is_none_or(stale) {
            let attempt = (self.random)() >> 1;
            for peer in &reachable {
                let id = self.ask(Ask::Burial(database, attempt));
                self.out.push(Output::Send(*peer, Frame::State { id, database }));
            }
            self.burials.insert(database, Burial::new(self.me, gone, reachable, attempt, now));
        }
        self.bury_on(database, holders, &serving);
    }

    fn bury_on(&mut self, database: DatabaseId, holders: u8, serving: &[PeerId]) {
        let own = self.own(&database);
        let Some(burial) = self.burials.get_mut(&database) else { return };
        if let Some(cover) = burial.question(database, &own) {
            for peer in serving.iter().filter(|peer| **peer != self.me) {
                self.out.push(Output::Send(*peer, Frame::Cover(cover.clone())));
            }
            self.questions.entry(database).or_default().push((self.me, cover));
            self.reconcile.want(database);
        }
        let claims = self.registry.claims(&database);
        let Some(burial) = self.burials.get(&database).filter(|burial| burial.is_done(claims, self.membership.live(), holders))
        else {
            return;
        };
        let gone = burial.gone(self.membership.live());
        let mut changes: Vec<_> = gone.iter().filter_map(|peer| claim_key(&database, peer)).map(|key| (key, None)).collect();
        let live = self.registry.live(&database).filter(|live| live.settings.least < holders);
        if let Some(live) = live.filter(|_| burial.may_raise(claims, holders)) {
            let settings = Settings { least: holders, ..live.settings.clone() };
            let key = database_key(live.name, live.generation);
            changes.extend(key.map(|key| (key, Some(settings.encode()))));
        }
        self.burials.remove(&database);
        if !changes.is_empty() {
            let token = self.id();
            self.out.push(Output::WriteRegistry(token, changes));
        }
    }
}
