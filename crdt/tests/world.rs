//! Nodes for tests: replicas over stores in memory, with clocks and randomness in the test's hand.

use std::collections::BTreeMap;

use bytes::Bytes;
use crdt::testing::{FakeSigner, MemoryStore, Reference};
use crdt::{
    Block, Change, Committed, DatabaseId, DatabaseName, Dot, Durability, Effect, Env, Expiry, Input, Key, KeyRange, LocalOp,
    LocalWrite, Order, PendingLimits, Prefix, Projection, Replica, RequestId, Row, Sibling, Source, Step, Store, Token,
    VersionVector, View, WallTime, WriteOutcome,
};

pub fn database() -> DatabaseId {
    DatabaseId::of(&DatabaseName::parse("demo").unwrap(), 0)
}

/// Random numbers that a seed repeats (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// One node with one database.
#[derive(Debug)]
pub struct Node {
    pub store: MemoryStore,
    pub replica: Replica,
    /// Its clock.
    pub now: WallTime,
    limits: PendingLimits,
    signer: FakeSigner,
    random: Rng,
    tokens: u64,
}

impl Node {
    pub fn new(number: u8) -> Self {
        Self::with_limits(number, PendingLimits::default())
    }

    pub fn with_limits(number: u8, limits: PendingLimits) -> Self {
        let mut store = MemoryStore::with_values_apart_above(16);
        store.create(database());
        let replica = resume(&store, limits);
        let signer = FakeSigner([number; 32]);
        Self { store, replica, now: WallTime(1_000_000), limits, signer, random: Rng(u64::from(number)), tokens: 0 }
    }

    /// Takes inputs in one turn and commits it.
    pub fn turn(&mut self, inputs: Vec<Input>) -> Committed {
        let mut turn = self.replica.begin();
        let random = &mut self.random;
        let mut random = || random.next();
        let mut env = Env { now: self.now, signer: &self.signer, random: &mut random };
        for input in inputs {
            let view = self.store.view(&database()).unwrap();
            self.replica.handle(input, &mut env, &view, &mut turn).unwrap();
        }
        let step = self.replica.finish(turn);
        Step::commit_all(vec![step], &mut self.store, Durability::Buffered).unwrap().pop().unwrap()
    }

    /// Local writes that wait together.
    pub fn group(&mut self, writes: Vec<(Option<RequestId>, Vec<LocalOp>)>) -> Vec<Effect> {
        let input = self.local(writes);
        self.turn(vec![input]).effects
    }

    /// The input of local writes, with tokens from 1 in each group.
    pub fn local(&mut self, writes: Vec<(Option<RequestId>, Vec<LocalOp>)>) -> Input {
        self.tokens = 0;
        let write = |(request, ops)| {
            self.tokens += 1;
            LocalWrite { token: Token(self.tokens), request, ops }
        };
        Input::Write(writes.into_iter().map(write).collect())
    }

    pub fn batch(&mut self, ops: Vec<LocalOp>) -> WriteOutcome {
        outcomes(&self.group(vec![(None, ops)])).remove(&1).unwrap()
    }

    pub fn put(&mut self, at: &str, value: impl Into<Bytes>) -> Dot {
        self.batch(vec![put(at, value)]).dot.unwrap()
    }

    pub fn delete(&mut self, at: &str) -> Option<Dot> {
        self.batch(vec![delete(at)]).dot
    }

    pub fn deliver(&mut self, blocks: Vec<Block>, source: u64) -> Vec<Effect> {
        self.turn(vec![Input::Blocks { blocks, source: Source(source) }]).effects
    }

    /// Delivers what this node lacks of the other's blocks, in the other's merge order.
    pub fn pull(&mut self, from: &Self) -> Vec<Effect> {
        let blocks = from.blocks().into_iter().filter(|block| !self.replica.covers(&block.dot())).collect();
        self.deliver(blocks, 1)
    }

    /// Ends the process: what was only in memory is gone.
    pub fn reopen(&mut self) {
        self.replica = resume(&self.store, self.limits);
    }

    /// Puts an older image of the disk back.
    pub fn restore(&mut self, image: MemoryStore) {
        self.store = image;
        self.reopen();
    }

