//! Fleets: a few seeds of everything, and each situation by its name.

use simulations::runner::{Extras, run};
use simulations::scenarios::load;

fn check(name: &str, seeds: std::ops::Range<u64>) {
    let scenario = load(name).unwrap_or_else(|what| panic!("{what}"));
    for seed in seeds {
        let outcome = run(&scenario, seed, Extras::default());
        assert_eq!(outcome.violation, None, "scenario {name}, seed {seed}");
    }
}

#[test]
fn a_few_seeds_of_fleets() {
    check("fleet-calm", 0..2);
    check("chaos-fleet", 0..4);
}

#[test]
fn the_same_seed_gives_the_same_fleet() {
    let scenario = load("chaos-fleet").unwrap();
    let trace = |seed| run(&scenario, seed, Extras::default()).trace;
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}
