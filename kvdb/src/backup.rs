//! Backups of a running node, and restoring them.
//!
//! A backup is a copy of every data directory's files at one moment each, named by their hashes in a directory of their own,
//! so that the next one copies only what is new. Files of a store never change once they are written, so that a moment is a
//! set of hard links (RocksDB's checkpoint), and writes go on.

mod manifest;
mod restore;
mod target;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::clock::wall_time;
use crate::identity;
use crate::limits::BACKUPS_KEPT;
use crate::node::Node;
use crate::shards::Shard;
use crate::store::STORE_FORMAT;

pub use manifest::BACKUP_FORMAT;
use manifest::{Hash, Manifest, StoredFile, StoredShard};
pub use restore::{BackupVerified, RestoreOptions, restore, verify};
use target::{Target, failed, tail};

/// Where the files of the moment are linked, in each data directory.
const VIEW: &str = "backup-view";
/// In a directory that is being restored.
pub(crate) const RESTORING: &str = "kvdb.restoring";

/// How to back up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupOptions {
    /// Backups that are kept in the directory, this one included; at least 1. Default 7.
    pub keep: usize,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self { keep: BACKUPS_KEPT }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupProgress {
    /// Bytes done; those that were there already count.
    pub bytes: u64,
    /// Bytes of the whole.
    pub of: u64,
}

/// A backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupInfo {
    /// Its number in its directory; later ones have greater ones.
    pub number: u64,
    /// When it was taken, in Unix milliseconds.
    pub taken_ms: u64,
    /// The node.
    pub peer_id: String,
    /// The data directories of the node, its home first.
    pub directories: Vec<PathBuf>,
    /// Files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that had to be copied for it; 0 when it is read.
    pub copied: u64,
}

/// Why a backup could not be made, read or restored. Earlier backups in the directory are as they were.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The directory has files in it, but no backups.
    #[error("the directory {path:?} is not empty and holds no backups; choose another one")]
    NotABackup {
        /// The directory.
        path: PathBuf,
    },
    /// The backups are of another format.
    #[error("the backups in {path:?} are of another format, {found:?}; this program knows format {BACKUP_FORMAT}")]
    OtherFormat {
        /// The directory.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// Another backup is being made, by this node or in this directory.
    #[error("another backup is under way ({path:?})")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A data directory of the node could not be opened: a backup without it would push out those that have it.
    #[error("{directory:?} could not be opened, and a backup needs all data directories: {cause}")]
    Unavailable {
        /// The directory.
        directory: PathBuf,
        /// Why.
        cause: String,
    },
    /// The node is closed.
    #[error("the node is closed")]
    Closed,
    /// The store could not write down its moment.
    #[error("the store: {cause}")]
    Store {
        /// The failure.
        cause: String,
    },
    /// A file cannot be read or written; the disk is full, for example.
    #[error("{path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It was given up.
    #[error("given up")]
    GivenUp,
    /// The directory to restore into has something in it.
    #[error("the directory {path:?} is not empty; a backup is restored into an empty one")]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// As many directories must be given as the backup has.
    #[error("the backup has {} data directories ({stored:?}), {given} were given; each needs one", stored.len())]
    Directories {
        /// Those of the node that was backed up.
        stored: Vec<PathBuf>,
        /// How many were given.
        given: usize,
    },
    /// A part of the backup is not what it was.
    #[error("the backup is damaged: {what}")]
    Damaged {
        /// Which part.
        what: String,
    },
    /// There is no backup of that number, or none at all.
    #[error("there is no such backup; there are {numbers:?}")]
    NoSuchBackup {
        /// Those that there are.
        numbers: Vec<u64>,
    },
}

fn info(number: u64, manifest: &Manifest) -> BackupInfo {
    let (files, bytes) = manifest.files().fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.len));
    let directories = manifest.shards.iter().map(|shard| shard.directory.clone()).collect();
    let (taken_ms, peer_id) = (manifest.taken, manifest.peer.clone());
    BackupInfo { number, taken_ms, peer_id, directories, files, bytes, copied: 0 }
}

/// Tells the thread that nobody waits any more.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Node {
    /// Makes a backup of every data directory, and of the identity, in a directory of backups, which is made if it is empty
    /// or not there. Reads and writes go on meanwhile. Each data directory is of one moment; databases in different ones are
    /// of different moments, which differ by less than the backup takes. What was answered before the call is in it.
    ///
    /// The identity is a secret: so is the backup.
    ///
    /// # Errors
    /// See [`BackupError`]. Earlier backups are as they were.
    ///
    /// # Durability
    /// On disk when this returns. Whenever the process ends, earlier backups are whole.
    ///
    /// # Cancel safety
    /// Dropping the future gives it up after the piece under way.
    pub async fn backup(
        &self,
        to: &Path,
        options: &BackupOptions,
        mut progress: impl FnMut(BackupProgress) + Send + 'static,
    ) -> Result<BackupInfo, BackupError> {
        let (node, to, keep) = (self.clone(), to.to_owned(), options.keep.max(1));
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        let still = Arc::clone(&wanted.0);
        let task = tokio::task::spawn_blocking(move || {
            let mut told = |at| {
                progress(at);
                if still.load(Ordering::Acquire) { Ok(()) } else { Err(BackupError::GivenUp) }
            };
            let Ok(_one) = node.inner().backup.try_lock() else { return Err(BackupError::Busy { path: to }) };
            back_up(&node, &to, keep, &mut told)
        });
        task.await.map_err(|error| BackupError::Store { cause: error.to_string() })?
    }
}

