//! From an older format on disk to this one, a step at a time.

use std::path::Path;

use super::directory::{Directory, STORE_FORMAT, Stage};
use super::error::{StoreError, StoreOpenError};
use super::rocks::Inner;

/// A step from one format to the next.
pub(super) struct Migration {
    /// The format that it begins with; it ends with the next one.
    pub(super) from: u32,
    /// What it changes, for the log.
    pub(super) what: &'static str,
    /// Does it. A crash may have cut it short before, so it must be able to begin again on what it has left.
    pub(super) run: fn(&Inner) -> Result<(), StoreError>,
}

/// All steps, one for each older format that this program can still open. None yet: this is the first format.
pub(super) const MIGRATIONS: &[Migration] = &[];

/// The steps from a format to this one. Nothing is touched.
///
/// # Errors
/// When there is no way from there.
pub(super) fn steps(path: &Path, found: u32, known: &'static [Migration]) -> Result<Vec<&'static Migration>, StoreOpenError> {
    let step = |from| known.iter().find(|step| step.from == from);
    let way: Option<Vec<_>> = (found..STORE_FORMAT).map(step).collect();
    way.ok_or_else(|| StoreOpenError::OlderFormat { path: path.to_owned(), found, known: STORE_FORMAT })
}

/// Does the steps, each on disk before the directory says so.
///
/// # Errors
/// When one fails: the store keeps the format that it has come to, and the next opening goes on from there.
pub(super) fn migrate(inner: &Inner, directory: &Directory, steps: &[&Migration], stage: Stage) -> Result<(), StoreOpenError> {
    for step in steps {
        let failed = |source| StoreOpenError::Migration { path: directory.path().to_owned(), from: step.from, source };
        tracing::info!(from = step.from, to = step.from + 1, what = step.what, "bringing the store to a newer format");
        (step.run)(inner).and_then(|()| inner.sync()).map_err(failed)?;
        directory.set_format(step.from + 1, stage)?;
    }
    Ok(())
}
