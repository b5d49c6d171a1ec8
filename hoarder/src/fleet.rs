//! The library API: a node as a member of a fleet.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use crdt::{DatabaseId, DatabaseName, Dot, Key, OpOutcome, RequestId};
use kvdb::{Batch, Database, Entry, Node, Op, PeerId};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::Moment;
use crate::barrier::{Durability, UnconfirmedReason};
use crate::controller::{Controller, Options, RecordDone, RegistryError};
use crate::driver::{self, AGAIN, Command, Look};
use crate::limits::{DEFAULT_DEADLINE, DEFAULT_HOLDERS, DOT_PATIENCE, MAX_CALL_BYTES, MAX_DEADLINE};
use crate::wire::{Answer, Code, Get, Operation, Refusal, decode_entry, decode_outcomes, encode_ops};

/// A member of a fleet. Cloning is cheap; when the last handle is dropped, or [`Fleet::close`] is called, the node stops being
/// one.
///
/// Any member takes any call: it serves the call itself if it is a ready holder of the database, else it passes the call on to
/// one. A call that finds nobody is tried again, with the same request id, until its deadline.
#[derive(Debug, Clone)]
pub struct Fleet {
    commands: mpsc::Sender<Command>,
}

/// Why a call to the fleet did not succeed. A closed set: each says whether a write may exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FleetError {
    /// There is no such database, or it was dropped; nothing was written.
    #[error("there is no database of this name in the fleet")]
    NoDatabase,
    /// Committed at one holder at least, and not confirmed: it will spread. A retry with the same request id is safe.
    #[error("{0}")]
    Unconfirmed(Box<Unconfirmed>),
    /// Too few holders are ready, and none is joining; nothing was written.
    #[error("{ready} holders are ready, the write asks for {needed}; nothing was written")]
    NotEnoughHolders {
        /// Ready holders.
        ready: u64,
        /// What was asked for.
        needed: u8,
    },
    /// A limit or a condition; nothing was written.
    #[error("{0}; nothing was written")]
    Refused(Refusal),
    /// No ready holder could be reached in time; nothing was written.
    #[error("no ready holder was reached in time; nothing was written")]
    NotReady,
    /// No holder had merged in time the dot that was to be read at.
    #[error("no holder had merged {dot} in time")]
    Behind {
        /// The dot.
        dot: Dot,
    },
    /// No answer: the outcome is unknown. A retry with the same request id is safe.
    #[error("no answer came: the write may or may not exist")]
    Unknown {
        /// The id of the request.
        request: RequestId,
    },
    /// A change of the registry did not succeed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// This node is no member any more.
    #[error("the fleet is closed")]
    Closed,
    /// The fleet could not be started.
    #[error("cannot start: {cause}")]
    Start {
        /// Why.
        cause: String,
    },
}

/// A write that is committed and was not confirmed by its deadline.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("written as {dot}, but not confirmed: {reason}")]
pub struct Unconfirmed {
    /// The write.
    pub dot: Dot,
    /// The holders that had it on disk.
    pub holders: Vec<PeerId>,
    /// The holder that took it.
    pub served_by: PeerId,
    /// Why it is not confirmed.
    pub reason: UnconfirmedReason,
    /// For the retry.
    pub request: RequestId,
    /// How long the call took.
    pub took: Duration,
}

/// How a write is to be done.
///
/// ```
/// use hoarder::{Durability, WriteOptions};
/// let options = WriteOptions { durability: Some(Durability::Require(2)), ..WriteOptions::default() };
/// assert!(!options.attempt);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// When it counts as done; the database's own durability if `None`.
    pub durability: Option<Durability>,
    /// Write even if too few holders are ready to confirm it.
    pub attempt: bool,
    /// A holder that was ready on its store and is not just now may take it, if it asks for no holders (`local`, `prefer`) and
    /// has no condition.
    pub stale: bool,
    /// How long the caller waits, at most [`MAX_DEADLINE`].
    pub deadline: Duration,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { durability: None, attempt: false, stale: true, deadline: DEFAULT_DEADLINE }
    }
}

impl From<Durability> for WriteOptions {
    fn from(durability: Durability) -> Self {
        Self { durability: Some(durability), ..Self::default() }
    }
}

