//! The library's errors as problems, and problems as answers.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvdb::{
    DatabaseNameError, DialError, DropError, HoldersError, KeyError, OpenDatabaseError, PatternError, ReadError, WaitError,
    WatchError, WriteError, WriteRefusal,
};

use super::keys::text_header;
use crate::limits;
use crate::problem::{Code, Problem};

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(dot) = self.current.as_deref().and_then(serde_json::Value::as_str) {
            headers.insert(header::ETAG, text_header(&format!("\"{dot}\"")));
        }
        if self.retry && self.status != 408 {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Self {
        let code = if matches!(error, KeyError::TooLong { .. }) { Code::KeyTooLong } else { Code::BadKey };
        Self::new(code, error.to_string())
    }
}

impl From<DatabaseNameError> for Problem {
    fn from(error: DatabaseNameError) -> Self {
        Self::new(Code::BadDatabaseName, error.to_string())
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        let detail = error.to_string();
        match error {
            WriteError::Refused(refusal) => refusal.into(),
            WriteError::QueueFull { limit, .. } => Self::new(Code::QueueFull, detail).with_limit(limit),
            WriteError::HistoryFull { limit, .. } => {
                Self::new(Code::HistoryFull, detail).with_limit(usize::try_from(limit).unwrap_or(usize::MAX))
            }
            WriteError::Repairing => Self::new(Code::Repairing, detail),
            WriteError::Dropped => Self::new(Code::Dropped, detail),
            WriteError::Closed => Self::new(Code::Closed, detail),
            WriteError::Poisoned { cause } if disk_full(&cause) => Self::new(Code::DiskFull, detail),
            WriteError::Poisoned { .. } => Self::new(Code::Poisoned, detail),
            WriteError::Read { .. } => Self::new(Code::ReadFailed, detail),
            WriteError::Unknown { cause } if disk_full(&cause) => Self::new(Code::DiskFull, detail).maybe_written(),
            WriteError::Unknown { .. } => Self::new(Code::CommitFailed, detail),
            // A kind of failure that this version does not know: promise nothing.
            _ => Self::new(Code::Internal, detail).maybe_written(),
        }
    }
}

impl From<WriteRefusal> for Problem {
    fn from(refusal: WriteRefusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            WriteRefusal::TooManyOps { .. } => Self::new(Code::BatchTooLarge, detail).with_limit(limits::MAX_BLOCK_OPS),
            WriteRefusal::Condition { current, .. } => Self::new(Code::ConditionFailed, detail).with_current(current),
            WriteRefusal::TooManySeen { .. } => Self::new(Code::TooManySeen, detail).with_limit(limits::MAX_OP_SUPERSEDED),
            WriteRefusal::ValueTooLarge { .. } => Self::new(Code::ValueTooLong, detail),
            WriteRefusal::BatchTooLarge { .. } => Self::new(Code::BatchTooLarge, detail).with_limit(limits::MAX_BLOCK_BYTES),
            _ => Self::new(Code::BadRequest, detail),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        let detail = error.to_string();
        match error {
            ReadError::Dropped => Self::new(Code::Dropped, detail),
            ReadError::Closed => Self::new(Code::Closed, detail),
            ReadError::TooManyStreams { limit } => Self::new(Code::TooManyStreams, detail).with_limit(limit),
            _ => Self::new(Code::ReadFailed, detail),
        }
    }
}

impl From<WatchError> for Problem {
    fn from(error: WatchError) -> Self {
        let detail = error.to_string();
        match error {
            WatchError::TooOld { .. } => Self::new(Code::TooOld, detail),
            WatchError::TooManyWatchers { limit } => Self::new(Code::TooManyWatchers, detail).with_limit(limit),
            WatchError::Read(error) => error.into(),
            _ => Self::new(Code::Internal, detail),
        }
    }
}

impl From<PatternError> for Problem {
    fn from(error: PatternError) -> Self {
        let problem = Self::new(Code::BadPattern, error.to_string());
        match error {
            PatternError::TooMany { limit, .. } | PatternError::TooLong { limit, .. } | PatternError::TooLarge { limit } => {
                problem.with_limit(limit)
            }
            _ => problem,
        }
    }
}

