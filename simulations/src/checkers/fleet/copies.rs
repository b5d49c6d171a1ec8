//! What was confirmed under `require(k)` is on k disks: at the confirmation, those that are named among them, and ever after,
//! less those that faults have destroyed since it was last on as many. So no loss of any k − 1 disks loses it.

use crdt::DatabaseId;

use super::super::{Check, Copy, Truth, Verdict};
use super::Ledger;
use crate::fleet::FleetSeen;
use crate::observe::{NodeId, Observation, WorldView};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Copies(Ledger);

impl Check for Copies {
    fn name(&self) -> &'static str {
        "confirmed on k disks"
    }

    fn seen(&mut self, seen: &Observation<'_>, truth: &Truth) -> Verdict {
        self.0.seen(truth.now, seen, truth);
        match seen {
            Observation::Fleet(FleetSeen::Served { node, database, dot, durability, done, named, .. }) => {
                if let Some(other) = named.iter().find(|other| !self.0.ever_had(**other, *database, dot, truth)) {
                    return Err(format!("n{node} says that n{other} has {dot} on disk, which never had it"));
                }
                let hoarder::Durability::Require(k) = durability else { return Ok(()) };
                if *done && named.len() < usize::from(*k) {
                    return Err(format!("n{node} confirms {dot} with {} holders, asked for {k}", named.len()));
                }
                Ok(())
            }
            Observation::Fleet(FleetSeen::Released { node, database }) => self.count(*database, Some(*node), truth),
            Observation::Ended { .. } => self.count_all(truth),
            _ => Ok(()),
        }
    }

    fn started(&mut self, node: NodeId, database: DatabaseId, before: &Copy, image: bool, truth: &Truth) -> Verdict {
        self.0.started(node, database, before, image, truth);
        self.count(database, None, truth)
    }

    fn finish(&mut self, world: &WorldView<'_>, truth: &Truth) -> Verdict {
        self.count_all(truth)?;
        // By now each is wherever its database is.
        for (database, writes) in self.0.writes.iter().filter(|(database, _)| !self.0.dropped.contains(*database)) {
            for write in writes.iter().filter(|write| write.losses < usize::from(write.k)) {
                let keeps = |node: &NodeId| world.is_up(*node) && world.keeps(*node, database);
                if let Some(node) = (0..world.nodes()).filter(keeps).find(|node| !truth.copy(*node, *database).covers(&write.dot))
                {
                    return Err(format!("{} was confirmed, and n{node} has not got it in the end", write.dot));
                }
            }
        }
        Ok(())
    }
}

impl Copies {
    fn count_all(&mut self, truth: &Truth) -> Verdict {
        let databases: Vec<DatabaseId> = self.0.writes.keys().copied().collect();
        databases.into_iter().try_for_each(|database| self.count(database, None, truth))
    }

    /// Counts the disks that have each write; of one node not, if named.
    fn count(&mut self, database: DatabaseId, but: Option<NodeId>, truth: &Truth) -> Verdict {
        if self.0.dropped.contains(&database) {
            return Ok(());
        }
        let disks = self.0.disks(database, but, truth);
        for write in self.0.writes.get_mut(&database).into_iter().flatten() {
            let copies = disks.iter().filter(|(_, dots)| dots.contains(&write.dot)).count();
            let k = usize::from(write.k);
            if copies >= k {
                write.losses = 0;
            } else if copies + write.losses < k {
                let (dot, losses) = (write.dot, write.losses);
                return Err(format!(
                    "{dot} was confirmed with {k} holders, and is on {copies} disks; {losses} were destroyed since"
                ));
            }
        }
        Ok(())
    }
}
