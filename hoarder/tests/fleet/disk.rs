//! Toy replicas: sets of blocks with dots and causal order, and a registry folded from them as kvdb does.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::{DatabaseId, Dot, Key, ReplicaId, RequestId, VersionVector};
use hoarder::StoreId;

#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) dot: Dot,
    pub(crate) stamp: u64,
    /// What its writer had merged.
    pub(crate) deps: VersionVector,
    pub(crate) request: Option<RequestId>,
    /// Key, value, superseded dots.
    pub(crate) ops: Vec<(Key, Option<Bytes>, Vec<Dot>)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Replica {
    /// In the order of merging.
    pub(crate) log: Vec<Block>,
    pub(crate) vv: VersionVector,
    pub(crate) durable: VersionVector,
    pub(crate) rows: BTreeMap<Key, BTreeMap<Dot, (u64, Bytes)>>,
    pub(crate) requests: BTreeMap<RequestId, Dot>,
    pub(crate) last: u64,
}

/// What survives a crash.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) store: StoreId,
    pub(crate) opening: u64,
    pub(crate) replicas: BTreeMap<DatabaseId, Replica>,
}

impl Replica {
    pub(crate) fn winner(&self, key: &Key) -> Option<Bytes> {
        let row = self.rows.get(key)?;
        row.iter().max_by_key(|(dot, (stamp, _))| (*stamp, **dot)).map(|(_, (_, value))| value.clone())
    }

    /// Merges a block that is ready; the keys that it touches, or `None`.
    pub(crate) fn merge(&mut self, block: &Block) -> Option<BTreeSet<Key>> {
        if self.vv.get(&block.dot.replica) + 1 != block.dot.seq || !self.vv.dominates(&block.deps) {
            return None;
        }
        for (key, value, superseded) in &block.ops {
            let row = self.rows.entry(key.clone()).or_default();
            row.retain(|dot, _| !superseded.contains(dot));
            row.extend(value.clone().map(|value| (block.dot, (block.stamp, value))));
        }
        self.vv.raise(block.dot.replica, block.dot.seq);
        self.last = self.last.max(block.stamp);
        self.requests.extend(block.request.map(|request| (request, block.dot)));
        self.log.push(block.clone());
        Some(block.ops.iter().map(|(key, _, _)| key.clone()).collect())
    }

    pub(crate) fn write(
        &mut self,
        me: ReplicaId,
        wall: u64,
        request: Option<RequestId>,
        changes: &[(Key, Option<Bytes>)],
    ) -> Block {
        let ops = changes.iter().map(|(key, value)| {
            let seen = self.rows.get(key).map(|row| row.keys().copied().collect()).unwrap_or_default();
            (key.clone(), value.clone(), seen)
        });
        let dot = Dot { replica: me, seq: self.vv.get(&me) + 1 };
        let stamp = (self.last + 1).max(wall);
        let block = Block { dot, stamp, deps: self.vv.clone(), request, ops: ops.collect() };
        self.merge(&block).expect("a block of one's own is ready");
        block
    }

    /// What a peer with this set lacks, in causal order.
    pub(crate) fn lacking(&self, vv: &VersionVector, most: usize) -> Vec<Block> {
        self.log.iter().filter(|block| !vv.covers(&block.dot)).take(most).cloned().collect()
    }

    /// What is left after a crash: a causally closed prefix of the log.
    pub(crate) fn crash(&self) -> Self {
        let mut left = Self::default();
        for block in &self.log {
            if self.durable.covers(&block.dot) {
                left.merge(block);
            }
        }
        left.durable = left.vv.clone();
        left
    }
}