/// How a read is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadOptions {
    /// A holder that was ready on its store and is not just now may answer; the answer says so.
    pub stale: bool,
    /// The holder first compares with so many others that nothing that was confirmed before is missed. Costs a round trip to
    /// the other members.
    pub confirmed: bool,
    /// Once the holder has merged this: the dot of a write gives read-your-writes. The value may be a later one.
    pub at: Option<Dot>,
    /// How long the caller waits, at most [`MAX_DEADLINE`].
    pub deadline: Duration,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { stale: false, confirmed: false, at: None, deadline: DEFAULT_DEADLINE }
    }
}

/// A write that is done as its durability asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteDone {
    /// The write; `None` when there was nothing to write.
    pub dot: Option<Dot>,
    /// One outcome for each op, in the caller's order.
    pub ops: Vec<OpOutcome>,
    /// The holders that have it on disk: at least as many as `require` asks for, perhaps fewer than `prefer` does.
    pub holders: Vec<PeerId>,
    /// Who took it.
    pub served_by: PeerId,
    /// Who took it was not ready just then.
    pub stale: bool,
    /// The id of the request, the caller's own or a random one.
    pub request: RequestId,
    /// How long the call took.
    pub took: Duration,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadDone {
    /// What is at the key: of several siblings the winner.
    pub entry: Option<Entry>,
    /// Who has answered.
    pub served_by: PeerId,
    /// Who has answered was not ready just then: something confirmed may be missing.
    pub stale: bool,
    /// How long the call took.
    pub took: Duration,
}

/// Where a database can be read.
#[derive(Debug, Clone)]
pub enum Serving {
    /// Here: this node is a ready holder.
    Here(Database),
    /// With one of these ready holders, in the order in which they are to be asked; at least one.
    There(Vec<PeerId>),
    /// No ready holder is known, but this node was one on its present store: something confirmed may be missing.
    Stale(Database),
}

/// What a new database is to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// How many holders it should have, from 1 to 5.
    pub holders: u8,
    /// Durability of writes that name none; `require` of all holders if `None`.
    pub durability: Option<Durability>,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        Self { holders: DEFAULT_HOLDERS, durability: None }
    }
}

/// A database as this node sees it in the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The database.
    pub database: DatabaseId,
    /// The members that should hold it.
    pub desired: Vec<PeerId>,
    /// The ready and live holders, in the order in which they are asked.
    pub ready: Vec<PeerId>,
}

impl Fleet {
    /// Makes the node a member of a fleet. The node must have a network, and the members must be connected or dialled.
    /// The file `fleet.state` in the directory names the store; it belongs to the node's own data.
    ///
    /// # Errors
    /// [`FleetError::Start`].
    pub async fn start(node: Node, directory: PathBuf, options: Options) -> Result<Self, FleetError> {
        let commands = driver::start(node, directory, options).await.map_err(|cause| FleetError::Start { cause })?;
        Ok(Self { commands })
    }

    /// Makes a database. Returns once more than half of the members know of it.
    ///
    /// # Errors
    /// [`FleetError::Registry`].
    pub async fn create(&self, name: &DatabaseName, settings: DatabaseSettings) -> Result<DatabaseId, FleetError> {
        let DatabaseSettings { holders, durability } = settings;
        let durability = durability.unwrap_or(Durability::Require(holders));
        match self.ask(|reply| Command::Create(name.clone(), holders, durability, reply)).await?? {
            RecordDone::Created(id) | RecordDone::Dropped(id) => Ok(id),
            RecordDone::Changed => Err(RegistryError::Unknown.into()),
        }
    }

    /// Drops a database on all its holders. Returns once more than half of the members know of it: from then on nothing of it
    /// is ever seen again, whoever is away just now, and the name may be made anew.
    ///
    /// # Errors
    /// [`FleetError::Registry`].
    pub async fn drop_database(&self, name: &DatabaseName) -> Result<(), FleetError> {
        self.ask(|reply| Command::Drop(name.clone(), reply)).await??;
        Ok(())
    }

    /// Gives a database another number of holders, while it is in use.
    ///
    /// # Errors
    /// [`FleetError::Registry`].
    pub async fn set_holders(&self, name: &DatabaseName, holders: u8) -> Result<(), FleetError> {
        self.ask(|reply| Command::Holders(name.clone(), holders, reply)).await??;
        Ok(())
    }

