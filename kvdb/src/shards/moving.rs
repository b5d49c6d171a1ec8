//! Moving a database to another data directory of a node that does not run.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crdt::DatabaseName;
use thiserror::Error;

use super::notes::{Noted, Notes, Place};
use super::open::Stores;
use crate::error::OpenError;
use crate::options::NodeOptions;
use crate::store::{RocksStore, StoreError};

/// How far a move has come. A process that ends after any of these leaves the database whole in one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoveStep {
    /// So many bytes are copied.
    Copying(u64),
    /// Copied and compared, but still served from where it was.
    Compared,
    /// In both directories; from now on it is served from the new one.
    Arrived,
    /// The notes know of its new place.
    Noted,
    /// In the new directory only.
    Left,
    /// What it left behind is removed.
    Removed,
}

/// What a move did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Where it was.
    pub from: PathBuf,
    /// Bytes of records copied; 0 if it was there already.
    pub bytes: u64,
}

/// Why a database was not moved.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MoveError {
    /// A directory cannot be opened; a running node has it open, most likely.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// One of the node's directories could not be opened.
    #[error("{directory:?} cannot be opened: {cause}")]
    Unavailable {
        /// The directory.
        directory: PathBuf,
        /// Why.
        cause: String,
    },
    /// It is in none of the directories.
    #[error("there is no database {0}")]
    NotFound(DatabaseName),
    /// The target is none of the node's directories.
    #[error("{0:?} is not one of the node's data directories")]
    NotADirectory(PathBuf),
    /// A store cannot be read or written. The database is whole in one of the directories.
    #[error("cannot move: {0}")]
    Store(#[from] StoreError),
    /// The notes cannot be written. The database is in both directories, and will be in the new one only after the next start.
    #[error("cannot note the new place: {0}")]
    Notes(std::io::Error),
    /// The caller gave up. The database is whole in one of the directories.
    #[error("given up")]
    GivenUp,
}

/// Moves a database to another data directory of a node that does not run: rows, history, floors, requests and what expires.
/// Nothing that can be read changes. `step` is told how far it is, and may give up. Blocks the thread.
///
/// # Errors
/// See [`MoveError`].
///
/// # Durability
/// On disk when this returns. Whenever the process ends, the database is whole in exactly one directory after the next start.
pub fn move_database(
    options: &NodeOptions,
    name: &DatabaseName,
    to: &Path,
    step: &mut dyn FnMut(MoveStep) -> ControlFlow<()>,
) -> Result<Moved, MoveError> {
    let stores = Stores::open(&options.data_dir, &options.directories, &options.store)?;
    if let Some(lost) = stores.lost.first() {
        return Err(MoveError::Unavailable { directory: lost.directory.clone(), cause: lost.cause.clone() });
    }
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let target = stores.open.iter().find(|(directory, _)| real(directory) == real(to));
    let (_, target) = target.ok_or_else(|| MoveError::NotADirectory(to.to_owned()))?;
    let mut found = None;
    for (directory, store) in &stores.open {
        if let Some(record) = store.find_database(name)? {
            found = Some((directory, store, record));
            break;
        }
    }
    let (from, source, record) = found.ok_or_else(|| MoveError::NotFound(name.clone()))?;
    let mut moved = Moved { from: from.clone(), bytes: 0 };
    if source.id() == target.id() {
        return Ok(moved);
    }
    let mut copying = |bytes| {
        moved.bytes = bytes;
        step(MoveStep::Copying(bytes))
    };
    let copied = target.copy_from(source, &record, &mut copying)?.ok_or(MoveError::GivenUp)?;
    let mut after = |at| if step(at).is_break() { Err(MoveError::GivenUp) } else { Ok(()) };
    after(MoveStep::Compared)?;
    let arrived = target.arrive(&copied)?;
    after(MoveStep::Arrived)?;
    if let Some(mut notes) = known_places(&stores)? {
        let place = Place { store: target.id(), generation: record.generation, live: true };
        // Before it is gone from where it was: what the notes do not know could be made twice.
        notes.add(name, &place).map_err(MoveError::Notes)?;
    }
    after(MoveStep::Noted)?;
    source.give_up(&arrived)?;
    after(MoveStep::Left)?;
    target.end_arrival(&arrived)?;
    source.remove_dropped()?;
    after(MoveStep::Removed)?;
    Ok(moved)
}

/// The notes, written anew as the catalogues are.
fn known_places(stores: &Stores) -> Result<Option<Notes>, MoveError> {
    let known = Noted::of_stores(stores.open.iter().map(|(directory, store)| (directory.as_path(), store)))?;
    if stores.open.len() == 1 {
        return Ok(None);
    }
    Notes::write(&stores.home, &known).map(Some).map_err(MoveError::Notes)
}

/// Start-up: a move that ended after the arrival goes to its end.
pub(super) fn finish(open: &[(PathBuf, RocksStore)]) -> Result<(), (PathBuf, StoreError)> {
    for (directory, store) in open {
        let failed = |error| (directory.clone(), error);
        for arrived in store.arrived().map_err(failed)? {
            // A source that is not here may come back, with its copy.
            let Some((at, source)) = open.iter().find(|(_, source)| source.id() == arrived.from()) else { continue };
            source.give_up(&arrived).map_err(|error| (at.clone(), error))?;
            store.end_arrival(&arrived).map_err(failed)?;
            tracing::info!(name = %arrived.name(), directory = %directory.display(), "a move was finished");
        }
    }
    Ok(())
}
