//! Calls: where they go, what they wait for, what they come to.

use bytes::Bytes;
use crdt::{DatabaseId, Dot, RequestId, VersionVector};
use kvdb::PeerId;

use super::{Controller, Output};
use crate::Moment;
use crate::barrier::{Agreement, Durability, Outcome, admit, left};
use crate::claims::Readiness;
use crate::limits::{MAX_CALLS, WAY_BACK};
use crate::registry::ClaimState;
use crate::routing::{Begun, NOTHING, Origin, Route};
use crate::wire::{Answer, Code, Cover, Frame, Operation, Purpose, Refusal};

impl Controller {
    pub(super) fn call(
        &mut self,
        origin: Origin,
        request: RequestId,
        database: DatabaseId,
        operation: Operation,
        deadline: Moment,
        now: Moment,
    ) {
        if self.registry.live(&database).is_none() {
            // Unknown here may only mean that the registry has not brought it yet; dropped is dropped.
            let code = if self.registry.is_dropped(&database) || self.store_checked { Code::NoDatabase } else { Code::NotReady };
            return self.reply(origin, code, Answer::plain(self.me, NOTHING));
        }
        match self.calls.begin(origin, request, database, operation, deadline) {
            Begun::New(call) => self.route(call, now),
            Begun::Joined => {}
            Begun::Full => {
                let cause = format!("{MAX_CALLS} calls are under way, which is the limit");
                let refusal = Refusal::Busy { cause }.encode();
                self.reply(origin, Code::Refused, Answer::plain(self.me, refusal));
            }
        }
    }

    pub(super) fn route(&mut self, number: u64, now: Moment) {
        let Some(call) = self.calls.get(number) else { return };
        let (database, request) = (call.database, call.request);
        let holders = self.asked(&database);
        let decider = self.serving(&database).first().copied();
        // One that has just become the first decides nothing before it has caught up with the one before it.
        let sure = decider != Some(self.me) || self.deciding.get(&database).is_some_and(|deciding| deciding.caught_up);
        let decider = decider.filter(|_| sure);
        let readiness = self.readiness(&database);
        match self.calls.route(number, self.me, readiness, &holders, decider, now) {
            Route::End(code) => self.finish(number, code, Answer::plain(self.me, NOTHING), now),
            Route::Forward(peer) => self.forward(number, peer, request, now),
            Route::Here { .. } => self.serve(number, now),
        }
    }

    fn forward(&mut self, number: u64, peer: PeerId, request: RequestId, now: Moment) {
        let Some(call) = self.calls.get(number) else { return };
        let frame = Frame::Call {
            call: number,
            epoch: self.epoch,
            // Its answer is to be here before this node's own patience ends: it says more than that none came.
            deadline_ms: left(call.deadline.saturating_sub(WAY_BACK.min(call.deadline.saturating_sub(now) / 4)), now),
            request: request.0,
            database: call.database,
            body: call.operation.encode(),
        };
        self.out.push(Output::Send(peer, frame));
    }

    fn serve(&mut self, number: u64, now: Moment) {
        let Some(call) = self.calls.get(number) else { return };
        let (database, request) = (call.database, call.request);
        match call.operation.clone() {
            Operation::Read { confirmed: true, .. } => self.confirm(number, database, now),
            Operation::Read { payload, .. } => self.out.push(Output::Read(number, database, payload)),
            Operation::Write { durability, attempt, payload, .. } => {
                let durability = self.durability(&database, durability);
                let ready = self.ready_holders(&database).len();
                let joining = self.registry.claims(&database).values().filter(|claim| claim.state == ClaimState::Joining).count();
                let holders = self.holders_of(&database);
                // A caller who wants it tried in any case is not told that it cannot be confirmed now.
                let joining = joining + usize::from(attempt);
                match admit(durability, holders, ready, joining, self.barrier.waiting(&database)) {
                    Ok(()) => self.out.push(Output::Commit(number, database, request, payload)),
                    Err(refused) => {
                        let answer = Answer::plain(self.me, Refusal::from(refused).encode());
                        self.finish(number, refused.into(), answer, now);
                    }
                }
            }
        }
    }

    /// The durability of a write: its own, or the database's, which never asks for more holders than there are to be.
    fn durability(&self, database: &DatabaseId, asked: Option<Durability>) -> Durability {
        let holders = self.holders_of(database);
        let default = self.registry.live(database).map_or(Durability::Require(holders), |live| live.settings.durability);
        asked.unwrap_or(match default {
            Durability::Require(k) => Durability::Require(k.min(holders)),
            Durability::Prefer(k) => Durability::Prefer(k.min(holders)),
            Durability::Local => Durability::Local,
        })
    }

