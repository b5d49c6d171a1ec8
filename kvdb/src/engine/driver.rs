//! Threads, queue and clock around the engine's turn.
//!
//! One thread runs turns over what waits; a second one syncs what peers wait to see acknowledged, so that a slow disk
//! does not stall the commits of others. A caller of a buffered write that finds the engine idle and the queue empty
//! runs the turn itself: crossing to another thread and back costs several times the commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::thread::JoinHandle;

use crdt::{Block, DatabaseId, Durability, LocalOp, RequestId, Signer, SnapshotWrite, Source, Stamp, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::machine::{Advance, Engine, Reply, TurnEnv, TurnOutcome, Work, whole_vv};
use super::news::{NewsDesk, NewsFeed};
use super::port::{Delivery, SnapshotOutcome, Truncated, WriteError, Written};
use super::queue::{WorkQueue, inbox_cost, inbox_room, is_received, work_bytes};
use super::shared::{Figures, Shared};
use crate::clock::wall_time;
use crate::limits::{INBOX_WAIT, SYNC_DELAY};

/// The way to the engine of one store. Cloning is cheap.
pub struct EngineHandle<S: Store>(Arc<Inner<S>>);

impl<S: Store> Clone for EngineHandle<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> std::fmt::Debug for EngineHandle<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EngineHandle")
    }
}

struct Inner<S> {
    /// `None` once closed, so that handles left over do not keep the store open.
    engine: Mutex<Option<Engine<S>>>,
    inbox: Inbox,
    /// A second way to the same store, to sync it beside the engine.
    store: Mutex<Option<S>>,
    sync: SyncBell,
    /// Local writes that have been asked for and whose callers have not gone on yet.
    in_flight: AtomicUsize,
    signer: Arc<dyn Signer + Send + Sync>,
    news: NewsDesk,
    /// Why writes are refused, for whoever asks while a turn waits for the disk.
    poison: Mutex<Option<String>>,
    open: RwLock<BTreeMap<DatabaseId, Arc<Shared>>>,
    /// Watchers have come or gone since the last turn.
    watchers_changed: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Counts one local write while it lasts.
struct InFlight<'a> {
    count: &'a AtomicUsize,
    others: usize,
}

impl<'a> InFlight<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        Self { count, others: count.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Inbox {
    queue: Mutex<Queue>,
    arrived: Condvar,
    room: Arc<Semaphore>,
    /// For what peers sent.
    received_room: Arc<Semaphore>,
}

#[derive(Default)]
struct Queue {
    works: WorkQueue<Caller>,
    closed: bool,
}

struct Caller {
    reply: oneshot::Sender<Reply>,
    /// Given back when the work is done.
    _room: OwnedSemaphorePermit,
}

#[derive(Default)]
struct SyncBell {
    owed: Mutex<SyncState>,
    rung: Condvar,
}

#[derive(Default)]
struct SyncState {
    owed: bool,
    closed: bool,
}

