//! What must be so, computed the slow and obvious way: sets of names, and nothing of the code under test but its types.

use std::collections::{BTreeMap, BTreeSet};

use crdt::testing::Reference;
use crdt::{
    Block, BlockHash, Change, DatabaseId, Dot, Expiry, Key, ReplicaId, RequestId, SnapshotWrite, Stamp, WallTime, WriteSet,
};

use crate::disk::Batch;
use crate::observe::NodeId;
use crate::time::Time;

/// A put as the model keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The block's stamp.
    pub stamp: Stamp,
    /// When it stops being visible.
    pub expiry: Option<Expiry>,
}

/// One node's copy of one database, as it must be.
#[derive(Debug, Clone, Default)]
pub struct Copy {
    /// The merged blocks in the order in which the disk took them; those that a snapshot brought at its switch.
    pub order: Vec<Dot>,
    /// What was merged at each revision, from 1 on; a switch to a snapshot's rows has a revision too, and no block.
    pub log: Vec<Option<Dot>>,
    /// The revision up to which log and blocks are not kept any more.
    pub floor: u64,
    /// The same as a set.
    pub merged: BTreeSet<Dot>,
    /// How many of them, from the first on, are on disk for certain.
    pub synced: usize,
    /// How many the disk said to have synced, which a lying one has not.
    pub said_synced: usize,
    /// The puts alive at each key.
    pub alive: BTreeMap<Key, BTreeMap<Dot, Put>>,
    /// What merged blocks supersede at each key.
    pub dead: BTreeSet<(Key, Dot)>,
    /// Merged blocks that no merged block names as a parent.
    pub heads: BTreeSet<Dot>,
    /// For each request whose outcome is kept the first block that answers it.
    pub answers: BTreeMap<RequestId, Dot>,
    /// Requests of which a snapshot brought several answers at once, or perhaps none since they were forgotten somewhere:
    /// what is kept of them here is the sender's to say.
    pub unsure: BTreeSet<RequestId>,
    vv: BTreeMap<ReplicaId, u64>,
    named: BTreeSet<Dot>,
    /// In which batch of the disk each of `order` came.
    batches: Vec<usize>,
}

impl Copy {
    /// Merges a block at the next revision, whatever came before.
    pub fn take(&mut self, block: &Block) {
        self.log.push(Some(block.dot()));
        self.add(block);
    }

    /// Takes in what a snapshot covers and this copy does not, at the next revision.
    fn switch(&mut self, brought: &[&Block], forgotten: &BTreeSet<RequestId>) {
        self.log.push(None);
        let mut new: BTreeSet<RequestId> = BTreeSet::new();
        for answer in brought.iter().flat_map(|block| block.answers()) {
            if !self.answers.contains_key(&answer.request) && (!new.insert(answer.request) || forgotten.contains(&answer.request))
            {
                self.unsure.insert(answer.request);
            }
        }
        for block in brought {
            self.add(block);
        }
    }

    /// Drops history and outcomes of requests, as a write set says.
    pub fn trim(&mut self, set: &WriteSet) {
        self.floor = set.truncation.entries.last().map_or(self.floor, |entry| entry.revision);
        for (request, _) in &set.forgotten {
            self.answers.remove(request);
        }
    }

    fn add(&mut self, block: &Block) {
        let dot = block.dot();
        if self.merged.insert(dot) {
            self.order.push(dot);
        }
        let entry = self.vv.entry(dot.replica).or_default();
        *entry = (*entry).max(dot.seq);
        for parent in block.parents() {
            self.named.insert(parent.dot);
            self.heads.remove(&parent.dot);
        }
        if !self.named.contains(&dot) {
            self.heads.insert(dot);
        }
        for op in block.ops() {
            for gone in &op.superseded {
                self.dead.insert((op.key.clone(), *gone));
                if let Some(puts) = self.alive.get_mut(&op.key) {
                    puts.remove(gone);
                }
            }
            if let Change::Put { expiry, .. } = &op.change
                && !self.dead.contains(&(op.key.clone(), dot))
            {
                let put = Put { stamp: block.stamp(), expiry: *expiry };
                self.alive.entry(op.key.clone()).or_default().insert(dot, put);
            }
            if self.alive.get(&op.key).is_some_and(BTreeMap::is_empty) {
                self.alive.remove(&op.key);
            }
        }
        for answer in block.answers() {
            self.answers.entry(answer.request).or_insert(dot);
        }
    }

