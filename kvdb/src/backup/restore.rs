//! Making data directories from a backup, and checking backups.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::manifest::{Hash, Manifest};
use super::target::{Target, copy, failed, hash_of};
use super::{BackupError, BackupInfo, BackupProgress, RESTORING};
use crate::identity;
use crate::shards::store_path;
use crate::store::{RocksStore, STORE_FORMAT};

/// How to restore.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreOptions {
    /// Which backup; the last one unless set.
    pub number: Option<u64>,
    /// Restore the node's identity as well. Only for a node that is gone: two nodes with one identity at the same time
    /// take each other's connections. Else the restored node gets an identity of its own at its first start.
    pub keep_identity: bool,
}

/// What is wrong with a directory of backups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackupVerified {
    /// The backups that say what they need, in the order in which they were taken.
    pub backups: Vec<BackupInfo>,
    /// Files looked at, each once.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is damaged or missing.
    pub damages: Vec<String>,
}

/// Restores a backup into directories that are empty or not there: as many as it has data directories, the first one being
/// the node's home. Every file is checked by its hash. The stores get new ids: each is another copy from now on, joins like a
/// node that was away, and writes under new names. Blocks the thread.
///
/// # Errors
/// See [`BackupError`]. What was begun is refused by [`crate::Node::open`], and begun anew by another restore into the same
/// directories.
///
/// # Durability
/// On disk when this returns.
pub fn restore(
    backup: &Path,
    directories: &[PathBuf],
    options: &RestoreOptions,
    progress: &mut dyn FnMut(BackupProgress),
) -> Result<BackupInfo, BackupError> {
    let target = Target::read(backup)?;
    let (number, manifest) = choose(&target, options.number)?;
    if manifest.shards.len() != directories.len() {
        let stored = manifest.shards.iter().map(|shard| shard.directory.clone()).collect();
        return Err(BackupError::Directories { stored, given: directories.len() });
    }
    if let Some(newer) = manifest.shards.iter().map(|shard| shard.format).find(|format| *format > STORE_FORMAT) {
        return Err(BackupError::OtherFormat { path: backup.to_owned(), found: format!("store {newer}") });
    }
    directories.iter().try_for_each(|directory| begin(directory))?;
    let of = manifest.files().map(|file| file.len).sum();
    let mut bytes = 0;
    for (shard, directory) in manifest.shards.iter().zip(directories) {
        let store = store_path(directory);
        fs::create_dir_all(&store).map_err(failed(&store))?;
        for file in &shard.files {
            let mut each = |piece| {
                bytes += piece;
                progress(BackupProgress { bytes, of });
                Ok(())
            };
            put_back(&target, (file.hash, file.len), &store.join(&file.name), &mut each)?;
        }
        // Names and all, and then the word that makes a store of it.
        RocksStore::mark_restored(&store, shard.format).map_err(|source| BackupError::Store { cause: source.to_string() })?;
    }
    if let (true, Some(home)) = (options.keep_identity, directories.first()) {
        put_back(&target, manifest.identity, &identity::path(home), &mut |_| Ok(()))?;
    }
    // The home's last: as long as it is there no node starts.
    for directory in directories.iter().rev() {
        let sync = || {
            File::open(directory)?.sync_all()?;
            fs::remove_file(directory.join(RESTORING))?;
            File::open(directory)?.sync_all()
        };
        sync().map_err(failed(directory))?;
    }
    Ok(super::info(number, &manifest))
}

/// Checks every file that a backup in a directory needs. Blocks the thread for as long as reading them takes.
///
/// # Errors
/// When the directory cannot be read or has no backups; what is damaged is no error.
pub fn verify(backup: &Path, progress: &mut dyn FnMut(BackupProgress)) -> Result<BackupVerified, BackupError> {
    let target = Target::read(backup)?;
    let mut verified = BackupVerified::default();
    let mut needed: BTreeMap<Hash, (u64, u64)> = BTreeMap::new();
    for (number, manifest) in target.manifests()? {
        let Some(manifest) = manifest else {
            verified.damages.push(format!("what backup {number} says of itself is damaged"));
            continue;
        };
        needed.extend(manifest.objects().map(|(hash, len)| (hash, (len, number))));
        verified.backups.push(super::info(number, &manifest));
    }
    let of = needed.values().map(|(len, _)| len).sum();
    for (hash, (len, number)) in needed {
        let wrong = match hash_of(&target.object(hash)) {
            Ok(found) if found == (hash, len) => None,
            Ok(_) => Some("is not what it was".to_owned()),
            Err(error) => Some(format!("cannot be read: {error}")),
        };
        verified.damages.extend(wrong.map(|wrong| format!("the file {hash} of backup {number} {wrong}")));
        verified.files += 1;
        verified.bytes += len;
        progress(BackupProgress { bytes: verified.bytes, of });
    }
    Ok(verified)
}

fn choose(target: &Target, number: Option<u64>) -> Result<(u64, Manifest), BackupError> {
    let mut manifests = target.manifests()?;
    let number = number.or_else(|| manifests.last_key_value().map(|(last, _)| *last));
    let found = number.and_then(|number| Some((number, manifests.remove(&number)?)));
    match found {
        Some((number, Some(manifest))) => Ok((number, manifest)),
        Some((number, None)) => Err(BackupError::Damaged { what: format!("what backup {number} says of itself") }),
        None => Err(BackupError::NoSuchBackup { numbers: manifests.into_keys().collect() }),
    }
}

/// Marks a directory as one that is being restored. It must be empty, or hold what a restore has left that did not end.
fn begin(directory: &Path) -> Result<(), BackupError> {
    let (marker, io) = (directory.join(RESTORING), failed(directory));
    let begin = || {
        fs::create_dir_all(directory)?;
        if !marker.exists() && fs::read_dir(directory)?.next().is_some() {
            return Ok(false);
        }
        File::create(&marker)?.sync_all()?;
        for left in [store_path(directory), identity::path(directory)] {
            match if left.is_dir() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) } {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        File::open(directory)?.sync_all()?;
        Ok(true)
    };
    match begin() {
        Ok(true) => Ok(()),
        Ok(false) => Err(BackupError::NotEmpty { path: directory.to_owned() }),
        Err(error) => Err(io(error)),
    }
}

/// Copies an object to its place, and checks it.
fn put_back(
    target: &Target,
    (hash, len): (Hash, u64),
    to: &Path,
    each: &mut dyn FnMut(u64) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let object = target.object(hash);
    let mut from = File::open(&object).map_err(failed(&object))?;
    if copy(&mut from, to, each)? != (hash, len) {
        return Err(BackupError::Damaged { what: format!("the file {hash}") });
    }
    Ok(())
}
