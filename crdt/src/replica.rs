//! The replica state machine: one node's copy of one database, as far as it decides.

use std::collections::{BTreeMap, VecDeque};

use crate::block::{Block, BlockHash, Change, Draft, Op, RequestId};
use crate::clock::{Clock, Stamp, WallTime};
use crate::database::DatabaseId;
use crate::dot::{Author, Dot, ReplicaId, VersionVector};
use crate::effect::{Effect, OpOutcome, WriteOutcome};
use crate::group::{Gathered, Group, Judged, seen_all};
use crate::heads::Heads;
use crate::input::{Input, LocalWrite, Token};
use crate::key::Key;
use crate::limits::{MAX_UINT, MIN_NAMED_NONCE_GAP_MS};
use crate::mutation::{Mutation, active};
use crate::pending::{Pending, PendingLimits, Source};
use crate::row::Row;
use crate::sign::Signer;
use crate::snapshot::Joined;
use crate::step::{Step, Turn};
use crate::store::{Meta, ReplicaState, RequestRecord, SnapshotWrite, View, VvEntry};

/// What a decision takes from outside: time, the node's key, randomness.
pub struct Env<'a> {
    /// The time by this node's clock.
    pub now: WallTime,
    /// Signs local blocks.
    pub signer: &'a dyn Signer,
    /// Random numbers for nonces.
    pub random: &'a mut dyn FnMut() -> u64,
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Env({:?})", self.now)
    }
}

/// One node's copy of one database: merges blocks, makes blocks of local writes, keeps what waits.
///
/// Rows, blocks and log are read through a [`View`]; what changes is gathered in a [`Turn`].
#[derive(Debug)]
pub struct Replica {
    database: DatabaseId,
    /// Whom this opening writes as; drawn at its first write, never read back from disk.
    writer: Option<Writer>,
    /// When a block that only named the writer was the last reason for another one.
    named_at: Option<WallTime>,
    /// The time of the last input.
    now: WallTime,
    vv: BTreeMap<ReplicaId, VvEntry>,
    heads: Heads,
    floors: VersionVector,
    clock: Clock,
    meta: Meta,
    pending: Pending,
}

#[derive(Debug, Clone, Copy)]
struct Writer {
    author: Author,
    replica: ReplicaId,
}

impl Replica {
    /// A replica with the state that its store has, without a writer.
    #[must_use]
    pub fn resume(database: DatabaseId, state: ReplicaState, limits: PendingLimits) -> Self {
        Self {
            database,
            writer: None,
            named_at: None,
            now: WallTime::default(),
            vv: state.vv,
            heads: state.heads,
            floors: state.floors,
            clock: Clock::resume(state.meta.clock),
            meta: state.meta,
            pending: Pending::new(limits),
        }
    }

    /// Starts a turn.
    #[must_use]
    pub fn begin(&self) -> Turn {
        Turn::new(self.heads.clone())
    }

    /// Finishes a turn. Once its commit has succeeded this replica is what the store holds; if it fails, or is not
    /// made, the replica must be dropped.
    pub fn finish(&mut self, turn: Turn) -> Step {
        self.meta.clock = self.clock.last();
        let step = Step::new(self.database, turn, &self.heads, self.meta);
        self.meta = step.meta();
        step
    }

    /// The one door: takes an input into the turn.
    ///
    /// # Errors
    /// When the view cannot read; the replica and the turn must then be dropped.
    pub fn handle<V: View>(&mut self, input: Input, env: &mut Env<'_>, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        self.now = env.now;
        match input {
            Input::Write(writes) => self.write(writes, env, view, turn),
            Input::Blocks { blocks, source } => blocks.into_iter().try_for_each(|block| self.receive(block, source, view, turn)),
            Input::Forget { token, before, keep, limit } => self.forget(token, before, keep, limit, view, turn),
            Input::Truncate { token, through, limit } => self.truncate(token, through, limit, view, turn),
        }
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> DatabaseId {
        self.database
    }

    /// The merged set.
    #[must_use]
    pub fn vv(&self) -> VersionVector {
        self.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect()
    }

    /// Whether the block is merged.
    #[must_use]
    pub fn covers(&self, dot: &Dot) -> bool {
        self.seq(&dot.replica) >= dot.seq
    }

    /// The heads.
    #[must_use]
    pub fn heads(&self) -> &Heads {
        &self.heads
    }

    /// For each replica the seq up to which blocks are not kept any more.
    #[must_use]
    pub fn floors(&self) -> &VersionVector {
        &self.floors
    }

    /// Clock, digest and counters as of the last finished turn.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Number and bytes of the blocks that wait for others.
    #[must_use]
    pub fn pending(&self) -> (usize, usize) {
        (self.pending.len(), self.pending.bytes())
    }

    /// The dots that waiting blocks need and that are not waiting themselves.
    pub fn wanted(&self) -> impl Iterator<Item = Dot> + '_ {
        self.pending.wanted()
    }

