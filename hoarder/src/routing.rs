//! Where a call goes: to this node if it is a ready holder, else to one that is, and on to the next when that one fails.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::{DatabaseId, RequestId};
use kvdb::PeerId;

use crate::Moment;
use crate::claims::Readiness;
use crate::limits::{FORWARD_PATIENCE, MAX_CALLS, MAX_FORWARDS};
use crate::wire::{Code, Operation};

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A caller at this node, by its number.
    Here(u64),
    /// A member, by the number of its call.
    Member(PeerId, u64),
}

/// Where a call goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// It is answered here; `stale` if this node is not ready just now.
    Here {
        /// Not ready just now.
        stale: bool,
    },
    /// It is passed on.
    Forward(PeerId),
    /// It ends.
    End(Code),
}

/// One call under way.
#[derive(Debug, Clone)]
pub struct Call {
    /// All who wait for it: attempts with one request id join.
    pub origins: Vec<Origin>,
    /// The client's request id.
    pub request: RequestId,
    /// The database.
    pub database: DatabaseId,
    /// What is asked for.
    pub operation: Operation,
    /// When it ends in any case.
    pub deadline: Moment,
    /// Members that were asked in vain.
    tried: BTreeSet<PeerId>,
    /// Whom it was passed on to, and when that is taken for lost.
    sent: Option<(PeerId, Moment)>,
    /// One of the attempts may have been carried out.
    unknown: bool,
    /// It is being carried out here.
    pub here: bool,
}

/// All calls of one node.
#[derive(Debug, Default)]
pub struct Calls {
    open: BTreeMap<u64, Call>,
    by_request: BTreeMap<(DatabaseId, RequestId), u64>,
    next: u64,
    in_use: BTreeMap<DatabaseId, usize>,
}

/// What became of a new call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// It is under way under this number.
    New(u64),
    /// An attempt with the same request id is under way already: its outcome will be the answer.
    Joined,
    /// There are too many.
    Full,
}

impl Calls {
    /// Takes in a call.
    pub fn begin(
        &mut self,
        origin: Origin,
        request: RequestId,
        database: DatabaseId,
        operation: Operation,
        deadline: Moment,
    ) -> Begun {
        let running = self.by_request.get(&(database, request)).and_then(|call| self.open.get_mut(call));
        // Only the very same: a retry that asks for more must not be content with less. The store knows its request id.
        if let Some(call) = running.filter(|call| call.operation == operation) {
            call.origins.push(origin);
            // The first one's patience must not end the second one's call.
            call.deadline = call.deadline.max(deadline);
            return Begun::Joined;
        }
        if self.open.len() >= MAX_CALLS {
            return Begun::Full;
        }
        self.next += 1;
        let call = Call {
            origins: vec![origin],
            request,
            database,
            operation,
            deadline,
            tried: BTreeSet::new(),
            sent: None,
            unknown: false,
            here: false,
        };
        self.open.insert(self.next, call);
        self.by_request.entry((database, request)).or_insert(self.next);
        *self.in_use.entry(database).or_insert(0) += 1;
        Begun::New(self.next)
    }

    /// Where the call goes now. `holders` are the ready ones in placement order; `decider` is the one to whom conditional
    /// writes go. A call that came from a member is not passed on a second time.
    pub fn route(
        &mut self,
        number: u64,
        me: PeerId,
        readiness: Readiness,
        holders: &[PeerId],
        decider: Option<PeerId>,
        now: Moment,
    ) -> Route {
        let Some(call) = self.open.get_mut(&number) else { return Route::End(Code::Broken) };
        let (conditional, lenient) = match &call.operation {
            Operation::Read { stale, confirmed, .. } => (false, *stale && !confirmed),
            Operation::Write { durability, conditional, stale, .. } => {
                let strict = matches!(durability, None | Some(crate::Durability::Require(_)));
                (*conditional, *stale && !strict && !conditional)
            }
        };
        let mine = readiness == Readiness::Ready && (!conditional || decider == Some(me));
        let forwarded = call.origins.iter().any(|origin| matches!(origin, Origin::Member(..)));
        let next = if conditional { decider.as_slice() } else { holders };
        let next = next.iter().find(|peer| **peer != me && !call.tried.contains(peer));
        let route = match next {
            _ if mine => Route::Here { stale: false },
            Some(next) if !forwarded && call.tried.len() < MAX_FORWARDS as usize => Route::Forward(*next),
            _ if readiness == Readiness::Stale && lenient => Route::Here { stale: true },
            _ if call.unknown => Route::End(Code::Broken),
            _ => Route::End(Code::NotReady),
        };
        call.here = matches!(route, Route::Here { .. });
        if let Route::Forward(peer) = route {
            call.sent = Some((peer, (now + FORWARD_PATIENCE).min(call.deadline)));
        }
        route
    }

