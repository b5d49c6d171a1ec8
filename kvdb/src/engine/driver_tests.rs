//! The queue before the engine, at its limit.

use crdt::{Change, Ed25519Signer, Key};

use super::*;
use crate::limits::{MAX_INBOX_BYTES, WORK_OVERHEAD_BYTES};
use crate::store::{RocksStore, StoreOptions};

/// A put whose work takes exactly so much room.
fn put_of(key: &str, room: usize) -> LocalOp {
    let key = Key::parse(key).unwrap();
    let value = vec![0; room - WORK_OVERHEAD_BYTES - 64 - key.as_bytes().len()];
    LocalOp::new(key, Change::Put { value: value.into(), expiry: None })
}

#[tokio::test]
async fn a_full_queue_keeps_callers_waiting_and_then_refuses_with_the_number() {
    let dir = tempfile::tempdir().unwrap();
    let store = RocksStore::open(dir.path(), &StoreOptions::default()).unwrap();
    let database = store.open_database(&"d".parse().unwrap()).unwrap().id;
    let handle = EngineHandle::start(store, Arc::new(Ed25519Signer::from_seed([1; 32]))).unwrap();
    handle.open(database).await.unwrap();
    // The engine is busy, as it is with a slow disk.
    let (free, freed) = std::sync::mpsc::channel::<()>();
    let (held, holds) = std::sync::mpsc::channel();
    let busy = handle.clone();
    let holder = std::thread::spawn(move || {
        let engine = lock(&busy.0.engine);
        held.send(()).unwrap();
        freed.recv().unwrap();
        drop(engine);
    });
    holds.recv().unwrap();
    let write = |op: LocalOp| {
        let handle = handle.clone();
        async move { handle.write(database, vec![op], None, Durability::Sync).await }
    };
    // Up to the last byte: pieces of 1 MiB of room, 64 of them.
    let piece = 1 << 20;
    let waiting: Vec<_> = (0..MAX_INBOX_BYTES / piece).map(|n| tokio::spawn(write(put_of(&format!("/{n:02}"), piece)))).collect();
    while handle.waiting_bytes() < MAX_INBOX_BYTES {
        tokio::task::yield_now().await;
    }
    // One more: after the wait it is refused, and with an error that says that nothing was written.
    let refused = write(put_of("/more", WORK_OVERHEAD_BYTES + 64 + 5)).await.unwrap_err();
    let WriteError::QueueFull { limit: MAX_INBOX_BYTES, waited: INBOX_WAIT } = refused else { panic!("{refused}") };
    assert!(refused.to_string().contains("67108864") && refused.to_string().contains("nothing was written"), "{refused}");
    // One that waits gets its turn as soon as there is room.
    let patient = tokio::spawn(write(put_of("/patient", piece)));
    tokio::task::yield_now().await;
    free.send(()).unwrap();
    holder.join().unwrap();
    for write in waiting {
        assert!(write.await.unwrap().unwrap().dot.is_some(), "what was let in is written");
    }
    assert!(patient.await.unwrap().is_ok());
    // Room is given back once the turn is over, a moment after the answers.
    while handle.waiting_bytes() > 0 {
        tokio::task::yield_now().await;
    }
    handle.close().await.unwrap();
}
