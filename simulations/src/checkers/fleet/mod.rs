//! Rules of fleets.

mod claims;
mod copies;
mod once;
mod reads;
mod ready;
mod releases;
mod winner;

use std::collections::{BTreeMap, BTreeSet};

use crdt::{DatabaseId, Dot};
use hoarder::Durability;

use super::{Check, Copy, Truth};
use crate::fleet::FleetSeen;
use crate::observe::{End, NodeId, Observation};
use crate::time::Time;

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(copies::Copies::default()),
        Box::new(ready::Ready::default()),
        Box::new(reads::Reads::default()),
        Box::new(claims::Claims),
        Box::new(releases::Releases::default()),
        Box::new(once::Once::default()),
        Box::new(winner::Winner::default()),
    ]
}

/// A write that was confirmed.
#[derive(Debug, Clone)]
pub(super) struct Confirmed {
    pub(super) dot: Dot,
    /// So many disks must have it, less those that faults destroyed since it was last on as many.
    pub(super) k: u8,
    /// It was confirmed with as many holders as the database then had.
    pub(super) full: bool,
    pub(super) at: Time,
    pub(super) losses: usize,
}

/// What was confirmed, and what has become of its copies.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) writes: BTreeMap<DatabaseId, Vec<Confirmed>>,
    pub(super) dropped: BTreeSet<DatabaseId>,
    /// What disks had that they have not any more, because they were lost, put back, or because it was let go of.
    former: BTreeMap<(NodeId, DatabaseId), BTreeSet<Dot>>,
    /// Of that, what faults took.
    taken: BTreeMap<(NodeId, DatabaseId), BTreeSet<Dot>>,
    gone: BTreeSet<NodeId>,
    nodes: BTreeSet<NodeId>,
}

/// What of a copy is on disk for certain.
pub(super) fn synced(copy: &Copy) -> BTreeSet<Dot> {
    copy.order.iter().take(copy.synced).copied().collect()
}

impl Ledger {
    /// Takes in what was seen. Called before the truth forgets what a node has let go of.
    pub(super) fn seen(&mut self, at: Time, seen: &Observation<'_>, truth: &Truth) {
        match seen {
            Observation::Booted { node } => drop(self.nodes.insert(*node)),
            Observation::Ended { node, how: End::Gone, .. } => {
                self.gone.insert(*node);
                for database in self.writes.keys().copied().collect::<Vec<_>>() {
                    let had = synced(truth.copy(*node, database));
                    self.lost(*node, database, had);
                }
            }
            Observation::Fleet(FleetSeen::Released { node, database }) => {
                self.former.entry((*node, *database)).or_default().extend(synced(truth.copy(*node, *database)));
            }
            Observation::Fleet(FleetSeen::Drops { database }) => drop(self.dropped.insert(*database)),
            Observation::Fleet(FleetSeen::Holders { database, holders }) => {
                for write in self.writes.entry(*database).or_default() {
                    write.k = write.k.min(*holders);
                    write.full = false;
                }
            }
            Observation::Fleet(FleetSeen::Served { database, dot, durability, done: true, named, holders, lowest, .. }) => {
                let Durability::Require(k) = durability else { return };
                // An answer may have been under way when a disk was lost.
                let taken = |node: &&NodeId| self.taken.get(&(**node, *database)).is_some_and(|dots| dots.contains(dot));
                let losses = named.iter().filter(taken).count();
                let (k, full) = ((*k).min(*lowest), k >= holders);
                self.writes.entry(*database).or_default().push(Confirmed { dot: *dot, k, full, at, losses });
            }
            _ => {}
        }
    }

    /// A node's disk was found not to have any more what it had.
    pub(super) fn started(&mut self, node: NodeId, database: DatabaseId, before: &Copy, image: bool, truth: &Truth) {
        if image {
            let now = truth.copy(node, database);
            let lost = synced(before).into_iter().filter(|dot| !now.covers(dot)).collect();
            self.lost(node, database, lost);
        }
    }

    fn lost(&mut self, node: NodeId, database: DatabaseId, lost: BTreeSet<Dot>) {
        for write in self.writes.entry(database).or_default() {
            write.losses += usize::from(lost.contains(&write.dot));
        }
        self.taken.entry((node, database)).or_default().extend(lost.iter().copied());
        self.former.entry((node, database)).or_default().extend(lost);
    }

    /// Whether a disk has or had a write.
    pub(super) fn ever_had(&self, node: NodeId, database: DatabaseId, dot: &Dot, truth: &Truth) -> bool {
        let copy = truth.copy(node, database);
        copy.order.iter().take(copy.synced).any(|known| known == dot)
            || self.former.get(&(node, database)).is_some_and(|dots| dots.contains(dot))
    }

    /// The disks of nodes that are not gone, with what is on them of a database; of one node not, if named.
    pub(super) fn disks(&self, database: DatabaseId, but: Option<NodeId>, truth: &Truth) -> Vec<(NodeId, BTreeSet<Dot>)> {
        let there = self.nodes.iter().filter(|node| !self.gone.contains(node) && Some(**node) != but);
        there.map(|node| (*node, synced(truth.copy(*node, database)))).collect()
    }
}
