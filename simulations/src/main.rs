//! `simulations`: see `simulations --help` and README.md.

fn main() -> std::process::ExitCode {
    simulations::cli::main()
}
