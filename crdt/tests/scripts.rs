//! Merge cases as text scripts, in `tests/scripts/`. A file's name starts with the case that it shows.
//!
//! A line is one step; `#` starts a comment. A node is created when it is first named.
//!
//! | step | meaning |
//! | --- | --- |
//! | `a: put /k 1` | a write; `""` is the empty value, `until 9000` a third word pair |
//! | `a: delete /k` | a delete; `a: delete /k absent` says that there must be nothing |
//! | `a: put /k 1; delete /j` | one batch |
//! | `a: put /k 1 \| delete /k` | writes that wait together |
//! | `clock a 5000` | the node's clock, in milliseconds |
//! | `send a b` | b gets all blocks of a; `reversed`, `last 2` or `twice` after it |
//! | `join a b c` | all exchange all blocks |
//! | `reopen a` | the process starts again |
//! | `save a`, `restore a` | the disk is copied, the copy put back |
//! | `repeat 5 ... end` | steps between; `{i}` counts from 1 |
//! | `expect a /k 1` | what `get` returns, or `none` |
//! | `siblings a /k 2`, `heads a 1`, `blocks a 3`, `keys a 2`, `pending a 0`, `writers a 1` | counts |
//! | `list a /k /l` | the keys, in order |
//! | `equal a b` | equal in everything, and to the fold of their blocks; `same a b /k` for one key's value |

use std::collections::BTreeMap;

use bytes::Bytes;
use crdt::testing::MemoryStore;
use crdt::{Block, LocalOp, OpOutcome, WallTime, WriteOutcome};

use crate::world::{Node, delete, outcomes, put, put_until};

#[derive(Default)]
struct Play {
    nodes: BTreeMap<String, Node>,
    images: BTreeMap<String, MemoryStore>,
}

/// Runs the scripts of a case.
fn run(case: &str) {
    let directory = crate::package().join("tests/scripts");
    let mut found = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with(&format!("{case}_")) {
            continue;
        }
        found += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<(usize, &str)> = (1..).zip(text.lines().map(strip)).filter(|(_, line)| !line.is_empty()).collect();
        Play::default().steps(&name, &lines);
    }
    assert!(found > 0, "no script of case {case}");
}

