//! The `kvdb` command.

use std::process::ExitCode;

/// Values and keys are freed on other threads than they were allocated on, where the system's allocator is slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    daemon::cli::main(std::env::args_os())
}
