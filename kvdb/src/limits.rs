//! Limits of this crate.

pub use crate::net::limits::*;
