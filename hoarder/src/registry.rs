//! The registry: a kvdb database that every member holds. This module owns its keys and values, and what follows from them.
//!
//! | key | value |
//! | --- | --- |
//! | `/database/<name>/<generation>` | settings |
//! | `/dropped/<name>/<peer>` | generations below this one are dropped; the greatest of all peers counts |
//! | `/claim/<database id>/<peer>` | that member's claim to hold the database |
//! | `/store/<peer>` | that member's store and how often it was opened |
//! | `/forgotten/<peer>` | declared gone for good by an operator |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use crdt::codec::cbor::{Reader, Writer};
use crdt::{DatabaseId, DatabaseName, Key};
use kvdb::PeerId;

use crate::StoreId;
use crate::barrier::Durability;
use crate::limits::{MAX_DATABASES, MAX_HOLDERS, MAX_RECORD_BYTES};
use crate::wire::{WireError, flag, optional_peer, store, write_optional_peer};

/// The registry's name as a database.
pub const REGISTRY_NAME: &str = "_fleet";
const VERSION: u64 = 1;

/// The registry's id as a database.
///
/// # Panics
/// Never: the name is a valid one.
#[must_use]
#[expect(clippy::expect_used, reason = "a constant, tried by a test")]
pub fn registry_id() -> DatabaseId {
    DatabaseId::of(&DatabaseName::parse(REGISTRY_NAME).expect("the name is valid"), 0)
}

/// More than half.
#[must_use]
pub fn majority(known: usize) -> usize {
    known / 2 + 1
}

/// At least half.
#[must_use]
pub fn half(known: usize) -> usize {
    known.div_ceil(2)
}

/// What a database asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How many holders it should have, from 1 to [`MAX_HOLDERS`].
    pub holders: u8,
    /// The least number that `holders` has ever been: so few holders may have a confirmed write.
    pub least: u8,
    /// Durability of writes that name none.
    pub durability: Durability,
    /// Who made it: the first ready holder.
    pub creator: PeerId,
}

/// How far a holder has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimState {
    /// It catches up.
    Joining,
    /// It serves.
    Ready,
    /// It lets go.
    Leaving,
}

/// The record that a member holds, or is to hold, a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// How far it has come.
    pub state: ClaimState,
    /// The store that it speaks of.
    pub store: StoreId,
    /// It was ready on this store: what it acknowledged since then is there.
    pub was_ready: bool,
    /// It was ready on this store or on one before: it may be counted among the holders of a confirmed write.
    pub ever_ready: bool,
}

/// A member's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreRecord {
    /// Its id.
    pub store: StoreId,
    /// How often it was opened; a store that finds a greater number here than on its disk is an older image.
    pub opening: u64,
}

/// What a change of the registry touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// These databases.
    Databases(Vec<DatabaseId>),
    /// A member's store.
    Store(PeerId),
    /// A member declared gone.
    Forgotten(PeerId),
    /// Nothing: no key or value of this version; it is ignored.
    Refused,
}

/// The registry as one node sees it.
#[derive(Debug, Default, Clone)]
pub struct Registry {
    databases: BTreeMap<DatabaseName, BTreeMap<u64, Settings>>,
    ids: BTreeMap<DatabaseId, (DatabaseName, u64)>,
    dropped: BTreeMap<DatabaseName, BTreeMap<PeerId, u64>>,
    claims: BTreeMap<DatabaseId, BTreeMap<PeerId, Claim>>,
    stores: BTreeMap<PeerId, StoreRecord>,
    forgotten: BTreeSet<PeerId>,
    refused: u64,
}

/// A database that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live<'a> {
    /// Its name.
    pub name: &'a DatabaseName,
    /// Its generation.
    pub generation: u64,
    /// Its settings.
    pub settings: &'a Settings,
}

static NO_CLAIMS: BTreeMap<PeerId, Claim> = BTreeMap::new();

