//! Damage on disk.

use std::fs;
use std::path::{Path, PathBuf};

use crdt::{Store as _, View as _};

use super::{Fixture, key, open};
use crate::store::{LossPolicy, RocksStore, StoreOpenError, StoreOptions};

/// A closed store whose last log holds `puts` puts.
fn crashed(puts: u32) -> (tempfile::TempDir, crdt::DatabaseId) {
    let mut fixture = Fixture::new();
    for n in 0..puts {
        fixture.put(&format!("/{n:04}"), b"value");
    }
    fixture.close()
}

fn last_log(path: &Path) -> PathBuf {
    let logs = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    logs.filter(|path| path.extension().is_some_and(|ending| ending == "log")).max().unwrap()
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::TempDir::new().unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

#[test]
fn a_log_cut_short_loses_its_last_write_only() {
    let (dir, id) = crashed(20);
    for cut in 1..=64 {
        let dir = copy(dir.path());
        let log = last_log(dir.path());
        let len = fs::metadata(&log).unwrap().len();
        fs::File::options().write(true).open(&log).unwrap().set_len(len - cut).unwrap();
        let store = open(dir.path());
        let view = store.view(&id).unwrap();
        assert_eq!(view.state().unwrap().meta.revision, 19, "cut by {cut}");
        assert!(view.row(&key("/0019")).unwrap().is_empty());
        assert!(!view.row(&key("/0018")).unwrap().is_empty());
    }
}

#[test]
fn damage_in_the_middle_of_the_log_is_refused() {
    let (dir, id) = crashed(400);
    let len = fs::metadata(last_log(dir.path())).unwrap().len();
    for step in 1..20 {
        let dir = copy(dir.path());
        let log = last_log(dir.path());
        let mut bytes = fs::read(&log).unwrap();
        let at = usize::try_from(len * step / 20).unwrap();
        bytes[at] ^= 0x40;
        fs::write(&log, &bytes).unwrap();
        let error = RocksStore::open(dir.path(), &StoreOptions::default()).unwrap_err();
        assert!(matches!(error, StoreOpenError::DamagedLog { .. }), "{error}");
        assert_eq!(fs::read(&log).unwrap(), bytes);
        let accept = StoreOptions { loss: LossPolicy::Accept, ..StoreOptions::default() };
        let store = RocksStore::open(dir.path(), &accept).unwrap();
        assert!(store.accepted_loss().is_some());
        let state = store.view(&id).unwrap().state().unwrap();
        assert!(state.meta.revision < 400);
        assert_eq!(store.view(&id).unwrap().log(0).count() as u64, state.meta.revision);
    }
}
