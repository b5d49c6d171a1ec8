//! The engine's turn, without threads, clocks or sockets: what waits becomes one atomic batch and at most one sync.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crdt::limits::MAX_JOIN_ROWS;
use crdt::mutation::{Mutation, active};
use crdt::snapshot::{Purpose, SnapshotJoin};
use crdt::{
    Block, Changes, Committed, DatabaseId, Durability, Effect, Env, Input, LocalOp, LocalWrite, Meta, PendingLimits, Replica,
    ReplicaId, RequestId, Signer, SnapshotWrite, Source, Stamp, Step, Store, Token, Turn, VersionVector, View, WallTime,
};

use super::join::Staging;
use super::port::{Delivery, SnapshotOutcome, Truncated, WriteError, Written};

/// One piece of work for a turn.
#[derive(Debug)]
pub enum Work {
    /// A local write.
    Write {
        /// The database.
        database: DatabaseId,
        /// The ops of the batch.
        ops: Vec<LocalOp>,
        /// The caller's id of the write, so that a retry is recognised.
        request: Option<RequestId>,
        /// Whether the commit must be on disk before the reply.
        durability: Durability,
    },
    /// Verified blocks from a peer.
    Blocks {
        /// The database.
        database: DatabaseId,
        /// The blocks.
        blocks: Vec<Block>,
        /// Who sent them.
        source: Source,
    },
    /// Drops history from its oldest end. Whether nobody needs it any more is the caller's to know.
    Truncate {
        /// The database.
        database: DatabaseId,
        /// The last log revision to drop.
        through: u64,
        /// Most blocks to drop in this turn.
        limit: usize,
    },
    /// A part of a snapshot that is being received, verified: its head, or a chunk. Once the last one is there, turns without
    /// work join it.
    Stage {
        /// The database.
        database: DatabaseId,
        /// The part.
        write: SnapshotWrite,
    },
    /// Forgets the outcomes of requests, as [`Input::Forget`].
    Forget {
        /// The database.
        database: DatabaseId,
        /// The first stamp that stays.
        before: Stamp,
        /// How many stay.
        keep: u64,
        /// Most to forget in this turn.
        limit: usize,
    },
    /// From now on takes no write and no block in, because the replica is about to be replaced; or takes them again.
    Freeze {
        /// The database.
        database: DatabaseId,
        /// Whether it takes nothing in.
        frozen: bool,
    },
    /// Everything committed before must be on disk.
    Sync,
    /// Opens a database that is in the store's catalogue.
    Open(DatabaseId),
    /// Closes a database; what waits in its pending pool is dropped, since sync brings it again.
    Close(DatabaseId),
}

/// The answer to a piece of work.
#[derive(Debug)]
pub enum Reply {
    /// To [`Work::Write`].
    Written(Result<Written, WriteError>),
    /// To [`Work::Blocks`].
    Delivered(Result<Delivery, WriteError>),
    /// To [`Work::Truncate`].
    Truncated(Result<Truncated, WriteError>),
    /// To [`Work::Forget`]: how many were forgotten.
    Forgotten(Result<usize, WriteError>),
    /// To [`Work::Stage`], [`Work::Freeze`], [`Work::Sync`], [`Work::Open`] and [`Work::Close`].
    Done(Result<(), WriteError>),
}

/// What a turn lets out, all of it after its commit.
#[derive(Debug, Default)]
pub struct TurnOutcome {
    /// One reply for each piece of work, in order.
    pub replies: Vec<Reply>,
    /// Databases opened in this turn.
    pub opened: Vec<DatabaseId>,
    /// Databases closed in this turn.
    pub closed: Vec<DatabaseId>,
    /// Databases that advanced.
    pub advanced: Vec<Advance>,
    /// Version vector entries that this turn's sync has brought to disk.
    pub durable: Entries,
    /// Databases whose replica was replaced: whoever knew anything of it must begin anew.
    pub replaced: Vec<DatabaseId>,
    /// Databases whose replica was read anew from a store that was opened again.
    pub renewed: Vec<DatabaseId>,
    /// What became of staged snapshots.
    pub snapshots: Vec<(DatabaseId, SnapshotOutcome)>,
    /// Whether received blocks wait for a sync.
    pub owes_sync: bool,
}

