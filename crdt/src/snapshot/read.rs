//! Reading a snapshot, chunk by chunk, from one view.

use bytes::Bytes;
use thiserror::Error;

use super::codec::Builder;
use super::{Cursor, SnapshotHead, SnapshotId};
use crate::dot::Dot;
use crate::key::{Key, KeyRange, Prefix};
use crate::row::Sibling;
use crate::store::{Order, Projection, ReplicaState, View};

/// What an item takes beside key and value, at most.
const SIBLING_OVERHEAD: usize = 80;

/// One chunk and the place after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The chunk.
    pub bytes: Bytes,
    /// Where the next chunk begins; `None` after the last.
    pub next: Option<Cursor>,
}

/// Why a snapshot cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SnapshotReadError<E: std::error::Error> {
    /// The store cannot read.
    #[error(transparent)]
    Store(#[from] E),
    /// A value is not where it should be: the disk lost it.
    #[error("the value of {dot} at {key} is missing")]
    MissingValue {
        /// The key.
        key: Key,
        /// The sibling.
        dot: Dot,
    },
}

/// The head of a snapshot of this state.
#[must_use]
pub fn snapshot_head(id: SnapshotId, state: &ReplicaState) -> SnapshotHead {
    SnapshotHead {
        id,
        clock: state.meta.clock,
        digest: state.meta.digest,
        keys: state.meta.keys,
        replicas: state.vv.len() as u64,
        heads: state.heads.len() as u64,
    }
}

/// Reads the chunk at a place: about `max_bytes`, more only when a single item is larger. The state must be the view's own.
///
/// # Errors
/// When the store cannot read, or lacks a value.
pub fn read_piece<V: View>(
    view: &V,
    state: &ReplicaState,
    at: &Cursor,
    max_bytes: usize,
) -> Result<Piece, SnapshotReadError<V::Error>> {
    let mut at = at.clone();
    loop {
        let mut chunk = Builder::new(&at);
        let next = match at {
            Cursor::Replicas(after) => Some(replicas(state, after, max_bytes, &mut chunk)),
            Cursor::Heads(after) => Some(heads(state, after, max_bytes, &mut chunk)),
            Cursor::Requests(after) => Some(requests(view, after, max_bytes, &mut chunk)?),
            Cursor::Rows(after) => rows(view, after.as_ref(), None, max_bytes, &mut chunk)?,
            Cursor::Row(key, dot) => rows(view, Some(&key), Some(dot), max_bytes, &mut chunk)?,
        };
        match next {
            // An empty part needs no chunk, but the snapshot has one at least.
            Some(next) if chunk.bytes() == 0 => at = next,
            next => return Ok(Piece { bytes: chunk.finish(), next }),
        }
    }
}

fn replicas(state: &ReplicaState, after: Option<crate::dot::ReplicaId>, max: usize, chunk: &mut Builder) -> Cursor {
    let mut last = after;
    for (replica, entry) in state.vv.iter().filter(|(replica, _)| after.is_none_or(|after| **replica > after)) {
        if chunk.is_full(max, 64) {
            return Cursor::Replicas(last);
        }
        chunk.replica(entry);
        last = Some(*replica);
    }
    Cursor::Heads(None)
}

fn heads(state: &ReplicaState, after: Option<Dot>, max: usize, chunk: &mut Builder) -> Cursor {
    let mut last = after;
    for (dot, head) in state.heads.iter().filter(|(dot, _)| after.is_none_or(|after| **dot > after)) {
        if chunk.is_full(max, 72) {
            return Cursor::Heads(last);
        }
        chunk.head(dot, head);
        last = Some(*dot);
    }
    Cursor::Requests(None)
}

fn requests<V: View>(
    view: &V,
    after: Option<crate::block::RequestId>,
    max: usize,
    chunk: &mut Builder,
) -> Result<Cursor, V::Error> {
    let mut last = after;
    for found in view.requests(after) {
        let (request, record) = found?;
        if chunk.is_full(max, 64 + 5 * record.ops.len()) {
            return Ok(Cursor::Requests(last));
        }
        chunk.request(&request, &record);
        last = Some(request);
    }
    Ok(Cursor::Rows(None))
}

/// Rows after a key, or from its sibling after `dot` on.
fn rows<V: View>(
    view: &V,
    after: Option<&Key>,
    dot: Option<Dot>,
    max: usize,
    chunk: &mut Builder,
) -> Result<Option<Cursor>, SnapshotReadError<V::Error>> {
    let mut last = after.cloned();
    if let (Some(key), Some(dot)) = (after, dot) {
        let siblings = view.row(key)?.into_siblings();
        let from = siblings.iter().position(|sibling| sibling.dot == dot).map_or(siblings.len(), |at| at + 1);
        if let Some(cut) = row(view, key, siblings.get(from..).unwrap_or_default(), max, chunk)? {
            return Ok(Some(Cursor::Row(key.clone(), cut)));
        }
    }
    let mut range = KeyRange::of(&Prefix::root());
    if let Some(after) = after {
        range.start_from(std::ops::Bound::Excluded(after.as_bytes()));
    }
    for found in view.scan(range, Order::Ascending, Projection::Rows) {
        let (key, found) = found?;
        let siblings = found.siblings();
        let fits = siblings.first().is_none_or(|first| !chunk.is_full(max, item_bytes(&key, first)));
        if !fits {
            return Ok(Some(Cursor::Rows(last)));
        }
        if let Some(cut) = row(view, &key, siblings, max, chunk)? {
            return Ok(Some(Cursor::Row(key, cut)));
        }
        last = Some(key);
    }
    Ok(None)
}

fn item_bytes(key: &Key, sibling: &Sibling) -> usize {
    key.as_bytes().len() + usize::try_from(sibling.len).unwrap_or(usize::MAX) + SIBLING_OVERHEAD
}

/// Puts siblings into the chunk; the last one that is in, if not all are.
fn row<V: View>(
    view: &V,
    key: &Key,
    siblings: &[Sibling],
    max: usize,
    chunk: &mut Builder,
) -> Result<Option<Dot>, SnapshotReadError<V::Error>> {
    let mut last = None;
    for sibling in siblings {
        if let Some(cut) = last
            && chunk.is_full(max, item_bytes(key, sibling))
        {
            return Ok(Some(cut));
        }
        match &sibling.value {
            Some(value) => chunk.sibling(key, sibling, value),
            None => {
                let dot = sibling.dot;
                let value = view.value(key, &dot)?;
                let value = value.ok_or_else(|| SnapshotReadError::MissingValue { key: key.clone(), dot })?;
                chunk.sibling(key, sibling, &value);
            }
        }
        last = Some(sibling.dot);
    }
    Ok(None)
}
