//! Whole runs are the same on every machine: their hashes are pinned, together with a hash of the sources that they follow
//! from. Where these have changed since, runs may have too, and nothing is compared with what was pinned; to pin them anew:
//! `RENEW=1 scripts/cargo test --release --workspace --test main golden`, and commit `golden.txt`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use simulations::runner::{Extras, run};
use simulations::scenarios::load;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Everything that decides in a run.
const SOURCES: &[&str] = &["../crdt/src", "../kvdb/src", "../hoarder/src", "src", "scenarios"];

fn files(below: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn sources() -> String {
    let mut found = Vec::new();
    for below in SOURCES {
        files(&Path::new(HERE).join(below), &mut found);
    }
    let mut hash = Sha256::new();
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
        hash.update(path.file_name().unwrap().to_string_lossy().as_bytes());
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn runs() -> String {
    let mut found = format!("sources {}\n", sources());
    for (name, seeds) in [("chaos", 0..1), ("swarm", 3..5), ("snapshots", 0..1), ("calm", 0..1)] {
        let scenario = load(name).unwrap();
        for seed in seeds {
            let outcome = run(&scenario, seed, Extras::default());
            writeln!(found, "{name} {seed} {} {}", outcome.events, outcome.trace.hex()).unwrap();
        }
    }
    found
}

#[test]
fn pinned_runs_are_the_same_to_the_bit() {
    let file = Path::new(HERE).join("tests/golden.txt");
    let pinned = std::fs::read_to_string(&file).unwrap();
    let renew = std::env::var_os("RENEW").is_some();
    if !renew && !pinned.starts_with(&format!("sources {}\n", sources())) {
        eprintln!("the sources have changed since runs were pinned: nothing to compare");
        return;
    }
    let found = runs();
    if renew {
        std::fs::write(&file, &found).unwrap();
    } else {
        assert_eq!(found, pinned, "the same sources gave other runs");
    }
}