    /// Puts a value.
    ///
    /// # Errors
    /// As [`Fleet::batch`].
    pub async fn put(
        &self,
        database: &DatabaseName,
        key: &Key,
        value: impl Into<Bytes>,
        options: impl Into<WriteOptions>,
    ) -> Result<WriteDone, FleetError> {
        self.batch(database, Op::put(key.clone(), value), options).await
    }

    /// Deletes what the holder that takes it sees at the key.
    ///
    /// # Errors
    /// As [`Fleet::batch`].
    pub async fn delete(
        &self,
        database: &DatabaseName,
        key: &Key,
        options: impl Into<WriteOptions>,
    ) -> Result<WriteDone, FleetError> {
        self.batch(database, Op::delete(key.clone()), options).await
    }

    /// Writes a batch, or a single [`Op`]: conditions, dots seen and expiries are the ops' own. Its request id, a random one if
    /// it has none, makes a retry safe: whichever holder takes it, the first outcome is returned. The batch's own durability is
    /// not looked at: a fleet's writes are synced.
    ///
    /// A write with a condition is judged by the first ready holder only, and confirmed only by holders that agree on who that
    /// is. Still a guard and no lock: a part of the fleet that is cut off with another view may let the same condition through.
    ///
    /// # Errors
    /// See [`FleetError`]; each says whether the write may exist.
    ///
    /// # Durability
    /// As asked. What is confirmed under `require(k)` is on the disks of k nodes, so it survives the loss of any k − 1.
    ///
    /// # Cancel safety
    /// Once polled the batch may be written even when the future is dropped; never half of it.
    pub async fn batch(
        &self,
        database: &DatabaseName,
        batch: impl Into<Batch>,
        options: impl Into<WriteOptions>,
    ) -> Result<WriteDone, FleetError> {
        let (batch, options): (Batch, WriteOptions) = (batch.into(), options.into());
        let request = batch.request_id().unwrap_or_else(|| RequestId(rand::random()));
        let payload = encode_ops(batch.ops());
        if payload.len() > MAX_CALL_BYTES {
            let cause = format!("the batch has {} bytes, the limit is {MAX_CALL_BYTES}", payload.len());
            return Err(FleetError::Refused(Refusal::TooLarge { cause }));
        }
        let conditional = batch.ops().iter().filter_map(|op| op.terms.as_ref()).any(|terms| terms.condition.is_some());
        let WriteOptions { durability, attempt, stale, deadline } = options;
        let operation = Operation::Write { durability, conditional, attempt, stale, payload };
        let (code, answer, took) = self.call(database, request, operation, deadline).await?;
        match (code, answer.dot) {
            (Code::Done, dot) => {
                let ops = decode_outcomes(answer.payload).map_err(|_| FleetError::Unknown { request })?;
                let Answer { served_by, stale, holders, .. } = answer;
                Ok(WriteDone { dot, ops, holders, served_by, stale, request, took })
            }
            (Code::Unconfirmed, Some(dot)) => {
                let reason = answer.reason.unwrap_or(UnconfirmedReason::Deadline);
                let Answer { served_by, holders, .. } = answer;
                let unconfirmed = Unconfirmed { dot, holders, served_by, reason, request, took };
                Err(FleetError::Unconfirmed(Box::new(unconfirmed)))
            }
            (code, _) => Err(failure(code, answer).unwrap_or(FleetError::Unknown { request })),
        }
    }

    /// What is at a key, from a ready holder.
    ///
    /// # Errors
    /// When no holder was reached that may answer; never for a key that is not there.
    pub async fn get(&self, database: &DatabaseName, key: &Key, options: ReadOptions) -> Result<ReadDone, FleetError> {
        let ReadOptions { stale, confirmed, at, deadline } = options;
        let wait_ms = u64::try_from((deadline.mul_f32(0.9)).min(DOT_PATIENCE).as_millis()).unwrap_or(0);
        let payload = Get { key: key.clone(), at, wait_ms }.encode();
        let operation = Operation::Read { stale, confirmed, payload };
        let (code, answer, took) = self.call(database, RequestId(rand::random()), operation, deadline).await?;
        let (served_by, stale) = (answer.served_by, answer.stale);
        match (code, at) {
            (Code::Done, _) => {
                let entry = decode_entry(key, answer.payload).map_err(|_| FleetError::NotReady)?;
                Ok(ReadDone { entry: Some(entry), served_by, stale, took })
            }
            (Code::Absent, _) => Ok(ReadDone { entry: None, served_by, stale, took }),
            (Code::Behind, Some(dot)) => Err(FleetError::Behind { dot }),
            // A read without an answer has done nothing.
            (code, _) => Err(failure(code, answer).unwrap_or(FleetError::NotReady)),
        }
    }

