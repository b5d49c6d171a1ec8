//! A store in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use thiserror::Error;

use crate::block::{BlockHash, Expiry, RequestId};
use crate::clock::{Stamp, WallTime};
use crate::database::DatabaseId;
use crate::dot::{Dot, VersionVector};
use crate::heads::{Head, Heads, HeadsChange};
use crate::key::{Key, KeyRange};
use crate::row::{Digest, Row};
use crate::store::{
    Durability, LogEntry, Meta, Order, Projection, ReplicaState, RequestRecord, RowWrite, SnapshotWrite, Staged, Store,
    StoredBlock, View, VvEntry, WriteSet,
};

/// A store that keeps everything in memory and nothing for longer.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    databases: BTreeMap<DatabaseId, Contents>,
    /// Values longer than this are kept apart from their rows.
    apart_above: Option<u32>,
}

/// One database's records.
#[derive(Debug, Clone, Default)]
struct Contents {
    rows: BTreeMap<Key, Row>,
    values: BTreeMap<(Key, Dot), Bytes>,
    blocks: BTreeMap<Dot, StoredBlock>,
    log: BTreeMap<u64, LogEntry>,
    floors: VersionVector,
    vv: BTreeMap<crate::dot::ReplicaId, VvEntry>,
    packed: Vec<(Dot, Head)>,
    spilled: BTreeMap<Dot, Head>,
    meta: Meta,
    requests: BTreeMap<RequestId, RequestRecord>,
    staged: Option<(Bytes, Vec<(Bytes, Bytes)>)>,
    built: Option<Built>,
}

/// Rows that are being built.
#[derive(Debug, Clone, Default)]
struct Built {
    rows: BTreeMap<Key, Row>,
    values: BTreeMap<(Key, Dot), Bytes>,
    sealed: bool,
}

/// The one error of a store in memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("database {0} is not in this store")]
pub struct MemoryStoreError(pub DatabaseId);

impl MemoryStore {
    /// A store that keeps values longer than `bytes` apart from their rows, as one on disk does.
    #[must_use]
    pub fn with_values_apart_above(bytes: u32) -> Self {
        Self { databases: BTreeMap::new(), apart_above: Some(bytes) }
    }

    /// Puts another row in a key's place, as a disk that lies does. The digest is told to the change, so that it may follow.
    pub fn damage(&mut self, database: &DatabaseId, key: &Key, change: impl FnOnce(&mut Row, &mut Digest)) {
        let Some(contents) = self.databases.get_mut(database) else { return };
        let mut row = contents.rows.remove(key).unwrap_or_default();
        change(&mut row, &mut contents.meta.digest);
        if !row.is_empty() {
            contents.rows.insert(key.clone(), row);
        }
    }

    /// Adds an empty database, unless it is there.
    pub fn create(&mut self, database: DatabaseId) {
        self.databases.entry(database).or_default();
    }
}

impl Store for MemoryStore {
    type Error = MemoryStoreError;
    type View<'a> = MemoryView<'a>;

    fn view(&self, database: &DatabaseId) -> Result<MemoryView<'_>, MemoryStoreError> {
        self.databases.get(database).map(MemoryView).ok_or(MemoryStoreError(*database))
    }

    fn commit(&mut self, writes: &[WriteSet], _: Durability) -> Result<(), MemoryStoreError> {
        if let Some(unknown) = writes.iter().find(|set| !self.databases.contains_key(&set.database)) {
            return Err(MemoryStoreError(unknown.database));
        }
        for set in writes {
            if let Some(contents) = self.databases.get_mut(&set.database) {
                contents.write(set, self.apart_above.unwrap_or(u32::MAX));
            }
        }
        Ok(())
    }
}

