//! The frames of `/kvdb/fleet/1`: questions and answers between members.

use bytes::Bytes;
use crdt::codec::cbor::Writer;
use crdt::{DatabaseId, VersionVector};
use kvdb::PeerId;

use super::{
    WireError, database, epoch, fields, flag, open, optional_peer, peer, peers, store, vv, write_optional_peer, write_vv,
};
use crate::limits::{MAX_BEAT_BYTES, MAX_CALL_BYTES, MAX_FRAME_BYTES};
use crate::{Epoch, StoreId};

/// What a member has of a database, asked when somebody is to catch up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The store it lies in.
    pub store: StoreId,
    /// The member was a ready holder on this store, at least once.
    pub was_ready: bool,
    /// It is one now.
    pub ready: bool,
    /// The number of holders that it acts on: what it confirmed with fewer, it did before.
    pub holders: u8,
    /// The creator of the database as the member sees the registry.
    pub creator: Option<PeerId>,
    /// What it has on disk.
    pub vv: VersionVector,
}

/// What the answer to a [`Cover`] is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The asker wants to let go of the database.
    HandOver,
    /// The asker wants to confirm a conditional write.
    Confirm,
}

/// The question: do you cover this on disk?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cover {
    /// Drawn at random for each attempt: an answer to an earlier one says nothing.
    pub attempt: u64,
    /// The database.
    pub database: DatabaseId,
    /// What for.
    pub purpose: Purpose,
    /// The set of blocks.
    pub vv: VersionVector,
}

/// What is said to a [`Cover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is on disk with a ready holder that stays.
    Yes,
    /// The one asked is not ready.
    NotReady,
    /// The one asked lets go of the database itself.
    Leaving,
    /// The one asked does not have the database.
    Unknown,
}

/// The answer to a [`Cover`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoverAnswer {
    /// Of the question.
    pub attempt: u64,
    /// The database.
    pub database: DatabaseId,
    /// Yes, or why not.
    pub verdict: Verdict,
    /// The live members as the answering one sees them.
    pub epoch: Epoch,
    /// Who decides conditional writes, as the answering one sees it.
    pub decider: Option<PeerId>,
}

/// What a forwarded call has come to. A closed set: whoever retries knows which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// Done; the body says what.
    Done,
    /// Committed, but not confirmed by the deadline; the body says where it is.
    Unconfirmed,
    /// The key is not there.
    Absent,
    /// The database is not there, or was dropped.
    NoDatabase,
    /// Refused: a condition or a limit; nothing was written.
    Refused,
    /// Too few holders; nothing was written.
    NotEnoughHolders,
    /// The one asked is no ready holder and knows none; nothing was written. To be retried.
    NotReady,
    /// The asker's view is old; the answer brings a newer one. To be retried.
    StaleView,
    /// No answer: the outcome is unknown. To be retried with the same request id.
    Broken,
    /// The one asked has not merged the dot that was to be read at.
    Behind,
}

impl Code {
    const ALL: [Self; 10] = [
        Self::Done,
        Self::Unconfirmed,
        Self::Absent,
        Self::NoDatabase,
        Self::Refused,
        Self::NotEnoughHolders,
        Self::NotReady,
        Self::StaleView,
        Self::Broken,
        Self::Behind,
    ];

    /// Whether the same call may succeed elsewhere or later.
    #[must_use]
    pub fn is_retried(self) -> bool {
        matches!(self, Self::NotReady | Self::StaleView | Self::Broken)
    }

    /// Whether it says that nothing was written.
    #[must_use]
    pub fn is_unwritten(self) -> bool {
        matches!(self, Self::NoDatabase | Self::Refused | Self::NotEnoughHolders | Self::NotReady | Self::StaleView)
    }

    fn number(self) -> u64 {
        Self::ALL.iter().position(|code| *code == self).unwrap_or_default() as u64
    }
}

