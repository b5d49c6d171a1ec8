//! Dropped databases and what is left of them.

use crdt::{Change, Expiry, RequestId, Store as _};
use tempfile::TempDir;

use super::{Writer, name, open};
use crate::store::{Family, RocksStore, layout};

fn records(store: &RocksStore, family: Family, number: u32) -> usize {
    store.0.inner.scan(family, layout::number_range(number), |_, _| Ok(())).map(Result::unwrap).count()
}

/// A crash may come before what is left is removed, or half way: opened again, the store removes the rest.
#[test]
fn s02_what_a_drop_leaves_is_removed_after_a_crash_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let mut writers: Vec<Writer> = ["few", "many", "stays"].into_iter().map(|name| Writer::new(&store, name)).collect();
    for (writer, puts) in writers.iter_mut().zip([10, 1_500, 50]) {
        for n in 0..puts {
            writer.put(&mut store, &format!("/{n}"), &[1; 600]);
        }
        // What is listed by time as well.
        let expires = Change::Put { value: "x".into(), expiry: Expiry::at_unix_ms(9) };
        writer.write(&mut store, "/expires", expires, Some(RequestId([7; 16]))).unwrap();
    }
    let stays = store.find_database(&name("stays")).unwrap().unwrap();
    for (index, dropped) in ["few", "many"].into_iter().enumerate() {
        let record = store.drop_database(&name(dropped)).unwrap().unwrap();
        assert!(store.view(&record.id).is_err() && store.find_database(&name(dropped)).unwrap().is_none());
        assert!(records(&store, Family::Rows, record.row_number) > 0, "unlinked only");
        assert_eq!((records(&store, Family::Expiries, record.row_number), records(&store, Family::Ages, record.number)), (1, 1));
        drop(store);
        store = open(dir.path());
        assert!(store.view(&record.id).is_err(), "nothing brings it back");
        // Made again before the removal, under numbers of its own.
        let again = store.open_database(&name(dropped)).unwrap();
        assert_eq!((again.generation, again.number), (1, 4 + u32::try_from(index).unwrap()));
        if index == 1 {
            // Half way: some families are empty already.
            let range = layout::number_range(record.number);
            let handle = store.0.inner.family(Family::Blocks);
            store.0.inner.rocks().delete_file_in_range_cf(handle, &range.start, &range.end).unwrap();
        }
        store.remove_dropped().unwrap();
        for family in Family::ALL.into_iter().filter(|family| *family != Family::Catalog) {
            assert_eq!(records(&store, family, record.number) + records(&store, family, record.row_number), 0, "{family}");
        }
        store.remove_dropped().unwrap();
    }
    let dropped = store.dropped().unwrap();
    assert_eq!(dropped.len(), 2);
    assert!(!dropped.contains(&stays.id));
    let numbers = store.numbers(&stays.id).unwrap();
    assert_eq!((records(&store, Family::Rows, numbers.rows), records(&store, Family::Blocks, numbers.number)), (51, 51));
    drop(store);
    let mut store = open(dir.path());
    writers[2].put(&mut store, "/more", b"1");
    assert!(store.drop_database(&name("none")).unwrap().is_none());
}

#[test]
fn s02_many_small_databases_come_and_go_beside_one_that_stays() {
    let dir = TempDir::new().unwrap();
    let mut store = open(dir.path());
    let mut stays = Writer::new(&store, "stays");
    stays.put(&mut store, "/a", b"1");
    for _ in 0..30 {
        let mut small = Writer::new(&store, "small");
        (0..5).for_each(|n| drop(small.put(&mut store, &format!("/{n}"), &[1; 600])));
        store.drop_database(&name("small")).unwrap().unwrap();
        store.remove_dropped().unwrap();
    }
    assert_eq!(store.open_database(&name("small")).unwrap().generation, 30);
    // Peers are told of the last ones only.
    assert_eq!(store.dropped().unwrap().len(), 16);
    stays.put(&mut store, "/b", b"2");
    assert_eq!(store.databases().unwrap().len(), 2);
}
