//! What goes wrong: a numbered list of kinds, a plan drawn from the seed, and how each kind strikes and is mended.

use serde::{Deserialize, Serialize};

use crate::node::Node;
use crate::observe::{End, NodeId, Observation};
use crate::random::Random;
use crate::time::Time;
use crate::world::{Event, World};

mod kinds;
pub use kinds::{FAULTS, Kind, number_of};

/// One fault: what, when, whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    /// When, in microseconds of virtual time.
    pub at_us: u64,
    /// The kind's number in [`FAULTS`].
    pub number: usize,
    /// The node that it strikes.
    pub node: NodeId,
    /// Another one, if it is about two.
    pub other: NodeId,
    /// How hard, at random; each kind makes of it what it needs.
    pub size: u64,
    /// How long, in microseconds.
    pub lasts_us: u64,
}

/// All faults of a run, by time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The faults.
    pub strikes: Vec<Strike>,
    /// Which of them follow from others of a running world.
    #[serde(skip)]
    pub(crate) parts: Vec<usize>,
}

impl Plan {
    /// These faults.
    #[must_use]
    pub fn of(strikes: Vec<Strike>) -> Self {
        Self { strikes, parts: Vec::new() }
    }
}

/// Draws the plan of a world and enters it into its heap.
pub(crate) fn plan(world: &mut World, random: &mut Random) {
    let faults = world.scenario.faults.clone();
    let mut kinds: Vec<usize> = (0..FAULTS.len())
        .filter(|number| {
            FAULTS.get(*number).is_some_and(|fault| {
                let name = fault.name.to_owned();
                fault.kind.is_some()
                    && ((faults.kinds.is_empty() && fault.is_drawn(world.fleet.is_there())) || faults.kinds.contains(&name))
                    && !faults.without.contains(&name)
            })
        })
        .collect();
    let mut gap = faults.gap_ms;
    if faults.swarm {
        // A few kinds that strike often find what all kinds that strike seldom do not.
        let keep = random.between(1, 6);
        while kinds.len() as u64 > keep {
            kinds.remove(random.index(kinds.len()));
        }
        gap = gap * random.between(20, 200) / 100;
    }
    let mut strikes = Vec::new();
    let mut at = Time::ms(500);
    let nodes = world.nodes.len();
    loop {
        at = at + Time(random.exponential(gap * 1_000));
        if gap == 0 || nodes == 0 || at >= Time::secs(faults.seconds) {
            break;
        }
        let Some(number) = random.pick(&kinds).copied() else { break };
        let node = random.index(nodes);
        let other = (node + 1 + random.index(nodes.saturating_sub(1))) % nodes;
        let lasts_us = random.exponential(faults.lasts_ms * 1_000);
        strikes.push(Strike { at_us: at.0, number, node, other, size: random.next(), lasts_us });
    }
    world.set_plan(Plan { strikes, parts: Vec::new() });
}

impl World {
    /// Replaces the faults of a world in which nothing has happened yet.
    pub fn set_plan(&mut self, plan: Plan) {
        let first = self.faults.strikes.len();
        for (index, strike) in plan.strikes.iter().enumerate() {
            self.at(Time(strike.at_us), Event::Fault(first + index));
        }
        // What was planned before finds an entry that does nothing.
        for strike in &mut self.faults.strikes {
            strike.number = usize::MAX;
        }
        self.faults.strikes.extend(plan.strikes);
    }

    /// The faults of this world.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let of_its_own = |(at, strike): &(usize, &Strike)| strike.number != usize::MAX && !self.faults.parts.contains(at);
        let strikes = self.faults.strikes.iter().enumerate().filter(of_its_own).map(|(_, strike)| strike.clone()).collect();
        Plan { strikes, parts: Vec::new() }
    }
}

/// A fault strikes.
pub(crate) fn strike(world: &mut World, index: usize) {
    let Some(strike) = world.faults.strikes.get(index).cloned() else { return };
    let Some(kind) = FAULTS.get(strike.number).and_then(|fault| fault.kind) else { return };
    if world.healed || world.nodes.get(strike.node).is_none_or(|node| node.gone) {
        return;
    }
    if kinds::strike(world, kind, &strike) {
        *world.struck.entry(strike.number).or_default() += 1;
        world.mark(strike.number as u64);
        let text = FAULTS.get(strike.number).map_or("", |fault| fault.name);
        world.note(Some(strike.node), "fault", || text.to_owned());
        world.observe(&Observation::Fault { number: strike.number, node: Some(strike.node) });
        world.after(Time(strike.lasts_us), Event::Mend(index));
    }
}

