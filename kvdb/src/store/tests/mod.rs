//! Tests of the store through its own doors, with write sets made by real replicas.

mod contract;
mod damage;
mod migrate;
mod open;
mod reads;
mod removal;
mod verify;

use std::path::Path;

use bytes::Bytes;
use crdt::{
    Change, DatabaseId, DatabaseName, Durability, Ed25519Signer, Effect, Env, Input, Key, LocalOp, LocalWrite, PendingLimits,
    Replica, RequestId, Step, Store as _, Token, View as _, WallTime,
};
use tempfile::TempDir;

use super::{RocksStore, StoreError, StoreOptions};

pub(super) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(super) fn name(text: &str) -> DatabaseName {
    DatabaseName::parse(text).unwrap()
}

pub(super) fn open(path: &Path) -> RocksStore {
    RocksStore::open(path, &StoreOptions::default()).unwrap()
}

/// A directory with a store and one replica that writes to it.
pub(super) struct Fixture {
    pub(super) dir: TempDir,
    pub(super) store: RocksStore,
    pub(super) writer: Writer,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let store = open(dir.path());
        let writer = Writer::new(&store, "demo");
        Self { dir, store, writer }
    }

    pub(super) fn put(&mut self, at: &str, value: &[u8]) -> Vec<Effect> {
        self.writer.put(&mut self.store, at, value)
    }

    pub(super) fn delete(&mut self, at: &str) {
        self.writer.write(&mut self.store, at, Change::Tombstone, None).unwrap();
    }

    /// Closes the store and gives its directory back.
    pub(super) fn close(self) -> (TempDir, DatabaseId) {
        (self.dir, self.writer.replica.database())
    }
}

pub(super) struct Writer {
    pub(super) replica: Replica,
    nonce: u64,
}

impl Writer {
    pub(super) fn new(store: &RocksStore, database: &str) -> Self {
        let id = store.open_database(&name(database)).unwrap().id;
        let state = store.view(&id).unwrap().state().unwrap();
        Self { nonce: state.vv.len() as u64, replica: Replica::resume(id, state, PendingLimits::default()) }
    }

    pub(super) fn put(&mut self, store: &mut RocksStore, at: &str, value: &[u8]) -> Vec<Effect> {
        self.write(store, at, put(value), None).unwrap()
    }

    pub(super) fn write(
        &mut self,
        store: &mut RocksStore,
        at: &str,
        change: Change,
        request: Option<RequestId>,
    ) -> Result<Vec<Effect>, StoreError> {
        let input = Input::Write(vec![LocalWrite { token: Token(0), request, ops: vec![LocalOp::new(key(at), change)] }]);
        self.step(store, input)
    }

    pub(super) fn step(&mut self, store: &mut RocksStore, input: Input) -> Result<Vec<Effect>, StoreError> {
        let signer = Ed25519Signer::from_seed([7; 32]);
        let nonce = self.nonce;
        let mut env = Env { now: WallTime(1_000), signer: &signer, random: &mut || nonce };
        let mut turn = self.replica.begin();
        self.replica.handle(input, &mut env, &store.view(&self.replica.database())?, &mut turn)?;
        let step = self.replica.finish(turn);
        let mut committed = Step::commit_all(vec![step], store, Durability::Buffered)?;
        Ok(committed.remove(0).effects)
    }
}

pub(super) fn put(value: &[u8]) -> Change {
    Change::Put { value: Bytes::copy_from_slice(value), expiry: None }
}
