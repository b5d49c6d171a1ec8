//! Random runs: faults of all kinds, with writers on; then everything heals, and all must come right by itself.
//!
//! `SEEDS=from..to` tries others, `TRACE=1` tells what happens.

use crdt::DatabaseId;
use hoarder::registry::ClaimState;
use hoarder::wire::Code;
use hoarder::{Controller, Durability, Input};

use crate::disk::Disk;
use crate::world::{SECOND, World};

/// What may happen in a run.
#[expect(clippy::struct_excessive_bools, reason = "switches")]
#[derive(Clone, Copy)]
struct Faults {
    partitions: bool,
    crashes: bool,
    disks: bool,
    images: bool,
    pauses: bool,
    drains: bool,
    holders: bool,
}

const ALL: Faults =
    Faults { partitions: true, crashes: true, disks: true, images: true, pauses: true, drains: true, holders: true };

struct Run {
    world: World,
    databases: Vec<DatabaseId>,
    images: Vec<(usize, Disk)>,
    token: u64,
    drained: Vec<bool>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed, 3 + usize::try_from(seed % 3).unwrap());
        world.loss = world.random.below(4) * 3;
        let size = world.nodes.len();
        (0..size).for_each(|node| world.start(node));
        world.run(15 * SECOND);
        Self { world, databases: Vec::new(), images: Vec::new(), token: 1_000, drained: vec![false; size] }
    }

    fn token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    fn create(&mut self, number: u64) {
        let holders = 1 + u8::try_from(self.world.random.below(3)).unwrap();
        let node = self.any();
        let token = self.token();
        let database = self.world.create(node, token, &format!("db{number}"), holders);
        self.world.least.insert(database, holders);
        self.databases.push(database);
    }

    fn any(&mut self) -> usize {
        usize::try_from(self.world.random.below(self.world.nodes.len() as u64)).unwrap()
    }

    fn write(&mut self) {
        if self.databases.is_empty() {
            return;
        }
        let at = usize::try_from(self.world.random.below(self.databases.len() as u64)).unwrap();
        let database = self.databases[at];
        let (node, token) = (self.any(), self.token());
        let k = 1 + u8::try_from(self.world.random.below(3)).unwrap();
        let durability = match self.world.random.below(10) {
            0 => Durability::Local,
            1 => Durability::Prefer(k),
            2 => Durability::Require(k),
            _ => Durability::Require(self.world.least[&database].max(2)),
        };
        // Now and then a retry of an earlier request through another node.
        let request = if self.world.random.chance(10) { token - self.world.random.below(20) } else { token };
        self.world.write(node, token, request, database, durability);
    }

    /// Whether the data of every database survive the loss of this node's disk: the rest is enough for a joiner.
    fn may_lose(&self, victim: usize) -> bool {
        let members_up = self.world.nodes.iter().filter(|node| node.controller.is_some()).count();
        if members_up < self.world.nodes.len() || !self.world.cut.is_empty() {
            return false;
        }
        // By everybody's registry: some know of a claim that others do not know of yet.
        self.world.nodes.iter().filter_map(|node| node.controller.as_ref()).all(|controller| self.may_spare(controller, victim))
    }

    fn may_spare(&self, controller: &Controller, victim: usize) -> bool {
        controller.registry().all().all(|(database, live)| {
            let claims = controller.registry().claims(&database);
            let ever = claims.values().filter(|claim| claim.ever_ready).count();
            let sources = claims.iter().filter(|(peer, claim)| {
                let node = self.world.number(peer);
                let same = claim.store == self.world.nodes[node].disk.store;
                node != victim && claim.was_ready && same && claim.state != ClaimState::Leaving
            });
            let sources = sources.count();
            let held = self.world.ready(&database).len() >= usize::from(live.settings.holders);
            sources > 0 && sources + usize::from(live.settings.least) > ever && held
        })
    }

    fn fault(&mut self, faults: Faults) {
        let node = self.any();
        let up = self.world.nodes[node].controller.is_some();
        match self.world.random.below(14) {
            0 | 1 if faults.partitions => {
                let other = self.any();
                if self.world.random.chance(50) {
                    self.world.cut.insert((node, other));
                } else {
                    let size = self.world.nodes.len();
                    for to in (0..size).filter(|to| *to != node) {
                        self.world.cut.extend([(node, to), (to, node)]);
                    }
                }
            }
            2 | 3 => self.world.cut.clear(),
            4 | 5 if faults.crashes && up => {
                self.world.crash(node);
                let delay = 100 + self.world.random.below(30 * SECOND);
                self.world.restart_after(node, delay);
            }
            6 if faults.disks && up && self.may_lose(node) => {
                self.world.wipe(node);
                let delay = 100 + self.world.random.below(20 * SECOND);
                self.world.restart_after(node, delay);
            }
            7 if faults.images && up => {
                let disk = self.world.nodes[node].disk.clone();
                self.images.push((node, disk));
            }
            8 if faults.images && !self.images.is_empty() => {
                let at = usize::try_from(self.world.random.below(self.images.len() as u64)).unwrap();
                let (node, mut disk) = self.images[at].clone();
                // An image of an earlier opening; one of the present opening is no different from a crash to the node.
                let earlier =
                    disk.opening < self.world.nodes[node].disk.opening && disk.store == self.world.nodes[node].disk.store;
                if self.world.nodes[node].controller.is_some() && earlier && self.may_lose(node) {
                    disk.replicas.values_mut().for_each(|replica| *replica = replica.crash());
                    self.world.replace(node, disk);
                    self.world.restart_after(node, 500);
                }
            }
            9 if faults.pauses => {
                let duration = 100 + self.world.random.below(20 * SECOND);
                self.world.pause(node, duration);
            }
            10 if faults.pauses => {
                self.world.nodes[node].skew = i64::try_from(self.world.random.below(200_000)).unwrap() - 100_000;
            }
            11 if faults.drains => {
                self.drained[node] = !self.drained[node];
                let draining = self.drained[node];
                self.world.input(node, Input::Drain(draining));
            }
            12 if faults.holders && !self.databases.is_empty() => self.holders(node),
            13 if faults.crashes && up => {
                self.world.input(node, Input::Leave);
                self.world.run(200);
                self.world.crash(node);
                self.world.restart_after(node, 3 * SECOND);
            }
            _ => {}
        }
    }

    fn holders(&mut self, node: usize) {
        // Nobody lowers it while a disk has just been lost: the others may not know yet.
        let long_up = |node: &crate::world::Node| node.controller.is_some() && self.world.now > node.born + 20 * SECOND;
        if !self.world.nodes.iter().all(long_up) {
            return;
        }
        let at = usize::try_from(self.world.random.below(self.databases.len() as u64)).unwrap();
        let holders = 1 + u8::try_from(self.world.random.below(3)).unwrap();
        let token = self.token();
        let database = self.databases[at];
        let least = self.world.least[&database].min(holders);
        self.world.least.insert(database, least);
        for write in self.world.writes.iter_mut().filter(|write| write.database == database) {
            write.k = write.k.min(holders);
        }
        let name = crate::world::name(&format!("db{at}"));
        let patience = std::time::Duration::from_secs(10);
        self.world.input(node, Input::SetHolders { token, name, holders, patience });
    }

    fn heal(&mut self) {
        self.world.cut.clear();
        self.world.loss = 0;
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].skew = 0;
            self.world.start(node);
            self.world.input(node, Input::Drain(false));
        }
        self.world.run(260 * SECOND);
    }

    /// Everything that is not lost is where it should be, equal everywhere, and takes writes.
    fn check_end(&mut self) {
        for database in self.databases.clone() {
            if !self.world.registry_seen(0, &database) {
                continue;
            }
            let controller = self.world.nodes[0].controller.as_ref().unwrap();
            let mut desired: Vec<usize> = controller.desired(&database).iter().map(|peer| self.world.number(peer)).collect();
            desired.sort_unstable();
            assert_eq!(
                self.world.ready(&database),
                desired,
                "{database:?} is not held where it should be\n{}",
                self.world.picture()
            );
            let vvs: Vec<_> = desired.iter().map(|node| self.world.replica(*node, &database).unwrap().vv.clone()).collect();
            assert!(vvs.windows(2).all(|pair| pair[0] == pair[1]), "holders differ\n{}", self.world.picture());
            for write in
                self.world.writes.iter().filter(|write| write.database == database && write.losses < usize::from(write.k))
            {
                assert!(vvs[0].covers(&write.dot), "{} is lost\n{}", write.dot, self.world.picture());
            }
            let holders = u8::try_from(desired.len()).unwrap();
            for node in 0..self.world.nodes.len() {
                let token = self.token();
                self.world.write(node, token, token, database, Durability::Require(holders));
                self.world.until("a write after all has healed", 10, |world| world.replies.contains_key(&token));
                assert_eq!(self.world.replies[&token].0, Code::Done, "{}", self.world.picture());
            }
        }
    }
}

