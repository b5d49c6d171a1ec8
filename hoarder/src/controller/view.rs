//! What an operator is shown of a node's view of the fleet. Nothing here changes anything.

use std::collections::BTreeMap;

use crdt::{DatabaseId, DatabaseName};
use kvdb::PeerId;

use super::Controller;
use crate::barrier::Durability;
use crate::claims::Readiness;
use crate::membership::{Heard, Standing};
use crate::registry::{Claim, ClaimState};
use crate::{Epoch, Moment};

/// A member as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberView {
    /// Who it is.
    pub peer: PeerId,
    /// How it stands.
    pub standing: Standing,
    /// It is to hold nothing.
    pub draining: bool,
    /// Its weight in placement, if it was heard.
    pub capacity: Option<u64>,
}

/// A database as this node sees it in the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseView {
    /// Its id.
    pub database: DatabaseId,
    /// Its name.
    pub name: DatabaseName,
    /// How often the name was dropped before.
    pub generation: u64,
    /// How many holders it should have.
    pub holders: u8,
    /// The durability of writes that name none.
    pub durability: Durability,
    /// The members that should hold it.
    pub desired: Vec<PeerId>,
    /// The ready and live holders, in the order in which they are asked.
    pub ready: Vec<PeerId>,
    /// All claims.
    pub claims: Vec<(PeerId, Claim)>,
}

/// Figures of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is shown by itself")]
pub struct Figures {
    /// Members of the fleet, dead ones included.
    pub known: usize,
    /// Live members, this one included.
    pub live: usize,
    /// The digest of the live members.
    pub epoch: Epoch,
    /// The time after the start in which nothing is moved is over.
    pub settled: bool,
    /// Fewer than half of the members are live: nothing is moved.
    pub frozen: bool,
    /// No other member was heard for as long as it takes to call one dead.
    pub cut_off: bool,
    /// Another process runs under this identity.
    pub twice: bool,
    /// The registry was compared with enough members: this node knows which databases there are.
    pub checked: bool,
    /// This node is to hold nothing.
    pub draining: bool,
    /// Databases of the fleet.
    pub databases: usize,
    /// Databases of which this node is a ready holder just now.
    pub serving: usize,
    /// This node's claims by state.
    pub claims: BTreeMap<ClaimState, usize>,
    /// Writes that wait for their confirmation here.
    pub waiting: usize,
    /// Calls under way.
    pub calls: usize,
    /// What heartbeats were worth.
    pub heard: BTreeMap<Heard, u64>,
    /// Entries of the registry that were none of this version.
    pub refused: u64,
}

impl Controller {
    /// All members.
    #[must_use]
    pub fn members_view(&self, now: Moment) -> Vec<MemberView> {
        let mut members: Vec<PeerId> = self.membership.others().chain([self.me]).collect();
        members.sort();
        let view = |peer: PeerId| {
            let beat = self.membership.last_beat(&peer, now);
            let mine = peer == self.me;
            MemberView {
                peer,
                standing: self.membership.standing(&peer, now).unwrap_or(Standing::Dead),
                draining: if mine { self.draining } else { beat.is_some_and(|beat| beat.draining) },
                capacity: if mine { Some(self.options.capacity) } else { beat.map(|beat| beat.capacity) },
            }
        };
        members.into_iter().map(view).collect()
    }

    /// A database by its name.
    #[must_use]
    pub fn database_view(&self, name: &DatabaseName) -> Option<DatabaseView> {
        let (database, live) = self.registry.current(name)?;
        Some(DatabaseView {
            database,
            name: live.name.clone(),
            generation: live.generation,
            holders: live.settings.holders,
            durability: live.settings.durability,
            desired: self.desired(&database),
            ready: self.serving(&database),
            claims: self.registry.claims(&database).iter().map(|(peer, claim)| (*peer, *claim)).collect(),
        })
    }

    /// Up to `limit` databases after a name, by name.
    #[must_use]
    pub fn databases_view(&self, after: Option<&DatabaseName>, limit: usize) -> Vec<DatabaseView> {
        let names = self.registry.all_after(after).take(limit).map(|(_, live)| live.name);
        names.filter_map(|name| self.database_view(name)).collect()
    }

    /// The figures of this node.
    #[must_use]
    pub fn figures(&self, now: Moment) -> Figures {
        let mut claims = BTreeMap::new();
        for claim in self.all.iter().filter_map(|database| self.registry.claims(database).get(&self.me)) {
            *claims.entry(claim.state).or_insert(0) += 1;
        }
        let ready = |database: &&DatabaseId| self.readiness(database) == Readiness::Ready;
        Figures {
            known: self.membership.known(),
            live: self.membership.live().len(),
            epoch: self.epoch,
            settled: self.membership.is_settled(now),
            frozen: self.membership.is_frozen(),
            cut_off: self.membership.is_cut_off(now),
            twice: self.membership.is_twice(now),
            checked: self.store_checked,
            draining: self.draining,
            databases: self.registry.all().count(),
            serving: self.holdings.keys().filter(ready).count(),
            claims,
            waiting: self.holdings.keys().map(|database| self.barrier.waiting(database)).sum(),
            calls: self.calls.len(),
            heard: self.membership.counts().clone(),
            refused: self.registry.refused(),
        }
    }
}
