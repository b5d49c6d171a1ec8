//! The data directories of a node: a store and an engine in each, and which database lives where.
//!
//! A database is in one of them and stays there, so that no listing merges and no compaction stalls another's writers. A
//! name is looked up in the catalogues, the first directory first; a directory that cannot be opened takes its databases
//! away and nothing else (`notes`).

mod moving;
mod notes;
mod open;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crdt::{DatabaseId, DatabaseName, Digest, Meta};

use crate::backend::StoreSlot;
use crate::engine::EngineHandle;
use crate::engine::port::WriteError;
use crate::error::{ReadError, read_error};
use crate::limits::SHARD_LOAD_BYTES;
use crate::node::{DatabaseInfo, ShardStatus};
use crate::store::{DatabaseRecord, DiskUse, RocksStore, StoreError, StoreId};

pub use moving::{MoveError, MoveStep, Moved, move_database};
pub(crate) use notes::{escape, unescape};
pub(crate) use open::{Stores, store_path};

use notes::{Noted, Notes, Place};

/// One data directory with its store and engine.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) directory: PathBuf,
    pub(crate) id: StoreId,
    pub(crate) store: StoreSlot,
    pub(crate) engine: EngineHandle<RocksStore>,
}

/// A data directory that could not be opened.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    directory: PathBuf,
    id: StoreId,
    cause: String,
    /// What lived there by the notes.
    places: BTreeMap<DatabaseName, Place>,
}

/// All data directories of a node.
#[derive(Debug)]
pub(crate) struct Shards {
    /// At least one.
    open: Vec<Arc<Shard>>,
    lost: Vec<Lost>,
    /// Names that are in an earlier directory too, where they are served from; by the place in `open`.
    shadowed: BTreeSet<(usize, DatabaseName)>,
    home: PathBuf,
    /// Held while a database is made or dropped; `None` with one directory only, which keeps none.
    notes: Mutex<Option<Notes>>,
}

/// Why a name cannot be looked up or made.
#[derive(Debug, Clone)]
pub(crate) enum PlaceError {
    /// It lives in a directory that could not be opened.
    Unavailable { directory: PathBuf, cause: String },
    /// A store cannot be read or written.
    Read(ReadError),
    /// The notes cannot be written.
    Notes(String),
}

impl From<ReadError> for PlaceError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}

impl Shard {
    /// Reads from the store.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&RocksStore) -> Result<T, StoreError>) -> Result<T, ReadError> {
        self.store.read(|store| read(store).map_err(|error| read_error(&error)))
    }

    /// What decides where a new database goes: bytes in coarse steps, so that what is still in memory, or in the log, does
    /// not send all new ones to one place; then the number of databases.
    fn load(&self) -> Result<(u64, usize), ReadError> {
        self.read(|store| {
            let DiskUse { live, history, .. } = store.disk_use()?;
            Ok(((live + history) / SHARD_LOAD_BYTES, store.count()))
        })
    }
}

