//! Frames between members.

use crdt::{DatabaseId, VersionVector};
use kvdb::PeerId;

use super::{Controller, Output};
use crate::Moment;
use crate::limits::{MAX_WAITING_QUESTIONS, RECONCILE_BATCH};
use crate::membership::Action;
use crate::routing::Origin;
use crate::wire::{Answer, Code, Cover, CoverAnswer, Frame, Operation, Purpose, Refusal, Report, Verdict};

/// Most questions of this node that wait for an answer; the oldest is given up, and asked again by whoever needs it.
const MAX_ASKS: usize = 16_384;

/// What a question that is under way was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A comparison of the registry.
    Comparison(u64),
    /// A joiner, at this generation of its catch-up.
    Holding(DatabaseId, u64),
    /// The removal of dead claims.
    Burial(DatabaseId, u64),
    /// The one that begins to decide.
    Deciding(DatabaseId, u64),
    /// Reads that are to miss nothing that was confirmed.
    Confirming(DatabaseId, u64),
    /// Whether a member that has started anew has less than it acknowledged.
    Restarted(DatabaseId),
    /// Whether a member has really less than it acknowledged.
    Fall(DatabaseId),
    /// A probe.
    Probe,
    /// A probe for another member: who asked, and under which number.
    ProbeFor(PeerId, u64),
}

impl Controller {
    pub(super) fn ask(&mut self, ask: Ask) -> u64 {
        let id = self.id();
        if self.asks.len() >= MAX_ASKS {
            self.asks.pop_first();
        }
        self.asks.insert(id, ask);
        id
    }

    pub(super) fn probe(&mut self, action: Action) {
        let (to, frame) = match action {
            Action::Probe(peer) => (peer, Frame::Probe { id: self.ask(Ask::Probe) }),
            Action::ProbeFor { via, target } => (via, Frame::ProbeFor { id: self.ask(Ask::Probe), target }),
        };
        self.out.push(Output::Send(to, frame));
    }

    fn send(&mut self, to: PeerId, frame: Frame) {
        self.out.push(Output::Send(to, frame));
    }

    pub(super) fn frame(&mut self, from: PeerId, frame: Frame, now: Moment) {
        // The transport lets members in only; a member that was forgotten may still be connected.
        if !self.membership.is_member(&from) || from == self.me {
            return;
        }
        match frame {
            Frame::Beat(beat) => {
                self.membership.beat(beat, self.verifier.as_mut(), now);
            }
            Frame::Probe { id } => self.send(from, Frame::Alive { id, member: self.me, boot: self.boot }),
            Frame::Alive { id, member, boot } => self.alive(from, id, member, boot, now),
            Frame::ProbeFor { id, target } => {
                let id = self.ask(Ask::ProbeFor(from, id));
                self.send(target, Frame::Probe { id });
            }
            Frame::Lookup { id, epoch } => {
                if epoch != self.epoch {
                    self.send_view(from, id);
                }
            }
            Frame::View { live, .. } => self.membership.hint(&live),
            Frame::State { id, database } => {
                let report = self.report(&database);
                self.send(from, Frame::StateIs { id, database, report });
            }
            Frame::StateIs { id, database, report } => self.state_is(from, id, database, report, now),
            Frame::Cover(cover) => self.asked_to_cover(from, cover),
            Frame::Covered(answer) => self.covered(from, &answer, now),
            Frame::Fallen { database, store } => {
                // Somebody remembers more than is here: whatever else is lost, nobody knows.
                if store == self.store && (database == self.registry_id || self.holdings.contains_key(&database)) {
                    self.renew_store();
                }
            }
            Frame::Call { call, epoch, deadline_ms, request, database, body } => {
                if epoch != self.epoch {
                    self.send_view(from, 0);
                }
                let origin = Origin::Member(from, call);
                let deadline = crate::barrier::deadline(deadline_ms, now);
                match Operation::decode(body) {
                    Ok(operation) => self.call(origin, crdt::RequestId(request), database, operation, deadline, now),
                    Err(error) => {
                        let refusal = Refusal::Malformed { cause: error.to_string() }.encode();
                        self.reply(origin, Code::Refused, Answer::plain(self.me, refusal));
                    }
                }
            }
            Frame::Reply { call, code, body } => self.replied(from, call, code, body, now),
        }
    }

    fn send_view(&mut self, to: PeerId, id: u64) {
        let live = self.membership.live().iter().copied().collect();
        self.send(to, Frame::View { id, epoch: self.epoch, live });
    }

    fn alive(&mut self, from: PeerId, id: u64, member: PeerId, boot: u64, now: Moment) {
        match self.asks.remove(&id) {
            Some(Ask::Probe) => self.is_there(member, boot, now),
            Some(Ask::ProbeFor(asker, theirs)) if member == from => {
                self.is_there(member, boot, now);
                self.send(asker, Frame::Alive { id: theirs, member, boot });
            }
            _ => {}
        }
    }

    /// A member is there; in a new start it may have come back with less than it had.
    fn is_there(&mut self, member: PeerId, boot: u64, now: Moment) {
        if self.membership.alive(&member, boot, now) {
            let acked = self.ack_stores.keys().filter(|(_, peer)| *peer == member);
            self.restarted.extend(acked.copied());
            self.ask_restarted();
        }
    }