    /// Where a database can be read just now: for whoever reads streams, which are not passed on here.
    ///
    /// # Errors
    /// [`FleetError::NoDatabase`]; [`FleetError::NotReady`] if no holder is ready, or this node does not know the fleet yet.
    pub async fn serving(&self, database: &DatabaseName) -> Result<Serving, FleetError> {
        self.ask(|reply| Command::Serving(database.clone(), reply)).await?
    }

    /// Who should hold a database, and who does.
    ///
    /// # Errors
    /// [`FleetError::NoDatabase`].
    pub async fn placement(&self, database: &DatabaseName) -> Result<Placement, FleetError> {
        self.ask(|reply| Command::Placement(database.clone(), reply)).await?.ok_or(FleetError::NoDatabase)
    }

    /// The members that this node sees as live, itself among them.
    ///
    /// # Errors
    /// [`FleetError::Closed`].
    pub async fn members(&self) -> Result<Vec<PeerId>, FleetError> {
        self.ask(Command::Members).await
    }

    /// This node is to hold nothing any more, or may hold again.
    ///
    /// # Errors
    /// [`FleetError::Closed`].
    pub async fn drain(&self, draining: bool) -> Result<(), FleetError> {
        self.commands.send(Command::Drain(draining)).await.map_err(|_| FleetError::Closed)
    }

    /// Declares a member gone for good: it does not count among the members any more. Returns once more than half of them
    /// know. There is no way back but another identity.
    ///
    /// # Errors
    /// [`FleetError::Registry`].
    pub async fn forget(&self, peer: PeerId) -> Result<(), FleetError> {
        self.ask(|reply| Command::Forget(peer, reply)).await??;
        Ok(())
    }

    /// Looks at this node's view of the fleet, as it is between two of its steps; see [`Controller::members_view`] and its
    /// neighbours. The look holds everything else up, so it must be short.
    ///
    /// # Errors
    /// [`FleetError::Closed`].
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Controller, Moment) -> T + Send + 'static,
    ) -> Result<T, FleetError> {
        self.ask(|reply| {
            let look = |controller: &Controller, now| drop(reply.send(look(controller, now)));
            Command::Look(Look(Box::new(look)))
        })
        .await
    }

    /// Says good-bye to the fleet. The node itself stays open.
    pub async fn close(&self) {
        // An error says that it is closed already.
        let _ = self.ask(Command::Close).await;
    }

    /// One call, tried again with the same request id while nobody is ready.
    async fn call(
        &self,
        database: &DatabaseName,
        request: RequestId,
        operation: Operation,
        patience: Duration,
    ) -> Result<(Code, Answer, Duration), FleetError> {
        let began = driver::now();
        let patience = patience.min(MAX_DEADLINE);
        let write = matches!(operation, Operation::Write { .. });
        let mut unknown = false;
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let command = |reply| Command::Call(database.clone(), request, operation.clone(), left, reply);
            let (code, answer) = self.ask(command).await?;
            unknown |= write && code == Code::Broken;
            if !(code.is_retried() || code == Code::Behind) || patience.saturating_sub(began.elapsed()) <= AGAIN {
                // Of an earlier attempt nobody knows: a later one that was refused does not say that nothing was written.
                let code = if unknown && code.is_unwritten() { Code::Broken } else { code };
                return Ok((code, answer, began.elapsed()));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, FleetError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| FleetError::Closed)?;
        answer.await.map_err(|_| FleetError::Closed)
    }
}

/// What a code says that is no answer; `None` if nothing is known.
fn failure(code: Code, answer: Answer) -> Option<FleetError> {
    match code {
        Code::NoDatabase => Some(FleetError::NoDatabase),
        Code::NotReady | Code::StaleView => Some(FleetError::NotReady),
        Code::Refused | Code::NotEnoughHolders => match Refusal::decode(answer.payload).ok()? {
            Refusal::NotEnoughHolders { ready, needed } => Some(FleetError::NotEnoughHolders { ready, needed }),
            refusal => Some(FleetError::Refused(refusal)),
        },
        Code::Done | Code::Unconfirmed | Code::Absent | Code::Broken | Code::Behind => None,
    }
}
