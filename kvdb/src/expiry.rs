//! Who deletes what has expired, and when: decisions, without a clock.
//!
//! Reads hide a value once it has expired, each by its own clock. The state must not depend on clocks, so the value stays
//! until an ordinary tombstone says otherwise, which one node writes for all. That two do so at once is harmless: a tombstone
//! names what it deletes, and what is not there any more is not deleted twice.

use std::collections::BTreeSet;
use std::time::Duration;

use crdt::limits::MAX_OP_SUPERSEDED;
use crdt::mutation::{Mutation, active};
use crdt::{Change, DatabaseId, Dot, Key, LocalOp, Sibling, Terms, View, WallTime};
use libp2p::PeerId;
use sha2::{Digest as _, Sha256};

use crate::limits::{EXPIRY_PATIENCE, UPKEEP_DOTS, UPKEEP_KEYS};

/// Whether it is this node's turn to delete in a database: of all that have it open, as far as this node is connected with
/// them, one; another one for each database, so that the work is spread. Nodes that see different peers may both think so.
#[must_use]
pub fn is_mine(database: &DatabaseId, me: &PeerId, others: impl IntoIterator<Item = PeerId>) -> bool {
    let rank = |peer: &PeerId| -> [u8; 32] {
        Sha256::new().chain_update(b"kvdb/expiry/1").chain_update(database.0).chain_update(peer.to_bytes()).finalize().into()
    };
    let mine = rank(me);
    others.into_iter().all(|other| rank(&other) >= mine)
}

/// What expired by this time is this node's to delete now; the others wait longer, in case that the one is away.
#[must_use]
pub fn cutoff(now: WallTime, grace: Duration, mine: bool) -> WallTime {
    let wait = if mine { grace } else { grace.saturating_mul(EXPIRY_PATIENCE) };
    WallTime(now.0.saturating_sub(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
}

/// Deletes of what has expired by a time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The deletes; each names the siblings that it means, so that what comes meanwhile stays.
    pub ops: Vec<LocalOp>,
    /// Whether there is more than fits one write.
    pub more: bool,
}

/// Finds what has expired by a time, the earliest first. Everything must be read from one snapshot.
///
/// # Errors
/// When the view cannot read.
pub fn due<V: View>(view: &V, until: WallTime) -> Result<Due, V::Error> {
    let mut due = Due::default();
    let mut done: BTreeSet<Key> = BTreeSet::new();
    let mut dots = 0;
    for entry in view.expired(until) {
        let (_, key) = entry?;
        if done.contains(&key) {
            continue;
        }
        if done.len() >= UPKEEP_KEYS || dots >= UPKEEP_DOTS {
            due.more = true;
            break;
        }
        let row = view.row(&key)?;
        let expired = row.siblings().iter();
        let expired = expired.filter(|sibling| sibling.is_expired(until) || active(Mutation::UpkeepTakesAll));
        let seen: Vec<Dot> = expired.map(|sibling: &Sibling| sibling.dot).take(MAX_OP_SUPERSEDED).collect();
        dots += seen.len();
        due.more |= seen.len() == MAX_OP_SUPERSEDED;
        let terms = Terms { condition: None, seen: Some(seen) };
        due.ops.push(LocalOp { terms: Some(Box::new(terms)), ..LocalOp::new(key.clone(), Change::Tombstone) });
        done.insert(key);
    }
    Ok(due)
}

#[cfg(test)]
#[path = "expiry_tests.rs"]
mod tests;
