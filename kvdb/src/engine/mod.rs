//! The engine: one serialised path for everything that changes a database.

pub(crate) mod driver;
pub mod history;
mod join;
pub mod machine;
mod news;
pub mod port;
pub mod queue;
pub(crate) mod shared;
#[cfg(test)]
mod tests;

pub use driver::EngineHandle;
pub use news::{Gathering, NewsFeed};
