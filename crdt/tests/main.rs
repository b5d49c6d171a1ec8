//! The tests of the crate from outside: laws, golden bytes, scripts, group commit, the store contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod contract;