impl Contents {
    fn write(&mut self, set: &WriteSet, apart_above: u32) {
        for write in &set.snapshot {
            self.snapshot(write, apart_above);
        }
        for write in &set.rows {
            write_row(&mut self.rows, &mut self.values, write, apart_above);
        }
        for (revision, block) in &set.blocks {
            let stored = StoredBlock { revision: *revision, hash: block.hash(), bytes: block.bytes().clone() };
            self.blocks.insert(block.dot(), stored);
            let bytes = u32::try_from(block.bytes().len()).unwrap_or(u32::MAX);
            self.log.insert(*revision, LogEntry { revision: *revision, dot: block.dot(), bytes });
        }
        self.vv.extend(set.vv.iter().copied());
        match &set.heads {
            HeadsChange::None => {}
            HeadsChange::Packed { all, unspill } => {
                self.packed.clone_from(all);
                self.spilled.retain(|dot, _| !unspill.contains(dot));
            }
            HeadsChange::Spilled { added, removed, unpack } => {
                if *unpack {
                    self.packed.clear();
                }
                self.spilled.retain(|dot, _| !removed.contains(dot));
                self.spilled.extend(added.iter().copied());
            }
        }
        self.meta = set.meta;
        self.requests.extend(set.requests.iter().cloned());
        for (request, _) in &set.forgotten {
            self.requests.remove(request);
        }
        for entry in &set.truncation.entries {
            self.blocks.remove(&entry.dot);
            self.log.remove(&entry.revision);
        }
        for (replica, seq) in &set.truncation.floors {
            self.floors.raise(*replica, *seq);
        }
    }
}

