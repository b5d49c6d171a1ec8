//! The daemon from outside: HTTP over real sockets, and the `kvdb` binary.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that cannot go on panics")]

mod admin;
mod cli;
mod errors;
mod keys;
mod list;
mod process;
mod support;
mod terms;
mod watch;
