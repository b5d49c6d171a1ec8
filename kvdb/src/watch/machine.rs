//! One watcher: changed keys in, events out. No clock, no lock, no task.

use std::collections::BTreeSet;

use crdt::mutation::{Mutation, active};
use crdt::{Block, Key, LogEntry, Prefix, View, WallTime};

use super::{Position, Recent, WatchChange, WatchEvent, WatchPut, WatchToken};
use crate::error::{ReadError, read_error};
use crate::limits::{MAX_WATCH_BATCH_BYTES, MAX_WATCH_BATCH_EVENTS, MAX_WATCH_KEYS, MAX_WATCH_LOG_BYTES, MAX_WATCH_VALUE_BYTES};
use crate::list;

/// Where one watcher is, and what it has to tell.
///
/// Driven in two halves, so that nothing is locked while the store is read: [`Watcher::look`] takes what the engine
/// remembers, then [`Watcher::read`] makes events of it from a view *opened after that look*.
#[derive(Debug)]
pub struct Watcher {
    prefix: Prefix,
    keys_only: bool,
    /// Everything up to here has been told.
    at: Position,
    /// Keys to tell of, with what is there then.
    keys: BTreeSet<Key>,
    /// Everything up to here has been told once `keys` are.
    to: Position,
    /// The log is to be read up to here: the engine's memory does not reach back so far.
    behind: Option<Position>,
    /// Resets of the log that were told.
    resets: u64,
    reset: bool,
}

impl Watcher {
    /// A watcher of what changes after this position.
    #[must_use]
    pub fn new(prefix: Prefix, keys_only: bool, at: Position, recent: &Recent) -> Self {
        let resets = recent.resets();
        Self { prefix, keys_only, at, keys: BTreeSet::new(), to: at, behind: None, resets, reset: false }
    }

    /// Whether a watch can go on from the token. `recent` must have been looked at before the view was opened.
    ///
    /// # Errors
    /// When the view cannot read.
    pub fn can_resume<V: View>(token: &WatchToken, latest: Position, view: &V) -> Result<bool, ReadError> {
        let mut log = view.log(token.revision);
        if let Some(dot) = token.dot
            && log.next().transpose().map_err(|error| read_error(&error))?.map(|entry| (entry.revision, entry.dot))
                != Some((token.revision, dot))
        {
            return Ok(false);
        }
        match log.next().transpose().map_err(|error| read_error(&error))? {
            None => Ok(token.revision >= latest.revision),
            // Later gaps are found when the watch comes to them, and told by a reset.
            Some(LogEntry { revision, dot, .. }) => {
                let kept = view.block_hash(&dot).map_err(|error| read_error(&error))?;
                Ok(revision == token.revision + 1 && (kept.is_some() || active(Mutation::TokenAcrossReset)))
            }
        }
    }

    /// Goes on from the token: one event for each key touched since.
    #[must_use]
    pub fn resume(prefix: Prefix, keys_only: bool, token: WatchToken, recent: &Recent) -> Self {
        Self::new(prefix, keys_only, Position { revision: token.revision, dot: token.dot }, recent)
    }

    /// The place up to which everything has been told.
    #[must_use]
    pub fn position(&self) -> Position {
        self.at
    }

    /// Whether values are left out.
    pub(super) fn keys_only(&self) -> bool {
        self.keys_only
    }

    /// Goes on from here: everything before was told by a listing.
    pub(super) fn restart(&mut self, at: Position) {
        self.keys.clear();
        self.behind = None;
        (self.at, self.to) = (at, at);
    }

    /// Takes in what has changed. Tells whether there is something to [`Watcher::read`].
    pub fn look(&mut self, recent: &Recent) -> bool {
        if recent.resets() != self.resets {
            self.resets = recent.resets();
            self.start_over(recent.latest());
        }
        if self.reset || self.behind.is_some() || !self.keys.is_empty() {
            return true;
        }
        let latest = recent.latest();
        if latest.revision <= self.at.revision {
            return false;
        }
        match recent.since(self.at.revision) {
            Some(keys) => {
                self.keys.extend(keys.filter(|key| self.prefix.covers(key)).cloned());
                self.to = latest;
                if self.keys.is_empty() {
                    self.at = latest;
                }
            }
            None => self.behind = Some(latest),
        }
        self.behind.is_some() || !self.keys.is_empty()
    }