/// One message between two members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Are you there?
    Probe {
        /// For the answer.
        id: u64,
    },
    /// Yes, in this start.
    Alive {
        /// Of the question.
        id: u64,
        /// Who answers, or who was asked for the asker.
        member: PeerId,
        /// Its start.
        boot: u64,
    },
    /// Is that one there, for you?
    ProbeFor {
        /// For the answer.
        id: u64,
        /// The one to probe.
        target: PeerId,
    },
    /// Whom do you see?
    Lookup {
        /// For the answer.
        id: u64,
        /// The asker's view.
        epoch: Epoch,
    },
    /// These; also sent to whoever used another view.
    View {
        /// Of the question, or 0.
        id: u64,
        /// The digest of the live members.
        epoch: Epoch,
        /// The live members, ascending.
        live: Vec<PeerId>,
    },
    /// What do you have of this database?
    State {
        /// For the answer.
        id: u64,
        /// The database.
        database: DatabaseId,
    },
    /// This, or nothing.
    StateIs {
        /// Of the question.
        id: u64,
        /// The database.
        database: DatabaseId,
        /// `None` if it is not there.
        report: Option<Report>,
    },
    /// Do you cover this on disk?
    Cover(Cover),
    /// The answer.
    Covered(CoverAnswer),
    /// You have less on disk than you once said: this store is older than it should be.
    Fallen {
        /// The database.
        database: DatabaseId,
        /// The store that was spoken of.
        store: StoreId,
    },
    /// Do this for me.
    Call {
        /// For the answer.
        call: u64,
        /// The asker's view.
        epoch: Epoch,
        /// Time left, in milliseconds.
        deadline_ms: u64,
        /// The client's request id; a retry has the same.
        request: [u8; 16],
        /// The database.
        database: DatabaseId,
        /// The operation, not looked into here.
        body: Bytes,
    },
    /// A heartbeat.
    Beat(Bytes),
    /// It came to this.
    Reply {
        /// Of the call.
        call: u64,
        /// In one word.
        code: Code,
        /// In detail, not looked into here.
        body: Bytes,
    },
}

/// The header of a frame with this body.
///
/// # Errors
/// When the body is empty or longer than a frame may be.
pub fn header(body: &[u8]) -> Result<[u8; 4], WireError> {
    let error = WireError::FrameLength { bytes: body.len() as u64 };
    match u32::try_from(body.len()) {
        Ok(len) if len > 0 && body.len() <= MAX_FRAME_BYTES => Ok(len.to_be_bytes()),
        _ => Err(error),
    }
}

/// The length in a header.
///
/// # Errors
/// When no frame has this length.
pub fn frame_len(header: [u8; 4]) -> Result<usize, WireError> {
    let bytes = u32::from_be_bytes(header);
    match usize::try_from(bytes) {
        Ok(len) if len > 0 && len <= MAX_FRAME_BYTES => Ok(len),
        _ => Err(WireError::FrameLength { bytes: u64::from(bytes) }),
    }
}

