//! `simulations`: runs seeds of scenarios.

use simulations::runner::{Extras, run};
use simulations::scenario::Scenario;

fn main() {
    let mut args = std::env::args().skip(1);
    let first: u64 = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(0);
    let count: u64 = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1);
    let scenario = Scenario::default();
    for seed in first..first + count {
        let outcome = run(&scenario, seed, Extras::default());
        println!(
            "seed {seed}: {} events, {} s, equal after {:?}, {}",
            outcome.events,
            outcome.ended,
            outcome.equal_after.map(|time| time.to_string()),
            outcome.trace.hex()
        );
        if let Some(violation) = outcome.violation {
            println!("  {} at {}: {}", violation.checker, violation.at, violation.what);
        }
        if count == 1 {
            println!("{:#?}", outcome.marks);
        }
    }
}