impl<S> EngineHandle<S>
where
    S: Store + Clone + Send + 'static,
{
    /// Starts the engine of a store.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(store: S, signer: Arc<dyn Signer + Send + Sync>) -> std::io::Result<Self> {
        let inner = Arc::new(Inner {
            engine: Mutex::new(Some(Engine::new(store.clone()))),
            inbox: Inbox::default(),
            store: Mutex::new(Some(store)),
            sync: SyncBell::default(),
            in_flight: AtomicUsize::new(0),
            signer,
            news: NewsDesk::default(),
            poison: Mutex::default(),
            open: RwLock::default(),
            watchers_changed: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let spawn = |name: &str, run: fn(&Inner<S>)| {
            let inner = Arc::clone(&inner);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&inner))
        };
        let threads = vec![spawn("kvdb-engine", Inner::run)?, spawn("kvdb-sync", Inner::run_sync)?];
        *lock(&inner.threads) = threads;
        Ok(Self(inner))
    }

    /// Commits a batch of local ops.
    ///
    /// # Errors
    /// See [`WriteError`]: each says whether the write may exist.
    ///
    /// # Durability
    /// `Sync`: on disk before the reply. `Buffered`: survives the process, not a power failure.
    ///
    /// # Cancel safety
    /// Once polled the write may happen even when the future is dropped; never half of it.
    pub async fn write(
        &self,
        database: DatabaseId,
        ops: Vec<LocalOp>,
        request: Option<RequestId>,
        durability: Durability,
    ) -> Result<Written, WriteError> {
        let alone = InFlight::enter(&self.0.in_flight);
        // A group costs one signature and one batch for all: with others about, joining one is cheaper for everybody.
        let inline = durability == Durability::Buffered && alone.others == 0;
        match self.ask(Work::Write { database, ops, request, durability }, inline).await? {
            Reply::Written(result) => result,
            _ => Err(WriteError::Closed),
        }
    }

    /// Hands in verified blocks; resolves after their commit, which is buffered.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn deliver(&self, database: DatabaseId, blocks: Vec<Block>, source: Source) -> Result<Delivery, WriteError> {
        match self.ask(Work::Blocks { database, blocks, source }, false).await? {
            Reply::Delivered(result) => result,
            _ => Err(WriteError::Closed),
        }
    }

    /// Drops up to `limit` blocks from the oldest end of the history, none above the revision `through`, whether anybody
    /// needs them or not. The commit is buffered.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn truncate(&self, database: DatabaseId, through: u64, limit: usize) -> Result<Truncated, WriteError> {
        match self.ask(Work::Truncate { database, through, limit }, false).await? {
            Reply::Truncated(result) => result,
            _ => Err(WriteError::Closed),
        }
    }

    /// Hands in a verified part of a snapshot; resolves after its commit, which is buffered.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn stage(&self, database: DatabaseId, write: SnapshotWrite) -> Result<(), WriteError> {
        self.done(Work::Stage { database, write }).await
    }

    /// Takes no write and no block in from now on, or does so again.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub(crate) async fn freeze(&self, database: DatabaseId, frozen: bool) -> Result<(), WriteError> {
        self.done(Work::Freeze { database, frozen }).await
    }

    /// Forgets up to `limit` outcomes of requests, the oldest first: those with a stamp below `before`, and so many that no
    /// more than `keep` are left. The commit is buffered.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn forget(&self, database: DatabaseId, before: Stamp, keep: u64, limit: usize) -> Result<usize, WriteError> {
        match self.ask(Work::Forget { database, before, keep, limit }, false).await? {
            Reply::Forgotten(result) => result,
            _ => Err(WriteError::Closed),
        }
    }

    /// Returns once everything committed before is on disk.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn sync(&self) -> Result<(), WriteError> {
        self.done(Work::Sync).await
    }

    /// Opens a database that the store has in its catalogue.
    ///
    /// # Errors
    /// When its state cannot be read.
    pub(crate) async fn open(&self, database: DatabaseId) -> Result<Arc<Shared>, WriteError> {
        self.done(Work::Open(database)).await?;
        self.0.shared(&database).ok_or(WriteError::Closed)
    }

    pub(crate) async fn close_database(&self, database: DatabaseId) -> Result<(), WriteError> {
        self.done(Work::Close(database)).await
    }

    /// The news of all databases from now on, those open already reported as opened. For one consumer.
    pub fn news(&self) -> NewsFeed {
        // Under the engine's lock no turn slips in between.
        let engine = lock(&self.0.engine);
        let feed = self.0.news.feed();
        if let Some(engine) = engine.as_ref() {
            for database in self.open_databases() {
                self.0.news.put(|gathering| gathering.opened(engine, database));
            }
        }
        feed
    }

    /// Has the next turn look which databases are watched. Of a turn under way now watchers hear through the log.
    pub(crate) fn watchers_changed(&self) {
        self.0.watchers_changed.store(true, Ordering::Release);
    }

    /// An open database as readers see it.
    pub(crate) fn shared(&self, database: &DatabaseId) -> Option<Arc<Shared>> {
        self.0.shared(database)
    }

    /// Databases that are open.
    pub(crate) fn open_databases(&self) -> Vec<DatabaseId> {
        read(&self.0.open).keys().copied().collect()
    }

    /// Why writes are refused, if they are. Never waits for a turn.
    pub fn poison(&self) -> Option<String> {
        lock(&self.0.poison).clone()
    }

    /// Goes on with another store in the place of one that refuses writes. `exchange` gives the new one, or `None` if that is not to
    /// be now; what it is handed lets go of the engine's two clones of the old one. Turns wait meanwhile. What is
    /// open stays open, as the new store has it; what waited for other blocks is dropped, since sync brings it again.
    ///
    /// # Errors
    /// When there is no other store: the engine has ended.
    pub(crate) fn renew<E>(&self, exchange: impl FnOnce(&mut dyn FnMut()) -> Option<Result<S, E>>) -> Option<Result<(), E>> {
        let mut engine = self.0.engine.lock().ok()?;
        let mut second = lock(&self.0.store);
        let databases = self.open_databases();
        engine.as_ref()?;
        let store = match exchange(&mut || {
            drop(engine.take());
            drop(second.take());
        })? {
            Ok(store) => store,
            Err(error) => return Some(Err(error)),
        };
        *second = Some(store.clone());
        let mut renewed = Engine::new(store);
        let outcome = renewed.reopen(databases);
        for database in &outcome.closed {
            tracing::error!(%database, "closed, because it cannot be read since the store was opened again");
        }
        *lock(&self.0.poison) = None;
        self.0.watchers_changed.store(true, Ordering::Release);
        self.0.publish(&renewed, &outcome);
        *engine = Some(renewed);
        Some(Ok(()))
    }

    /// Bytes that wait for the engine.
    pub fn waiting_bytes(&self) -> usize {
        let inbox = &self.0.inbox;
        let used = |received: bool| inbox_room(received).saturating_sub(inbox.rooms(received).available_permits());
        used(false) + used(true)
    }

    /// Finishes what waits, syncs, and ends the threads. Later calls answer `Closed`.
    ///
    /// # Errors
    /// When the last sync failed.
    pub(crate) async fn close(&self) -> Result<(), WriteError> {
        let synced = self.sync().await;
        let handle = self.clone();
        // Only a runtime that is shutting down drops this task, and then the process ends.
        drop(tokio::task::spawn_blocking(move || handle.stop()).await);
        match synced {
            // Closed already: nothing is left to do.
            Err(WriteError::Closed) => Ok(()),
            synced => synced,
        }
    }

    /// Finishes what waits, ends the threads and lets go of the store. Blocks meanwhile.
    pub(crate) fn stop(&self) {
        self.0.shut();
        // Held to the end: whoever stops at the same time waits until it is done.
        let mut threads = lock(&self.0.threads);
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the engine panicked");
            }
        }
        drop(lock(&self.0.engine).take());
        drop(lock(&self.0.store).take());
    }

    async fn done(&self, work: Work) -> Result<(), WriteError> {
        match self.ask(work, false).await? {
            Reply::Done(result) => result,
            _ => Err(WriteError::Closed),
        }
    }

    async fn ask(&self, work: Work, inline: bool) -> Result<Reply, WriteError> {
        let bytes = work_bytes(&work);
        let room = self.0.inbox.room(bytes, is_received(&work)).await?;
        let (reply, answer) = oneshot::channel();
        self.0.submit(work, bytes, Caller { reply, _room: room }, inline)?;
        // The engine answers everything it took, or it has panicked.
        answer.await.map_err(|_| WriteError::Unknown { cause: "the engine has ended without an answer".to_owned() })
    }
}

