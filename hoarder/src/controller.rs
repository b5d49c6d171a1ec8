//! One node of the fleet: the one door over membership, registry, claims, barrier and routing.

mod calls;
mod compare;
mod confirm;
mod holdings;
mod records;
mod talk;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Dot, Key, RequestId, Signer, Verifier, VersionVector};
use kvdb::PeerId;

use crate::barrier::{Barrier, Durability, Refused};
use crate::claims::{Burial, ClaimOptions, Holding, Readiness};
use crate::limits::{BEAT_INTERVAL, MAX_JOINING, MAX_LEAVING};
use crate::membership::{Membership, MembershipOptions};
use crate::placement;
use crate::reconcile::Reconcile;
use crate::registry::{Claim, ClaimState, Registry, registry_id};
use crate::routing::Calls;
use crate::wire::{Answer, Beat, Code, Cover, Frame, Operation};
use crate::{Epoch, Moment, StoreId};

use compare::Comparisons;
use confirm::Confirming;
use holdings::Deciding;
use records::{Change, RecordError};
use talk::Ask;

pub use records::{RecordDone, RecordError as RegistryError};
pub use view::{DatabaseView, Figures, MemberView};

/// What an operator may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The allow-list.
    pub members: BTreeSet<PeerId>,
    /// This node's weight in placement.
    pub capacity: u64,
    /// Times of the failure detector.
    pub membership: MembershipOptions,
    /// Times of claims.
    pub claims: ClaimOptions,
    /// Time between heartbeats.
    pub beat_interval: Duration,
    /// Databases joined at once.
    pub max_joining: usize,
    /// Databases let go of at once.
    pub max_leaving: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            members: BTreeSet::new(),
            capacity: 100,
            membership: MembershipOptions::default(),
            claims: ClaimOptions::default(),
            beat_interval: BEAT_INTERVAL,
            max_joining: MAX_JOINING,
            max_leaving: MAX_LEAVING,
        }
    }
}

/// What a node finds on its disk when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// This node.
    pub me: PeerId,
    /// Drawn at random for this start; below 2^63.
    pub boot: u64,
    /// The store.
    pub store: StoreId,
    /// How often it was opened, this time included; raised on disk before anything else.
    pub opening: u64,
    /// The databases in it, the registry aside.
    pub databases: Vec<DatabaseId>,
}

/// What comes to a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A message on the fleet's topic.
    Beat(Bytes),
    /// A frame from a member.
    Frame(PeerId, Frame),
    /// The connection with a member is gone.
    Down(PeerId),
    /// Entries of the registry as they are now; all of them at the start. Handed in before the `Durable` that covers them.
    Registry(Vec<(Key, Option<Bytes>)>),
    /// A member, or this node, has this of a database on disk; the registry is a database too.
    Durable(DatabaseId, PeerId, VersionVector),
    /// Answers `Freeze`: nothing is merged any more, and all that was is on disk and was told by `Durable`.
    Frozen(DatabaseId),
    /// Answers `Destroy`.
    Destroyed(DatabaseId),
    /// Answers `WriteRegistry`: on disk here under this name, or failed.
    RegistryWritten(u64, Option<Dot>),
    /// A caller at this node.
    Call {
        /// For the reply.
        token: u64,
        /// Names the call; a retry has the same.
        request: RequestId,
        /// The database.
        database: DatabaseId,
        /// What is asked for.
        operation: Operation,
        /// How long the caller waits.
        patience: Duration,
    },
    /// Answers `Commit`: written, or written before under this request id, or nothing to write.
    Committed(u64, Option<Dot>, Bytes),
    /// Answers `Read`, or a `Commit` that was refused.
    Answered(u64, Code, Bytes),
    /// Make a database.
    Create {
        /// For the reply.
        token: u64,
        /// Its name.
        name: DatabaseName,
        /// How many holders it should have.
        holders: u8,
        /// Durability of writes that name none.
        durability: Durability,
        /// How long the caller waits.
        patience: Duration,
    },
    /// Drop a database.
    Drop {
        /// For the reply.
        token: u64,
        /// Its name.
        name: DatabaseName,
        /// How long the caller waits.
        patience: Duration,
    },
    /// Give a database another number of holders.
    SetHolders {
        /// For the reply.
        token: u64,
        /// Its name.
        name: DatabaseName,
        /// How many.
        holders: u8,
        /// How long the caller waits.
        patience: Duration,
    },
    /// Declare a member gone for good.
    Forget {
        /// For the reply.
        token: u64,
        /// Who.
        peer: PeerId,
        /// How long the caller waits.
        patience: Duration,
    },
    /// This node is to hold nothing any more, or may hold again.
    Drain(bool),
    /// This node stops now.
    Leave,
    /// Time has passed; with the wall clock in Unix milliseconds, which is only passed on.
    Tick(u64),
}

