//! Problem documents (RFC 9457): every error of the HTTP interface, for the server that writes them and the client that reads them.

use serde::{Deserialize, Serialize};

use crate::limits;

/// What went wrong: a closed list, stable for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The path, query or body is not what the route takes.
    BadRequest,
    /// Percent-encoding that is broken, or that does not give UTF-8.
    BadEncoding,
    /// A key or prefix that is none.
    BadKey,
    /// A regular expression that is none, or too large.
    BadPattern,
    /// A database name that is none.
    BadDatabaseName,
    /// A condition on a write that this server does not have.
    ConditionUnsupported,
    /// A condition does not hold; `current` is the dot that is there.
    ConditionFailed,
    /// No token, or one that is not known.
    Unauthorized,
    /// The token lacks the scope.
    Forbidden,
    /// A `Host` that is not this server's.
    HostRefused,
    /// A web page's `Origin` that is not this machine.
    OriginRefused,
    /// No such route.
    RouteNotFound,
    /// No such database.
    DatabaseNotFound,
    /// Nothing at this key.
    KeyNotFound,
    /// The route does not take this method.
    MethodNotAllowed,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The key is too long.
    KeyTooLong,
    /// The value is too long.
    ValueTooLong,
    /// The batch has too many ops or bytes.
    BatchTooLarge,
    /// An op names too many dots as seen.
    TooManySeen,
    /// The body is too long for the route.
    BodyTooLong,
    /// The query string is too long.
    QueryTooLong,
    /// The write queue stayed full.
    QueueFull,
    /// Too many listings at once.
    TooManyStreams,
    /// Too many databases are open.
    TooManyDatabases,
    /// Too many watches at once.
    TooManyWatchers,
    /// The log does not reach back to the token.
    TooOld,
    /// A read failed.
    ReadFailed,
    /// Another part of the server failed.
    Internal,
    /// The peer is not connected, or does not have the database open.
    PeerNotConnected,
    /// A repair would lose what only this node has.
    WouldLose,
    /// A repair did not come about; the replica is as it was.
    RepairFailed,
    /// The replica is being replaced by a peer's.
    Repairing,
    /// A peer could not be dialled.
    DialFailed,
    /// The database or the node is closed.
    Closed,
    /// An earlier commit failed; the store refuses writes until it is opened anew.
    Poisoned,
    /// The commit failed: the write may exist.
    CommitFailed,
    /// The dot was not covered in time.
    NotCovered,
    /// Fewer nodes than asked for had it on disk in time.
    NotHeld,
    /// Other nodes are needed, and this one has no network.
    NoNetwork,
    /// A peer has what is lacking here, or none has been compared with yet.
    NotCaughtUp,
    /// The database was dropped meanwhile.
    Dropped,
    /// The disk is full.
    DiskFull,
    /// Too much history is on no other node, and cannot be dropped.
    HistoryFull,
    /// It is in a data directory that could not be opened.
    DirectoryUnavailable,
    /// Another backup is under way.
    BackupBusy,
    /// A backup could not be made; earlier ones are as they were.
    BackupFailed,
    /// This node is in no fleet.
    NoFleet,
    /// There is no such member.
    NoMember,
    /// The database is there already, otherwise.
    DatabaseExists,
    /// This is done on one node that holds the database, and this one does not.
    NotHeldHere,
    /// Committed, and not on the disks of so many holders in time.
    Unconfirmed,
    /// Too few holders are ready.
    NotEnoughHolders,
    /// No ready holder was reached, or this node does not know the fleet yet.
    NotReady,
    /// Between members: who asked has an old view.
    StaleView,
    /// No answer came from whoever took the write.
    NoAnswer,
    /// A change of the fleet's records is written, and was not with more than half of the members in time.
    RegistryUnconfirmed,
}

/// Whether the write of a failed request exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It does not.
    NotWritten,
    /// It may.
    MaybeWritten,
    /// It does.
    Written,
}

