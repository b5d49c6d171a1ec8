//! The tests of the crate from outside: laws, golden bytes, scripts, group commit, the store contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]
#![allow(unreachable_pub, reason = "modules of one test binary")]

mod bytes;
mod conditions;
mod contract;
mod corpus;
mod golden;
mod group;
mod ids;
mod laws;
mod merge;
mod raw;
mod refused;
mod scripts;
mod snapshot;
mod walk;
mod world;

/// This package's directory, by the variable of the run, not of the build: one target directory serves several checkouts.
fn package() -> std::path::PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs these tests").into()
}
