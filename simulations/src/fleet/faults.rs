//! What goes wrong in a fleet, and how it is mended.

use hoarder::Input;

use super::{FleetEvent, FleetSeen};
use crate::faults::{Kind, Strike};
use crate::observe::{End, NodeId};
use crate::time::Time;
use crate::world::{Event, World};

impl World {
    /// Strikes; `false` when there is nothing to strike.
    pub(crate) fn strike_fleet(&mut self, kind: Kind, strike: &Strike) -> bool {
        let Strike { node, size, lasts_us, .. } = *strike;
        let name = usize::try_from(size >> 40).unwrap_or(0) % self.fleet.names.len().max(1);
        if !self.fleet.members.contains(&node) {
            return false;
        }
        match kind {
            Kind::MembershipFlaps => {
                for times in 0..2 + size % 4 {
                    self.after(Time::ms(times * (500 + size % 3_000)), Event::Fleet(FleetEvent::Flap(node)));
                }
                true
            }
            Kind::PlacementChange => self.drain(node, true),
            Kind::Holders => {
                // Not while a disk has just been lost: the others may not know yet. And no more than there are members.
                let most = self.fleet.members.len().clamp(1, 3) as u64;
                let holders = u8::try_from(1 + size % most).unwrap_or(1);
                self.may_lose(usize::MAX) && self.set_holders(node, name, holders)
            }
            Kind::Farewell => self.farewell(node, Time(lasts_us)),
            Kind::ForgedBeats => self.forge_beats(node, size),
            Kind::WholePower => self.all_power(),
            Kind::IdentityTwice => self.twin(node, size, Time(lasts_us)),
            Kind::DropDatabase => {
                let dropped = self.drop_fleet(node, name);
                if dropped {
                    self.fleet.made.remove(&name);
                    self.after(Time::secs(4), Event::Fleet(FleetEvent::Client(super::clients::OPERATOR)));
                }
                dropped
            }
            _ => false,
        }
    }

    /// Nobody is told to hold nothing any more, and nobody speaks in another's name.
    pub(crate) fn heal_fleet(&mut self) {
        if !self.fleet.is_there() {
            return;
        }
        self.fleet.twins.clear();
        self.fleet.calm_since = Some(self.now);
        for id in std::mem::take(&mut self.fleet.draining) {
            self.fleet_input(id, Input::Drain(false));
        }
    }

    pub(crate) fn drain(&mut self, id: NodeId, draining: bool) -> bool {
        let changes = if draining { self.fleet.draining.insert(id) } else { self.fleet.draining.remove(&id) };
        if changes {
            self.fleet_input(id, Input::Drain(draining));
        }
        changes
    }

    /// Says good-bye, ends, and comes back.
    pub(crate) fn farewell(&mut self, id: NodeId, back_after: Time) -> bool {
        if self.member(id).is_none() {
            return false;
        }
        self.fleet_input(id, Input::Leave);
        let incarnation = self.incarnation(id);
        self.after(Time::ms(100), Event::Fleet(FleetEvent::End(id, incarnation)));
        self.after(Time::ms(100) + back_after, Event::Boot(id));
        true
    }

    /// Another number of holders for a database, asked for at a node.
    pub(crate) fn set_holders(&mut self, id: NodeId, name: usize, holders: u8) -> bool {
        let Some(name) = self.fleet.names.get(name).cloned() else { return false };
        let Some((database, _)) = self.controller(id).and_then(|controller| controller.registry().current(&name)) else {
            return false;
        };
        let token = self.fleet.number();
        self.observe_fleet(&FleetSeen::Holders { database, holders });
        self.fleet_input(id, Input::SetHolders { token, name, holders, patience: Time::secs(10).duration() });
        true
    }

    /// Drops a database by its name, and lets it be made anew.
    pub(crate) fn drop_fleet(&mut self, id: NodeId, name: usize) -> bool {
        let Some(text) = self.fleet.names.get(name).cloned() else { return false };
        let Some((database, _)) = self.controller(id).and_then(|controller| controller.registry().current(&text)) else {
            return false;
        };
        let token = self.fleet.number();
        self.observe_fleet(&FleetSeen::Drops { database });
        self.fleet_input(id, Input::Drop { token, name: text, patience: Time::secs(10).duration() });
        true
    }