/// How one database advanced in a turn.
#[derive(Debug)]
pub struct Advance {
    /// The database.
    pub database: DatabaseId,
    /// Version vector entries that rose.
    pub vv: Vec<(ReplicaId, u64)>,
    /// The floors of history that rose.
    pub floors: Vec<(ReplicaId, u64)>,
    /// The figures after the turn.
    pub meta: Meta,
    /// Blocks made here.
    pub sealed: Vec<Block>,
    /// What watchers are to look at, if the database is watched.
    pub changes: Option<Changes>,
    /// All rows were replaced, by those that a snapshot was joined to.
    pub switched: bool,
}

/// What a turn takes from outside.
pub struct TurnEnv<'a> {
    /// The time by this node's clock.
    pub now: WallTime,
    /// Signs local blocks.
    pub signer: &'a dyn Signer,
    /// Random numbers for nonces.
    pub random: &'a mut dyn FnMut() -> u64,
}

impl std::fmt::Debug for TurnEnv<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TurnEnv({:?})", self.now)
    }
}

/// Version vector entries of several databases.
pub type Entries = BTreeMap<DatabaseId, BTreeMap<ReplicaId, u64>>;

/// All open databases of one store, and the only writer to it.
#[derive(Debug)]
pub struct Engine<S> {
    pub(super) store: S,
    pub(super) open: BTreeMap<DatabaseId, Replica>,
    /// Snapshots that are staged, and the joins that have begun.
    pub(super) joins: BTreeMap<DatabaseId, Option<SnapshotJoin>>,
    /// Databases that take nothing in, because they are about to be replaced.
    pub(super) frozen: BTreeSet<DatabaseId>,
    /// Version vector entries committed but not yet synced.
    unsynced: Entries,
    /// Whether received blocks are among them, which a peer waits to see acknowledged.
    pub(super) owes_sync: bool,
    poison: Option<String>,
    /// Databases whose changed keys somebody wants to know.
    pub(super) watched: BTreeSet<DatabaseId>,
    /// Rows of a snapshot that are joined in one turn.
    pub(super) join_rows: usize,
}

impl<S: Store> Engine<S> {
    /// An engine over a store, with no database open.
    pub fn new(store: S) -> Self {
        Self {
            store,
            open: BTreeMap::new(),
            joins: BTreeMap::new(),
            frozen: BTreeSet::new(),
            unsynced: BTreeMap::new(),
            owes_sync: false,
            poison: None,
            watched: BTreeSet::new(),
            join_rows: MAX_JOIN_ROWS,
        }
    }