impl Registry {
    /// Takes in one entry as it is now; `None` if the key is gone.
    pub fn apply(&mut self, key: &Key, value: Option<&Bytes>) -> Touched {
        let touched = self.take(key, value).unwrap_or(Touched::Refused);
        if touched == Touched::Refused {
            self.refused += 1;
        }
        touched
    }

    fn take(&mut self, key: &Key, value: Option<&Bytes>) -> Option<Touched> {
        let mut parts = key.as_str().strip_prefix('/')?.split('/');
        let (kind, first, second) = (parts.next()?, parts.next()?, parts.next());
        if parts.next().is_some() {
            return None;
        }
        match (kind, second) {
            ("database", Some(generation)) => self.take_database(first, generation, value),
            ("dropped", Some(peer)) => {
                let (name, peer) = (DatabaseName::parse(first).ok()?, peer.parse().ok()?);
                let below = value.map(decode_number).transpose().ok()?;
                set(self.dropped.entry(name.clone()).or_default(), peer, below);
                let generations = self.databases.get(&name).into_iter().flat_map(BTreeMap::keys);
                Some(Touched::Databases(generations.map(|generation| DatabaseId::of(&name, *generation)).collect()))
            }
            ("claim", Some(peer)) => {
                let (database, peer) = (parse_id(first)?, peer.parse().ok()?);
                let claim = value.map(Claim::decode).transpose().ok()?;
                let claims = self.claims.entry(database).or_default();
                set(claims, peer, claim);
                if claims.is_empty() {
                    self.claims.remove(&database);
                }
                Some(Touched::Databases(vec![database]))
            }
            ("store", None) => {
                let peer = first.parse().ok()?;
                set(&mut self.stores, peer, value.map(StoreRecord::decode).transpose().ok()?);
                Some(Touched::Store(peer))
            }
            ("forgotten", None) => {
                let peer = first.parse().ok()?;
                let known = if value.is_some() { self.forgotten.insert(peer) } else { self.forgotten.remove(&peer) };
                known.then_some(Touched::Forgotten(peer))
            }
            _ => None,
        }
    }

    fn take_database(&mut self, name: &str, generation: &str, value: Option<&Bytes>) -> Option<Touched> {
        let name = DatabaseName::parse(name).ok()?;
        let generation: u64 = generation.parse().ok().filter(|number: &u64| number.to_string() == generation)?;
        let settings = value.map(Settings::decode).transpose().ok()?;
        let id = DatabaseId::of(&name, generation);
        if settings.is_some() {
            if self.ids.len() >= MAX_DATABASES && !self.ids.contains_key(&id) {
                return None;
            }
            self.ids.insert(id, (name.clone(), generation));
        } else {
            self.ids.remove(&id);
        }
        let generations = self.databases.entry(name.clone()).or_default();
        set(generations, generation, settings);
        if generations.is_empty() {
            self.databases.remove(&name);
        }
        Some(Touched::Databases(vec![id]))
    }

    /// The generation below which all of this name are dropped.
    #[must_use]
    pub fn dropped_below(&self, name: &DatabaseName) -> u64 {
        self.dropped.get(name).into_iter().flat_map(BTreeMap::values).copied().max().unwrap_or(0)
    }

    /// The database of this name, if there is one that was not dropped.
    #[must_use]
    pub fn current(&self, name: &DatabaseName) -> Option<(DatabaseId, Live<'_>)> {
        let (name, generations) = self.databases.get_key_value(name)?;
        let (generation, settings) = generations.last_key_value()?;
        let live = Live { name, generation: *generation, settings };
        (*generation >= self.dropped_below(name)).then(|| (DatabaseId::of(name, *generation), live))
    }

