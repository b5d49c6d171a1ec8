//! Scenarios as tests: each case from faults of other systems, and a little chaos at every run.

mod cases;
mod chaos;
mod fleet;