    /// The write is in the store; whether on disk, `Durable` says.
    pub(super) fn committed(&mut self, number: u64, dot: Option<Dot>, payload: Bytes, now: Moment) {
        let Some(call) = self.calls.get(number) else { return };
        let (database, deadline) = (call.database, call.deadline);
        let Operation::Write { durability, conditional, .. } = call.operation else { return };
        let Some(dot) = dot else { return self.finish(number, Code::Done, Answer::plain(self.me, payload), now) };
        let durability = self.durability(&database, durability);
        let agreement = conditional.then(|| Agreement::new((self.random)() >> 1, self.epoch, self.me));
        if let Some(agreement) = &agreement {
            let vv: VersionVector = [(dot.replica, dot.seq)].into_iter().collect();
            let cover = Cover { attempt: agreement.attempt, database, purpose: Purpose::Confirm, vv };
            self.ask_to_agree(number, cover, now);
        }
        self.payloads.insert(number, payload);
        self.barrier.wait(database, dot, number, durability, deadline, agreement);
        self.settle(database, now);
    }

    fn ask_to_agree(&mut self, call: u64, cover: Cover, now: Moment) {
        for peer in self.ready_holders(&cover.database).into_iter().filter(|peer| *peer != self.me) {
            self.out.push(Output::Send(peer, Frame::Cover(cover.clone())));
        }
        self.agreeing.insert(call, (now, cover));
    }

    /// Asks again whoever is to agree to conditional writes that still wait: a frame may be lost, and who was not ready may be
    /// by now.
    pub(super) fn ask_again_to_agree(&mut self, now: Moment) {
        let again = self.options.claims.ask_again;
        let due = self.agreeing.iter().filter(|(_, (asked, _))| now >= *asked + again);
        for (call, cover) in due.map(|(call, (_, cover))| (*call, cover.clone())).collect::<Vec<_>>() {
            self.ask_to_agree(call, cover, now);
        }
    }

    /// Lets go what the acknowledgements cover by now.
    pub(super) fn settle(&mut self, database: DatabaseId, now: Moment) {
        if self.barrier.waiting(&database) == 0 {
            return;
        }
        let holders = self.ready_holders(&database);
        for (call, outcome) in self.barrier.settle(&database, &holders) {
            self.outcome(call, outcome, now);
        }
    }

    pub(super) fn outcome(&mut self, number: u64, outcome: Outcome, now: Moment) {
        let payload = self.payloads.remove(&number).unwrap_or_default();
        let code = if outcome.unconfirmed.is_some() { Code::Unconfirmed } else { Code::Done };
        let answer = Answer {
            served_by: self.me,
            stale: false,
            dot: Some(outcome.dot),
            holders: outcome.holders,
            reason: outcome.unconfirmed,
            payload,
        };
        self.finish(number, code, answer, now);
    }

    /// Ends what has come to its deadline, and passes on anew what was passed on in vain.
    pub(super) fn expire(&mut self, now: Moment) {
        let (registry, this) = (&self.registry, &self.me);
        let ready = |database: &DatabaseId| {
            let claims = registry.claims(database).iter().filter(|(_, claim)| claim.state == ClaimState::Ready);
            claims.map(|(peer, _)| *peer).chain([*this]).collect()
        };
        for (_, call, outcome) in self.barrier.expire(now, ready) {
            self.outcome(call, outcome, now);
        }
        self.end_confirming(now);
        let (late, ended) = self.calls.late(now);
        for call in late {
            self.route(call, now);
        }
        for call in ended {
            let code = if self.calls.is_unknown(call) { Code::Broken } else { Code::NotReady };
            self.finish(call, code, Answer::plain(self.me, NOTHING), now);
        }
        self.changes_on(now);
    }

    /// An answer of a member to which a call was passed on.
    pub(super) fn replied(&mut self, from: PeerId, call: u64, code: Code, body: Bytes, now: Moment) {
        match self.calls.answered(call, from, code) {
            None => {}
            Some(true) => self.route(call, now),
            Some(false) => match Answer::decode(body) {
                Ok(answer) => self.finish(call, code, answer, now),
                Err(_) => self.finish(call, Code::Broken, Answer::plain(from, NOTHING), now),
            },
        }
    }

    pub(super) fn finish(&mut self, number: u64, code: Code, mut answer: Answer, _now: Moment) {
        let Some(call) = self.calls.get(number) else { return };
        // An earlier attempt may have been carried out where nobody has answered: it is not said that nothing was written.
        let unknown = code.is_unwritten() && self.calls.was_broken(number) && matches!(call.operation, Operation::Write { .. });
        let code = if unknown { Code::Broken } else { code };
        if unknown {
            answer.payload = NOTHING;
        }
        answer.stale |= call.here && answer.served_by == self.me && self.readiness(&call.database) != Readiness::Ready;
        let database = call.database;
        for origin in self.calls.end(number) {
            self.reply(origin, code, answer.clone());
        }
        self.payloads.remove(&number);
        self.agreeing.remove(&number);
        self.reconcile.want(database);
    }

    pub(super) fn reply(&mut self, origin: Origin, code: Code, answer: Answer) {
        self.out.push(match origin {
            Origin::Here(token) => Output::Reply(token, code, answer),
            Origin::Member(peer, call) => Output::Send(peer, Frame::Reply { call, code, body: answer.encode() }),
        });
    }
}
