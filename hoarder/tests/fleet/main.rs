//! The fleet as a whole: controllers on a small network with toy replicas, under faults.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

mod api;
mod disk;
mod runs;
mod situations;
mod sockets;
mod world;
