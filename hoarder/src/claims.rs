//! One database at one node, from the first claim to the last byte: when it is ready, and when it may let go.
//!
//! **What must hold.** A confirmed write is on the disks of k holders that were ready. So among the members that were ever ready
//! and whose claims stand, at least k have it or have lost it. Whoever catches up from `ever ready − k + 1` of them, counting
//! only those that still have the store on which they were ready, meets at least one that has it. A claim goes only when K
//! others have all of it.
//!
//! **Becoming ready.** The claim must be durable with more than half of the members *before* the registry is compared with at
//! least half of them, and that *before* the other holders are asked what they have. Of two that join at once, one then sees
//! the other. Becoming ready for the first time is again made durable with more than half before it counts: whoever
//! compares the registry later knows of it.

mod burial;
mod joining;
mod leaving;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crdt::{DatabaseId, VersionVector};
use kvdb::PeerId;

use crate::limits::QUIET_TIME;
use crate::registry::{Claim, ClaimState, Settings};
use crate::wire::{Cover, CoverAnswer, Report, Verdict};
use crate::{Moment, StoreId};

pub use burial::Burial;
use joining::Joining;
pub use joining::is_enough;
use leaving::Leaving;

/// Times of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimOptions {
    /// How long an undesired holder goes on serving, unused.
    pub quiet_time: Duration,
    /// How long one attempt to let go waits.
    pub leave_attempt: Duration,
    /// After what time a question is asked again.
    pub ask_again: Duration,
    /// After what time the claim of a member that is gone may be removed.
    pub dead_claim_grace: Duration,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        Self {
            quiet_time: QUIET_TIME,
            leave_attempt: crate::limits::LEAVE_ATTEMPT,
            ask_again: crate::limits::ASK_AGAIN,
            dead_claim_grace: crate::limits::DEAD_CLAIM_GRACE,
        }
    }
}

/// What a holding is told of the world at each step.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named")]
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The time.
    pub now: Moment,
    /// This node.
    pub me: PeerId,
    /// Its store.
    pub store: StoreId,
    /// The times of the protocol.
    pub options: &'a ClaimOptions,
    /// The database's settings; `None` once it was dropped.
    pub settings: Option<&'a Settings>,
    /// How many holders there should be, as far as this node may act on it.
    pub holders: u8,
    /// The claims to the database.
    pub claims: &'a BTreeMap<PeerId, Claim>,
    /// This node is among the desired holders.
    pub desired: bool,
    /// The live members.
    pub live: &'a BTreeSet<PeerId>,
    /// Databases may be moved: the settle window is over, at least half of the members are live, the registry was compared.
    pub may_move: bool,
    /// This node may begin to join one more database.
    pub may_join: bool,
    /// This node may begin to let go of one more database.
    pub may_leave: bool,
    /// This node is neither cut off from all nor running twice.
    pub healthy: bool,
    /// The number of the last comparison of the registry with at least half of the members that is finished.
    pub compared: u64,
    /// When that one began.
    pub compared_at: Moment,
    /// The number of the next one that begins.
    pub next_comparison: u64,
    /// This node's claim, as it stands here, is durable with more than half of the members.
    pub claim_durable: bool,
    /// Another holder that is not desired either lets go before this one.
    pub yields: bool,
    /// Calls use the database.
    pub in_use: bool,
    /// What this node has of it on disk.
    pub durable: &'a VersionVector,
    /// Nothing is merged any more, and all that was is on disk.
    pub frozen: bool,
    /// A random number.
    pub random: u64,
}

/// What a holding wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// Have the database open, and make it if it is not there.
    Open,
    /// Write this node's claim.
    Claim(Claim),
    /// Remove this node's claim.
    Unclaim,
    /// Compare the registry with at least half of the members: this comparison or a later one.
    Compare(u64),
    /// Ask these members what they have.
    Ask(Vec<PeerId>),
    /// Ask these members whether they cover this.
    Cover(Vec<PeerId>, Cover),
    /// Accept and merge nothing more of the database, and say when all is on disk.
    Freeze,
    /// Go on accepting and merging.
    Thaw,
    /// Delete the data.
    Destroy,
}

