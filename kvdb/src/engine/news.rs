//! News for replication, merged until it is looked at, so that a slow network costs the engine nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crdt::{DatabaseId, ReplicaId};
use tokio::sync::Notify;

use super::port::{News, Progress};
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
    news: Vec<Item>,
    /// For each database the item that further progress joins.
    last: BTreeMap<DatabaseId, usize>,
}

#[derive(Debug)]
enum Item {
    Opened(DatabaseId, Gathered),
    Advanced(DatabaseId, Gathered),
    Closed(DatabaseId),
}

#[derive(Debug, Default)]
struct Gathered {
    vv: BTreeMap<ReplicaId, u64>,
    durable: BTreeMap<ReplicaId, u64>,
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

    pub(crate) fn opened(&self, database: DatabaseId, progress: Progress) {
        self.put(|waiting| {
            waiting.last.insert(database, waiting.news.len());
            let mut gathered = Gathered::default();
            gathered.merge(progress);
            waiting.news.push(Item::Opened(database, gathered));
        });
    }

    pub(crate) fn advanced(&self, database: DatabaseId, progress: Progress) {
        self.put(|waiting| {
            let at = waiting.last.get(&database).copied();
            match at.and_then(|at| waiting.news.get_mut(at)) {
                Some(Item::Opened(_, gathered) | Item::Advanced(_, gathered)) => gathered.merge(progress),
                _ => {
                    waiting.last.insert(database, waiting.news.len());
                    let mut gathered = Gathered::default();
                    gathered.merge(progress);
                    waiting.news.push(Item::Advanced(database, gathered));
                }
            }
        });
    }

    pub(crate) fn closed(&self, database: DatabaseId) {
        self.put(|waiting| {
            waiting.last.remove(&database);
            waiting.news.push(Item::Closed(database));
        });
    }

    /// Nothing more will come.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.0.more.notify_one();
    }

    fn put(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        if waiting.read {
            change(&mut waiting);
            drop(waiting);
            self.0.more.notify_one();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
                if !waiting.news.is_empty() {
                    waiting.last.clear();
                    return Some(std::mem::take(&mut waiting.news).into_iter().map(Item::into_news).collect());
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
        // A report of durability only carries no figures.
        if progress.revision >= self.progress.revision {
            self.progress.revision = progress.revision;
            self.progress.digest = progress.digest;
            self.progress.heads_hash = progress.heads_hash;
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
        Progress { vv: self.vv.into_iter().collect(), durable: self.durable.into_iter().collect(), ..self.progress }
    }
}