/// A fault that lasts is over.
pub(crate) fn mend(world: &mut World, index: usize) {
    let Some(strike) = world.faults.strikes.get(index).cloned() else { return };
    if let Some(kind) = FAULTS.get(strike.number).and_then(|fault| fault.kind) {
        kinds::mend(world, kind, &strike);
    }
}

impl World {
    /// Everything is mended, every node that has not left for ever runs, and the clients have stopped.
    pub fn heal(&mut self) {
        self.healed = true;
        self.stop_clients();
        let pairs: Vec<(NodeId, NodeId)> = self.net.paths_mut().map(|(from, to, _)| (from, to)).collect();
        for (from, to) in pairs {
            self.restore_path(from, to);
        }
        for id in 0..self.nodes.len() {
            self.heal_node(id);
        }
        self.bridge_gaps();
        self.heal_fleet();
        self.note(None, "healed", String::new);
        self.observe(&Observation::Healed);
    }

    /// Those who left may have been all that held the others together: each that stayed is told of the next.
    fn bridge_gaps(&mut self) {
        let here: Vec<NodeId> = self.nodes.iter().filter(|node| !node.gone).map(|node| node.id).collect();
        if here.len() == self.nodes.len() {
            return;
        }
        for (at, id) in here.iter().enumerate() {
            let next = here.get((at + 1) % here.len()).copied().unwrap_or(*id);
            let Some(address) = self.nodes.get(next).map(|node| node.address.clone()) else { continue };
            if next != *id
                && let Some(node) = self.nodes.get_mut(*id)
                && !node.bootstrap.contains(&address)
            {
                node.bootstrap.push(address.clone());
                self.dial_also(*id, address);
            }
        }
    }

    fn heal_node(&mut self, id: NodeId) {
        let now = self.now;
        let usual = kvdb::net::wire::PROTOCOL_VERSION;
        let Some(node) = self.nodes.get_mut(id).filter(|node| !node.gone) else { return };
        node.end_after_turn = None;
        node.end_in_commit = None;
        let hostile = node.hostile.take().is_some();
        node.sync_factor = 1;
        node.deaf_until = now;
        let (thaw, rolled) = (node.frozen.is_some(), std::mem::replace(&mut node.wire_version, usual) != usual);
        if thaw {
            node.frozen = Some(now);
        }
        let disk = node.disk_mut();
        let damaged = disk.is_damaged();
        disk.faults.full = false;
        disk.faults.lying = false;
        disk.faults.failing_syncs = 0;
        disk.faults.failing_reads.set(0);
        let (incarnation, up) = (node.incarnation, node.process().is_some());
        if thaw {
            self.at(now, Event::Thaw(id));
        }
        if damaged {
            // Whoever looks after the node replaces a damaged disk.
            self.end_process(id, End::Disk);
            self.count("damaged_disks_replaced");
            self.at(now, Event::Boot(id));
        } else if !up {
            self.at(now, Event::Boot(id));
        } else if rolled || hostile || self.nodes.get(id).and_then(Node::process).is_some_and(|process| process.poisoned) {
            self.at(now, Event::Restart(id, incarnation));
        }
    }

    /// A path without faults again; what was held in it goes on.
    pub(crate) fn restore_path(&mut self, from: NodeId, to: NodeId) {
        let fresh = self.scenario.path();
        let Some(path) = self.net.path(from, to) else { return };
        let held = std::mem::replace(path, fresh).held;
        self.release(from, to, held.into());
    }

    /// Nothing passes from one to the other, or it does again.
    pub(crate) fn cut_path(&mut self, from: NodeId, to: NodeId, cut: bool) {
        let Some(path) = self.net.path(from, to) else { return };
        path.cut = cut;
        if !cut {
            let held = std::mem::take(&mut path.held);
            self.release(from, to, held.into());
        }
    }

    fn release(&mut self, from: NodeId, to: NodeId, held: Vec<Event>) {
        let now = self.now;
        let Some(path) = self.net.path(from, to) else { return };
        // In order: the streams' bytes were all in one sender's buffers.
        let first = now + path.delay(&mut self.random);
        for (place, event) in held.into_iter().enumerate() {
            let at = self.in_order(&event, first + Time(place as u64));
            self.at(at, event);
        }
    }
}
