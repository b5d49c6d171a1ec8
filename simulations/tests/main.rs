//! Scenarios as tests: each case from faults of other systems, and a little chaos at every run.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what tests are built from")]

mod cases;
mod cases_wide;
mod chaos;
mod fleet;
mod golden;

use simulations::runner::{Extras, run};
use simulations::scenarios::load;

/// Where none of these seeds takes the ways that a scenario names, so many further ones may.
const MORE: u64 = 20;

/// Runs a scenario: no seed may find anything, and some seed must take the ways that it names. Which one does changes with
/// every change of what is sent.
fn check(name: &str, seeds: std::ops::Range<u64>) {
    let scenario = load(name).unwrap_or_else(|what| panic!("{what}"));
    let mut reached = false;
    for seed in seeds.start..seeds.end + MORE {
        if seed >= seeds.end && reached {
            return;
        }
        let outcome = run(&scenario, seed, Extras::default());
        assert!(outcome.equal_after.is_some() || outcome.violation.is_some(), "scenario {name}, seed {seed}: never equal");
        match outcome.violation {
            None => reached = true,
            Some(missed) if missed.checker == "reached" => {}
            Some(found) => panic!("scenario {name}, seed {seed}: {found:?}"),
        }
    }
    assert!(reached, "scenario {name}: no seed took the ways that it names");
}
