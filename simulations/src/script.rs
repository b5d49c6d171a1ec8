//! Scripts: what happens at a given moment of every run of a scenario, and what must be there in the end.
//!
//! One thing a line; `#` begins a comment. Times are seconds of virtual time, nodes are numbers.
//!
//! ```text
//! 0.5  cut 0 1             # nothing passes between them any more
//! 1    put 0 /k a1         # at node 0
//! 1.1  delete 0 /k
//! 1    burst 0 /unrelated 1000   # so many puts to keys below it, one a millisecond
//! 3    join 0 1
//! 4    down 2              # the process ends, and stays so until `up`
//! 5    up 2
//! 6    crash 2             # ends and comes back by itself; so after `power` (unsynced writes are lost) and `wipe`
//! 7    freeze 2 30         # stopped for so many seconds
//! 8    clock 2 -3600       # steps by so many seconds
//! 8    compact 2           # drops all history that it may
//! 9    silent 0 1          # no gossip between them, everything else
//! 9    bandwidth 0 1024    # bytes a second that it can send
//! 9    only 2 1            # nothing passes from one to the other, all the other way
//! 9    old 2               # an image of an earlier start is put back
//! end  /k = b1             # on every node
//! end  /gone absent
//! ```
//!
//! In a fleet `h0`, `h1`… is a ready holder of the first database in placement order, `o0`… another member: who that is is
//! said once, when a line first names it. What else there is in a fleet is in [`crate::fleet`].

use crdt::{Change, Durability, Key, LocalOp, RequestId};
use kvdb::engine::machine::Work;

use crate::fleet::FleetAct;
use crate::node::Sender;
use crate::observe::{End, NodeId, Observation};
use crate::time::Time;

use crate::world::{Event, World};

/// The client that scripted writes are ascribed to.
pub const SCRIPT_CLIENT: usize = usize::MAX;

/// What a line does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "said in the module")]
pub enum Act {
    Put(NodeId, Key, String),
    Delete(NodeId, Key),
    Cut(NodeId, NodeId),
    Join(NodeId, NodeId),
    Silent(NodeId, NodeId),
    Bandwidth(NodeId, u64),
    Down(NodeId),
    Up(NodeId),
    Crash(NodeId, End),
    Freeze(NodeId, u64),
    Clock(NodeId, i64),
    Compact(NodeId),
    Only(NodeId, NodeId),
    Fleet(FleetAct),
}

/// A script that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// What happens, and when.
    pub acts: Vec<(Time, Act)>,
    /// What must be at a key in the end; nothing for `None`.
    pub end: Vec<(Key, Option<String>)>,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// The line that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut script = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            if !words.is_empty() {
                script.line(&words).ok_or_else(|| format!("this line of a script is not understood: {line}"))?;
            }
        }
        Ok(script)
    }

    fn line(&mut self, words: &[&str]) -> Option<()> {
        match words {
            ["end", key, "absent"] => self.end.push((Key::parse(key).ok()?, None)),
            [at, "burst", node, below, count] => self.burst(time(at)?, node.parse().ok()?, below, count.parse().ok()?)?,
            ["end", key, "=", value] => self.end.push((Key::parse(key).ok()?, Some((*value).to_owned()))),
            [at, act @ ..] => self.acts.push((time(at)?, parse_act(act)?)),
            [] => return None,
        }
        Some(())
    }

    fn burst(&mut self, at: Time, node: NodeId, below: &str, count: u64) -> Option<()> {
        for number in 0..count {
            let key = Key::parse(&format!("{below}/{number}")).ok()?;
            self.acts.push((at + Time::ms(number), Act::Put(node, key, number.to_string())));
        }
        Some(())
    }
}

fn time(text: &str) -> Option<Time> {
    let seconds: f64 = text.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time written by hand; saturates")]
    (seconds >= 0.0).then_some(Time((seconds * 1e6) as u64))
}

