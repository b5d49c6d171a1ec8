//! Joining a staged snapshot, piece by piece, while the replica goes on.
//!
//! The joined rows are built beside the rows in use, in key order. What is merged here meanwhile changes the rows in use
//! only; the log names the keys, and those are joined again at the end, the last of them in the batch that switches.
//! So reads, merges and acknowledgements see the old state until they see all of the new one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter::Peekable;

use bytes::Bytes;
use thiserror::Error;

use super::codec::{Items, decode};
use super::{Purpose, SnapshotError, SnapshotHead};
use crate::block::{Block, RequestId};
use crate::database::DatabaseId;
use crate::dot::{Dot, ReplicaId, VersionVector};
use crate::heads::{Head, Heads};
use crate::key::{Key, KeyRange, Prefix};
use crate::limits::{MAX_CATCH_UP_BYTES, MAX_JOIN_BYTES, MAX_JOIN_ROWS, MAX_ROW_VALUE_BYTES};
use crate::mutation::{Mutation, active};
use crate::row::{Digest, Row, Sibling};
use crate::store::{Dropped, Order, Projection, RequestRecord, RowWrite, SnapshotWrite, View, VvEntry};

/// Why a staged snapshot cannot be joined.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JoinError<E: std::error::Error> {
    /// The store cannot read.
    #[error(transparent)]
    Store(#[from] E),
    /// The snapshot is not what its head says: it must be dropped, and its sender is at fault.
    #[error(transparent)]
    Invalid(SnapshotError),
    /// It was to replace a replica that has merged what it does not cover.
    #[error("the snapshot does not cover {0}, which is merged here")]
    Lacking(Dot),
    /// History that came meanwhile is not kept any more: start the join anew.
    #[error("blocks merged since the join began are not kept any more")]
    Stale,
}

/// The outcome of a join, for the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The snapshot's head.
    pub head: SnapshotHead,
    /// The snapshot's version vector with its authors.
    pub vv: BTreeMap<ReplicaId, VvEntry>,
    /// The snapshot's heads.
    pub heads: Heads,
    /// Whether the snapshot takes the place of all that was here.
    pub replaces: bool,
    /// The digest of the joined rows.
    pub digest: Digest,
    /// Their number.
    pub keys: u64,
}

/// What a piece of a join wants written, in order.
#[derive(Debug, Default)]
pub struct JoinPiece {
    /// For the store.
    pub writes: Vec<SnapshotWrite>,
    /// Requests that the snapshot answers and that are not answered here.
    pub requests: Vec<(RequestId, RequestRecord)>,
    /// The join is complete: the writes belong into one batch with the switch, before anything else is merged.
    pub joined: Option<Joined>,
}

/// A join under way. It lives in memory: after a restart it begins anew, from what is staged.
#[derive(Debug)]
pub struct SnapshotJoin {
    database: DatabaseId,
    head: SnapshotHead,
    purpose: Purpose,
    vv: BTreeMap<ReplicaId, VvEntry>,
    their_vv: VersionVector,
    heads: BTreeMap<Dot, Head>,
    /// Version vector and heads have come as a whole.
    complete: bool,
    /// The next chunk.
    chunk: u64,
    ended: bool,
    /// Rows of the chunk, not joined yet.
    rows: VecDeque<(Key, Vec<Sibling>)>,
    /// A row that the next chunk may continue.
    open: Option<Open>,
    /// Rows here up to this key are done.
    after: Option<Key>,
    phase: Phase,
    /// The snapshot's own digest and number of rows, as they came.
    seen: (Digest, u64),
    digest: Digest,
    keys: u64,
    /// What is merged after this revision is caught up with.
    base: u64,
    /// Most rows of a piece.
    most_rows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Begin,
    Rows,
    /// The log up to this revision is in the built rows.
    CatchUp(u64),
}

/// The snapshot's siblings at one key, as far as they have come.
#[derive(Debug)]
struct Open {
    key: Key,
    siblings: Vec<Sibling>,
    /// Siblings whose values went to the store already.
    apart: BTreeSet<Dot>,
}

/// What a piece may still do.
struct Budget {
    rows: usize,
    bytes: usize,
}

