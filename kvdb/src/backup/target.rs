//! The directory of backups: its files, under their hashes, and what each backup needs of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::BackupError;
use super::manifest::{HEAD, Hash, Manifest};
use crate::identity::write_synced;
use crate::limits::{BACKUP_PIECE_BYTES, BACKUP_TAIL_BYTES};

const FORMAT_FILE: &str = "kvdb-backup";
const LOCK_FILE: &str = "lock";
const OBJECTS: &str = "objects";
const BACKUPS: &str = "backups";
const DRAFT: &str = "copying.new";

/// A directory of backups, locked for as long as this lives if it is written to.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    lock: Option<File>,
}

impl Drop for Target {
    fn drop(&mut self) {
        // As for a store: a child process that is being started may have the file open.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { path, source }
}

impl Target {
    /// Opens a directory to be written to; one that is empty, or not there, becomes one of backups.
    pub(super) fn create(path: &Path) -> Result<Self, BackupError> {
        make_private(path).map_err(failed(path))?;
        let format = path.join(FORMAT_FILE);
        if !format.exists() {
            let mut entries = fs::read_dir(path).map_err(failed(path))?;
            // A draft of the format file is what a kill at the first moment leaves.
            let foreign = entries.any(|entry| entry.map_or(true, |entry| entry.file_name() != "kvdb-backup.new"));
            if foreign {
                return Err(BackupError::NotABackup { path: path.to_owned() });
            }
            write_synced(path, &format, format!("{HEAD}\n").as_bytes()).map_err(failed(&format))?;
        }
        let mut target = Self::read(path)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => target.lock = Some(lock),
            Err(TryLockError::WouldBlock) => return Err(BackupError::Busy { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(BackupError::Io { path: lock_path, source }),
        }
        for part in [OBJECTS, BACKUPS] {
            let part = path.join(part);
            make_private(&part).map_err(failed(&part))?;
        }
        Ok(target)
    }

    /// Opens a directory of backups to be read.
    pub(super) fn read(path: &Path) -> Result<Self, BackupError> {
        match fs::read_to_string(path.join(FORMAT_FILE)) {
            Ok(text) if text.trim_end() == HEAD => Ok(Self { path: path.to_owned(), lock: None }),
            Ok(text) => {
                Err(BackupError::OtherFormat { path: path.to_owned(), found: text.trim_end().chars().take(64).collect() })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BackupError::NotABackup { path: path.to_owned() }),
            Err(error) => Err(BackupError::Io { path: path.to_owned(), source: error }),
        }
    }

    /// The backups by number, with what each says; `None` for one that is damaged.
    pub(super) fn manifests(&self) -> Result<BTreeMap<u64, Option<Manifest>>, BackupError> {
        let path = self.path.join(BACKUPS);
        let mut manifests = BTreeMap::new();
        for entry in fs::read_dir(&path).map_err(failed(&path))? {
            let entry = entry.map_err(failed(&path))?;
            // Not a draft.
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let text = match fs::read(entry.path()) {
                Ok(bytes) => String::from_utf8(bytes).ok(),
                Err(source) => return Err(BackupError::Io { path: entry.path(), source }),
            };
            manifests.insert(number, text.as_deref().and_then(Manifest::decode));
        }
        Ok(manifests)
    }

    pub(super) fn object(&self, hash: Hash) -> PathBuf {
        self.path.join(OBJECTS).join(hash.to_string())
    }

    /// Whether an object of this length is there.
    pub(super) fn has(&self, hash: Hash, len: u64) -> bool {
        fs::metadata(self.object(hash)).is_ok_and(|data| data.is_file() && data.len() == len)
    }

    /// Copies a file in, on disk under its hash when this returns. `each` is told of every piece.
    pub(super) fn take_in(
        &self,
        mut from: impl Read,
        each: &mut dyn FnMut(u64) -> Result<(), BackupError>,
    ) -> Result<(Hash, u64), BackupError> {
        let draft = self.path.join(OBJECTS).join(DRAFT);
        let (hash, len) = copy(&mut from, &draft, each).inspect_err(|_| {
            // Room for whatever else is on that disk. If it stays, the next backup removes it.
            let _ = fs::remove_file(&draft);
        })?;
        let object = self.object(hash);
        fs::rename(&draft, &object).map_err(failed(&object))?;
        Ok((hash, len))
    }

    /// Writes down a backup whose objects are all there. It is whole, and on disk, when this returns.
    pub(super) fn add(&self, manifest: &Manifest) -> Result<u64, BackupError> {
        let (objects, backups) = (self.path.join(OBJECTS), self.path.join(BACKUPS));
        File::open(&objects).and_then(|directory| directory.sync_all()).map_err(failed(&objects))?;
        let number = self.manifests()?.last_key_value().map_or(1, |(last, _)| last + 1);
        let path = backups.join(format!("{number:08}"));
        write_synced(&backups, &path, manifest.encode().as_bytes()).map_err(failed(&path))?;
        Ok(number)
    }

    /// Removes all backups but the last `keep`, and files that none needs.
    pub(super) fn prune(&self, keep: usize) -> Result<(), BackupError> {
        let manifests = self.manifests()?;
        let old = manifests.len().saturating_sub(keep);
        for number in manifests.keys().take(old) {
            let path = self.path.join(BACKUPS).join(format!("{number:08}"));
            fs::remove_file(&path).map_err(failed(&path))?;
        }
        let kept: Vec<&Manifest> = manifests.values().skip(old).flatten().collect();
        if manifests.values().skip(old).any(Option::is_none) {
            // What a damaged one needs is not known.
            return Ok(());
        }
        let needed: BTreeSet<String> = kept.iter().flat_map(|kept| kept.objects()).map(|(hash, _)| hash.to_string()).collect();
        let objects = self.path.join(OBJECTS);
        for entry in fs::read_dir(&objects).map_err(failed(&objects))? {
            let entry = entry.map_err(failed(&objects))?;
            if entry.file_name().to_str().is_none_or(|name| !needed.contains(name)) {
                fs::remove_file(entry.path()).map_err(failed(&entry.path()))?;
            }
        }
        Ok(())
    }
}

/// Copies to a new file that only its owner can read, and has it on disk.
pub(super) fn copy(
    from: &mut impl Read,
    to: &Path,
    each: &mut dyn FnMut(u64) -> Result<(), BackupError>,
) -> Result<(Hash, u64), BackupError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(to).map_err(failed(to))?;
    let (mut hasher, mut len) = (Sha256::new(), 0);
    let mut piece = vec![0; BACKUP_PIECE_BYTES];
    loop {
        let read = from.read(&mut piece).map_err(failed(to))?;
        let bytes = piece.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
        file.write_all(bytes).map_err(failed(to))?;
        len += read as u64;
        each(read as u64)?;
    }
    file.sync_all().map_err(failed(to))?;
    Ok((Hash(hasher.finalize().into()), len))
}

/// The hash of a file's last bytes.
pub(super) fn tail(path: &Path, len: u64) -> Result<Hash, BackupError> {
    let read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(len.saturating_sub(BACKUP_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BACKUP_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(Hash::of(&bytes))
    };
    read().map_err(failed(path))
}

/// The hash and length of a file.
pub(super) fn hash_of(path: &Path) -> io::Result<(Hash, u64)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut len) = (Sha256::new(), 0);
    let mut piece = vec![0; BACKUP_PIECE_BYTES];
    loop {
        let read = file.read(&mut piece)?;
        let bytes = piece.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            return Ok((Hash(hasher.finalize().into()), len));
        }
        hasher.update(bytes);
        len += read as u64;
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
