//! The performance budget: rows measured side by side with bare RocksDB in one run, as ratios.
//!
//! `bench [--rows get,list] [--out FILE] [--quick]`. Sides alternate and figures are medians, since the speed of a shared
//! machine drifts. `--quick` runs every row once on little data, to see that it works; its figures mean nothing.

#![allow(clippy::expect_used, reason = "a measurement that cannot go on ends the program")]

mod bare;
mod child;
mod memory;
mod ours;
mod probe;
mod report;
mod rows;

use std::process::ExitCode;

use report::Report;
use rows::{ROWS, Scale};

/// The allocator of the daemon, for both sides.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut chosen: Option<Vec<String>> = None;
    let mut out = "bench-report.json".to_owned();
    let mut scale = Scale::full();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => scale = Scale::quick(),
            "--rows" => match arguments.next() {
                Some(list) if !list.is_empty() => chosen = Some(list.split(',').map(str::to_owned).collect()),
                _ => return usage("--rows needs a list"),
            },
            "--out" => match arguments.next() {
                Some(file) => out = file,
                None => return usage("--out needs a file"),
            },
            child::ARGUMENT => {
                let dir = arguments.next().expect("a directory");
                child::main(dir.as_ref(), arguments.next().and_then(|bytes| bytes.parse().ok()).expect("bytes"));
                return ExitCode::SUCCESS;
            }
            _ => return usage(&format!("unknown argument {argument}")),
        }
    }
    let known = |name: &String| ROWS.iter().any(|row| row.name == *name);
    if let Some(unknown) = chosen.iter().flatten().find(|name| !known(name)) {
        return usage(&format!("unknown row {unknown}"));
    }
    let mut report = Report::default();
    for row in ROWS {
        if chosen.as_ref().is_none_or(|names| names.iter().any(|name| name == row.name)) {
            eprintln!("measuring {} ...", row.name);
            (row.measure)(&scale, &mut report);
        }
    }
    print!("{}", report.table());
    if let Err(error) = std::fs::write(&out, report.json()) {
        eprintln!("cannot write {out}: {error}");
        return ExitCode::FAILURE;
    }
    // Figures are for people and for comparisons over time; a slow machine is not a failure of the program.
    ExitCode::SUCCESS
}

fn usage(problem: &str) -> ExitCode {
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    eprintln!("{problem}\nusage: bench [--rows {}] [--out FILE] [--quick]", names.join(","));
    ExitCode::from(2)
}