    fn seq(&self, replica: &ReplicaId) -> u64 {
        self.vv.get(replica).map_or(0, |entry| entry.seq)
    }

    /// Drops the oldest blocks with their log entries. Merging needs the version vector, the heads' addresses and the rows
    /// only, none of which change; of a block that is gone a second one of its name can no longer be told.
    fn truncate<V: View>(&mut self, token: Token, through: u64, limit: usize, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        let (mut blocks, mut bytes) = (0, 0);
        for entry in view.log(self.meta.log_floor + 1).take(limit) {
            let entry = entry?;
            if entry.revision > through {
                break;
            }
            self.meta.log_floor = entry.revision;
            if entry.dot.seq > self.floors.get(&entry.dot.replica) {
                self.floors.raise(entry.dot.replica, entry.dot.seq);
                turn.floors.insert(entry.dot.replica, entry.dot.seq);
            }
            blocks += usize::from(entry.names_block());
            bytes += u64::from(entry.bytes);
            turn.truncated.push(entry);
        }
        self.meta.history_bytes = self.meta.history_bytes.saturating_sub(bytes);
        turn.effect(Effect::Truncated { token, blocks, bytes, log_floor: self.meta.log_floor });
        Ok(())
    }

    /// Forgets requests from the oldest on. By their stamps, which are the same on every node; a stamp from the future keeps
    /// its record until the number of all says no.
    fn forget<V: View>(
        &mut self,
        token: Token,
        before: Stamp,
        keep: u64,
        limit: usize,
        view: &V,
        turn: &mut Turn,
    ) -> Result<(), V::Error> {
        let mut requests = 0;
        for oldest in view.oldest_requests().take(limit) {
            let (stamp, request) = oldest?;
            if stamp >= before && self.meta.requests <= keep && !active(Mutation::ForgottenEarly) {
                break;
            }
            if turn.forgotten.insert(request, stamp).is_none() {
                requests += 1;
                self.meta.requests = self.meta.requests.saturating_sub(1);
            }
        }
        turn.effect(Effect::Forgotten { token, requests });
        Ok(())
    }

    fn write<V: View>(&mut self, writes: Vec<LocalWrite>, env: &mut Env<'_>, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        let mut group = Group::default();
        for write in writes {
            if let Some(request) = write.request {
                if group.answers(&request) {
                    self.seal(&mut group, env, view, turn)?;
                }
                let known = turn.requests.get(&request).cloned();
                if let Some(record) = known.map_or_else(|| view.request(&request), |record| Ok(Some(record)))? {
                    turn.effect(repeated(&write, &record));
                    continue;
                }
            }
            let mut judged = group.judge(&write, view, turn, env.now)?;
            if matches!(judged, Judged::Closes) {
                self.seal(&mut group, env, view, turn)?;
                judged = group.judge(&write, view, turn, env.now)?;
            }
            match judged {
                Judged::Joins(plan) if plan.is_empty() => {
                    let outcome = WriteOutcome { dot: None, ops: plan.into_outcomes() };
                    turn.effect(Effect::Written { token: write.token, outcome });
                }
                Judged::Joins(plan) => group.join(plan, write.token, write.request),
                Judged::Refused(refusal) => turn.effect(Effect::Refused { token: write.token, refusal }),
                // An empty group closes for nothing: there is no op in the way, a tombstone over an empty row is absent, a
                // size is refused.
                Judged::Closes => unreachable!("a write closed an empty group"),
            }
        }
        self.seal(&mut group, env, view, turn)
    }

