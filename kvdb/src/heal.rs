//! A store that refuses writes because its disk was full, or could not be read in the background, is opened again in place
//! once there is room: nobody has to restart the process.
//!
//! After a failed commit it is not known what is on disk, and RocksDB writes no more. Opening the files again is what a
//! restart would do: the log is read, and what it holds is the state to go on with. Reads go on from the old store until
//! then. A failed sync is not mended so: what the system still shows of the files need not be on the disk.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use crate::limits::{HEAL_INTERVAL, HEAL_PROBE_BYTES, MAX_HEAL_INTERVAL, REOPEN_PAUSE, REOPEN_TRIES};
use crate::shards::{Shard, Shards};
use crate::store::{RocksStore, StoreOptions};

/// What became of a look at a store.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// It takes writes.
    Well,
    /// It refuses them, and does so still.
    Ill,
    /// It was opened again.
    Healed,
    /// It is closed, and could not be opened again.
    Gone(String),
}

/// Looks after the stores until it is aborted. Tells why, if one is gone.
pub(crate) async fn run(shards: Arc<Shards>, options: StoreOptions, gone: watch::Sender<Option<String>>) {
    let mut wait = HEAL_INTERVAL;
    loop {
        tokio::time::sleep(wait).await;
        let mut ill = false;
        for shard in shards.all() {
            if shard.engine.poison().is_none() {
                continue;
            }
            let (one, options) = (Arc::clone(shard), options);
            let look = tokio::task::spawn_blocking(move || look(&one, &options)).await;
            match look {
                Ok(Look::Healed) => {
                    tracing::warn!(directory = %shard.directory.display(), "the store was opened again and takes writes");
                }
                Ok(Look::Gone(cause)) => {
                    tracing::error!(directory = %shard.directory.display(), cause, "the store could not be opened again");
                    gone.send_replace(Some(cause));
                }
                Ok(Look::Well) => {}
                Ok(Look::Ill) | Err(_) => ill = true,
            }
        }
        // A disk that stays full is looked at less and less often.
        wait = if ill { (wait * 2).min(MAX_HEAL_INTERVAL) } else { HEAL_INTERVAL };
    }
}

/// Whether opening the store again leads to a state that is on disk.
fn may_heal(cause: &str) -> bool {
    let cause = cause.to_lowercase();
    let sync = ["while fsync", "while fdatasync", "while sync"].iter().any(|words| cause.contains(words));
    !sync && (cause.contains("no space") || cause.contains("io error"))
}

fn look(shard: &Shard, options: &StoreOptions) -> Look {
    let Some(cause) = shard.engine.poison() else { return Look::Well };
    if !may_heal(&cause) {
        return Look::Ill;
    }
    let Ok(path) = shard.read(|store| Ok(store.path().to_owned())) else { return Look::Well };
    if let Err(error) = probe(&path) {
        tracing::debug!(%error, "still no room");
        return Look::Ill;
    }
    let open = || {
        let mut last = String::new();
        for _ in 0..REOPEN_TRIES {
            match RocksStore::open(&path, options) {
                Ok(store) => return Ok(store),
                Err(error) => last = error.to_string(),
            }
            std::thread::sleep(REOPEN_PAUSE);
        }
        Err(last)
    };
    // The engine's two, and the one through which everybody reads.
    let exchange = |let_go: &mut dyn FnMut()| {
        let free = |store: &RocksStore| {
            let free = store.is_held_by(3);
            if free {
                let_go();
            }
            free
        };
        shard.store.renew(free, open)
    };
    match shard.engine.renew(exchange) {
        None => Look::Ill,
        Some(Ok(())) => Look::Healed,
        Some(Err(cause)) => Look::Gone(cause),
    }
}

/// Whether there is room for opening the store: it may write once more what its logs hold.
fn probe(directory: &Path) -> std::io::Result<()> {
    let mut room = HEAL_PROBE_BYTES as u64;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            room += entry.metadata()?.len();
        }
    }
    let path = directory.join("kvdb.probe");
    let write = || {
        let mut file = File::create(&path)?;
        std::io::copy(&mut std::io::repeat(0x5a).take(room), &mut file)?;
        file.sync_all()
    };
    let written = write();
    let removed = fs::remove_file(&path);
    written.and(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failed_sync_lost_is_not_taken_for_healed() {
        for (cause, heals) in [
            ("IO error: No space left on device: While appending to file: /d/000012.log", true),
            ("IO error: While pread offset 0 len 10: /d/000012.sst: Input/output error", true),
            ("IO error: While fdatasync: /d/000012.log: Input/output error", false),
            ("Corruption: block checksum mismatch", false),
        ] {
            assert_eq!(may_heal(cause), heals, "{cause}");
        }
    }
}
