//! Replicated key-value store (this file is replaced by the public API).

#![deny(missing_docs)]

/// The engine's port.
pub mod engine {
    pub mod port;
}
/// Limits of this crate.
pub mod limits;
pub mod net;
