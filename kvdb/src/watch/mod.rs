//! Watching: events about the keys below a prefix whose winner, as `get` sees it, has changed.
//!
//! The engine keeps a short memory of changed keys per watched database ([`Recent`]) and nothing per watcher. A
//! [`Watcher`] has a position in the log; what the memory no longer has it reads from the log, and values it reads from
//! the store when it tells of them. So a reader that is slow, or reads nothing at all, costs nobody anything.
//!
//! ```no_run
//! # async fn run(db: kvdb::Database) -> Result<(), Box<dyn std::error::Error>> {
//! use futures::StreamExt as _;
//! use kvdb::{Prefix, WatchChange, WatchFrom, WatchOptions};
//! let mut watch = db.watch(WatchOptions::new(Prefix::parse("/rack")?).from(WatchFrom::List))?;
//! while let Some(event) = watch.next().await {
//!     match event?.change {
//!         WatchChange::Put(put) => println!("{} is {} bytes", put.key, put.len),
//!         WatchChange::Deleted(key) => println!("{key} is gone"),
//!         WatchChange::Listed => println!("that was all; from here on changes"),
//!         WatchChange::Reset => println!("changes were missed: forget everything, and watch from the list again"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod machine;
mod recent;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use crdt::{Dot, Key, Prefix, Stamp};
use thiserror::Error;

pub use machine::Watcher;
pub use recent::Recent;
pub use stream::WatchStream;

use crate::error::ReadError;
use crate::limits::MAX_WATCHERS;

/// A place in a replica's own log: a revision and the block that was merged at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The revision; 0 is before the first block.
    pub revision: u64,
    /// The block at it, as far as it is known.
    pub dot: Option<Dot>,
}

impl Position {
    /// The token to resume from here, if there can be one.
    #[must_use]
    pub fn token(&self) -> Option<WatchToken> {
        // An entry without a block says that rows were replaced as a whole: nothing goes on from there.
        let dot = self.dot.filter(|dot| dot.seq > 0);
        (self.revision == 0 || dot.is_some()).then_some(WatchToken { revision: self.revision, dot })
    }
}

/// Where to resume a watch on the node that gave the token. Everything up to it has been told.
///
/// As text `<revision>-<dot>`, and `0` for before the first block. It is good only while the log of that node has exactly
/// that block at that revision and every later block is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchToken {
    revision: u64,
    /// `None` only at revision 0.
    dot: Option<Dot>,
}

/// A text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a watch token is written as a revision, a dash and a dot, or as 0")]
pub struct WatchTokenError;

impl fmt::Display for WatchToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dot {
            Some(dot) => write!(f, "{}-{dot}", self.revision),
            None => f.write_str("0"),
        }
    }
}

impl FromStr for WatchToken {
    type Err = WatchTokenError;

    fn from_str(text: &str) -> Result<Self, WatchTokenError> {
        if text == "0" {
            return Ok(Self { revision: 0, dot: None });
        }
        let (number, dot) = text.split_once('-').ok_or(WatchTokenError)?;
        // Only the one form that Display writes: no sign, no leading zero.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) || number.starts_with('0') {
            return Err(WatchTokenError);
        }
        let revision = number.parse().map_err(|_| WatchTokenError)?;
        let dot = dot.parse().map_err(|_| WatchTokenError)?;
        Ok(Self { revision, dot: Some(dot) })
    }
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WatchFrom {
    /// With the first change after the call.
    #[default]
    Now,
    /// With everything that is there, from one snapshot, then [`WatchChange::Listed`], then every change after that
    /// snapshot: no gap, nothing twice.
    List,
    /// Behind the token: one event for each key touched since, with what is there now.
    Token(WatchToken),
}

/// What to watch and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchOptions {
    /// Only keys below this prefix, by the same rule as a listing.
    pub prefix: Prefix,
    /// Where to begin.
    pub from: WatchFrom,
    /// Leaves the values out.
    pub keys_only: bool,
}

impl WatchOptions {
    /// Everything below the prefix from now on, with values.
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, from: WatchFrom::Now, keys_only: false }
    }

    /// Begins there.
    #[must_use]
    pub fn from(mut self, from: WatchFrom) -> Self {
        self.from = from;
        self
    }

    /// Without values.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub change: WatchChange,
    /// Where to resume once this event has been dealt with; `None` in the middle of a listing, and after a reset until
    /// the next change.
    pub token: Option<WatchToken>,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchChange {
    /// The key has this winner now.
    Put(WatchPut),
    /// `get` finds nothing at the key now.
    Deleted(Key),
    /// The initial listing is complete; what follows are changes.
    Listed,
    /// Changes were missed: forget what was told and list again. What follows are changes from now on.
    Reset,
}

/// A key's winner, as `get` returns it.
#[derive(Clone, PartialEq, Eq)]
pub struct WatchPut {
    /// The key.
    pub key: Key,
    /// The block that put it.
    pub dot: Dot,
    /// That block's stamp.
    pub stamp: Stamp,
    /// How many values are alive at the key.
    pub siblings: usize,
    /// Length of the value in bytes.
    pub len: u32,
    /// The value; `None` when the watch leaves values out, and when it has more than
    /// [`crate::limits::MAX_WATCH_VALUE_BYTES`]: then `get` has it.
    pub value: Option<Bytes>,
}

impl fmt::Debug for WatchPut {
    // Values never appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchPut({}, {} bytes, {})", self.key, self.len, self.dot)
    }
}

/// Why a watch could not begin, or ended.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The log does not reach back to the token, or the token is from elsewhere: list, and watch from there.
    #[error("the log does not reach back to {token}; list again")]
    TooOld {
        /// The token.
        token: WatchToken,
    },
    /// Too many watchers are open.
    #[error("{MAX_WATCHERS} watchers are open, which is the limit; try again later")]
    TooManyWatchers {
        /// The limit.
        limit: usize,
    },
    /// The database was closed, or could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