    /// Joins so many rows of a snapshot in one turn instead of [`MAX_JOIN_ROWS`]: with few, small stores show what happens
    /// between two turns of a join.
    pub fn set_join_rows(&mut self, rows: usize) {
        self.join_rows = rows;
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The store, for whoever looks after the disk below it. Nothing but a turn may change what it holds.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The store alone, as a process that ends leaves it.
    pub fn into_store(self) -> S {
        self.store
    }

    /// An open database's replica.
    pub fn replica(&self, database: &DatabaseId) -> Option<&Replica> {
        self.open.get(database)
    }

    /// From the next turn on, tells which winners have changed in exactly these databases.
    pub fn set_watched(&mut self, watched: BTreeSet<DatabaseId>) {
        self.watched = watched;
    }

    /// Why writes are refused, if they are.
    pub fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// Refuses writes from now on: a commit or sync failed, so what is on disk is unknown.
    pub fn set_poison(&mut self, cause: String) {
        if !active(Mutation::PoisonForgotten) {
            self.poison.get_or_insert(cause);
        }
    }

    /// The entries that a sync started now will cover. They stay owed until [`Engine::synced`] says that it succeeded.
    pub fn unsynced(&mut self) -> Entries {
        self.owes_sync = false;
        self.unsynced.clone()
    }

    /// A sync has covered these entries. Tells which of them count: a replica that was replaced meanwhile has less.
    pub fn synced(&mut self, mut covered: Entries) -> Entries {
        for (database, entries) in &mut covered {
            let vv = whole_vv(self, database);
            entries.retain(|replica, seq| vv.get(replica) >= *seq);
        }
        for (database, entries) in &covered {
            if let Some(left) = self.unsynced.get_mut(database) {
                left.retain(|replica, seq| entries.get(replica).is_none_or(|done| *seq > *done));
            }
        }
        self.unsynced.retain(|_, left| !left.is_empty());
        covered
    }

    /// The entries of an open database that are on disk: what its store had when it was opened and what was synced
    /// since.
    pub fn durable(&self, database: &DatabaseId) -> Vec<(ReplicaId, u64)> {
        let unsynced = self.unsynced.get(database);
        let vv = whole_vv(self, database);
        vv.iter().filter(|(replica, _)| unsynced.is_none_or(|entries| !entries.contains_key(replica))).collect()
    }

    /// Takes all the work through one commit. Without work, does a piece of a join, if a snapshot waits for it.
    pub fn turn(&mut self, works: Vec<Work>, env: &mut TurnEnv<'_>) -> TurnOutcome {
        let mut outcome = TurnOutcome::default();
        if works.is_empty() {
            self.join_piece(env, &mut outcome);
            outcome.owes_sync = self.owes_sync;
            return outcome;
        }
        let mut replies: Vec<Option<Reply>> = Vec::new();
        replies.resize_with(works.len(), || None);
        let mut jobs: BTreeMap<DatabaseId, Job> = BTreeMap::new();
        let mut syncs = Vec::new();
        let mut closing = Vec::new();
        for (index, work) in works.into_iter().enumerate() {
            match work {
                Work::Write { database, ops, request, durability } => {
                    let job = jobs.entry(database).or_default();
                    job.sync |= durability == Durability::Sync;
                    job.writes.push(LocalWrite { token: Token(index as u64), request, ops });
                }
                Work::Blocks { database, blocks, source } => {
                    jobs.entry(database).or_default().deliveries.push(Incoming { index, blocks, source });
                }
                Work::Truncate { database, through, limit } => {
                    jobs.entry(database).or_default().truncations.push((Token(index as u64), through, limit));
                }
                Work::Stage { database, write } => jobs.entry(database).or_default().stages.push((index, write)),
                Work::Forget { database, before, keep, limit } => {
                    let input = Input::Forget { token: Token(index as u64), before, keep, limit };
                    jobs.entry(database).or_default().forgets.push((index, input));
                }
                Work::Freeze { database, frozen } => {
                    let known = self.open.contains_key(&database);
                    if known && frozen {
                        self.frozen.insert(database)
                    } else {
                        self.frozen.remove(&database)
                    };
                    set(&mut replies, index, Reply::Done(if known { Ok(()) } else { Err(WriteError::Closed) }));
                }
                Work::Sync => syncs.push(index),
                Work::Open(database) => set(&mut replies, index, Reply::Done(self.open(database, &mut outcome))),
                Work::Close(database) => closing.push((index, database)),
            }
        }
        let mut wants_sync = !syncs.is_empty();
        let mut steps = Vec::new();
        let mut parts = Vec::new();
        for (database, job) in jobs {
            wants_sync |= job.sync;
            self.step(database, job, env, &mut steps, &mut parts, &mut replies);
        }
        let durability = if wants_sync { Durability::Sync } else { Durability::Buffered };
        match self.commit(steps, durability) {
            Ok(committed) => {
                for (part, step) in parts.into_iter().zip(committed) {
                    self.release(part, step, &mut outcome, &mut replies);
                }
                if wants_sync || active(Mutation::DurableBeforeSync) {
                    outcome.durable = self.all_synced();
                }
                for index in syncs {
                    set(&mut replies, index, Reply::Done(Ok(())));
                }
            }
            Err(error) => {
                for part in parts {
                    part.fail(&error, &mut replies);
                }
                for index in syncs {
                    set(&mut replies, index, Reply::Done(Err(error.clone())));
                }
            }
        }
        for (index, database) in closing {
            self.joins.remove(&database);
            self.frozen.remove(&database);
            if self.open.remove(&database).is_some() {
                outcome.closed.push(database);
            }
            set(&mut replies, index, Reply::Done(Ok(())));
        }
        outcome.owes_sync = self.owes_sync;
        // Every piece of work has had its answer; one without would be a fault of the code above.
        debug_assert!(replies.iter().all(Option::is_some));
        outcome.replies = replies.into_iter().map(|reply| reply.unwrap_or(Reply::Done(Err(WriteError::Closed)))).collect();
        outcome
    }

    /// Opens what was open on a store before it was opened again; what cannot be read there is closed.
    pub(crate) fn reopen(&mut self, databases: Vec<DatabaseId>) -> TurnOutcome {
        let mut outcome = TurnOutcome::default();
        for database in databases {
            match self.open(database, &mut TurnOutcome::default()) {
                Ok(()) => outcome.renewed.push(database),
                Err(_) => outcome.closed.push(database),
            }
        }
        outcome
    }

    fn open(&mut self, database: DatabaseId, outcome: &mut TurnOutcome) -> Result<(), WriteError> {
        if self.open.contains_key(&database) {
            return Ok(());
        }
        let replica = self.resume(database)?;
        let staged = self.store.view(&database).and_then(|view| view.staged()).map_err(|error| read_error(&error))?;
        if let Some(staged) = staged.filter(crdt::Staged::is_complete) {
            // The process ended before it was joined.
            self.joins.insert(database, None);
            if Purpose::unwrap(staged.head).is_ok_and(|(purpose, _)| purpose.replaces()) {
                self.frozen.insert(database);
            }
        }
        self.open.insert(database, replica);
        outcome.opened.push(database);
        Ok(())
    }

    /// A sync has covered everything.
    pub(super) fn all_synced(&mut self) -> Entries {
        let entries = self.unsynced();
        self.unsynced.clear();
        entries
    }

    pub(super) fn note_unsynced(&mut self, database: DatabaseId, vv: &[(ReplicaId, u64)]) {
        self.unsynced.entry(database).or_default().extend(vv.iter().copied());
    }

    pub(super) fn resume(&self, database: DatabaseId) -> Result<Replica, WriteError> {
        let state = self.store.view(&database).and_then(|view| view.state()).map_err(|error| read_error(&error))?;
        Ok(Replica::resume(database, state, PendingLimits::default()))
    }

    /// Takes one database's work through its replica, without committing.
    fn step(
        &mut self,
        database: DatabaseId,
        mut job: Job,
        env: &mut TurnEnv<'_>,
        steps: &mut Vec<Step>,
        parts: &mut Vec<Part>,
        replies: &mut [Option<Reply>],
    ) {
        let mut part = Part::of(&job);
        if let Some(cause) = &self.poison {
            return part.fail(&WriteError::Poisoned { cause: cause.clone() }, replies);
        }
        let Some(replica) = self.open.get_mut(&database) else {
            return part.fail(&WriteError::Closed, replies);
        };
        if self.frozen.contains(&database) {
            part.refuse(&mut job, replies);
        }
        let mut turn = replica.begin();
        if self.watched.contains(&database) {
            turn = turn.watched(env.now);
        }
        let worked = self.store.view(&database).and_then(|view| part.run(job, replica, env, &view, &mut turn));
        match worked {
            Ok(()) => {
                steps.push(replica.finish(turn));
                parts.push(part);
            }
            Err(error) => {
                // Nothing of this turn is committed: go on from what the store has.
                let error = read_error(&error);
                part.fail(&error, replies);
                match self.resume(database) {
                    Ok(_) if active(Mutation::ReplicaKeptAfterFailedRead) => {}
                    Ok(replica) => drop(self.open.insert(database, replica)),
                    Err(error) => self.set_poison(error.to_string()),
                }
            }
        }
    }

    pub(super) fn commit(&mut self, steps: Vec<Step>, durability: Durability) -> Result<Vec<Committed>, WriteError> {
        if let Some(cause) = &self.poison {
            return Err(WriteError::Poisoned { cause: cause.clone() });
        }
        Step::commit_all(steps, &mut self.store, durability).map_err(|error| {
            let cause = error.to_string();
            self.set_poison(cause.clone());
            WriteError::Unknown { cause }
        })
    }

    /// Lets the effects of one committed step out.
    fn release(&mut self, part: Part, step: Committed, outcome: &mut TurnOutcome, replies: &mut [Option<Reply>]) {
        let Committed { database, meta, vv, floors, effects, changes, switched } = step;
        let mut deliveries: Vec<(usize, Range<usize>, Delivery)> =
            part.deliveries.into_iter().map(|(index, effects)| (index, effects, Delivery::default())).collect();
        let mut current = deliveries.iter_mut().peekable();
        let mut sealed = Vec::new();
        for (at, effect) in effects.into_iter().enumerate() {
            while current.next_if(|(_, effects, _)| effects.end <= at).is_some() {}
            let delivery = current.peek_mut().filter(|(_, effects, _)| effects.contains(&at)).map(|(_, _, delivery)| delivery);
            match (effect, delivery) {
                (Effect::Written { token, outcome }, _) => {
                    let written = Written { dot: outcome.dot, ops: outcome.ops };
                    set(replies, index_of(token), Reply::Written(Ok(written)));
                }
                (Effect::Refused { token, refusal }, _) => set(replies, index_of(token), Reply::Written(Err(refusal.into()))),
                (Effect::Forgotten { token, requests }, _) => {
                    set(replies, index_of(token), Reply::Forgotten(Ok(requests)));
                }
                (Effect::Truncated { token, blocks, bytes, log_floor }, _) => {
                    set(replies, index_of(token), Reply::Truncated(Ok(Truncated { blocks, bytes, log_floor })));
                }
                (Effect::Sealed { block, .. }, _) => sealed.push(block),
                (Effect::Merged { .. }, Some(delivery)) => {
                    delivery.merged += 1;
                    self.owes_sync = true;
                }
                (Effect::Duplicate { .. }, Some(delivery)) => delivery.duplicates += 1,
                (Effect::Held { .. }, Some(delivery)) => delivery.held += 1,
                (Effect::Dropped { .. }, Some(delivery)) => delivery.dropped += 1,
                (Effect::Disagreement { dot, .. }, Some(delivery)) => delivery.disagreements.push(dot),
                // A local write can set waiting blocks free: nobody waits for an answer about those.
                (Effect::Merged { .. }, None) => self.owes_sync = true,
                (_, None) => {}
            }
        }
        for (index, _, delivery) in deliveries {
            set(replies, index, Reply::Delivered(Ok(delivery)));
        }
        for (index, staging) in part.stages {
            self.staged(database, staging);
            set(replies, index, Reply::Done(Ok(())));
        }
        if !vv.is_empty() {
            self.note_unsynced(database, &vv);
        }
        if !vv.is_empty() || !floors.is_empty() {
            outcome.advanced.push(Advance { database, vv, floors, meta, sealed, changes, switched });
        }
    }
}

/// One database's work of a turn.
#[derive(Debug, Default)]
struct Job {
    writes: Vec<LocalWrite>,
    deliveries: Vec<Incoming>,
    stages: Vec<(usize, SnapshotWrite)>,
    /// Token, last revision, most blocks.
    truncations: Vec<(Token, u64, usize)>,
    forgets: Vec<(usize, Input)>,
    sync: bool,
}

#[derive(Debug)]
struct Incoming {
    index: usize,
    blocks: Vec<Block>,
    source: Source,
}

/// Whom a step's effects belong to.
#[derive(Debug)]
struct Part {
    writes: Vec<usize>,
    truncations: Vec<usize>,
    stages: Vec<(usize, Staging)>,
    forgets: Vec<usize>,
    /// For each delivery its reply and which of the step's effects are its own.
    deliveries: Vec<(usize, Range<usize>)>,
}

impl Part {
    fn of(job: &Job) -> Self {
        let writes = job.writes.iter().map(|write| index_of(write.token)).collect();
        let truncations = job.truncations.iter().map(|(token, ..)| index_of(*token)).collect();
        let stages = job.stages.iter().map(|(index, write)| (*index, Staging::of(write))).collect();
        let forgets = job.forgets.iter().map(|(index, _)| *index).collect();
        let deliveries = job.deliveries.iter().map(|incoming| (incoming.index, 0..0)).collect();
        Self { writes, truncations, stages, forgets, deliveries }
    }