    /// Beats that a node did not make: unsigned ones that say it leaves, and signed ones of another start.
    pub(crate) fn forge_beats(&mut self, of: NodeId, boot: u64) -> bool {
        let Some(key) = self.nodes.get(of).map(|node| node.signer.0) else { return false };
        let members: Vec<NodeId> = self.fleet.members.iter().copied().collect();
        for to in members {
            let incarnation = self.incarnation(to);
            for (counter, signed) in [(1, true), (u64::MAX >> 1, false), (2, true)] {
                // A start that nobody confirms: the first of them is a replay of long ago.
                if signed && to == of {
                    continue;
                }
                let beat = super::driver::forged(key, boot >> 1, counter, signed);
                let delay = Time(self.random.below(500_000));
                let input = Box::new(Input::Beat(beat));
                self.after(delay, Event::Fleet(FleetEvent::Input(to, incarnation, input)));
            }
        }
        true
    }

    /// A second process under the identity of a node is about for a while: it beats, and answers half of the probes.
    pub(crate) fn twin(&mut self, of: NodeId, boot: u64, lasts: Time) -> bool {
        let Some(key) = self.nodes.get(of).map(|node| node.signer.0) else { return false };
        let until = self.now + lasts;
        self.fleet.twins.insert(of, (boot >> 1, until));
        let members: Vec<NodeId> = self.fleet.members.iter().copied().collect();
        for beat in 0..=lasts.0 / 1_000_000 {
            for to in &members {
                let incarnation = self.incarnation(*to);
                let bytes = super::driver::forged(key, boot >> 1, beat + 1, true);
                let input = Box::new(Input::Beat(bytes));
                self.after(Time::secs(beat), Event::Fleet(FleetEvent::Input(*to, incarnation, input)));
            }
        }
        true
    }

    /// Whether everything survives the loss of what is on this node's disk, and can be made good by the others.
    pub(crate) fn may_lose(&self, victim: NodeId) -> bool {
        let all_up = self.fleet.members.iter().all(|id| {
            self.member(*id).is_some()
                && self.since_start(*id) > Time::secs(20)
                && self.nodes.get(*id).is_some_and(|node| node.frozen.is_none())
        });
        let cut = self
            .fleet
            .members
            .iter()
            .any(|one| self.fleet.members.iter().any(|other| one != other && self.net.is_cut(*one, *other)));
        all_up && !cut && self.fleet.members.iter().all(|id| self.may_spare(*id, victim))
    }

    fn may_spare(&self, by: NodeId, victim: NodeId) -> bool {
        let Some(controller) = self.controller(by) else { return false };
        controller.registry().all().all(|(database, live)| {
            let claims = controller.registry().claims(&database);
            let ever = claims.values().filter(|claim| claim.ever_ready).count();
            let sources = claims.iter().filter(|(peer, claim)| {
                let Some(node) = self.node_of(peer) else { return false };
                let same =
                    self.nodes.get(node).and_then(|node| node.disk().state()).is_some_and(|(store, _)| store == claim.store);
                node != victim && claim.was_ready && same && claim.state != hoarder::registry::ClaimState::Leaving
            });
            let sources = sources.count();
            let ready = self.fleet.members.iter().filter(|id| {
                self.controller(**id).is_some_and(|it| it.readiness(&database) == hoarder::claims::Readiness::Ready)
            });
            sources > 0
                && sources + usize::from(live.settings.least) > ever
                && ready.count() >= usize::from(live.settings.holders)
        })
    }

    /// The power of all machines fails at once; they come back one by one.
    pub(crate) fn all_power(&mut self) -> bool {
        for id in 0..self.nodes.len() {
            if self.nodes.get(id).is_some_and(|node| node.process().is_some()) {
                self.crash(id, End::Power);
            }
        }
        true
    }
}
