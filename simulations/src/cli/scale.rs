//! `scale`: how things grow with the number of nodes or databases.

use serde::Serialize;

use super::args::ScaleArgs;
use super::run::one;
use super::{Failure, scenario};
use crate::scenario::Scenario;
use crate::tool::plot::{quantile, short};

const MAX_NODES: usize = 1_000;
const MAX_DATABASES: usize = 10_000;

/// One size.
#[derive(Debug, Serialize)]
struct Size {
    nodes: usize,
    databases: usize,
    events: u64,
    /// From the last write to equality.
    equal_after_s: Option<f64>,
    /// What a write costs at each node that it goes to.
    bytes_per_write: f64,
    /// What each node sent, on average, in frames and gossip.
    bytes_per_node: u64,
    /// Memory of this program, all nodes together.
    memory_mib: u64,
    seconds: f64,
}

/// Runs a light workload at each size, without faults.
pub(super) fn scale(args: &ScaleArgs) -> Result<(), Failure> {
    let base = scenario(&super::args::Which { scenario: "scale".to_owned() })?;
    let mut sizes: Vec<(usize, usize)> = args.nodes.iter().map(|nodes| (*nodes, 1)).collect();
    sizes.extend(args.databases.iter().map(|databases| (3, *databases)));
    if sizes.is_empty() {
        sizes = vec![(3, 1), (10, 1), (30, 1), (100, 1), (3, 100), (3, 1_000)];
    }
    println!("| nodes | databases | events | equal after | bytes per write | bytes per node | memory | real time |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut table = Vec::new();
    for (nodes, databases) in sizes {
        let size = run(&base, nodes, databases, args.seed)?;
        let equal = size.equal_after_s.map_or("never".to_owned(), |time| format!("{time:.2} s"));
        println!(
            "| {nodes} | {databases} | {} | {equal} | {} | {} | {} MiB | {:.1} s |",
            size.events,
            short(size.bytes_per_write),
            size.bytes_per_node,
            size.memory_mib,
            size.seconds
        );
        table.push(size);
    }
    if let Some(path) = &args.out {
        let text = serde_json::to_string_pretty(&table).map_err(|error| Failure::Input(error.to_string()))?;
        std::fs::write(path, text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn run(base: &Scenario, nodes: usize, databases: usize, seed: u64) -> Result<Size, Failure> {
    if nodes > MAX_NODES || databases > MAX_DATABASES || nodes == 0 || databases == 0 {
        return Err(Failure::Input(format!("1 to {MAX_NODES} nodes and 1 to {MAX_DATABASES} databases can be simulated")));
    }
    let mut light = Scenario { nodes, databases, ..base.clone() };
    // Every node and every database has something to do.
    light.workload.clients = nodes.clamp(4, 64);
    light.workload.operations = light.workload.operations.max((nodes.max(databases) * 2) as u64);
    let began = std::time::Instant::now();
    let failed = |what: String| Failure::Found(format!("{nodes} nodes, {databases} databases: {what}"));
    let (outcome, figures) = one(&light, seed);
    let outcome = outcome.map_err(|it| failed(it.what))?;
    if let Some(it) = outcome.violation {
        return Err(failed(format!("{}: {}", it.checker, it.what)));
    }
    let bytes = |name: &str| outcome.marks.get(name).copied().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a figure for the eye")]
    let equal_after_s = outcome.equal_after.map(|time| time.0 as f64 / 1e6);
    Ok(Size {
        nodes,
        databases,
        events: outcome.events,
        equal_after_s,
        bytes_per_write: figures.get("bytes_per_write").map_or(0.0, |samples| quantile(samples, 0.5)),
        bytes_per_node: (bytes("stream_bytes") + bytes("gossip_bytes")) / nodes as u64,
        memory_mib: memory_mib(),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// The most memory that this program has had; 0 where the system does not say.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1_024
}
