//! `scale`: how things grow with the number of nodes or databases.

use super::args::ScaleArgs;
use super::run::one;
use super::{Failure, scenario};
use crate::scenario::Scenario;
use crate::tool::plot::{quantile, short};

const MAX_NODES: usize = 1_000;
const MAX_DATABASES: usize = 10_000;

/// Runs a light workload at each size, without faults.
pub(super) fn scale(args: &ScaleArgs) -> Result<(), Failure> {
    let base = scenario(&super::args::Which { scenario: "scale".to_owned() })?;
    let mut sizes: Vec<(usize, usize)> = args.nodes.iter().map(|nodes| (*nodes, 1)).collect();
    sizes.extend(args.databases.iter().map(|databases| (3, *databases)));
    if sizes.is_empty() {
        sizes = vec![(3, 1), (10, 1), (30, 1), (100, 1), (3, 100), (3, 1_000)];
    }
    println!(
        "| nodes | databases | events | equal after | bytes per write | real time |\n| ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    for (nodes, databases) in sizes {
        if nodes > MAX_NODES || databases > MAX_DATABASES || nodes == 0 || databases == 0 {
            return Err(Failure::Input(format!("1 to {MAX_NODES} nodes and 1 to {MAX_DATABASES} databases can be simulated")));
        }
        let mut light = Scenario { nodes, databases, ..base.clone() };
        // Every node and every database has something to do.
        light.workload.clients = nodes.clamp(4, 64);
        light.workload.operations = light.workload.operations.max((nodes.max(databases) * 2) as u64);
        let began = std::time::Instant::now();
        let (outcome, figures) = one(&light, args.seed);
        let outcome = outcome.map_err(|it| Failure::Found(format!("{nodes} nodes, {databases} databases: {}", it.what)))?;
        if let Some(it) = outcome.violation {
            return Err(Failure::Found(format!("{nodes} nodes, {databases} databases: {}: {}", it.checker, it.what)));
        }
        let bytes = figures.get("bytes_per_write").map_or(0.0, |samples| quantile(samples, 0.5));
        let equal = outcome.equal_after.map_or("never".to_owned(), |time| format!("{time} s"));
        let seconds = began.elapsed().as_secs_f64();
        println!("| {nodes} | {databases} | {} | {equal} | {} | {seconds:.1} s |", outcome.events, short(bytes));
    }
    Ok(())
}
