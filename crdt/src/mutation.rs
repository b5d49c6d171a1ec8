//! Small faults, put in on purpose and switched on one at a time, to show that tests and checkers find them.
//!
//! Without the cargo feature `mutations` nothing of this is in the program: [`active`] is a constant `false`.

macro_rules! mutations {
    ($($variant:ident $name:literal $about:literal)*) => {
        /// One fault that can be put in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Mutation {
            $(#[doc = $about] $variant,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it breaks.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => $about,)* }
            }
        }
    };
}

mutations! {
    MergeBeforeParents "merge-before-parents" "A block is merged although a parent is not."
    MergeBeforeSuperseded "merge-before-superseded" "A block is merged although a dot that it supersedes is not."
    MergeOutOfSeq "merge-out-of-seq" "A block is merged although its writer's block before it is not."
    DuplicateMerged "duplicate-merged" "A block that is merged already is merged again."
    SupersededKept "superseded-kept" "Merging leaves the first of the superseded siblings alive."
    SeenForgotten "seen-forgotten" "A write over several siblings supersedes all but one."
    TombstoneTakesAll "tombstone-takes-all" "A delete removes concurrent puts too."
    TieByArrival "tie-by-arrival" "Of two siblings with one stamp the one that came first wins."
    WinnerBySeq "winner-by-seq" "Siblings are ordered by seq and not by stamp."
    ExpiryIgnored "expiry-ignored" "An expired sibling is still seen."
    HeadsKeepParents "heads-keep-parents" "A parent stays a head."
    HeadsDropConcurrent "heads-drop-concurrent" "A merged block replaces all heads."
    ParentsForgotten "parents-forgotten" "A new block names one head as its parent and not all."
    DigestNotLowered "digest-not-lowered" "A superseded sibling stays in the digest."
    KeysNotLowered "keys-not-lowered" "A key that is gone is still counted."
    ClockNotRaised "clock-not-raised" "Merging a block does not raise the clock."
    ClockUnbounded "clock-unbounded" "Stamps of others push the clock without bound."
    NonceFixed "nonce-fixed" "A replica keeps its id over a restart, whatever the disk has lost."
    NonceReadBack "nonce-read-back" "A replica goes on under the id that it finds on its disk."
    SeqReused "seq-reused" "A writer gives its second seq twice."
    BatchTorn "batch-torn" "A batch becomes two blocks."
    RequestForgotten "request-forgotten" "The outcome of a request is not recorded."
    RequestReplaced "request-replaced" "A later answer to a request replaces the first."
    PendingUnchecked "pending-unchecked" "A block released from the pool is merged without looking at what else it waits for."
    PendingKept "pending-kept" "A block in the pool is never released."
    LogSkips "log-skips" "The log leaves a revision out."
    EffectsBeforeSync "effects-before-sync" "A synced commit is answered without its sync."
    EffectsOfFailedCommit "effects-of-failed-commit" "Replies and publications go out although the commit failed."
    DurableBeforeSync "durable-before-sync" "A version vector entry is reported as durable before its sync."
    DurableIsMerged "durable-is-merged" "Peers are told of merged entries as if they were durable."
    ReplicaKeptAfterFailedRead "replica-kept-after-failed-read" "After a failed read the replica goes on with what it had begun."
    PoisonForgotten "poison-forgotten" "After a failed commit the store goes on."
    CreditKept "credit-kept" "A peer never gets its credit back."
    ReconnectedUnoffered "reconnected-unoffered" "After a reconnection no database is offered."
    MissingSkipped "missing-skipped" "The log is read from one block behind the first that a peer lacks."
    ForeignBlockTaken "foreign-block-taken" "A block of another database is merged."
    GossipBlockLost "gossip-block-lost" "A block that comes by gossip is not delivered."
    SnapshotUnstaged "snapshot-unstaged" "Rows of a snapshot are seen before its switch."
    SnapshotOtherView "snapshot-other-view" "A snapshot goes on with another view than the one that it began with."
    SnapshotNewRows "snapshot-new-rows" "A join does not pass by rows that came while it was under way."
    SnapshotRequestsLost "snapshot-requests-lost" "A snapshot brings no outcomes of requests."
    SnapshotHeadsAdded "snapshot-heads-added" "The heads of a snapshot are added to those that are here."
    TruncatedUnheld "truncated-unheld" "History is dropped that no other node has on disk."
    TokenAcrossReset "token-across-reset" "A watch goes on from a token of before a snapshot's switch."
    WatchedDeleteMissed "watched-delete-missed" "Watchers are not told of a key that is gone."
    ConditionIgnored "condition-ignored" "A write is done although its condition does not hold."
    SeenIgnored "seen-ignored" "A write that names what it has seen supersedes all else too."
    UpkeepTakesAll "upkeep-takes-all" "What has not expired is deleted together with what has."
    ForgottenEarly "forgotten-early" "Outcomes of requests are forgotten before their time."
    AnnouncementIgnored "announcement-ignored" "An announcement of something unknown starts no sync."
}

impl Mutation {
    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }
}

/// Whether this fault is in force.
#[cfg(not(feature = "mutations"))]
#[inline]
#[must_use]
pub const fn active(_: Mutation) -> bool {
    false
}

#[cfg(feature = "mutations")]
pub use switch::{active, switch};

#[cfg(feature = "mutations")]
mod switch {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Mutation;

    const NONE: u8 = u8::MAX;
    static ACTIVE: AtomicU8 = AtomicU8::new(NONE);

    /// Whether this fault is in force.
    #[must_use]
    pub fn active(mutation: Mutation) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutation as u8
    }

    /// Puts one fault in force for the whole process, or none.
    pub fn switch(mutation: Option<Mutation>) {
        ACTIVE.store(mutation.map_or(NONE, |mutation| mutation as u8), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Mutation;

    #[test]
    fn names_are_unique() {
        for one in Mutation::ALL {
            assert_eq!(Mutation::named(one.name()), Some(*one));
        }
    }
}
