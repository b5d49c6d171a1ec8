//! What a backup says of itself: one text file for each, whole by the hash in its last line.

use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use crate::shards::{escape, unescape};
use crate::store::StoreId;

/// The newest format of backups that this program reads and writes.
pub const BACKUP_FORMAT: u32 = 1;

pub(super) const HEAD: &str = "kvdb-backup 1";

/// The SHA-256 of a file, under which a backup keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Hash(pub(super) [u8; 32]);

impl Hash {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut hash = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredFile {
    pub(super) hash: Hash,
    pub(super) len: u64,
    /// Of its last bytes, by which the next backup knows it again without reading all of it.
    pub(super) tail: Hash,
    pub(super) name: String,
}

/// One data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredShard {
    pub(super) store: StoreId,
    /// The store's format.
    pub(super) format: u32,
    pub(super) directory: PathBuf,
    pub(super) files: Vec<StoredFile>,
}

/// One backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Unix milliseconds.
    pub(super) taken: u64,
    pub(super) peer: String,
    /// The file with the node's identity, and its length.
    pub(super) identity: (Hash, u64),
    pub(super) shards: Vec<StoredShard>,
}

impl Manifest {
    pub(super) fn files(&self) -> impl Iterator<Item = &StoredFile> {
        self.shards.iter().flat_map(|shard| &shard.files)
    }

    /// Every object that it needs, with its length.
    pub(super) fn objects(&self) -> impl Iterator<Item = (Hash, u64)> {
        self.files().map(|file| (file.hash, file.len)).chain([self.identity])
    }

    pub(super) fn encode(&self) -> String {
        use std::fmt::Write as _;
        let (hash, len) = self.identity;
        let mut text = format!("{HEAD}\ntaken {}\npeer {}\nidentity {hash} {len}\n", self.taken, self.peer);
        for shard in &self.shards {
            // Writing to a string does not fail.
            let _ = writeln!(text, "shard {} {} {}", shard.store, shard.format, escape(&shard.directory));
            for StoredFile { hash, len, tail, name } in &shard.files {
                let _ = writeln!(text, "file {hash} {len} {tail} {name}");
            }
        }
        let end = Hash::of(text.as_bytes());
        text + &format!("end {end}\n")
    }

    /// `None` when it is not whole, or not of this format.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let body = text.get(..text.strip_suffix('\n')?.rfind('\n')? + 1)?;
        let end = text.get(body.len()..)?.strip_prefix("end ")?.strip_suffix('\n')?;
        if Hash::parse(end)? != Hash::of(body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let taken = lines.next()?.strip_prefix("taken ")?.parse().ok()?;
        let peer = lines.next()?.strip_prefix("peer ")?.to_owned();
        let (hash, len) = lines.next()?.strip_prefix("identity ")?.split_once(' ')?;
        let identity = (Hash::parse(hash)?, len.parse().ok()?);
        let mut manifest = Self { taken, peer, identity, shards: Vec::new() };
        for line in lines {
            manifest.read(line)?;
        }
        Some(manifest)
    }

    fn read(&mut self, line: &str) -> Option<()> {
        if let Some(shard) = line.strip_prefix("shard ") {
            let (store, rest) = shard.split_once(' ')?;
            let (format, directory) = rest.split_once(' ')?;
            let (store, format, directory) = (StoreId::parse(store)?, format.parse().ok()?, unescape(directory)?);
            self.shards.push(StoredShard { store, format, directory, files: Vec::new() });
            return Some(());
        }
        let mut words = line.strip_prefix("file ")?.splitn(4, ' ');
        let (hash, len) = (Hash::parse(words.next()?)?, words.next()?.parse().ok()?);
        let (tail, name) = (Hash::parse(words.next()?)?, words.next()?.to_owned());
        // A name is never a way to another place.
        let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\']);
        self.shards.last_mut().filter(|_| plain)?.files.push(StoredFile { hash, len, tail, name });
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_every_change_is_noticed() {
        let file = StoredFile { hash: Hash([1; 32]), len: 7, tail: Hash([2; 32]), name: "000012.sst".into() };
        let shard = StoredShard { store: StoreId([3; 16]), format: 1, directory: "/data".into(), files: vec![file] };
        let manifest = Manifest { taken: 9, peer: "12D3".into(), identity: (Hash([4; 32]), 68), shards: vec![shard] };
        let text = manifest.encode();
        let lines: Vec<&str> = text.lines().collect();
        let (one, two, four) = ("01".repeat(32), "02".repeat(32), "04".repeat(32));
        assert_eq!(lines[..3], ["kvdb-backup 1", "taken 9", "peer 12D3"]);
        assert_eq!(lines[3], format!("identity {four} 68"));
        assert_eq!(lines[4], format!("shard {} 1 /data", "03".repeat(16)));
        assert_eq!(lines[5], format!("file {one} 7 {two} 000012.sst"));
        assert!(lines[6].starts_with("end ") && lines.len() == 7);
        assert_eq!(Manifest::decode(&text), Some(manifest.clone()));
        for at in 0..text.len() {
            assert_eq!(Manifest::decode(&text[..at]), None, "cut at {at}");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(Manifest::decode(&changed).is_none_or(|other| other == manifest), "changed at {at}");
        }
        let mut escaping = manifest;
        for name in ["../x", "a/b", "", ".hidden"] {
            escaping.shards[0].files[0].name = name.into();
            assert_eq!(Manifest::decode(&escaping.encode()), None, "{name}");
        }
    }
}