    /// Makes a block of the group and merges it like any other.
    fn seal<V: View>(&mut self, group: &mut Group, env: &mut Env<'_>, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        if group.is_empty() {
            return Ok(());
        }
        let Gathered { mut ops, mut answers, callers, crowded } = group.take();
        let second = if active(Mutation::BatchTorn) && ops.len() > 1 { ops.pop() } else { None };
        for answer in answers.iter_mut().filter(|_| second.is_some()) {
            answer.ops.retain(|op| (0_u32..).zip(&ops).any(|(at, _)| at == *op));
        }
        let draft = self.draft(ops, answers, env);
        let block = match Block::seal(draft, env.signer) {
            Ok(block) => block,
            Err(error) => {
                for caller in callers {
                    turn.effect(Effect::Refused { token: caller.token, refusal: error.clone().into() });
                }
                return Ok(());
            }
        };
        let dot = block.dot();
        self.merge_local(block, view, turn)?;
        if let Some(Ok(block)) = second.map(|op| Block::seal(self.draft(vec![op], Vec::new(), env), env.signer)) {
            self.merge_local(block, view, turn)?;
        }
        for caller in callers {
            let outcome = WriteOutcome { dot: Some(dot), ops: caller.ops };
            turn.effect(Effect::Written { token: caller.token, outcome });
        }
        crowded.into_iter().try_for_each(|(key, change)| self.fold(&key, &change, env, view, turn))
    }

    /// Supersedes what one op could not name of a crowded row, by further blocks with the same change.
    fn fold<V: View>(
        &mut self,
        key: &Key,
        change: &Change,
        env: &mut Env<'_>,
        view: &V,
        turn: &mut Turn,
    ) -> Result<(), V::Error> {
        let left = usize::from(matches!(change, Change::Put { .. }));
        loop {
            let row: &Row = &turn.row(view, key)?.row;
            if row.siblings().len() <= left {
                return Ok(());
            }
            let op = Op { key: key.clone(), change: change.clone(), superseded: seen_all(row) };
            let draft = self.draft(vec![op], Vec::new(), env);
            match Block::seal(draft, env.signer) {
                Ok(block) => self.merge_local(block, view, turn)?,
                // The caller's write itself is done; what is left stays as siblings, which a later write supersedes.
                Err(_) => return Ok(()),
            }
        }
    }

    fn draft(&mut self, ops: Vec<Op>, answers: Vec<crate::block::Answer>, env: &mut Env<'_>) -> Draft {
        let database = self.database;
        let writer = *self.writer.get_or_insert_with(|| {
            let mut author = Author { public_key: env.signer.public_key(), nonce: (env.random)() & MAX_UINT };
            if active(Mutation::NonceFixed) {
                author.nonce = 1;
            }
            if active(Mutation::NonceReadBack) {
                let known = self.vv.values().find(|entry| entry.author.public_key == author.public_key);
                author = known.map_or(author, |entry| entry.author);
            }
            Writer { author, replica: author.replica(&database) }
        });
        let mut parents = self.heads.parents(Some(writer.replica));
        if active(Mutation::ParentsForgotten) {
            parents.truncate(1);
        }
        Draft {
            database,
            author: writer.author,
            seq: self.seq(&writer.replica) + u64::from(!(active(Mutation::SeqReused) && self.seq(&writer.replica) == 2)),
            stamp: self.clock.tick(env.now),
            parents,
            ops,
            answers,
        }
    }

    fn merge_local<V: View>(&mut self, block: Block, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        let dot = block.dot();
        debug_assert_eq!(self.missing(&block), None);
        self.merge(&block, view, turn)?;
        turn.effect(Effect::Sealed { revision: self.meta.revision, block });
        self.drain(dot, view, turn)
    }

    fn receive<V: View>(&mut self, block: Block, source: Source, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        if block.database() != self.database && !active(Mutation::ForeignBlockTaken) {
            // The caller sorts blocks by database; one of another must not touch this one's rows.
            debug_assert!(false, "a block of another database");
            return Ok(());
        }
        let dot = block.dot();
        if self.accept(block, source, view, turn)? { self.drain(dot, view, turn) } else { Ok(()) }
    }

    /// Merges a ready block, holds one that is not, notes one already merged. Tells whether it was merged.
    fn accept<V: View>(&mut self, block: Block, source: Source, view: &V, turn: &mut Turn) -> Result<bool, V::Error> {
        let dot = block.dot();
        if self.covers(&dot) {
            if active(Mutation::DuplicateMerged) {
                self.merge(&block, view, turn)?;
            }
            match self.known_hash(&dot, view, turn)? {
                Some(kept) if kept != block.hash() => {
                    self.leave_writer(dot.replica);
                    turn.effect(Effect::Disagreement { dot, kept, other: block.hash(), source });
                }
                _ => turn.effect(Effect::Duplicate { dot, source }),
            }
            return Ok(false);
        }
        self.leave_copied_writer(&block);
        if let Some(missing) = self.missing(&block) {
            let held = self.pending.hold(block, source, missing);
            turn.effect(if held { Effect::Held { dot, missing, source } } else { Effect::Dropped { dot, source } });
            return Ok(false);
        }
        for parent in block.parents() {
            if let Some(kept) = self.known_hash(&parent.dot, view, turn)?
                && kept != parent.hash
            {
                self.leave_named_writer(parent.dot.replica);
                turn.effect(Effect::Disagreement { dot: parent.dot, kept, other: parent.hash, source });
            }
        }
        self.merge(&block, view, turn)?;
        turn.effect(Effect::Merged { revision: self.meta.revision, dot, source });
        Ok(true)
    }

    /// Merges what waited for the block just merged, and for that in turn: a work list, since chains can be long.
    fn drain<V: View>(&mut self, merged: Dot, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        let mut risen = VecDeque::from([merged.replica]);
        while let Some(replica) = risen.pop_front() {
            for (block, source) in self.pending.release(replica, self.seq(&replica)) {
                let author = block.dot().replica;
                if active(Mutation::PendingUnchecked) {
                    self.merge(&block, view, turn)?;
                } else if self.accept(block, source, view, turn)? {
                    risen.push_back(author);
                }
            }
        }
        Ok(())
    }

    /// Merges what waited for blocks that a snapshot has brought.
    ///
    /// # Errors
    /// When the view cannot read; the replica and the turn must then be dropped.
    pub fn release<V: View>(&mut self, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        for replica in self.pending.replicas() {
            self.drain(Dot { replica, seq: 0 }, view, turn)?;
        }
        Ok(())
    }

    /// Steps of a snapshot that change nothing of the replica as it is now.
    pub fn stage(&mut self, writes: Vec<SnapshotWrite>, requests: Vec<(RequestId, RequestRecord)>) -> Step {
        let mut turn = self.begin();
        if active(Mutation::SnapshotUnstaged) {
            for write in &writes {
                let rows = if let SnapshotWrite::Append(rows) = write { rows.as_slice() } else { &[] };
                for (key, row) in rows {
                    turn.show(key, row);
                }
            }
        }
        turn.snapshot = writes;
        // None of them is known here: the join has looked.
        self.meta.requests += requests.len() as u64;
        turn.requests.extend(requests);
        self.finish(turn)
    }

    /// Takes over what a join has come to, in one step: version vector, heads, floors, digest, clock, and the rows that
    /// were built. The writes are those of the join's last piece. What is to replace the replica does so.
    pub fn switch(&mut self, joined: Joined, mut writes: Vec<SnapshotWrite>) -> Step {
        if joined.replaces {
            return self.replace(joined, writes);
        }
        let mut turn = self.begin();
        let (mine, theirs) = (self.vv(), joined.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect());
        self.heads = Heads::join(&self.heads, &mine, &joined.heads, &theirs);
        for (replica, entry) in joined.vv {
            if entry.seq > self.seq(&replica) {
                // Blocks under our own id that we do not know: somebody has a copy of this disk.
                self.leave_writer(replica);
                self.vv.insert(replica, entry);
                self.floors.raise(replica, entry.seq);
                turn.vv.insert(replica, entry);
                turn.floors.insert(replica, entry.seq);
            }
        }
        self.clock.observe(joined.head.clock);
        self.meta.digest = joined.digest;
        self.meta.keys = joined.keys;
        self.meta.revision += 1;
        writes.push(SnapshotWrite::Switch { revision: self.meta.revision });
        turn.snapshot = writes;
        turn.switched = true;
        self.finish(turn)
    }

    /// Takes over a snapshot in the place of everything that was here: no block is kept, and the next write is by a new
    /// writer, since the own version vector may have fallen. The writes are those of the join's last piece.
    fn replace(&mut self, joined: Joined, mut writes: Vec<SnapshotWrite>) -> Step {
        self.heads = Heads::default();
        let mut turn = self.begin();
        self.heads = joined.heads;
        self.writer = None;
        self.floors = joined.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
        turn.floors = self.floors.iter().collect();
        turn.vv = joined.vv.clone();
        self.vv = joined.vv;
        self.clock.observe(joined.head.clock);
        self.meta.digest = joined.digest;
        self.meta.keys = joined.keys;
        self.meta.history_bytes = 0;
        // All that the log has left is the entry of the switch.
        self.meta.log_floor = self.meta.revision;
        self.meta.revision += 1;
        writes.push(SnapshotWrite::Replace { revision: self.meta.revision });
        turn.snapshot = writes;
        turn.switched = true;
        self.finish(turn)
    }

    /// Draws a new nonce if a block that was not written here bears our id, or names one that does: this disk or memory
    /// was copied, and the copy writes.
    fn leave_copied_writer(&mut self, block: &Block) {
        let Some(Writer { replica, .. }) = self.writer else { return };
        let last = self.seq(&replica);
        if block.dot().replica == replica {
            self.leave_writer(replica);
        } else if block.builds_on().any(|dot| dot.replica == replica && dot.seq > last) {
            self.leave_named_writer(replica);
        }
    }

    /// The same for a block that names this writer and that anybody may have signed: each new nonce is one more entry in all
    /// version vectors, so not too often. If there is a copy, its own blocks are signed and come as well.
    fn leave_named_writer(&mut self, replica: ReplicaId) {
        let recent = |at: &WallTime| (at.0..at.0.saturating_add(MIN_NAMED_NONCE_GAP_MS)).contains(&self.now.0);
        if self.writer.is_some_and(|writer| writer.replica == replica) && !self.named_at.as_ref().is_some_and(recent) {
            self.named_at = Some(self.now);
            self.leave_writer(replica);
        }
    }

    /// Write as somebody else from now on, if we write as this replica.
    fn leave_writer(&mut self, replica: ReplicaId) {
        self.writer.take_if(|writer| writer.replica == replica);
    }

    /// A dot that must be merged before this block; `None` when it is ready.
    fn missing(&self, block: &Block) -> Option<Dot> {
        let dot = block.dot();
        if self.seq(&dot.replica) != dot.seq - 1 && !active(Mutation::MergeOutOfSeq) {
            return Some(Dot { replica: dot.replica, seq: dot.seq - 1 });
        }
        let parents = block.parents().len();
        let skipped = if active(Mutation::MergeBeforeParents) { parents } else { 0 };
        let looked_at = if active(Mutation::MergeBeforeSuperseded) { parents } else { usize::MAX };
        let own = active(Mutation::MergeOutOfSeq).then_some(dot.replica);
        let mut needed = block.builds_on().take(looked_at).skip(skipped).filter(|needed| Some(needed.replica) != own);
        needed.find(|dot| !self.covers(dot))
    }

    /// The address of a merged block, if it is still known.
    fn known_hash<V: View>(&self, dot: &Dot, view: &V, turn: &Turn) -> Result<Option<BlockHash>, V::Error> {
        if let Some(head) = self.heads.get(dot) {
            return Ok(Some(head.hash));
        }
        if turn.vv.contains_key(&dot.replica) {
            // Merged in this very turn, perhaps, and so not in the view yet.
            if let Some((_, block)) = turn.blocks.iter().rev().find(|(_, block)| block.dot() == *dot) {
                return Ok(Some(block.hash()));
            }
        }
        view.block_hash(dot)
    }

    fn merge<V: View>(&mut self, block: &Block, view: &V, turn: &mut Turn) -> Result<(), V::Error> {
        let (dot, stamp) = (block.dot(), block.stamp());
        for op in block.ops() {
            let entry = turn.row(view, &op.key)?;
            let row = entry.change();
            for dropped in row.apply(op, dot, stamp) {
                if !active(Mutation::DigestNotLowered) {
                    self.meta.digest.remove(dropped.check);
                }
            }
            if matches!(op.change, Change::Put { .. })
                && let Some(added) = row.siblings().iter().find(|sibling| sibling.dot == dot)
            {
                self.meta.digest.add(added.check);
            }
        }
        self.meta.revision += 1 + u64::from(active(Mutation::LogSkips) && self.meta.revision == 20);
        self.meta.history_bytes += block.bytes().len() as u64;
        if !active(Mutation::ClockNotRaised) {
            self.clock.observe(stamp);
        }
        let entry = VvEntry { seq: dot.seq, author: block.author() };
        self.vv.insert(dot.replica, entry);
        self.heads.merge(block);
        turn.vv.insert(dot.replica, entry);
        for answer in block.answers() {
            // A retry that was answered elsewhere too does not change the outcome that was given here.
            let known = turn.requests.contains_key(&answer.request) || view.request(&answer.request)?.is_some();
            if (!known || active(Mutation::RequestReplaced)) && !active(Mutation::RequestForgotten) {
                let record = RequestRecord { dot, ops: answer.ops.clone(), stamp };
                self.meta.requests += u64::from(turn.requests.insert(answer.request, record).is_none());
            }
        }
        turn.blocks.push((self.meta.revision, block.clone()));
        Ok(())
    }
}

fn repeated(write: &LocalWrite, record: &RequestRecord) -> Effect {
    let ops = vec![OpOutcome::Repeated; write.ops.len()];
    Effect::Written { token: write.token, outcome: WriteOutcome { dot: Some(record.dot), ops } }
}