impl Shards {
    /// The first data directory, which has the identity.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn all(&self) -> &[Arc<Shard>] {
        &self.open
    }

    /// Where an open database is.
    pub(crate) fn of(&self, database: &DatabaseId) -> Option<&Arc<Shard>> {
        match self.open.as_slice() {
            [only] => Some(only),
            all => all.iter().find(|shard| shard.engine.shared(database).is_some()),
        }
    }

    /// Databases that are open.
    pub(crate) fn open_databases(&self) -> Vec<DatabaseId> {
        self.open.iter().flat_map(|shard| shard.engine.open_databases()).collect()
    }

    /// Where a name is, if it is anywhere. A store that cannot read is told only if no other has the name.
    pub(crate) fn find(&self, name: &DatabaseName) -> Result<Option<(Arc<Shard>, DatabaseRecord)>, PlaceError> {
        let mut failed = None;
        for (at, shard) in self.open.iter().enumerate() {
            match shard.read(|store| store.find_database(name)) {
                Ok(Some(record)) if !self.is_shadowed(at, name) => return Ok(Some((Arc::clone(shard), record))),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        if let Some(lost) = self.lost.iter().find(|lost| lost.places.contains_key(name)) {
            return Err(PlaceError::Unavailable { directory: lost.directory.clone(), cause: lost.cause.clone() });
        }
        failed.map_or(Ok(None), |error| Err(error.into()))
    }

    /// The generation that a name has, or else the first that it can have.
    pub(crate) fn generation(&self, name: &DatabaseName) -> Result<u64, PlaceError> {
        match self.find(name)? {
            Some((_, record)) => Ok(record.generation),
            None => Ok(self.next_generation(name)?),
        }
    }

    fn next_generation(&self, name: &DatabaseName) -> Result<u64, ReadError> {
        let next = |shard: &Arc<Shard>| shard.read(|store| store.next_generation(name));
        self.open.iter().map(next).try_fold(0, |greatest, next| Ok(greatest.max(next?)))
    }

    /// Where a name is; made in the least loaded directory if it is nowhere, in a generation not below `at_least`. One caller
    /// at a time.
    pub(crate) fn find_or_make(&self, name: &DatabaseName, at_least: u64) -> Result<(Arc<Shard>, DatabaseRecord), PlaceError> {
        if let Some(found) = self.find(name)? {
            return Ok(found);
        }
        let mut notes = self.notes();
        let generation = self.next_generation(name)?.max(at_least);
        let shard = self.least_loaded()?;
        if let Some(notes) = notes.as_mut() {
            self.renew(notes)?;
            // Before it is made: what the notes do not know could be made twice.
            let place = Place { store: shard.id, generation, live: true };
            notes.add(name, &place).map_err(|error| PlaceError::Notes(error.to_string()))?;
        }
        let record = shard.read(|store| store.open_generation(name, generation))?;
        Ok((shard, record))
    }

    /// Drops a name from a store, which the engine must not have open, or only lets go of this copy, so that no generation ends
    /// by it. One caller at a time.
    pub(crate) fn unlink(&self, shard: &Shard, name: &DatabaseName, drop: bool) -> Result<(), PlaceError> {
        let dropped = shard.read(|store| if drop { store.drop_database(name) } else { store.remove_database(name) })?;
        let mut notes = self.notes();
        if let (Some(notes), Some(record)) = (notes.as_mut(), dropped) {
            let place = Place { store: shard.id, generation: record.generation + u64::from(drop), live: false };
            // It is dropped whatever the notes say: at worst its name is refused while that directory cannot be opened.
            if let Err(error) =
                self.renew(notes).and_then(|()| notes.add(name, &place).map_err(|error| PlaceError::Notes(error.to_string())))
            {
                tracing::warn!(%name, ?error, "the notes of the data directories do not know that a database was dropped");
            }
        }
        Ok(())
    }

    /// The one to which a new database goes: not one that refuses writes, unless all do.
    fn least_loaded(&self) -> Result<Arc<Shard>, ReadError> {
        if let [only] = self.open.as_slice() {
            return Ok(Arc::clone(only));
        }
        let mut loads = Vec::new();
        for (at, shard) in self.open.iter().enumerate() {
            let (bytes, databases) = shard.load()?;
            loads.push((shard.engine.poison().is_some(), bytes, databases, at));
        }
        let least = loads.into_iter().min().and_then(|(.., at)| self.open.get(at));
        least.map(Arc::clone).ok_or(ReadError::Closed)
    }

    /// Up to `limit` databases after a name, in order of name over all directories; those that cannot be opened included.
    pub(crate) fn databases_after(&self, after: Option<&DatabaseName>, limit: usize) -> Result<Vec<DatabaseInfo>, ReadError> {
        let mut all: BTreeMap<DatabaseName, DatabaseInfo> = BTreeMap::new();
        for lost in &self.lost {
            let later = |name: &&DatabaseName| after.is_none_or(|after| *name > after);
            let live = lost.places.iter().filter(|(_, place)| place.live);
            for (name, place) in live.filter(|(name, _)| later(name)).take(limit) {
                all.insert(name.clone(), lost.info(name, place));
            }
        }
        for (at, shard) in self.open.iter().enumerate() {
            let open: BTreeSet<DatabaseId> = shard.engine.open_databases().into_iter().collect();
            let infos = shard.read(|store| {
                let records = store.databases_after(after, limit)?.into_iter();
                let served = records.filter(|record| !self.is_shadowed(at, &record.name));
                served.map(|record| shard.info(store, record, &open)).collect::<Result<Vec<_>, _>>()
            })?;
            all.extend(infos.into_iter().map(|info| (info.name.clone(), info)));
        }
        Ok(all.into_values().take(limit).collect())
    }

    fn is_shadowed(&self, at: usize, name: &DatabaseName) -> bool {
        !self.shadowed.is_empty() && self.shadowed.contains(&(at, name.clone()))
    }

    /// What uses the disks.
    pub(crate) fn disk_use(&self) -> Result<DiskUse, ReadError> {
        let mut sum = DiskUse::default();
        for shard in &self.open {
            let DiskUse { live, history, engine } = shard.read(RocksStore::disk_use)?;
            sum = DiskUse { live: sum.live + live, history: sum.history + history, engine: sum.engine + engine };
        }
        Ok(sum)
    }

    /// Every directory and how it is.
    pub(crate) fn status(&self) -> Vec<ShardStatus> {
        let open = self.open.iter().map(|shard| ShardStatus {
            directory: shard.directory.clone(),
            store_id: shard.id,
            open_databases: shard.engine.open_databases().len(),
            poisoned: shard.engine.poison(),
            unavailable: None,
        });
        let lost = self.lost.iter().map(|lost| ShardStatus {
            directory: lost.directory.clone(),
            store_id: lost.id,
            open_databases: 0,
            poisoned: None,
            unavailable: Some(lost.cause.clone()),
        });
        open.chain(lost).collect()
    }

    /// Why a store refuses writes, if one does.
    pub(crate) fn poison(&self) -> Option<String> {
        let several = self.open.len() > 1;
        self.open.iter().find_map(|shard| {
            let cause = shard.engine.poison()?;
            Some(if several { format!("in {}: {cause}", shard.directory.display()) } else { cause })
        })
    }

    /// Bytes that wait for the engines.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.open.iter().map(|shard| shard.engine.waiting_bytes()).sum()
    }

    /// Ids of dropped generations that peers may still offer.
    pub(crate) fn dropped(&self) -> Result<Vec<DatabaseId>, ReadError> {
        let ids = self.open.iter().map(|shard| shard.read(RocksStore::dropped)).collect::<Result<Vec<_>, _>>()?;
        Ok(ids.concat())
    }

    /// Finishes what waits, syncs, and ends the engines.
    pub(crate) async fn close(&self) -> Result<(), WriteError> {
        let mut closed = Ok(());
        for shard in &self.open {
            closed = closed.and(shard.engine.close().await);
        }
        closed
    }

    /// As [`Shards::close`]; blocks meanwhile, and lets go of the directories.
    pub(crate) fn stop(&self) {
        for shard in &self.open {
            shard.engine.stop();
        }
        self.release();
    }

    /// Lets go of the directories once nobody reads.
    pub(crate) fn release(&self) {
        for shard in &self.open {
            shard.store.release();
        }
    }

    fn notes(&self) -> MutexGuard<'_, Option<Notes>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the notes anew when they have become long, or when a line could not be added.
    fn renew(&self, notes: &mut Notes) -> Result<(), PlaceError> {
        if notes.is_long() {
            let known = Noted::gather(&self.open, &self.lost)?;
            *notes = Notes::write(&self.home, &known).map_err(|error| PlaceError::Notes(error.to_string()))?;
        }
        Ok(())
    }
}