    /// A database by its id, unless it was dropped.
    #[must_use]
    pub fn live(&self, database: &DatabaseId) -> Option<Live<'_>> {
        let (name, generation) = self.ids.get(database)?;
        let settings = self.databases.get(name)?.get(generation)?;
        (*generation >= self.dropped_below(name)).then_some(Live { name, generation: *generation, settings })
    }

    /// Whether the id is of a database that was dropped.
    #[must_use]
    pub fn is_dropped(&self, database: &DatabaseId) -> bool {
        self.ids.get(database).is_some_and(|(name, generation)| *generation < self.dropped_below(name))
    }

    /// Name and generation of a database, dropped or not.
    #[must_use]
    pub fn name_of(&self, database: &DatabaseId) -> Option<(&DatabaseName, u64)> {
        self.ids.get(database).map(|(name, generation)| (name, *generation))
    }

    /// All databases ever made that the registry still knows, dropped ones included.
    pub fn ids(&self) -> impl Iterator<Item = DatabaseId> + '_ {
        self.ids.keys().copied()
    }

    /// All databases that are there.
    pub fn all(&self) -> impl Iterator<Item = (DatabaseId, Live<'_>)> {
        self.databases.keys().filter_map(|name| self.current(name))
    }

    /// Those of them that come after a name, by name.
    pub fn all_after(&self, after: Option<&DatabaseName>) -> impl Iterator<Item = (DatabaseId, Live<'_>)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.databases.range::<DatabaseName, _>((start, Bound::Unbounded)).filter_map(|(name, _)| self.current(name))
    }

    /// The claims to a database.
    #[must_use]
    pub fn claims(&self, database: &DatabaseId) -> &BTreeMap<PeerId, Claim> {
        self.claims.get(database).unwrap_or(&NO_CLAIMS)
    }

    /// A member's store, by its own word.
    #[must_use]
    pub fn store(&self, peer: &PeerId) -> Option<&StoreRecord> {
        self.stores.get(peer)
    }

    /// Members declared gone.
    #[must_use]
    pub fn forgotten(&self) -> &BTreeSet<PeerId> {
        &self.forgotten
    }

    /// How many entries were no entries of this version.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

fn parse_id(text: &str) -> Option<DatabaseId> {
    let digits = text.as_bytes();
    let mut id = [0; 32];
    if digits.len() != 64 || !digits.iter().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit)) {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(DatabaseId(id))
}

fn key(text: &str) -> Option<Key> {
    Key::parse(text).ok()
}

/// The key of a database's settings.
#[must_use]
pub fn database_key(name: &DatabaseName, generation: u64) -> Option<Key> {
    key(&format!("/database/{name}/{generation}"))
}

/// The key under which a member says that generations were dropped.
#[must_use]
pub fn dropped_key(name: &DatabaseName, peer: &PeerId) -> Option<Key> {
    key(&format!("/dropped/{name}/{peer}"))
}

/// The key of a claim.
#[must_use]
pub fn claim_key(database: &DatabaseId, peer: &PeerId) -> Option<Key> {
    key(&format!("/claim/{database}/{peer}"))
}

/// The key of a member's store.
#[must_use]
pub fn store_key(peer: &PeerId) -> Option<Key> {
    key(&format!("/store/{peer}"))
}

/// The key under which a member is declared gone.
#[must_use]
pub fn forgotten_key(peer: &PeerId) -> Option<Key> {
    key(&format!("/forgotten/{peer}"))
}

fn open(bytes: &Bytes, items: usize) -> Result<Reader, WireError> {
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(WireError::FrameLength { bytes: bytes.len() as u64 });
    }
    let mut reader = Reader::new(bytes.clone());
    reader.array_of("a record", items)?;
    if reader.uint("a version")? == VERSION { Ok(reader) } else { Err(WireError::Value { what: "the version" }) }
}

/// A number as a value.
#[must_use]
pub fn encode_number(number: u64) -> Bytes {
    let mut writer = Writer::default();
    writer.array(2).uint(VERSION).uint(number);
    writer.into_bytes()
}

fn decode_number(bytes: &Bytes) -> Result<u64, WireError> {
    let mut reader = open(bytes, 2)?;
    let number = reader.uint("a number")?;
    reader.finish()?;
    Ok(number)
}