    /// The next events, some or none; then look again. The last event of a round carries a later token than the others.
    ///
    /// # Errors
    /// When the view cannot read. The watcher is of no use then; a new one can resume from the last event's token.
    pub fn read<V: View>(&mut self, view: &V, now: WallTime) -> Result<Vec<WatchEvent>, ReadError> {
        if self.keys.is_empty()
            && let Some(latest) = self.behind
            && !self.gather(view, latest)?
        {
            self.start_over(latest);
        }
        if std::mem::take(&mut self.reset) {
            return Ok(vec![WatchEvent { change: WatchChange::Reset, token: self.at.token() }]);
        }
        let mut events = Vec::new();
        let mut bytes = 0;
        while events.len() < MAX_WATCH_BATCH_EVENTS && bytes < MAX_WATCH_BATCH_BYTES {
            let Some(key) = self.keys.pop_first() else { break };
            let change = self.tell(view, key, now)?;
            if let WatchChange::Put(WatchPut { value: Some(value), .. }) = &change {
                bytes += value.len();
            }
            events.push(WatchEvent { change, token: self.at.token() });
        }
        if self.keys.is_empty() {
            self.at = self.to;
            if let Some(last) = events.last_mut() {
                last.token = self.at.token();
            }
        }
        Ok(events)
    }

    /// From here on, after telling that something was missed.
    fn start_over(&mut self, at: Position) {
        self.restart(at);
        self.reset = true;
    }

    /// Collects keys from the log. Tells whether the log had every block.
    fn gather<V: View>(&mut self, view: &V, latest: Position) -> Result<bool, ReadError> {
        let mut bytes = 0;
        self.to = self.at;
        for entry in view.log(self.at.revision + 1) {
            let LogEntry { revision, dot, .. } = entry.map_err(|error| read_error(&error))?;
            if revision != self.to.revision + 1 {
                return Ok(false);
            }
            if dot.seq == 0 && active(Mutation::TokenAcrossReset) {
                self.to = Position { revision, dot: None };
                continue;
            }
            if dot.seq == 0 {
                // Rows were replaced as a whole.
                return Ok(false);
            }
            let stored = view.block(&dot).map_err(|error| read_error(&error))?;
            // Dropped history goes from log and blocks in one batch: this is damage.
            let stored = stored.ok_or_else(|| ReadError::Store { cause: format!("the block {dot} of the log is missing") })?;
            bytes += stored.bytes.len();
            let block = Block::from_store(stored.bytes).map_err(|error| read_error(&error))?;
            let keys = block.ops().iter().map(|op| &op.key).filter(|key| self.prefix.covers(key));
            self.keys.extend(keys.cloned());
            self.to = Position { revision, dot: Some(dot) };
            if revision >= latest.revision {
                break;
            }
            if self.keys.len() >= MAX_WATCH_KEYS || bytes >= MAX_WATCH_LOG_BYTES {
                return Ok(true);
            }
        }
        self.behind = None;
        Ok(self.to.revision >= latest.revision)
    }

    fn tell<V: View>(&self, view: &V, key: Key, now: WallTime) -> Result<WatchChange, ReadError> {
        let row = view.row(&key).map_err(|error| read_error(&error))?;
        let Some(winner) = row.winner(now) else { return Ok(WatchChange::Deleted(key)) };
        let short = usize::try_from(winner.len).is_ok_and(|len| len <= MAX_WATCH_VALUE_BYTES);
        let value = if self.keys_only || !short { None } else { Some(list::value(view, &key, winner)?) };
        let siblings = row.visible(now).count();
        Ok(WatchChange::Put(WatchPut { dot: winner.dot, stamp: winner.stamp, siblings, len: winner.len, value, key }))
    }
}
