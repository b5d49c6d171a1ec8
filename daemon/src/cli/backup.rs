//! `backup`, `restore`.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use kvdb::BackupError;
use kvdb::backup::{RestoreOptions, restore as restore_it, verify as verify_it};
use serde_json::Value;
use ureq::http::Method;

use super::args::{BackupArgs, BackupCommand, RestoreArgs};
use super::client::{Client, encode};
use super::compact::follow;
use super::failure::{Exit, Failure};

/// `kvdb backup`
pub(super) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    if let Some(BackupCommand::Verify { dir }) = &args.command {
        return verify(dir);
    }
    let dir = args.dir.as_deref().ok_or_else(|| Failure::bad_input("a directory is needed"))?;
    let dir = std::path::absolute(dir).map_err(Failure::bad_input)?;
    let to = dir.to_str().ok_or_else(|| Failure::bad_input("the directory's name is not UTF-8"))?;
    let keep = args.keep.map(|keep| format!("&keep={keep}")).unwrap_or_default();
    let path = format!("/v1/backup?to={}{keep}", encode(to));
    let end = follow(Client::new(&args.server)?.send(Method::POST, &path, "", &[])?)?;
    let fields = ["backup", "files", "bytes", "copied_bytes"];
    let fields = fields.map(|field| format!("{field}={}", end.get(field).map(Value::to_string).unwrap_or_default()));
    print(&fields.join(" "))
}

fn verify(dir: &Path) -> Result<(), Failure> {
    let verified = verify_it(dir, &mut |_| {}).map_err(failure)?;
    for backup in &verified.backups {
        let (number, taken, peer) = (backup.number, backup.taken_ms, &backup.peer_id);
        let (directories, files, bytes) = (backup.directories.len(), backup.files, backup.bytes);
        print(&format!("backup {number} taken_ms={taken} peer={peer} directories={directories} files={files} bytes={bytes}"))?;
    }
    verified.damages.iter().try_for_each(|damage| print(&format!("  {damage}")))?;
    match verified.damages.len() {
        0 => print(&format!("sound: files={} bytes={}", verified.files, verified.bytes)),
        some => Err(Failure::new(Exit::Absent, format!("{some} of {} files are damaged", verified.files))),
    }
}

/// `kvdb restore`
pub(super) fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let options = RestoreOptions { number: args.number, keep_identity: args.keep_identity };
    let show = std::io::stderr().is_terminal();
    let mut progress = |at: kvdb::BackupProgress| {
        if show {
            // For eyes only.
            drop(write!(std::io::stderr(), "\rkvdb: {} of {} bytes", at.bytes, at.of));
        }
    };
    let restored = restore_it(&args.backup, &args.directories, &options, &mut progress).map_err(failure)?;
    let identity = if args.keep_identity { "the node's own" } else { "a new one at the first start" };
    let (number, files, bytes) = (restored.number, restored.files, restored.bytes);
    print(&format!("backup {number} restored files={files} bytes={bytes} identity: {identity}"))
}

fn failure(error: BackupError) -> Failure {
    let exit = match &error {
        BackupError::Io { .. } | BackupError::Busy { .. } | BackupError::Store { .. } => Exit::Retry,
        BackupError::NoSuchBackup { .. } => Exit::Absent,
        _ => Exit::BadInput,
    };
    Failure::new(exit, error)
}

fn print(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{text}").map_err(|error| Failure::output(&error))
}
