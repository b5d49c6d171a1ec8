//! Reads of one database.

use std::sync::Arc;

use bytes::Bytes;
use crdt::{
    Author, BlockHash, Dot, Expiry, Heads, Key, KeyRange, LogEntry, Meta, Order, Projection, ReplicaId, ReplicaState, RequestId,
    RequestRecord, Row, Staged, Stamp, StoredBlock, View, WallTime,
};

use super::catalog::Numbers;
use super::error::StoreError;
use super::layout::{self, Family, Malformed, StateRecord, Writer};
use super::rocks::{Inner, Snapshot};
use crate::engine::port::LogChunk;

/// Room for most keys of records, so that building one allocates once.
const KEY_CAPACITY: usize = 128;

/// Reads of one database: either live, where each read sees the commits made before it, or all from one snapshot.
pub struct RocksView<'a> {
    inner: &'a Inner,
    numbers: Arc<Numbers>,
    snapshot: Option<Snapshot<'a>>,
}

impl<'a> RocksView<'a> {
    pub(super) fn live(inner: &'a Inner, numbers: Arc<Numbers>) -> Self {
        Self { inner, numbers, snapshot: None }
    }

    pub(super) fn pinned(inner: &'a Inner, numbers: Arc<Numbers>) -> Self {
        Self { inner, numbers, snapshot: Some(inner.rocks().snapshot()) }
    }

    fn get<T>(
        &self,
        family: Family,
        key: impl FnOnce(&mut Writer),
        decode: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, StoreError> {
        let mut buffer = Writer::with_capacity(KEY_CAPACITY);
        key(&mut buffer);
        self.inner.get_at(self.snapshot.as_ref(), family, buffer.bytes(), decode)
    }

    /// The log revision at which a block that is still kept was merged. `None` when it is not merged, or at or below the
    /// floor; a merged block that is missing above it is damage.
    pub(super) fn revision_of(&self, dot: &Dot) -> Result<Option<u64>, StoreError> {
        let key = |key: &mut Writer| _ = key.block_key(self.numbers.number, dot);
        let found = self.get(Family::Blocks, key, |bytes| layout::read_block(bytes).map(|block| block.revision))?;
        // In this order: whoever drops a block raises the floor in the same batch.
        if found.is_none() && self.merged(&dot.replica)? >= dot.seq && self.floor(&dot.replica)? < dot.seq {
            return Err(self.missing(dot));
        }
        Ok(found)
    }

    fn missing(&self, dot: &Dot) -> StoreError {
        let mut key = Writer::with_capacity(KEY_CAPACITY);
        Malformed("a merged block is missing").at(Family::Blocks, key.block_key(self.numbers.number, dot).bytes())
    }

    /// The highest merged seq of a replica.
    fn merged(&self, replica: &ReplicaId) -> Result<u64, StoreError> {
        let record = self.state_record(|key| _ = key.vv_key(self.numbers.number, replica))?;
        Ok(record.map_or(0, |record| if let StateRecord::Vv(_, entry) = record { entry.seq } else { 0 }))
    }

    /// The seq of a replica up to which no blocks are kept.
    fn floor(&self, replica: &ReplicaId) -> Result<u64, StoreError> {
        let record = self.state_record(|key| _ = key.floor_key(self.numbers.number, replica))?;
        Ok(record.map_or(0, |record| if let StateRecord::Floor(_, seq) = record { seq } else { 0 }))
    }

    /// The small figures as of the last commit.
    pub(super) fn meta(&self) -> Result<Meta, StoreError> {
        let record = self.state_record(|key| _ = key.meta_key(self.numbers.number))?;
        Ok(record.map_or_else(Meta::default, |record| if let StateRecord::Meta(meta) = record { meta } else { Meta::default() }))
    }

    fn state_record(&self, write_key: impl FnOnce(&mut Writer)) -> Result<Option<StateRecord>, StoreError> {
        let mut key = Writer::with_capacity(KEY_CAPACITY);
        write_key(&mut key);
        let decode = |record: &[u8]| layout::read_state(key.bytes(), record);
        self.inner.get_at(self.snapshot.as_ref(), Family::State, key.bytes(), decode)
    }

    /// The number of requests whose outcomes are kept.
    pub(crate) fn requests(&self) -> Result<u64, StoreError> {
        Ok(self.meta()?.requests)
    }

    /// Who writes under a replica id of the version vector.
    pub(super) fn author(&self, replica: &ReplicaId) -> Result<Option<Author>, StoreError> {
        let record = self.state_record(|key| _ = key.vv_key(self.numbers.number, replica))?;
        Ok(record.and_then(|record| if let StateRecord::Vv(_, entry) = record { Some(entry.author) } else { None }))
    }

    /// Blocks in log order from a revision on, without those that `skip` names, until `max_bytes` are reached.
    pub(super) fn read_log(&self, from: u64, max_bytes: usize, skip: &dyn Fn(&Dot) -> bool) -> Result<LogChunk, StoreError> {
        let mut chunk = LogChunk { blocks: Vec::new(), next: from, end: false };
        let mut bytes = 0;
        let last = self.meta()?.revision;
        let log = self.log(from);
        // Begun after the log, so that in a live view every block of the log is there.
        let mut blocks = self.inner.seeker(self.snapshot.as_ref(), Family::Blocks, layout::number_range(self.numbers.number));
        let mut key = Writer::with_capacity(KEY_CAPACITY);
        for entry in log {
            let LogEntry { revision, dot, .. } = entry?;
            self.check_gap(chunk.next, revision)?;
            if !skip(&dot) {
                key.block_key(self.numbers.number, &dot);
                let found = blocks.get(key.bytes(), |record| {
                    let block = layout::read_block(record)?.bytes;
                    let fits = chunk.blocks.is_empty() || bytes + block.len() <= max_bytes;
                    Ok(fits.then(|| Bytes::copy_from_slice(block)))
                })?;
                match found {
                    // Dropped since the log was read.
                    None if self.floor(&dot.replica)? >= dot.seq => {}
                    None => return Err(self.missing(&dot)),
                    Some(None) => return Ok(chunk),
                    Some(Some(block)) => {
                        bytes += block.len();
                        chunk.blocks.push((revision, dot, block));
                    }
                }
            }
            chunk.next = revision + 1;
        }
        self.check_gap(chunk.next, last + 1)?;
        // What was dropped meanwhile is not to be read again.
        chunk.next = chunk.next.max(last + 1);
        chunk.end = true;
        Ok(chunk)
    }

    /// The log has no entry from one revision to before the other: that is damage, unless they were dropped.
    fn check_gap(&self, from: u64, to: u64) -> Result<(), StoreError> {
        if from.max(1) < to && self.meta()?.log_floor + 1 < to {
            let mut key = Writer::with_capacity(KEY_CAPACITY);
            return Err(
                Malformed("an entry of the log is missing").at(Family::Log, key.log_key(self.numbers.number, from).bytes())
            );
        }
        Ok(())
    }
}

impl View for RocksView<'_> {
    type Error = StoreError;

