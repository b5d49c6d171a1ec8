//! kvdb: a peer-to-peer, eventually consistent key-value store for path-shaped keys.
//!
//! Every node keeps a full replica of each database it has open, accepts writes on its own, and exchanges signed,
//! content-addressed deltas with the other nodes that have the same database open.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use kvdb::{Key, Node, NodeOptions};
//! let node = Node::open(NodeOptions::new("/var/lib/example")).await?;
//! let db = node.database(&"demo".parse()?).await?;
//! let key = Key::parse("/greetings/en")?;
//! db.put(&key, "hello").await?;
//! assert_eq!(db.get(&key)?.unwrap().value.as_ref(), b"hello");
//! node.close().await?;
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

mod backend;
pub mod backup;
pub mod batch;
mod clock;
pub mod compact;
pub mod database;
pub mod engine;
pub mod error;
pub mod expiry;
mod heal;
pub mod holders;
mod identity;
pub mod limits;
pub mod list;
pub mod net;
pub mod node;
pub mod options;
pub mod pattern;
mod remembered;
pub mod repair;
mod shards;
pub mod store;
pub mod stream;
mod upkeep;
pub mod verify;
pub mod watch;

pub use backup::{BackupError, BackupInfo, BackupOptions, BackupProgress};
pub use batch::{Batch, Op};
pub use compact::{CompactError, CompactOptions, CompactProgress, Compacted};
pub use crdt::{
    DatabaseId, DatabaseName, DatabaseNameError, Digest, Dot, Durability, Expiry, Key, KeyError, OpOutcome, Order, Prefix,
    ReplicaId, RequestId, Stamp, WriteRefusal,
};
pub use database::{Database, DatabaseStats};
pub use engine::history::HistoryOptions;
pub use engine::port::{WriteError, Written};
pub use error::{CloseError, DropError, OpenDatabaseError, OpenError, ReadAtError, ReadError, WaitError};
pub use holders::HoldersError;
pub use libp2p::identity::Keypair;
pub use libp2p::{Multiaddr, PeerId};
pub use list::{After, Entry, ListItem, ListOptions, Page};
pub use net::sync::{CompareState, Comparison, RepairFailure, Side};
pub use net::{DialError, NetworkError, PeerStatus};
pub use node::{DatabaseInfo, Node, NodeStatus, ShardStatus};
pub use options::{LossPolicy, NetworkKey, NetworkOptions, NodeOptions, StoreOptions};
pub use pattern::{PatternError, Patterns};
pub use repair::{CompareError, RepairError, RepairLoss, Repaired, Salvage};
pub use shards::{MoveError, MoveStep, Moved, move_database};
pub use store::{SavedSibling, Unreadable};
pub use stream::ListStream;
pub use verify::{Damage, Verified};
pub use watch::{
    WatchChange, WatchError, WatchEvent, WatchFrom, WatchOptions, WatchPut, WatchStream, WatchToken, WatchTokenError,
};