/// What a node wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Publish on the fleet's topic.
    Publish(Bytes),
    /// Send to a member; lost frames do no harm.
    Send(PeerId, Frame),
    /// Have the database open, and make it if it is not there.
    Open(DatabaseId),
    /// Accept and merge nothing more; answer with `Frozen`.
    Freeze(DatabaseId),
    /// Go on.
    Thaw(DatabaseId),
    /// Delete the data; answer with `Destroyed`.
    Destroy(DatabaseId),
    /// Write to the registry, synced, in one block; answer with `RegistryWritten`.
    WriteRegistry(u64, Vec<(Key, Option<Bytes>)>),
    /// The store has another id from now on; write it down, with an opening of 1.
    SetStore(StoreId),
    /// Write to the database under this request id, synced; answer with `Committed` or `Answered`.
    Commit(u64, DatabaseId, RequestId, Bytes),
    /// Read; answer with `Answered`.
    Read(u64, DatabaseId, Bytes),
    /// The answer to a `Call`.
    Reply(u64, Code, Answer),
    /// The answer to a change of the registry.
    Record(u64, Result<RecordDone, RecordError>),
}

/// The state of one node.
pub struct Controller {
    me: PeerId,
    boot: u64,
    options: Options,
    store: StoreId,
    opening: u64,
    /// The store was compared with what the registry says of it.
    store_checked: bool,
    draining: bool,
    leaving: bool,
    membership: Membership,
    registry: Registry,
    registry_id: DatabaseId,
    holdings: BTreeMap<DatabaseId, Holding>,
    all: BTreeSet<DatabaseId>,
    barrier: Barrier,
    calls: Calls,
    reconcile: Reconcile,
    comparisons: Comparisons,
    asks: BTreeMap<u64, Ask>,
    /// What the store said of writes that wait for their confirmation.
    payloads: BTreeMap<u64, Bytes>,
    questions: BTreeMap<DatabaseId, Vec<(PeerId, Cover)>>,
    /// Conditional writes that wait for the others' agreement, and when those were last asked.
    agreeing: BTreeMap<u64, (Moment, Cover)>,
    burials: BTreeMap<DatabaseId, Burial>,
    deciding: BTreeMap<DatabaseId, Deciding>,
    confirming: BTreeMap<DatabaseId, Confirming>,
    dead_since: BTreeMap<PeerId, Moment>,
    frozen: BTreeSet<DatabaseId>,
    joining: BTreeSet<DatabaseId>,
    letting_go: BTreeSet<DatabaseId>,
    undesired: BTreeSet<DatabaseId>,
    /// The dots of this node's claims, and claims on their way to the registry.
    marks: BTreeMap<DatabaseId, VersionVector>,
    writing: BTreeMap<DatabaseId, (u64, Option<Claim>)>,
    /// Numbers of holders that this node acts on, and lower ones that are not yet known to enough members.
    holders: BTreeMap<DatabaseId, (u8, Option<(u8, VersionVector)>)>,
    /// The store on which a member was when it acknowledged.
    ack_stores: BTreeMap<(DatabaseId, PeerId), StoreId>,
    /// What a member acknowledged that seems to have less by now.
    falls: BTreeMap<(DatabaseId, PeerId), VersionVector>,
    /// Members that have started anew, to be asked whether they still have what they acknowledged.
    restarted: BTreeSet<(DatabaseId, PeerId)>,
    changes: BTreeMap<u64, Change>,
    next: u64,
    last: Moment,
    next_beat: Moment,
    beats: u64,
    candidates: BTreeMap<PeerId, u64>,
    epoch: Epoch,
    signer: Box<dyn Signer + Send>,
    verifier: Box<dyn Verifier + Send>,
    random: Box<dyn FnMut() -> u64 + Send>,
    out: Vec<Output>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("me", &self.me).field("holdings", &self.holdings).finish_non_exhaustive()
    }
}