    /// The dots alive at a key, the winner first.
    #[must_use]
    pub fn row(&self, key: &Key) -> Vec<Dot> {
        let mut row: Vec<(Stamp, Dot)> = self.alive.get(key).into_iter().flatten().map(|(dot, put)| (put.stamp, *dot)).collect();
        row.sort_unstable();
        row.into_iter().rev().map(|(_, dot)| dot).collect()
    }

    /// The put that a read of this time must return.
    #[must_use]
    pub fn winner(&self, key: &Key, now: WallTime) -> Option<Dot> {
        let puts = self.alive.get(key)?;
        let seen = puts.iter().filter(|(_, put)| put.expiry.is_none_or(|expiry| expiry.unix_ms() > now.0));
        seen.map(|(dot, put)| (put.stamp, *dot)).max().map(|(_, dot)| dot)
    }

    /// The last revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.log.len() as u64
    }

    /// The revision after which nothing but blocks came.
    #[must_use]
    pub fn switched_at(&self) -> u64 {
        self.log.iter().rposition(Option::is_none).map_or(0, |at| at as u64 + 1)
    }

    /// Whether the block is merged.
    #[must_use]
    pub fn covers(&self, dot: &Dot) -> bool {
        self.merged.contains(dot)
    }
}

/// All copies of all nodes, and all blocks there ever were.
#[derive(Debug, Default)]
pub struct Truth {
    /// The time.
    pub now: Time,
    /// Every block that a disk ever took, by its first form.
    pub blocks: BTreeMap<(DatabaseId, Dot), Block>,
    names: BTreeMap<BlockHash, Dot>,
    copies: BTreeMap<(NodeId, DatabaseId), Copy>,
    /// Complete batches of each node's disk.
    batches: BTreeMap<NodeId, usize>,
    /// For each node the databases of which not everything is synced.
    late: BTreeMap<NodeId, BTreeSet<DatabaseId>>,
    /// Requests whose outcomes any node has forgotten.
    forgotten: BTreeSet<RequestId>,
    nothing: Copy,
}

impl Truth {
    /// A node's copy, empty if it has none.
    #[must_use]
    pub fn copy(&self, node: NodeId, database: DatabaseId) -> &Copy {
        self.copies.get(&(node, database)).unwrap_or(&self.nothing)
    }

    /// The databases that a node has something of.
    pub fn databases(&self, node: NodeId) -> impl Iterator<Item = (DatabaseId, &Copy)> {
        self.copies.range((node, DatabaseId([0; 32]))..=(node, DatabaseId([255; 32]))).map(|((_, id), copy)| (*id, copy))
    }

    /// A node's disk took a block.
    pub fn take(&mut self, node: NodeId, block: &Block) {
        let database = block.database();
        self.know(block);
        let batch = self.batches.get(&node).copied().unwrap_or(0);
        let copy = self.copies.entry((node, database)).or_default();
        copy.take(block);
        copy.batches.resize(copy.order.len(), batch);
        self.late.entry(node).or_default().insert(database);
    }

    /// A node's disk has switched to a snapshot's rows.
    ///
    /// # Errors
    /// When it claims what no disk ever had.
    pub fn switch(&mut self, node: NodeId, set: &WriteSet) -> Result<(), String> {
        let batch = self.batches.get(&node).copied().unwrap_or(0);
        let mut copy = self.copies.remove(&(node, set.database)).unwrap_or_default();
        let switched = self.switch_copy(&mut copy, set);
        copy.batches.resize(copy.order.len(), batch);
        self.copies.insert((node, set.database), copy);
        self.late.entry(node).or_default().insert(set.database);
        switched.map_err(|what| format!("n{node} {what}"))
    }

    fn switch_copy(&self, copy: &mut Copy, set: &WriteSet) -> Result<(), String> {
        let mut brought = Vec::new();
        for (replica, entry) in &set.vv {
            for seq in copy.vv.get(replica).copied().unwrap_or(0) + 1..=entry.seq {
                let dot = Dot { replica: *replica, seq };
                let known = self.blocks.get(&(set.database, dot));
                brought.push(known.ok_or_else(|| format!("claims {dot} by a snapshot, which no disk ever had"))?);
            }
        }
        copy.switch(&brought, &self.forgotten);
        Ok(())
    }

