//! Reading ranges of keys in short: in parts for a peer, and against a peer's parts.
//!
//! What is compared are the checks that are kept beside the siblings, so no value is read. Whether a value still is what its
//! check says is for `verify` to find.

use std::ops::Bound;

use crdt::{Digest, Key, KeyRange, Order, Prefix, Projection, VersionVector, View};

use super::limits::{MAX_DIFFERING_KEYS, MAX_RANGE_KEYS, MAX_RANGE_PARTS};
use super::wire::{Part, Span};

/// What is to be read of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeTask {
    /// Its parts: few and large ones, or one for each key if there are few keys.
    Divide(Span),
    /// Where a peer's parts differ from what is here.
    Check(Span, Vec<Part>),
}

/// What was read, with the version vector's hash of that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRead {
    /// Of the same view.
    pub vv_hash: [u8; 32],
    /// The answer to the task.
    pub found: RangeFound,
}

/// The answer to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeFound {
    /// To [`RangeTask::Divide`]: the parts, and how far they reach if not to the range's end.
    Parts(Vec<Part>, Option<Key>),
    /// To [`RangeTask::Check`].
    Differing(Vec<Differing>),
}

/// A part of a range that is not the same here and there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differing {
    /// Where.
    pub span: Span,
    /// Keys at the peer.
    pub theirs: u64,
    /// Keys here.
    pub mine: u64,
    /// The first of those here, at most [`MAX_DIFFERING_KEYS`].
    pub keys: Vec<Key>,
    /// The sum of the checks at the range's last key, if that is a key here.
    pub last: Option<Digest>,
    /// The sum of the checks at the peer.
    pub digest: Digest,
}

/// Does what a task says. Reads up to [`MAX_RANGE_KEYS`] rows to divide a range, and all rows of one to check it.
///
/// # Errors
/// When the store cannot read.
pub fn read_range<V: View>(view: &V, task: &RangeTask) -> Result<RangeRead, V::Error> {
    let vv: VersionVector = view.state()?.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
    let found = match task {
        RangeTask::Divide(span) => divide(view, span)?,
        RangeTask::Check(span, parts) => check(view, span, parts)?,
    };
    Ok(RangeRead { vv_hash: vv.hash(), found })
}

fn scan<'a, V: View>(view: &'a V, span: &Span) -> impl Iterator<Item = Result<(Key, Digest), V::Error>> + 'a {
    let mut range = KeyRange::of(&Prefix::root());
    if let Some(after) = &span.after {
        range.start_from(Bound::Excluded(after.as_bytes()));
    }
    if let Some(through) = &span.through {
        let mut end = through.as_bytes().to_vec();
        end.push(0);
        range.end_before(&end);
    }
    view.scan(range, Order::Ascending, Projection::Keys).map(|found| {
        let (key, row) = found?;
        let mut digest = Digest::default();
        row.siblings().iter().for_each(|sibling| digest.add(sibling.check));
        Ok((key, digest))
    })
}

fn divide<V: View>(view: &V, span: &Span) -> Result<RangeFound, V::Error> {
    let mut parts: Vec<Part> = Vec::with_capacity(MAX_RANGE_PARTS);
    // Keys in each part; doubled, and the parts joined in pairs, whenever there would be too many of them.
    let (mut size, mut read) = (1, 0);
    for found in scan(view, span) {
        let (key, digest) = found?;
        if read == MAX_RANGE_KEYS {
            let through = parts.last().map(|part| part.through.clone());
            return Ok(RangeFound::Parts(parts, through));
        }
        read += 1;
        match parts.last_mut().filter(|last| last.keys < size) {
            Some(last) => extend(last, key, 1, digest),
            None => {
                if parts.len() == MAX_RANGE_PARTS {
                    size *= 2;
                    parts = pairs(parts);
                }
                parts.push(Part { through: key, keys: 1, digest });
            }
        }
    }
    Ok(RangeFound::Parts(parts, None))
}

fn pairs(parts: Vec<Part>) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::with_capacity(MAX_RANGE_PARTS);
    for (at, part) in parts.into_iter().enumerate() {
        match joined.last_mut().filter(|_| at % 2 == 1) {
            Some(last) => extend(last, part.through, part.keys, part.digest),
            None => joined.push(part),
        }
    }
    joined
}

fn extend(part: &mut Part, through: Key, keys: u64, digest: Digest) {
    part.through = through;
    part.keys += keys;
    part.digest.0 = part.digest.0.wrapping_add(digest.0);
}

fn check<V: View>(view: &V, span: &Span, parts: &[Part]) -> Result<RangeFound, V::Error> {
    let mut differing = Vec::new();
    let mut rows = scan(view, span).peekable();
    let mut after = span.after.clone();
    // What follows the last part is empty at the peer.
    let ends = parts.iter().map(|part| (Some(&part.through), part.keys, part.digest)).chain([(None, 0, Digest::default())]);
    for (through, theirs, digest) in ends {
        let (mut mine, mut sum, mut keys, mut last) = (0, Digest::default(), Vec::new(), None);
        while let Some(found) =
            rows.next_if(|found| found.as_ref().map_or(true, |(key, _)| through.is_none_or(|through| key <= through)))
        {
            let (key, digest) = found?;
            mine += 1;
            last = (Some(&key) == through).then_some(digest);
            sum.0 = sum.0.wrapping_add(digest.0);
            if keys.len() < MAX_DIFFERING_KEYS {
                keys.push(key);
            }
        }
        let through = through.or(span.through.as_ref()).cloned();
        if (mine, sum) != (theirs, digest) {
            let span = Span { after: after.clone(), through: through.clone() };
            differing.push(Differing { span, theirs, mine, keys, last, digest });
        }
        after = through;
    }
    Ok(RangeFound::Differing(differing))
}
