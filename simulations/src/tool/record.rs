//! A run as a reader wants to see it: what was asked, written, sent, lost, and where.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

use crdt::{Block, Change, Durability, LocalOp, SnapshotWrite};

use super::diagram::Entry;
use crate::faults::FAULTS;
use kvdb::watch::WatchChange;

use crate::observe::{Checker, NodeId, Observation, Watched, WorldView};
use crate::script::SCRIPT_CLIENT;
use crate::time::Time;

/// One thing that happened.
#[derive(Debug, Clone)]
pub struct Record {
    /// When.
    pub at: Time,
    /// Where; at the receiver for a message.
    pub node: Option<NodeId>,
    /// Who sent it.
    pub from: Option<NodeId>,
    /// `ask`, `answer`, `commit`, `sync`, `send`, `ack`, `publish`, `take`, `boot`, `end`, `fault`, `alarm` or `world`.
    pub kind: &'static str,
    /// The rest.
    pub text: String,
}

/// What of a run is to be seen.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// At these nodes; at all if empty.
    pub nodes: Vec<NodeId>,
    /// Of these kinds; of all if empty.
    pub kinds: Vec<String>,
    /// Naming this key.
    pub key: Option<String>,
    /// From then on.
    pub from: Time,
    /// Up to then.
    pub until: Option<Time>,
}

impl Filter {
    fn shows(&self, record: &Record) -> bool {
        let here = |node: Option<NodeId>| node.is_some_and(|node| self.nodes.contains(&node));
        (self.nodes.is_empty() || here(record.node) || here(record.from) || record.node.is_none())
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind == record.kind))
            && self.key.as_ref().is_none_or(|key| names(&record.text, key))
            && record.at >= self.from
            && self.until.is_none_or(|until| record.at <= until)
    }
}

/// Whether the text names the key as a word: `/a` is not in `/a/b`.
fn names(text: &str, key: &str) -> bool {
    text.split([' ', ',', '=', '!']).any(|word| word == key)
}

/// A checker that finds nothing and remembers. Keep a clone to read it.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    filter: Filter,
    records: Rc<RefCell<Vec<Record>>>,
}

impl Recorder {
    /// One that remembers what the filter shows.
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        Self { filter, records: Rc::default() }
    }

    /// What happened.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.borrow_mut())
    }
}

impl Checker for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn observe(&mut self, at: Time, seen: &Observation<'_>, _: &WorldView<'_>) -> Result<(), String> {
        let (node, from, kind, text) = describe(seen);
        let record = Record { at, node, from, kind, text };
        if self.filter.shows(&record) {
            self.records.borrow_mut().push(record);
        }
        Ok(())
    }
}

type Described = (Option<NodeId>, Option<NodeId>, &'static str, String);

fn describe(seen: &Observation<'_>) -> Described {
    match seen {
        Observation::Booted { node } => (Some(*node), None, "boot", "starts".to_owned()),
        Observation::Ended { node, how, lost } => (Some(*node), None, "end", format!("ends: {how:?}, {lost} batches lost")),
        Observation::Committed { node, writes, durability } => {
            let mut text = if *durability == Durability::Sync { "commits and syncs" } else { "commits" }.to_owned();
            for (_, block) in writes.iter().flat_map(|set| &set.blocks) {
                let _ = write!(text, " {}", block_text(block));
            }
            for set in *writes {
                for write in &set.snapshot {
                    text.push_str(snapshot_text(write));
                }
                let dropped = set.truncation.entries.len();
                if dropped > 0 {
                    let _ = write!(text, " drops {dropped} of the log");
                }
            }
            (Some(*node), None, "commit", text)
        }
        Observation::Switched { node, .. } => (Some(*node), None, "commit", "switches to a snapshot's rows".to_owned()),
        Observation::Tidies { node, ops, .. } => (Some(*node), None, "ask", format!("tidies up: {}", ops_text(ops))),
        Observation::Watch { watcher, node, what, .. } => {
            (Some(*node), None, "watch", format!("watcher {watcher}: {}", watched_text(what)))
        }
        Observation::Synced { node, lied, .. } => {
            (Some(*node), None, "sync", if *lied { "syncs, the disk lies" } else { "syncs" }.to_owned())
        }
        Observation::Asked { client, node, ops, durability, .. } => {
            (Some(*node), None, "ask", format!("{} asks, {durability:?}: {}", who(*client), ops_text(ops)))
        }
        Observation::Answered { client, node, ops, answer, .. } => {
            let what = match answer {
                Ok(written) => format!("{} {:?}", written.dot.map_or("nothing".to_owned(), short_dot), written.ops),
                Err(error) => error.to_string(),
            };
            (Some(*node), None, "answer", format!("answers {}: {what}, for {}", who(*client), ops_text(ops)))
        }
        Observation::Published { node, message, .. } => {
            (Some(*node), None, "publish", format!("publishes {} bytes", message.len()))
        }
        Observation::Sent { node, to, blocks, .. } => {
            let blocks = blocks.iter().filter_map(|bytes| Block::from_store(bytes.clone()).ok());
            let text: Vec<String> = blocks.map(|block| block_text(&block)).collect();
            (Some(*to), Some(*node), "send", format!("blocks {}", text.join(" ")))
        }
        Observation::Acked { node, to, durable, .. } => {
            let entries: Vec<String> =
                durable.iter().map(|(replica, seq)| short_dot(crdt::Dot { replica: *replica, seq: *seq })).collect();
            (Some(*to), Some(*node), "ack", format!("durable {}", entries.join(" ")))
        }
        Observation::Delivered { node, delivery, .. } => (
            Some(*node),
            None,
            "take",
            format!(
                "merged {}, known {}, held {}, dropped {}",
                delivery.merged, delivery.duplicates, delivery.held, delivery.dropped
            ),
        ),
        Observation::Disagreement { node, with, dots, .. } => {
            (Some(*node), None, "alarm", format!("disagrees with n{with} about {dots:?}"))
        }
        Observation::CutOff { node, what } => (Some(*node), None, "alarm", format!("cuts a peer off: {what}")),
        Observation::Fault { number, node } => {
            (*node, None, "fault", FAULTS.get(*number).map_or("?", |fault| fault.name).to_owned())
        }
        Observation::Fleet(seen) => {
            let (node, text) = seen.described();
            (node, None, "fleet", text)
        }
        Observation::Healed => (None, None, "world", "all faults are over".to_owned()),
        Observation::Equal => (None, None, "world", "all are equal".to_owned()),
    }
}

fn snapshot_text(write: &SnapshotWrite) -> &'static str {
    match write {
        SnapshotWrite::Discard => " discards a snapshot",
        SnapshotWrite::Begin { .. } => " begins to stage a snapshot",
        SnapshotWrite::Chunk { .. } => " stages a chunk",
        SnapshotWrite::Build => " begins a join",
        SnapshotWrite::Append(_) | SnapshotWrite::Patch(_) => " joins",
        SnapshotWrite::Seal => " has joined all",
        SnapshotWrite::Switch { .. } => " switches",
        SnapshotWrite::Replace { .. } => " is replaced",
        SnapshotWrite::Value { .. } | SnapshotWrite::Copy { .. } => "",
    }
}

