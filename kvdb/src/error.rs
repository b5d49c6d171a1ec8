//! Errors of the public API, one enum per kind of operation.

use std::path::PathBuf;
use std::time::Duration;

use crdt::{DatabaseName, DatabaseNameError, Dot};
use thiserror::Error;

pub use crate::engine::port::WriteError;
use crate::net::NetworkError;
use crate::shards::PlaceError;
use crate::store::StoreOpenError;

/// Why a node could not be opened. Nothing was changed, unless the text says so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The data directory cannot be used.
    #[error("the data directory {path} cannot be used: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// A data directory of this node has lost its store: a disk is not mounted, most likely.
    #[error("the data directory {directory:?} had a store and has none now; is its disk mounted?")]
    NoStore {
        /// The directory.
        directory: PathBuf,
    },
    /// A data directory of this node is not configured any more, or another store has taken its place: its databases
    /// would be taken for absent.
    #[error(
        "the data directory {directory:?} belongs to this node, but is not configured, or holds another store now; to give \
         its databases up, take it out of the configuration and delete {notes:?}"
    )]
    MissingDirectory {
        /// The directory as it was configured.
        directory: PathBuf,
        /// The file that knows of it.
        notes: PathBuf,
    },
    /// A restore into the directory has not ended.
    #[error("a backup was being restored into {directory:?}, and did not end; restore it again")]
    Unfinished {
        /// The directory.
        directory: PathBuf,
    },
    /// One directory is configured twice.
    #[error("the data directory {path:?} is given twice")]
    SameDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Too many data directories.
    #[error("{count} data directories are given, the limit is {limit}")]
    TooManyDirectories {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The notes of which database is in which data directory cannot be read or written.
    #[error(
        "the notes of the data directories, {path:?}, cannot be used: {reason}; if all directories are sound, delete the file"
    )]
    Notes {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The identity file is damaged or of another kind.
    #[error("the identity file {path} cannot be used: {reason}")]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The network could not be started.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a database could not be opened.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum OpenDatabaseError {
    /// The name breaks the rule for names.
    #[error(transparent)]
    Name(#[from] DatabaseNameError),
    /// Another generation than the one asked for is here, or that one was dropped.
    #[error("generation {here} of the database is here, or is the next that can be")]
    Generation {
        /// The one that is here, or the first that can be.
        here: u64,
    },
    /// Too many are open.
    #[error("{limit} databases are open, which is the limit")]
    TooManyOpen {
        /// The limit.
        limit: usize,
    },
    /// The node is closed.
    #[error("the node is closed")]
    Closed,
    /// It lives in a data directory that could not be opened; nothing was made in its place.
    #[error("the database is in {directory:?}, which could not be opened: {cause}")]
    Unavailable {
        /// The directory.
        directory: PathBuf,
        /// Why it could not be opened.
        cause: String,
    },
    /// The store could not read or write.
    #[error("the database cannot be opened: {cause}")]
    Store {
        /// The failure.
        cause: String,
    },
}

/// Why a database could not be dropped.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum DropError {
    /// There is none of this name.
    #[error("there is no database {0}")]
    NotFound(DatabaseName),
    /// The node is closed.
    #[error("the node is closed")]
    Closed,
    /// It lives in a data directory that could not be opened.
    #[error("the database is in {directory:?}, which could not be opened: {cause}")]
    Unavailable {
        /// The directory.
        directory: PathBuf,
        /// Why it could not be opened.
        cause: String,
    },
    /// The store could not read or write: the database is closed, and may be dropped or not.
    #[error("the database cannot be dropped: {cause}")]
    Store {
        /// The failure.
        cause: String,
    },
}

/// Why a read failed. Never "not found".
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The database is closed.
    #[error("the database is closed")]
    Closed,
    /// The database was dropped on this node.
    #[error("the database was dropped")]
    Dropped,
    /// Too many listing streams are open.
    #[error("{limit} listing streams are open, which is the limit; try again later")]
    TooManyStreams {
        /// The limit.
        limit: usize,
    },
    /// The store could not read.
    #[error("the store cannot read: {cause}")]
    Store {
        /// The failure.
        cause: String,
    },
}

/// Why a wait ended without what was waited for.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The dot has not arrived in time; it may arrive later.
    #[error("{dot} has not arrived within {waited:?}")]
    NotCovered {
        /// The dot waited for.
        dot: Dot,
        /// How long.
        waited: Duration,
    },
    /// The database was closed meanwhile.
    #[error("the database is closed")]
    Closed,
}

/// Why a read that waits for a dot failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum ReadAtError {
    /// The dot has not come.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why a node or database did not close cleanly; it is closed all the same.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The last sync failed: buffered writes may be lost at a power failure.
    #[error("the last sync failed: {0}")]
    Sync(WriteError),
}

impl From<PlaceError> for OpenDatabaseError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Read(ReadError::Closed) => Self::Closed,
            PlaceError::Unavailable { directory, cause } => Self::Unavailable { directory, cause },
            PlaceError::Read(error) => Self::Store { cause: error.to_string() },
            PlaceError::Notes(cause) => Self::Store { cause },
        }
    }
}

impl From<PlaceError> for DropError {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Read(ReadError::Closed) => Self::Closed,
            PlaceError::Unavailable { directory, cause } => Self::Unavailable { directory, cause },
            PlaceError::Read(error) => Self::Store { cause: error.to_string() },
            PlaceError::Notes(cause) => Self::Store { cause },
        }
    }
}

pub(crate) fn read_error<E: std::error::Error>(error: &E) -> ReadError {
    ReadError::Store { cause: error.to_string() }
}
