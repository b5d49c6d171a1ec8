//! Verifying a replica: everything that can be computed again is, from values and blocks, and what does not fit is named.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use crdt::{
    Block, DatabaseId, Digest, Dot, Heads, Key, KeyRange, LogEntry, Order, Prefix, Projection, ReplicaId, ReplicaState, Row,
    Verifier, View, Zip215,
};

use crate::database::Database;
use crate::error::{ReadError, read_error};
use crate::limits::{MAX_DAMAGES, VERIFY_BATCH_BLOCKS, VERIFY_BATCH_BYTES};
use crate::store::{RocksStore, StoreError};

/// What was looked at, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// Keys with something alive.
    pub keys: u64,
    /// Values.
    pub siblings: u64,
    /// Blocks that are kept.
    pub blocks: u64,
    /// What is damaged, the first 1,000.
    pub damages: Vec<Damage>,
    /// Damages beyond those.
    pub more: u64,
}

impl Verified {
    /// Whether everything is as it must be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damages.is_empty()
    }

    fn damage(&mut self, damage: Damage) {
        if self.damages.len() < MAX_DAMAGES {
            self.damages.push(damage);
        } else {
            self.more += 1;
        }
    }
}

/// Something that is not what it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A value that is not the one that was put.
    #[error("the value of {dot} at {key} does not have its check")]
    Value {
        /// The key.
        key: Key,
        /// The sibling.
        dot: Dot,
    },
    /// A value that is not there.
    #[error("the value of {dot} at {key} is missing")]
    NoValue {
        /// The key.
        key: Key,
        /// The sibling.
        dot: Dot,
    },
    /// A sibling of a block that does not count as merged.
    #[error("{dot} at {key} is of a block that is not merged")]
    NotMerged {
        /// The key.
        key: Key,
        /// The sibling.
        dot: Dot,
    },
    /// The kept digest is not that of the rows.
    #[error("the digest of the rows is {found}, but {kept} is kept")]
    Digest {
        /// Computed from the values.
        found: Digest,
        /// Kept beside them.
        kept: Digest,
    },
    /// The kept number of keys is not that of the rows.
    #[error("there are {found} keys, but {kept} are counted")]
    Keys {
        /// Counted now.
        found: u64,
        /// Kept.
        kept: u64,
    },
    /// A block that is not what it must be.
    #[error("the block {dot}: {what}")]
    Block {
        /// Its name.
        dot: Dot,
        /// What is wrong with it.
        what: String,
    },
    /// A head that is none, or not the block of its name.
    #[error("the head {dot}: {what}")]
    Head {
        /// Its name.
        dot: Dot,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A writer whose id does not follow from its key.
    #[error("the writer {0} is not who it says")]
    Author(ReplicaId),
    /// A record that cannot be read; what follows it in the same part was not looked at.
    #[error("{part} cannot be read further: {cause}")]
    Unreadable {
        /// Rows, log or state.
        part: &'static str,
        /// The store's words, which name the record.
        cause: String,
    },
}

/// Looks at everything of one database in one view. Reads all of it, in bounded memory.
pub fn verify<V: View>(view: &V, database: &DatabaseId, verifier: &mut dyn Verifier) -> Verified {
    let mut found = Verified::default();
    let state = match view.state() {
        Ok(state) => state,
        Err(error) => {
            found.damage(Damage::Unreadable { part: "the state", cause: error.to_string() });
            return found;
        }
    };
    for (replica, entry) in &state.vv {
        if entry.author.replica(database) != *replica {
            found.damage(Damage::Author(*replica));
        }
    }
    if let Err(error) = rows(view, &state, &mut found) {
        found.damage(Damage::Unreadable { part: "the rows", cause: error.to_string() });
    }
    let mut history =
        History { state: &state, verifier, next: BTreeMap::new(), ends: BTreeSet::new(), batch: Vec::new(), bytes: 0 };
    match history.read(view, &mut found) {
        Ok(()) => history.end(&mut found),
        Err(error) => found.damage(Damage::Unreadable { part: "the log", cause: error.to_string() }),
    }
    found
}

