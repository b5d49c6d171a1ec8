//! The hoarder: a fleet of nodes that decides who holds which database, and confirms a write only once enough holders have it
//! on disk.
//!
//! Everything that decides is a state machine: inputs, the time and random numbers go in, outputs come out.
//! [`controller::Controller`] is the one door; [`Fleet`] runs it on a node.

#![deny(missing_docs)]

pub mod barrier;
pub mod claims;
pub mod controller;
mod driver;
pub mod fleet;
pub mod limits;
pub mod membership;
pub mod placement;
pub mod reconcile;
pub mod registry;
pub mod routing;
pub mod wire;

#[cfg(test)]
mod testing;

pub use barrier::{Durability, Outcome, UnconfirmedReason};
pub use controller::{Controller, Input, Output};
pub use fleet::{
    DatabaseSettings, Fleet, FleetError, Placement, ReadDone, ReadOptions, Serving, Unconfirmed, WriteDone, WriteOptions,
};
pub use kvdb::PeerId;
pub use wire::Refusal;

/// A time on this node's own monotonic clock: how long ago the node started.
pub type Moment = std::time::Duration;

/// Names a store on disk: drawn when it is made, restored or repaired, or found to be older than it should be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub [u8; 16]);

impl std::fmt::Debug for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A digest of a sorted set of live members: equal for equal views.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub [u8; 16]);

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
