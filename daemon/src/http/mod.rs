//! The HTTP interface.

mod app;
mod backup;
mod batch;
mod body;
mod compact;
mod database;
mod errors;
mod fleet;
mod guard;
mod keys;
mod list;
mod metrics;
mod node;
mod repair;
mod route;
mod server;
mod terms;
mod watch;

pub use app::App;
pub use server::Server;