impl Controller {
    /// A node that starts now. The registry's entries and what is on disk are handed in before the first tick.
    #[must_use]
    pub fn new(
        start: Start,
        options: Options,
        signer: Box<dyn Signer + Send>,
        verifier: Box<dyn Verifier + Send>,
        random: Box<dyn FnMut() -> u64 + Send>,
        now: Moment,
    ) -> Self {
        let Start { me, boot, store, opening, databases } = start;
        let membership = Membership::new(me, boot, &options.members, options.membership, now);
        let epoch = membership.epoch();
        Self {
            me,
            boot,
            store,
            opening,
            store_checked: false,
            draining: false,
            leaving: false,
            membership,
            registry: Registry::default(),
            registry_id: registry_id(),
            holdings: databases.iter().map(|id| (*id, Holding::new(*id, true))).collect(),
            all: databases.iter().copied().collect(),
            barrier: Barrier::new(me),
            calls: Calls::default(),
            reconcile: Reconcile::default(),
            comparisons: Comparisons::default(),
            asks: BTreeMap::new(),
            payloads: BTreeMap::new(),
            questions: BTreeMap::new(),
            agreeing: BTreeMap::new(),
            burials: BTreeMap::new(),
            deciding: BTreeMap::new(),
            confirming: BTreeMap::new(),
            dead_since: BTreeMap::new(),
            frozen: BTreeSet::new(),
            joining: BTreeSet::new(),
            letting_go: BTreeSet::new(),
            undesired: BTreeSet::new(),
            marks: BTreeMap::new(),
            writing: BTreeMap::new(),
            holders: BTreeMap::new(),
            ack_stores: BTreeMap::new(),
            falls: BTreeMap::new(),
            restarted: BTreeSet::new(),
            changes: BTreeMap::new(),
            next: 0,
            last: now,
            next_beat: now,
            beats: 0,
            candidates: BTreeMap::new(),
            epoch,
            options,
            signer,
            verifier,
            random,
            out: Vec::new(),
        }
    }

    /// A database was found on disk at the start, open now.
    pub fn found(&mut self, database: DatabaseId) {
        self.holdings.entry(database).or_insert_with(|| Holding::new(database, true));
        self.all.insert(database);
    }

    /// The one door.
    pub fn handle(&mut self, input: Input, now: Moment) -> Vec<Output> {
        // Before anything else: after a pause of this loop what it was sure of is void.
        if now >= self.last + self.options.membership.dead_after {
            self.lost();
            self.want_all();
        }
        self.last = self.last.max(now);
        self.take(input, now);
        self.seen(now);
        self.reconcile(now);
        std::mem::take(&mut self.out)
    }

    fn take(&mut self, input: Input, now: Moment) {
        match input {
            Input::Beat(data) => {
                self.membership.beat(data, self.verifier.as_mut(), now);
            }
            Input::Frame(from, frame) => self.frame(from, frame, now),
            Input::Down(peer) => {
                for call in self.calls.lost(&peer) {
                    self.route(call, now);
                }
            }
            Input::Registry(entries) => self.entries(&entries, now),
            Input::Durable(database, peer, vv) => self.durable(database, peer, &vv, now),
            Input::Frozen(database) => {
                self.frozen.insert(database);
                self.reconcile.want(database);
            }
            Input::Destroyed(database) => self.destroyed(database),
            Input::RegistryWritten(token, dot) => self.written(token, dot, now),
            Input::Call { token, request, database, operation, patience } => {
                let deadline = now + patience.min(crate::limits::MAX_DEADLINE);
                self.call(crate::routing::Origin::Here(token), request, database, operation, deadline, now);
            }
            Input::Committed(call, dot, payload) => self.committed(call, dot, payload, now),
            Input::Answered(call, code, payload) => self.finish(call, code, Answer::plain(self.me, payload), now),
            Input::Create { token, name, holders, durability, patience } => {
                self.create(token, &name, holders, durability, now + patience);
            }
            Input::Drop { token, name, patience } => self.drop_database(token, &name, now + patience),
            Input::SetHolders { token, name, holders, patience } => self.set_holders(token, &name, holders, now + patience),
            Input::Forget { token, peer, patience } => self.forget(token, peer, now + patience),
            Input::Drain(draining) => {
                self.draining = draining;
                self.next_beat = now;
            }
            Input::Leave => {
                self.leaving = true;
                self.membership.leave();
                self.beat(0, now);
            }
            Input::Tick(wall_ms) => self.tick(wall_ms, now),
        }
    }

    fn tick(&mut self, wall_ms: u64, now: Moment) {
        if now >= self.next_beat && !self.leaving {
            self.beat(wall_ms, now);
        }
        let random = (self.random)();
        for action in self.membership.tick(random, now) {
            self.probe(action);
        }
        for peer in self.membership.others().collect::<Vec<_>>() {
            if self.membership.live().contains(&peer) {
                self.dead_since.remove(&peer);
            } else {
                self.dead_since.entry(peer).or_insert(now);
            }
        }
        self.compare_on(now);
        self.ask_restarted();
        self.ask_again_to_agree(now);
        self.expire(now);
        for database in self.joining.iter().chain(&self.letting_go).chain(&self.undesired).chain(self.confirming.keys()) {
            self.reconcile.want(*database);
        }
        self.reconcile.round(&self.all, now);
    }

    fn beat(&mut self, wall_ms: u64, now: Moment) {
        self.beats += 1;
        self.next_beat = now + self.options.beat_interval;
        let beat = Beat {
            member: [0; 32],
            boot: self.boot,
            counter: self.beats,
            capacity: self.options.capacity,
            draining: self.draining,
            leaving: self.leaving,
            view: self.epoch,
            clock_ms: wall_ms,
            signature: [0; 64],
        };
        self.out.push(Output::Publish(beat.signed(self.signer.as_ref()).encode()));
    }