fn run(seed: u64, faults: Faults) -> usize {
    let mut run = Run::new(seed);
    (0..2).for_each(|number| run.create(number));
    for _ in 0..60 {
        for _ in 0..run.world.random.below(4) {
            run.write();
        }
        if run.world.random.chance(50) {
            run.fault(faults);
        }
        let pause = run.world.random.below(4 * SECOND);
        run.world.run(pause);
    }
    run.heal();
    run.check_end();
    run.world.writes.len()
}

fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SEEDS") else { return default };
    let (from, to) = text.split_once("..").unwrap();
    from.parse().unwrap()..to.parse().unwrap()
}

fn try_seeds(default: std::ops::Range<u64>, faults: Faults) {
    let mut confirmed = 0;
    for seed in seeds(default) {
        let outcome = std::panic::catch_unwind(|| run(seed, faults));
        confirmed += outcome.unwrap_or_else(|cause| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(cause)
        });
    }
    assert!(confirmed > 0, "nothing was ever confirmed");
}

#[test]
fn under_any_faults_nothing_confirmed_is_lost_nobody_serves_what_it_lacks_and_all_comes_right_in_the_end() {
    try_seeds(0..10, ALL);
}

#[test]
fn without_faults_of_disks_too() {
    try_seeds(1_000..1_004, Faults { disks: false, images: false, ..ALL });
}

#[test]
fn with_losses_and_moves_only() {
    let none =
        Faults { partitions: false, crashes: false, disks: false, images: false, pauses: false, drains: true, holders: true };
    try_seeds(2_000..2_004, none);
}