impl Shard {
    fn info(&self, store: &RocksStore, record: DatabaseRecord, open: &BTreeSet<DatabaseId>) -> Result<DatabaseInfo, StoreError> {
        let Meta { keys, digest, revision, .. } = store.meta(&record.id)?;
        let DatabaseRecord { name, id, generation, .. } = record;
        let directory = self.directory.clone();
        Ok(DatabaseInfo { open: open.contains(&id), name, id, generation, keys, digest, revision, directory, unavailable: None })
    }
}

impl Lost {
    fn info(&self, name: &DatabaseName, place: &Place) -> DatabaseInfo {
        DatabaseInfo {
            name: name.clone(),
            id: DatabaseId::of(name, place.generation),
            generation: place.generation,
            open: false,
            keys: 0,
            digest: Digest::default(),
            revision: 0,
            directory: self.directory.clone(),
            unavailable: Some(self.cause.clone()),
        }
    }
}

impl Noted {
    /// What the catalogues say, and of what cannot be opened what was noted before.
    fn gather(open: &[Arc<Shard>], lost: &[Lost]) -> Result<Self, ReadError> {
        let stores = open.iter().map(|shard| Ok((shard.directory.as_path(), shard.store.read(|store| Ok(store.clone()))?)));
        let stores = stores.collect::<Result<Vec<_>, ReadError>>()?;
        let all = Self::of_stores(stores.iter().map(|(directory, store)| (*directory, store)));
        let mut known = all.map_err(|error| read_error(&error))?;
        for lost in lost {
            known.stores.push((lost.id, lost.directory.clone()));
            for (name, place) in &lost.places {
                let here = known.places.get(name);
                // One that is served counts where it is; of one that was dropped here too the later generation does.
                if here.is_none_or(|here| !here.live && (place.live || place.generation > here.generation)) {
                    known.places.insert(name.clone(), *place);
                }
            }
        }
        Ok(known)
    }

