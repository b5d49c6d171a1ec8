//! A watch as a stream: waits for the engine's signal, reads on threads of the blocking pool.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crdt::View as _;
use futures::Stream;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::task::JoinHandle;

use super::{Position, WatchChange, WatchError, WatchEvent, WatchFrom, WatchOptions, WatchPut, WatchToken, Watcher};
use crate::clock::wall_time;
use crate::database::Database;
use crate::engine::EngineHandle;
use crate::engine::shared::Shared;
use crate::error::{ReadError, read_error};
use crate::limits::{MAX_WATCH_VALUE_BYTES, MAX_WATCHERS};
use crate::list::{Entry, ListItem, ListOptions};
use crate::store::RocksStore;
use crate::stream::ListStream;

/// The events of a watch, without end until the database is closed.
///
/// One reader's pace is nobody else's concern: nothing is queued for it. Per key the events come in the order of its
/// changes, but several changes may become one event, and one may be told twice after a resume. What has expired is
/// hidden from `get` at once, but told only when something else changes the key, or a tombstone removes it.
///
/// An event may tell of a write that is not on disk yet. After a power failure of the node such a write may be gone, and a
/// token of an event that was told before it may still be good: whoever keeps what was told should list again then.
///
/// An error is the last item.
pub struct WatchStream {
    database: Database,
    watcher: Option<Watcher>,
    ready: VecDeque<WatchEvent>,
    phase: Phase,
    token: Option<WatchToken>,
    _watching: Watching,
    _place: OwnedSemaphorePermit,
}

enum Phase {
    /// The listing's snapshot is being opened.
    Opening(oneshot::Receiver<Position>, ListStream),
    Listing(Position, ListStream),
    /// To look whether there is something to tell.
    Look,
    Reading(JoinHandle<(Watcher, Result<Vec<WatchEvent>, ReadError>)>),
    Waiting(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
    Ended,
}

impl std::fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchStream").field("watcher", &self.watcher).field("token", &self.token).finish_non_exhaustive()
    }
}

/// While it lives, the engine remembers what changes in the database.
struct Watching {
    shared: Arc<Shared>,
    engine: EngineHandle<RocksStore>,
}

impl Watching {
    fn start(shared: Arc<Shared>, engine: EngineHandle<RocksStore>) -> Self {
        shared.watch();
        engine.watchers_changed();
        Self { shared, engine }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.unwatch();
        self.engine.watchers_changed();
    }
}

impl Database {
    /// Watches the keys below a prefix: see [`WatchStream`]. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WatchError::TooOld`] when the token is no longer good, [`WatchError::TooManyWatchers`] beyond
    /// [`MAX_WATCHERS`], and when the database is closed or cannot be read.
    pub fn watch(&self, options: WatchOptions) -> Result<WatchStream, WatchError> {
        if self.is_closed() {
            return Err(self.gone().into());
        }
        let node = self.node();
        let place =
            Arc::clone(&node.watchers).try_acquire_owned().map_err(|_| WatchError::TooManyWatchers { limit: MAX_WATCHERS })?;
        let watching = Watching::start(Arc::clone(self.shared()), self.shard().engine.clone());
        let WatchOptions { prefix, from, keys_only } = options;
        // Asked first, so that the view is at least as new.
        let latest = self.shared().recent(super::Recent::latest);
        let new = |at| self.shared().recent(|recent| Watcher::new(prefix.clone(), keys_only, at, recent));
        let (watcher, phase) = match from {
            WatchFrom::Now => (new(self.named(latest)?), Phase::Look),
            WatchFrom::Token(token) => {
                let good = self.with_view(|view| Watcher::can_resume(&token, latest, view))?;
                if !good {
                    return Err(WatchError::TooOld { token });
                }
                (new(Position { revision: token.revision, dot: token.dot }), Phase::Look)
            }
            WatchFrom::List => {
                let mut list = ListOptions::new(prefix.clone());
                list.keys_only = keys_only;
                let (opened, at) = oneshot::channel();
                (new(latest), Phase::Opening(at, self.list_from(list, Some(opened))?))
            }
        };
        let token = if matches!(from, WatchFrom::List) { None } else { watcher.position().token() };
        let (watcher, ready) = (Some(watcher), VecDeque::new());
        Ok(WatchStream { database: self.clone(), watcher, ready, phase, token, _watching: watching, _place: place })
    }