fn strip(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

impl Play {
    fn steps(&mut self, file: &str, lines: &[(usize, &str)]) {
        let mut at = 0;
        while let Some((number, line)) = lines.get(at) {
            at += 1;
            if let Some(times) = line.strip_prefix("repeat ") {
                let len = block_len(&lines[at..]).unwrap_or_else(|| panic!("{file}:{number}: no end"));
                let body = &lines[at..at + len];
                for round in 1..=times.trim().parse::<usize>().unwrap() {
                    let filled: Vec<(usize, String)> =
                        body.iter().map(|(number, line)| (*number, line.replace("{i}", &round.to_string()))).collect();
                    let borrowed: Vec<(usize, &str)> = filled.iter().map(|(number, line)| (*number, line.as_str())).collect();
                    self.steps(file, &borrowed);
                }
                at += len + 1;
                continue;
            }
            println!("{file}:{number}: {line}");
            self.step(line);
        }
    }

    fn node(&mut self, name: &str) -> &mut Node {
        let number = u8::try_from(self.nodes.len()).unwrap() + 1;
        self.nodes.entry(name.to_owned()).or_insert_with(|| Node::new(number))
    }

    fn step(&mut self, line: &str) {
        if let Some((name, write)) = line.split_once(": ") {
            return self.write(name, write);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["clock", name, ms] => self.node(name).now = WallTime(ms.parse().unwrap()),
            ["send", from, to, how @ ..] => self.send(from, to, how),
            ["join", names @ ..] => self.join(names),
            ["reopen", name] => self.node(name).reopen(),
            ["save", name] => {
                let image = self.node(name).store.clone();
                self.images.insert((*name).to_owned(), image);
            }
            ["restore", name] => {
                let image = self.images.get(*name).unwrap().clone();
                self.node(name).restore(image);
            }
            ["expect", name, key, wanted] => {
                let wanted = (*wanted != "none").then(|| value(wanted));
                assert_eq!(self.node(name).get(key), wanted, "{line}");
            }
            ["siblings", name, key, count] => count_is(self.node(name).row(key).siblings().len(), count, line),
            ["heads", name, count] => count_is(self.node(name).heads().len(), count, line),
            ["blocks", name, count] => count_is(self.node(name).blocks().len(), count, line),
            ["keys", name, count] => count_is(self.node(name).rows().len(), count, line),
            ["pending", name, count] => count_is(self.node(name).replica.pending().0, count, line),
            ["writers", name, count] => count_is(self.node(name).vv().len(), count, line),
            ["list", name, wanted @ ..] => {
                let rows = self.node(name).rows();
                assert_eq!(rows.keys().map(crdt::Key::as_str).collect::<Vec<_>>(), wanted, "{line}");
            }
            ["equal", names @ ..] => {
                let first = self.node(names[0]).check();
                for name in &names[1..] {
                    assert_eq!(self.node(name).check(), first, "{line}: {name}");
                }
            }
            ["same", names @ .., key] => {
                let first = self.node(names[0]).get(key);
                assert!(names.iter().all(|name| self.node(name).get(key) == first), "{line}");
            }
            _ => panic!("no such step: {line}"),
        }
        self.nodes.values().for_each(|node| drop(node.check()));
    }

    fn write(&mut self, name: &str, text: &str) {
        let writes: Vec<Vec<(LocalOp, Option<OpOutcome>)>> =
            text.split(" | ").map(|batch| batch.split("; ").map(op).collect()).collect();
        let ops = writes.iter().map(|batch| (None, batch.iter().map(|(op, _)| op.clone()).collect())).collect();
        let node = self.node(name);
        let answers = outcomes(&node.group(ops));
        for (token, batch) in (1..).zip(&writes) {
            let WriteOutcome { dot, ops } = &answers[&token];
            for ((op, wanted), outcome) in batch.iter().zip(ops) {
                assert!(wanted.is_none_or(|wanted| wanted == *outcome), "{name}: {text}: {} was {outcome:?}", op.key);
            }
            let nothing = ops.iter().all(|outcome| matches!(outcome, OpOutcome::Absent | OpOutcome::Overridden));
            assert_eq!(dot.is_none(), nothing, "{name}: {text}: {ops:?} with {dot:?}");
        }
    }

    fn send(&mut self, from: &str, to: &str, how: &[&str]) {
        let mut blocks: Vec<Block> = self.node(from).blocks();
        match how {
            [] => {}
            ["reversed"] => blocks.reverse(),
            ["last", count] => blocks.drain(..blocks.len() - count.parse::<usize>().unwrap()).for_each(drop),
            ["first", count] => blocks.truncate(count.parse().unwrap()),
            ["twice"] => blocks.extend(blocks.clone()),
            ["singly"] => {
                for block in blocks {
                    self.node(to).deliver(vec![block], 1);
                }
                return;
            }
            _ => panic!("no such way to send: {how:?}"),
        }
        self.node(to).deliver(blocks, 1);
    }

    fn join(&mut self, names: &[&str]) {
        for _ in 0..2 {
            for from in names {
                for to in names.iter().filter(|to| *to != from) {
                    self.send(from, to, &[]);
                }
            }
        }
    }
}

fn block_len(lines: &[(usize, &str)]) -> Option<usize> {
    let mut depth = 0;
    lines.iter().position(|(_, line)| {
        depth += i32::from(line.starts_with("repeat ")) - i32::from(*line == "end");
        depth < 0
    })
}

fn op(text: &str) -> (LocalOp, Option<OpOutcome>) {
    match text.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["put", key, text] => (put(key, value(text)), None),
        ["put", key, text, "until", ms] => (put_until(key, value(text), ms.parse().unwrap()), None),
        ["put", key, text, "overridden"] => (put(key, value(text)), Some(OpOutcome::Overridden)),
        ["delete", key] => (delete(key), None),
        ["delete", key, "absent"] => (delete(key), Some(OpOutcome::Absent)),
        ["delete", key, "deleted"] => (delete(key), Some(OpOutcome::Deleted)),
        _ => panic!("no such op: {text}"),
    }
}

fn value(text: &str) -> Bytes {
    if text == "\"\"" { Bytes::new() } else { Bytes::copy_from_slice(text.as_bytes()) }
}

fn count_is(found: usize, wanted: &str, line: &str) {
    assert_eq!(found, wanted.parse::<usize>().unwrap(), "{line}");
}

macro_rules! cases {
    ($($name:ident $case:literal)*) => {
        $(#[test]
        fn $name() {
            run($case);
        })*

        #[test]
        fn every_script_belongs_to_a_case() {
            for entry in std::fs::read_dir(crate::package().join("tests/scripts")).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                assert!([$($case),*].iter().any(|case| name.starts_with(&format!("{case}_"))), "{name} is never run");
            }
        }
    };
}

cases! {
    m01_put_put_delete_against_a_concurrent_put "m01"
    m02_delete_of_an_absent_key_writes_nothing "m02"
    m03_put_and_delete_in_a_loop "m03"
    m04_a_delete_names_only_its_own_key "m04"
    m06_equal_number_of_edits_on_both_sides "m06"
    m07_identical_concurrent_writes "m07"
    m08_two_nodes_delete_the_same_key "m08"
    m09_put_again_after_a_synced_delete "m09"
    m10_a_busy_writer_against_an_informed_one "m10"
    m11_a_lost_claim_is_visible "m11"
    m13_fast_writes_on_one_node "m13"
    d06_a_child_that_comes_before_its_parent_leaves_one_head "d06"
    d12_old_heads_after_a_restart_replace_nothing "d12"
    r03_the_last_op_on_a_key_in_a_batch_counts "r03"
    r04_an_empty_value_is_a_value "r04"
    r09_identical_first_writes_are_two "r09"
    r18_many_versions_and_one_delete "r18"
    r20_fifty_lost_and_the_last_delivered "r20"
    an_expired_value_is_hidden_and_its_sibling_surfaces "expiry"
    a_batch_is_seen_whole "batch"
    a_restored_image_writes_as_somebody_else "restore"
}
