//! Scenarios as tests: each case from faults of other systems, and a little chaos at every run.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what tests are built from")]

mod cases;
mod cases_wide;
mod chaos;
mod fleet;
mod golden;
