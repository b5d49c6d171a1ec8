//! `shrink`: fewer faults and fewer writes that still show what a seed has found.

use std::collections::BTreeSet;

use super::args::ShrinkArgs;
use super::replay::Small;
use super::{Failure, replay_command, scenario};
use crate::faults::{FAULTS, Plan};
use crate::runner::{Extras, run};
use crate::scenario::Scenario;
use crate::tool::{pool, shrink as search};

/// Leaves out faults, then writes, as long as the same checker still finds something.
pub(super) fn shrink(args: &ShrinkArgs) -> Result<(), Failure> {
    let scenario = scenario(&args.which)?;
    let first = pool::guarded(|| run(&scenario, args.seed, Extras::default()));
    let (checker, plan, writes) = match first {
        Err(_) => ("panic".to_owned(), crate::world::World::new(&scenario, args.seed, Vec::new()).plan(), every_write(&scenario)),
        Ok(outcome) => {
            let Some(violation) = outcome.violation else {
                return Err(Failure::Input(format!("seed {} has no violation", args.seed)));
            };
            println!("{} at {} s: {}", violation.checker, violation.at, violation.what);
            (violation.checker.to_owned(), outcome.plan, every_write(&scenario))
        }
    };
    let mut tries = args.tries;
    let mut skip = BTreeSet::new();
    let strikes = search::shrink(plan.strikes, &mut tries, |strikes| {
        finds(&scenario, args.seed, &checker, &Plan::of(strikes.to_vec()), &skip)
    });
    let plan = Plan::of(strikes);
    let kept =
        search::shrink(writes.clone(), &mut tries, |kept| finds(&scenario, args.seed, &checker, &plan, &without(&writes, kept)));
    skip.extend(without(&writes, &kept));
    println!("left: {} faults, {} writes", plan.strikes.len(), kept.len());
    for strike in &plan.strikes {
        let name = FAULTS.get(strike.number).map_or("?", |fault| fault.name);
        println!("  at {:.3} s {name}: n{} (n{})", crate::tool::plot::as_f64(strike.at_us) / 1e6, strike.node, strike.other);
    }
    let small = Small { plan, skip };
    let path = args.out.clone().unwrap_or_else(|| format!("seed-{}.json", args.seed).into());
    let json = serde_json::to_string(&small).map_err(|error| Failure::Input(error.to_string()))?;
    std::fs::write(&path, json).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    println!("{} --only {}", replay_command(&args.which.scenario, args.seed), path.display());
    Ok(())
}

/// All writes of all clients, by client and number.
fn every_write(scenario: &Scenario) -> Vec<(usize, u64)> {
    let workload = &scenario.workload;
    let most = workload.operations.div_ceil(workload.clients.max(1) as u64);
    (0..workload.clients).flat_map(|client| (0..most).map(move |number| (client, number))).collect()
}

fn without(all: &[(usize, u64)], kept: &[(usize, u64)]) -> BTreeSet<(usize, u64)> {
    let kept: BTreeSet<_> = kept.iter().copied().collect();
    all.iter().copied().filter(|write| !kept.contains(write)).collect()
}

fn finds(scenario: &Scenario, seed: u64, checker: &str, plan: &Plan, skip: &BTreeSet<(usize, u64)>) -> bool {
    let extras = Extras { plan: Some(plan.clone()), skip: skip.clone(), ..Extras::default() };
    match pool::guarded(|| run(scenario, seed, extras)) {
        Err(_) => checker == "panic",
        Ok(outcome) => outcome.violation.is_some_and(|violation| violation.checker == checker),
    }
}
