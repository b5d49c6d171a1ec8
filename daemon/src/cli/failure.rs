//! Why a command ends without what was asked, as exit code and one line.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use crate::problem::{Code, Outcome, Problem};

/// Exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// Not a failure: whoever reads the output has seen enough.
    Done = 0,
    /// The key is not there, or a condition does not hold.
    Absent = 1,
    /// What was asked is wrong; the same again fails again.
    BadInput = 2,
    /// Not reached, or refused for now; nothing was written. Retry.
    Retry = 3,
    /// A write may have happened.
    Unknown = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command ends without what was asked.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    pub(super) message: String,
    /// What the node called it, if it was the node.
    pub(super) code: Option<Code>,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Display) -> Self {
        // One line, whatever a server or a file name puts into it.
        let message = message.to_string().replace(|c: char| c.is_control(), " ");
        Self { exit, message, code: None }
    }

    pub(super) fn bad_input(message: impl Display) -> Self {
        Self::new(Exit::BadInput, message)
    }

    pub(super) fn retry(message: impl Display) -> Self {
        Self::new(Exit::Retry, message)
    }

    /// The output cannot be written. A reader that has gone, as `head` does, has had what it wanted.
    pub(super) fn output(error: &io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::BrokenPipe { Exit::Done } else { Exit::BadInput };
        Self::new(exit, format!("cannot write the output: {error}"))
    }

    /// Whether trying again is in vain.
    pub(super) fn is_final(&self) -> bool {
        self.exit != Exit::Retry
    }

    /// The same failure with more to say.
    pub(super) fn and(mut self, more: &str) -> Self {
        self.message.push_str(more);
        self
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = match problem.code {
            Code::KeyNotFound | Code::ConditionFailed => Exit::Absent,
            _ if problem.outcome != Outcome::NotWritten => Exit::Unknown,
            _ if problem.retry || problem.status >= 500 && problem.status != 501 => Exit::Retry,
            _ => Exit::BadInput,
        };
        let request = problem.write.and_then(|write| write.request).filter(|_| exit == Exit::Unknown);
        let again = request.map(|id| format!("; the same again with --request {id} writes once")).unwrap_or_default();
        Self { code: Some(problem.code), ..Self::new(exit, problem.detail + &again) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_map_to_exit_codes() {
        for (code, exit) in [
            (Code::KeyNotFound, Exit::Absent),
            (Code::ConditionFailed, Exit::Absent),
            (Code::DatabaseNotFound, Exit::BadInput),
            (Code::ValueTooLong, Exit::BadInput),
            (Code::Unauthorized, Exit::BadInput),
            (Code::ConditionUnsupported, Exit::BadInput),
            (Code::QueueFull, Exit::Retry),
            (Code::Poisoned, Exit::Retry),
            (Code::ReadFailed, Exit::Retry),
            (Code::CommitFailed, Exit::Unknown),
        ] {
            assert_eq!(Failure::from(Problem::new(code, "")).exit, exit, "{code:?}");
        }
        assert_eq!(Failure::bad_input("a\nb\u{1b}[1m").message, "a b [1m");
    }
}