#[derive(Debug)]
enum Phase {
    /// Neither claim nor data.
    Idle,
    /// A claim, and not ready.
    Joining(Joining),
    /// Serving.
    Ready,
    /// Letting go; with a claim or, if it was lost, without.
    Leaving(Leaving),
    /// The claim is being removed, the data will follow.
    Unclaiming,
    /// The claim is being removed; then what is here is handed over.
    Withdrawing,
    /// The data are being deleted.
    Destroying,
}

/// How a holding stands, for those who serve and show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// Nothing is here, or it was never ready on this store.
    None,
    /// Was ready on this store, is not just now.
    Stale,
    /// A ready holder.
    Ready,
    /// Lets go.
    Leaving,
}

/// The state of one database at this node.
#[derive(Debug)]
pub struct Holding {
    database: DatabaseId,
    phase: Phase,
    /// The data are here.
    open: bool,
    undesired: Option<Moment>,
    /// What others said that they have, since the last change of phase that asks for it.
    reports: BTreeMap<PeerId, Option<Report>>,
    asked: Option<Moment>,
    generation: u64,
    gathering_since: Option<Moment>,
    /// When the comparison of the registry began on which the present readiness rests.
    caught_up: Option<Moment>,
    /// This node's claim was ready on its store when last looked at.
    was_ready: bool,
}

impl Holding {
    /// A database of which this node has the data, or not, at its start.
    #[must_use]
    pub fn new(database: DatabaseId, has_data: bool) -> Self {
        Self {
            database,
            phase: Phase::Idle,
            open: has_data,
            undesired: None,
            reports: BTreeMap::new(),
            asked: None,
            generation: 0,
            gathering_since: None,
            caught_up: None,
            was_ready: false,
        }
    }

