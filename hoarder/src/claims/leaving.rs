//! Letting go: nothing is deleted before K ready holders that stay have all of it on disk.

use std::collections::BTreeSet;

use kvdb::PeerId;

use super::{Context, Holding, Phase, Want, ready_others};
use crate::Moment;
use crate::limits::MAX_LEAVE_ATTEMPTS;
use crate::registry::{Claim, ClaimState};
use crate::wire::{Cover, CoverAnswer, Purpose, Verdict};

/// An attempt to let go.
#[derive(Debug)]
pub(super) struct Leaving {
    /// When it began, or will be tried anew.
    started: Moment,
    /// Drawn when the question is first asked; an answer to another one says nothing.
    attempt: Option<u64>,
    asked: Moment,
    attempts: u32,
    yes: BTreeSet<PeerId>,
    /// Members that let go themselves.
    going_too: BTreeSet<PeerId>,
}

impl Leaving {
    pub(super) fn new(now: Moment) -> Self {
        Self { started: now, attempt: None, asked: now, attempts: 0, yes: BTreeSet::new(), going_too: BTreeSet::new() }
    }

    pub(super) fn answered(&mut self, from: PeerId, answer: &CoverAnswer) {
        if self.attempt != Some(answer.attempt) {
            return;
        }
        match answer.verdict {
            Verdict::Yes => {
                self.yes.insert(from);
            }
            Verdict::Leaving => {
                self.going_too.insert(from);
            }
            Verdict::NotReady | Verdict::Unknown => {}
        }
    }
}

impl Holding {
    /// One pass of one that lets go; whether the phase has changed.
    pub(super) fn leave(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        let Phase::Leaving(leaving) = &mut self.phase else { return false };
        let needed = usize::from(context.holders);
        let others = ready_others(context);
        // Who has lost its claim meanwhile is no holder any more, whatever it said.
        let yes = leaving.yes.iter().filter(|peer| others.contains(peer)).count();
        if yes >= needed {
            if own.is_some() {
                wants.push(Want::Unclaim);
            }
            self.phase = Phase::Unclaiming;
            return true;
        }
        // Of two that leave at once the one of higher rank stays.
        let outranks = leaving.going_too.iter().any(|peer| context.me < *peer);
        let tired = context.now >= leaving.started + context.options.leave_attempt;
        if tired {
            leaving.attempts += 1;
            leaving.started = context.now;
            leaving.attempt = None;
            leaving.yes.clear();
            leaving.going_too.clear();
        }
        let stays = context.desired || outranks || others.len() < needed || leaving.attempts >= MAX_LEAVE_ATTEMPTS;
        if stays || !context.may_move {
            return self.stay(context, own, wants);
        }
        if let Some(own) = own.filter(|own| own.state != ClaimState::Leaving) {
            wants.push(Want::Claim(Claim { state: ClaimState::Leaving, ..*own }));
            return false;
        }
        let again = leaving.attempt.is_none() || context.now >= leaving.asked + context.options.ask_again;
        if context.frozen && again {
            let attempt = *leaving.attempt.get_or_insert(context.random);
            leaving.asked = context.now;
            let missing = others.into_iter().filter(|peer| !leaving.yes.contains(peer)).collect();
            let vv = context.durable.clone();
            wants.push(Want::Cover(missing, Cover { attempt, database: self.database, purpose: Purpose::HandOver, vv }));
        }
        false
    }

    /// It is wanted after all, or nobody takes over: it has missed what was confirmed meanwhile, so it joins again.
    fn stay(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        wants.push(Want::Thaw);
        // A new quiet time before the next try.
        self.undesired = (!context.desired).then_some(context.now);
        self.phase = Phase::Idle;
        if own.is_some() {
            self.begin_joining();
        }
        // Not at once: a holding without a claim would try to leave again in the same step.
        false
    }
}