    fn row(&self, key: &Key) -> Result<Row, StoreError> {
        let write_key = |buffer: &mut Writer| _ = buffer.row_key(self.numbers.rows, key);
        let row = self.get(Family::Rows, write_key, |bytes| layout::read_row(bytes, Projection::Rows))?;
        Ok(row.unwrap_or_default())
    }

    fn value(&self, key: &Key, dot: &Dot) -> Result<Option<Bytes>, StoreError> {
        let write_key = |buffer: &mut Writer| _ = buffer.value_key(self.numbers.rows, key, dot);
        self.get(Family::Values, write_key, layout::read_value)
    }

    fn scan(
        &self,
        range: KeyRange,
        order: Order,
        projection: Projection,
    ) -> impl Iterator<Item = Result<(Key, Row), StoreError>> {
        let bound = |bytes: &[u8]| [&self.numbers.rows.to_be_bytes(), bytes].concat();
        let range = bound(&range.start)..bound(&range.end);
        self.inner.scan_at(self.snapshot.as_ref(), Family::Rows, range, order, move |key, record| {
            Ok((layout::read_row_key(key)?, layout::read_row(record, projection)?))
        })
    }

    fn expired(&self, until: WallTime) -> impl Iterator<Item = Result<(Expiry, Key), StoreError>> {
        let mut range = layout::number_range(self.numbers.rows);
        // The first key that is later; no expiry reaches the greatest int.
        range.end = [self.numbers.rows.to_be_bytes().as_slice(), &until.0.saturating_add(1).to_be_bytes()].concat();
        self.inner.scan_at(self.snapshot.as_ref(), Family::Expiries, range, Order::Ascending, layout::read_expiry)
    }

    fn block_hash(&self, dot: &Dot) -> Result<Option<BlockHash>, StoreError> {
        let key = |key: &mut Writer| _ = key.block_key(self.numbers.number, dot);
        self.get(Family::Blocks, key, |bytes| layout::read_block(bytes).map(|block| block.hash))
    }