    /// An answer has come; whether the call is to be routed once more. Answers of others than the one asked count for nothing.
    pub fn answered(&mut self, number: u64, from: PeerId, code: Code) -> Option<bool> {
        let call = self.open.get_mut(&number)?;
        let (peer, _) = call.sent.filter(|(peer, _)| *peer == from)?;
        if !code.is_retried() {
            return Some(false);
        }
        call.sent = None;
        call.tried.insert(peer);
        call.unknown |= code == Code::Broken;
        Some(true)
    }

    /// A member is gone: the calls that were passed on to it are to be routed anew.
    pub fn lost(&mut self, peer: &PeerId) -> Vec<u64> {
        let lost = self.open.iter_mut().filter(|(_, call)| call.sent.is_some_and(|(to, _)| to == *peer));
        lost.map(|(number, call)| call.broken(*number)).collect()
    }

    /// The calls whose answer has not come in time, to be routed anew, and those whose deadline has come.
    pub fn late(&mut self, now: Moment) -> (Vec<u64>, Vec<u64>) {
        let over = |call: &Call| now >= call.deadline && !call.here;
        let ended = self.open.iter().filter(|(_, call)| over(call)).map(|(number, _)| *number).collect();
        let late = self.open.iter_mut().filter(|(_, call)| !over(call) && call.sent.is_some_and(|(_, until)| now >= until));
        (late.map(|(number, call)| call.broken(*number)).collect(), ended)
    }

    /// The call is over; who waits for it.
    pub fn end(&mut self, number: u64) -> Vec<Origin> {
        let Some(call) = self.open.remove(&number) else { return Vec::new() };
        if self.by_request.get(&(call.database, call.request)) == Some(&number) {
            self.by_request.remove(&(call.database, call.request));
        }
        if let Some(count) = self.in_use.get_mut(&call.database) {
            *count -= 1;
            if *count == 0 {
                self.in_use.remove(&call.database);
            }
        }
        call.origins
    }

    /// A call under way.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Call> {
        self.open.get(&number)
    }

    /// Whether an attempt that nobody has answered may have been carried out.
    #[must_use]
    pub fn was_broken(&self, number: u64) -> bool {
        self.open.get(&number).is_some_and(|call| call.unknown)
    }

    /// Whether one of the attempts, the one under way included, may have been carried out.
    #[must_use]
    pub fn is_unknown(&self, number: u64) -> bool {
        self.open.get(&number).is_some_and(|call| call.unknown || call.sent.is_some())
    }

    /// Whether calls use the database.
    #[must_use]
    pub fn uses(&self, database: &DatabaseId) -> bool {
        self.in_use.contains_key(database)
    }

    /// How many calls are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl Call {
    fn broken(&mut self, number: u64) -> u64 {
        if let Some((peer, _)) = self.sent.take() {
            self.tried.insert(peer);
            self.unknown = true;
        }
        number
    }
}

/// A client that is no member: it sticks to a holder and moves on when that one fails.
#[derive(Debug, Default)]
pub struct Client {
    sticky: BTreeMap<DatabaseId, PeerId>,
    /// Members that failed, and until when they are asked last.
    failed: BTreeMap<PeerId, Moment>,
}

impl Client {
    /// Whom to ask: the one that answered last, else the first in order that has not failed lately, else the first.
    #[must_use]
    pub fn pick(&self, database: &DatabaseId, order: &[PeerId], now: Moment) -> Option<PeerId> {
        let well = |peer: &&PeerId| self.failed.get(peer).is_none_or(|until| now >= *until);
        let sticky = self.sticky.get(database).filter(|peer| order.contains(peer)).filter(well);
        sticky.or_else(|| order.iter().find(well)).or(order.first()).copied()
    }

