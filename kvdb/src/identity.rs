//! The node's identity: an ed25519 key in a file of its own.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use libp2p::identity::{KeyType, Keypair};

use crate::error::OpenError;

const FILE: &str = "identity.key";
/// Longest identity file that is read.
const MAX_BYTES: u64 = 1024;

/// Where the identity of a data directory is.
pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Reads the identity of a data directory, or makes one and has it on disk before it is used.
pub(crate) fn load_or_create(data_dir: &Path) -> Result<Keypair, OpenError> {
    let path = path(data_dir);
    let bad = |reason: String| OpenError::Identity { path: path.clone(), reason };
    match File::open(&path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| bad(error.to_string()))?;
            let keypair = Keypair::from_protobuf_encoding(&bytes).map_err(|error| bad(error.to_string()))?;
            if keypair.key_type() == KeyType::Ed25519 { Ok(keypair) } else { Err(bad("it is not an ed25519 key".to_owned())) }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let keypair = Keypair::generate_ed25519();
            let bytes = keypair.to_protobuf_encoding().map_err(|error| bad(error.to_string()))?;
            write_synced(data_dir, &path, &bytes).map_err(|error| bad(error.to_string()))?;
            Ok(keypair)
        }
        Err(error) => Err(bad(error.to_string())),
    }
}

/// The signer of blocks that an identity gives.
pub(crate) fn signer(keypair: &Keypair) -> Option<crdt::Ed25519Signer> {
    let key = keypair.clone().try_into_ed25519().ok()?;
    let seed: [u8; 32] = key.secret().as_ref().try_into().ok()?;
    Some(crdt::Ed25519Signer::from_seed(seed))
}

/// Writes a file whole or not at all, readable by its owner only.
pub(crate) fn write_synced(dir: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let scratch = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&scratch)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&scratch, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept_and_a_damaged_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let made = load_or_create(dir.path()).unwrap();
        assert_eq!(load_or_create(dir.path()).unwrap().public(), made.public());
        assert!(signer(&made).is_some());
        std::fs::write(dir.path().join(FILE), b"garbage").unwrap();
        let error = load_or_create(dir.path()).unwrap_err();
        assert!(matches!(error, OpenError::Identity { .. }), "{error}");
    }
}
