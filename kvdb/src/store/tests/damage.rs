//! Damage on disk.

use std::fs;
use std::path::{Path, PathBuf};

use crdt::{DatabaseId, Store as _, View as _};
use tempfile::TempDir;

use super::{Fixture, key, open};
use crate::store::wal::{LogCondition, condition};
use crate::store::{LossPolicy, RocksStore, StoreOpenError, StoreOptions};

/// A closed store whose last log holds `puts` puts.
fn crashed(puts: u32) -> (TempDir, DatabaseId) {
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

fn copy(from: &Path) -> TempDir {
    let to = TempDir::new().unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

#[test]
fn real_logs_are_whole() {
    let mut fixture = Fixture::new();
    assert_eq!(condition(fixture.dir.path()).unwrap(), LogCondition::Whole);
    for len in (0..100_000).step_by(7_777) {
        fixture.put("/v", &vec![3; len]);
    }
    assert_eq!(condition(fixture.dir.path()).unwrap(), LogCondition::Whole);
    let (dir, _) = fixture.close();
    for _ in 0..2 {
        let _store = open(dir.path());
        assert_eq!(condition(dir.path()).unwrap(), LogCondition::Whole);
    }
}

#[test]
fn a_log_cut_short_loses_its_last_write_only() {
    let (dir, id) = crashed(20);
    for cut in [1, 2, 3, 7, 8, 16, 33, 64] {
        let dir = copy(dir.path());
        let log = last_log(dir.path());
        let len = fs::metadata(&log).unwrap().len();
        fs::File::options().write(true).open(&log).unwrap().set_len(len - cut).unwrap();
        lacks_the_last(&dir, id);
        assert_eq!(condition(dir.path()).unwrap(), LogCondition::Whole);
    }
}

#[test]
fn a_last_write_with_wrong_bytes_is_dropped() {
    let (dir, id) = crashed(20);
    for back in [1, 40, 200] {
        let dir = copy(dir.path());
        let log = last_log(dir.path());
        let mut bytes = fs::read(&log).unwrap();
        let at = bytes.len() - back;
        bytes[at] ^= 1;
        fs::write(&log, bytes).unwrap();
        lacks_the_last(&dir, id);
    }
}

fn lacks_the_last(dir: &TempDir, id: DatabaseId) {
    let store = open(dir.path());
    let view = store.view(&id).unwrap();
    assert_eq!(view.state().unwrap().meta.revision, 19);
    assert!(view.row(&key("/0019")).unwrap().is_empty());
    assert!(!view.row(&key("/0018")).unwrap().is_empty());
    assert_eq!(store.accepted_loss(), None);
}

#[test]
fn damage_in_the_middle_of_the_log_is_refused() {
    // The log is shorter than 32 KiB: RocksDB alone would take a damaged length for its end.
    let (dir, id) = crashed(40);
    let store_id = open(copy(dir.path()).path()).id();
    let bytes = fs::read(last_log(dir.path())).unwrap();
    let last = bytes.windows(5).rposition(|window| window == b"/0039").unwrap();
    let original = dir.path().to_owned();
    for at in (0..last - 1_000).step_by(2_477).chain([4, 5, 6]) {
        let dir = copy(&original);
        let log = last_log(dir.path());
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x40;
        fs::write(&log, &bytes).unwrap();
        let error = RocksStore::open(dir.path(), &StoreOptions::default()).unwrap_err();
        assert!(matches!(error, StoreOpenError::DamagedLog { .. }), "{at}: {error}");
        assert!(error.to_string().contains(".log at byte"), "{error}");
        assert_eq!(fs::read(&log).unwrap(), bytes);
        let accept = StoreOptions { loss: LossPolicy::Accept, ..StoreOptions::default() };
        let store = RocksStore::open(dir.path(), &accept).unwrap();
        assert!(store.accepted_loss().is_some());
        assert_ne!(store.id(), store_id);
        // What is left is a state that once was.
        let view = store.view(&id).ok();
        let revision = view.as_ref().map_or(0, |view| view.state().unwrap().meta.revision);
        assert!(revision < 40);
        assert_eq!(view.map_or(0, |view| view.log(0).count() as u64), revision);
        drop(store);
        assert_eq!(open(dir.path()).accepted_loss(), None);
    }
}

#[test]
fn what_comes_after_accepted_damage_is_not_read() {
    // Long enough that RocksDB could find whole records again in a later part of the log.
    let (dir, id) = crashed(150);
    let log = last_log(dir.path());
    let mut bytes = fs::read(&log).unwrap();
    bytes[20_000] ^= 1;
    fs::write(&log, bytes).unwrap();
    let accept = StoreOptions { loss: LossPolicy::Accept, ..StoreOptions::default() };
    let store = RocksStore::open(dir.path(), &accept).unwrap();
    let view = store.view(&id).unwrap();
    let revision = view.state().unwrap().meta.revision;
    assert!((1..40).contains(&revision), "{revision}");
    assert_eq!(view.log(0).count() as u64, revision);
}