fn parse_act(words: &[&str]) -> Option<Act> {
    let key = |text: &str| Key::parse(text).ok();
    let node = crate::fleet::who;
    if let Some(act) = FleetAct::parse(words) {
        return Some(Act::Fleet(act));
    }
    Some(match words {
        ["put", at, path, value] => Act::Put(node(at)?, key(path)?, (*value).to_owned()),
        ["delete", at, path] => Act::Delete(node(at)?, key(path)?),
        ["cut", one, other] => Act::Cut(node(one)?, node(other)?),
        ["join", one, other] => Act::Join(node(one)?, node(other)?),
        ["silent", one, other] => Act::Silent(node(one)?, node(other)?),
        ["bandwidth", at, bytes] => Act::Bandwidth(node(at)?, bytes.parse().ok()?),
        ["down", at] => Act::Down(node(at)?),
        ["up", at] => Act::Up(node(at)?),
        ["crash", at] => Act::Crash(node(at)?, End::Process),
        ["power", at] => Act::Crash(node(at)?, End::Power),
        ["wipe", at] => Act::Crash(node(at)?, End::Disk),
        ["freeze", at, seconds] => Act::Freeze(node(at)?, seconds.parse().ok()?),
        ["compact", at] => Act::Compact(node(at)?),
        ["only", one, other] => Act::Only(node(one)?, node(other)?),
        ["old", at] => Act::Crash(node(at)?, End::Restored),
        ["clock", at, seconds] => Act::Clock(node(at)?, seconds.parse().ok()?),
        _ => return None,
    })
}

/// Enters the scenario's script into the heap. A script that cannot be read is empty: loading has refused it.
pub(crate) fn enter(world: &mut World) {
    let script = Script::parse(&world.scenario.script).unwrap_or_default();
    for (index, (at, _)) in script.acts.iter().enumerate() {
        world.at(*at, Event::Script(index));
    }
    world.script = script;
}

/// Does what a line says.
pub(crate) fn act(world: &mut World, index: usize) {
    let Some((_, act)) = world.script.acts.get(index).cloned() else { return };
    let now = world.now;
    let act = world.resolved(act);
    world.note(None, "script", || format!("{act:?}"));
    match act {
        Act::Put(node, key, value) => world.write_scripted(node, key, Change::Put { value: value.into(), expiry: None }),
        Act::Delete(node, key) => world.write_scripted(node, key, Change::Tombstone),
        Act::Cut(one, other) | Act::Join(one, other) => {
            let cut = matches!(act, Act::Cut(..));
            world.cut_path(one, other, cut);
            world.cut_path(other, one, cut);
        }
        Act::Silent(one, other) => {
            for (from, to) in [(one, other), (other, one)] {
                if let Some(path) = world.net.path(from, to) {
                    path.silent = true;
                }
            }
        }
        Act::Bandwidth(node, bytes) => {
            for (from, _, path) in world.net.paths_mut() {
                if from == node {
                    path.bandwidth = bytes;
                }
            }
        }
        Act::Only(one, other) => world.cut_path(one, other, true),
        Act::Fleet(act) => world.fleet_act(&act),
        Act::Down(node) => world.end_process(node, End::Process),
        Act::Up(node) => world.at(now, Event::Boot(node)),
        Act::Crash(node, how) => {
            world.count(match how {
                End::Disk => "scripted_wipes",
                End::Restored => "scripted_images",
                _ => "scripted_crashes",
            });
            world.crash(node, how);
        }
        Act::Freeze(node, seconds) => {
            if let Some(node) = world.nodes.get_mut(node) {
                node.frozen = Some(now + Time::secs(seconds));
            }
            world.at(now + Time::secs(seconds), Event::Thaw(node));
        }
        Act::Compact(node) => {
            if let Some(database) = world.databases.first().copied() {
                world.compact(node, database, 0);
            }
        }
        Act::Clock(node, seconds) => {
            if let Some(node) = world.nodes.get_mut(node) {
                node.clock.step(now, seconds * 1_000);
            }
        }
    }
}

impl World {
    fn write_scripted(&mut self, node: NodeId, key: Key, change: Change) {
        let Some(database) = self.databases.first().copied() else { return };
        let ops = vec![LocalOp::new(key, change)];
        let (durability, request) = (Durability::Buffered, RequestId(self.random.id()));
        if self.nodes.get(node).is_some_and(|node| node.process().is_some()) {
            self.observe(&Observation::Asked { client: SCRIPT_CLIENT, node, database, request, ops: &ops, durability });
            self.submit(node, Work::Write { database, ops, request: None, durability }, Sender::Nobody);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_line_by_line() {
        let script = Script::parse("# nothing\n1.5 put 0 /k a # at once\n2 clock 1 -3600\nend /k = a\nend /x absent\n").unwrap();
        let key = |text| Key::parse(text).unwrap();
        let acts = vec![(Time(1_500_000), Act::Put(0, key("/k"), "a".to_owned())), (Time::secs(2), Act::Clock(1, -3600))];
        assert_eq!(script, Script { acts, end: vec![(key("/k"), Some("a".to_owned())), (key("/x"), None)] });
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for bad in ["put 0 /k a", "1 put 0 /k", "-1 up 0", "1 fly 0", "end /k"] {
            assert!(Script::parse(bad).unwrap_err().contains(bad), "{bad}");
        }
    }
}
