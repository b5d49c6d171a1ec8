//! Options of a node. The library reads no file of options and no environment.

use std::path::PathBuf;
use std::time::Duration;

use crdt::Durability;

use crate::limits::EXPIRY_GRACE;

pub use crate::engine::history::HistoryOptions;
pub use crate::net::{NetworkKey, NetworkOptions};
pub use crate::store::{LossPolicy, StoreOptions};

/// How to open a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Where identity and store live; made when it is not there. One process at a time can have it open.
    pub data_dir: PathBuf,
    /// Further data directories, on other disks, each with a store of its own: a new database goes to the least loaded
    /// one and stays there. At most [`crate::limits::MAX_SHARDS`] with `data_dir`. None unless set. One may be added at any
    /// time; one that has databases cannot simply be left out again.
    pub directories: Vec<PathBuf>,
    /// Memory and files of the store.
    pub store: StoreOptions,
    /// The network; `None` for a node that speaks to nobody.
    pub network: Option<NetworkOptions>,
    /// The durability of writes that do not name one: `Sync` (the default) waits for the disk, `Buffered` is faster and
    /// may lose the last writes at a power failure, which sync with other nodes brings back if they had them.
    pub durability: Durability,
    /// How much history is kept for nodes that are behind.
    pub history: HistoryOptions,
    /// How long after its expiry a value is deleted for good, [`crate::limits::EXPIRY_GRACE`] unless set otherwise; reads
    /// hide it at once. Shorter than clocks differ, and a node behind sees values vanish early.
    pub expiry_grace: Duration,
}

impl NodeOptions {
    /// A node in this directory with default options and no network.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            directories: Vec::new(),
            store: StoreOptions::default(),
            network: None,
            durability: Durability::Sync,
            history: HistoryOptions::default(),
            expiry_grace: EXPIRY_GRACE,
        }
    }

    /// With further data directories.
    #[must_use]
    pub fn directories(mut self, directories: impl IntoIterator<Item = PathBuf>) -> Self {
        self.directories = directories.into_iter().collect();
        self
    }

    /// With a network.
    #[must_use]
    pub fn network(mut self, network: NetworkOptions) -> Self {
        self.network = Some(network);
        self
    }

    /// With other rules for history.
    #[must_use]
    pub fn history(mut self, history: HistoryOptions) -> Self {
        self.history = history;
        self
    }

    /// With another time between expiry and deletion.
    #[must_use]
    pub fn expiry_grace(mut self, grace: Duration) -> Self {
        self.expiry_grace = grace;
        self
    }

    /// With another default durability.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
}