    fn run<V: View>(
        &mut self,
        job: Job,
        replica: &mut Replica,
        env: &mut TurnEnv<'_>,
        view: &V,
        turn: &mut Turn,
    ) -> Result<(), V::Error> {
        let mut env = Env { now: env.now, signer: env.signer, random: &mut *env.random };
        if !job.writes.is_empty() {
            replica.handle(Input::Write(job.writes), &mut env, view, turn)?;
        }
        for (incoming, (_, effects)) in job.deliveries.into_iter().zip(&mut self.deliveries) {
            let Incoming { blocks, source, .. } = incoming;
            let start = turn.effects();
            replica.handle(Input::Blocks { blocks, source }, &mut env, view, turn)?;
            *effects = start..turn.effects();
        }
        job.stages.into_iter().for_each(|(_, write)| turn.stage(write));
        for (token, through, limit) in job.truncations {
            replica.handle(Input::Truncate { token, through, limit }, &mut env, view, turn)?;
        }
        for (_, input) in job.forgets {
            replica.handle(input, &mut env, view, turn)?;
        }
        Ok(())
    }

    /// Takes in neither writes nor blocks; what comes from peers counts as dropped, so that sync brings it again.
    fn refuse(&mut self, job: &mut Job, replies: &mut [Option<Reply>]) {
        job.writes.clear();
        for index in std::mem::take(&mut self.writes) {
            set(replies, index, Reply::Written(Err(WriteError::Repairing)));
        }
        self.deliveries.clear();
        for Incoming { index, blocks, .. } in std::mem::take(&mut job.deliveries) {
            let delivery = Delivery { dropped: blocks.len(), ..Delivery::default() };
            set(replies, index, Reply::Delivered(Ok(delivery)));
        }
    }

