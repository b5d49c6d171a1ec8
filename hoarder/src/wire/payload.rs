//! The payloads of calls: what a holder's store is asked for, and what it says.

use bytes::Bytes;
use crdt::codec::cbor::{Reader, Writer};
use crdt::limits::{MAX_BLOCK_OPS, MAX_KEY_BYTES, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES};
use crdt::{Change, Condition, Dot, Expiry, Key, LocalOp, OpOutcome, ReplicaId, Stamp, Terms};
use kvdb::{Entry, WriteError, WriteRefusal};
use thiserror::Error;

use super::{WireError, fields, flag, open};
use crate::barrier::Refused;
use crate::limits::{MAX_HOLDERS, MAX_REASON_BYTES};

/// Why a write was refused. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A condition does not hold.
    #[error("the condition on {key} does not hold: {}", current.map_or("nothing is there".to_owned(), |dot| format!("the value of {dot} is there")))]
    Condition {
        /// The key of the first op whose condition does not hold.
        key: Key,
        /// The winner there; `None` when nothing is there.
        current: Option<Dot>,
    },
    /// The write is larger than one may be.
    #[error("{cause}")]
    TooLarge {
        /// What is too large, with the limit.
        cause: String,
    },
    /// Too much waits already; later it may succeed.
    #[error("{cause}")]
    Busy {
        /// What waits, with the limit.
        cause: String,
    },
    /// Too few holders are ready, and none is joining.
    #[error("{ready} holders are ready, the write asks for {needed}")]
    NotEnoughHolders {
        /// Ready holders.
        ready: u64,
        /// What was asked for.
        needed: u8,
    },
    /// More holders than the database is to have.
    #[error("the write asks for {needed} holders, the database has {holders}")]
    MoreThanHolders {
        /// What was asked for.
        needed: u8,
        /// What the database has.
        holders: u8,
    },
    /// There is no room for more history.
    #[error("{cause}")]
    Full {
        /// What is full, with the limit.
        cause: String,
    },
    /// It cannot be read.
    #[error("{cause}")]
    Malformed {
        /// What is wrong with it.
        cause: String,
    },
}

impl Refusal {
    /// What the store says, if it says that nothing was written and that another holder would say the same.
    #[must_use]
    pub fn of(error: &WriteError) -> Option<Self> {
        let cause = error.to_string();
        match error {
            WriteError::Refused(WriteRefusal::Condition { key, current }) => {
                Some(Self::Condition { key: key.clone(), current: *current })
            }
            WriteError::Refused(_) => Some(Self::TooLarge { cause }),
            WriteError::QueueFull { .. } => Some(Self::Busy { cause }),
            WriteError::HistoryFull { .. } => Some(Self::Full { cause }),
            _ => None,
        }
    }

    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        let mut said = |kind, cause: &str| {
            let cut = cause.as_bytes().iter().copied().take(MAX_REASON_BYTES).collect::<Vec<u8>>();
            writer.array(2).uint(kind).bytes(&cut);
        };
        match self {
            Self::TooLarge { cause } => said(1, cause),
            Self::Busy { cause } => said(2, cause),
            Self::Full { cause } => said(5, cause),
            Self::Malformed { cause } => said(6, cause),
            Self::Condition { key, current } => {
                writer.array(4).uint(0).text(key.as_str());
                write_optional_dot(&mut writer, *current);
            }
            Self::NotEnoughHolders { ready, needed } => {
                writer.array(3).uint(3).uint(*ready).uint(u64::from(*needed));
            }
            Self::MoreThanHolders { needed, holders } => {
                writer.array(3).uint(4).uint(u64::from(*needed)).uint(u64::from(*holders));
            }
        }
        writer.into_bytes()
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// When it is none of this version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let (mut reader, count, kind) = open(bytes)?;
        fields(
            count,
            match kind {
                0 => 4,
                3 | 4 => 3,
                _ => 2,
            },
        )?;
        let holders = |reader: &mut Reader| {
            let number = u8::try_from(reader.uint("a number of holders")?).ok().filter(|number| *number <= MAX_HOLDERS);
            number.ok_or(WireError::Value { what: "a number of holders" })
        };
        let refusal = match kind {
            0 => Self::Condition { key: key(&mut reader)?, current: optional_dot(&mut reader)? },
            1 => Self::TooLarge { cause: cause(&mut reader)? },
            2 => Self::Busy { cause: cause(&mut reader)? },
            3 => Self::NotEnoughHolders { ready: reader.uint("ready holders")?, needed: holders(&mut reader)? },
            4 => Self::MoreThanHolders { needed: holders(&mut reader)?, holders: holders(&mut reader)? },
            5 => Self::Full { cause: cause(&mut reader)? },
            6 => Self::Malformed { cause: cause(&mut reader)? },
            kind => return Err(WireError::UnknownKind { kind }),
        };
        reader.finish()?;
        Ok(refusal)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotEnoughHolders { ready, needed } => Self::NotEnoughHolders { ready: ready as u64, needed },
            Refused::MoreThanHolders { needed, holders } => Self::MoreThanHolders { needed, holders },
            Refused::TooManyWaiting => Self::Busy { cause: refused.to_string() },
        }
    }
}

