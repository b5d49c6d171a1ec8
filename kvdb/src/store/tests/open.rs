//! Opening, locks, formats, the catalogue.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crdt::{DatabaseId, Store as _, View as _};
use tempfile::TempDir;

use super::{Fixture, key, name, open};
use crate::store::{RocksStore, StoreError, StoreOpenError, StoreOptions};

fn refused(path: &Path) -> StoreOpenError {
    RocksStore::open(path, &StoreOptions::default()).unwrap_err()
}

/// Every file with its bytes.
fn files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    let mut fixture = Fixture::new();
    fixture.put("/a", b"1");
    fixture.put("/b", b"2");
    fixture.delete("/a");
    let before = fixture.store.view(&fixture.writer.replica.database()).unwrap().state().unwrap();
    let (dir, id) = fixture.close();
    let store = open(dir.path());
    let view = store.view(&id).unwrap();
    assert_eq!(view.state().unwrap(), before);
    assert_eq!(before.meta.keys, 1);
    assert!(view.row(&key("/a")).unwrap().is_empty());
    assert_eq!(view.row(&key("/b")).unwrap().siblings()[0].value.as_deref(), Some(&b"2"[..]));
    assert_eq!(view.log(0).count(), 3);
    assert_eq!(store.accepted_loss(), None);
}

#[test]
fn a_store_has_one_opener() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    let before = files(dir.path());
    let error = refused(dir.path());
    assert!(matches!(&error, StoreOpenError::Locked { path } if path == dir.path()), "{error}");
    assert_eq!(files(dir.path()), before);
    let clone = store.clone();
    drop(store);
    assert!(matches!(refused(dir.path()), StoreOpenError::Locked { .. }));
    drop(clone);
    open(dir.path());
}

#[test]
fn r14_a_newer_format_is_refused_untouched() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()));
    fs::write(dir.path().join("kvdb.format"), "kvdb-store 2 whatever\n").unwrap();
    let before = files(dir.path());
    let error = refused(dir.path());
    assert!(matches!(error, StoreOpenError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("format 2"), "{error}");
    assert_eq!(files(dir.path()), before);
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("thesis.txt"), "mine").unwrap();
    let before = files(dir.path());
    assert!(matches!(refused(dir.path()), StoreOpenError::NotAStore { .. }));
    fs::remove_file(dir.path().join("thesis.txt")).unwrap();
    fs::write(dir.path().join("kvdb.format"), "not a format file").unwrap();
    assert!(matches!(refused(dir.path()), StoreOpenError::NotAStore { .. }));
    assert_eq!(before.len(), 1);
    assert_eq!(files(dir.path()).len(), 1);
}

#[test]
fn a_path_that_is_no_directory_is_named() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = refused(&file.join("store"));
    assert!(matches!(error, StoreOpenError::Directory { .. }), "{error}");
    assert!(error.to_string().contains("file/store"), "{error}");
}

#[test]
fn a_creation_cut_short_is_finished() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("deep/er");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("kvdb.lock"), "").unwrap();
    fs::write(path.join("kvdb.format.new"), "kv").unwrap();
    let id = open(&path).id();
    // As if the crash had come just before the last step.
    fs::write(path.join("kvdb.format"), "kvdb-store 1 creating\n").unwrap();
    assert_eq!(open(&path).id(), id);
    assert_eq!(fs::read_to_string(path.join("kvdb.format")).unwrap(), "kvdb-store 1 ready\n");
}

#[test]
fn a_store_whose_files_are_gone_is_not_made_anew() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()));
    for file in files(dir.path()).into_keys().filter(|file| !file.starts_with("kvdb.")) {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let error = refused(dir.path());
    assert!(matches!(error, StoreOpenError::RocksDb { .. }), "{error}");
}

#[test]
fn numbers_are_never_given_twice() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    let (b, a) = (store.open_database(&name("b")).unwrap(), store.open_database(&name("a")).unwrap());
    assert_eq!((b.number, a.number, a.generation), (1, 2, 0));
    assert_eq!(store.open_database(&name("b")).unwrap(), b);
    assert_eq!(b.id, DatabaseId::of(&name("b"), 0));
    assert_eq!(b.store_id, store.id());
    assert_eq!(store.databases().unwrap(), [a.clone(), b.clone()]);
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.databases().unwrap(), [a, b]);
    assert_eq!(store.open_database(&name("c")).unwrap().number, 3);
}

#[test]
fn a_thousand_databases_fit() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path());
    let ids: Vec<DatabaseId> = (0..1_000).map(|n| store.open_database(&name(&format!("db-{n}"))).unwrap().id).collect();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.databases().unwrap().len(), 1_000);
    assert!(ids.iter().all(|id| store.view(id).is_ok()));
}

#[test]
fn a_database_that_was_never_opened_is_unknown() {
    let mut fixture = Fixture::new();
    let stranger = DatabaseId::of(&name("stranger"), 0);
    assert_eq!(fixture.store.view(&stranger).unwrap_err(), StoreError::UnknownDatabase(stranger));
    assert!(fixture.store.snapshot(&stranger).is_err());
    // Nothing was written, so nothing is in doubt.
    assert_eq!(fixture.store.poison(), None);
    fixture.put("/a", b"1");
}