impl Code {
    /// The status and a title that does not change with the case.
    pub fn status(self) -> (u16, &'static str) {
        match self {
            Self::BadRequest => (400, "Malformed request"),
            Self::BadEncoding => (400, "Malformed percent-encoding"),
            Self::BadKey => (400, "Not a key"),
            Self::BadPattern => (400, "Not a usable regular expression"),
            Self::BadDatabaseName => (400, "Not a database name"),
            Self::ConditionUnsupported => (501, "The condition is not supported"),
            Self::ConditionFailed => (412, "The condition does not hold"),
            Self::Unauthorized => (401, "A token is needed"),
            Self::Forbidden => (403, "The token lacks the scope"),
            Self::HostRefused => (403, "Foreign Host"),
            Self::OriginRefused => (403, "Foreign Origin"),
            Self::RouteNotFound => (404, "No such route"),
            Self::DatabaseNotFound => (404, "No such database"),
            Self::KeyNotFound => (404, "No such key"),
            Self::MethodNotAllowed => (405, "Method not allowed"),
            Self::BodyTimeout => (408, "The body took too long"),
            Self::KeyTooLong => (413, "The key is too long"),
            Self::ValueTooLong => (413, "The value is too long"),
            Self::BatchTooLarge => (413, "The batch is too large"),
            Self::TooManySeen => (413, "Too many dots are named"),
            Self::BodyTooLong => (413, "The body is too long"),
            Self::QueryTooLong => (414, "The query is too long"),
            Self::QueueFull => (429, "The write queue is full"),
            Self::TooManyStreams => (429, "Too many listings at once"),
            Self::TooManyDatabases => (429, "Too many databases are open"),
            Self::TooManyWatchers => (429, "Too many watches at once"),
            Self::TooOld => (410, "The token is too old"),
            Self::ReadFailed => (500, "A read failed"),
            Self::Internal => (500, "Internal error"),
            Self::PeerNotConnected => (503, "The peer is not connected"),
            Self::WouldLose => (409, "Something would be lost"),
            Self::RepairFailed => (503, "The repair did not come about"),
            Self::Repairing => (503, "The database is being repaired"),
            Self::DialFailed => (502, "The peer cannot be reached"),
            Self::Closed => (503, "Closed"),
            Self::BackupBusy => (409, "Another backup is under way"),
            Self::BackupFailed => (500, "The backup failed"),
            Self::DirectoryUnavailable => (503, "A data directory could not be opened"),
            Self::NotCaughtUp => (503, "Not caught up"),
            Self::Poisoned => (503, "The store refuses writes"),
            Self::CommitFailed => (503, "The commit failed"),
            Self::NotCovered => (503, "Not covered in time"),
            Self::Dropped => (410, "The database was dropped"),
            Self::NotHeld => (503, "Not on the disks of so many nodes in time"),
            Self::NoNetwork => (409, "No network"),
            Self::DiskFull => (507, "The disk is full"),
            Self::HistoryFull => (507, "Too much history is on no other node"),
            Self::NoFleet => (409, "This node is in no fleet"),
            Self::NoMember => (404, "No such member"),
            Self::DatabaseExists => (409, "The database is there already"),
            Self::NotHeldHere => (409, "Not held by this node"),
            Self::Unconfirmed => (503, "Written, not confirmed"),
            Self::NotEnoughHolders => (503, "Too few holders are ready"),
            Self::NotReady => (503, "No ready holder was reached"),
            Self::StaleView => (503, "Not served by this member"),
            Self::NoAnswer => (503, "No answer from the holder"),
            Self::RegistryUnconfirmed => (503, "Written, not known to enough members"),
        }
    }

    /// The number that was exceeded.
    pub fn limit(self) -> Option<usize> {
        match self {
            Self::KeyTooLong => Some(limits::MAX_KEY_BYTES),
            Self::ValueTooLong => Some(limits::MAX_VALUE_BYTES),
            Self::QueryTooLong => Some(limits::MAX_QUERY_BYTES),
            _ => None,
        }
    }