impl Frame {
    /// The frame's bytes, without the header.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(128);
        match self {
            Self::Probe { id } => w.array(2).uint(0).uint(*id),
            Self::Alive { id, member, boot } => w.array(4).uint(1).uint(*id).bytes(&member.to_bytes()).uint(*boot),
            Self::ProbeFor { id, target } => w.array(3).uint(2).uint(*id).bytes(&target.to_bytes()),
            Self::Lookup { id, epoch } => w.array(3).uint(3).uint(*id).bytes(&epoch.0),
            Self::View { id, epoch, live } => {
                w.array(4).uint(4).uint(*id).bytes(&epoch.0).array(live.len());
                for peer in live {
                    w.bytes(&peer.to_bytes());
                }
                &mut w
            }
            Self::State { id, database } => w.array(3).uint(5).uint(*id).bytes(&database.0),
            Self::StateIs { id, database, report } => {
                w.array(if report.is_some() { 9 } else { 3 }).uint(6).uint(*id).bytes(&database.0);
                if let Some(report) = report {
                    w.bytes(&report.store.0).uint(u64::from(report.was_ready)).uint(u64::from(report.ready));
                    w.uint(u64::from(report.holders));
                    write_optional_peer(&mut w, report.creator.as_ref());
                    write_vv(&mut w, &report.vv);
                }
                &mut w
            }
            Self::Cover(cover) => {
                let purpose = match cover.purpose {
                    Purpose::HandOver => 0,
                    Purpose::Confirm => 1,
                };
                w.array(5).uint(7).uint(cover.attempt).bytes(&cover.database.0).uint(purpose);
                write_vv(&mut w, &cover.vv);
                &mut w
            }
            Self::Covered(answer) => {
                let verdict = match answer.verdict {
                    Verdict::Yes => 0,
                    Verdict::NotReady => 1,
                    Verdict::Leaving => 2,
                    Verdict::Unknown => 3,
                };
                w.array(6).uint(8).uint(answer.attempt).bytes(&answer.database.0).uint(verdict).bytes(&answer.epoch.0);
                write_optional_peer(&mut w, answer.decider.as_ref());
                &mut w
            }
            Self::Fallen { database, store } => w.array(3).uint(9).bytes(&database.0).bytes(&store.0),
            Self::Call { call, epoch, deadline_ms, request, database, body } => {
                w.array(7).uint(10).uint(*call).bytes(&epoch.0).uint(*deadline_ms).bytes(request).bytes(&database.0).bytes(body)
            }
            Self::Beat(beat) => w.array(2).uint(12).bytes(beat),
            Self::Reply { call, code, body } => w.array(4).uint(11).uint(*call).uint(code.number()).bytes(body),
        };
        w.into_bytes()
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// When it is none of this version.
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(WireError::FrameLength { bytes: bytes.len() as u64 });
        }
        let (mut reader, count, kind) = open(bytes)?;
        let r = &mut reader;
        let wanted = match kind {
            0 | 12 => 2,
            1 | 4 | 11 => 4,
            2 | 3 | 5 | 9 => 3,
            6 => {
                if count == 3 {
                    3
                } else {
                    9
                }
            }
            7 => 5,
            8 => 6,
            10 => 7,
            kind => return Err(WireError::UnknownKind { kind }),
        };
        fields(count, wanted)?;
        let frame = match kind {
            0 => Self::Probe { id: r.uint("an id")? },
            1 => Self::Alive { id: r.uint("an id")?, member: peer(r)?, boot: r.uint("a boot id")? },
            2 => Self::ProbeFor { id: r.uint("an id")?, target: peer(r)? },
            3 => Self::Lookup { id: r.uint("an id")?, epoch: epoch(r)? },
            4 => Self::View { id: r.uint("an id")?, epoch: epoch(r)?, live: peers(r)? },
            5 => Self::State { id: r.uint("an id")?, database: database(r)? },
            6 => {
                let (id, database) = (r.uint("an id")?, database(r)?);
                let report = if count == 9 { Some(Report::read(r)?) } else { None };
                Self::StateIs { id, database, report }
            }
            7 => Self::Cover(Cover::read(r)?),
            8 => Self::Covered(CoverAnswer::read(r)?),
            12 => Self::Beat(r.bytes("a beat", MAX_BEAT_BYTES)?),
            9 => Self::Fallen { database: database(r)?, store: store(r)? },
            10 => Self::Call {
                call: r.uint("a call")?,
                epoch: epoch(r)?,
                deadline_ms: r.uint("a deadline")?,
                request: r.bytes_of("a request id")?,
                database: database(r)?,
                body: r.bytes("an operation", MAX_CALL_BYTES)?,
            },
            _ => {
                let (call, number) = (r.uint("a call")?, r.uint("a code")?);
                let code = usize::try_from(number).ok().and_then(|at| Code::ALL.get(at)).copied();
                let code = code.ok_or(WireError::Value { what: "a code" })?;
                Self::Reply { call, code, body: r.bytes("an answer", MAX_CALL_BYTES)? }
            }
        };
        reader.finish()?;
        Ok(frame)
    }
}

impl Report {
    fn read(reader: &mut crdt::codec::cbor::Reader) -> Result<Self, WireError> {
        Ok(Self {
            store: store(reader)?,
            was_ready: flag(reader, "was ready")?,
            ready: flag(reader, "ready")?,
            holders: u8::try_from(reader.uint("holders")?).map_err(|_| WireError::Value { what: "holders" })?,
            creator: optional_peer(reader)?,
            vv: vv(reader)?,
        })
    }
}

impl Cover {
    fn read(reader: &mut crdt::codec::cbor::Reader) -> Result<Self, WireError> {
        let (attempt, database) = (reader.uint("an attempt")?, database(reader)?);
        let purpose = match reader.uint("a purpose")? {
            0 => Purpose::HandOver,
            1 => Purpose::Confirm,
            _ => return Err(WireError::Value { what: "a purpose" }),
        };
        Ok(Self { attempt, database, purpose, vv: vv(reader)? })
    }
}

impl CoverAnswer {
    fn read(reader: &mut crdt::codec::cbor::Reader) -> Result<Self, WireError> {
        let (attempt, database) = (reader.uint("an attempt")?, database(reader)?);
        let verdict = match reader.uint("a verdict")? {
            0 => Verdict::Yes,
            1 => Verdict::NotReady,
            2 => Verdict::Leaving,
            3 => Verdict::Unknown,
            _ => return Err(WireError::Value { what: "a verdict" }),
        };
        Ok(Self { attempt, database, verdict, epoch: epoch(reader)?, decider: optional_peer(reader)? })
    }
}
