//! The tests of the crate from outside: laws, golden bytes, scripts, group commit, the store contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]
#![allow(unreachable_pub, reason = "modules of one test binary")]

mod bytes;
mod contract;
mod golden;
mod group;
mod ids;
mod laws;
mod merge;
mod raw;
mod refused;
mod scripts;
mod world;
