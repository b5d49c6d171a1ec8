//! A store's directory: the lock and the format file, both looked at before RocksDB touches anything.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::error::StoreOpenError;

/// The newest format that this program reads and writes.
pub const STORE_FORMAT: u32 = 1;

const LOCK_FILE: &str = "kvdb.lock";
const FORMAT_FILE: &str = "kvdb.format";
const FORMAT_DRAFT: &str = "kvdb.format.new";
const MAGIC: &str = "kvdb-store";

/// How far the store in a directory has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing there, or a creation that a crash cut short.
    Creating,
    /// Its files are all there; when they are gone, that is an error.
    Ready,
    /// As `Ready`, from a backup: another copy, which needs an id of its own before it is used.
    Restored,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Restored => "restored",
        }
    }
}

/// A store's directory, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is being started has it open until it runs its program,
        // and would hold the lock meanwhile. The lock ends with the last of them anyhow.
        let _ = self.lock.unlock();
    }
}

impl Directory {
    /// Locks the directory, creating it if need be, and tells how far its store has come, and its format.
    pub(super) fn lock(path: &Path) -> Result<(Self, Stage, u32), StoreOpenError> {
        let unusable = |source| StoreOpenError::Directory { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(unusable)?;
        // Before the lock file is made: a directory that is not ours must not be touched.
        check(path)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK_FILE)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreOpenError::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        let directory = Self { path: path.to_owned(), lock };
        let (format, stage) = match check(path)? {
            Some(found) => found,
            None => {
                directory.set_stage(Stage::Creating)?;
                (STORE_FORMAT, Stage::Creating)
            }
        };
        Ok((directory, stage, format))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes how far a store of this program's format has come.
    pub(super) fn set_stage(&self, stage: Stage) -> Result<(), StoreOpenError> {
        self.set_format(STORE_FORMAT, stage)
    }

    /// Writes the format file whole or not at all.
    pub(super) fn set_format(&self, format: u32, stage: Stage) -> Result<(), StoreOpenError> {
        write_format(&self.path, format, stage)
    }
}

/// Writes the format file of a directory, whole or not at all.
pub(super) fn write_format(path: &Path, format: u32, stage: Stage) -> Result<(), StoreOpenError> {
    let write = || -> io::Result<()> {
        let draft = path.join(FORMAT_DRAFT);
        let mut file = File::create(&draft)?;
        writeln!(file, "{MAGIC} {format} {}", stage.name())?;
        file.sync_all()?;
        fs::rename(&draft, path.join(FORMAT_FILE))?;
        File::open(path)?.sync_all()
    };
    write().map_err(|source| StoreOpenError::Directory { path: path.to_owned(), source })
}

/// Whether a directory has a store that was finished; nothing is made or changed.
pub(super) fn holds_store(path: &Path) -> Result<bool, StoreOpenError> {
    if path.try_exists().map_err(|source| StoreOpenError::Directory { path: path.to_owned(), source })? {
        return Ok(check(path)?.is_some_and(|(_, stage)| stage != Stage::Creating));
    }
    Ok(false)
}

/// Reads the format file; `None` in a directory in which a store can be created.
fn check(path: &Path) -> Result<Option<(u32, Stage)>, StoreOpenError> {
    let unusable = |source| StoreOpenError::Directory { path: path.to_owned(), source };
    let foreign = || StoreOpenError::NotAStore { path: path.to_owned() };
    // The entries first: another process that creates a store writes the format file before all others.
    let mut empty = true;
    for entry in fs::read_dir(path).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        empty &= name == LOCK_FILE || name == FORMAT_DRAFT;
    }
    let text = match fs::read(path.join(FORMAT_FILE)) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| foreign())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return if empty { Ok(None) } else { Err(foreign()) },
        Err(error) => return Err(unusable(error)),
    };
    let mut words = text.split_ascii_whitespace();
    if words.next() != Some(MAGIC) {
        return Err(foreign());
    }
    let found: u32 = words.next().and_then(|word| word.parse().ok()).ok_or_else(foreign)?;
    if found > STORE_FORMAT {
        return Err(StoreOpenError::NewerFormat { path: path.to_owned(), found, known: STORE_FORMAT });
    }
    let stage = words.next().ok_or_else(foreign)?;
    let stages = [Stage::Creating, Stage::Ready, Stage::Restored];
    let stage = stages.into_iter().find(|known| known.name() == stage).ok_or_else(foreign)?;
    Ok(Some((found, stage)))
}