    /// Looks whether the view of the fleet has changed, which concerns every database.
    fn seen(&mut self, now: Moment) {
        let epoch = self.membership.epoch();
        let candidates = self.membership.candidates(self.options.capacity, self.draining, now);
        if epoch != self.epoch || candidates != self.candidates {
            self.epoch = epoch;
            self.candidates = candidates;
            self.want_all();
        }
    }

    /// Those that wait for a comparison of the registry.
    fn want_joining(&mut self) {
        for database in self.joining.iter().chain(self.confirming.keys()) {
            self.reconcile.want(*database);
        }
    }

    /// What this node was sure of is void.
    fn lost(&mut self) {
        for holding in self.holdings.values_mut() {
            holding.lost();
        }
        self.deciding.clear();
    }

    fn want_all(&mut self) {
        for database in &self.all {
            self.reconcile.want(*database);
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What this node has of a database on disk.
    fn own(&self, database: &DatabaseId) -> VersionVector {
        self.barrier.acked(database, &self.me).cloned().unwrap_or_default()
    }

    /// Whether this is on disk with more than half of the members.
    fn is_durable(&self, mark: &VersionVector) -> bool {
        let has = |peer: &PeerId| self.barrier.acked(&self.registry_id, peer).is_some_and(|vv| vv.dominates(mark));
        let count = self.membership.others().chain([self.me]).filter(has).count();
        count >= crate::registry::majority(self.membership.known())
    }

    /// The holders that count for the barrier: ready by their claims, this node only while it is sure of itself.
    fn ready_holders(&self, database: &DatabaseId) -> BTreeSet<PeerId> {
        let claims = self.registry.claims(database).iter();
        let ready = claims.filter(|(peer, claim)| claim.state == ClaimState::Ready && self.membership.is_member(peer));
        ready.map(|(peer, _)| *peer).filter(|peer| *peer != self.me || self.readiness(database) == Readiness::Ready).collect()
    }

    /// The ready and live holders in the order in which they are asked; the first decides conditional writes.
    #[must_use]
    pub fn serving(&self, database: &DatabaseId) -> Vec<PeerId> {
        let live = self.membership.live();
        let ready = self.ready_holders(database).into_iter().filter(|peer| live.contains(peer)).map(|peer| (peer, 1));
        placement::order(database, &ready.collect())
    }

    /// As [`Self::serving`], and after them those that are ready by their claims but not heard of: right after its start a node
    /// has heard of nobody.
    pub(crate) fn asked(&self, database: &DatabaseId) -> Vec<PeerId> {
        let mut order = self.serving(database);
        let silent = self.ready_holders(database).into_iter().filter(|peer| !order.contains(peer)).collect::<Vec<_>>();
        order.extend(silent);
        order
    }

    /// How this node stands to a database.
    #[must_use]
    pub fn readiness(&self, database: &DatabaseId) -> Readiness {
        self.holdings.get(database).map_or(Readiness::None, Holding::readiness)
    }

    /// While this node is a ready holder: all that was confirmed before this time is here.
    #[must_use]
    pub fn caught_up(&self, database: &DatabaseId) -> Option<Moment> {
        self.holdings.get(database).and_then(Holding::caught_up)
    }

    /// The members that should hold a database.
    #[must_use]
    pub fn desired(&self, database: &DatabaseId) -> Vec<PeerId> {
        placement::desired(database, &self.candidates, self.holders_of(database))
    }

    /// The fleet as this node sees it.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The registry as this node sees it.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The store as it is called now.
    #[must_use]
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// When something is to be done even if nothing comes: a tick by then.
    #[must_use]
    pub fn wake(&self) -> Moment {
        let next = self.next_beat.min(self.last + Duration::from_millis(500));
        let next = self.barrier.wake().map_or(next, |at| at.min(next));
        if self.reconcile.is_empty() { next } else { self.last }
    }

    /// Whether this node has compared its registry with the others since its start: before that a database that it does not
    /// know may be there all the same.
    #[must_use]
    pub fn is_compared(&self) -> bool {
        self.store_checked
    }

    fn may_move(&self, now: Moment) -> bool {
        let sure = self.membership.is_settled(now) && !self.membership.is_frozen() && self.is_healthy(now);
        sure && self.store_checked && !self.leaving
    }

    fn is_healthy(&self, now: Moment) -> bool {
        !self.membership.is_cut_off(now) && !self.membership.is_twice(now)
    }
}

impl From<Refused> for Code {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotEnoughHolders { .. } => Self::NotEnoughHolders,
            Refused::MoreThanHolders { .. } | Refused::TooManyWaiting => Self::Refused,
        }
    }
}
