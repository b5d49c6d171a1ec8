//! Reads of one database.

use bytes::Bytes;
use crdt::{
    BlockHash, Dot, Heads, Key, KeyRange, Order, Projection, ReplicaState, RequestId, RequestRecord, Row, StoredBlock, View,
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
    numbers: Numbers,
    snapshot: Option<Snapshot<'a>>,
}

impl<'a> RocksView<'a> {
    pub(super) fn live(inner: &'a Inner, numbers: Numbers) -> Self {
        Self { inner, numbers, snapshot: None }
    }

    pub(super) fn pinned(inner: &'a Inner, numbers: Numbers) -> Self {
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

    /// The log revision at which a block that is still kept was merged.
    pub(super) fn revision_of(&self, dot: &Dot) -> Result<Option<u64>, StoreError> {
        let key = |key: &mut Writer| _ = key.block_key(self.numbers.number, dot);
        self.get(Family::Blocks, key, |bytes| layout::read_block(bytes).map(|block| block.revision))
    }

    /// Blocks in log order from a revision on, without those that `skip` names, until `max_bytes` are reached.
    pub(super) fn read_log(&self, from: u64, max_bytes: usize, skip: &dyn Fn(&Dot) -> bool) -> Result<LogChunk, StoreError> {
        let mut chunk = LogChunk { blocks: Vec::new(), next: from, end: false };
        let mut bytes = 0;
        let log = self.log(from);
        // Begun after the log, so that in a live view every block of the log is there.
        let mut blocks = self.inner.seeker(self.snapshot.as_ref(), Family::Blocks, layout::number_range(self.numbers.number));
        let mut key = Writer::with_capacity(KEY_CAPACITY);
        for entry in log {
            let (revision, dot) = entry?;
            if !skip(&dot) {
                key.block_key(self.numbers.number, &dot);
                let found = blocks.get(key.bytes(), |record| {
                    let block = layout::read_block(record)?.bytes;
                    let fits = chunk.blocks.is_empty() || bytes + block.len() <= max_bytes;
                    Ok(fits.then(|| Bytes::copy_from_slice(block)))
                })?;
                match found {
                    None => return Err(Malformed("a block of the log is missing").at(Family::Blocks, key.bytes())),
                    Some(None) => return Ok(chunk),
                    Some(Some(block)) => {
                        bytes += block.len();
                        chunk.blocks.push((revision, dot, block));
                    }
                }
            }
            chunk.next = revision + 1;
        }
        chunk.end = true;
        Ok(chunk)
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

    fn block_hash(&self, dot: &Dot) -> Result<Option<BlockHash>, StoreError> {
        let key = |key: &mut Writer| _ = key.block_key(self.numbers.number, dot);
        self.get(Family::Blocks, key, |bytes| layout::read_block(bytes).map(|block| block.hash))
    }

    fn block(&self, dot: &Dot) -> Result<Option<StoredBlock>, StoreError> {
        let key = |key: &mut Writer| _ = key.block_key(self.numbers.number, dot);
        self.get(Family::Blocks, key, |bytes| layout::read_block(bytes).map(|block| block.to_stored()))
    }

    fn log(&self, from: u64) -> impl Iterator<Item = Result<(u64, Dot), StoreError>> {
        let mut range = layout::number_range(self.numbers.number);
        range.start.extend_from_slice(&from.to_be_bytes());
        self.inner.scan_at(self.snapshot.as_ref(), Family::Log, range, Order::Ascending, layout::read_log)
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
            }
        }
        state.heads = heads.into_iter().collect::<Heads>();
        Ok(state)
    }

    fn request(&self, request: &RequestId) -> Result<Option<RequestRecord>, StoreError> {
        let key = |key: &mut Writer| _ = key.request_key(self.numbers.number, request);
        self.get(Family::Requests, key, layout::read_request)
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
