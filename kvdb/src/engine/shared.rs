//! What readers see of an open database without asking the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crdt::{Dot, Meta, ReplicaId, VersionVector};
use tokio::sync::watch;

/// The figures of one open database after its last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Figures {
    /// Clock, digest and counters.
    pub meta: Meta,
    /// Number of heads.
    pub heads: usize,
    /// Blocks that wait for others.
    pub pending_blocks: usize,
    /// Their bytes.
    pub pending_bytes: usize,
}

/// One open database as readers see it: written by the engine after each commit, before the replies go out.
#[derive(Debug)]
pub(crate) struct Shared {
    state: RwLock<State>,
    closed: AtomicBool,
    /// Counts changes, so that a waiter misses none.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    vv: VersionVector,
    figures: Figures,
}

/// Why a wait for a dot ended without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Closed,
    TimedOut,
}

impl Shared {
    pub(crate) fn new(vv: VersionVector, figures: Figures) -> Self {
        Self { state: RwLock::new(State { vv, figures }), closed: AtomicBool::new(false), changed: watch::Sender::new(0) }
    }

    pub(crate) fn advance(&self, vv: &[(ReplicaId, u64)], figures: Figures) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for (replica, seq) in vv {
            state.vv.raise(*replica, *seq);
        }
        state.figures = figures;
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn figures(&self) -> Figures {
        self.read(|state| state.figures)
    }

    pub(crate) fn vv(&self) -> VersionVector {
        self.read(|state| state.vv.clone())
    }

    /// Waits until the dot is merged here.
    pub(crate) async fn wait_for(&self, dot: &Dot, timeout: Duration) -> Result<(), WaitEnd> {
        let mut changed = self.changed.subscribe();
        let covered = async {
            loop {
                changed.mark_unchanged();
                let closed = self.is_closed();
                if self.read(|state| state.vv.covers(dot)) {
                    return Ok(());
                }
                // The sender lives as long as this database.
                if closed || changed.changed().await.is_err() {
                    return Err(WaitEnd::Closed);
                }
            }
        };
        tokio::time::timeout(timeout, covered).await.unwrap_or(Err(WaitEnd::TimedOut))
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }
}
