//! `mutations`: each small fault in the engine must be found by a checker.

use super::Failure;
use super::args::MutationArgs;

/// Builds this program with the faults in it, and calls it.
#[cfg(not(feature = "mutations"))]
pub(super) fn mutations(_: &MutationArgs) -> Result<(), Failure> {
    use std::process::Command;

    let program = std::env::current_exe().map_err(|error| Failure::Input(format!("this program is not found: {error}")))?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // The whole workspace, as everywhere, so that nothing but its own crates is built a second time.
    let build = ["build", "--release", "--workspace", "--features", "simulations/mutations", "--bin", "simulations"];
    let failed = |what: &str| Failure::Input(format!("{what}; build it with `--features simulations/mutations` by hand"));
    let ended = Command::new(cargo).args(build).status().map_err(|error| failed(&format!("cargo cannot be run: {error}")))?;
    if !ended.success() {
        return Err(failed("the build failed"));
    }
    let ran = Command::new(program).args(std::env::args_os().skip(1)).env("SIMULATIONS_REBUILT", "1").status();
    match ran {
        Ok(status) if status.success() => Ok(()),
        Ok(_) if std::env::var_os("SIMULATIONS_REBUILT").is_some() => Err(failed("the build is not where it must be")),
        Ok(_) => Err(Failure::Found("see above".to_owned())),
        Err(error) => Err(failed(&format!("the build cannot be run: {error}"))),
    }
}

#[cfg(feature = "mutations")]
pub(super) use switched::mutations;

#[cfg(feature = "mutations")]
mod switched {
    use crdt::mutation::{Mutation, switch};

    use super::{Failure, MutationArgs};
    use crate::cli::run::many;
    use crate::scenario::Scenario;
    use crate::scenarios;

    /// Where the faults are looked for, in this order.
    const SCENARIOS: &[&str] = &[
        "chaos",
        "mutation-hunt",
        "calm",
        "wide",
        "gossip",
        "retries",
        "snapshots",
        "joins",
        "compaction",
        "conditions",
        "upkeep",
        "expiry",
        "reads",
        "hostile",
        "crowd",
    ];

    /// Where some are found soonest.
    const FIRST: &[(&str, &str)] = &[
        ("merge-before-superseded", "crowd"),
        ("request-replaced", "retries"),
        ("foreign-block-taken", "hostile"),
        ("gossip-block-lost", "gossip"),
        ("snapshot-unstaged", "snapshots"),
        ("snapshot-other-view", "snapshots"),
        ("snapshot-new-rows", "joins"),
        ("snapshot-requests-lost", "snapshots"),
        ("snapshot-heads-added", "snapshots"),
        ("truncated-unheld", "snapshots"),
        ("token-across-reset", "compaction"),
        ("condition-ignored", "conditions"),
        ("seen-ignored", "conditions"),
        ("upkeep-takes-all", "upkeep"),
        ("forgotten-early", "upkeep"),
        ("credit-kept", "calm"),
        ("announcement-ignored", "wide"),
        ("expiry-ignored", "expiry"),
        ("replica-kept-after-failed-read", "reads"),
    ];

    struct Found {
        scenario: String,
        seeds: u64,
        checker: String,
    }

    /// Prints the table; an error when one was missed, or something is found without any.
    pub(in crate::cli) fn mutations(args: &MutationArgs) -> Result<(), Failure> {
        let scenarios: Vec<Scenario> =
            SCENARIOS.iter().map(|name| scenarios::load(name)).collect::<Result<_, _>>().map_err(Failure::Input)?;
        let chosen = |one: &&Mutation| args.only.is_empty() || args.only.iter().any(|name| name == one.name());
        // What is found must be found because of the fault.
        for scenario in &scenarios {
            let report = many(scenario, 0..args.seeds.min(10), args.jobs, false);
            if let Some((seed, checker, what)) = report.violations.first() {
                return Err(Failure::Found(format!("{} finds without any fault, seed {seed}: {checker}: {what}", scenario.name)));
            }
        }
        // A panic of mutated code is expected here, and reported in the table.
        std::panic::set_hook(Box::new(|_| {}));
        println!("| mutation | what it breaks | found by | scenario | seeds |\n| --- | --- | --- | --- | ---: |");
        let mut missed = Vec::new();
        for mutation in Mutation::ALL.iter().filter(chosen) {
            switch(Some(*mutation));
            let first = FIRST.iter().find(|(name, _)| *name == mutation.name()).map_or("", |(_, scenario)| *scenario);
            let (mut tried, others): (Vec<&Scenario>, Vec<&Scenario>) = scenarios.iter().partition(|one| one.name == first);
            tried.extend(others);
            let found = tried.into_iter().find_map(|scenario| find(scenario, args));
            switch(None);
            match found {
                Some(Found { scenario, seeds, checker }) => {
                    println!("| {} | {} | {checker} | {scenario} | {seeds} |", mutation.name(), mutation.about());
                }
                None => {
                    println!("| {} | {} | **missed** | | |", mutation.name(), mutation.about());
                    missed.push(mutation.name());
                }
            }
        }
        if missed.is_empty() { Ok(()) } else { Err(Failure::Found(format!("missed: {}", missed.join(", ")))) }
    }

    fn find(scenario: &Scenario, args: &MutationArgs) -> Option<Found> {
        let report = many(scenario, 0..args.seeds, args.jobs, false);
        let (seed, checker, _) = report.violations.into_iter().next()?;
        Some(Found { scenario: scenario.name.clone(), seeds: seed + 1, checker })
    }
}
