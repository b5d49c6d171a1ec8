//! `run` and `report`: many seeds.

use std::ops::Range;

use super::args::{ReportArgs, RunArgs};
use super::progress::Progress;
use super::{Failure, replay_command, scenario};
use crate::observe::Violation;
use crate::runner::{Extras, Outcome, run as run_seed};
use crate::scenario::Scenario;
use crate::tool::measure::Measure;
use crate::tool::pool;
use crate::tool::report::{Figures, Gathering, Report};

/// Runs the seeds, stops at the first violation unless told to go on, and says how to see it.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let scenario = scenario(&args.which)?;
    let seeds = args.fresh.map_or_else(|| args.seeds.clone(), fresh);
    if args.fresh.is_some() {
        println!("fresh seeds: {}..{}", seeds.start, seeds.end);
    }
    let report = many(&scenario, seeds, args.jobs, args.keep_going);
    print!("{}", report.text());
    verdict(&args.which.scenario, &report)
}

/// As `run`, to the end, with the figures in files.
pub(super) fn report(args: &ReportArgs) -> Result<(), Failure> {
    let scenario = scenario(&args.which)?;
    let input = |what: String| move |error: std::io::Error| Failure::Input(format!("{what}: {error}"));
    let baseline: Option<Report> = match &args.baseline {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(input(path.display().to_string()))?;
            Some(serde_json::from_str(&text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?)
        }
    };
    let report = many(&scenario, args.seeds.clone(), args.jobs, true);
    print!("{}", report.text());
    std::fs::create_dir_all(&args.out).map_err(input(args.out.display().to_string()))?;
    let json = serde_json::to_string_pretty(&report).map_err(|error| Failure::Input(error.to_string()))?;
    for (name, text) in [("report.json", json), ("report.html", report.html(baseline.as_ref()))] {
        let path = args.out.join(name);
        std::fs::write(&path, text).map_err(input(path.display().to_string()))?;
        println!("written: {}", path.display());
    }
    verdict(&args.which.scenario, &report)?;
    let worse = baseline.map(|baseline| report.worse_than(&baseline)).unwrap_or_default();
    if worse.is_empty() { Ok(()) } else { Err(Failure::Found(format!("worse than the baseline: {}", worse.join("; ")))) }
}

/// Seeds by the time of day: other ones at each run.
fn fresh(count: u64) -> Range<u64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let first = since.as_secs() * 1_000;
    first..first + count
}

fn verdict(name: &str, report: &Report) -> Result<(), Failure> {
    for (seed, checker, what) in &report.violations {
        eprintln!("seed {seed}: {checker}: {what}\n  {}", replay_command(name, *seed));
    }
    match report.violations.len() {
        0 => Ok(()),
        count => Err(Failure::Found(format!("{count} of {} seeds have a violation", report.runs))),
    }
}

/// One seed with its figures; a panic is a violation.
pub(super) fn one(scenario: &Scenario, seed: u64) -> (Result<Outcome, Violation>, Figures) {
    let measure = Measure::default();
    let ended = pool::guarded(|| {
        let extras = Extras { checkers: vec![Box::new(measure.clone())], ..Extras::default() };
        run_seed(scenario, seed, extras)
    });
    match ended {
        Ok(outcome) => {
            let figures = measure.figures(outcome.equal_after);
            (Ok(outcome), figures)
        }
        Err(what) => (Err(Violation { checker: "panic", at: crate::time::Time::ZERO, what }), Figures::new()),
    }
}

/// Runs many seeds side by side.
pub(super) fn many(scenario: &Scenario, seeds: Range<u64>, jobs: Option<usize>, keep_going: bool) -> Report {
    let seeds: Vec<u64> = seeds.collect();
    let mut progress = Progress::new(&scenario.name, seeds.len());
    let mut report = Report { scenario: scenario.name.clone(), ..Report::default() };
    let mut gathering = Gathering::default();
    pool::run(
        &seeds,
        jobs.unwrap_or_else(pool::cores),
        |seed| one(scenario, seed),
        |seed, ended| {
            let (outcome, figures) = ended.unwrap_or_else(|what| (Err(panicked(what)), Figures::new()));
            report.runs += 1;
            gathering.add(figures);
            let (events, violation) = match outcome {
                Ok(outcome) => {
                    for (mark, times) in outcome.marks {
                        *report.marks.entry(mark.to_owned()).or_default() += times;
                    }
                    (outcome.events, outcome.violation)
                }
                Err(violation) => (0, Some(violation)),
            };
            report.events += events;
            progress.step(events, violation.is_some());
            let found = violation.is_some();
            report.violations.extend(violation.map(|it| (seed, it.checker.to_owned(), format!("{} (at {} s)", it.what, it.at))));
            keep_going || !found
        },
    );
    progress.end();
    report.seconds = progress.seconds();
    report.metrics = gathering.metrics();
    report.violations.sort();
    report
}

fn panicked(what: String) -> Violation {
    Violation { checker: "panic", at: crate::time::Time::ZERO, what }
}
