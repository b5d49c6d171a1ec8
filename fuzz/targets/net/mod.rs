//! The wire of kvdb, without the rest of it.
#[path = "../../../kvdb/src/net/limits.rs"]
pub mod limits;
#[path = "../../../kvdb/src/net/wire/mod.rs"]
pub mod wire;
