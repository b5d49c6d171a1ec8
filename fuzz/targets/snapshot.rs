//! A chunk, a head and a place of a snapshot are read or refused, and heads and places have one encoding.
#![no_main]

use bytes::Bytes;
use crdt::snapshot::{Chunk, chunk_hash};
use crdt::{Cursor, DatabaseId, SnapshotHead};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(head) = SnapshotHead::decode(bytes.clone()) {
        assert_eq!(head.encode(), data, "two encodings of {head:?}");
    }
    if let Ok(place) = Cursor::decode(bytes.clone()) {
        assert_eq!(place.encode(), data, "two encodings of {place:?}");
    }
    let database = DatabaseId([7; 32]);
    if let Ok(chunk) = Chunk::verify(&database, chunk_hash(data), bytes.clone()) {
        assert_eq!(*chunk.bytes(), bytes);
    }
});
