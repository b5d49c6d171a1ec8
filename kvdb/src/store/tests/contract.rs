//! The contract that every store keeps, on this one.

use crdt::testing::{ContractHost, store_contract};
use crdt::{DatabaseId, DatabaseName};
use tempfile::TempDir;

use super::open;
use crate::store::RocksStore;

/// The directories of the stores made so far, the one in use last.
struct Host(Vec<TempDir>);

impl ContractHost for Host {
    type Store = RocksStore;

    fn fresh(&mut self) -> RocksStore {
        let dir = TempDir::new().unwrap();
        let store = open(dir.path());
        self.0.push(dir);
        store
    }

    fn create(&mut self, store: &mut RocksStore, name: &DatabaseName) -> DatabaseId {
        store.open_database(name).unwrap().id
    }

    fn reopen(&mut self, store: RocksStore) -> RocksStore {
        let path = store.path().to_owned();
        drop(store);
        open(&path)
    }
}

#[test]
fn s11_the_contract_is_kept() {
    store_contract(&mut Host(Vec::new()));
}
