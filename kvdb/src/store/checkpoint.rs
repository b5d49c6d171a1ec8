//! The files of one moment, for a backup.

use std::path::Path;

use rocksdb::checkpoint::Checkpoint;

use super::RocksStore;
use super::directory::{Stage, write_format};
use super::error::{StoreError, StoreOpenError};

impl RocksStore {
    /// Links the store's files of this moment into a directory that is not there yet, on the same file system. Everything
    /// committed before is in it. Writes go on; files that are linked keep their space until the links are removed.
    ///
    /// # Errors
    /// When the store cannot write what is still in memory, or a link.
    pub(crate) fn checkpoint(&self, to: &Path) -> Result<(), StoreError> {
        Ok(Checkpoint::new(self.0.inner.rocks())?.create_checkpoint(to)?)
    }

    /// Makes a store, of the format that it had, of a directory into which the files of a checkpoint were copied. It draws a new id when it is opened.
    pub(crate) fn mark_restored(path: &Path, format: u32) -> Result<(), StoreOpenError> {
        write_format(path, format, Stage::Restored)
    }
}
