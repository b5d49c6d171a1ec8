//! The command line.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Whole clusters of kvdb in one thread, under virtual time and seeded faults.
///
/// Each run follows from its scenario and its seed alone. Exit codes: 0 all is well; 1 a violation, a mark that was not
/// reached or a mutation that was missed; 2 bad input.
#[derive(Debug, Parser)]
#[command(name = "simulations", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a scenario under many seeds
    Run(RunArgs),
    /// Run one seed again and show what happened
    Replay(ReplayArgs),
    /// Make a failing seed's faults and workload as small as they can be
    Shrink(ShrinkArgs),
    /// Run many seeds and write report.json and report.html
    Report(ReportArgs),
    /// See how time, bytes and memory grow with the number of nodes or databases
    Scale(ScaleArgs),
    /// Switch small faults into the engine, one at a time, and see that a checker finds each
    Mutations(MutationArgs),
    /// List the scenarios
    Scenarios,
}

/// Which scenario.
#[derive(Debug, Clone, Args)]
pub struct Which {
    /// A scenario by its name, or a TOML file; `swarm` draws another profile for each seed
    #[arg(long, default_value = "chaos")]
    pub scenario: String,
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub which: Which,
    /// From the first to before the last
    #[arg(long, default_value = "0..100", value_parser = seeds)]
    pub seeds: Range<u64>,
    /// Runs side by side; as many as there are cores by default
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Go on after a violation
    #[arg(long)]
    pub keep_going: bool,
    /// So many seeds that nobody has chosen instead; which, is printed
    #[arg(long)]
    pub fresh: Option<u64>,
}

/// Options of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The seed
    pub seed: u64,
    #[command(flatten)]
    pub which: Which,
    /// What happens at these nodes only
    #[arg(long)]
    pub node: Vec<usize>,
    /// What names this key only
    #[arg(long)]
    pub key: Option<String>,
    /// Of this kind only: ask, answer, commit, sync, send, ack, publish, take, boot, end, fault, alarm, world
    #[arg(long)]
    pub kind: Vec<String>,
    /// From this virtual second on
    #[arg(long, default_value_t = 0.0)]
    pub from: f64,
    /// Up to this virtual second
    #[arg(long)]
    pub until: Option<f64>,
    /// As a sequence diagram
    #[arg(long)]
    pub diagram: bool,
    /// Write the sequence diagram as SVG to this file
    #[arg(long)]
    pub svg: Option<PathBuf>,
    /// Only the faults and writes of this file, which `shrink` has written
    #[arg(long)]
    pub only: Option<PathBuf>,
}

/// Options of `shrink`.
#[derive(Debug, Args)]
pub struct ShrinkArgs {
    /// The seed
    pub seed: u64,
    #[command(flatten)]
    pub which: Which,
    /// Most runs
    #[arg(long, default_value_t = 2_000)]
    pub tries: usize,
    /// Where the faults and writes that are left go; seed-SEED.json by default
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub which: Which,
    /// From the first to before the last
    #[arg(long, default_value = "0..100", value_parser = seeds)]
    pub seeds: Range<u64>,
    /// Runs side by side; as many as there are cores by default
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Where report.json and report.html go
    #[arg(long, default_value = ".")]
    pub out: PathBuf,
    /// An earlier report.json to compare with; exit code 1 if a figure is worse by a quarter
    #[arg(long)]
    pub baseline: Option<PathBuf>,
}

/// Options of `scale`.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Numbers of nodes, up to 1,000
    #[arg(long, value_delimiter = ',')]
    pub nodes: Vec<usize>,
    /// Numbers of databases, up to 10,000
    #[arg(long, value_delimiter = ',')]
    pub databases: Vec<usize>,
    /// The seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Writes the table as JSON to this file too
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Options of `mutations`.
#[derive(Debug, Args)]
pub struct MutationArgs {
    /// Most seeds tried per scenario and mutation
    #[arg(long, default_value_t = 100)]
    pub seeds: u64,
    /// Only these
    #[arg(long)]
    pub only: Vec<String>,
    /// Runs side by side; as many as there are cores by default
    #[arg(long)]
    pub jobs: Option<usize>,
}

/// `10..20`, or `7` for that one alone.
fn seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
    match text.split_once("..") {
        Some((first, last)) => Ok(number(first)?..number(last)?),
        None => number(text).map(|seed| seed..seed.saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_ranges_or_one() {
        assert_eq!(seeds("3..9"), Ok(3..9));
        assert_eq!(seeds("3"), Ok(3..4));
        assert!(seeds("a..9").is_err() && seeds("..").is_err());
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