impl Contents {
    fn snapshot(&mut self, write: &SnapshotWrite, apart_above: u32) {
        match write {
            SnapshotWrite::Discard => (self.staged, self.built) = (None, None),
            SnapshotWrite::Begin { head } => (self.staged, self.built) = (Some((head.clone(), Vec::new())), None),
            SnapshotWrite::Chunk { index, next, bytes } => {
                if let Some((_, chunks)) = &mut self.staged {
                    debug_assert_eq!(*index, chunks.len() as u64, "chunks come in order");
                    chunks.push((next.clone(), bytes.clone()));
                }
            }
            SnapshotWrite::Build => self.built = Some(Built::default()),
            SnapshotWrite::Switch { revision } | SnapshotWrite::Replace { revision } => {
                if matches!(write, SnapshotWrite::Replace { .. }) {
                    (self.blocks, self.log, self.vv) = Default::default();
                    (self.floors, self.packed, self.spilled) = Default::default();
                }
                let built = self.built.take().unwrap_or_default();
                debug_assert!(built.sealed, "rows are sealed before they are switched to");
                (self.rows, self.values) = (built.rows, built.values);
                self.staged = None;
                self.log.insert(*revision, LogEntry::switch(*revision));
            }
            write => {
                let Some(built) = &mut self.built else { return };
                match write {
                    SnapshotWrite::Value { key, dot, value } => {
                        built.values.insert((key.clone(), *dot), value.clone());
                    }
                    SnapshotWrite::Copy { key, dot } => {
                        if let Some(value) = self.values.get(&(key.clone(), *dot)) {
                            built.values.insert((key.clone(), *dot), value.clone());
                        }
                    }
                    SnapshotWrite::Append(rows) => {
                        for (key, row) in rows {
                            debug_assert!(built.rows.keys().next_back().is_none_or(|last| last < key), "keys ascend");
                            let write = RowWrite { key: key.clone(), row: row.clone(), dropped: Vec::new() };
                            write_row(&mut built.rows, &mut built.values, &write, apart_above);
                        }
                    }
                    SnapshotWrite::Seal => built.sealed = true,
                    SnapshotWrite::Patch(rows) => {
                        for write in rows {
                            write_row(&mut built.rows, &mut built.values, write, apart_above);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn write_row(rows: &mut BTreeMap<Key, Row>, values: &mut BTreeMap<(Key, Dot), Bytes>, write: &RowWrite, apart_above: u32) {
    for dropped in &write.dropped {
        values.remove(&(write.key.clone(), dropped.dot));
    }
    if write.row.is_empty() {
        rows.remove(&write.key);
        return;
    }
    let mut siblings = write.row.clone().into_siblings();
    for sibling in siblings.iter_mut().filter(|sibling| sibling.len > apart_above) {
        if let Some(value) = sibling.value.take() {
            values.insert((write.key.clone(), sibling.dot), value);
        }
    }
    rows.insert(write.key.clone(), Row::new(siblings));
}

/// Reads of one database in memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryView<'a>(&'a Contents);

impl View for MemoryView<'_> {
    type Error = MemoryStoreError;

    fn row(&self, key: &Key) -> Result<Row, MemoryStoreError> {
        Ok(self.0.rows.get(key).cloned().unwrap_or_default())
    }

    fn value(&self, key: &Key, dot: &Dot) -> Result<Option<Bytes>, MemoryStoreError> {
        Ok(self.0.values.get(&(key.clone(), *dot)).cloned())
    }

    fn scan(
        &self,
        range: KeyRange,
        order: Order,
        projection: Projection,
    ) -> impl Iterator<Item = Result<(Key, Row), MemoryStoreError>> {
        let inside = |key: &&Key| range.start.as_slice() <= key.as_bytes() && key.as_bytes() < range.end.as_slice();
        let mut keys: Vec<Key> = self.0.rows.keys().filter(inside).cloned().collect();
        if order == Order::Descending {
            keys.reverse();
        }
        keys.into_iter().map(move |key| {
            let mut siblings = self.row(&key)?.into_siblings();
            if projection == Projection::Keys {
                for sibling in &mut siblings {
                    sibling.value = None;
                }
            }
            Ok((key, Row::new(siblings)))
        })
    }

    fn expired(&self, until: WallTime) -> impl Iterator<Item = Result<(Expiry, Key), MemoryStoreError>> {
        let pairs = |(key, row): (&Key, &Row)| {
            let gone = row.siblings().iter().filter(|sibling| sibling.is_expired(until));
            gone.filter_map(|sibling| sibling.expiry).map(|expiry| (expiry, key.clone())).collect::<Vec<_>>()
        };
        let all: BTreeSet<(Expiry, Key)> = self.0.rows.iter().flat_map(pairs).collect();
        all.into_iter().map(Ok)
    }

    fn block_hash(&self, dot: &Dot) -> Result<Option<BlockHash>, MemoryStoreError> {
        Ok(self.0.blocks.get(dot).map(|block| block.hash))
    }

    fn block(&self, dot: &Dot) -> Result<Option<StoredBlock>, MemoryStoreError> {
        Ok(self.0.blocks.get(dot).cloned())
    }

    fn log(&self, from: u64) -> impl Iterator<Item = Result<LogEntry, MemoryStoreError>> {
        self.0.log.range(from..).map(|(_, entry)| Ok(*entry))
    }

    fn state(&self) -> Result<ReplicaState, MemoryStoreError> {
        let heads: BTreeSet<Dot> = self.0.packed.iter().map(|(dot, _)| *dot).collect();
        debug_assert!(heads.is_empty() || self.0.spilled.is_empty(), "heads are packed or spilled");
        let heads: Heads = self.0.packed.iter().copied().chain(self.0.spilled.iter().map(|(dot, head)| (*dot, *head))).collect();
        Ok(ReplicaState { vv: self.0.vv.clone(), heads, floors: self.0.floors.clone(), meta: self.0.meta })
    }

    fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, MemoryStoreError> {
        Ok(self.0.requests.get(request).cloned())
    }

    fn requests(&self, after: Option<RequestId>) -> impl Iterator<Item = Result<(RequestId, RequestRecord), MemoryStoreError>> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.requests.range((after, Bound::Unbounded)).map(|(request, record)| Ok((*request, record.clone())))
    }

    fn staged(&self) -> Result<Option<Staged>, MemoryStoreError> {
        Ok(self.0.staged.as_ref().map(|(head, chunks)| Staged {
            head: head.clone(),
            chunks: chunks.len() as u64,
            next: chunks.last().map(|(next, _)| next.clone()),
        }))
    }

    fn staged_chunk(&self, index: u64) -> Result<Option<(Bytes, Bytes)>, MemoryStoreError> {
        let chunks = self.0.staged.as_ref().map(|(_, chunks)| chunks.as_slice()).unwrap_or_default();
        Ok(usize::try_from(index).ok().and_then(|index| chunks.get(index)).cloned())
    }

    fn built(&self, key: &Key) -> Result<Row, MemoryStoreError> {
        let built = self.0.built.as_ref().filter(|built| built.sealed);
        Ok(built.and_then(|built| built.rows.get(key)).cloned().unwrap_or_default())
    }

    fn oldest_requests(&self) -> impl Iterator<Item = Result<(Stamp, RequestId), MemoryStoreError>> {
        let all: BTreeSet<_> = self.0.requests.iter().map(|(request, record)| (record.stamp, *request)).collect();
        all.into_iter().map(Ok)
    }
}
