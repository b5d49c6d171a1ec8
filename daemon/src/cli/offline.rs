//! What is done to the directories of a node that does not run: `db move`.

use std::io::{IsTerminal as _, Write as _};
use std::ops::ControlFlow;

use kvdb::store::StoreOpenError;
use kvdb::{MoveError, MoveStep, OpenError, move_database as move_it};

use super::args::MoveArgs;
use super::failure::{Exit, Failure};
use super::serve::configuration;

/// `kvdb db move`
pub(super) fn move_database(args: &MoveArgs) -> Result<(), Failure> {
    let config = configuration(args.run.clone())?;
    let shown = std::io::stderr().is_terminal();
    let mut step = |at: MoveStep| {
        if shown {
            // For eyes only.
            drop(writeln!(std::io::stderr(), "kvdb: {at:?}"));
        }
        ControlFlow::Continue(())
    };
    let moved = move_it(&config.node, &args.name, &args.to, &mut step).map_err(failure)?;
    let (name, from, to, bytes) = (&args.name, moved.from.display(), args.to.display(), moved.bytes);
    let said = writeln!(std::io::stdout(), "database {name} moved from {from} to {to} bytes={bytes}");
    said.map_err(|error| Failure::output(&error))
}

fn failure(error: MoveError) -> Failure {
    let exit = match &error {
        MoveError::NotFound(_) => Exit::Absent,
        MoveError::Open(OpenError::Store(StoreOpenError::Locked { .. }))
        | MoveError::Unavailable { .. }
        | MoveError::Store(_) => Exit::Retry,
        _ => Exit::BadInput,
    };
    Failure::new(exit, error)
}
