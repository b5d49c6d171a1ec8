//! What opening, reading and writing a store may fail with.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crdt::{DatabaseId, DatabaseName};
use thiserror::Error;

use super::layout::Family;

/// Why a store could not be opened. Nothing in the directory was changed, except where it says so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// Another process, or another opening in this one, has the store open.
    #[error("the store at {path:?} is in use by another process")]
    Locked {
        /// The store's directory.
        path: PathBuf,
    },
    /// The store was written by a newer version of this program.
    #[error("the store at {path:?} has format {found}, this program knows formats up to {known}; use a newer program")]
    NewerFormat {
        /// The store's directory.
        path: PathBuf,
        /// The format on disk.
        found: u32,
        /// The newest format that this program reads.
        known: u32,
    },
    /// The store was written by an older version of this program, of which nothing leads to this one's format.
    #[error("the store at {path:?} has format {found}, and this program cannot bring it to format {known}; use an older program")]
    OlderFormat {
        /// The store's directory.
        path: PathBuf,
        /// The format on disk.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },
    /// A step to a newer format failed: the store has the format of the last step that succeeded.
    #[error("the store at {path:?} could not be brought from format {from} to the next: {source}")]
    Migration {
        /// The store's directory.
        path: PathBuf,
        /// The format on disk.
        from: u32,
        /// What failed.
        source: StoreError,
    },
    /// The directory has files in it, but no store.
    #[error("the directory {path:?} is not empty and holds no store; choose another one")]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be created, read or written.
    #[error("the directory {path:?} cannot be used: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The write-ahead log is damaged before its end: committed writes would be lost.
    #[error(
        "the write-ahead log of the store at {path:?} is damaged: {cause}; opening it loses committed writes and must be \
         asked for (accept loss)"
    )]
    DamagedLog {
        /// The store's directory.
        path: PathBuf,
        /// What was found.
        cause: String,
    },
    /// A record is damaged.
    #[error("the store at {path:?} is damaged: {source}")]
    Damaged {
        /// The store's directory.
        path: PathBuf,
        /// The record.
        source: StoreError,
    },
    /// RocksDB cannot open its files, which may be partly written.
    #[error("the store at {path:?} cannot be opened: {cause}")]
    RocksDb {
        /// The store's directory.
        path: PathBuf,
        /// RocksDB's reason.
        cause: String,
    },
}

/// Why a read or a write failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database is not in this store.
    #[error("database {0} is not in this store")]
    UnknownDatabase(DatabaseId),
    /// RocksDB failed.
    #[error("RocksDB: {0}")]
    RocksDb(String),
    /// The store's directory cannot be read.
    #[error("the store's directory cannot be read: {0}")]
    Directory(String),
    /// A record is not what it must be: the disk, or a program, damaged it.
    #[error("the record {key} in {family} is damaged: {what}")]
    Corrupt {
        /// The column family.
        family: Family,
        /// The record's key.
        key: RecordKey,
        /// What is wrong with it.
        what: &'static str,
    },
    /// An earlier commit failed, and what is on disk is not known: the store refuses writes until it is opened anew.
    #[error("the store refuses writes since a commit failed: {cause}; open it anew")]
    Poisoned {
        /// The failure.
        cause: String,
    },
    /// Rows were to be joined that nobody has begun to build.
    #[error("no rows are being built")]
    NothingBuilt,
    /// All numbers for rows have been used.
    #[error("no number is left for rows: {limit} have been used", limit = u32::MAX)]
    RowNumbersExhausted,
    /// All numbers for databases have been used.
    #[error("no number is left for database {0}: {limit} have been used", limit = u32::MAX)]
    NumbersExhausted(DatabaseName),
}

impl From<rocksdb::Error> for StoreError {
    fn from(error: rocksdb::Error) -> Self {
        Self::RocksDb(error.into_string())
    }
}

/// A record's key, in hex.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordKey(pub Vec<u8>);

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
