//! Replication: gossip and sync as state machines without sockets, clock or tasks, and the driver that runs them on libp2p.

pub mod gossip;
pub mod limits;
pub mod local;
pub mod port;
pub mod sync;
#[cfg(test)]
mod testing;
pub mod wire;

/// A time, as told by the driver: how long ago it started.
pub type Moment = std::time::Duration;
