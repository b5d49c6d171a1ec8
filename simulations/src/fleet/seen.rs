//! What checkers see of a fleet.

use bytes::Bytes;
use crdt::{DatabaseId, Dot, Key};
use hoarder::wire::{Answer, Code};
use hoarder::{Durability, Epoch};

use super::Asked;
use crate::observe::NodeId;
use crate::time::Time;

/// Something that happened in the fleet.
#[derive(Debug)]
#[non_exhaustive]
pub enum FleetSeen<'a> {
    /// A client has asked a member; also for each retry.
    Asked {
        /// The member.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// What for.
        asked: &'a Asked,
    },
    /// A client has its answer.
    Answered {
        /// The member that was asked.
        node: NodeId,
        /// What for.
        asked: &'a Asked,
        /// When this attempt was made.
        since: Time,
        /// In short.
        code: Code,
        /// At length.
        answer: &'a Answer,
    },
    /// A holder lets the outcome of a write out.
    Served {
        /// The holder.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// What was asked for.
        asked: &'a Asked,
        /// The write.
        dot: Dot,
        /// What it was to wait for.
        durability: Durability,
        /// Whether it is confirmed.
        done: bool,
        /// The holders that are said to have it.
        named: Vec<NodeId>,
        /// The number of holders that this one acts on.
        holders: u8,
        /// The least number that anybody acts on or has read.
        lowest: u8,
        /// The holder's view.
        epoch: Epoch,
    },
    /// A key was read for a caller.
    Read {
        /// The holder.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// The key.
        key: &'a Key,
        /// What was there.
        value: Option<&'a Bytes>,
        /// The holder is ready, and has what was confirmed before this.
        since: Option<Time>,
    },
    /// A member has become a ready holder: what was confirmed before `since` must be there.
    Ready {
        /// The member.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// See above.
        since: Time,
    },
    /// A member writes a new claim, or removes its own.
    Claims {
        /// The member.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// A new claim.
        joins: bool,
        /// How long its process has run.
        up_for: Time,
        /// For how long fewer than half of the members could be reached.
        alone_for: Time,
        /// The database was dropped, as it sees the registry.
        dropped: bool,
        /// Who sees all would have it hold the database; `None` while views may rightly differ.
        wanted: Option<bool>,
    },
    /// A member deletes what it has of a database.
    Releases {
        /// The member.
        node: NodeId,
        /// The database.
        database: DatabaseId,
        /// The database was dropped.
        dropped: bool,
        /// The number of holders that it acts on.
        holders: u8,
    },
    /// The data are deleted.
    Released {
        /// The member.
        node: NodeId,
        /// The database.
        database: DatabaseId,
    },
    /// Somebody asked for another number of holders.
    Holders {
        /// The database.
        database: DatabaseId,
        /// How many.
        holders: u8,
    },
    /// Somebody asked for a drop.
    Drops {
        /// The database.
        database: DatabaseId,
    },
}

impl FleetSeen<'_> {
    /// The node that it is about, and what it is, for a reader.
    #[must_use]
    pub fn described(&self) -> (Option<NodeId>, String) {
        match self {
            Self::Asked { node, asked, .. } => (Some(*node), format!("is asked by client {}: {}", asked.client, asked.text())),
            Self::Answered { node, asked, code, answer, .. } => {
                (Some(*node), format!("answers client {}: {code:?} {:?}, for {}", asked.client, answer.dot, asked.text()))
            }
            Self::Served { node, dot, done, named, durability, .. } => {
                let what = if *done { "confirms" } else { "does not confirm" };
                (Some(*node), format!("{what} {dot}, {durability:?}, with {named:?}"))
            }
            Self::Read { node, key, value, since, .. } => (
                Some(*node),
                format!("reads {key}: {:?}, ready {}", value.map(|it| String::from_utf8_lossy(it)), since.is_some()),
            ),
            Self::Ready { node, database, since } => (Some(*node), format!("is ready for {database}, caught up from {since}")),
            Self::Claims { node, database, joins, wanted, .. } => (
                Some(*node),
                format!("{} {database}, wanted {wanted:?}", if *joins { "claims" } else { "takes back its claim to" }),
            ),
            Self::Releases { node, database, dropped, .. } => (Some(*node), format!("deletes {database}, dropped {dropped}")),
            Self::Released { node, database } => (Some(*node), format!("has deleted {database}")),
            Self::Holders { database, holders } => (None, format!("{database} is to have {holders} holders")),
            Self::Drops { database } => (None, format!("{database} is to be dropped")),
        }
    }
}
