//! What replication knows of this node's own replicas, from the engine's news.

use std::collections::BTreeMap;

use crdt::{DatabaseId, Digest, Dot, VersionVector};

use super::wire::Summary;
use crate::engine::port::Progress;

/// One open database of this node, all of one moment.
#[derive(Debug, Clone, Default)]
pub struct Local {
    vv: VersionVector,
    durable: VersionVector,
    floors: VersionVector,
    revision: u64,
    digest: Digest,
    heads_hash: [u8; 32],
}

impl Local {
    /// The state at opening.
    #[must_use]
    pub fn opened(progress: &Progress) -> Self {
        let mut local = Self::default();
        local.advance(progress);
        local
    }

    /// Takes in progress.
    pub fn advance(&mut self, progress: &Progress) {
        for (replica, seq) in &progress.vv {
            self.vv.raise(*replica, *seq);
        }
        for (replica, seq) in &progress.durable {
            self.durable.raise(*replica, *seq);
        }
        for (replica, seq) in &progress.floors {
            self.floors.raise(*replica, *seq);
        }
        // News of a sync alone carry no figures.
        if progress.revision >= self.revision {
            self.revision = progress.revision;
            self.digest = progress.digest;
            self.heads_hash = progress.heads_hash;
        }
    }

    /// The merged set.
    #[must_use]
    pub fn vv(&self) -> &VersionVector {
        &self.vv
    }

    /// Whether the block is merged.
    #[must_use]
    pub fn covers(&self, dot: &Dot) -> bool {
        self.vv.covers(dot)
    }

    /// The last log revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What of the merged set is on disk.
    #[must_use]
    pub fn durable(&self) -> &VersionVector {
        &self.durable
    }

    /// For each replica the seq up to which no blocks are kept here.
    #[must_use]
    pub fn floors(&self) -> &VersionVector {
        &self.floors
    }

    /// The replica in short.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary { vv_hash: self.vv.hash(), count: self.vv.len() as u64, heads_hash: self.heads_hash, digest: self.digest }
    }
}

/// All open databases of this node.
pub type Locals = BTreeMap<DatabaseId, Local>;