fn cause(reader: &mut Reader) -> Result<String, WireError> {
    let bytes = reader.bytes("a cause", MAX_REASON_BYTES)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn key(reader: &mut Reader) -> Result<Key, WireError> {
    let text = reader.text("a key", MAX_KEY_BYTES)?;
    std::str::from_utf8(&text).ok().and_then(|text| Key::parse(text).ok()).ok_or(WireError::Value { what: "a key" })
}

/// A dot as replica and seq, or the empty string and 0 for none.
pub(super) fn write_optional_dot(writer: &mut Writer, dot: Option<Dot>) {
    match dot {
        Some(dot) => writer.bytes(&dot.replica.0).uint(dot.seq),
        None => writer.bytes(&[]).uint(0),
    };
}

pub(super) fn optional_dot(reader: &mut Reader) -> Result<Option<Dot>, WireError> {
    let (replica, seq) = (reader.bytes("a replica", 16)?, reader.uint("a seq")?);
    match (<[u8; 16]>::try_from(replica.as_ref()), seq) {
        (Err(_), 0) if replica.is_empty() => Ok(None),
        (Ok(replica), 1..) => Ok(Some(Dot { replica: ReplicaId(replica), seq })),
        _ => Err(WireError::Value { what: "a dot" }),
    }
}

fn dot(reader: &mut Reader) -> Result<Dot, WireError> {
    optional_dot(reader)?.ok_or(WireError::Value { what: "a dot" })
}

/// A write: `[op, …]`, an op being `[key, value or null, expiry or 0, condition, dot, seen or not, [replica, seq, …]]`.
pub(crate) fn encode_ops(ops: &[LocalOp]) -> Bytes {
    let mut writer = Writer::default();
    writer.array(ops.len());
    for op in ops {
        writer.array(8).text(op.key.as_str());
        match &op.change {
            Change::Put { value, expiry } => writer.bytes(value).uint(expiry.map_or(0, Expiry::unix_ms)),
            Change::Tombstone => writer.null().uint(0),
        };
        let terms = op.terms.as_deref();
        let (condition, dot) = match terms.and_then(|terms| terms.condition) {
            None => (0, None),
            Some(Condition::IfAbsent) => (1, None),
            Some(Condition::IfMatch(dot)) => (2, Some(dot)),
        };
        writer.uint(condition);
        write_optional_dot(&mut writer, dot);
        let seen = terms.and_then(|terms| terms.seen.as_ref());
        writer.uint(u64::from(seen.is_some())).array(2 * seen.map_or(0, Vec::len));
        for dot in seen.into_iter().flatten() {
            writer.bytes(&dot.replica.0).uint(dot.seq);
        }
    }
    writer.into_bytes()
}

pub(crate) fn decode_ops(bytes: Bytes) -> Result<Vec<LocalOp>, WireError> {
    let mut reader = Reader::new(bytes);
    let count = reader.array("ops", MAX_BLOCK_OPS)?;
    let ops = (0..count).map(|_| decode_op(&mut reader)).collect::<Result<Vec<_>, _>>()?;
    reader.finish()?;
    Ok(ops)
}

fn decode_op(reader: &mut Reader) -> Result<LocalOp, WireError> {
    reader.array_of("an op", 8)?;
    let key = key(reader)?;
    let (value, expiry) = (reader.bytes_or_null("a value", MAX_VALUE_BYTES)?, reader.uint("an expiry")?);
    let change = match (value, expiry) {
        (Some(value), 0) => Change::Put { value, expiry: None },
        (Some(value), at) => {
            let expiry = Expiry::at_unix_ms(at).ok_or(WireError::Value { what: "an expiry" })?;
            Change::Put { value, expiry: Some(expiry) }
        }
        (None, 0) => Change::Tombstone,
        (None, _) => return Err(WireError::Value { what: "an expiry" }),
    };
    let condition = match (reader.uint("a condition")?, optional_dot(reader)?) {
        (0, None) => None,
        (1, None) => Some(Condition::IfAbsent),
        (2, Some(dot)) => Some(Condition::IfMatch(dot)),
        _ => return Err(WireError::Value { what: "a condition" }),
    };
    let (has_seen, items) = (flag(reader, "seen")?, reader.array("dots seen", 2 * MAX_OP_SUPERSEDED)?);
    if items % 2 == 1 || (!has_seen && items > 0) {
        return Err(WireError::Value { what: "the number of dots" });
    }
    let seen = (0..items / 2).map(|_| dot(reader)).collect::<Result<Vec<_>, _>>()?;
    let terms = Terms { condition, seen: has_seen.then_some(seen) };
    let terms = (terms != Terms::default()).then(|| Box::new(terms));
    Ok(LocalOp { key, change, terms })
}

const OUTCOMES: [OpOutcome; 6] =
    [OpOutcome::Put, OpOutcome::Deleted, OpOutcome::Absent, OpOutcome::Overridden, OpOutcome::Replaced, OpOutcome::Repeated];

/// What became of each op.
pub(crate) fn encode_outcomes(outcomes: &[OpOutcome]) -> Bytes {
    let mut writer = Writer::default();
    writer.array(outcomes.len());
    for outcome in outcomes {
        writer.uint(OUTCOMES.iter().position(|known| known == outcome).unwrap_or_default() as u64);
    }
    writer.into_bytes()
}

pub(crate) fn decode_outcomes(bytes: Bytes) -> Result<Vec<OpOutcome>, WireError> {
    let mut reader = Reader::new(bytes);
    let count = reader.array("outcomes", MAX_BLOCK_OPS)?;
    let mut outcome = || {
        let at = usize::try_from(reader.uint("an outcome")?).unwrap_or(usize::MAX);
        OUTCOMES.get(at).copied().ok_or(WireError::Value { what: "an outcome" })
    };
    let outcomes = (0..count).map(|_| outcome()).collect::<Result<Vec<_>, _>>()?;
    reader.finish()?;
    Ok(outcomes)
}

/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Get {
    pub(crate) key: Key,
    /// Once the holder has merged this.
    pub(crate) at: Option<Dot>,
    /// How long the holder waits for it, in milliseconds.
    pub(crate) wait_ms: u64,
}

impl Get {
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.array(4).text(self.key.as_str());
        write_optional_dot(&mut writer, self.at);
        writer.uint(self.wait_ms);
        writer.into_bytes()
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        reader.array_of("a read", 4)?;
        let get = Self { key: key(&mut reader)?, at: optional_dot(&mut reader)?, wait_ms: reader.uint("a time")? };
        reader.finish()?;
        Ok(get)
    }
}

