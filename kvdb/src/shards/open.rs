//! Opening the data directories, each on its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crdt::Signer;

use super::moving::finish;
use super::notes::{self, Noted, Notes};
use super::{Lost, Shard, Shards};
use crate::backend::StoreSlot;
use crate::backup::{self, RESTORING};
use crate::engine::EngineHandle;
use crate::error::OpenError;
use crate::limits::MAX_SHARDS;
use crate::store::{RocksStore, StoreError, StoreId, StoreOpenError, StoreOptions};

/// The stores of a node before their engines run.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(super) home: PathBuf,
    pub(super) open: Vec<(PathBuf, RocksStore)>,
    pub(super) lost: Vec<Lost>,
    /// Whether there are notes, or must be.
    known: bool,
}

/// Where the store of a data directory is.
pub(crate) fn store_path(directory: &Path) -> PathBuf {
    directory.join("store")
}

impl Stores {
    /// Opens the store in each data directory, the first one being the node's home. A directory that was there before and
    /// cannot be opened now is left out, if another can.
    pub(crate) fn open(home: &Path, others: &[PathBuf], options: &StoreOptions) -> Result<Self, OpenError> {
        let directories: Vec<PathBuf> =
            std::iter::once(home).chain(others.iter().map(PathBuf::as_path)).map(PathBuf::from).collect();
        check(&directories)?;
        let unreadable = |reason| OpenError::Notes { path: notes::path(home), reason };
        let before = notes::read(home).map_err(unreadable)?;
        let known = before.is_some() || directories.len() > 1;
        let before = before.unwrap_or_default();
        let options = options.share(directories.len());
        let mut stores = Self { home: home.to_owned(), open: Vec::new(), lost: Vec::new(), known };
        let mut first = None;
        for directory in directories {
            let expected = before.stores.iter().find(|(_, known)| *known == directory).map(|(id, _)| *id);
            match (open_one(&directory, expected.is_some(), &options), expected) {
                (Ok(store), _) => stores.open.push((directory, store)),
                (Err(error), Some(id)) if may_heal(&error) => {
                    tracing::error!(directory = %directory.display(), %error, "a data directory cannot be opened; the others are served without it");
                    let places = before.of(id).map(|(name, place)| (name.clone(), *place)).collect();
                    stores.lost.push(Lost { directory, id, cause: error.to_string(), places });
                    first.get_or_insert(error);
                }
                (Err(error), _) => return Err(error),
            }
        }
        match first {
            Some(error) if stores.open.is_empty() => return Err(error),
            _ => stores.compare(&before)?,
        }
        finish(&stores.open).map_err(|(at, error)| damaged(&at, error))?;
        Ok(stores)
    }

    /// Every store that was there before must be there now, or be known to be lost: a directory that was taken out of the
    /// configuration, or a disk that was exchanged, is not to be taken for an empty one.
    fn compare(&self, before: &Noted) -> Result<(), OpenError> {
        let here: BTreeSet<StoreId> = self.open.iter().map(|(_, store)| store.id()).collect();
        let lost: BTreeSet<StoreId> = self.lost.iter().map(|lost| lost.id).collect();
        for (id, directory) in before.stores.iter().filter(|(id, _)| !here.contains(id) && !lost.contains(id)) {
            // A store takes another id when it was repaired, or opened in spite of a loss: it has its databases still.
            let same = self.open.iter().find(|(at, _)| at == directory);
            let mut live = before.of(*id).filter(|(_, place)| place.live);
            let all_there = same.is_some_and(|(_, store)| live.all(|(name, _)| matches!(store.has_database(name), Ok(true))));
            if !all_there {
                return Err(OpenError::MissingDirectory { directory: directory.clone(), notes: notes::path(&self.home) });
            }
        }
        Ok(())
    }

    /// Starts an engine over each store.
    pub(crate) fn start(self, signer: &Arc<dyn Signer + Send + Sync>) -> Result<Shards, OpenError> {
        let Self { home, open, lost, known } = self;
        let shadowed = if open.len() > 1 { shadowed(&open).map_err(|(at, error)| damaged(&at, error))? } else { BTreeSet::new() };
        let mut shards = Vec::new();
        for (directory, store) in open {
            let engine = EngineHandle::start(store.clone(), Arc::clone(signer)).map_err(OpenError::Thread)?;
            let (id, store) = (store.id(), StoreSlot::new(store));
            shards.push(Arc::new(Shard { directory, id, store, engine }));
        }
        let notes = if known {
            let path = notes::path(&home);
            let failed = |reason: String| OpenError::Notes { path: path.clone(), reason };
            let known = Noted::gather(&shards, &lost).map_err(|error| failed(error.to_string()));
            let written = known.and_then(|known| Notes::write(&home, &known).map_err(|error| failed(error.to_string())));
            Some(written.inspect_err(|_| shards.iter().for_each(|shard| shard.engine.stop()))?)
        } else {
            None
        };
        Ok(Shards { open: shards, lost, shadowed, home, notes: Mutex::new(notes) })
    }
}

fn damaged(directory: &Path, source: StoreError) -> OpenError {
    StoreOpenError::Damaged { path: store_path(directory), source }.into()
}

/// Whether another start may find it well; else somebody has to do something first.
fn may_heal(error: &OpenError) -> bool {
    let OpenError::Store(error) = error else { return matches!(error, OpenError::Directory { .. } | OpenError::NoStore { .. }) };
    !matches!(error, StoreOpenError::Locked { .. } | StoreOpenError::NewerFormat { .. } | StoreOpenError::NotAStore { .. })
}

fn open_one(directory: &Path, expected: bool, options: &StoreOptions) -> Result<RocksStore, OpenError> {
    let path = store_path(directory);
    if directory.join(RESTORING).exists() {
        return Err(OpenError::Unfinished { directory: directory.to_owned() });
    }
    if expected && !RocksStore::is_in(&path)? {
        return Err(OpenError::NoStore { directory: directory.to_owned() });
    }
    std::fs::create_dir_all(directory).map_err(|source| OpenError::Directory { path: directory.to_owned(), source })?;
    let store = RocksStore::open(&path, options)?;
    backup::clean(directory);
    Ok(store)
}

/// Faults that can be seen without opening anything.
fn check(directories: &[PathBuf]) -> Result<(), OpenError> {
    if directories.len() > MAX_SHARDS {
        return Err(OpenError::TooManyDirectories { count: directories.len(), limit: MAX_SHARDS });
    }
    let mut seen = BTreeSet::new();
    for directory in directories {
        let real = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.clone());
        if !seen.insert(real) {
            return Err(OpenError::SameDirectory { path: directory.clone() });
        }
    }
    Ok(())
}

/// Names that an earlier directory has too. That one serves them: nothing is removed, since nobody knows which is right.
fn shadowed(open: &[(PathBuf, RocksStore)]) -> Result<BTreeSet<(usize, crdt::DatabaseName)>, (PathBuf, StoreError)> {
    let mut first = BTreeMap::new();
    let mut shadowed = BTreeSet::new();
    for (at, (directory, store)) in open.iter().enumerate() {
        for record in store.databases().map_err(|error| (directory.clone(), error))? {
            if let Some(serving) = first.get(&record.name) {
                let serving: &PathBuf = serving;
                tracing::error!(
                    name = %record.name, directory = %directory.display(), serving = %serving.display(),
                    "a database is in two data directories; the first one is served"
                );
                shadowed.insert((at, record.name));
            } else {
                first.insert(record.name, directory.clone());
            }
        }
    }
    Ok(shadowed)
}
