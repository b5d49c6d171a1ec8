//! Older formats: brought to this one step by step, or refused untouched.

use std::fs;

use super::*;
use crate::store::error::StoreOpenError;
use crate::store::layout::Family;
use crate::store::migrate::Migration;
use crate::store::rocks::Inner;

/// In this format, which never was, the heads of the first database stood under another tag.
const OLD_HEADS: [u8; 5] = [0, 0, 0, 1, 9];
const HEADS: [u8; 5] = [0, 0, 0, 1, 2];

fn move_heads(inner: &Inner) -> Result<(), StoreError> {
    let Some(record) = inner.get(Family::State, &OLD_HEADS, |bytes| Ok(bytes.to_vec()))? else { return Ok(()) };
    let mut batch = rocksdb::WriteBatch::default();
    batch.put_cf(inner.family(Family::State), HEADS, record);
    batch.delete_cf(inner.family(Family::State), OLD_HEADS);
    inner.write_synced(batch)
}

fn fail(_: &Inner) -> Result<(), StoreError> {
    Err(StoreError::RocksDb("a disk that fails".to_owned()))
}

const GOOD: &[Migration] = &[Migration { from: 0, what: "heads move", run: move_heads }];
const BAD: &[Migration] = &[Migration { from: 0, what: "heads do not move", run: fail }];
const GAP: &[Migration] = &[Migration { from: 7, what: "of another time", run: fail }];

/// A store of the format before the first one, and its heads.
fn old() -> (TempDir, DatabaseId, crdt::Heads) {
    let mut fixture = Fixture::new();
    fixture.put("/a", b"1");
    let heads = fixture.writer.replica.heads().clone();
    let record = fixture.store.0.inner.get(Family::State, &HEADS, |bytes| Ok(bytes.to_vec())).unwrap().unwrap();
    fixture.store.put_raw(Family::State, &OLD_HEADS, Some(&record)).unwrap();
    fixture.store.put_raw(Family::State, &HEADS, None).unwrap();
    let (dir, id) = fixture.close();
    fs::write(dir.path().join("kvdb.format"), "kvdb-store 0 ready\n").unwrap();
    (dir, id, heads)
}

fn format(dir: &TempDir) -> String {
    fs::read_to_string(dir.path().join("kvdb.format")).unwrap()
}

#[test]
fn an_older_format_is_migrated_once_and_again_after_a_failure() {
    let (dir, id, heads) = old();
    let error = RocksStore::open_with(dir.path(), &StoreOptions::default(), BAD).unwrap_err();
    assert!(matches!(error, StoreOpenError::Migration { from: 0, .. }), "{error}");
    assert_eq!(format(&dir), "kvdb-store 0 ready\n", "it is what it was");
    let store = RocksStore::open_with(dir.path(), &StoreOptions::default(), GOOD).unwrap();
    assert_eq!(store.view(&id).unwrap().state().unwrap().heads, heads);
    assert!(store.verify(&id).unwrap().is_sound());
    assert_eq!(format(&dir), "kvdb-store 1 ready\n");
    drop(store);
    // Migrated already: a step that would fail is not taken.
    assert!(RocksStore::open_with(dir.path(), &StoreOptions::default(), BAD).is_ok());
}

#[test]
fn an_older_format_without_a_way_to_this_one_is_refused_untouched() {
    let (dir, ..) = old();
    let entries = || {
        let mut entries: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap()).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        entries.iter().map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect::<Vec<_>>()
    };
    let before = entries();
    for migrations in [crate::store::migrate::MIGRATIONS, GAP] {
        let error = RocksStore::open_with(dir.path(), &StoreOptions::default(), migrations).unwrap_err();
        assert!(matches!(error, StoreOpenError::OlderFormat { found: 0, known: 1, .. }), "{error}");
        assert!(error.to_string().contains("format 0"), "{error}");
    }
    assert_eq!(entries(), before);
}