fn rows<V: View>(view: &V, state: &ReplicaState, verified: &mut Verified) -> Result<(), V::Error> {
    let mut digest = Digest::default();
    for found in view.scan(KeyRange::of(&Prefix::root()), Order::Ascending, Projection::Rows) {
        let (key, row) = found?;
        verified.keys += 1;
        self::row(view, state, &key, &row, &mut digest, verified)?;
    }
    if digest != state.meta.digest {
        verified.damage(Damage::Digest { found: digest, kept: state.meta.digest });
    }
    if verified.keys != state.meta.keys {
        verified.damage(Damage::Keys { found: verified.keys, kept: state.meta.keys });
    }
    Ok(())
}

fn row<V: View>(
    view: &V,
    state: &ReplicaState,
    key: &Key,
    row: &Row,
    digest: &mut Digest,
    verified: &mut Verified,
) -> Result<(), V::Error> {
    for sibling in row.siblings() {
        let dot = sibling.dot;
        verified.siblings += 1;
        if state.vv.get(&dot.replica).is_none_or(|entry| entry.seq < dot.seq) {
            verified.damage(Damage::NotMerged { key: key.clone(), dot });
        }
        let value = match &sibling.value {
            Some(value) => Some(value.clone()),
            None => view.value(key, &dot)?,
        };
        let Some(value) = value else {
            verified.damage(Damage::NoValue { key: key.clone(), dot });
            continue;
        };
        let check = crdt::row::check(key, &dot, sibling.stamp, sibling.expiry, &value);
        digest.add(check);
        if check != sibling.check || value.len() as u64 != u64::from(sibling.len) {
            verified.damage(Damage::Value { key: key.clone(), dot });
        }
    }
    Ok(())
}

/// The blocks that are kept, in the order of the log.
struct History<'a> {
    state: &'a ReplicaState,
    verifier: &'a mut dyn Verifier,
    /// Of each replica the last seq that was found above its floor.
    next: BTreeMap<ReplicaId, u64>,
    /// Blocks that came and that no later one has as a parent.
    ends: BTreeSet<Dot>,
    batch: Vec<(LogEntry, crdt::BlockHash, Bytes)>,
    bytes: usize,
}

