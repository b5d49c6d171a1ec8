//! A toy engine for tests: replicas on a store in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use crdt::snapshot::{JoinError, SnapshotJoin};
use crdt::testing::MemoryStore;
use crdt::{
    Block, Change, DatabaseId, DatabaseName, Dot, Durability, Ed25519Signer, Effect, Env, Input, Key, LocalOp, LocalWrite,
    PendingLimits, Replica, SnapshotWrite, Source, Staged, Step, Store, Token, View, WallTime,
};
use tokio::sync::mpsc;

use super::port::{Backend, BackendError, LogSource, PlainLog, PlainView};
use super::ranges::{RangeRead, RangeTask, read_range};
use crate::engine::port::{Delivery, LogChunk, News, Progress, SnapshotOutcome, WriteError};

pub(crate) fn database(name: &str) -> DatabaseId {
    DatabaseId::of(&DatabaseName::parse(name).unwrap(), 0)
}

pub(crate) struct ToyEngine {
    pub(crate) store: MemoryStore,
    replicas: BTreeMap<DatabaseId, Replica>,
    signer: Ed25519Signer,
    random: u64,
    limits: PendingLimits,
    joins: BTreeMap<DatabaseId, SnapshotJoin>,
    /// Nothing is ever said to be on disk.
    pub(crate) lazy: bool,
    /// What is staged cannot be joined: the disk does not read.
    pub(crate) joins_fail: bool,
}

impl ToyEngine {
    pub(crate) fn new(seed: u8) -> Self {
        Self {
            store: MemoryStore::default(),
            replicas: BTreeMap::new(),
            signer: Ed25519Signer::from_seed([seed; 32]),
            random: u64::from(seed) << 32,
            limits: PendingLimits::default(),
            joins: BTreeMap::new(),
            lazy: false,
            joins_fail: false,
        }
    }

