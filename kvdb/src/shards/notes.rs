//! The notes of a node with several data directories: which stores it has, and which database lives in which.
//!
//! The catalogues of the stores decide; the notes are for the day on which one of them cannot be read, so that its
//! databases are not taken for absent and made anew, empty, in another store. One file in the first data directory,
//! written whole at each opening and added to before each creation.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crdt::DatabaseName;

use crate::identity::write_synced;
use crate::limits::MAX_SHARD_NOTES;
use crate::store::StoreId;

const FILE: &str = "shards";
const HEAD: &str = "kvdb-shards 1";

/// Where a name was last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) store: StoreId,
    /// The generation of a live database, or the next one of a name that was dropped.
    pub(super) generation: u64,
    pub(super) live: bool,
}

/// What the notes say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Noted {
    /// The stores, each with its data directory as it was configured.
    pub(super) stores: Vec<(StoreId, PathBuf)>,
    pub(super) places: BTreeMap<DatabaseName, Place>,
}

impl Noted {
    /// The names that were last in a store.
    pub(super) fn of(&self, store: StoreId) -> impl Iterator<Item = (&DatabaseName, &Place)> {
        self.places.iter().filter(move |(_, place)| place.store == store)
    }

    fn encode(&self) -> String {
        let stores = self.stores.iter().map(|(id, directory)| format!("store {} {}\n", id, escape(directory)));
        let places = self.places.iter().map(|(name, place)| line(name, place));
        std::iter::once(format!("{HEAD}\n")).chain(stores).chain(places).collect()
    }

    /// A last line without its end was being added when the process ended; anything else that makes no sense is damage.
    fn decode(text: &str) -> Result<Self, String> {
        let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or_default());
        let mut lines = whole.split('\n').enumerate();
        if lines.next().map(|(_, head)| head) != Some(HEAD) {
            return Err(format!("its first line is not {HEAD:?}"));
        }
        let mut known = Self::default();
        for (number, line) in lines {
            known.read(line).ok_or_else(|| format!("line {} makes no sense", number + 1))?;
        }
        Ok(known)
    }

    fn read(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ')?;
        let (id, rest) = rest.split_once(' ')?;
        let store = StoreId::parse(id)?;
        if word == "store" {
            self.stores.push((store, unescape(rest)?));
            return Some(());
        }
        let is_live = match word {
            "live" => true,
            "next" => false,
            _ => return None,
        };
        let (generation, name) = rest.split_once(' ')?;
        let place = Place { store, generation: generation.parse().ok()?, live: is_live };
        self.places.insert(DatabaseName::parse(name).ok()?, place);
        Some(())
    }
}

fn line(name: &DatabaseName, place: &Place) -> String {
    let word = if place.live { "live" } else { "next" };
    format!("{word} {} {} {name}\n", place.store, place.generation)
}

/// A path on one line. What is not UTF-8 in it is lost, and such a directory is then taken for a new one.
pub(crate) fn escape(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('\n', "\\n")
}

/// Reads what [`escape`] wrote.
pub(crate) fn unescape(text: &str) -> Option<PathBuf> {
    let mut path = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        path.push(match letter {
            '\\' => match letters.next()? {
                'n' => '\n',
                '\\' => '\\',
                _ => return None,
            },
            other => other,
        });
    }
    Some(path.into())
}

/// The file, open for adding.
#[derive(Debug)]
pub(super) struct Notes {
    file: File,
    /// Lines that may be added until the file is written anew.
    room: usize,
}

/// Reads the file of a home; `None` when there is none.
pub(super) fn read(home: &Path) -> Result<Option<Noted>, String> {
    match std::fs::read_to_string(path(home)) {
        Ok(text) => Noted::decode(&text).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn path(home: &Path) -> PathBuf {
    home.join(FILE)
}

impl Notes {
    /// Writes the file anew, whole or not at all.
    pub(super) fn write(home: &Path, known: &Noted) -> io::Result<Self> {
        let path = path(home);
        write_synced(home, &path, known.encode().as_bytes())?;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self { file, room: known.places.len().max(MAX_SHARD_NOTES) })
    }

    /// Adds a line and has it on disk.
    pub(super) fn add(&mut self, name: &DatabaseName, place: &Place) -> io::Result<()> {
        let left = std::mem::take(&mut self.room);
        self.file.write_all(line(name, place).as_bytes())?;
        self.file.sync_data()?;
        // After a failure a part of the line may be there: then the file is written anew before anything is added.
        self.room = left.saturating_sub(1);
        Ok(())
    }

    /// Whether so much was added that the file is to be written anew.
    pub(super) fn is_long(&self) -> bool {
        self.room == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Noted {
        let (first, second) = (StoreId([1; 16]), StoreId([0xfe; 16]));
        let place = |store, generation, live| Place { store, generation, live };
        let name = |text: &str| DatabaseName::parse(text).unwrap();
        Noted {
            stores: vec![(first, "/a".into()), (second, "/odd \\ path\n".into())],
            places: BTreeMap::from([(name("one"), place(first, 0, true)), (name("two"), place(second, 3, false))]),
        }
    }

    #[test]
    fn golden_bytes_and_what_a_crash_may_leave() {
        let text = known().encode();
        let golden = "kvdb-shards 1\nstore 01010101010101010101010101010101 /a\n\
                      store fefefefefefefefefefefefefefefefe /odd \\\\ path\\n\n\
                      live 01010101010101010101010101010101 0 one\nnext fefefefefefefefefefefefefefefefe 3 two\n";
        assert_eq!(text, golden);
        assert_eq!(Noted::decode(&text), Ok(known()));
        // Every cut within the last line is the file without it.
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for end in last..text.len() {
            assert_eq!(Noted::decode(&text[..end]).unwrap().places.len(), 1);
        }
        let error = Noted::decode(&text.replace("live", "life")).unwrap_err();
        assert_eq!(error, "line 4 makes no sense");
        assert!(Noted::decode("").is_err() && Noted::decode("kvdb-shards 2\n").is_err());
    }

    #[test]
    fn what_is_added_last_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()), Ok(None));
        let mut notes = Notes::write(dir.path(), &known()).unwrap();
        let one = DatabaseName::parse("one").unwrap();
        let place = Place { store: StoreId([0xfe; 16]), generation: 1, live: true };
        notes.add(&one, &place).unwrap();
        assert_eq!(read(dir.path()).unwrap().unwrap().places.get(&one), Some(&place));
    }
}
