//! Damage of every kind, done to records behind the store's back, is named.

use crdt::Dot;
use rocksdb::WriteBatch;

use super::*;
use crate::store::layout::{Family, Writer as Record};
use crate::verify::Damage;

fn damaged(damage: impl Fn(&Fixture, &mut WriteBatch)) -> Vec<Damage> {
    let mut fixture = Fixture::new();
    fixture.put("/a", b"short");
    fixture.put("/b", &[7; 2_000]);
    fixture.put("/a", b"again");
    fixture.put("/c", b"x");
    fixture.delete("/c");
    let id = fixture.writer.replica.database();
    let sound = fixture.store.verify(&id).unwrap();
    assert!(sound.is_sound(), "{:?}", sound.damages);
    assert_eq!((sound.keys, sound.siblings, sound.blocks), (2, 2, 5));
    let mut batch = WriteBatch::default();
    damage(&fixture, &mut batch);
    fixture.store.0.inner.write_synced(batch).unwrap();
    let found = fixture.store.verify(&id).unwrap();
    assert!(!found.is_sound());
    found.damages
}

/// The one record of a family whose key ends so, changed.
fn change(fixture: &Fixture, batch: &mut WriteBatch, family: Family, key: &[u8], change: impl Fn(&mut Vec<u8>)) {
    let inner = &fixture.store.0.inner;
    let record = inner.get(family, key, |bytes| Ok(bytes.to_vec())).unwrap().expect("a record");
    let mut changed = record;
    change(&mut changed);
    batch.put_cf(inner.family(family), key, changed);
}

fn own(seq: u64, fixture: &Fixture) -> Dot {
    Dot { replica: fixture.writer.replica.vv().iter().next().unwrap().0, seq }
}

#[test]
fn every_kind_of_damage_is_named() {
    let at = |write: &dyn Fn(&mut Record)| {
        let mut writer = Record::default();
        write(&mut writer);
        writer.bytes().to_vec()
    };
    // A bit of a value, in its row and apart from it.
    let row = at(&|writer| _ = writer.row_key(1, &key("/a")));
    let found = damaged(|fixture, batch| change(fixture, batch, Family::Rows, &row, |bytes| *bytes.last_mut().unwrap() ^= 1));
    assert!(matches!(found.as_slice(), [Damage::Value { key, .. }, Damage::Digest { .. }] if key.as_str() == "/a"), "{found:?}");
    let value = |fixture: &Fixture| at(&|writer| _ = writer.value_key(1, &key("/b"), &own(2, fixture)));
    let found = damaged(|fixture, batch| {
        change(fixture, batch, Family::Values, &value(fixture), |bytes| *bytes.last_mut().unwrap() ^= 1);
    });
    assert!(matches!(found.as_slice(), [Damage::Value { key, .. }, Damage::Digest { .. }] if key.as_str() == "/b"), "{found:?}");
    let found = damaged(|fixture, batch| batch.delete_cf(fixture.store.0.inner.family(Family::Values), value(fixture)));
    assert!(matches!(found.as_slice(), [Damage::NoValue { .. }, Damage::Digest { .. }]), "{found:?}");
    // A row that is gone.
    let found = damaged(|fixture, batch| batch.delete_cf(fixture.store.0.inner.family(Family::Rows), &row));
    assert!(matches!(found.as_slice(), [Damage::Digest { .. }, Damage::Keys { found: 1, kept: 2 }]), "{found:?}");
    // Blocks: a bit, a missing one, a missing entry of the log.
    let block = |fixture: &Fixture| at(&|writer| _ = writer.block_key(1, &own(3, fixture)));
    let found = damaged(|fixture, batch| {
        change(fixture, batch, Family::Blocks, &block(fixture), |bytes| *bytes.last_mut().unwrap() ^= 1);
    });
    assert!(matches!(found.first(), Some(Damage::Block { dot, .. }) if dot.seq == 3), "{found:?}");
    let found = damaged(|fixture, batch| batch.delete_cf(fixture.store.0.inner.family(Family::Blocks), block(fixture)));
    assert!(matches!(found.first(), Some(Damage::Block { dot, .. }) if dot.seq == 3), "{found:?}");
    let last = at(&|writer| _ = writer.log_key(1, 5));
    let found = damaged(|fixture, batch| batch.delete_cf(fixture.store.0.inner.family(Family::Log), &last));
    assert!(matches!(found.as_slice(), [Damage::Block { dot, .. }] if dot.seq == 5), "{found:?}");
    // The head's hash.
    let heads = at(&|writer| _ = writer.heads_key(1));
    let found = damaged(|fixture, batch| change(fixture, batch, Family::State, &heads, |bytes| bytes[30] ^= 1));
    assert!(matches!(found.as_slice(), [Damage::Head { .. }]), "{found:?}");
    // A record that is none.
    let found = damaged(|fixture, batch| change(fixture, batch, Family::Rows, &row, |bytes| bytes[0] = 9));
    assert!(matches!(found.as_slice(), [Damage::Unreadable { part: "the rows", .. }]), "{found:?}");
}