    /// All merged blocks in merge order.
    pub fn blocks(&self) -> Vec<Block> {
        let view = self.store.view(&database()).unwrap();
        let entries = view.log(0).map(Result::unwrap).filter(crdt::LogEntry::names_block);
        let stored = entries.map(|entry| view.block(&entry.dot).unwrap().unwrap());
        stored.map(|stored| Block::from_store(stored.bytes).unwrap()).collect()
    }

    pub fn last_block(&self) -> Block {
        self.blocks().pop().unwrap()
    }

    pub fn row(&self, at: &str) -> Row {
        self.store.view(&database()).unwrap().row(&key(at)).unwrap()
    }

    /// All rows, with their values.
    pub fn rows(&self) -> BTreeMap<Key, Vec<Sibling>> {
        let view = self.store.view(&database()).unwrap();
        let all = view.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows).map(Result::unwrap);
        all.map(|(key, row)| {
            let mut siblings = row.into_siblings();
            for sibling in siblings.iter_mut().filter(|sibling| sibling.value.is_none()) {
                sibling.value = view.value(&key, &sibling.dot).unwrap();
                assert!(sibling.value.is_some(), "a lost value at {key}");
            }
            (key, siblings)
        })
        .collect()
    }

    /// What `get` returns.
    pub fn get(&self, at: &str) -> Option<Bytes> {
        let siblings = self.rows().remove(&key(at))?;
        siblings.into_iter().find(|sibling| !sibling.is_expired(self.now))?.value
    }

    pub fn heads(&self) -> Vec<Dot> {
        self.replica.heads().iter().map(|(dot, _)| *dot).collect()
    }

    pub fn vv(&self) -> VersionVector {
        self.replica.vv()
    }

    /// This node's state must be what its merged blocks give: in memory and in its store.
    pub fn check(&self) -> Reference {
        // The fold panics when the merged set is not causally closed.
        let reference = Reference::fold(&self.blocks());
        assert_eq!(self.rows(), reference.rows, "rows");
        assert_eq!(*self.replica.heads(), reference.heads, "heads");
        assert_eq!(self.replica.vv(), reference.vv, "version vector");
        assert_eq!(self.replica.meta().digest, reference.digest, "digest");
        assert_eq!(self.replica.meta().keys, reference.rows.len() as u64, "number of keys");
        let state = self.store.view(&database()).unwrap().state().unwrap();
        assert_eq!(state.heads, reference.heads, "stored heads");
        assert_eq!(state.meta, *self.replica.meta(), "stored meta");
        assert_eq!(state.vv.iter().map(|(replica, entry)| (*replica, entry.seq)).collect::<VersionVector>(), reference.vv);
        let (blocks, bytes) = self.replica.pending();
        assert!(blocks <= self.limits.blocks && bytes <= self.limits.bytes, "the pool holds {blocks} blocks, {bytes} bytes");
        reference
    }
}

fn resume(store: &MemoryStore, limits: PendingLimits) -> Replica {
    Replica::resume(database(), store.view(&database()).unwrap().state().unwrap(), limits)
}

/// The outcome of each write that was answered, by its token.
pub fn outcomes(effects: &[Effect]) -> BTreeMap<u64, WriteOutcome> {
    let written = effects.iter().filter_map(|effect| match effect {
        Effect::Written { token, outcome } => Some((token.0, outcome.clone())),
        _ => None,
    });
    written.collect()
}

/// The blocks that were made.
pub fn sealed(effects: &[Effect]) -> Vec<Block> {
    let made = effects.iter().filter_map(|effect| match effect {
        Effect::Sealed { block, .. } => Some(block.clone()),
        _ => None,
    });
    made.collect()
}

pub fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub fn put(at: &str, value: impl Into<Bytes>) -> LocalOp {
    LocalOp::new(key(at), Change::Put { value: value.into(), expiry: None })
}

pub fn put_until(at: &str, value: impl Into<Bytes>, unix_ms: u64) -> LocalOp {
    LocalOp::new(key(at), Change::Put { value: value.into(), expiry: Expiry::at_unix_ms(unix_ms) })
}

pub fn delete(at: &str) -> LocalOp {
    LocalOp::new(key(at), Change::Tombstone)
}
