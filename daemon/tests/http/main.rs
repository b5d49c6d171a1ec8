//! The daemon from outside: HTTP over real sockets, and the `kvdb` binary.

mod cli;
mod errors;
mod keys;
mod list;
mod process;
mod support;
