//! Replicas over a store under test, compared with the naive reference after each change.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test: a broken store is to panic")]

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::block::{Block, BlockHash, Change, Draft, Expiry, Op, Parent, RequestId};
use crate::clock::{Stamp, WallTime};
use crate::database::{DatabaseId, DatabaseName};
use crate::dot::{Author, Dot};
use crate::effect::Effect;
use crate::input::{Input, LocalOp, LocalWrite, Token};
use crate::key::{Key, KeyRange, Prefix};
use crate::pending::{PendingLimits, Source};
use crate::replica::{Env, Replica};
use crate::row::Sibling;
use crate::snapshot::SnapshotJoin;
use crate::step::{Step, Turn};
use crate::store::{Durability, LogEntry, Order, Projection, SnapshotWrite, Store, View};
use crate::testing::{FakeSigner, Reference};

/// Makes the stores that the contract is tried on.
pub trait ContractHost {
    /// The store under test.
    type Store: Store;

    /// A new, empty store, independent of all others.
    fn fresh(&mut self) -> Self::Store;

    /// Makes a database of this name known to the store.
    fn create(&mut self, store: &mut Self::Store, name: &DatabaseName) -> DatabaseId;

    /// Closes the store and opens it again; a store that cannot be opened again stays as it is.
    fn reopen(&mut self, store: Self::Store) -> Self::Store {
        store
    }
}

/// A store with one replica for each database.
#[derive(Debug)]
pub struct Rig<S> {
    /// The store under test.
    pub store: S,
    replicas: BTreeMap<DatabaseId, Replica>,
    blocks: BTreeMap<DatabaseId, Vec<Block>>,
    nonce: u64,
}

impl<S: Store> Rig<S> {
    /// A rig without databases.
    pub fn new(store: S) -> Self {
        Self { store, replicas: BTreeMap::new(), blocks: BTreeMap::new(), nonce: 0 }
    }

    /// Local writes are made under names that no other rig uses that begins elsewhere.
    pub fn draw_from(&mut self, nonce: u64) {
        self.nonce = nonce;
    }

    /// Takes in a database that the store knows.
    pub fn open(&mut self, database: DatabaseId) {
        let state = self.store.view(&database).expect("a known database").state().expect("a state");
        self.replicas.insert(database, Replica::resume(database, state, PendingLimits::default()));
        self.blocks.entry(database).or_default();
    }

    /// Replaces the store by itself opened anew, and resumes all replicas.
    #[must_use]
    pub fn reopen<H: ContractHost<Store = S>>(mut self, host: &mut H) -> Self {
        self.store = host.reopen(self.store);
        self.replicas.keys().copied().collect::<Vec<_>>().into_iter().for_each(|database| self.open(database));
        self
    }

    /// The blocks merged so far, in order.
    pub fn blocks(&self, database: DatabaseId) -> &[Block] {
        self.blocks.get(&database).map(Vec::as_slice).unwrap_or_default()
    }

    /// One turn over several databases, committed as one batch; returns the effects.
    pub fn turn(&mut self, inputs: Vec<(DatabaseId, Input)>) -> Vec<Effect> {
        let Self { store, replicas, blocks, nonce } = self;
        let mut turns: BTreeMap<DatabaseId, Turn> = BTreeMap::new();
        for (database, input) in inputs {
            let replica = replicas.get_mut(&database).expect("an open database");
            let turn = turns.entry(database).or_insert_with(|| replica.begin());
            let view = store.view(&database).unwrap();
            let mut random = || {
                *nonce += 1;
                *nonce
            };
            let mut env = Env { now: WallTime(1_000), signer: &FakeSigner([1; 32]), random: &mut random };
            if let Input::Blocks { blocks: sent, .. } = &input {
                let known = blocks.entry(database).or_default();
                for block in sent {
                    if known.iter().all(|one| one.dot() != block.dot()) {
                        known.push(block.clone());
                    }
                }
            }
            replica.handle(input, &mut env, &view, turn).unwrap();
        }
        let step = |(database, turn)| replicas.get_mut(&database).map(|replica| replica.finish(turn));
        let steps: Vec<Step> = turns.into_iter().filter_map(step).collect();
        let committed = Step::commit_all(steps, store, Durability::Buffered).expect("a commit");
        let mut effects = Vec::new();
        for one in committed {
            for effect in &one.effects {
                if let Effect::Sealed { block, .. } = effect {
                    blocks.entry(one.database).or_default().push(block.clone());
                }
            }
            effects.extend(one.effects);
        }
        effects
    }

