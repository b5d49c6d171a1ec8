//! Replication: gossip and sync as state machines without sockets, clock or tasks, and the driver that runs them on libp2p.

mod budget;
mod driver;
pub mod gossip;
mod handle;
mod handshakes;
pub mod lanes;
pub mod limits;
pub mod local;
pub mod machine;
mod member;
mod options;
mod peers;
pub mod port;
pub mod ranges;
mod streams;
mod swarm;
pub mod sync;
#[cfg(test)]
mod testing;
pub mod wire;

pub use driver::spawn;
pub use handle::{DatabaseStatus, DialError, NetHandle, PeerStatus};
pub use libp2p::Stream;
pub use libp2p::swarm::ConnectionId;
pub use member::Streams;
pub use options::{NetworkError, NetworkKey, NetworkOptions};
pub use port::{Backend, BackendError, LogSource, NewsSource, PlainLog};

/// A time, as told by the driver: how long ago it started.
pub type Moment = std::time::Duration;
