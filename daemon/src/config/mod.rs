//! Configuration: what was written down ([`Raw`]) becomes what is run ([`Config`]).

mod fleet;
mod raw;
mod resolve;

pub use fleet::FleetConfig;
pub use raw::{Raw, RawFleet, RawHistory, RawHttp, RawP2p, RawStore, RawToken, RunFlags};
pub(crate) use resolve::default_file;
pub use resolve::{Config, ConfigError, Fault, HttpConfig, Scope, Token};

/// What `kvdb init` writes: every key with its meaning, bounds and default.
pub fn template(data_dir: &std::path::Path) -> String {
    let data_dir = toml::Value::String(data_dir.to_string_lossy().into_owned());
    include_str!("template.toml").replace("{data_dir}", &data_dir.to_string())
}