impl Budget {
    fn spend(&mut self, bytes: usize) {
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_spent(&self) -> bool {
        self.rows == 0 || self.bytes == 0
    }
}

impl SnapshotJoin {
    /// A join of what is staged. What is merged after `revision` is caught up with.
    ///
    /// # Errors
    /// When the head is malformed.
    pub fn new(database: DatabaseId, head: Bytes, revision: u64) -> Result<Self, SnapshotError> {
        let (purpose, head) = Purpose::unwrap(head)?;
        Ok(Self {
            database,
            head: SnapshotHead::decode(head)?,
            purpose,
            vv: BTreeMap::new(),
            their_vv: VersionVector::default(),
            heads: BTreeMap::new(),
            complete: false,
            chunk: 0,
            ended: false,
            rows: VecDeque::new(),
            open: None,
            after: None,
            phase: Phase::Begin,
            seen: (Digest::default(), 0),
            digest: Digest::default(),
            keys: 0,
            base: revision,
            most_rows: MAX_JOIN_ROWS,
        })
    }

    /// With at most so many rows in a piece.
    #[must_use]
    pub fn in_pieces_of(mut self, rows: usize) -> Self {
        self.most_rows = rows;
        self
    }

    /// The next piece: bounded in rows and bytes. The view must show what all pieces before have written, and `vv` and
    /// `revision` must be its own.
    ///
    /// # Errors
    /// See [`JoinError`]. The join must then be dropped.
    pub fn piece<V: View>(&mut self, view: &V, vv: &VersionVector, revision: u64) -> Result<JoinPiece, JoinError<V::Error>> {
        let mut piece = JoinPiece::default();
        // Whatever is here does not count if the snapshot is to take its place.
        let none = VersionVector::default();
        let (vv, all) = if self.purpose.replaces() { (&none, vv) } else { (vv, vv) };
        if self.phase == Phase::Begin {
            piece.writes.push(SnapshotWrite::Build);
            self.phase = Phase::Rows;
        }
        if self.phase == Phase::Rows {
            let mut range = KeyRange::of(&Prefix::root());
            if let Some(after) = &self.after {
                range.start_from(std::ops::Bound::Excluded(after.as_bytes()));
            }
            let mine = if self.purpose.replaces() { 0 } else { usize::MAX };
            let mine = view.scan(range, Order::Ascending, Projection::Rows).take(mine).peekable();
            let mut rows = Vec::new();
            let done = Walk { join: self, view, vv, mine, piece: &mut piece, rows: &mut rows }.run()?;
            piece.writes.push(SnapshotWrite::Append(rows));
            if done {
                self.totals().map_err(JoinError::Invalid)?;
                piece.writes.push(SnapshotWrite::Seal);
                self.phase = Phase::CatchUp(self.base);
            }
            return Ok(piece);
        }
        if let Phase::CatchUp(from) = self.phase {
            if let Some(lost) = all.first_beyond(&self.their_vv).filter(|_| self.purpose == Purpose::Replace) {
                return Err(JoinError::Lacking(lost));
            }
            let to = if self.purpose.replaces() { revision } else { self.catch_up(view, vv, from, revision, &mut piece)? };
            self.phase = Phase::CatchUp(to);
            if to == revision {
                piece.joined = Some(Joined {
                    head: self.head,
                    vv: self.vv.clone(),
                    heads: self.heads.iter().map(|(dot, head)| (*dot, *head)).collect(),
                    replaces: self.purpose.replaces(),
                    digest: self.digest,
                    keys: self.keys,
                });
            }
        }
        Ok(piece)
    }

    /// Whether what came is what the head promised.
    fn totals(&self) -> Result<(), SnapshotError> {
        let total = |what| Err(SnapshotError::Total { what });
        match () {
            () if self.seen.1 != self.head.keys => total("the number of keys"),
            () if self.seen.0 != self.head.digest => total("the digest"),
            () => Ok(()),
        }
    }

    /// Version vector and heads must be there as a whole before the first row.
    fn complete(&mut self) -> Result<(), SnapshotError> {
        if self.complete {
            return Ok(());
        }
        self.complete = true;
        if self.vv.len() as u64 != self.head.replicas {
            return Err(SnapshotError::Total { what: "the number of replicas" });
        }
        if self.heads.len() as u64 != self.head.heads {
            return Err(SnapshotError::Total { what: "the number of heads" });
        }
        self.their_vv = self.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
        match self.heads.keys().find(|dot| !self.their_vv.covers(dot)) {
            Some(dot) => Err(SnapshotError::NotCovered { what: "the head", dot: *dot }),
            None => Ok(()),
        }
    }

