//! What crosses crates, in one binary: linking `RocksDB` and libp2p once is slow enough.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod backup;
mod cluster;
mod compact;
mod crash;
mod drop;
mod fleet;
mod golden;
mod holders;
mod hostile;
mod house;
mod kills;
mod library;
mod moves;
mod networks;
mod node;
mod repair;
mod replication;
mod shards;
mod snapshot;
mod watch;
