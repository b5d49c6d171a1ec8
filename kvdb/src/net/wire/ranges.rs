//! Frames by which two replicas find the keys at which they differ, kinds 21 to 23.

use crdt::codec::cbor::{Reader, Writer};
use crdt::limits::MAX_KEY_BYTES;
use crdt::{DatabaseId, Digest, Key};

use super::{WireError, database, digest, items};
use crate::net::limits::MAX_RANGE_PARTS;

pub(super) const FIRST: u64 = ASK;
pub(super) const LAST: u64 = REFUSED;
const ASK: u64 = 21;
const PARTS: u64 = 22;
const REFUSED: u64 = 23;

/// Keys after the first bound, which is not among them, up to the second, which is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span {
    /// From the first key on if there is none.
    pub after: Option<Key>,
    /// To the last key if there is none.
    pub through: Option<Key>,
}

/// A part of a range in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its last key; the part begins after the one before it.
    pub through: Key,
    /// Keys in it.
    pub keys: u64,
    /// The sum of the checks of all siblings in it.
    pub digest: Digest,
}

/// Why a range is not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeRefusal {
    /// Too many comparisons now; ask again later.
    Busy,
    /// The store cannot read.
    Unable,
}

/// A frame of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeFrame {
    /// What is in this range?
    Ask {
        /// Comes back with the answer.
        number: u64,
        /// The range.
        span: Span,
    },
    /// The range in parts, all of one moment.
    Parts {
        /// That of the question.
        number: u64,
        /// The version vector's hash at that moment.
        vv_hash: [u8; 32],
        /// The parts, ascending, without a gap from the range's beginning on. After the last one nothing comes up to the
        /// range's end, or up to `through`.
        parts: Vec<Part>,
        /// How far the parts reach, if not to the range's end.
        through: Option<Key>,
    },
    /// No answer.
    Refused {
        /// That of the question.
        number: u64,
        /// Why.
        reason: RangeRefusal,
    },
}

impl RangeFrame {
    pub(super) fn encode(&self, database: &DatabaseId, out: &mut Writer) {
        match self {
            Self::Ask { number, span } => {
                out.array(5).uint(ASK).bytes(&database.0).uint(*number).text(text(span.after.as_ref()));
                out.text(text(span.through.as_ref()));
            }
            Self::Parts { number, vv_hash, parts, through } => {
                out.array(6).uint(PARTS).bytes(&database.0).uint(*number).bytes(vv_hash).array(parts.len() * 3);
                for Part { through, keys, digest } in parts {
                    out.text(through.as_str()).uint(*keys).bytes(&digest.0.to_be_bytes());
                }
                out.text(text(through.as_ref()));
            }
            Self::Refused { number, reason } => {
                out.array(4).uint(REFUSED).bytes(&database.0).uint(*number).uint(match reason {
                    RangeRefusal::Busy => 0,
                    RangeRefusal::Unable => 1,
                });
            }
        }
    }

    pub(super) fn decode(input: &mut Reader, count: usize, kind: u64) -> Result<(DatabaseId, Self), WireError> {
        items(count, [5, 6, 4].get(usize::try_from(kind - FIRST).unwrap_or(usize::MAX)).copied().unwrap_or(0))?;
        let (database, number) = (database(input)?, input.uint("a number")?);
        let frame = match kind {
            ASK => {
                let span = Span { after: key(input)?, through: key(input)? };
                if span.after.is_some() && span.through.is_some() && span.after >= span.through {
                    return Err(WireError::Value { what: "a range" });
                }
                Self::Ask { number, span }
            }
            PARTS => {
                let (vv_hash, parts) = (input.bytes_of("a version vector hash")?, parts(input)?);
                let through = key(input)?;
                if through.is_some() && parts.last().map(|part| &part.through) > through.as_ref() {
                    return Err(WireError::Value { what: "the end of the parts" });
                }
                Self::Parts { number, vv_hash, parts, through }
            }
            _ => {
                let reason = match input.uint("a reason")? {
                    0 => RangeRefusal::Busy,
                    1 => RangeRefusal::Unable,
                    _ => return Err(WireError::Value { what: "a reason" }),
                };
                Self::Refused { number, reason }
            }
        };
        Ok((database, frame))
    }

    pub(super) fn size_hint(&self) -> usize {
        let len = |key: &Option<Key>| key.as_ref().map_or(0, |key| key.as_bytes().len());
        match self {
            Self::Ask { span, .. } => len(&span.after) + len(&span.through),
            Self::Parts { parts, through, .. } => {
                len(through) + parts.iter().map(|part| part.through.as_bytes().len() + 30).sum::<usize>()
            }
            Self::Refused { .. } => 0,
        }
    }
}

fn text(key: Option<&Key>) -> &str {
    key.map_or("", Key::as_str)
}

/// A key, or the empty text for none.
fn key(input: &mut Reader) -> Result<Option<Key>, WireError> {
    let text = input.text("a key", MAX_KEY_BYTES)?;
    if text.is_empty() {
        return Ok(None);
    }
    Key::from_normal(&text).map(Some).map_err(|_| WireError::Value { what: "a key" })
}

/// `[last key, keys, digest, …]`, ascending, none empty.
fn parts(input: &mut Reader) -> Result<Vec<Part>, WireError> {
    let items = input.array("parts", 3 * MAX_RANGE_PARTS)?;
    if items % 3 != 0 {
        return Err(WireError::Value { what: "the number of parts" });
    }
    let mut parts: Vec<Part> = Vec::with_capacity(items / 3);
    for _ in 0..items / 3 {
        let through = key(input)?.ok_or(WireError::Value { what: "a part's last key" })?;
        let (keys, digest) = (input.uint("a number of keys")?, digest(input)?);
        if keys == 0 || parts.last().is_some_and(|last| last.through >= through) {
            return Err(WireError::Value { what: "a part" });
        }
        parts.push(Part { through, keys, digest });
    }
    Ok(parts)
}
