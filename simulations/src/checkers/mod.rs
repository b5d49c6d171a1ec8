//! The rules that every run must keep, each in a file of its own.

mod convergence;
mod fold;

use crate::observe::Checker;

/// All of them, fresh.
#[must_use]
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![Box::new(convergence::Convergence::default()), Box::new(fold::Fold::default())]
}