    /// How it stands.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match self.phase {
            Phase::Ready => Readiness::Ready,
            Phase::Leaving(_) | Phase::Unclaiming | Phase::Destroying => Readiness::Leaving,
            Phase::Joining(_) if self.was_ready => Readiness::Stale,
            Phase::Joining(_) | Phase::Idle | Phase::Withdrawing => Readiness::None,
        }
    }

    /// Changes with each beginning of a catch-up: what was asked before it says nothing.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// While ready: all that was confirmed before this time is here.
    #[must_use]
    pub fn caught_up(&self) -> Option<Moment> {
        self.caught_up.filter(|_| matches!(self.phase, Phase::Ready))
    }

    /// Whether it is under way to readiness.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        matches!(self.phase, Phase::Joining(_))
    }

    /// Whether nothing is here and nothing under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && !self.open
    }

    /// Whether the data are here.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.open
    }

    /// The loop of this node stood still, or its store turned out to be older than it should be: what it was sure of is void.
    pub fn lost(&mut self) {
        if matches!(self.phase, Phase::Ready | Phase::Joining(_)) {
            self.begin_joining();
        }
    }

    /// A member has said what it has. Reports to questions of an earlier phase must not be handed in.
    pub fn report(&mut self, from: PeerId, report: Option<Report>) {
        if matches!(self.phase, Phase::Joining(_)) {
            self.reports.insert(from, report);
        }
    }

    /// A member has answered whether it covers what this node wants to let go of.
    pub fn covered(&mut self, from: PeerId, answer: &CoverAnswer) {
        if let Phase::Leaving(leaving) = &mut self.phase {
            leaving.answered(from, answer);
        }
    }

    /// The data are gone.
    pub fn destroyed(&mut self) {
        self.open = false;
        self.phase = Phase::Idle;
    }

    /// What is said to a member that asks for a hand-over: yes, or why never; `None` while it may still become a yes.
    #[must_use]
    pub fn judge(&self, asked: &VersionVector, durable: &VersionVector) -> Option<Verdict> {
        match self.readiness() {
            Readiness::Ready if durable.dominates(asked) => Some(Verdict::Yes),
            Readiness::Ready => None,
            Readiness::Leaving => Some(Verdict::Leaving),
            Readiness::Stale => Some(Verdict::NotReady),
            Readiness::None => Some(if self.open { Verdict::NotReady } else { Verdict::Unknown }),
        }
    }

    /// Looks at the world and goes on. To be called whenever something may have changed; calling it more often does no harm.
    pub fn step(&mut self, context: &Context<'_>) -> Vec<Want> {
        let mut wants = Vec::new();
        let own = context.claims.get(&context.me);
        self.was_ready = own.is_some_and(|claim| claim.store == context.store && claim.was_ready);
        if context.desired {
            self.undesired = None;
        } else {
            self.undesired.get_or_insert(context.now);
        }
        // Each pass may change the phase once; no phase is left twice.
        for _ in 0..4 {
            if !self.pass(context, own, &mut wants) {
                break;
            }
        }
        wants
    }

    /// One pass; whether the phase has changed.
    fn pass(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        if context.settings.is_none() {
            return self.dropped(own, wants);
        }
        match &mut self.phase {
            Phase::Idle => self.idle(context, own, wants),
            Phase::Joining(_) => self.join(context, own, wants),
            Phase::Ready => self.serve(context, own, wants),
            Phase::Leaving(_) => self.leave(context, own, wants),
            // Again, should the registry have refused it; one that is under way is not written twice.
            Phase::Unclaiming | Phase::Withdrawing if own.is_some() => {
                wants.push(Want::Unclaim);
                false
            }
            Phase::Unclaiming => {
                self.phase = Phase::Destroying;
                wants.push(Want::Destroy);
                false
            }
            Phase::Withdrawing if own.is_none() => {
                self.phase = Phase::Idle;
                true
            }
            Phase::Withdrawing | Phase::Destroying => false,
        }
    }

    /// Dropped everywhere: first the data cannot be read any more, then the claim goes.
    fn dropped(&mut self, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        if own.is_some() {
            wants.push(Want::Unclaim);
        }
        if self.open && !matches!(self.phase, Phase::Destroying) {
            self.phase = Phase::Destroying;
            wants.push(Want::Destroy);
        } else if !self.open {
            self.phase = Phase::Idle;
        }
        false
    }

    fn idle(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        // A claim that stands is taken up in any case: only a ready holder may let go of it.
        if own.is_some() {
            self.begin_joining();
            return true;
        }
        if !context.may_move {
            return false;
        }
        let served = context.claims.values().any(|claim| claim.ever_ready);
        let creator = context.settings.is_some_and(|settings| settings.creator == context.me);
        if (context.desired && served) || (creator && !served) {
            if context.may_join {
                self.begin_joining();
            }
            return context.may_join;
        }
        let taken_over = ready_others(context).len() >= usize::from(context.holders);
        if self.open && served && taken_over && context.may_leave {
            wants.push(Want::Freeze);
            self.phase = Phase::Leaving(Leaving::new(context.now));
            return true;
        }
        false
    }

    fn begin_joining(&mut self) {
        self.phase = Phase::Joining(Joining::Claiming);
        self.ask_anew();
    }

    fn ask_anew(&mut self) {
        self.reports.clear();
        self.asked = None;
        self.generation += 1;
    }

    fn serve(&mut self, context: &Context<'_>, own: Option<&Claim>, wants: &mut Vec<Want>) -> bool {
        let standing = own.is_some_and(|claim| claim.state == ClaimState::Ready && claim.store == context.store);
        if !standing || !context.healthy {
            // Removed by others while this node was away, overwritten, or cut off: it is to catch up before it serves again.
            self.phase = Phase::Idle;
            if own.is_some() {
                self.begin_joining();
            }
            return true;
        }
        let quiet = self.undesired.is_some_and(|since| context.now >= since + context.options.quiet_time);
        if quiet && !context.in_use && context.may_move && context.may_leave && is_next_to_leave(context) {
            wants.push(Want::Freeze);
            self.phase = Phase::Leaving(Leaving::new(context.now));
            return true;
        }
        false
    }
}

/// Enough others serve, nobody else is letting go, and of those that want to this node is the last in rank. Views may
/// differ, so this only makes it rare that two leave at once; that it does no harm is for the protocol to see to.
fn is_next_to_leave(context: &Context<'_>) -> bool {
    let leaving = context.claims.iter().any(|(peer, claim)| *peer != context.me && claim.state == ClaimState::Leaving);
    !leaving && !context.yields && ready_others(context).len() >= usize::from(context.holders)
}

/// The other members that are ready by their claims, and live.
fn ready_others(context: &Context<'_>) -> Vec<PeerId> {
    let ready = |(peer, claim): (&PeerId, &Claim)| {
        let counts = *peer != context.me && claim.state == ClaimState::Ready && context.live.contains(peer);
        counts.then_some(*peer)
    };
    context.claims.iter().filter_map(ready).collect()
}