    /// The position with the block that the log has there, so that it can be resumed from.
    fn named(&self, at: Position) -> Result<Position, ReadError> {
        if at.revision == 0 || at.dot.is_some() {
            return Ok(at);
        }
        let entry = self.with_view(|view| view.log(at.revision).next().transpose().map_err(|error| read_error(&error)))?;
        Ok(Position { dot: entry.filter(|entry| entry.revision == at.revision).map(|entry| entry.dot), ..at })
    }
}

impl WatchStream {
    /// Where to resume if the watch ended now; moves on also while other prefixes change.
    pub fn token(&self) -> Option<WatchToken> {
        let told = self.ready.is_empty() && matches!(self.phase, Phase::Look | Phase::Waiting(_));
        let here = self.watcher.as_ref().filter(|_| told).and_then(|watcher| watcher.position().token());
        here.or(self.token)
    }

    fn fail(&mut self, error: impl Into<WatchError>) -> Poll<Option<Result<WatchEvent, WatchError>>> {
        self.phase = Phase::Ended;
        Poll::Ready(Some(Err(error.into())))
    }

    fn listed(&mut self, entry: Entry) {
        let Entry { key, value, dot, stamp, siblings, len, .. } = entry;
        let short = usize::try_from(len).is_ok_and(|len| len <= MAX_WATCH_VALUE_BYTES);
        let wanted = self.watcher.as_ref().is_some_and(|watcher| !watcher.keys_only());
        let value = (short && wanted).then_some(value);
        let change = WatchChange::Put(WatchPut { key, dot, stamp, siblings, len, value });
        self.ready.push_back(WatchEvent { change, token: None });
    }

    fn look(&mut self) {
        let Some(mut watcher) = self.watcher.take() else { return self.phase = Phase::Ended };
        let mut changed: watch::Receiver<u64> = self.database.shared().changes();
        if !self.database.shared().recent(|recent| watcher.look(recent)) {
            self.watcher = Some(watcher);
            self.phase = Phase::Waiting(Box::pin(async move { drop(changed.changed().await) }));
            return;
        }
        let database = self.database.clone();
        self.phase = Phase::Reading(tokio::task::spawn_blocking(move || {
            let events = database.with_view(|view| watcher.read(view, wall_time()));
            (watcher, events)
        }));
    }
}

impl Stream for WatchStream {
    type Item = Result<WatchEvent, WatchError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                this.token = event.token.or(this.token);
                if event.change == WatchChange::Reset {
                    this.token = event.token;
                }
                return Poll::Ready(Some(Ok(event)));
            }
            match &mut this.phase {
                Phase::Ended => return Poll::Ready(None),
                _ if this.database.is_closed() => {
                    let gone = this.database.gone();
                    return this.fail(gone);
                }
                Phase::Look => this.look(),
                Phase::Waiting(changed) => {
                    std::task::ready!(changed.as_mut().poll(context));
                    this.phase = Phase::Look;
                }
                Phase::Reading(reading) => match std::task::ready!(Pin::new(reading).poll(context)) {
                    Ok((watcher, Ok(events))) => {
                        this.watcher = Some(watcher);
                        this.ready = events.into();
                        this.phase = Phase::Look;
                    }
                    Ok((_, Err(error))) => return this.fail(error),
                    Err(error) => return this.fail(ReadError::Store { cause: error.to_string() }),
                },
                Phase::Opening(opened, _) => {
                    // Without a position the listing has failed, and its first item says why.
                    let at = std::task::ready!(Pin::new(opened).poll(context)).unwrap_or_default();
                    if let Phase::Opening(_, list) = std::mem::replace(&mut this.phase, Phase::Look) {
                        this.phase = Phase::Listing(at, list);
                    }
                }
                Phase::Listing(at, list) => match std::task::ready!(Pin::new(list).poll_next(context)) {
                    Some(Ok(ListItem::Entry(entry))) => this.listed(entry),
                    Some(Ok(ListItem::CommonPrefix(_))) => {}
                    Some(Err(error)) => return this.fail(error),
                    None => {
                        let at = *at;
                        if let Some(watcher) = &mut this.watcher {
                            watcher.restart(at);
                        }
                        this.ready.push_back(WatchEvent { change: WatchChange::Listed, token: at.token() });
                        this.phase = Phase::Look;
                    }
                },
            }
        }
    }
}
