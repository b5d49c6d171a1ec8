//! Any bytes on the disk are a record or an error.
#![no_main]
#![allow(dead_code, unused_imports, reason = "a part of kvdb")]

// The errors of kvdb's store name RocksDB's, which is not built here.
extern crate self as rocksdb;

#[path = "../../kvdb/src/limits.rs"]
mod limits;
mod store;

use libfuzzer_sys::fuzz_target;

pub struct Error;

impl Error {
    fn into_string(self) -> String {
        String::new()
    }
}

fuzz_target!(|data: &[u8]| store::read_all(data));
