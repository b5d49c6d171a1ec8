//! Whole clusters of the real state machines in one thread, under virtual time, from one seed.
//!
//! A [`world::World`] has nodes, each with kvdb's engine and replication machine over a simulated disk, a network with
//! faults between them, and clients that write. What happens is one heap of events; [`observe::Checker`]s look at each.

pub mod checkers;
pub mod cli;
pub mod clock;
mod connections;
pub mod disk;
mod driver;
mod engine;
pub mod faults;
pub mod fleet;
mod hostile;
pub mod net;
pub mod node;
pub mod observe;
pub mod random;
pub mod runner;
pub mod scenario;
pub mod scenarios;
pub mod script;
mod streams;
pub mod time;
pub mod tool;
pub mod trace;
mod upkeep;
mod watchers;
pub mod workload;
pub mod world;
