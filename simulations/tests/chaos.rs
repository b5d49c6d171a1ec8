//! A few seeds of everything, and what must be so of any run.

use simulations::runner::{Extras, run};
use simulations::scenarios::load;

#[test]
fn a_few_seeds_of_chaos_and_of_swarms() {
    for (name, seeds) in
        [("chaos", 0..1), ("swarm", 0..4), ("compaction", 0..1), ("snapshots", 1..2), ("conditions", 0..1), ("upkeep", 0..1)]
    {
        let scenario = load(name).unwrap();
        for seed in seeds {
            let outcome = run(&scenario, seed, Extras::default());
            assert_eq!(outcome.violation, None, "scenario {name}, seed {seed}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let scenario = load("chaos").unwrap();
    let trace = |seed| run(&scenario, seed, Extras::default()).trace;
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

#[test]
fn a_run_without_its_faults_and_writes_still_ends_well() {
    let scenario = load("chaos").unwrap();
    let plan = simulations::faults::Plan::default();
    let skip = (0..8).flat_map(|client| (0..250).map(move |number| (client, number))).collect();
    let outcome = run(&scenario, 1, Extras { plan: Some(plan), skip, ..Extras::default() });
    assert_eq!(outcome.violation, None);
    assert!(outcome.plan.strikes.is_empty());
}

#[test]
fn a_mark_that_is_not_reached_is_a_violation() {
    let mut scenario = load("calm").unwrap();
    scenario.workload.operations = 10;
    scenario.reached = vec!["power-loss".to_owned()];
    let found = run(&scenario, 0, Extras::default()).violation.unwrap();
    assert_eq!(found.checker, "reached");
}
