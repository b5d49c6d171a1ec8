//! The `kvdb` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    daemon::cli::main(std::env::args_os())
}
