//! What readers see of an open database without asking the engine.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crdt::{Changes, Dot, Meta, ReplicaId, VersionVector};
use tokio::sync::watch;

use super::history::{Ages, Peak, Unsafe};
use crate::watch::Recent;

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
    dropped: AtomicBool,
    watchers: AtomicUsize,
    history: Mutex<History>,
    /// Held by the compaction under way.
    pub(crate) compacting: tokio::sync::Mutex<()>,
    /// Counts changes, so that a waiter misses none.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    vv: VersionVector,
    figures: Figures,
    /// For watchers; empty while there are none.
    recent: Recent,
}

/// What is known of the history beyond the log.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) ages: Ages,
    pub(crate) unsafe_bytes: Unsafe,
    /// Bytes dropped since files were rewritten.
    pub(crate) garbage: u64,
    pub(crate) peak: Peak,
    /// The revision up to which everything was synced for the sake of other nodes.
    pub(crate) synced: u64,
}

/// Why a wait for a dot ended without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Closed,
    TimedOut,
}

impl Shared {
    pub(crate) fn new(vv: VersionVector, figures: Figures) -> Self {
        let history = History {
            ages: Ages::default(),
            unsafe_bytes: Unsafe::unknown(figures.meta.history_bytes),
            garbage: 0,
            peak: Peak::default(),
            synced: 0,
        };
        let state = RwLock::new(State { vv, recent: Recent::new(figures.meta.revision), figures });
        Self {
            state,
            closed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            watchers: AtomicUsize::new(0),
            history: Mutex::new(history),
            compacting: tokio::sync::Mutex::new(()),
            changed: watch::Sender::new(0),
        }
    }

    pub(crate) fn advance(&self, vv: &[(ReplicaId, u64)], figures: Figures, changes: Option<Changes>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for (replica, seq) in vv {
            state.vv.raise(*replica, *seq);
        }
        state.recent.advance(figures.meta.revision, changes);
        state.figures = figures;
        drop(state);
        self.signal();
    }

    /// The replica's state was replaced as a whole, and its log begins anew after this revision, which must be higher
    /// than any before: live watchers are told to list again.
    pub(crate) fn reset(&self, vv: VersionVector, figures: Figures) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.recent.reset(figures.meta.revision);
        (state.vv, state.figures) = (vv, figures);
        drop(state);
        self.signal();
    }

    /// Bytes of blocks that too few other nodes are known to have.
    pub(crate) fn unsafe_bytes(&self) -> u64 {
        self.history().unsafe_bytes.bytes(self.figures().meta.history_bytes)
    }

    /// What is known of the history, for a short look.
    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One watcher more.
    pub(crate) fn watch(&self) {
        self.watchers.fetch_add(1, Ordering::AcqRel);
    }

    /// One watcher less; with the last one the memory of changes goes.
    pub(crate) fn unwatch(&self) {
        if self.watchers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.write().unwrap_or_else(PoisonError::into_inner).recent.clear();
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Acquire) > 0
    }

    pub(crate) fn recent<T>(&self, look: impl FnOnce(&Recent) -> T) -> T {
        self.read(|state| look(&state.recent))
    }

    /// Resolves on each change after the call, and on the close.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn signal(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.signal();
    }

    /// The database is being dropped: whoever asks from now on is told so.
    pub(crate) fn set_dropped(&self) {
        self.dropped.store(true, Ordering::Release);
    }

    /// It could not be dropped.
    pub(crate) fn keep(&self) {
        self.dropped.store(false, Ordering::Release);
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
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