impl History<'_> {
    fn read<V: View>(&mut self, view: &V, verified: &mut Verified) -> Result<(), V::Error> {
        for entry in view.log(self.state.meta.log_floor + 1) {
            let entry = entry?;
            if !entry.names_block() {
                continue;
            }
            match view.block(&entry.dot)? {
                Some(block) => {
                    verified.blocks += 1;
                    self.bytes += block.bytes.len();
                    self.batch.push((entry, block.hash, block.bytes));
                }
                None => verified.damage(Damage::Block { dot: entry.dot, what: "it is missing".to_owned() }),
            }
            if self.batch.len() >= VERIFY_BATCH_BLOCKS || self.bytes >= VERIFY_BATCH_BYTES {
                self.judge(view, verified)?;
            }
        }
        self.judge(view, verified)
    }

    fn judge<V: View>(&mut self, view: &V, verified: &mut Verified) -> Result<(), V::Error> {
        self.bytes = 0;
        let (names, bytes): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.batch).into_iter().map(|(entry, hash, bytes)| ((entry, hash), bytes)).unzip();
        for ((entry, hash), verdict) in names.into_iter().zip(Block::verify_all(bytes, self.verifier)) {
            let dot = entry.dot;
            let block = match verdict {
                Ok(block) => block,
                Err(error) => {
                    verified.damage(Damage::Block { dot, what: error.to_string() });
                    continue;
                }
            };
            if block.hash() != hash || block.dot() != dot {
                verified.damage(Damage::Block { dot, what: "another block is kept in its place".to_owned() });
                continue;
            }
            self.place(&block, verified);
            self.parents(view, &block, verified)?;
        }
        Ok(())
    }

    /// Above a floor no block of a writer is missing, and none is there that does not count as merged.
    fn place(&mut self, block: &Block, verified: &mut Verified) {
        let dot = block.dot();
        let floor = self.state.floors.get(&dot.replica);
        if dot.seq <= floor {
            return;
        }
        let last = self.next.insert(dot.replica, dot.seq).unwrap_or(floor);
        if last + 1 != dot.seq {
            let what = format!("it follows {last} in the log");
            verified.damage(Damage::Block { dot, what });
        }
        if self.state.vv.get(&dot.replica).is_none_or(|entry| entry.seq < dot.seq) {
            verified.damage(Damage::Block { dot, what: "it does not count as merged".to_owned() });
        }
    }

    fn parents<V: View>(&mut self, view: &V, block: &Block, verified: &mut Verified) -> Result<(), V::Error> {
        self.ends.insert(block.dot());
        for parent in block.parents() {
            self.ends.remove(&parent.dot);
            if self.state.heads.get(&parent.dot).is_some() {
                verified.damage(Damage::Head { dot: parent.dot, what: "a kept block has it as a parent" });
            }
            if view.block_hash(&parent.dot)?.is_some_and(|kept| kept != parent.hash) {
                let what = format!("its parent {} is another block here", parent.dot);
                verified.damage(Damage::Block { dot: block.dot(), what });
            }
        }
        let head = self.state.heads.get(&block.dot());
        if head.is_some_and(|head| head.hash != block.hash() || head.stamp != block.stamp()) {
            verified.damage(Damage::Head { dot: block.dot(), what: "the block of its name is another one" });
        }
        Ok(())
    }

    /// Everything that counts as merged and is above its floor must have come.
    fn end(&self, verified: &mut Verified) {
        for (replica, entry) in &self.state.vv {
            let last = self.next.get(replica).copied().unwrap_or_else(|| self.state.floors.get(replica));
            if last < entry.seq {
                let dot = Dot { replica: *replica, seq: last + 1 };
                verified.damage(Damage::Block { dot, what: "it counts as merged, but is not in the log".to_owned() });
            }
        }
        // Of a block that is not there nobody knows whose child it is.
        let whole = !verified.damages.iter().any(|damage| matches!(damage, Damage::Block { .. }));
        for dot in self.ends.iter().filter(|dot| whole && self.state.heads.get(dot).is_none()) {
            verified.damage(Damage::Head { dot: *dot, what: "it is missing, though no kept block has it as a parent" });
        }
        let covered = |dot: &Dot| self.state.vv.get(&dot.replica).is_some_and(|entry| entry.seq >= dot.seq);
        let heads: &Heads = &self.state.heads;
        for (dot, _) in heads.iter().filter(|(dot, _)| !covered(dot)) {
            verified.damage(Damage::Head { dot: *dot, what: "it does not count as merged" });
        }
    }
}

impl RocksStore {
    /// Looks at everything of one database, in one view. Blocks the thread for as long as reading all of it takes.
    ///
    /// # Errors
    /// When the database is not in this store.
    pub fn verify(&self, database: &DatabaseId) -> Result<Verified, StoreError> {
        Ok(verify(&self.snapshot(database)?, database, &mut Zip215(rand::rng())))
    }
}

impl Database {
    /// Looks at everything of this replica, in one view, while reads and writes go on: checks and digest computed again
    /// from the values, hashes and signatures of the blocks, version vector, heads and floors against them.
    ///
    /// # Errors
    /// When the database is closed; what cannot be read is among the damages.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped; the reading goes on for nothing.
    pub async fn verify(&self) -> Result<Verified, ReadError> {
        let (store, id) = (self.read(|store| Ok(store.clone()))?, self.id());
        let verified = tokio::task::spawn_blocking(move || store.verify(&id).map_err(|error| read_error(&error)));
        verified.await.map_err(|error| ReadError::Store { cause: error.to_string() })?
    }
}