    pub(crate) fn with_limits(mut self, limits: PendingLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Opens a database anew from what the store has.
    pub(crate) fn open(&mut self, id: DatabaseId) -> News {
        self.store.create(id);
        let state = self.store.view(&id).unwrap().state().unwrap();
        let vv: Vec<_> = state.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
        let replica = Replica::resume(id, state, self.limits);
        let floors = replica.floors().iter().collect();
        let staged = self.store.view(&id).unwrap().staged().unwrap();
        let progress = Progress { durable: vv.clone(), vv, floors, staged, ..progress(&replica) };
        self.replicas.insert(id, replica);
        News::Opened(id, progress)
    }

    /// Stages a part of a snapshot.
    pub(crate) fn stage(&mut self, id: DatabaseId, write: SnapshotWrite) {
        self.joins.remove(&id);
        let step = self.replicas.get_mut(&id).unwrap().stage(vec![write], Vec::new());
        Step::commit_all(vec![step], &mut self.store, Durability::Buffered).unwrap();
    }

    /// A piece of the join of what is staged as a whole, as the engine does it; `None` when there is nothing to join.
    pub(crate) fn join_piece(&mut self, id: DatabaseId) -> Option<Vec<News>> {
        let staged = self.store.view(&id).unwrap().staged().unwrap().filter(Staged::is_complete)?;
        if self.joins_fail {
            self.stage(id, SnapshotWrite::Discard);
            return Some(vec![News::Snapshot(id, SnapshotOutcome::Failed)]);
        }
        let replica = self.replicas.get_mut(&id)?;
        let (vv, revision) = (replica.vv(), replica.meta().revision);
        let mut join = self.joins.remove(&id).unwrap_or_else(|| SnapshotJoin::new(id, staged.head, revision).unwrap());
        let piece = match join.piece(&self.store.view(&id).unwrap(), &vv, revision) {
            Ok(piece) => piece,
            Err(JoinError::Stale) => return Some(Vec::new()),
            Err(JoinError::Lacking(dot)) => {
                self.stage(id, SnapshotWrite::Discard);
                return Some(vec![News::Snapshot(id, SnapshotOutcome::Lacking { dot })]);
            }
            Err(error) => {
                self.stage(id, SnapshotWrite::Discard);
                return Some(vec![News::Snapshot(id, SnapshotOutcome::Invalid { cause: error.to_string() })]);
            }
        };
        let Some(joined) = piece.joined else {
            let step = replica.stage(piece.writes, piece.requests);
            Step::commit_all(vec![step], &mut self.store, Durability::Buffered).unwrap();
            self.joins.insert(id, join);
            return Some(Vec::new());
        };
        let replaces = joined.replaces;
        let step = replica.switch(joined, piece.writes);
        if replaces {
            Step::commit_all(vec![step], &mut self.store, Durability::Sync).unwrap();
            let news = [News::Snapshot(id, SnapshotOutcome::Joined), News::Closed(id)];
            return Some(news.into_iter().chain([self.open(id)]).collect());
        }
        let mut news = self.commit(id, step).1.into_iter().collect::<Vec<_>>();
        let replica = self.replicas.get_mut(&id)?;
        let mut turn = replica.begin();
        replica.release(&self.store.view(&id).unwrap(), &mut turn).unwrap();
        let step = replica.finish(turn);
        news.extend(self.commit(id, step).1);
        news.push(News::Snapshot(id, SnapshotOutcome::Joined));
        Some(news)
    }

    pub(crate) fn replica(&self, id: &DatabaseId) -> &Replica {
        &self.replicas[id]
    }

    pub(crate) fn put(&mut self, id: DatabaseId, key: &str, value: &[u8]) -> (Block, News) {
        let change = Change::Put { value: Bytes::copy_from_slice(value), expiry: None };
        let ops = vec![LocalOp::new(Key::parse(key).unwrap(), change)];
        let (effects, news) = self.turn(id, Input::Write(vec![LocalWrite { token: Token(0), request: None, ops }]));
        let sealed = effects.into_iter().find_map(|effect| match effect {
            Effect::Sealed { block, .. } => Some(block),
            _ => None,
        });
        let block = sealed.unwrap();
        let News::Advanced(id, progress) = news.unwrap() else { panic!() };
        (block.clone(), News::Advanced(id, Progress { sealed: vec![block], ..progress }))
    }

    pub(crate) fn delete(&mut self, id: DatabaseId, key: &str) -> Option<News> {
        let ops = vec![LocalOp::new(Key::parse(key).unwrap(), Change::Tombstone)];
        self.turn(id, Input::Write(vec![LocalWrite { token: Token(0), request: None, ops }])).1
    }

    pub(crate) fn deliver(&mut self, id: DatabaseId, blocks: Vec<Block>, source: Source) -> (Delivery, Option<News>) {
        let (effects, news) = self.turn(id, Input::Blocks { blocks, source });
        let mut delivery = Delivery::default();
        for effect in effects {
            match effect {
                Effect::Merged { .. } => delivery.merged += 1,
                Effect::Duplicate { .. } => delivery.duplicates += 1,
                Effect::Held { .. } => delivery.held += 1,
                Effect::Dropped { .. } => delivery.dropped += 1,
                Effect::Disagreement { dot, .. } => delivery.disagreements.push(dot),
                _ => {}
            }
        }
        (delivery, news)
    }

    /// Drops all history up to a revision.
    pub(crate) fn truncate(&mut self, id: DatabaseId, through: u64) -> Option<News> {
        self.turn(id, Input::Truncate { token: Token(0), through, limit: usize::MAX }).1
    }

    fn turn(&mut self, id: DatabaseId, input: Input) -> (Vec<Effect>, Option<News>) {
        let replica = self.replicas.get_mut(&id).unwrap();
        let mut random = || {
            self.random += 1;
            self.random
        };
        let mut env = Env { now: WallTime(1), signer: &self.signer, random: &mut random };
        let mut turn = replica.begin();
        replica.handle(input, &mut env, &self.store.view(&id).unwrap(), &mut turn).unwrap();
        let step = replica.finish(turn);
        self.commit(id, step)
    }

    fn commit(&mut self, id: DatabaseId, step: Step) -> (Vec<Effect>, Option<News>) {
        let committed = Step::commit_all(vec![step], &mut self.store, Durability::Sync).unwrap().pop().unwrap();
        let (vv, floors) = (committed.vv, committed.floors);
        let news = (!vv.is_empty() || !floors.is_empty()).then(|| {
            let durable = if self.lazy { Vec::new() } else { vv.clone() };
            News::Advanced(id, Progress { vv, durable, floors, ..progress(&self.replicas[&id]) })
        });
        (committed.effects, news)
    }

    pub(crate) fn read_log(&self, id: &DatabaseId, from: u64, max_bytes: usize, skip: &dyn Fn(&Dot) -> bool) -> LogChunk {
        PlainLog(&self.store).read_log(id, from, max_bytes, skip).unwrap()
    }

    pub(crate) fn revision_of(&self, id: &DatabaseId, dot: &Dot) -> Option<u64> {
        PlainLog(&self.store).revision_of(id, dot).unwrap()
    }
}

fn progress(replica: &Replica) -> Progress {
    Progress {
        revision: replica.meta().revision,
        digest: replica.meta().digest,
        heads_hash: replica.heads().hash(),
        ..Progress::default()
    }
}

/// A toy engine behind a lock, for the driver.
#[derive(Clone)]
pub(crate) struct ToyBackend {
    engine: Arc<Mutex<ToyEngine>>,
    news: mpsc::Sender<Vec<News>>,
}

impl ToyBackend {
    pub(crate) fn new(engine: ToyEngine) -> (Self, mpsc::Receiver<Vec<News>>) {
        let (news, receiver) = mpsc::channel(100_000);
        (Self { engine: Arc::new(Mutex::new(engine)), news }, receiver)
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut ToyEngine) -> T) -> T {
        act(&mut self.engine.lock().unwrap())
    }