    /// What the catalogues of stores say. Of a name in several the first one counts.
    fn of_stores<'a>(stores: impl DoubleEndedIterator<Item = (&'a Path, &'a RocksStore)>) -> Result<Self, StoreError> {
        let mut known = Self::default();
        for (directory, opened) in stores.rev() {
            let store = opened.id();
            known.stores.push((store, directory.to_owned()));
            for (name, generation) in opened.generations()? {
                let is_known = known.places.get(&name).is_some_and(|place| place.live || place.generation >= generation);
                if !is_known {
                    known.places.insert(name, Place { store, generation, live: false });
                }
            }
            for record in opened.databases()? {
                known.places.insert(record.name, Place { store, generation: record.generation, live: true });
            }
        }
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use crdt::{Change, Durability, Ed25519Signer, Key, LocalOp};

    use super::*;
    use crate::store::StoreOptions;

    fn put(key: &str) -> Vec<LocalOp> {
        let change = Change::Put { value: "v".into(), expiry: None };
        vec![LocalOp::new(Key::parse(key).unwrap(), change)]
    }

    #[tokio::test]
    async fn a_store_that_refuses_writes_leaves_the_others_serving_and_gets_no_new_databases() {
        let dir = tempfile::tempdir().unwrap();
        let (home, other) = (dir.path().join("a"), dir.path().join("b"));
        let stores = Stores::open(&home, std::slice::from_ref(&other), &StoreOptions::default()).unwrap();
        let shards = stores.start(&(Arc::new(Ed25519Signer::from_seed([1; 32])) as _)).unwrap();
        let name = |text: &str| DatabaseName::parse(text).unwrap();
        let mut all = Vec::new();
        for text in ["one", "two"] {
            let (shard, record) = shards.find_or_make(&name(text), 0).unwrap();
            shard.engine.open(record.id).await.unwrap();
            all.push((shard, record.id));
        }
        assert_eq!(all.iter().map(|(shard, _)| &shard.directory).collect::<Vec<_>>(), [&home, &other]);
        let store = all[1].0.store.read(|store| Ok(store.clone())).unwrap();
        store.fail_writes("the disk failed");
        drop(store);
        for (at, (shard, id)) in all.iter().enumerate() {
            let written = shard.engine.write(*id, put("/a"), None, Durability::Sync).await;
            assert_eq!(written.is_ok(), at == 0, "{written:?}");
        }
        assert!(shards.poison().unwrap().contains(&format!("in {}", other.display())), "it says which");
        assert_eq!(shards.status().iter().map(|shard| shard.poisoned.is_some()).collect::<Vec<_>>(), [false, true]);
        for text in ["three", "four"] {
            assert_eq!(shards.find_or_make(&name(text), 0).unwrap().0.directory, home);
        }
        shards.stop();
    }
}
