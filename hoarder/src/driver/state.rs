//! The file that names the store and counts its openings.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::StoreId;

const FILE: &str = "fleet.state";
const MAX_BYTES: u64 = 256;

/// The store's name, and how often it was opened.
#[derive(Debug, Clone)]
pub(super) struct State {
    path: PathBuf,
    pub(super) store: StoreId,
    pub(super) opening: u64,
}

impl State {
    /// Reads the file, or begins one, and counts this opening on disk before anything else.
    ///
    /// # Errors
    /// When it cannot be read or written, or is damaged: a new name would mean that nothing here can be relied on.
    pub(super) fn open(directory: &Path) -> std::io::Result<Self> {
        let path = directory.join(FILE);
        let mut state = match File::open(&path) {
            Ok(file) => {
                let mut text = String::new();
                file.take(MAX_BYTES).read_to_string(&mut text)?;
                let parsed = parse(&text).ok_or_else(|| std::io::Error::other(format!("{} is damaged", path.display())))?;
                Self { path, store: parsed.0, opening: parsed.1 }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Self { path, store: StoreId(rand::random()), opening: 0 }
            }
            Err(error) => return Err(error),
        };
        state.opening += 1;
        state.write()?;
        Ok(state)
    }

    /// The store has another name from now on.
    pub(super) async fn renew(&mut self, store: StoreId) {
        (self.store, self.opening) = (store, 1);
        let state = self.clone();
        let written = tokio::task::spawn_blocking(move || state.write()).await;
        if !matches!(written, Ok(Ok(()))) {
            // The next start finds the old name, which the registry does not know any more: it joins from nothing again.
            tracing::error!("the new name of the store could not be written down");
        }
    }

    fn write(&self) -> std::io::Result<()> {
        let scratch = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&scratch)?;
        writeln!(file, "{:?} {}", self.store, self.opening)?;
        file.sync_all()?;
        std::fs::rename(&scratch, &self.path)?;
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

fn parse(text: &str) -> Option<(StoreId, u64)> {
    let (hex, opening) = text.trim_end().split_once(' ')?;
    if hex.len() != 32 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some((StoreId(u128::from_str_radix(hex, 16).ok()?.to_be_bytes()), opening.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_keeps_its_name_and_each_opening_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let first = State::open(directory.path()).unwrap();
        let second = State::open(directory.path()).unwrap();
        assert_eq!((first.store, first.opening + 1), (second.store, second.opening));
        std::fs::write(directory.path().join(FILE), "x").unwrap();
        assert!(State::open(directory.path()).is_err());
    }
}