    /// Takes in the parts of a chunk that are kept in memory; `false` at the end of the snapshot.
    fn load<V: View>(&mut self, view: &V, piece: &mut JoinPiece) -> Result<bool, JoinError<V::Error>> {
        if self.ended {
            return Ok(false);
        }
        let (next, bytes) = view.staged_chunk(self.chunk)?.ok_or(JoinError::Stale)?;
        self.chunk += 1;
        self.ended = next.is_empty();
        let late = SnapshotError::Order { what: "parts" };
        match decode(&self.database, bytes).map_err(JoinError::Invalid)? {
            Items::Replicas(_) | Items::Heads(_) if self.complete => return Err(JoinError::Invalid(late)),
            Items::Replicas(items) => {
                let ordered = self.vv.last_key_value().zip(items.first()).is_none_or(|((last, _), (next, _))| last < next);
                self.vv.extend(items);
                if !ordered || self.vv.len() as u64 > self.head.replicas {
                    return Err(JoinError::Invalid(SnapshotError::Order { what: "replicas" }));
                }
            }
            Items::Heads(items) => {
                self.heads.extend(items);
                if self.heads.len() as u64 > self.head.heads {
                    return Err(JoinError::Invalid(SnapshotError::Total { what: "the number of heads" }));
                }
            }
            Items::Requests(items) => {
                self.complete().map_err(JoinError::Invalid)?;
                for (request, record) in items {
                    if view.request(&request)?.is_none() && !active(Mutation::SnapshotRequestsLost) {
                        piece.requests.push((request, record));
                    }
                }
            }
            Items::Rows(rows) => {
                self.complete().map_err(JoinError::Invalid)?;
                self.rows.extend(rows);
            }
        }
        Ok(true)
    }

    /// Joins again what was touched here since: the row here with the built one, which the snapshot's set covers besides.
    fn catch_up<V: View>(
        &mut self,
        view: &V,
        vv: &VersionVector,
        from: u64,
        to: u64,
        piece: &mut JoinPiece,
    ) -> Result<u64, JoinError<V::Error>> {
        let (mut at, mut bytes) = (from, 0);
        let mut keys = BTreeSet::new();
        if from < to {
            for entry in view.log(from + 1) {
                let entry = entry?;
                let block = view.block(&entry.dot)?.filter(|_| entry.revision == at + 1).ok_or(JoinError::Stale)?;
                at = entry.revision;
                bytes += block.bytes.len();
                // What the store holds was a valid block when it came in.
                let block = Block::from_store(block.bytes).map_err(|_| JoinError::Stale)?;
                keys.extend(block.ops().iter().map(|op| op.key.clone()));
                if bytes >= MAX_CATCH_UP_BYTES {
                    break;
                }
            }
            if at == from {
                return Err(JoinError::Stale);
            }
        }
        let mut rows = Vec::new();
        for key in keys {
            let (mine, built) = (view.row(&key)?, view.built(&key)?);
            let joined = Row::join(&mine, vv, &built, &self.their_vv);
            let known: BTreeSet<Dot> = built.dots().collect();
            for sibling in joined.siblings().iter().filter(|sibling| !known.contains(&sibling.dot)) {
                if sibling.value.is_none() {
                    piece.writes.push(SnapshotWrite::Copy { key: key.clone(), dot: sibling.dot });
                }
            }
            let alive: BTreeSet<Dot> = joined.dots().collect();
            let gone = built.siblings().iter().filter(|sibling| !alive.contains(&sibling.dot));
            let dropped = gone.map(Dropped::of).collect();
            built.siblings().iter().for_each(|sibling| self.digest.remove(sibling.check));
            joined.siblings().iter().for_each(|sibling| self.digest.add(sibling.check));
            self.keys += u64::from(!joined.is_empty());
            self.keys -= u64::from(!built.is_empty());
            rows.push(RowWrite { key, row: joined, dropped });
        }
        if !rows.is_empty() {
            piece.writes.push(SnapshotWrite::Patch(rows));
        }
        Ok(at)
    }
}

/// The walk over both sides' rows.
struct Walk<'a, V: View, I: Iterator<Item = Result<(Key, Row), V::Error>>> {
    join: &'a mut SnapshotJoin,
    view: &'a V,
    vv: &'a VersionVector,
    mine: Peekable<I>,
    piece: &'a mut JoinPiece,
    rows: &'a mut Vec<(Key, Row)>,
}