fn back_up(
    node: &Node,
    to: &Path,
    keep: usize,
    told: &mut dyn FnMut(BackupProgress) -> Result<(), BackupError>,
) -> Result<BackupInfo, BackupError> {
    let shards = &node.inner().shards;
    if let Some(lost) = shards.status().into_iter().find(|shard| shard.unavailable.is_some()) {
        return Err(BackupError::Unavailable { directory: lost.directory, cause: lost.unavailable.unwrap_or_default() });
    }
    let target = Target::create(to)?;
    // What a backup has left that did not end.
    target.prune(usize::MAX)?;
    let manifests = target.manifests()?;
    let before = Before::of(manifests.values().next_back().and_then(Option::as_ref));
    let mut views = Vec::new();
    for shard in shards.all() {
        views.push((shard, View::open(shard)?));
    }
    let of = views.iter().flat_map(|(_, view)| &view.files).map(|(_, len)| len).sum();
    let mut copying = Copying { target: &target, before: &before, bytes: 0, of, copied: 0, told };
    let mut stored = Vec::new();
    for (shard, view) in &views {
        let files = view.files.iter().map(|(name, len)| copying.file(shard, &view.path, name, *len));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        stored.push(StoredShard { store: shard.id, format: STORE_FORMAT, directory: shard.directory.clone(), files });
    }
    let copied = copying.copied;
    let home = identity::path(shards.home());
    let identity = target.take_in(File::open(&home).map_err(failed(&home))?, &mut |_| Ok(()))?;
    let manifest = Manifest { taken: wall_time().0, peer: node.peer_id().to_string(), identity, shards: stored };
    let number = target.add(&manifest)?;
    target.prune(keep)?;
    Ok(BackupInfo { copied, ..info(number, &manifest) })
}

/// The files of a store at one moment, until it is dropped.
struct View {
    path: PathBuf,
    files: Vec<(String, u64)>,
}

impl View {
    fn open(shard: &Shard) -> Result<Self, BackupError> {
        let path = shard.directory.join(VIEW);
        remove(&path)?;
        let mut view = Self { path: path.clone(), files: Vec::new() };
        shard.read(|store| store.checkpoint(&path)).map_err(|error| match error {
            crate::ReadError::Closed => BackupError::Closed,
            error => BackupError::Store { cause: error.to_string() },
        })?;
        for entry in fs::read_dir(&path).map_err(failed(&path))? {
            let entry = entry.map_err(failed(&path))?;
            let len = entry.metadata().map_err(failed(&path))?.len();
            let name =
                entry.file_name().into_string().map_err(|name| BackupError::Damaged { what: format!("{}", name.display()) })?;
            view.files.push((name, len));
        }
        view.files.sort();
        Ok(view)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // The next backup, or the next start, removes it if this does not.
        let _ = remove(&self.path);
    }
}

/// Removes what a backup has left in a data directory.
fn remove(path: &Path) -> Result<(), BackupError> {
    for path in [path.to_owned(), path.with_extension("tmp")] {
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Start-up: links of a backup that did not end would keep the space of files that are not needed any more.
pub(crate) fn clean(directory: &Path) {
    let _ = remove(&directory.join(VIEW));
}

/// The files of the last backup, by what tells them apart.
struct Before<'a>(BTreeMap<(crate::store::StoreId, &'a str, u64), (Hash, Hash)>);

impl<'a> Before<'a> {
    fn of(manifest: Option<&'a Manifest>) -> Self {
        let shards = manifest.into_iter().flat_map(|manifest| &manifest.shards);
        let files = shards.flat_map(|shard| shard.files.iter().map(|file| (shard.store, file)));
        Self(files.map(|(store, file)| ((store, file.name.as_str(), file.len), (file.tail, file.hash))).collect())
    }
}

struct Copying<'a> {
    target: &'a Target,
    before: &'a Before<'a>,
    bytes: u64,
    of: u64,
    copied: u64,
    told: &'a mut dyn FnMut(BackupProgress) -> Result<(), BackupError>,
}

impl Copying<'_> {
    /// Takes in one file, unless the last backup has it. A file of a store has the number of no other, but an older image of
    /// the directory may have been put in its place: then its last bytes, with what was written when, are others.
    fn file(&mut self, shard: &Shard, view: &Path, name: &str, len: u64) -> Result<StoredFile, BackupError> {
        let path = view.join(name);
        let tail = tail(&path, len)?;
        if let Some((same, hash)) = self.before.0.get(&(shard.id, name, len))
            && *same == tail
            && self.target.has(*hash, len)
        {
            self.bytes += len;
            (self.told)(BackupProgress { bytes: self.bytes, of: self.of })?;
            return Ok(StoredFile { hash: *hash, len, tail, name: name.to_owned() });
        }
        let from = File::open(&path).map_err(failed(&path))?;
        let mut each = |piece| {
            self.bytes += piece;
            self.copied += piece;
            (self.told)(BackupProgress { bytes: self.bytes, of: self.of })
        };
        let (hash, copied) = self.target.take_in(from, &mut each)?;
        if copied != len {
            return Err(BackupError::Damaged { what: format!("{name} changed while it was copied") });
        }
        Ok(StoredFile { hash, len, tail, name: name.to_owned() })
    }
}
