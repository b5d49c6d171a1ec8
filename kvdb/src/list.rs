//! Listing: a lazy walk over one view in byte order of whole keys.

use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use bytes::Bytes;
use crdt::{Dot, Expiry, Key, KeyError, KeyRange, Order, Prefix, Projection, Row, Sibling, Stamp, View, WallTime};

use crate::error::{ReadError, read_error};
use crate::limits::LIST_LOOK_ROWS;
use crate::pattern::Patterns;

/// A key with a value, as reads return it.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value; empty in a listing of keys only.
    pub value: Bytes,
    /// Length of the value in bytes, whether it is here or not.
    pub len: u32,
    /// The block that put it.
    pub dot: Dot,
    /// That block's stamp.
    pub stamp: Stamp,
    /// When the value stops being visible, if ever.
    pub expiry: Option<Expiry>,
    /// How many values are alive at the key; more than 1 is a conflict that a later write resolves.
    pub siblings: usize,
}

impl fmt::Debug for Entry {
    // Values never appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({}, {} bytes, {})", self.key, self.len, self.dot)
    }
}

/// One item of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListItem {
    /// A key with its winner.
    Entry(Entry),
    /// Stands for all keys below it, when a delimiter was asked for.
    CommonPrefix(Prefix),
}

impl ListItem {
    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        64 + match self {
            Self::Entry(entry) => entry.key.as_bytes().len() + entry.value.len(),
            Self::CommonPrefix(prefix) => prefix.as_str().len(),
        }
    }

    /// Where a listing goes on after this item.
    pub fn position(&self) -> After {
        match self {
            Self::Entry(entry) => After::Key(entry.key.clone()),
            Self::CommonPrefix(prefix) => After::Below(prefix.clone()),
        }
    }
}

/// A place in a listing to go on from, excluded. As text `/a/b` is a key, `/a/b/` is everything below `/a/b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// After this key.
    Key(Key),
    /// After everything below this prefix.
    Below(Prefix),
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "{key}"),
            Self::Below(prefix) => write!(f, "{prefix}/"),
        }
    }
}

impl FromStr for After {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key = Key::parse(text)?;
        if text.ends_with('/') { Prefix::parse(text).map(Self::Below) } else { Ok(Self::Key(key)) }
    }
}

/// What to list and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOptions {
    /// Only keys below this prefix.
    pub prefix: Prefix,
    /// Only what comes after this place, in the order of the listing.
    pub after: Option<After>,
    /// At most this many items.
    pub limit: Option<usize>,
    /// The order by key bytes.
    pub order: Order,
    /// Leaves the values out.
    pub keys_only: bool,
    /// Folds everything below the next `/` after the prefix into one common prefix.
    pub delimiter: bool,
    /// Only keys with more than one value alive. The cost follows what is looked at.
    pub conflicts: bool,
    /// Only keys that any of these matches; what is folded is folded of them. The cost follows what is searched.
    pub patterns: Option<Patterns>,
}

impl ListOptions {
    /// Everything below the prefix, ascending, with values.
    pub fn new(prefix: Prefix) -> Self {
        Self {
            prefix,
            after: None,
            limit: None,
            order: Order::Ascending,
            keys_only: false,
            delimiter: false,
            conflicts: false,
            patterns: None,
        }
    }

    /// Goes on after this place.
    #[must_use]
    pub fn after(mut self, after: impl Into<Option<After>>) -> Self {
        self.after = after.into();
        self
    }

    /// At most this many items. A page has one at least.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// In this order.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Without values.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Only keys with more than one value alive: concurrent writes that nobody has resolved yet.
    #[must_use]
    pub fn conflicts(mut self) -> Self {
        self.conflicts = true;
        self
    }

    /// Only keys that any of these matches.
    #[must_use]
    pub fn matching(mut self, patterns: Patterns) -> Self {
        self.patterns = Some(patterns);
        self
    }

    /// Folded at the next `/`.
    #[must_use]
    pub fn delimiter(mut self) -> Self {
        self.delimiter = true;
        self
    }
}

/// Part of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The items, in order.
    pub items: Vec<ListItem>,
    /// Where to go on; `None` when the listing is complete.
    pub next: Option<After>,
}

