//! What tests of this and other crates share: a store in memory, the contract that every store must keep, the naive
//! reference that every replica must equal, and signatures that cost nothing.

mod contract;
mod fake;
mod memory;
mod reference;
mod rig;
mod snapshots;

pub use contract::{ContractCheck, checks, store_contract};
pub use fake::{FakeSigner, FakeVerifier};
pub use memory::{MemoryStore, MemoryStoreError, MemoryView};
pub use reference::Reference;
pub use rig::{ContractHost, Rig};