impl Settings {
    /// The value's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let (mode, k) = self.durability.numbers();
        let mut writer = Writer::default();
        writer.array(6).uint(VERSION).uint(u64::from(self.holders)).uint(u64::from(self.least)).uint(mode).uint(k);
        write_optional_peer(&mut writer, Some(&self.creator));
        writer.into_bytes()
    }

    fn decode(bytes: &Bytes) -> Result<Self, WireError> {
        let mut reader = open(bytes, 6)?;
        let count = |value: u64| u8::try_from(value).ok().filter(|k| (1..=MAX_HOLDERS).contains(k));
        let count = |value| count(value).ok_or(WireError::Value { what: "a number of holders" });
        let (holders, least) = (count(reader.uint("holders")?)?, count(reader.uint("holders")?)?);
        let (mode, k) = (reader.uint("a durability")?, reader.uint("a number of holders")?);
        let durability = Durability::from_numbers(mode, k).ok_or(WireError::Value { what: "a durability" })?;
        let creator = optional_peer(&mut reader)?.ok_or(WireError::Value { what: "a creator" })?;
        reader.finish()?;
        if least > holders {
            return Err(WireError::Value { what: "the least number of holders" });
        }
        Ok(Self { holders, least, durability, creator })
    }
}

impl Claim {
    /// The value's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let state = match self.state {
            ClaimState::Joining => 0,
            ClaimState::Ready => 1,
            ClaimState::Leaving => 2,
        };
        let mut writer = Writer::default();
        writer.array(5).uint(VERSION).uint(state).bytes(&self.store.0);
        writer.uint(u64::from(self.was_ready)).uint(u64::from(self.ever_ready));
        writer.into_bytes()
    }

    fn decode(bytes: &Bytes) -> Result<Self, WireError> {
        let mut reader = open(bytes, 5)?;
        let state = match reader.uint("a state")? {
            0 => ClaimState::Joining,
            1 => ClaimState::Ready,
            2 => ClaimState::Leaving,
            _ => return Err(WireError::Value { what: "a state" }),
        };
        let store = store(&mut reader)?;
        let (was_ready, ever_ready) = (flag(&mut reader, "was ready")?, flag(&mut reader, "ever ready")?);
        reader.finish()?;
        if (state == ClaimState::Ready && !was_ready) || (was_ready && !ever_ready) {
            return Err(WireError::Value { what: "a claim" });
        }
        Ok(Self { state, store, was_ready, ever_ready })
    }
}