    /// Asks members that have started anew, some at a time.
    pub(super) fn ask_restarted(&mut self) {
        for _ in 0..RECONCILE_BATCH {
            let Some((database, peer)) = self.restarted.pop_first() else { return };
            let id = self.ask(Ask::Restarted(database));
            self.out.push(Output::Send(peer, Frame::State { id, database }));
        }
    }

    /// What this node has of a database; of the registry, whether its store has been in the fleet before.
    fn report(&self, database: &DatabaseId) -> Option<Report> {
        let vv = self.own(database);
        if *database == self.registry_id {
            return Some(Report {
                store: self.store,
                was_ready: self.is_seasoned(),
                ready: false,
                holders: 0,
                creator: None,
                vv,
            });
        }
        let holding = self.holdings.get(database).filter(|holding| holding.has_data())?;
        let claim = self.registry.claims(database).get(&self.me);
        // Right after a start an older image of the store would still take itself for it.
        let same = self.store_checked;
        let was_ready = same && claim.is_some_and(|claim| claim.was_ready && claim.store == self.store);
        let ready = holding.readiness() == crate::claims::Readiness::Ready;
        let creator = self.registry.live(database).map(|live| live.settings.creator);
        Some(Report { store: self.store, was_ready, ready, holders: self.holders_of(database), creator, vv })
    }

    fn state_is(&mut self, from: PeerId, id: u64, database: DatabaseId, report: Option<Report>, now: Moment) {
        let Some(ask) = self.asks.remove(&id) else { return };
        self.look_for_a_fall(from, database, ask, report.as_ref());
        match ask {
            Ask::Comparison(number) if database == self.registry_id => self.comparison_answer(number, from, report, now),
            Ask::Holding(asked, generation) if asked == database => {
                let holding = self.holdings.get_mut(&database).filter(|holding| holding.generation() == generation);
                if let Some(holding) = holding {
                    holding.report(from, report);
                }
                self.reconcile.want(database);
            }
            Ask::Burial(asked, _) if asked == database => {
                if let Some(burial) = self.burials.get_mut(&database) {
                    burial.report(from, report.as_ref());
                }
                self.reconcile.want(database);
            }
            Ask::Deciding(asked, attempt) if asked == database => self.decider_report(database, attempt, from, report),
            Ask::Confirming(asked, attempt) if asked == database => self.confirm_report(database, attempt, from, report),
            _ => {}
        }
    }

    /// A member that has less on disk than it acknowledged on the same store is told so; but not before it has been asked again,
    /// since acknowledgements may overtake an answer.
    fn look_for_a_fall(&mut self, from: PeerId, database: DatabaseId, ask: Ask, report: Option<&Report>) {
        let Some(report) = report else { return };
        let place = (database, from);
        if self.ack_stores.get(&place) != Some(&report.store) {
            self.falls.remove(&place);
            return;
        }
        match ask {
            Ask::Fall(_) => {
                if self.falls.remove(&place).is_some_and(|acked| !report.vv.dominates(&acked)) {
                    self.barrier.forget(&database, &from);
                    self.send(from, Frame::Fallen { database, store: report.store });
                }
            }
            _ => {
                let acked = self.barrier.acked(&database, &from).filter(|acked| !report.vv.dominates(acked)).cloned();
                if let Some(acked) = acked {
                    self.falls.insert(place, acked);
                    let id = self.ask(Ask::Fall(database));
                    self.send(from, Frame::State { id, database });
                }
            }
        }
    }

    fn asked_to_cover(&mut self, from: PeerId, cover: Cover) {
        let database = cover.database;
        let waiting = self.questions.entry(database).or_default();
        // A question that is asked again replaces the one before it.
        waiting.retain(|(peer, waiting)| (*peer, waiting.purpose) != (from, cover.purpose) || cover.purpose == Purpose::Confirm);
        if waiting.iter().filter(|(peer, _)| *peer == from).count() < MAX_WAITING_QUESTIONS {
            waiting.push((from, cover));
        }
        self.answer_questions(database);
    }

    fn covered(&mut self, from: PeerId, answer: &CoverAnswer, now: Moment) {
        let database = answer.database;
        if let Some(holding) = self.holdings.get_mut(&database) {
            holding.covered(from, answer);
        }
        if let Some(burial) = self.burials.get_mut(&database) {
            burial.covered(from, answer);
        }
        if answer.verdict == Verdict::Yes {
            self.barrier.agreed(&database, from, answer.attempt, answer.epoch, answer.decider);
            self.settle(database, now);
        }
        self.reconcile.want(database);
    }

    /// A member, or this node, has this on disk.
    pub(super) fn durable(&mut self, database: DatabaseId, from: PeerId, vv: &VersionVector, now: Moment) {
        if !self.membership.is_member(&from) {
            return;
        }
        let store = if database == self.registry_id {
            self.registry.store(&from).map(|record| record.store)
        } else {
            self.registry.claims(&database).get(&from).filter(|claim| claim.was_ready).map(|claim| claim.store)
        };
        self.ack_stores.extend(store.map(|store| ((database, from), store)));
        self.barrier.ack(database, from, vv);
        if database == self.registry_id {
            self.compared(now);
            self.changes_on(now);
            self.want_joining();
        } else {
            self.settle(database, now);
            self.reconcile.want(database);
        }
    }
}