fn watched_text(what: &Watched<'_>) -> String {
    match what {
        Watched::Listed { map, at, .. } => format!("lists {} keys at revision {at}", map.len()),
        Watched::Resumed(token) => format!("goes on from {token}"),
        Watched::TooOld(token) => format!("{token} is too old"),
        Watched::CaughtUp { map } => format!("has all, {} keys", map.len()),
        Watched::Ready(event, _) => format!("event ready, token {:?}", event.token),
        Watched::Event(event) => match &event.change {
            WatchChange::Put(put) => format!("{} is {}", put.key, short_dot(put.dot)),
            WatchChange::Deleted(key) => format!("{key} is gone"),
            WatchChange::Listed => "listed".to_owned(),
            WatchChange::Reset => "must list again".to_owned(),
        },
    }
}

fn who(client: crate::observe::ClientId) -> String {
    if client == SCRIPT_CLIENT { "the script".to_owned() } else { format!("client {client}") }
}

fn short_dot(dot: crdt::Dot) -> String {
    let text = dot.to_string();
    let tail = text.split_once('-').map_or("", |(_, seq)| seq);
    format!("{}-{tail}", text.get(..6).unwrap_or(&text))
}

fn block_text(block: &Block) -> String {
    let keys: Vec<String> = block
        .ops()
        .iter()
        .map(|op| match &op.change {
            Change::Put { value, .. } => format!("{}={}", op.key, value_text(value)),
            Change::Tombstone => format!("!{}", op.key),
        })
        .collect();
    format!("{}[ {} ]", short_dot(block.dot()), keys.join(" , "))
}

fn ops_text(ops: &[LocalOp]) -> String {
    let text = |op: &LocalOp| match &op.change {
        Change::Put { value, .. } => format!("put {} {}", op.key, value_text(value)),
        Change::Tombstone => format!("delete {}", op.key),
    };
    ops.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Values here are made up, so that they may be shown; the first bytes are enough.
fn value_text(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value.get(..value.len().min(16)).unwrap_or_default()).into_owned();
    text.trim_end_matches('.').to_owned()
}

/// The records as a diagram's entries.
#[must_use]
pub fn entries(records: &[Record]) -> Vec<Entry> {
    let entry = |record: &Record| Entry {
        at: record.at.0,
        node: record.node.unwrap_or(0),
        from: record.from,
        text: format!("{} {}", record.kind, record.text),
    };
    records.iter().map(entry).collect()
}

/// A record as a line of text.
#[must_use]
pub fn line(record: &Record) -> String {
    let node = record.node.map_or("     ".to_owned(), |node| format!("n{node:<4}"));
    let from = record.from.map(|from| format!("from n{from} ")).unwrap_or_default();
    format!("{} {node} {:<8} {from}{}", record.at, record.kind, record.text)
}