    /// A local write of one database in a turn of its own.
    pub fn write(&mut self, database: DatabaseId, request: Option<RequestId>, ops: Vec<LocalOp>) -> Vec<Effect> {
        self.turn(vec![(database, write(request, ops))])
    }

    /// Delivers blocks, all ready in the order given, in one turn.
    pub fn deliver(&mut self, database: DatabaseId, blocks: Vec<Block>) {
        self.turn(vec![(database, Input::Blocks { blocks, source: Source(1) })]);
    }

    /// Steps of a snapshot in a commit of their own.
    pub fn stage(&mut self, database: DatabaseId, writes: Vec<SnapshotWrite>) {
        let replica = self.replicas.get_mut(&database).expect("an open database");
        let step = replica.stage(writes, Vec::new());
        Step::commit_all(vec![step], &mut self.store, Durability::Buffered).unwrap();
    }

    /// One piece of a join; whether it was the last.
    pub fn join(&mut self, database: DatabaseId, join: &mut SnapshotJoin) -> bool {
        let replica = self.replicas.get_mut(&database).expect("an open database");
        let piece = {
            let view = self.store.view(&database).unwrap();
            join.piece(&view, &replica.vv(), replica.meta().revision).unwrap()
        };
        let done = piece.joined.is_some();
        let step = match piece.joined {
            Some(joined) => replica.switch(joined, piece.writes),
            None => replica.stage(piece.writes, piece.requests),
        };
        Step::commit_all(vec![step], &mut self.store, Durability::Sync).unwrap();
        done
    }

    /// The revision of a database.
    pub fn revision(&self, database: DatabaseId) -> u64 {
        self.replicas.get(&database).expect("an open database").meta().revision
    }

    /// Rows, version vector, heads and figures against the fold of these blocks.
    ///
    /// # Panics
    /// When they differ.
    pub fn check_state(&self, database: DatabaseId, blocks: &[Block]) {
        self.check_against(database, &Reference::fold(blocks));
    }

    /// Drops history in a turn of its own; returns how many blocks.
    pub fn truncate(&mut self, database: DatabaseId, through: u64, limit: usize) -> usize {
        let effects = self.turn(vec![(database, Input::Truncate { token: Token(0), through, limit })]);
        let Some(Effect::Truncated { blocks, .. }) = effects.first() else { panic!("no answer in {effects:?}") };
        *blocks
    }

    /// Forgets requests in a turn of its own; returns how many.
    pub fn forget(&mut self, database: DatabaseId, before: Stamp, keep: u64, limit: usize) -> usize {
        let effects = self.turn(vec![(database, Input::Forget { token: Token(0), before, keep, limit })]);
        let Some(Effect::Forgotten { requests, .. }) = effects.first() else { panic!("no answer in {effects:?}") };
        *requests
    }

    /// Compares all that the store says of a database with the reference and with the replica.
    ///
    /// # Panics
    /// When they differ.
    pub fn check(&self, database: DatabaseId) {
        let blocks = self.blocks(database);
        self.check_against(database, &Reference::fold(blocks));
        self.check_log(database, blocks);
    }

