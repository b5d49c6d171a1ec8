//! Turns write sets into one batch.

use crdt::{Expiry, HeadsChange, RowWrite, WriteSet};
use rocksdb::{ColumnFamily, WriteBatch};

use super::catalog::Numbers;
use super::layout::{self, Family, Writer};
use super::rocks::Inner;

/// Buffers for keys and records, used for every record of a commit.
pub(super) struct Assembly<'a> {
    pub(super) inner: &'a Inner,
    pub(super) batch: WriteBatch,
    pub(super) key: Writer,
    pub(super) record: Writer,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(inner: &'a Inner) -> Self {
        let (key, record) = (Writer::with_capacity(1 << 7), Writer::with_capacity(1 << 10));
        Self { inner, batch: WriteBatch::default(), key, record }
    }

    /// Adds what a set writes under the numbers of its database, but for the steps of a snapshot.
    pub(super) fn set(&mut self, set: &WriteSet, numbers: Numbers) {
        self.rows(&set.rows, numbers.rows);
        self.blocks(set, numbers.number);
        self.state(set, numbers.number);
        self.requests(set, numbers.number);
        self.truncation(set, numbers.number);
    }
}

impl Assembly<'_> {
    pub(super) fn put(&mut self, family: &ColumnFamily) {
        self.batch.put_cf(family, self.key.bytes(), self.record.bytes());
    }

    fn delete(&mut self, family: &ColumnFamily) {
        self.batch.delete_cf(family, self.key.bytes());
    }

    pub(super) fn rows(&mut self, writes: &[RowWrite], number: u32) {
        let (rows, values) = (self.inner.family(Family::Rows), self.inner.family(Family::Values));
        for write in writes {
            self.key.row_key(number, &write.key);
            if write.row.is_empty() {
                self.delete(rows);
            } else {
                self.record.row(&write.row);
                self.put(rows);
            }
            for dropped in write.dropped.iter().filter(|dropped| layout::is_apart(dropped.len)) {
                self.key.value_key(number, &write.key, &dropped.dot);
                self.delete(values);
            }
            self.expiries(write, number);
            for sibling in write.row.siblings().iter().filter(|sibling| layout::is_apart(sibling.len)) {
                // Without a value it stays where it is.
                if let Some(value) = &sibling.value {
                    self.key.value_key(number, &write.key, &sibling.dot);
                    self.record.value(value);
                    self.put(values);
                }
            }
        }
    }

    /// Keeps the list of what expires in step with a row. Most rows have nothing in it.
    fn expiries(&mut self, write: &RowWrite, number: u32) {
        let expires = write.row.siblings().iter().any(|sibling| sibling.expiry.is_some());
        if !expires && write.dropped.iter().all(|dropped| dropped.expiry.is_none()) {
            return;
        }
        let list = self.inner.family(Family::Expiries);
        let left = |expiry: Expiry| write.row.siblings().iter().any(|sibling| sibling.expiry == Some(expiry));
        for expiry in write.dropped.iter().filter_map(|dropped| dropped.expiry).filter(|expiry| !left(*expiry)) {
            self.key.expiry_key(number, expiry, &write.key);
            self.delete(list);
        }
        for expiry in write.row.siblings().iter().filter_map(|sibling| sibling.expiry) {
            self.key.expiry_key(number, expiry, &write.key);
            self.record.version();
            self.put(list);
        }
    }

    fn blocks(&mut self, set: &WriteSet, number: u32) {
        let (blocks, log) = (self.inner.family(Family::Blocks), self.inner.family(Family::Log));
        for (revision, block) in &set.blocks {
            let dot = block.dot();
            self.key.block_key(number, &dot);
            self.record.block(*revision, block);
            self.put(blocks);
            self.key.log_key(number, *revision);
            self.record.log(&dot, block.bytes().len());
            self.put(log);
        }
    }

    fn state(&mut self, set: &WriteSet, number: u32) {
        let state = self.inner.family(Family::State);
        for (replica, entry) in &set.vv {
            self.key.vv_key(number, replica);
            self.record.vv(entry);
            self.put(state);
        }
        match &set.heads {
            HeadsChange::None => {}
            HeadsChange::Packed { all, unspill } => {
                self.key.heads_key(number);
                self.record.heads(all);
                self.put(state);
                for dot in unspill {
                    self.key.head_key(number, dot);
                    self.delete(state);
                }
            }
            HeadsChange::Spilled { added, removed, unpack } => {
                if *unpack {
                    self.key.heads_key(number);
                    self.delete(state);
                }
                for dot in removed {
                    self.key.head_key(number, dot);
                    self.delete(state);
                }
                for (dot, head) in added {
                    self.key.head_key(number, dot);
                    self.record.single_head(head);
                    self.put(state);
                }
            }
        }
        self.key.meta_key(number);
        self.record.meta(&set.meta);
        self.put(state);
    }

    fn truncation(&mut self, set: &WriteSet, number: u32) {
        let (blocks, log, state) =
            (self.inner.family(Family::Blocks), self.inner.family(Family::Log), self.inner.family(Family::State));
        // One by one: pieces are small, and many small range tombstones cost every later read.
        for entry in &set.truncation.entries {
            self.key.block_key(number, &entry.dot);
            self.delete(blocks);
            self.key.log_key(number, entry.revision);
            self.delete(log);
        }
        for (replica, seq) in &set.truncation.floors {
            self.key.floor_key(number, replica);
            self.record.floor(*seq);
            self.put(state);
        }
    }

    fn requests(&mut self, set: &WriteSet, number: u32) {
        if set.requests.is_empty() && set.forgotten.is_empty() {
            return;
        }
        let (requests, ages) = (self.inner.family(Family::Requests), self.inner.family(Family::Ages));
        for (request, record) in &set.requests {
            self.key.request_key(number, request);
            self.record.request(record);
            self.put(requests);
            self.key.age_key(number, record.stamp, request);
            self.record.version();
            self.put(ages);
        }
        for (request, stamp) in &set.forgotten {
            self.key.request_key(number, request);
            self.delete(requests);
            self.key.age_key(number, *stamp, request);
            self.delete(ages);
        }
    }
}
