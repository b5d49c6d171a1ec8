//! An application in the simulator: clients claim seats, on many nodes, while links fail.
//!
//! With one key for each seat, read and then written, two claims on two nodes may both be confirmed, and one of them is gone
//! once the nodes meet: a lost update. With one key for each claimant nothing is ever overwritten by somebody else, and every
//! reader resolves the claims of a seat in the same way.
//!
//!     cargo run -p simulations --release --example claims

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use crdt::{Change, Key, KeyError, LocalOp, Store as _, View as _};
use simulations::observe::{Checker, ClientId, Observation, WorldView};
use simulations::random::Random;
use simulations::runner::{Extras, Outcome, run};
use simulations::scenario::Scenario;
use simulations::time::Time;
use simulations::workload::Application;

const SEATS: u64 = 20;

/// Which layout of keys the application uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `/seats/<seat>` = claimant, if it is free.
    KeyPerSeat,
    /// `/seats/<seat>/<claimant>`, whoever else claims it.
    KeyPerClaimant,
}

impl Layout {
    fn key(self, seat: u64, client: ClientId) -> Result<Key, KeyError> {
        let path = match self {
            Self::KeyPerSeat => format!("/seats/{seat}"),
            Self::KeyPerClaimant => format!("/seats/{seat}/{client}"),
        };
        Key::parse(&path)
    }
}

/// The claims that were confirmed: where they stand, and whose they are.
type Confirmed = Rc<RefCell<BTreeSet<(Key, Bytes)>>>;

/// The workload.
struct Claims {
    layout: Layout,
    confirmed: Confirmed,
}

impl Application for Claims {
    fn next(&mut self, client: ClientId, read: &dyn Fn(&Key) -> Option<Bytes>, random: &mut Random) -> Vec<LocalOp> {
        let Ok(key) = self.layout.key(random.below(SEATS), client) else { return Vec::new() };
        // Somebody has it: nothing to do. On another node somebody may be getting it at this very moment.
        if read(&key).is_some() {
            return Vec::new();
        }
        vec![LocalOp::new(key, Change::Put { value: Bytes::from(client.to_string()), expiry: None })]
    }

    fn confirmed(&mut self, _: ClientId, ops: &[LocalOp]) {
        for op in ops {
            if let Change::Put { value, .. } = &op.change {
                self.confirmed.borrow_mut().insert((op.key.clone(), value.clone()));
            }
        }
    }
}

/// The rule: in the end every confirmed claim can be found.
struct NoClaimIsLost(Confirmed);

impl Checker for NoClaimIsLost {
    fn name(&self) -> &'static str {
        "no claim is lost"
    }

    fn observe(&mut self, _: Time, _: &Observation<'_>, _: &WorldView<'_>) -> Result<(), String> {
        Ok(())
    }

    fn finish(&mut self, world: &WorldView<'_>) -> Result<(), String> {
        let database = world.databases().first().ok_or("there is no database")?;
        for (key, claimant) in self.0.borrow().iter() {
            let view = world.store(0).and_then(|store| store.view(database).ok()).ok_or("node 0 has nothing")?;
            let row = view.row(key).map_err(|error| error.to_string())?;
            let winner = row.siblings().first().and_then(|winner| winner.value.clone());
            if winner.as_ref() != Some(claimant) {
                return Err(format!("the claim of client {claimant:?} for {key} was confirmed, and is gone: {winner:?} has it"));
            }
        }
        Ok(())
    }
}

fn simulate(layout: Layout, seed: u64) -> Outcome {
    let mut scenario = Scenario { name: "claims".to_owned(), nodes: 3, ..Scenario::default() };
    scenario.workload.clients = 6;
    scenario.workload.operations = 120;
    scenario.workload.sync_percent = 100;
    scenario.faults.kinds = vec!["partition".to_owned(), "flapping".to_owned()];
    let confirmed = Confirmed::default();
    let extras = Extras {
        checkers: vec![Box::new(NoClaimIsLost(Rc::clone(&confirmed)))],
        application: Some(Box::new(Claims { layout, confirmed })),
        ..Extras::default()
    };
    run(&scenario, seed, extras)
}

fn main() {
    for layout in [Layout::KeyPerClaimant, Layout::KeyPerSeat] {
        let found: Vec<String> = (0..20)
            .filter_map(|seed| simulate(layout, seed).violation.map(|it| format!("seed {seed}: {}: {}", it.checker, it.what)))
            .collect();
        println!("{layout:?}: {} of 20 seeds lose a claim", found.len());
        if let Some(first) = found.first() {
            println!("  {first}");
        }
    }
}