impl<V: View, I: Iterator<Item = Result<(Key, Row), V::Error>>> Walk<'_, V, I> {
    /// Goes on until the budget is spent or, which it then says, both sides are at their end.
    fn run(mut self) -> Result<bool, JoinError<V::Error>> {
        let mut budget = Budget { rows: self.join.most_rows, bytes: MAX_JOIN_BYTES };
        loop {
            if budget.is_spent() {
                return Ok(false);
            }
            let Some((key, siblings)) = self.join.rows.pop_front() else {
                budget.spend(0);
                if self.join.load(self.view, self.piece)? {
                    continue;
                }
                self.join.complete().map_err(JoinError::Invalid)?;
                self.close(&mut budget)?;
                return self.mine_until(None, &mut budget);
            };
            match &self.join.open {
                Some(open) if open.key == key => {}
                Some(open) if open.key > key => return Err(JoinError::Invalid(SnapshotError::Order { what: "keys" })),
                _ => {
                    self.close(&mut budget)?;
                    if self.join.after.as_ref().is_some_and(|after| *after >= key) {
                        return Err(JoinError::Invalid(SnapshotError::Order { what: "keys" }));
                    }
                    if !self.mine_until(Some(&key), &mut budget)? {
                        self.join.rows.push_front((key, siblings));
                        return Ok(false);
                    }
                    self.join.seen.1 += 1;
                    self.join.open = Some(Open { key, siblings: Vec::new(), apart: BTreeSet::new() });
                }
            }
            self.extend(siblings, &mut budget)?;
        }
    }

    /// Adds siblings to the open row; long values go to the store at once.
    fn extend(&mut self, siblings: Vec<Sibling>, budget: &mut Budget) -> Result<(), JoinError<V::Error>> {
        let Some(open) = &mut self.join.open else { return Ok(()) };
        skip_new(&mut self.mine, &open.key);
        let mine: BTreeSet<Dot> = match self.mine.peek() {
            Some(Ok((key, row))) if *key == open.key => row.dots().collect(),
            _ => BTreeSet::new(),
        };
        for mut sibling in siblings {
            let dot = sibling.dot;
            if !self.join.their_vv.covers(&dot) {
                return Err(JoinError::Invalid(SnapshotError::NotCovered { what: "the sibling", dot }));
            }
            if open.siblings.last().is_some_and(|last| (last.stamp, last.dot) <= (sibling.stamp, dot)) {
                return Err(JoinError::Invalid(SnapshotError::Order { what: "siblings" }));
            }
            self.join.seen.0.add(sibling.check);
            let value = sibling.value.take_if(|value| value.len() > MAX_ROW_VALUE_BYTES);
            if let Some(value) = value.filter(|_| mine.contains(&dot) || !self.vv.covers(&dot)) {
                budget.bytes = budget.bytes.saturating_sub(value.len());
                open.apart.insert(dot);
                self.piece.writes.push(SnapshotWrite::Value { key: open.key.clone(), dot, value });
            }
            open.siblings.push(sibling);
        }
        Ok(())
    }

    /// The open row has all its siblings: joins it with the row here.
    fn close(&mut self, budget: &mut Budget) -> Result<(), JoinError<V::Error>> {
        let Some(open) = self.join.open.take() else { return Ok(()) };
        skip_new(&mut self.mine, &open.key);
        let mine = match self.mine.next_if(|found| found.as_ref().map_or(true, |(key, _)| *key == open.key)) {
            Some(found) => found?.1,
            None => Row::default(),
        };
        let joined = Row::join(&mine, self.vv, &Row::new(open.siblings), &self.join.their_vv);
        self.append(open.key, joined, &open.apart, budget);
        Ok(())
    }

    /// The rows here before a key, which the snapshot does not have. Tells whether all are done.
    fn mine_until(&mut self, key: Option<&Key>, budget: &mut Budget) -> Result<bool, JoinError<V::Error>> {
        while let Some(found) = self.mine.next_if(|found| found.as_ref().map_or(true, |(at, _)| key.is_none_or(|key| at < key))) {
            let (at, mine) = found?;
            let joined = Row::join(&mine, self.vv, &Row::default(), &self.join.their_vv);
            self.append(at, joined, &BTreeSet::new(), budget);
            if budget.is_spent() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn append(&mut self, key: Key, row: Row, apart: &BTreeSet<Dot>, budget: &mut Budget) {
        let mut bytes = 0;
        for sibling in row.siblings() {
            self.join.digest.add(sibling.check);
            if sibling.value.is_none() && !apart.contains(&sibling.dot) {
                bytes += usize::try_from(sibling.len).unwrap_or(usize::MAX);
                self.piece.writes.push(SnapshotWrite::Copy { key: key.clone(), dot: sibling.dot });
            }
        }
        budget.spend(bytes);
        self.join.after = Some(key.clone());
        if !row.is_empty() {
            self.join.keys += 1;
            self.rows.push((key, row));
        }
    }
}

/// Passes by rows before the open one: they are new since it was opened, and so caught up with at the end.
fn skip_new<E>(mine: &mut Peekable<impl Iterator<Item = Result<(Key, Row), E>>>, open: &Key) {
    if active(Mutation::SnapshotNewRows) {
        return;
    }
    while mine.next_if(|found| found.as_ref().is_ok_and(|(key, _)| key < open)).is_some() {}
}