    pub(crate) fn open(&self, id: DatabaseId) {
        self.with(|engine| self.news.try_send(vec![engine.open(id)]).unwrap());
    }

    pub(crate) fn put(&self, id: DatabaseId, key: &str, value: &[u8]) -> Dot {
        self.with(|engine| {
            let (block, news) = engine.put(id, key, value);
            self.news.try_send(vec![news]).unwrap();
            block.dot()
        })
    }
}

impl Backend for ToyBackend {
    async fn deliver(&self, database: DatabaseId, blocks: Vec<Block>, source: Source) -> Result<Delivery, WriteError> {
        Ok(self.with(|engine| {
            let (delivery, news) = engine.deliver(database, blocks, source);
            self.news.try_send(news.into_iter().collect()).unwrap();
            delivery
        }))
    }

    async fn stage(&self, database: DatabaseId, write: SnapshotWrite) -> Result<(), WriteError> {
        self.with(|engine| {
            engine.stage(database, write);
            while let Some(news) = engine.join_piece(database) {
                self.news.try_send(news).unwrap();
            }
        });
        Ok(())
    }

    fn read_range(&self, database: &DatabaseId, task: &RangeTask) -> Result<RangeRead, BackendError> {
        Ok(self.with(|engine| read_range(&engine.store.view(database).unwrap(), task).unwrap()))
    }

    type View = PlainView<MemoryStore>;

    fn view(&self, database: &DatabaseId) -> Result<Self::View, BackendError> {
        Ok(PlainView(self.with(|engine| engine.store.clone()), *database))
    }
}

impl LogSource for ToyBackend {
    fn read_log(
        &self,
        database: &DatabaseId,
        from: u64,
        max_bytes: usize,
        skip: &dyn Fn(&Dot) -> bool,
    ) -> Result<LogChunk, BackendError> {
        Ok(self.with(|engine| engine.read_log(database, from, max_bytes, skip)))
    }

    fn revision_of(&self, database: &DatabaseId, dot: &Dot) -> Result<Option<u64>, BackendError> {
        Ok(self.with(|engine| engine.revision_of(database, dot)))
    }
}
