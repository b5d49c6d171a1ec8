//! The kvdb daemon and its command line: the only place with files, environment, flags, signals, JSON and exit codes.

pub mod cli;
pub mod config;
pub mod encoding;
pub mod http;
pub mod limits;
pub mod problem;
pub mod run;
