//! What tests of this and other crates share: a store in memory, and the contract that every store must keep.

mod memory;

pub use memory::{MemoryStore, MemoryStoreError, MemoryView};
