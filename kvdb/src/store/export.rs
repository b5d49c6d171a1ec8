//! A view that stands still, read by whoever holds it from any thread: for sending snapshots.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crdt::limits::CHUNK_BYTES;
use crdt::snapshot::{Piece, SnapshotReadError, read_piece};
use crdt::{Cursor, DatabaseId, ReplicaState, View as _};
use thiserror::Error;

use super::{RocksStore, StoreError};

/// One RocksDB snapshot, kept by a thread of its own, since it cannot be handed from one to another. It keeps old data on
/// disk, and the store open, until it is dropped.
#[derive(Debug)]
pub struct StandingRocks {
    asks: Option<SyncSender<Ask>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
enum Ask {
    State(SyncSender<ReplicaState>),
    Read(Cursor, SyncSender<Result<Piece, StandingError>>),
}

/// Why a standing view cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StandingError {
    /// The store cannot read, or lacks a value.
    #[error(transparent)]
    Read(#[from] SnapshotReadError<StoreError>),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(String),
    /// Its thread has ended.
    #[error("the thread of the view has ended")]
    Ended,
}

impl From<StoreError> for StandingError {
    fn from(error: StoreError) -> Self {
        Self::Read(error.into())
    }
}

impl StandingRocks {
    /// Opens the view. It is of the moment at which this returns, or shortly before.
    ///
    /// # Errors
    /// When the database is not in the store, or the system gives no thread.
    pub fn open(store: RocksStore, database: DatabaseId) -> Result<Self, StandingError> {
        let (asks, asked) = sync_channel(1);
        let (ready, opened) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("kvdb-snapshot".to_owned())
            .spawn(move || {
                if let Err(error) = serve(&store, &database, &ready, &asked) {
                    // Whoever opens it waits for one word.
                    let _ = ready.send(Err(error.into()));
                }
            })
            .map_err(|error| StandingError::Thread(error.to_string()))?;
        opened.recv().map_err(|_| StandingError::Ended)??;
        Ok(Self { asks: Some(asks), thread: Mutex::new(Some(thread)) })
    }

    /// The replica's state in the view.
    ///
    /// # Errors
    /// When its thread has ended.
    pub fn state(&self) -> Result<ReplicaState, StandingError> {
        self.ask(Ask::State)
    }

    /// The chunk of a snapshot at a place.
    ///
    /// # Errors
    /// When the store cannot read.
    pub fn read(&self, at: &Cursor) -> Result<Piece, StandingError> {
        self.ask(|reply| Ask::Read(at.clone(), reply))?
    }

    fn ask<T>(&self, ask: impl FnOnce(SyncSender<T>) -> Ask) -> Result<T, StandingError> {
        let (reply, answer) = sync_channel(1);
        let asks = self.asks.as_ref().ok_or(StandingError::Ended)?;
        asks.send(ask(reply)).map_err(|_| StandingError::Ended)?;
        answer.recv().map_err(|_| StandingError::Ended)
    }
}

fn serve(
    store: &RocksStore,
    database: &DatabaseId,
    ready: &SyncSender<Result<(), StandingError>>,
    asked: &Receiver<Ask>,
) -> Result<(), StoreError> {
    let view = store.snapshot(database)?;
    let state = view.state()?;
    // Nobody reads the answers of an owner that has gone.
    let _ = ready.send(Ok(()));
    for ask in asked {
        match ask {
            Ask::State(reply) => _ = reply.send(state.clone()),
            Ask::Read(at, reply) => {
                _ = reply.send(read_piece(&view, &state, &at, CHUNK_BYTES).map_err(StandingError::from));
            }
        }
    }
    Ok(())
}

impl Drop for StandingRocks {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // It ends with its last answer; the store is let go of when this returns.
            drop(thread.join());
        }
    }
}
