//! News for replication, merged until it is looked at, so that a slow network costs the engine nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crdt::{DatabaseId, Meta, ReplicaId, Store, View as _};
use tokio::sync::Notify;

use super::machine::{Advance, Engine, Entries, TurnOutcome, whole_vv};
use super::port::{News, Progress, SnapshotOutcome};
use crate::limits::MAX_SEALED_NEWS_BYTES;

/// Where the engine leaves its news.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewsDesk(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Nothing is gathered while nobody reads: a node without a network.
    read: bool,
    ended: bool,
    gathering: Gathering,
}

/// News since somebody last looked: several turns become one.
#[derive(Debug, Default)]
pub struct Gathering {
    news: Vec<Item>,
    /// For each database the item that further progress joins.
    last: BTreeMap<DatabaseId, usize>,
}

#[derive(Debug)]
enum Item {
    Opened(DatabaseId, Gathered),
    Advanced(DatabaseId, Gathered),
    Snapshot(DatabaseId, SnapshotOutcome),
    Closed(DatabaseId),
}

#[derive(Debug, Default)]
struct Gathered {
    vv: BTreeMap<ReplicaId, u64>,
    durable: BTreeMap<ReplicaId, u64>,
    floors: BTreeMap<ReplicaId, u64>,
    progress: Progress,
    sealed_bytes: usize,
}

/// The reading side; there is one.
#[derive(Debug)]
pub struct NewsFeed(Arc<Shared>);

impl NewsDesk {
    /// The reading side. Databases opened before must be reported again by the caller.
    pub(crate) fn feed(&self) -> NewsFeed {
        self.lock().read = true;
        NewsFeed(Arc::clone(&self.0))
    }

    /// Nothing more will come.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.0.more.notify_one();
    }

    /// Gathers, if somebody reads.
    pub(crate) fn put(&self, gather: impl FnOnce(&mut Gathering)) {
        let mut waiting = self.lock();
        if waiting.read {
            gather(&mut waiting.gathering);
            if !waiting.gathering.is_empty() {
                drop(waiting);
                self.0.more.notify_one();
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathering {
    /// A database is open: all of it, as for a consumer that knows nothing yet.
    pub fn opened<S: Store>(&mut self, engine: &Engine<S>, database: DatabaseId) {
        self.last.insert(database, self.news.len());
        let mut gathered = Gathered::default();
        let staged = engine.store().view(&database).and_then(|view| view.staged()).unwrap_or_else(|error| {
            tracing::warn!(%database, %error, "cannot read what is staged of a snapshot; it comes anew");
            None
        });
        gathered.merge(Progress { staged, ..whole_progress(engine, &database) });
        self.news.push(Item::Opened(database, gathered));
    }

    /// What a turn did.
    pub fn turn<S: Store>(&mut self, engine: &Engine<S>, outcome: &TurnOutcome) {
        for database in &outcome.opened {
            self.opened(engine, *database);
        }
        for Advance { database, vv, floors, meta, sealed, .. } in &outcome.advanced {
            let progress = Progress {
                vv: vv.clone(),
                floors: floors.clone(),
                revision: meta.revision,
                digest: meta.digest,
                heads_hash: heads_hash(engine, database),
                sealed: sealed.clone(),
                ..Progress::default()
            };
            self.advanced(*database, progress);
        }
        self.synced(&outcome.durable);
        self.news.extend(outcome.snapshots.iter().map(|(database, outcome)| Item::Snapshot(*database, outcome.clone())));
        for database in outcome.replaced.iter().chain(&outcome.renewed) {
            // A session is one replica's: peers must not go on by what they knew of the other one.
            self.news.push(Item::Closed(*database));
            self.opened(engine, *database);
        }
        for database in &outcome.closed {
            self.last.remove(database);
            self.news.push(Item::Closed(*database));
        }
    }

    /// A sync has brought these entries to disk.
    pub fn synced(&mut self, covered: &Entries) {
        for (database, durable) in covered {
            let durable = durable.iter().map(|(replica, seq)| (*replica, *seq)).collect();
            self.advanced(*database, Progress { durable, ..Progress::default() });
        }
    }

    /// Whether there is nothing new.
    pub fn is_empty(&self) -> bool {
        self.news.is_empty()
    }

    /// All of it, and nothing is left.
    pub fn take(&mut self) -> Vec<News> {
        self.last.clear();
        std::mem::take(&mut self.news).into_iter().map(Item::into_news).collect()
    }

    fn advanced(&mut self, database: DatabaseId, progress: Progress) {
        let at = self.last.get(&database).copied();
        match at.and_then(|at| self.news.get_mut(at)) {
            Some(Item::Opened(_, gathered) | Item::Advanced(_, gathered)) => gathered.merge(progress),
            _ => {
                self.last.insert(database, self.news.len());
                let mut gathered = Gathered::default();
                gathered.merge(progress);
                self.news.push(Item::Advanced(database, gathered));
            }
        }
    }
}

/// All of a database, as for a consumer that knows nothing yet.
fn whole_progress<S: Store>(engine: &Engine<S>, database: &DatabaseId) -> Progress {
    let meta = engine.replica(database).map_or_else(Meta::default, |replica| *replica.meta());
    Progress {
        vv: whole_vv(engine, database).iter().collect(),
        durable: engine.durable(database),
        floors: engine.replica(database).map(|replica| replica.floors().iter().collect()).unwrap_or_default(),
        revision: meta.revision,
        digest: meta.digest,
        heads_hash: heads_hash(engine, database),
        ..Progress::default()
    }
}

fn heads_hash<S: Store>(engine: &Engine<S>, database: &DatabaseId) -> [u8; 32] {
    engine.replica(database).map_or([0; 32], |replica| replica.heads().hash())
}

impl NewsFeed {
    /// What is new, once there is anything; `None` when the engine has ended.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Vec<News>> {
        loop {
            {
                let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.gathering.is_empty() {
                    return Some(waiting.gathering.take());
                }
                if waiting.ended {
                    return None;
                }
            }
            self.0.more.notified().await;
        }
    }
}

impl Item {
    fn into_news(self) -> News {
        match self {
            Self::Opened(database, gathered) => News::Opened(database, gathered.into_progress()),
            Self::Advanced(database, gathered) => News::Advanced(database, gathered.into_progress()),
            Self::Snapshot(database, outcome) => News::Snapshot(database, outcome),
            Self::Closed(database) => News::Closed(database),
        }
    }
}

impl Gathered {
    fn merge(&mut self, progress: Progress) {
        self.vv.extend(progress.vv);
        for (replica, seq) in progress.durable {
            // A sync beside the engine may report after a later one.
            let entry = self.durable.entry(replica).or_default();
            *entry = (*entry).max(seq);
        }
        self.floors.extend(progress.floors);
        // A report of durability only carries no figures.
        if progress.revision >= self.progress.revision {
            self.progress.revision = progress.revision;
            self.progress.digest = progress.digest;
            self.progress.heads_hash = progress.heads_hash;
        }
        if progress.staged.is_some() {
            self.progress.staged = progress.staged;
        }
        for block in progress.sealed {
            let bytes = block.bytes().len();
            if self.sealed_bytes + bytes > MAX_SEALED_NEWS_BYTES {
                self.progress.sealed_overflow = true;
            } else {
                self.sealed_bytes += bytes;
                self.progress.sealed.push(block);
            }
        }
    }

    fn into_progress(self) -> Progress {
        Progress {
            vv: self.vv.into_iter().collect(),
            durable: self.durable.into_iter().collect(),
            floors: self.floors.into_iter().collect(),
            ..self.progress
        }
    }
}
