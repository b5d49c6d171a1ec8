//! Backing up the node, into a directory of the machine that it runs on: progress as records, and at the end what was done.

use std::path::PathBuf;

use axum::response::Response;
use kvdb::{BackupError, BackupInfo, BackupOptions};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::app::{App, Call};
use super::compact::{line, records};
use crate::limits::{MAX_BACKUPS_KEPT, STREAM_CHUNKS};
use crate::problem::{Code, Problem};

/// `POST /v1/backup?to=&keep=`. A client that goes away ends it after the piece under way.
pub(super) fn backup(app: &App, mut call: Call) -> Result<Response, Problem> {
    let to = PathBuf::from(call.query.need("to")?);
    let keep = call.query.take_number("keep", 1..=MAX_BACKUPS_KEPT)?;
    call.query.finish()?;
    if !to.is_absolute() {
        return Err(Problem::new(Code::BadRequest, "to= must be an absolute path on the machine of the node"));
    }
    let mut options = BackupOptions::default();
    options.keep = keep.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(options.keep);
    let (node, (sender, receiver)) = (app.node().clone(), mpsc::channel(STREAM_CHUNKS));
    tokio::spawn(async move {
        let told = sender.clone();
        // Progress that finds no room is out of date by the time there is some.
        let progress = move |at: kvdb::BackupProgress| {
            drop(told.try_send(line(&json!({ "copying": { "bytes": at.bytes, "of": at.of } }))));
        };
        tokio::select! {
            done = node.backup(&to, &options, progress) => {
                let record = match done {
                    Ok(done) => json!({ "end": outcome(&done) }),
                    Err(error) => json!({ "error": Problem::from(error) }),
                };
                drop(sender.send(line(&record)).await);
            }
            () = sender.closed() => {}
        }
    });
    Ok(records(receiver))
}

fn outcome(done: &BackupInfo) -> Value {
    json!({ "backup": done.number, "files": done.files, "bytes": done.bytes, "copied_bytes": done.copied })
}

impl From<BackupError> for Problem {
    fn from(error: BackupError) -> Self {
        let detail = error.to_string();
        let code = match error {
            BackupError::NotABackup { .. } | BackupError::OtherFormat { .. } => Code::BadRequest,
            BackupError::Busy { .. } => Code::BackupBusy,
            BackupError::Unavailable { .. } => Code::DirectoryUnavailable,
            BackupError::Closed => Code::Closed,
            BackupError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => Code::DiskFull,
            _ => Code::BackupFailed,
        };
        Self::new(code, detail)
    }
}