impl From<OpenDatabaseError> for Problem {
    fn from(error: OpenDatabaseError) -> Self {
        let detail = error.to_string();
        match error {
            OpenDatabaseError::Name(_) => Self::new(Code::BadDatabaseName, detail),
            OpenDatabaseError::TooManyOpen { limit } => Self::new(Code::TooManyDatabases, detail).with_limit(limit),
            OpenDatabaseError::Closed => Self::new(Code::Closed, detail),
            OpenDatabaseError::Unavailable { .. } => Self::new(Code::DirectoryUnavailable, detail),
            _ => Self::new(Code::Internal, detail),
        }
    }
}

impl From<DropError> for Problem {
    fn from(error: DropError) -> Self {
        let detail = error.to_string();
        match error {
            DropError::NotFound(_) => Self::new(Code::DatabaseNotFound, detail),
            DropError::Closed => Self::new(Code::Closed, detail),
            DropError::Unavailable { .. } => Self::new(Code::DirectoryUnavailable, detail),
            _ => Self::new(Code::Internal, detail).maybe_written(),
        }
    }
}

impl From<WaitError> for Problem {
    fn from(error: WaitError) -> Self {
        let code = if matches!(error, WaitError::NotCovered { .. }) { Code::NotCovered } else { Code::Closed };
        Self::new(code, error.to_string())
    }
}

impl From<HoldersError> for Problem {
    fn from(error: HoldersError) -> Self {
        let code = match error {
            HoldersError::Closed => Code::Closed,
            HoldersError::NoNetwork => Code::NoNetwork,
            HoldersError::Sync(error) => return error.into(),
            _ => Code::NotHeld,
        };
        Self::new(code, error.to_string())
    }
}

impl From<DialError> for Problem {
    fn from(error: DialError) -> Self {
        Self::new(Code::DialFailed, error.to_string())
    }
}

fn disk_full(cause: &str) -> bool {
    cause.to_lowercase().contains("no space")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::problem::Outcome;

    #[test]
    fn every_failure_of_a_write_says_what_became_of_it_and_whether_to_try_again() {
        let key = || kvdb::Key::parse("/k").unwrap();
        let cause = || "bad sector".to_owned();
        let full = || "No space left on device".to_owned();
        let queue = WriteError::QueueFull { limit: 7, waited: Duration::ZERO };
        let failed = WriteRefusal::Condition { key: key(), current: None };
        let seen = WriteRefusal::TooManySeen { dots: 4_097 };
        let none = Outcome::NotWritten;
        let maybe = Outcome::MaybeWritten;
        for (error, status, code, outcome, retry) in [
            (WriteError::Refused(failed), 412, Code::ConditionFailed, none, false),
            (WriteError::Refused(seen), 413, Code::TooManySeen, none, false),
            (WriteError::Refused(WriteRefusal::TooManyOps { ops: 9 }), 413, Code::BatchTooLarge, none, false),
            (WriteError::Refused(WriteRefusal::ValueTooLarge { bytes: 9 }), 413, Code::ValueTooLong, none, false),
            (WriteError::Refused(WriteRefusal::BatchTooLarge { bytes: 9 }), 413, Code::BatchTooLarge, none, false),
            (queue, 429, Code::QueueFull, none, true),
            (WriteError::Closed, 503, Code::Closed, none, true),
            (WriteError::Poisoned { cause: cause() }, 503, Code::Poisoned, none, true),
            (WriteError::Poisoned { cause: full() }, 507, Code::DiskFull, none, true),
            (WriteError::Read { cause: cause() }, 500, Code::ReadFailed, none, false),
            (WriteError::Unknown { cause: cause() }, 503, Code::CommitFailed, maybe, true),
            (WriteError::Unknown { cause: full() }, 507, Code::DiskFull, maybe, true),
        ] {
            let problem = Problem::from(error);
            assert_eq!((problem.status, problem.code, problem.outcome, problem.retry), (status, code, outcome, retry));
        }
        let open = Problem::from(OpenDatabaseError::TooManyOpen { limit: 1_024 });
        assert_eq!((open.status, open.limit, open.retry), (429, Some(1_024), true));
    }
}
