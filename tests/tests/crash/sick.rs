//! The sick disk of `tests/c/disk.c`: built once with the system's C compiler, and told what to do through a shared file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::cluster::Node;

/// A field of the control file, in the order of `disk.c`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    /// So many syncs of logs fail from now on.
    FailSync,
    /// 1: reads of tables fail.
    FailRead,
    /// 1: the disk has only `Room` left.
    Full,
    /// Bytes that still fit.
    Room,
    /// Bytes a second; 0 is no limit.
    Rate,
    /// Where the process ends: [`At`].
    KillAt,
    /// At the how manieth such call.
    KillCount,
    /// Before it, after it, or half way: [`When`].
    KillWhen,
    /// What is left of bytes that were not synced: all (0), nothing (1), half of them (2).
    Power,
    Writes,
    Syncs,
    Reads,
    Sends,
    /// Calls that were made to fail.
    Failed,
}

/// Kinds of calls at which a process can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Write = 1,
    Sync = 2,
    Send = 3,
}

/// On which side of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Before = 0,
    After = 1,
    Torn = 2,
}

/// The disk of one node.
pub(super) struct Disk(File);

impl Disk {
    /// Puts the sick disk under a node's store from its next start on; `None`, with a message, where it cannot be built.
    pub(super) fn under(node: &mut Node) -> Option<Self> {
        let library = library()?;
        let control = node.dir.path().join("disk");
        std::fs::write(&control, vec![0; 4_096]).unwrap();
        node.env = vec![
            ("LD_PRELOAD", library),
            ("SICK_DISK_CONTROL", control.clone()),
            ("SICK_DISK_DIR", node.dir.path().join("data/store")),
        ];
        Some(Self(File::options().read(true).write(true).open(control).unwrap()))
    }

    pub(super) fn set(&self, field: Field, value: u64) {
        self.0.write_all_at(&value.to_ne_bytes(), field as u64 * 8).unwrap();
    }

    pub(super) fn get(&self, field: Field) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, field as u64 * 8).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// The process ends at the so manieth call of this kind.
    pub(super) fn end_at(&self, at: At, when: When, count: u64, power: u64) {
        self.set(Field::KillAt, 0);
        self.set(Field::Power, power);
        self.set(Field::KillWhen, when as u64);
        self.set(Field::KillCount, count);
        self.set(Field::KillAt, at as u64);
    }

    /// Writes, syncs, reads and sends so far: none means that the disk is not in use.
    pub(super) fn calls(&self) -> [u64; 4] {
        [Field::Writes, Field::Syncs, Field::Reads, Field::Sends].map(|field| self.get(field))
    }

    pub(super) fn heal(&self) {
        for field in [Field::FailSync, Field::FailRead, Field::Full, Field::Rate, Field::KillAt] {
            self.set(field, 0);
        }
    }
}

fn library() -> Option<PathBuf> {
    c_program("disk.c", &["-shared", "-fPIC", "-ldl", "-lpthread"])
}

/// Builds a C source of `tests/c`, once; `None`, with a message, where there is no compiler.
pub(crate) fn c_program(source: &'static str, flags: &[&str]) -> Option<PathBuf> {
    static BUILT: Mutex<BTreeMap<&str, Option<PathBuf>>> = Mutex::new(BTreeMap::new());
    BUILT.lock().unwrap().entry(source).or_insert_with(|| build(source, flags)).clone()
}

fn build(source: &str, flags: &[&str]) -> Option<PathBuf> {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: {source} is for Linux");
        return None;
    }
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    // Beside this test's program; renamed when it is whole, since several runs may build it at once.
    let beside = std::env::current_exe().unwrap();
    let place = |ending: &str| beside.with_file_name(format!("sick-{source}-{ending}"));
    let built = place(&std::process::id().to_string());
    let source = Path::new(&package).join("c").join(source);
    match Command::new("cc").arg("-O1").arg("-o").arg(&built).arg(&source).args(flags).output() {
        Ok(output) if output.status.success() => {
            std::fs::rename(&built, place("built")).unwrap();
            Some(place("built"))
        }
        Ok(output) => panic!("{}: {}", source.display(), String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            None
        }
    }
}