/// What was read: `[replica, seq, stamp, expiry or 0, siblings, value]`.
pub(crate) fn encode_entry(entry: &Entry) -> Bytes {
    let mut writer = Writer::with_capacity(entry.value.len() + 64);
    writer.array(6);
    write_optional_dot(&mut writer, Some(entry.dot));
    writer.uint(entry.stamp.0).uint(entry.expiry.map_or(0, Expiry::unix_ms)).uint(entry.siblings as u64);
    writer.bytes(&entry.value);
    writer.into_bytes()
}

pub(crate) fn decode_entry(key: &Key, bytes: Bytes) -> Result<Entry, WireError> {
    let mut reader = Reader::new(bytes);
    reader.array_of("an entry", 6)?;
    let (dot, stamp) = (dot(&mut reader)?, Stamp(reader.uint("a stamp")?));
    let expiry = match reader.uint("an expiry")? {
        0 => None,
        at => Some(Expiry::at_unix_ms(at).ok_or(WireError::Value { what: "an expiry" })?),
    };
    let siblings = usize::try_from(reader.uint("siblings")?).map_err(|_| WireError::Value { what: "siblings" })?;
    let value = reader.bytes("a value", MAX_VALUE_BYTES)?;
    reader.finish()?;
    let len = u32::try_from(value.len()).map_err(|_| WireError::Value { what: "a value" })?;
    Ok(Entry { key: key.clone(), value, len, dot, stamp, expiry, siblings })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(seq: u64) -> Dot {
        Dot { replica: ReplicaId([7; 16]), seq }
    }

    fn ops() -> Vec<LocalOp> {
        let key = Key::parse("/a").unwrap();
        let put = |expiry| Change::Put { value: Bytes::from_static(b"v"), expiry };
        let with = |condition, seen| Some(Box::new(Terms { condition, seen }));
        vec![
            LocalOp::new(key.clone(), put(None)),
            LocalOp::new(key.clone(), put(Expiry::at_unix_ms(9))),
            LocalOp::new(key.clone(), Change::Tombstone),
            LocalOp { key: key.clone(), change: put(None), terms: with(Some(Condition::IfAbsent), None) },
            LocalOp { key: key.clone(), change: Change::Tombstone, terms: with(Some(Condition::IfMatch(dot(3))), Some(vec![])) },
            LocalOp { key, change: put(None), terms: with(None, Some(vec![dot(1), dot(300)])) },
        ]
    }

    fn no_cut_is_read<T>(bytes: &Bytes, decode: impl Fn(Bytes) -> Result<T, WireError>) {
        for end in 0..bytes.len() {
            assert!(decode(bytes.slice(..end)).is_err(), "cut at {end}");
        }
        assert!(decode([bytes.as_ref(), &[0]].concat().into()).is_err());
    }

    #[test]
    fn writes_have_golden_bytes_and_round_trip() {
        let bytes = encode_ops(&ops()[..1]);
        assert_eq!(bytes.as_ref(), b"\x81\x88\x62/a\x41v\x00\x00\x40\x00\x00\x80");
        let bytes = encode_ops(&ops());
        assert_eq!(decode_ops(bytes.clone()), Ok(ops()));
        no_cut_is_read(&bytes, decode_ops);
    }

    #[test]
    fn reads_outcomes_and_refusals_round_trip() {
        let key = Key::parse("/a").unwrap();
        for at in [None, Some(dot(4))] {
            let get = Get { key: key.clone(), at, wait_ms: 5 };
            assert_eq!(Get::decode(get.encode()), Ok(get.clone()));
            no_cut_is_read(&get.encode(), Get::decode);
        }
        assert_eq!(decode_outcomes(encode_outcomes(&OUTCOMES)), Ok(OUTCOMES.to_vec()));
        assert!(decode_outcomes(Bytes::from_static(b"\x81\x06")).is_err());
        let value = Bytes::from_static(b"v");
        let entry =
            Entry { key: key.clone(), value, len: 1, dot: dot(2), stamp: Stamp(5), expiry: Expiry::at_unix_ms(7), siblings: 2 };
        let bytes = encode_entry(&entry);
        assert_eq!(decode_entry(&key, bytes.clone()), Ok(entry));
        no_cut_is_read(&bytes, |bytes| decode_entry(&key, bytes));
        let cause = "x".to_owned();
        for refusal in [
            Refusal::Condition { key: key.clone(), current: Some(dot(1)) },
            Refusal::Condition { key, current: None },
            Refusal::TooLarge { cause: cause.clone() },
            Refusal::Busy { cause: cause.clone() },
            Refusal::NotEnoughHolders { ready: 1, needed: 2 },
            Refusal::MoreThanHolders { needed: 3, holders: 2 },
            Refusal::Full { cause: cause.clone() },
            Refusal::Malformed { cause },
        ] {
            assert_eq!(Refusal::decode(refusal.encode()), Ok(refusal.clone()));
            no_cut_is_read(&refusal.encode(), Refusal::decode);
        }
        let long = Refusal::Busy { cause: "ä".repeat(MAX_REASON_BYTES) };
        assert!(Refusal::decode(long.encode()).is_ok());
    }
}