impl Default for Inbox {
    fn default() -> Self {
        let [room, received_room] = [false, true].map(|received| Arc::new(Semaphore::new(inbox_room(received))));
        Self { queue: Mutex::default(), arrived: Condvar::new(), room, received_room }
    }
}

impl Inbox {
    fn rooms(&self, received: bool) -> &Arc<Semaphore> {
        if received { &self.received_room } else { &self.room }
    }

    async fn room(&self, bytes: usize, received: bool) -> Result<OwnedSemaphorePermit, WriteError> {
        let cost = u32::try_from(inbox_cost(bytes)).unwrap_or(u32::MAX);
        let rooms = self.rooms(received);
        if let Ok(room) = Arc::clone(rooms).try_acquire_many_owned(cost) {
            return Ok(room);
        }
        match tokio::time::timeout(INBOX_WAIT, Arc::clone(rooms).acquire_many_owned(cost)).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(WriteError::Closed),
            Err(_) => Err(WriteError::QueueFull { limit: inbox_room(received), waited: INBOX_WAIT }),
        }
    }
}

impl<S: Store + Clone> Inner<S> {
    fn submit(&self, work: Work, bytes: usize, caller: Caller, inline: bool) -> Result<(), WriteError> {
        let mut queue = lock(&self.inbox.queue);
        if queue.closed {
            return Err(WriteError::Closed);
        }
        if inline && queue.works.is_empty() {
            match self.engine.try_lock() {
                Ok(mut engine) => {
                    drop(queue);
                    let engine = engine.as_mut().ok_or(WriteError::Closed)?;
                    self.turn(engine, vec![work], vec![caller]);
                    return Ok(());
                }
                Err(TryLockError::Poisoned(_)) => return Err(panicked()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        queue.works.push(work, bytes, caller);
        drop(queue);
        self.inbox.arrived.notify_one();
        Ok(())
    }

    /// The engine's thread: turns over what waits until the queue is closed and empty. While a snapshot is joined, a piece
    /// of that after each.
    fn run(&self) {
        let mut joining = false;
        loop {
            let mut queue = lock(&self.inbox.queue);
            while queue.works.is_empty() && !queue.closed && !joining {
                queue = self.inbox.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.works.is_empty() && queue.closed {
                return;
            }
            drop(queue);
            // Taken only once the engine is free: what arrives while a caller's turn runs joins the group.
            let Ok(mut engine) = self.engine.lock() else { return self.refuse_all() };
            let Some(engine) = engine.as_mut() else { return self.refuse_all() };
            let (works, callers) = lock(&self.inbox.queue).works.take();
            if !works.is_empty() {
                self.turn(engine, works, callers);
            }
            if engine.joining() {
                self.turn(engine, Vec::new(), Vec::new());
            }
            joining = engine.joining();
        }
    }

    /// The syncing thread: what peers wait to see acknowledged reaches the disk soon.
    fn run_sync(&self) {
        loop {
            let mut state = lock(&self.sync.owed);
            while !state.owed && !state.closed {
                state = self.sync.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let (state, _) = self
                .sync
                .rung
                .wait_timeout_while(state, SYNC_DELAY, |state| !state.closed)
                .unwrap_or_else(PoisonError::into_inner);
            if state.closed {
                return;
            }
            drop(state);
            self.sync_once();
        }
    }

    fn sync_once(&self) {
        let unsynced = {
            let Ok(mut engine) = self.engine.lock() else { return };
            let Some(engine) = engine.as_mut() else { return };
            lock(&self.sync.owed).owed = false;
            engine.unsynced()
        };
        if unsynced.is_empty() {
            return;
        }
        let Some(mut store) = lock(&self.store).clone() else { return };
        match store.commit(&[], Durability::Sync) {
            Ok(()) => {
                // Under the lock, so that an opening sees either the debt or the news of its payment.
                let Ok(mut engine) = self.engine.lock() else { return };
                if let Some(engine) = engine.as_mut() {
                    let synced = engine.synced(unsynced);
                    self.news.put(|gathering| gathering.synced(&synced));
                }
            }
            Err(error) => {
                tracing::error!(%error, "a sync failed; the store refuses writes from now on");
                if let Ok(mut engine) = self.engine.lock()
                    && let Some(engine) = engine.as_mut()
                {
                    engine.set_poison(error.to_string());
                }
                // The first failure is the cause of all later ones.
                lock(&self.poison).get_or_insert(error.to_string());
            }
        }
    }

    fn turn(&self, engine: &mut Engine<S>, works: Vec<Work>, callers: Vec<Caller>) {
        let mut random = rand::random::<u64>;
        let mut env = TurnEnv { now: wall_time(), signer: self.signer.as_ref(), random: &mut random };
        let poisoned = engine.poison().is_some();
        // A plain load in nearly every turn.
        if self.watchers_changed.load(Ordering::Relaxed) && self.watchers_changed.swap(false, Ordering::AcqRel) {
            engine.set_watched(read(&self.open).iter().filter(|(_, shared)| shared.is_watched()).map(|(id, _)| *id).collect());
        }
        let outcome = engine.turn(works, &mut env);
        if !poisoned && let Some(cause) = engine.poison() {
            tracing::error!(cause, "a commit failed; the store refuses writes from now on");
            // The first failure is the cause of all later ones.
            lock(&self.poison).get_or_insert(cause.to_owned());
        }
        self.publish(engine, &outcome);
        for (caller, reply) in callers.into_iter().zip(outcome.replies) {
            // A caller that has gone does not want its reply.
            drop(caller.reply.send(reply));
        }
        if outcome.owes_sync {
            let mut state = lock(&self.sync.owed);
            if !state.owed {
                state.owed = true;
                drop(state);
                self.sync.rung.notify_one();
            }
        }
    }

    /// Lets readers and the network know, before any reply goes out.
    fn publish(&self, engine: &Engine<S>, outcome: &TurnOutcome) {
        for database in &outcome.opened {
            let shared = Shared::new(whole_vv(engine, database), figures(engine, database));
            write(&self.open).insert(*database, Arc::new(shared));
        }
        for Advance { database, vv, changes, switched, .. } in &outcome.advanced {
            if let Some(shared) = self.shared(database).filter(|_| *switched) {
                shared.reset(whole_vv(engine, database), figures(engine, database));
            } else if let Some(shared) = self.shared(database) {
                shared.advance(vv, figures(engine, database), changes.clone());
            }
        }
        for database in &outcome.replaced {
            if let Some(shared) = self.shared(database) {
                shared.reset(whole_vv(engine, database), figures(engine, database));
            }
        }
        for database in &outcome.renewed {
            if let Some(shared) = self.shared(database) {
                // Perhaps with the turn whose commit failed; watchers read the log for it.
                let vv: Vec<_> = whole_vv(engine, database).iter().collect();
                shared.advance(&vv, figures(engine, database), None);
            }
        }
        for database in &outcome.closed {
            if let Some(shared) = write(&self.open).remove(database) {
                shared.close();
            }
        }
        for (database, outcome) in &outcome.snapshots {
            match outcome {
                SnapshotOutcome::Joined => tracing::info!(%database, "a snapshot was joined"),
                outcome => tracing::error!(%database, ?outcome, "a snapshot was not joined"),
            }
        }
        self.news.put(|gathering| gathering.turn(engine, outcome));
    }

    fn shared(&self, database: &DatabaseId) -> Option<Arc<Shared>> {
        read(&self.open).get(database).cloned()
    }

    fn refuse_all(&self) {
        // Dropping a sender tells its caller that the engine is gone.
        let mut queue = lock(&self.inbox.queue);
        queue.closed = true;
        queue.works.clear();
    }

    /// Ends the threads once what waits is done; callers that come later are refused.
    fn shut(&self) {
        lock(&self.inbox.queue).closed = true;
        self.inbox.room.close();
        self.inbox.received_room.close();
        self.inbox.arrived.notify_all();
        lock(&self.sync.owed).closed = true;
        self.sync.rung.notify_all();
        for shared in std::mem::take(&mut *write(&self.open)).into_values() {
            shared.close();
        }
        self.news.end();
    }
}

fn figures<S: Store>(engine: &Engine<S>, database: &DatabaseId) -> Figures {
    engine.replica(database).map_or_else(Figures::default, |replica| {
        let (pending_blocks, pending_bytes) = replica.pending();
        Figures { meta: *replica.meta(), heads: replica.heads().len(), pending_blocks, pending_bytes }
    })
}

fn panicked() -> WriteError {
    WriteError::Poisoned { cause: "the engine panicked".to_owned() }
}

/// A panic elsewhere leaves these small states whole: each is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
