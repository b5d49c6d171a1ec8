//! `replay`: one seed again, to read.

use super::args::ReplayArgs;
use super::{Failure, scenario};
use crate::faults::Plan;
use crate::runner::{Extras, run};
use crate::time::Time;
use crate::tool::record::{Filter, Recorder, entries, line};
use crate::tool::{diagram, pool};

/// Runs the seed, prints what the filter shows, and the violation if there is one.
pub(super) fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let scenario = scenario(&args.which)?;
    let filter = Filter {
        nodes: args.node.clone(),
        kinds: args.kind.clone(),
        key: args.key.clone(),
        from: seconds(args.from),
        until: args.until.map(seconds),
    };
    let recorder = Recorder::new(filter);
    let plan = args.only.as_ref().map(|path| plan(path)).transpose()?;
    let (plan, skip) = plan.map_or((None, std::collections::BTreeSet::new()), |small| (Some(small.plan), small.skip));
    let extras = Extras { checkers: vec![Box::new(recorder.clone())], plan, skip, ..Extras::default() };
    let ended = pool::guarded(|| run(&scenario, args.seed, extras));
    let records = recorder.take();
    if let Some(path) = &args.svg {
        let svg = diagram::svg(scenario.nodes, &entries(&records));
        std::fs::write(path, svg).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        println!("written: {} ({} lines)", path.display(), records.len());
    } else if args.diagram {
        print!("{}", diagram::text(scenario.nodes, &entries(&records)));
    } else {
        for record in &records {
            println!("{}", line(record));
        }
    }
    let outcome = ended.map_err(|what| Failure::Found(format!("panic: {what}")))?;
    let equal = outcome.equal_after.map_or("never".to_owned(), |time| format!("{time} s after the last fault"));
    println!("{} events, {} s of virtual time, equal {equal}, trace {}", outcome.events, outcome.ended, outcome.trace.hex());
    match outcome.violation {
        None => Ok(()),
        Some(it) => Err(Failure::Found(format!("{} at {} s: {}", it.checker, it.at, it.what))),
    }
}

/// What `shrink` writes: the faults that are left, and the writes that are left out.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Small {
    /// The faults.
    pub(super) plan: Plan,
    /// Writes left out: client and number.
    pub(super) skip: std::collections::BTreeSet<(usize, u64)>,
}

fn plan(path: &std::path::Path) -> Result<Small, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

fn seconds(seconds: f64) -> Time {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time on the command line; saturates")]
    Time((seconds * 1e6) as u64)
}
