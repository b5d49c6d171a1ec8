//! Runs of one seed: a safety phase with faults, a liveness phase without.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkers;
use crate::faults::{FAULTS, Plan};
use crate::observe::{Checker, ClientId, Observation, Violation};
use crate::scenario::Scenario;
use crate::scenarios;
use crate::time::Time;
use crate::trace::TraceHash;
use crate::workload::Application;
use crate::world::{TraceSink, World};

/// What became of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is wrong, if anything.
    pub violation: Option<Violation>,
    /// The hash over all that happened.
    pub trace: TraceHash,
    /// Events that happened.
    pub events: u64,
    /// Virtual time at the end.
    pub ended: Time,
    /// From healing to equality.
    pub equal_after: Option<Time>,
    /// Counters, faults by name and marks of checkers.
    pub marks: BTreeMap<&'static str, u64>,
    /// The faults that were planned.
    pub plan: Plan,
}

/// What a run may have besides its scenario and its seed.
#[derive(Default)]
pub struct Extras {
    /// Checkers besides all of ours.
    pub checkers: Vec<Box<dyn Checker>>,
    /// Faults instead of those that the seed gives.
    pub plan: Option<Plan>,
    /// Writes that are left out: client and number.
    pub skip: BTreeSet<(ClientId, u64)>,
    /// What the clients write, instead of the scenario's workload.
    pub application: Option<Box<dyn Application>>,
    /// A readable trace.
    pub sink: Option<TraceSink>,
}

impl std::fmt::Debug for Extras {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extras")
    }
}

/// Runs one seed of a scenario.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64, extras: Extras) -> Outcome {
    let scenario = &scenarios::drawn(scenario, seed);
    let mut all = checkers::all(scenario);
    all.extend(extras.checkers);
    let mut world = World::new(scenario, seed, all);
    if let Some(plan) = extras.plan {
        world.set_plan(plan);
    }
    world.skip_writes(extras.skip);
    if let Some(application) = extras.application {
        world.run_application(application);
    }
    if let Some(sink) = extras.sink {
        world.trace_to(sink);
    }
    let equal_after = run_world(&mut world, scenario);
    let mut marks = world.counters().clone();
    for (number, times) in world.struck() {
        if let Some(fault) = FAULTS.get(*number) {
            *marks.entry(fault.name).or_default() += times;
        }
    }
    for (name, times) in world.checkers().iter().flat_map(|checker| checker.marks()) {
        *marks.entry(name).or_default() += times;
    }
    let mut violation = world.violation().cloned();
    if violation.is_none()
        && let Some(missed) = scenario.reached.iter().find(|mark| marks.get(mark.as_str()).is_none_or(|times| *times == 0))
    {
        violation = Some(Violation { checker: "reached", at: world.now(), what: format!("the mark {missed} was not reached") });
    }
    Outcome {
        seed,
        violation,
        trace: world.trace(),
        events: world.events(),
        ended: world.now(),
        equal_after,
        marks,
        plan: world.plan(),
    }
}

/// Both phases; how long it took until all were equal.
fn run_world(world: &mut World, scenario: &Scenario) -> Option<Time> {
    let safety = Time::secs(scenario.faults.seconds);
    let most = Time(safety.0 * 4);
    let mut until = safety;
    // Longer if the clients have not come to their end, but not for ever: some never can.
    while until <= most {
        while world.step(until) {}
        if world.violation().is_some() {
            return None;
        }
        if !world.clients_busy() {
            break;
        }
        until = until + Time::secs(1);
    }
    let healed = until;
    world.rest_until(healed);
    world.heal();
    let limit = healed + Time::secs(scenario.equal_within_s);
    let mut next = healed;
    while next < limit {
        next = next + Time::ms(250);
        while world.step(next) {}
        world.rest_until(next);
        if world.violation().is_some() {
            return None;
        }
        if world.all_equal() && world.probe_fleet() {
            let equal_after = next.since(healed);
            let rested = next + Time::secs(scenario.rest_s);
            while world.step(rested) {}
            world.rest_until(rested);
            if !world.all_equal() {
                // What goes with time is under way.
                next = rested;
                continue;
            }
            world.watchers_read_all();
            world.observe(&Observation::Equal);
            world.finish();
            return Some(equal_after);
        }
    }
    // The checker of convergence says what differs.
    world.finish();
    world.must_be_equal();
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Faults, Workload};

    fn small() -> Scenario {
        let workload = Workload { operations: 200, clients: 4, think_ms: 50, ..Workload::default() };
        let faults = Faults { seconds: 10, gap_ms: 500, ..Faults::default() };
        Scenario { nodes: 3, workload, faults, ..Scenario::default() }
    }

    #[test]
    fn a_seed_gives_the_same_run_each_time() {
        let runs: Vec<Outcome> = [1, 1, 2].into_iter().map(|seed| run(&small(), seed, Extras::default())).collect();
        assert_eq!((runs[0].trace, runs[0].events, &runs[0].marks), (runs[1].trace, runs[1].events, &runs[1].marks));
        assert_ne!(runs[0].trace, runs[2].trace);
        assert!(runs.iter().all(|run| run.violation.is_none()), "{runs:?}");
    }

    #[test]
    fn a_plan_that_was_drawn_gives_the_same_faults_when_it_is_given() {
        let drawn = run(&small(), 3, Extras::default());
        assert!(!drawn.plan.strikes.is_empty());
        let none = run(&small(), 3, Extras { plan: Some(Plan::default()), ..Extras::default() });
        assert!(none.plan.strikes.is_empty() && none.violation.is_none() && none.trace != drawn.trace);
    }

    #[test]
    fn a_mark_that_is_missed_fails_the_run() {
        let scenario = Scenario { reached: vec!["no such mark".to_owned()], ..small() };
        assert_eq!(run(&scenario, 1, Extras::default()).violation.unwrap().checker, "reached");
    }
}
