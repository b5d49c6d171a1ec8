//! The store in memory keeps the contract of all stores.

use crdt::testing::{ContractHost, MemoryStore, store_contract};
use crdt::{DatabaseId, DatabaseName};

/// Makes empty stores like this one.
struct InMemory(MemoryStore);

impl ContractHost for InMemory {
    type Store = MemoryStore;

    fn fresh(&mut self) -> MemoryStore {
        self.0.clone()
    }

    fn create(&mut self, store: &mut MemoryStore, name: &DatabaseName) -> DatabaseId {
        let id = DatabaseId::of(name, 0);
        store.create(id);
        id
    }
}

#[test]
fn k03_s03_r17_the_store_in_memory_keeps_the_contract() {
    store_contract(&mut InMemory(MemoryStore::default()));
}

#[test]
fn the_store_in_memory_with_values_apart_keeps_the_contract() {
    store_contract(&mut InMemory(MemoryStore::with_values_apart_above(512)));
}
