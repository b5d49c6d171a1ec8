//! The command line.
//!
//! Exit codes: 0 done; 1 absent, or a condition does not hold; 2 bad input; 3 not reached or refused for now, retry; 4 the outcome of a write is not
//! known. An error is one line on standard error.

mod args;
mod backup;
mod batch;
mod client;
mod compact;
mod failure;
mod fleet;
mod key;
mod list;
mod node;
mod offline;
mod serve;
mod transfer;
mod verify;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use failure::{Exit, Failure};

/// Runs a command line.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            drop(error.print());
            return ExitCode::SUCCESS;
        }
        Err(error) => return report(&Failure::bad_input(first_paragraph(&error.to_string()))),
    };
    match execute(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::Init(args) => serve::init(&args),
        Command::Run(args) => serve::run(*args),
        Command::Put(args) => key::put(&args),
        Command::Get(args) => key::get(&args),
        Command::Rm(args) => key::rm(&args),
        Command::Ls(args) => list::ls(&args),
        Command::Watch(args) => watch::watch(&args),
        Command::Batch(args) => batch::batch(&args),
        Command::Siblings(args) => key::siblings(&args),
        Command::Conflicts(args) => list::conflicts(&args),
        Command::Status(args) => node::status(&args),
        Command::Peers(args) => node::peers(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Compact(args) => compact::compact(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Drop(args) => node::drop_database(&args),
        Command::Db(args) => node::db(&args),
        Command::Databases(args) => node::databases(&args),
        Command::Members(args) => fleet::members(&args),
        Command::Placement(args) => fleet::placement(&args),
        Command::Claims(args) => fleet::claims(&args),
        Command::Drain(args) => fleet::drain(&args),
        Command::Wait(args) => node::wait(&args),
        Command::Import(args) => transfer::import(&args),
        Command::Export(args) => transfer::export(&args),
    }
}

fn report(failure: &Failure) -> ExitCode {
    if failure.exit != Exit::Done {
        // Standard error may be closed; the exit code says it all the same.
        drop(std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("kvdb: {}\n", failure.message)));
    }
    failure.exit.into()
}

/// What clap says before its hints, on one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    text.strip_prefix("error: ").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn no_two_commands_have_one_name() {
        fn check(command: &clap::Command) {
            let names = command.get_subcommands().flat_map(|sub| std::iter::once(sub.get_name()).chain(sub.get_all_aliases()));
            let names: Vec<&str> = names.collect();
            assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "{names:?}");
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