impl StoreRecord {
    /// The value's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.array(3).uint(VERSION).bytes(&self.store.0).uint(self.opening);
        writer.into_bytes()
    }

    fn decode(bytes: &Bytes) -> Result<Self, WireError> {
        let mut reader = open(bytes, 3)?;
        let record = Self { store: store(&mut reader)?, opening: reader.uint("an opening")? };
        reader.finish()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::member;

    fn name(text: &str) -> DatabaseName {
        DatabaseName::parse(text).unwrap()
    }

    fn settings() -> Settings {
        Settings { holders: 3, least: 2, durability: Durability::Require(2), creator: member(1) }
    }

    fn claim() -> Claim {
        Claim { state: ClaimState::Ready, store: StoreId([5; 16]), was_ready: true, ever_ready: true }
    }

    #[test]
    fn records_have_golden_bytes_and_round_trip() {
        let hex = |bytes: &Bytes| {
            use std::fmt::Write as _;
            bytes.iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").unwrap();
                text
            })
        };
        let peer = hex(&Bytes::from(member(1).to_bytes()));
        assert_eq!(hex(&settings().encode()), format!("86010302 00 025826{peer}").replace(' ', ""));
        assert_eq!(hex(&claim().encode()), format!("85010150{}0101", "05".repeat(16)));
        assert_eq!(hex(&encode_number(300)), "820119012c");
        let record = StoreRecord { store: StoreId([6; 16]), opening: 3 };
        assert_eq!(hex(&record.encode()), format!("830150{}03", "06".repeat(16)));
        assert_eq!(Settings::decode(&settings().encode()), Ok(settings()));
        assert_eq!(Claim::decode(&claim().encode()), Ok(claim()));
        assert_eq!(StoreRecord::decode(&record.encode()), Ok(record));
        assert_eq!(decode_number(&encode_number(300)), Ok(300));
        // A claim cannot be ready without having been so.
        let bad = Claim { was_ready: false, ..claim() };
        assert!(Claim::decode(&bad.encode()).is_err());
        assert!(Settings::decode(&Settings { holders: 6, ..settings() }.encode()).is_err());
        assert!(Settings::decode(&Settings { least: 4, ..settings() }.encode()).is_err());
        assert_eq!(registry_id(), registry_id());
    }

    #[test]
    fn entries_come_and_go() {
        let mut registry = Registry::default();
        let id = DatabaseId::of(&name("a"), 0);
        let touched = registry.apply(&database_key(&name("a"), 0).unwrap(), Some(&settings().encode()));
        assert_eq!(touched, Touched::Databases(vec![id]));
        registry.apply(&claim_key(&id, &member(2)).unwrap(), Some(&claim().encode()));
        assert_eq!(registry.claims(&id), &BTreeMap::from([(member(2), claim())]));
        assert_eq!(registry.live(&id).unwrap().settings, &settings());
        registry.apply(&claim_key(&id, &member(2)).unwrap(), None);
        assert!(registry.claims(&id).is_empty());
        let record = StoreRecord { store: StoreId([6; 16]), opening: 3 };
        assert_eq!(registry.apply(&store_key(&member(2)).unwrap(), Some(&record.encode())), Touched::Store(member(2)));
        assert_eq!(registry.store(&member(2)), Some(&record));
        let forgotten = forgotten_key(&member(2)).unwrap();
        assert_eq!(registry.apply(&forgotten, Some(&encode_number(0))), Touched::Forgotten(member(2)));
    }

    #[test]
    fn situation_13_r28_a_name_made_again_has_another_id_and_the_greatest_drop_counts() {
        let mut registry = Registry::default();
        let (old, new) = (DatabaseId::of(&name("a"), 0), DatabaseId::of(&name("a"), 2));
        registry.apply(&database_key(&name("a"), 0).unwrap(), Some(&settings().encode()));
        registry.apply(&dropped_key(&name("a"), &member(1)).unwrap(), Some(&encode_number(1)));
        assert!(registry.is_dropped(&old));
        assert_eq!(registry.current(&name("a")), None);
        assert_eq!(registry.dropped_below(&name("a")), 1);
        registry.apply(&dropped_key(&name("a"), &member(2)).unwrap(), Some(&encode_number(2)));
        assert_eq!(registry.dropped_below(&name("a")), 2);
        registry.apply(&database_key(&name("a"), 2).unwrap(), Some(&settings().encode()));
        assert_eq!(registry.current(&name("a")).unwrap().0, new);
        assert_eq!(registry.live(&old), None);
        // Old settings that come once more, late, bring nothing back.
        registry.apply(&database_key(&name("a"), 0).unwrap(), Some(&settings().encode()));
        assert_eq!(registry.current(&name("a")).unwrap().0, new);
        assert_eq!(registry.all().count(), 1);
    }

    #[test]
    fn situation_11_what_is_no_record_is_ignored_and_counted() {
        let mut registry = Registry::default();
        let good = settings().encode();
        let bad = [
            ("/database/a/00", good.clone()),
            ("/database/a/x", good.clone()),
            ("/database/a", good.clone()),
            ("/database/a/0/b", good.clone()),
            ("/database/a/0", Bytes::from_static(b"x")),
            ("/claim/00/x", claim().encode()),
            ("/nothing/a/b", good.clone()),
            ("/dropped/a/nobody", encode_number(5)),
        ];
        for (text, value) in &bad {
            assert_eq!(registry.apply(&Key::parse(text).unwrap(), Some(value)), Touched::Refused, "{text}");
        }
        assert_eq!(registry.refused(), bad.len() as u64);
        assert_eq!(registry.ids().count(), 0);
    }

    #[test]
    fn majorities_and_halves_always_meet() {
        for known in 1..20 {
            assert!(majority(known) + half(known) > known);
        }
    }
}