    /// It has answered, and named who served: that one is asked next time.
    pub fn served(&mut self, database: DatabaseId, by: PeerId) {
        self.failed.remove(&by);
        self.sticky.insert(database, by);
    }

    /// It has not; whether another is to be asked with the same request id.
    pub fn failed(&mut self, database: &DatabaseId, peer: PeerId, code: Code, now: Moment) -> bool {
        if code.is_retried() {
            self.sticky.remove(database);
            self.failed.insert(peer, now + FORWARD_PATIENCE);
        }
        code.is_retried()
    }
}

/// An empty answer's body.
pub(crate) const NOTHING: Bytes = Bytes::new();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Durability;
    use crate::testing::member;

    const DB: DatabaseId = DatabaseId([1; 32]);

    fn at(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    fn read() -> Operation {
        Operation::Read { stale: false, confirmed: false, payload: NOTHING }
    }

    fn write(durability: Durability, conditional: bool) -> Operation {
        Operation::Write { durability: Some(durability), conditional, attempt: false, stale: true, payload: NOTHING }
    }

    fn begin(calls: &mut Calls, origin: Origin, request: u8, operation: Operation) -> u64 {
        let Begun::New(number) = calls.begin(origin, RequestId([request; 16]), DB, operation, at(20)) else { panic!() };
        number
    }

    #[test]
    fn a_ready_holder_answers_itself_and_others_pass_on_in_order_until_nobody_is_left() {
        let mut calls = Calls::default();
        let holders = [member(2), member(3)];
        let call = begin(&mut calls, Origin::Here(1), 1, read());
        assert_eq!(calls.route(call, member(3), Readiness::Ready, &holders, None, at(0)), Route::Here { stale: false });
        let call = begin(&mut calls, Origin::Here(1), 2, read());
        assert_eq!(calls.route(call, member(1), Readiness::None, &holders, None, at(0)), Route::Forward(member(2)));
        assert_eq!(calls.answered(call, member(3), Code::Done), None, "nobody asked it");
        assert_eq!(calls.answered(call, member(2), Code::NotReady), Some(true));
        assert_eq!(calls.route(call, member(1), Readiness::None, &holders, None, at(0)), Route::Forward(member(3)));
        assert_eq!(calls.lost(&member(3)), [call]);
        // One of the attempts may have been carried out: the answer must not say that nothing was written.
        assert_eq!(calls.route(call, member(1), Readiness::None, &holders, None, at(0)), Route::End(Code::Broken));
        assert_eq!(calls.end(call), [Origin::Here(1)]);
        let call = begin(&mut calls, Origin::Here(1), 2, read());
        calls.route(call, member(1), Readiness::None, &holders[..1], None, at(0));
        assert_eq!(calls.answered(call, member(2), Code::NotReady), Some(true));
        assert_eq!(calls.route(call, member(1), Readiness::None, &holders[..1], None, at(0)), Route::End(Code::NotReady));
        assert_eq!(calls.answered(call, member(2), Code::Refused), None);
    }

    #[test]
    fn situation_09_attempts_with_one_request_id_join_and_all_get_the_one_outcome() {
        let mut calls = Calls::default();
        let call = begin(&mut calls, Origin::Here(1), 1, write(Durability::Require(2), false));
        let member_call = Origin::Member(member(2), 77);
        let again = calls.begin(member_call, RequestId([1; 16]), DB, write(Durability::Require(2), false), at(30));
        assert_eq!(again, Begun::Joined);
        assert_eq!(calls.get(call).unwrap().deadline, at(30));
        assert!(calls.uses(&DB));
        // A weaker attempt under way is not good enough for a stronger one.
        let other = begin(&mut calls, Origin::Here(3), 1, write(Durability::Local, false));
        assert_eq!(calls.end(other), [Origin::Here(3)]);
        assert_eq!(calls.end(call), [Origin::Here(1), member_call]);
        assert!(!calls.uses(&DB) && calls.is_empty());
        // After the end the same id is a new call: the store knows its outcome.
        begin(&mut calls, Origin::Here(1), 1, read());
    }

    #[test]
    fn a_member_that_does_not_answer_is_left_after_a_while_and_the_deadline_ends_all() {
        let mut calls = Calls::default();
        let holders = [member(2), member(3)];
        let call = begin(&mut calls, Origin::Here(1), 1, read());
        calls.route(call, member(1), Readiness::None, &holders, None, at(0));
        assert_eq!(calls.late(at(2)), (vec![], vec![]));
        assert_eq!(calls.late(at(3)), (vec![call], vec![]));
        assert_eq!(calls.route(call, member(1), Readiness::None, &holders, None, at(3)), Route::Forward(member(3)));
        assert_eq!(calls.late(at(20)), (vec![], vec![call]));
        assert!(calls.is_unknown(call));
    }

    #[test]
    fn what_came_from_a_member_is_not_passed_on_again_and_conditions_are_for_the_decider() {
        let mut calls = Calls::default();
        let holders = [member(2), member(3)];
        let call = begin(&mut calls, Origin::Member(member(9), 1), 1, read());
        assert_eq!(calls.route(call, member(1), Readiness::None, &holders, None, at(0)), Route::End(Code::NotReady));
        let decider = Some(member(2));
        let call = begin(&mut calls, Origin::Here(1), 2, write(Durability::Require(2), true));
        assert_eq!(calls.route(call, member(3), Readiness::Ready, &holders, decider, at(0)), Route::Forward(member(2)));
        assert_eq!(calls.route(call, member(2), Readiness::Ready, &holders, decider, at(0)), Route::Here { stale: false });
        let call = begin(&mut calls, Origin::Here(1), 3, write(Durability::Require(2), true));
        assert_eq!(calls.route(call, member(3), Readiness::Ready, &holders, None, at(0)), Route::End(Code::NotReady));
    }

    #[test]
    fn one_that_is_not_ready_just_now_serves_only_who_allows_it() {
        let mut calls = Calls::default();
        for (request, operation, expected) in [
            (1, read(), Route::End(Code::NotReady)),
            (2, Operation::Read { stale: true, confirmed: false, payload: NOTHING }, Route::Here { stale: true }),
            (3, write(Durability::Prefer(2), false), Route::Here { stale: true }),
            (4, write(Durability::Local, false), Route::Here { stale: true }),
            (5, write(Durability::Require(2), false), Route::End(Code::NotReady)),
            (6, write(Durability::Local, true), Route::End(Code::NotReady)),
        ] {
            let call = begin(&mut calls, Origin::Here(1), request, operation);
            assert_eq!(calls.route(call, member(1), Readiness::Stale, &[], None, at(0)), expected, "{request}");
            let route = calls.route(call, member(1), Readiness::None, &[], None, at(0));
            assert_eq!(route, Route::End(Code::NotReady), "one that never was ready answers nothing");
        }
    }

    #[test]
    fn the_number_of_calls_is_bounded() {
        let mut calls = Calls::default();
        let request = |n: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(n as u64).to_be_bytes());
            RequestId(id)
        };
        for n in 0..MAX_CALLS {
            assert!(matches!(calls.begin(Origin::Here(1), request(n), DB, read(), at(1)), Begun::New(_)));
        }
        assert_eq!(calls.begin(Origin::Here(1), request(MAX_CALLS), DB, read(), at(1)), Begun::Full);
    }

    #[test]
    fn a_client_sticks_moves_on_and_is_corrected_by_the_answer() {
        let order = [member(1), member(2), member(3)];
        let mut client = Client::default();
        assert_eq!(client.pick(&DB, &order, at(0)), Some(member(1)));
        // The first one passed the call on: whoever served is asked directly.
        client.served(DB, member(3));
        assert_eq!(client.pick(&DB, &order, at(0)), Some(member(3)));
        assert!(client.failed(&DB, member(3), Code::Broken, at(0)));
        assert!(client.failed(&DB, member(1), Code::NotReady, at(0)));
        assert_eq!(client.pick(&DB, &order, at(0)), Some(member(2)));
        assert_eq!(client.pick(&DB, &order[..1], at(0)), Some(member(1)));
        assert_eq!(client.pick(&DB, &order, at(3)), Some(member(1)));
        assert!(!client.failed(&DB, member(2), Code::Refused, at(3)));
    }
}