/// Hands every item of a listing to `take`, until it answers `false`. The cost follows what is listed, not what a
/// folded prefix hides: the walk jumps over it. While it searches without finding, it asks `wanted` now and then.
///
/// # Errors
/// When the view cannot read; what was taken before is right, the listing is not complete.
pub(crate) fn walk<V: View>(
    view: &V,
    options: &ListOptions,
    now: WallTime,
    take: &mut dyn FnMut(ListItem) -> bool,
    wanted: &dyn Fn() -> bool,
) -> Result<(), ReadError> {
    let mut skipped = 0_usize;
    let mut left = options.limit.unwrap_or(usize::MAX);
    let mut range = range(options);
    let projection = if options.keys_only { Projection::Keys } else { Projection::Rows };
    let skip = options.prefix.start().len();
    'ranges: while left > 0 && !range.is_empty() {
        for row in view.scan(range.clone(), options.order, projection) {
            let (key, row) = row.map_err(|error| read_error(&error))?;
            let matches = options.patterns.as_ref().is_none_or(|patterns| patterns.match_key(&key));
            let alone = || row.visible(now).nth(1).is_none();
            let Some(winner) = row.winner(now).filter(|_| matches && !(options.conflicts && alone())) else {
                skipped += 1;
                if skipped.is_multiple_of(LIST_LOOK_ROWS) && !wanted() {
                    return Ok(());
                }
                continue;
            };
            let folded = if options.delimiter { folded(&key, skip) } else { None };
            if let Some(prefix) = folded {
                pass(&mut range, options.order, &prefix);
                left -= 1;
                if !take(ListItem::CommonPrefix(prefix)) || left == 0 {
                    return Ok(());
                }
                continue 'ranges;
            }
            let siblings = row.visible(now).count();
            let value = if options.keys_only { Bytes::new() } else { value(view, &key, winner)? };
            left -= 1;
            let (dot, stamp, expiry, len) = (winner.dot, winner.stamp, winner.expiry, winner.len);
            let entry = Entry { key, value, len, dot, stamp, expiry, siblings };
            if !take(ListItem::Entry(entry)) || left == 0 {
                return Ok(());
            }
        }
        return Ok(());
    }
    Ok(())
}

/// All that is visible at a key, winner first.
///
/// # Errors
/// When the view cannot read.
pub(crate) fn visible<V: View>(view: &V, key: &Key, row: &Row, now: WallTime) -> Result<Vec<Entry>, ReadError> {
    let siblings = row.visible(now).count();
    let entry = |sibling: &Sibling| {
        let value = value(view, key, sibling)?;
        let (dot, stamp, expiry, len) = (sibling.dot, sibling.stamp, sibling.expiry, sibling.len);
        Ok(Entry { key: key.clone(), value, len, dot, stamp, expiry, siblings })
    };
    row.visible(now).map(entry).collect()
}

/// A sibling's value, wherever the store keeps it.
///
/// # Errors
/// When the view cannot read, or the value is missing.
pub(crate) fn value<V: View>(view: &V, key: &Key, sibling: &Sibling) -> Result<Bytes, ReadError> {
    if let Some(value) = &sibling.value {
        return Ok(value.clone());
    }
    let kept = view.value(key, &sibling.dot).map_err(|error| read_error(&error))?;
    kept.ok_or_else(|| ReadError::Store { cause: format!("the value of {key} put by {} is missing", sibling.dot) })
}

fn range(options: &ListOptions) -> KeyRange {
    let mut range = KeyRange::of(&options.prefix);
    match (&options.after, options.order) {
        (None, _) => {}
        (Some(After::Key(key)), Order::Ascending) => range.start_from(Bound::Excluded(key.as_bytes())),
        (Some(After::Key(key)), Order::Descending) => range.end_before(key.as_bytes()),
        (Some(After::Below(prefix)), order) => pass(&mut range, order, prefix),
    }
    range
}

/// Narrows the range to what comes after everything below the prefix.
fn pass(range: &mut KeyRange, order: Order, prefix: &Prefix) {
    match order {
        Order::Ascending => range.start_from(Bound::Included(&prefix.end())),
        Order::Descending => range.end_before(&prefix.start()),
    }
}

/// The common prefix that hides the key, when it has a segment beyond the first after the listed prefix.
fn folded(key: &Key, skip: usize) -> Option<Prefix> {
    let text = key.as_str();
    let slash = text.get(skip..)?.find('/')?;
    Prefix::parse(text.get(..skip + slash)?).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crdt::testing::MemoryStore;
    use crdt::{Change, DatabaseId, Durability, Ed25519Signer, LocalOp, Store as _};

    use super::*;
    use crate::engine::machine::{Engine, TurnEnv, Work};

    #[test]
    fn a_search_that_finds_nothing_ends_once_nobody_waits_for_it() {
        let database = DatabaseId([1; 32]);
        let mut store = MemoryStore::default();
        store.create(database);
        let mut engine = Engine::new(store);
        let put = |n: usize| {
            let change = Change::Put { value: Bytes::new(), expiry: None };
            LocalOp::new(Key::parse(&format!("/{n:05}")).unwrap(), change)
        };
        let ops = (0..LIST_LOOK_ROWS * 5).map(put).collect();
        let write = Work::Write { database, ops, request: None, durability: Durability::Buffered };
        let signer = Ed25519Signer::from_seed([1; 32]);
        engine.turn(vec![Work::Open(database), write], &mut TurnEnv { now: WallTime(1), signer: &signer, random: &mut || 1 });
        let options = ListOptions::new(Prefix::root()).matching(Patterns::new(["none"]).unwrap());
        let (asked, found) = (Cell::new(0), Cell::new(0));
        let walk_while = |wanted: bool| {
            asked.set(0);
            let mut take = |_| {
                found.set(found.get() + 1);
                true
            };
            let wanted = || {
                asked.set(asked.get() + 1);
                wanted
            };
            walk(&engine.store().view(&database).unwrap(), &options, WallTime(1), &mut take, &wanted).unwrap();
            (asked.get(), found.get())
        };
        assert_eq!(walk_while(true), (5, 0));
        assert_eq!(walk_while(false), (1, 0));
    }
}
