//! The rules of the house, read from the sources themselves: who may use whom, and which words stand where.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate with the crates of this workspace that it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("crdt", &[]),
    ("kvdb", &["crdt"]),
    ("hoarder", &["crdt", "kvdb"]),
    ("daemon", &["crdt", "kvdb", "hoarder"]),
    ("simulations", &["crdt", "kvdb", "hoarder"]),
    ("tests", &["crdt", "kvdb", "hoarder", "daemon"]),
];

/// Words that mean unfinished or unwelcome code. Written in two parts, so that this file does not hold them.
const BANNED: &[&str] = &[
    concat!("dbg", "!"),
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore"),
    concat!("uns", "afe"),
];

/// A word, and the only files or directories in which it may stand.
const ROOMS: &[(&str, &[&str])] = &[
    ("rocksdb::", &["kvdb/src/store/", "tests/bench/"]),
    ("Swarm", &["kvdb/src/net/swarm.rs", "kvdb/src/net/driver.rs"]),
    ("SystemTime::now", CLOCKS),
    ("Instant::now", CLOCKS),
];

/// Where a clock is read: drivers, processes, and what measures or waits.
const CLOCKS: &[&str] = &[
    "hoarder/src/driver.rs",
    "hoarder/src/driver/",
    "kvdb/src/clock.rs",
    "kvdb/src/engine/driver.rs",
    "kvdb/src/net/driver.rs",
    "daemon/src/",
    "simulations/src/cli/",
    "tests/",
];

const MAX_FILE_LINES: usize = 800;

/// By the variable of the run, not of the build: one target directory serves several checkouts.
fn root() -> PathBuf {
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs this test");
    Path::new(&package).parent().expect("the package lies in the workspace").to_owned()
}

/// The Rust files of the workspace with their text, paths relative to the root.
fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (name, _) in MAY_USE {
        collect(&root().join(name), &mut files);
    }
    assert!(files.len() > 20, "the sources were not found below {}", root().display());
    files
}

fn collect(dir: &Path, files: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Whether the text holds the word, not as a part of a longer one.
fn holds(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|head| head.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|tail| tail.chars().next());
        let open = |c: Option<char>| !c.is_some_and(is_part);
        (open(before) || !word.starts_with(is_part)) && (open(after) || !word.ends_with(is_part))
    })
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// The workspace crates among a manifest's dependencies, those for tests left out: they ship with nobody.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let crates: BTreeSet<&str> = MAY_USE.iter().map(|(name, _)| *name).collect();
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies]") && !section.contains("dev-") {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.extend(crates.get(name).copied());
        }
    }
    found
}

#[test]
fn crates_depend_upwards_only() {
    for (name, allowed) in MAY_USE {
        let Ok(manifest) = fs::read_to_string(root().join(name).join("Cargo.toml")) else { continue };
        for used in dependencies(&manifest) {
            assert!(allowed.contains(&used), "{name} must not depend on {used}");
        }
    }
    assert_eq!(dependencies("[dependencies]\ncrdt.workspace = true\nbytes = \"1\"\n"), BTreeSet::from(["crdt"]));
    assert!(dependencies("[dev-dependencies]\nkvdb = { path = \"../kvdb\" }\n").is_empty());
}

#[test]
fn no_banned_words() {
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            // A banned note is banned in comments above all; code words may be talked about.
            for word in BANNED {
                let place = if word.chars().all(char::is_uppercase) { line } else { code(line) };
                assert!(!holds(place, word), "{file}:{}: {word}", number + 1);
            }
        }
    }
}

#[test]
fn words_stay_in_their_rooms() {
    for (file, text) in sources() {
        if file == "tests/tests/house.rs" {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for (word, rooms) in ROOMS {
                let home = rooms.iter().any(|room| file.starts_with(room));
                assert!(home || !holds(code(line), word), "{file}:{}: {word} belongs to {rooms:?}", number + 1);
            }
        }
    }
}

#[test]
fn files_stay_readable() {
    for (file, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= MAX_FILE_LINES, "{file} has {lines} lines, the limit is {MAX_FILE_LINES}");
    }
}

/// Every row of the list of cases names tests that exist, or says why the case does not apply.
#[test]
fn every_case_has_its_test() {
    let list = fs::read_to_string(root().join("tests/CASES.md")).unwrap();
    let functions: BTreeSet<String> = sources().iter().flat_map(|(_, text)| tests_in(text)).collect();
    let mut rows = 0;
    for line in list.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case") && !line.starts_with("| ---")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [case, _, shown, ..] = cells.as_slice() else { panic!("not a row of three cells: {line}") };
        rows += 1;
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).filter(|name| !name.contains('/')).collect();
        assert!(!named.is_empty() || shown.starts_with("does not apply:"), "{case}: neither a test nor a reason");
        for name in named {
            assert!(functions.contains(name), "{case}: there is no test {name}");
            let prefix = format!("{}_", case.to_lowercase());
            assert!(name.starts_with(&prefix) || name.contains(&format!("_{prefix}")), "{case}: {name} does not name the case");
        }
    }
    assert!(rows > 0, "the list of cases has no rows");
}

/// The functions right below a test attribute, and the names in a table of `cases!`, which makes a test of each.
fn tests_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    let mut in_table = false;
    for line in text.lines().map(str::trim) {
        if line == "cases! {" || line == "}" {
            in_table = line != "}";
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
            names.extend(rest.split(['(', '<']).next().filter(|_| is_test).map(str::to_owned));
            is_test = false;
        } else if in_table {
            names.extend(line.split(' ').next().map(str::to_owned));
        }
    }
    names
}

#[test]
fn tests_are_found_in_all_their_forms() {
    let text = "#[test]\nfn a() {\n}\nfn no() {}\n\
                #[tokio::test(flavor = \"multi_thread\")]\n#[cfg(unix)]\nasync fn b() {}\n\
                cases! {\n    c \"m01\"\n}\nd \"x\"\n";
    assert_eq!(tests_in(text), ["a", "b", "c"]);
}