    fn check_against(&self, database: DatabaseId, reference: &Reference) {
        let view = self.store.view(&database).unwrap();
        let state = view.state().unwrap();
        let replica = self.replicas.get(&database).expect("an open database");
        let vv = state.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect();
        assert_eq!(reference.vv, vv, "version vector");
        for (id, entry) in &state.vv {
            assert_eq!(entry.author.replica(&database), *id, "the author behind a replica id");
        }
        assert_eq!(reference.heads, state.heads, "heads");
        assert_eq!(reference.digest, state.meta.digest, "digest");
        assert_eq!(&state.meta, replica.meta(), "meta");
        assert_eq!(state.meta.keys, reference.rows.len() as u64, "number of keys");
        let everything = KeyRange::of(&Prefix::root());
        let scanned = view.scan(everything.clone(), Order::Ascending, Projection::Rows);
        let rows: BTreeMap<Key, Vec<Sibling>> =
            scanned.map(Result::unwrap).map(|(key, row)| (key.clone(), with_values(&view, &key, row.siblings()))).collect();
        assert_eq!(reference.rows, rows, "rows by a scan");
        for (key, siblings) in &reference.rows {
            assert_eq!(siblings, &with_values(&view, key, view.row(key).unwrap().siblings()), "the row at {key}");
        }
        let expiries = |(key, row): (&Key, &Vec<Sibling>)| {
            row.iter().filter_map(|sibling| sibling.expiry).map(|expiry| (expiry, key.clone())).collect::<Vec<_>>()
        };
        let expected: BTreeSet<(Expiry, Key)> = reference.rows.iter().flat_map(expiries).collect();
        let found: Vec<(Expiry, Key)> = view.expired(WallTime(u64::MAX)).map(Result::unwrap).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "what expires");
        let requests: Vec<(Stamp, RequestId)> = view.oldest_requests().map(Result::unwrap).collect();
        assert!(requests.is_sorted(), "the oldest requests first");
        assert_eq!(state.meta.requests, requests.len() as u64, "number of requests");
        for (stamp, request) in requests {
            assert_eq!(view.request(&request).unwrap().map(|record| record.stamp), Some(stamp), "a request by its stamp");
        }
    }

    /// Blocks and log of a database against what was merged.
    fn check_log(&self, database: DatabaseId, blocks: &[Block]) {
        let view = self.store.view(&database).unwrap();
        let state = view.state().unwrap();
        let log: Vec<LogEntry> = view.log(0).map(Result::unwrap).collect();
        let entry = |(revision, block): (u64, &Block)| {
            let bytes = u32::try_from(block.bytes().len()).unwrap();
            LogEntry { revision, dot: block.dot(), bytes }
        };
        let (gone, kept): (Vec<LogEntry>, Vec<LogEntry>) =
            (1..).zip(blocks).map(entry).partition(|entry| entry.revision <= state.meta.log_floor);
        assert_eq!(kept, log, "the log");
        assert_eq!(state.meta.history_bytes, kept.iter().map(|entry| u64::from(entry.bytes)).sum::<u64>(), "bytes of blocks");
        assert_eq!(state.floors, gone.iter().map(|entry| (entry.dot.replica, entry.dot.seq)).collect(), "floors");
        for entry in gone {
            assert_eq!(view.block(&entry.dot).unwrap(), None, "a block below the floor");
            assert_eq!(view.block_hash(&entry.dot).unwrap(), None);
        }
        let floor = usize::try_from(state.meta.log_floor).unwrap();
        for (revision, block) in (1..).zip(blocks).skip(floor) {
            let stored = view.block(&block.dot()).unwrap().expect("a merged block");
            assert_eq!((revision, block.hash(), block.bytes()), (stored.revision, stored.hash, &stored.bytes));
            assert_eq!(Some(block.hash()), view.block_hash(&block.dot()).unwrap());
        }
    }
}

/// The siblings with their values, wherever the store keeps them.
fn with_values<V: View>(view: &V, key: &Key, siblings: &[Sibling]) -> Vec<Sibling> {
    let mut siblings = siblings.to_vec();
    for sibling in &mut siblings {
        if sibling.value.is_none() {
            sibling.value = view.value(key, &sibling.dot).unwrap();
            assert!(sibling.value.is_some(), "the value of {} at {key} is lost", sibling.dot);
        }
    }
    siblings
}

pub(super) fn write(request: Option<RequestId>, ops: Vec<LocalOp>) -> Input {
    Input::Write(vec![LocalWrite { token: Token(0), request, ops }])
}

pub(super) fn forget(before: Stamp, keep: u64, limit: usize) -> Input {
    Input::Forget { token: Token(0), before, keep, limit }
}

pub(super) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(super) fn put(at: &str, value: impl Into<Bytes>) -> LocalOp {
    LocalOp::new(key(at), Change::Put { value: value.into(), expiry: None })
}

pub(super) fn put_until(at: &str, value: impl Into<Bytes>, ms: u64) -> LocalOp {
    LocalOp::new(key(at), Change::Put { value: value.into(), expiry: Expiry::at_unix_ms(ms) })
}

pub(super) fn delete(at: &str) -> LocalOp {
    LocalOp::new(key(at), Change::Tombstone)
}

/// A block of somebody else, who has seen only what is named.
pub(super) fn foreign(database: DatabaseId, nonce: u64, seq: u64, parents: &[&Block], ops: Vec<(LocalOp, Vec<Dot>)>) -> Block {
    let hash = |block: &Block| -> (Dot, BlockHash) { (block.dot(), block.hash()) };
    let draft = Draft {
        database,
        author: Author { public_key: [2; 32], nonce },
        seq,
        stamp: Stamp((1_000 << 16) + nonce * 16 + seq),
        parents: parents.iter().map(|block| hash(block)).map(|(dot, hash)| Parent { dot, hash }).collect(),
        ops: ops.into_iter().map(|(op, superseded)| Op { key: op.key, change: op.change, superseded }).collect(),
        answers: Vec::new(),
    };
    Block::seal(draft, &FakeSigner([2; 32])).expect("a valid block")
}
