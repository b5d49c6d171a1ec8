//! What fuzzing has kept (`fuzz/corpus`), tried again by every run.

use bytes::Bytes;
use crdt::snapshot::{Chunk, chunk_hash};
use crdt::{Block, Cursor, DatabaseId, Key, SnapshotHead, Zip215};

use super::walk::walk;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(super::package().join("../fuzz/corpus").join(target)).unwrap();
    let files: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    assert!(files.len() > 3, "the corpus of {target} is empty");
    files
}

#[test]
fn blocks_from_fuzzing_have_one_verdict_and_one_encoding() {
    let mut valid = 0;
    for data in corpus("block") {
        let bytes = Bytes::from(data);
        let verified = Block::verify(bytes.clone(), &mut Zip215(rand::rng()));
        match Block::from_store(bytes.clone()) {
            Ok(block) => assert_eq!(*block.bytes(), bytes),
            Err(_) => assert!(verified.is_err(), "verified, but cannot be read from the store"),
        }
        valid += usize::from(verified.is_ok());
    }
    assert!(valid > 0, "not one valid block");
}

#[test]
fn keys_from_fuzzing_have_one_normal_form() {
    for data in corpus("key") {
        if let Ok(key) = Key::from_normal(&data) {
            assert_eq!(key.as_bytes(), data);
        }
        if let Ok(key) = Key::parse(&String::from_utf8_lossy(&data)) {
            assert_eq!(Key::from_normal(key.as_bytes()).unwrap(), key);
        }
    }
}

#[test]
fn walks_from_fuzzing_end_equal() {
    for data in corpus("merge") {
        walk(&data);
    }
}

#[test]
fn snapshots_from_fuzzing_have_one_encoding() {
    let mut read = 0;
    for data in corpus("snapshot") {
        let bytes = Bytes::from(data);
        if let Ok(head) = SnapshotHead::decode(bytes.clone()) {
            assert_eq!(head.encode(), bytes);
            read += 1;
        }
        if let Ok(place) = Cursor::decode(bytes.clone()) {
            assert_eq!(place.encode(), bytes);
            read += 1;
        }
        read += usize::from(Chunk::verify(&DatabaseId([7; 32]), chunk_hash(&bytes), bytes).is_ok());
    }
    assert!(read > 0, "nothing of it can be read");
}
