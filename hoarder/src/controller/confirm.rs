//! Reads that miss nothing that was confirmed before they began: the holder first looks whether it has what enough others have.

use std::collections::BTreeMap;

use crdt::DatabaseId;
use kvdb::PeerId;

use super::talk::Ask;
use super::{Controller, Output};
use crate::Moment;
use crate::claims::{Readiness, is_enough};
use crate::routing::NOTHING;
use crate::wire::{Answer, Code, Frame, Operation, Report};

/// One look, for all reads that came before it began.
#[derive(Debug)]
pub(super) struct Confirming {
    attempt: u64,
    /// The first comparison of the registry that counts: nobody who has become a holder meanwhile is overlooked.
    comparison: u64,
    reports: BTreeMap<PeerId, Option<Report>>,
    asked: Option<Moment>,
    calls: Vec<u64>,
    /// Reads that came after it began.
    next: Vec<u64>,
}

impl Controller {
    /// A read that is to be served here once this node has what enough others have.
    pub(super) fn confirm(&mut self, call: u64, database: DatabaseId, now: Moment) {
        match self.confirming.get_mut(&database) {
            Some(confirming) => confirming.next.push(call),
            None => self.begin_confirming(database, vec![call], now),
        }
    }

    fn begin_confirming(&mut self, database: DatabaseId, calls: Vec<u64>, now: Moment) {
        let (attempt, comparison) = (self.id(), self.comparisons.next());
        let fresh = Confirming { attempt, comparison, reports: BTreeMap::new(), asked: None, calls, next: Vec::new() };
        self.confirming.insert(database, fresh);
        self.comparisons.want(comparison);
        self.compare_on(now);
        self.confirm_on(database, now);
    }

    /// Goes on with a look, if one is under way.
    pub(super) fn confirm_on(&mut self, database: DatabaseId, now: Moment) {
        let least = self.registry.live(&database).map(|live| live.settings.least);
        let durable = self.own(&database);
        let ready = self.readiness(&database) == Readiness::Ready;
        let (me, again) = (self.me, self.options.claims.ask_again);
        let claims = self.registry.claims(&database);
        let Some(confirming) = self.confirming.get_mut(&database) else { return };
        let compared = self.comparisons.done >= confirming.comparison;
        let done = compared && least.is_some_and(|least| is_enough(claims, &me, true, least, &confirming.reports, &durable));
        if done || !ready {
            return self.end_look(database, ready, now);
        }
        if confirming.asked.is_some_and(|at| now < at + again) {
            return;
        }
        confirming.asked = Some(now);
        let attempt = confirming.attempt;
        let open = |peer: &PeerId| confirming.reports.get(peer).is_none_or(Option::is_none);
        let others: Vec<PeerId> = claims.keys().copied().filter(|peer| *peer != me && open(peer)).collect();
        for peer in others {
            let id = self.ask(Ask::Confirming(database, attempt));
            self.out.push(Output::Send(peer, Frame::State { id, database }));
        }
    }

    fn end_look(&mut self, database: DatabaseId, ready: bool, now: Moment) {
        let Some(confirming) = self.confirming.remove(&database) else { return };
        if !confirming.next.is_empty() {
            self.begin_confirming(database, confirming.next, now);
        }
        for call in confirming.calls {
            self.confirmed(call, database, ready, now);
        }
    }

    fn confirmed(&mut self, call: u64, database: DatabaseId, ready: bool, now: Moment) {
        match self.calls.get(call).map(|call| call.operation.clone()) {
            Some(Operation::Read { payload, .. }) if ready => self.out.push(Output::Read(call, database, payload)),
            // Another holder may be able to.
            Some(_) => self.route(call, now),
            None => {}
        }
    }

    pub(super) fn confirm_report(&mut self, database: DatabaseId, attempt: u64, from: PeerId, report: Option<Report>) {
        if let Some(confirming) = self.confirming.get_mut(&database).filter(|confirming| confirming.attempt == attempt) {
            confirming.reports.insert(from, report);
            self.reconcile.want(database);
        }
    }

    /// Reads that could not be confirmed in time.
    pub(super) fn end_confirming(&mut self, now: Moment) {
        let waiting = self.confirming.values().flat_map(|confirming| confirming.calls.iter().chain(&confirming.next)).copied();
        let late = |call: &u64| self.calls.get(*call).is_some_and(|call| now >= call.deadline);
        let late: Vec<u64> = waiting.filter(late).collect();
        for call in &late {
            self.finish(*call, Code::NotReady, Answer::plain(self.me, NOTHING), now);
        }
        self.confirming.retain(|_, confirming| {
            confirming.calls.retain(|call| !late.contains(call));
            confirming.next.retain(|call| !late.contains(call));
            !(confirming.calls.is_empty() && confirming.next.is_empty())
        });
    }
}
