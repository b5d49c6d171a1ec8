//! x
mod clock;
pub mod engine;
pub mod limits;