    /// Drops history and outcomes of requests from a node's copy.
    pub fn trim(&mut self, node: NodeId, set: &WriteSet) {
        self.forgotten.extend(set.forgotten.iter().map(|(request, _)| *request));
        if let Some(copy) = self.copies.get_mut(&(node, set.database)) {
            copy.trim(set);
        }
    }

    /// Whether any node has forgotten the outcome of a request.
    #[must_use]
    pub fn is_forgotten(&self, request: &RequestId) -> bool {
        self.forgotten.contains(request)
    }

    fn know(&mut self, block: &Block) {
        self.names.insert(block.hash(), block.dot());
        self.blocks.entry((block.database(), block.dot())).or_insert_with(|| block.clone());
    }

    /// A node's disk says that it has synced so many of its batches, and really has synced so many.
    pub fn synced(&mut self, node: NodeId, said: usize, really: usize) {
        let copies = &mut self.copies;
        let Some(late) = self.late.get_mut(&node) else { return };
        late.retain(|database| {
            let Some(copy) = copies.get_mut(&(node, *database)) else { return false };
            copy.said_synced = copy.batches.partition_point(|batch| *batch < said);
            copy.synced = copy.batches.partition_point(|batch| *batch < really);
            copy.synced.min(copy.said_synced) < copy.order.len()
        });
    }

    /// A batch of a node's disk is complete.
    pub fn batch(&mut self, node: NodeId) {
        *self.batches.entry(node).or_default() += 1;
    }

    /// A node starts with so many batches on its disk.
    pub fn restart(&mut self, node: NodeId, batches: usize) {
        self.batches.insert(node, batches);
    }

    /// A node's disk is found to hold what these batches wrote. Returns what was known of the database before.
    ///
    /// # Errors
    /// When it claims what no disk ever had.
    pub fn replace(&mut self, node: NodeId, database: DatabaseId, batches: &[Batch]) -> Result<Copy, String> {
        let mut copy = Copy::default();
        for (at, batch) in batches.iter().enumerate() {
            for set in batch.iter().filter(|set| set.database == database) {
                if switches(set) {
                    self.switch_copy(&mut copy, set)?;
                }
                for (_, block) in &set.blocks {
                    self.know(block);
                    copy.take(block);
                }
                copy.trim(set);
            }
            copy.batches.resize(copy.order.len(), at);
        }
        self.late.entry(node).or_default().insert(database);
        Ok(self.copies.insert((node, database), copy).unwrap_or_default())
    }

    /// A node's disk has deleted a database.
    pub fn forget(&mut self, node: NodeId, database: DatabaseId) {
        self.copies.remove(&(node, database));
    }

    /// The name of a block that some disk has taken, by its bytes.
    #[must_use]
    pub fn name(&self, bytes: &[u8]) -> Option<Dot> {
        self.names.get(&BlockHash::of(bytes)).copied()
    }

    /// The state that a node's merged set gives; an error when the set is not causally closed.
    ///
    /// # Errors
    /// What is missing.
    pub fn fold(&self, node: NodeId, database: DatabaseId) -> Result<Reference, String> {
        let copy = self.copy(node, database);
        let blocks: Vec<&Block> = copy.order.iter().filter_map(|dot| self.blocks.get(&(database, *dot))).collect();
        // The reference panics on a set that is not closed: look first.
        for block in &blocks {
            if let Some(missing) = needs(block).find(|dot| !copy.covers(dot)) {
                return Err(format!("{} is merged, but {missing} is not", block.dot()));
            }
        }
        Ok(Reference::fold(blocks))
    }
}

/// Whether a write set puts a snapshot's rows in the place of others.
#[must_use]
pub fn switches(set: &WriteSet) -> bool {
    set.snapshot.iter().any(|write| matches!(write, SnapshotWrite::Switch { .. }))
}

/// Everything that must be merged before a block.
pub fn needs(block: &Block) -> impl Iterator<Item = Dot> + '_ {
    let dot = block.dot();
    let before = (dot.seq > 1).then(|| Dot { replica: dot.replica, seq: dot.seq - 1 });
    let parents = block.parents().iter().map(|parent| parent.dot);
    let superseded = block.ops().iter().flat_map(|op| op.superseded.iter().copied());
    before.into_iter().chain(parents).chain(superseded)
}