    /// What became of the write, and whether the same request may succeed later, unless the case says otherwise.
    fn usual(self) -> (Outcome, bool) {
        let outcome = match self {
            Self::CommitFailed | Self::NoAnswer => Outcome::MaybeWritten,
            Self::Unconfirmed | Self::RegistryUnconfirmed => Outcome::Written,
            _ => Outcome::NotWritten,
        };
        let retry = matches!(
            self,
            Self::BodyTimeout
                | Self::QueueFull
                | Self::BackupBusy
                | Self::TooManyStreams
                | Self::TooManyDatabases
                | Self::TooManyWatchers
                | Self::DialFailed
                | Self::PeerNotConnected
                | Self::Repairing
                | Self::NotCovered
                | Self::NotHeld
                | Self::NotCaughtUp
                | Self::Unconfirmed
                | Self::NotEnoughHolders
                | Self::NotReady
                | Self::StaleView
                | Self::NoAnswer
                | Self::RegistryUnconfirmed
        );
        (
            outcome,
            retry || matches!(self, Self::Closed | Self::Poisoned | Self::DiskFull | Self::HistoryFull | Self::CommitFailed),
        )
    }
}

/// Where a write is that was not confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Whereabouts {
    /// The write, if it is known.
    pub dot: Option<String>,
    /// The nodes that have it on disk.
    pub holders: Vec<String>,
    /// The request id with which a retry is safe.
    pub request: Option<String>,
}

/// One error, as sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URN made of the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What kind of error it is.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What kind of error it is, for programs.
    pub code: Code,
    /// What happened, in this case.
    pub detail: String,
    /// The limit that was exceeded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<usize>,
    /// Where a condition does not hold: the dot of what is there, null when nothing is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub current: Option<Box<serde_json::Value>>,
    /// Of a write in a fleet that may exist: where it is, and by which name a retry is safe.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub write: Option<Box<Whereabouts>>,
    /// Whether the request's write exists.
    pub outcome: Outcome,
    /// Whether the same request may succeed later.
    pub retry: bool,
}

impl Problem {
    /// An error with what its code says of limit, outcome and retry.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let (status, title) = code.status();
        let (outcome, retry) = code.usual();
        let name = serde_json::to_value(code).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default();
        let kind = format!("urn:kvdb:problem:{name}");
        let (title, detail) = (title.into(), detail.into());
        Self { kind, title, status, code, detail, limit: code.limit(), current: None, write: None, outcome, retry }
    }

    /// The same error with the limit that was exceeded.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The same error with what is at the key.
    #[must_use]
    pub fn with_current(mut self, dot: Option<kvdb::Dot>) -> Self {
        self.current = Some(Box::new(dot.map_or(serde_json::Value::Null, |dot| dot.to_string().into())));
        self
    }

    /// The same error with what is known of the write.
    #[must_use]
    pub fn with_write(mut self, write: Whereabouts) -> Self {
        self.write = Some(Box::new(write));
        self
    }

    /// The same error with the request id by which a retry is known, if there may be anything to know.
    #[must_use]
    pub fn with_request(mut self, request: String) -> Self {
        if self.retry {
            self.write.get_or_insert_default().request = Some(request);
        }
        self
    }

    /// The same error where the write may exist.
    #[must_use]
    pub fn maybe_written(mut self) -> Self {
        self.outcome = Outcome::MaybeWritten;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_code_status_limit_outcome_and_retry() {
        let problem = Problem::new(Code::ValueTooLong, "the value has more than 1048576 bytes");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["type"], "urn:kvdb:problem:value_too_long");
        assert_eq!((json["status"].as_u64(), json["limit"].as_u64()), (Some(413), Some(1 << 20)));
        assert_eq!((json["outcome"].as_str(), json["retry"].as_bool()), (Some("not_written"), Some(false)));
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
        assert_eq!(Problem::new(Code::CommitFailed, "").outcome, Outcome::MaybeWritten);
    }
}