    fn fail(self, error: &WriteError, replies: &mut [Option<Reply>]) {
        for index in self.writes {
            set(replies, index, Reply::Written(Err(error.clone())));
        }
        for (index, _) in self.stages {
            set(replies, index, Reply::Done(Err(error.clone())));
        }
        for index in self.truncations {
            set(replies, index, Reply::Truncated(Err(error.clone())));
        }
        for index in self.forgets {
            set(replies, index, Reply::Forgotten(Err(error.clone())));
        }
        for (index, _) in self.deliveries {
            set(replies, index, Reply::Delivered(Err(error.clone())));
        }
    }
}

/// The whole version vector of an open database, for a consumer that starts now.
pub fn whole_vv<S: Store>(engine: &Engine<S>, database: &DatabaseId) -> VersionVector {
    engine.replica(database).map(Replica::vv).unwrap_or_default()
}

fn set(replies: &mut [Option<Reply>], index: usize, reply: Reply) {
    if let Some(slot) = replies.get_mut(index) {
        *slot = Some(reply);
    }
}

/// Tokens are indexes of the turn's work.
fn index_of(token: Token) -> usize {
    usize::try_from(token.0).unwrap_or(usize::MAX)
}

fn read_error<E: std::error::Error>(error: &E) -> WriteError {
    WriteError::Read { cause: error.to_string() }
}
