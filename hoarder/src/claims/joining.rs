//! From the claim to readiness.

use std::collections::BTreeMap;

use crdt::VersionVector;
use kvdb::PeerId;

use super::{Context, Holding, Phase, Want};
use crate::registry::{Claim, ClaimState};
use crate::wire::Report;

/// How far a joiner has come. The stages follow each other; each begins only when the one before is done.
#[derive(Debug)]
pub(super) enum Joining {
    /// The claim is to be durable with more than half of the members.
    Claiming,
    /// The registry is to be compared with at least half of them; the number of the first comparison that counts.
    Comparing(u64),
    /// What enough others have is to be here.
    Gathering,
    /// Ready for the first time on this store: that is to be durable with more than half.
    Announcing,
}

impl Holding {
    /// One pass of a joiner; whether the phase or stage has changed.
    pub(super) fn join(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        let Phase::Joining(joining) = &self.phase else { return false };
        if self.gives_up(context, own) {
            wants.push(Want::Unclaim);
            self.phase = Phase::Withdrawing;
            return false;
        }
        let next = match joining {
            Joining::Claiming => self.claiming(context, own, wants),
            // Removed meanwhile: whether there is to be one again is decided as at the beginning, on a whole view.
            _ if own.is_none() => Some(Phase::Idle),
            _ if own.is_some_and(|claim| claim.store != context.store) => Some(Phase::Joining(Joining::Claiming)),
            Joining::Comparing(number) if context.compared >= *number => {
                // Only what is said from now on counts.
                self.ask_anew();
                self.gathering_since = None;
                self.caught_up = Some(context.compared_at);
                Some(Phase::Joining(Joining::Gathering))
            }
            Joining::Comparing(number) => {
                wants.push(Want::Compare(*number));
                None
            }
            Joining::Gathering => self.gathering(context, own, wants),
            Joining::Announcing => announcing(context, own, wants),
        };
        let changed = next.is_some();
        if let Some(next) = next {
            self.phase = next;
        }
        changed
    }

    /// A joiner that nobody wants any more and that was never ready anywhere.
    fn gives_up(&self, context: &Context<'_>, own: Option<&Claim>) -> bool {
        let creator = context.settings.is_some_and(|settings| settings.creator == context.me);
        let quiet = self.undesired.is_some_and(|since| context.now >= since + context.options.quiet_time);
        let served = context.claims.iter().any(|(peer, claim)| *peer != context.me && claim.ever_ready);
        quiet && context.may_move && (served || !creator) && own.is_some_and(|claim| !claim.ever_ready)
    }

    fn claiming(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> Option<Phase> {
        let standing = own.filter(|claim| claim.store == context.store && claim.state != ClaimState::Leaving);
        match standing {
            // A claim is marked ready only when more than half know that it was ready.
            Some(claim) if claim.state == ClaimState::Ready || context.claim_durable => {
                // Not before: acknowledgements of a new store must not be taken for those of the old one.
                if !self.open {
                    self.open = true;
                    wants.push(Want::Open);
                }
                Some(Phase::Joining(Joining::Comparing(context.next_comparison)))
            }
            Some(_) => None,
            // Removed by others before this node knew: right after a start it knows too little to claim anew.
            None if own.is_none() && !context.may_move => Some(Phase::Idle),
            None => {
                let was_ready = own.is_some_and(|claim| claim.store == context.store && claim.was_ready);
                let ever_ready = own.is_some_and(|claim| claim.ever_ready);
                let claim = Claim { state: ClaimState::Joining, store: context.store, was_ready, ever_ready };
                wants.push(Want::Claim(claim));
                None
            }
        }
    }

    fn gathering(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> Option<Phase> {
        let own = own?;
        let since = *self.gathering_since.get_or_insert(context.now);
        // Whoever is there is waited for a while, also by one that has enough in itself: others may know that it should have more.
        let patient = context.now < since + 2 * context.options.ask_again;
        let awaited = |(peer, claim): (&PeerId, &Claim)| {
            *peer != context.me && claim.was_ready && !self.is_covered(peer, claim, context.durable)
        };
        let pending = patient && context.claims.iter().any(awaited);
        if context.healthy && !pending && self.has_enough(context, own) {
            if own.state == ClaimState::Ready {
                return Some(Phase::Ready);
            }
            if !own.was_ready {
                wants.push(Want::Claim(Claim { was_ready: true, ever_ready: true, ..*own }));
            }
            return Some(Phase::Joining(Joining::Announcing));
        }
        if self.asked.is_none_or(|at| context.now >= at + context.options.ask_again) {
            self.asked = Some(context.now);
            let others: Vec<PeerId> = context.claims.keys().copied().filter(|peer| *peer != context.me).collect();
            if !others.is_empty() {
                wants.push(Want::Ask(others));
            }
        }
        None
    }

    /// Whether every confirmed write must be here.
    fn has_enough(&self, context: &Context<'_>, own: &Claim) -> bool {
        let Some(settings) = context.settings else { return false };
        if !context.claims.values().any(|claim| claim.ever_ready) {
            return settings.creator == context.me && self.others_yield(context);
        }
        let own = own.was_ready && own.store == context.store;
        is_enough(context.claims, &context.me, own, settings.least, &self.reports, context.durable)
    }

    fn is_covered(&self, peer: &PeerId, claim: &Claim, durable: &VersionVector) -> bool {
        covers(&self.reports, peer, claim, durable)
    }

    /// Of two that made one name at once, only the one whose settings stand may be the first; and only once each other that
    /// may have taken itself for the first has said that it did not, and that it knows better now.
    fn others_yield(&self, context: &Context<'_>) -> bool {
        let yields = |report: &Report| !report.was_ready && report.creator == Some(context.me);
        context
            .claims
            .keys()
            .filter(|peer| **peer != context.me)
            .all(|peer| self.reports.get(peer).is_some_and(|report| report.as_ref().is_none_or(yields)))
    }
}

/// Whether what these reports say, all of it here on disk, must hold every confirmed write: at least `ever ready − least + 1`
/// of those that were ever ready, counting only who still has the store on which it was.
#[must_use]
pub fn is_enough(
    claims: &BTreeMap<PeerId, Claim>,
    me: &PeerId,
    counts_itself: bool,
    least: u8,
    reports: &BTreeMap<PeerId, Option<Report>>,
    durable: &VersionVector,
) -> bool {
    let ever = claims.values().filter(|claim| claim.ever_ready).count();
    let others = claims.iter().filter(|(peer, claim)| *peer != me && claim.was_ready && covers(reports, peer, claim, durable));
    // At least one in any case: under a lower durability than the least there may be writes that only one has.
    let needed = (ever + 1).saturating_sub(usize::from(least)).max(1);
    others.count() + usize::from(counts_itself) >= needed
}

/// Whether this member still has the store on which it was ready, and all that it has there is here.
fn covers(reports: &BTreeMap<PeerId, Option<Report>>, peer: &PeerId, claim: &Claim, durable: &VersionVector) -> bool {
    let report = reports.get(peer).and_then(Option::as_ref);
    report.is_some_and(|report| report.was_ready && report.store == claim.store && durable.dominates(&report.vv))
}

/// First more than half are to know that it was ready, then it says that it is.
fn announcing(context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> Option<Phase> {
    let own = own.filter(|own| own.was_ready)?;
    if own.state == ClaimState::Ready {
        return context.healthy.then_some(Phase::Ready);
    }
    if context.claim_durable {
        wants.push(Want::Claim(Claim { state: ClaimState::Ready, ..*own }));
    }
    None
}
