//! The command line: `run`, `replay`, `shrink`, `report`, `scale`, `mutations`, `scenarios`.

pub mod args;
mod mutations;
mod progress;
mod replay;
mod run;
mod scale;
mod shrink;

use std::process::ExitCode;

use clap::Parser as _;

use crate::scenario::Scenario;
use crate::scenarios;
use args::{Cli, Command};

/// What a command may end with besides success.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The simulation found something.
    #[error("{0}")]
    Found(String),
    /// What was asked cannot be done.
    #[error("{0}")]
    Input(String),
}

/// The program.
#[must_use]
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Shrink(args) => shrink::shrink(&args),
        Command::Report(args) => run::report(&args),
        Command::Scale(args) => scale::scale(&args),
        Command::Mutations(args) => mutations::mutations(&args),
        Command::Scenarios => {
            list();
            Ok(())
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(if matches!(failure, Failure::Found(_)) { 1 } else { 2 })
        }
    }
}

fn list() {
    for scenario in scenarios::all() {
        println!("{:<32} {}", scenario.name, scenario.about);
    }
}

/// A scenario by its name, or from a file.
fn scenario(which: &args::Which) -> Result<Scenario, Failure> {
    scenarios::load(&which.scenario).map_err(Failure::Input)
}

/// The command that shows a seed again.
fn replay_command(scenario: &str, seed: u64) -> String {
    format!("cargo run -p simulations --release -- replay {seed} --scenario {scenario}")
}