    fn block(&self, dot: &Dot) -> Result<Option<StoredBlock>, StoreError> {
        let key = |key: &mut Writer| _ = key.block_key(self.numbers.number, dot);
        self.get(Family::Blocks, key, |bytes| layout::read_block(bytes).map(|block| block.to_stored()))
    }

    fn log(&self, from: u64) -> impl Iterator<Item = Result<LogEntry, StoreError>> {
        // Not from below the floor: the cursor would wade through what was deleted there.
        let (from, failed) = match self.meta() {
            Ok(meta) => (from.max(meta.log_floor.saturating_add(1)), None),
            Err(error) => (u64::MAX, Some(Err(error))),
        };
        let mut range = layout::number_range(self.numbers.number);
        range.start.extend_from_slice(&from.to_be_bytes());
        let entries = self.inner.scan_at(self.snapshot.as_ref(), Family::Log, range, Order::Ascending, layout::read_log);
        failed.into_iter().chain(entries)
    }

    fn state(&self) -> Result<ReplicaState, StoreError> {
        let range = layout::number_range(self.numbers.number);
        let mut state = ReplicaState::default();
        let mut heads = Vec::new();
        // One iterator sees one state, even in a live view.
        for record in self.inner.scan_at(self.snapshot.as_ref(), Family::State, range, Order::Ascending, layout::read_state) {
            match record? {
                StateRecord::Meta(meta) => state.meta = meta,
                StateRecord::Heads(packed) => heads.extend(packed),
                StateRecord::Head(dot, head) => heads.push((dot, head)),
                StateRecord::Vv(replica, entry) => {
                    state.vv.insert(replica, entry);
                }
                StateRecord::Floor(replica, seq) => state.floors.raise(replica, seq),
            }
        }
        state.heads = heads.into_iter().collect::<Heads>();
        Ok(state)
    }

    fn oldest_requests(&self) -> impl Iterator<Item = Result<(Stamp, RequestId), StoreError>> {
        let range = layout::number_range(self.numbers.number);
        self.inner.scan_at(self.snapshot.as_ref(), Family::Ages, range, Order::Ascending, layout::read_age)
    }

    fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, StoreError> {
        let key = |key: &mut Writer| _ = key.request_key(self.numbers.number, request);
        self.get(Family::Requests, key, layout::read_request)
    }

    fn requests(&self, after: Option<RequestId>) -> impl Iterator<Item = Result<(RequestId, RequestRecord), StoreError>> {
        let mut range = layout::number_range(self.numbers.number);
        if let Some(after) = after {
            range.start.extend_from_slice(&after.0);
            range.start.push(0);
        }
        self.inner.scan_at(self.snapshot.as_ref(), Family::Requests, range, Order::Ascending, |key, record| {
            Ok((layout::read_request_key(key)?, layout::read_request(record)?))
        })
    }

    fn staged(&self) -> Result<Option<Staged>, StoreError> {
        let number = self.numbers.number;
        let head = self.get(Family::Staging, |key| _ = key.staging_head_key(number), layout::read_staging_head)?;
        let Some(head) = head else { return Ok(None) };
        let mut first = Writer::default();
        let range = first.staging_chunk_key(number, 0).bytes().to_vec()..layout::number_range(number).end;
        let decode = |key: &[u8], record: &[u8]| {
            let next = Bytes::copy_from_slice(layout::read_staging_chunk(record)?.0);
            Ok((layout::read_staging_chunk_key(key)?, next))
        };
        let mut last = self.inner.scan_at(self.snapshot.as_ref(), Family::Staging, range, Order::Descending, decode);
        Ok(Some(match last.next().transpose()? {
            Some((index, next)) => Staged { head, chunks: index + 1, next: Some(next) },
            None => Staged { head, chunks: 0, next: None },
        }))
    }

    fn staged_chunk(&self, index: u64) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        let key = |key: &mut Writer| _ = key.staging_chunk_key(self.numbers.number, index);
        self.get(Family::Staging, key, |record| {
            let (next, bytes) = layout::read_staging_chunk(record)?;
            Ok((Bytes::copy_from_slice(next), Bytes::copy_from_slice(bytes)))
        })
    }

    fn built(&self, key: &Key) -> Result<Row, StoreError> {
        let rows = self.inner.workshop().sealed(self.numbers.number).ok_or(StoreError::NothingBuilt)?;
        let row =
            self.get(Family::Rows, |buffer| _ = buffer.row_key(rows, key), |bytes| layout::read_row(bytes, Projection::Rows))?;
        Ok(row.unwrap_or_default())
    }
}

impl std::fmt::Debug for RocksView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksView")
            .field("numbers", &self.numbers)
            .field("pinned", &self.snapshot.is_some())
            .finish_non_exhaustive()
    }
}
