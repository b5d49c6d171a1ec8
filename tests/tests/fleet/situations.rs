//! Situations of a fleet, over real processes. The others are in the simulation and in the fleet's own crate.

use std::collections::BTreeMap;
use std::time::Duration;

use kvdb::{Key, NodeOptions};
use rand::RngExt as _;
use serde_json::Value;

use super::{Fleet, QUICK, Times, Writers, assert_kept, cycles, put, request, strings, wait_for};

/// What a lost disk leaves: the identity, since the member is to come back.
fn lose_disk(fleet: &Fleet, at: usize) {
    let data = fleet.nodes[at].dir.path().join("data");
    std::fs::remove_dir_all(data.join("store")).unwrap();
    std::fs::remove_file(data.join("fleet.state")).unwrap();
}

#[test]
fn situation_01_what_was_confirmed_outlives_the_node_that_served_it_with_its_disk() {
    let mut fleet = Fleet::start(3, 2, QUICK);
    let writers = Writers::start(&fleet);
    let mut kept = Vec::new();
    for cycle in 0..cycles(3) {
        fleet.wait_holders(2);
        let key = format!("/kept/{cycle}");
        let answer = wait_for("a confirmed write", || {
            fleet.put(0, &key, &key, "?durability=require(2)").filter(|answer| answer.status == 200)
        });
        let served_by = fleet.at(answer.json()["served_by"].as_str().unwrap());
        fleet.nodes[served_by].kill();
        lose_disk(&fleet, served_by);
        assert!(answer.holders().len() >= 2, "{answer:?}");
        kept.push(key);
        for at in fleet.running().collect::<Vec<_>>() {
            for key in &kept {
                assert_eq!(fleet.value(at, key), *key);
            }
        }
        // Another one takes over, and writes go on, before the lost one is back.
        fleet.wait_ready(|ready| ready.len() >= 2 && !ready.contains(&served_by));
        writers.wait_more(5);
        fleet.spawn(served_by);
        fleet.nodes[served_by].wait_ready();
    }
    fleet.wait_holders(2);
    kept.extend(writers.stop());
    assert_kept(&fleet, &kept);
}

#[test]
fn situation_02_a_holder_killed_between_commit_and_acknowledgement() {
    let mut fleet = Fleet::start(3, 2, QUICK);
    let mut rng = rand::rng();
    // Key and the members that were named as having it on disk.
    let mut confirmed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut unconfirmed = Vec::new();
    for cycle in 0..cycles(5) {
        let holders = fleet.wait_holders(2);
        let victim = holders[rng.random_range(0..2)];
        let ports: Vec<u16> = fleet.nodes.iter().map(|node| node.http).collect();
        let write = |n: usize| {
            let (port, key) = (ports[n % 3], format!("/cycle/{cycle}/{n}"));
            std::thread::spawn(move || {
                let answer = put(port, &key, &key, "?durability=require(2)&deadline_ms=1500");
                (key, answer)
            })
        };
        let writes: Vec<_> = (0..12).map(write).collect();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..40_000)));
        fleet.nodes[victim].kill();
        for write in writes {
            let (key, Some(answer)) = write.join().unwrap() else { continue };
            match answer.status {
                200 => drop(confirmed.insert(key, answer.holders())),
                // Whoever is told so can rely on it, and on the dot.
                503 if answer.code() == "unconfirmed" => {
                    let problem = answer.json();
                    assert_eq!(problem["outcome"], "written", "{problem}");
                    assert!(problem["write"]["dot"].is_string() && problem["write"]["request"].is_string(), "{problem}");
                    unconfirmed.push((key, strings(&problem["write"]["holders"])));
                }
                503 => assert!(["not_ready", "not_enough_holders", "no_answer"].contains(&answer.code().as_str()), "{answer:?}"),
                _ => panic!("{answer:?}"),
            }
        }
        fleet.spawn(victim);
        fleet.nodes[victim].wait_ready();
    }
    fleet.wait_holders(2);
    for (key, holders) in &confirmed {
        assert!(holders.len() >= 2, "{key}: {holders:?}");
        assert_eq!(fleet.value(0, key), *key);
    }
    // Who was named has it: as their disks say, without the fleet.
    for at in 0..3 {
        fleet.nodes[at].kill();
        let rows = rows(fleet.nodes[at].dir.path().join("data"));
        for (key, holders) in confirmed.iter().chain(unconfirmed.iter().map(|(key, holders)| (key, holders))) {
            let named = holders.contains(&fleet.ids[at]);
            assert!(!named || rows.get(key) == Some(key), "{key} is not with {at}, which was named");
        }
    }
}

/// What a stopped node has on disk of `demo`.
fn rows(data: std::path::PathBuf) -> BTreeMap<String, String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let node = kvdb::Node::open(NodeOptions::new(data)).await.unwrap();
        let database = node.database(&"demo".parse().unwrap()).await.unwrap();
        let items = database.list(&kvdb::ListOptions::new(kvdb::Prefix::root())).unwrap().items;
        let entry = |item| match item {
            kvdb::ListItem::Entry(entry) => (entry.key.to_string(), String::from_utf8(entry.value.to_vec()).unwrap()),
            kvdb::ListItem::CommonPrefix(prefix) => panic!("{prefix:?}"),
        };
        let rows = items.into_iter().map(entry).collect();
        assert!(database.get(&Key::parse("/none").unwrap()).unwrap().is_none());
        node.close().await.unwrap();
        rows
    })
}

#[test]
fn situation_03_a_holder_that_hangs_delays_nobody_beside_a_healthy_one() {
    // Nobody is called dead here: what is shown is that the acknowledgement of the healthy one is enough.
    let fleet = Fleet::start(3, 3, Times { dead: 300_000, quiet: 60_000 });
    let holders = fleet.wait_holders(3);
    let (server, hung) = (holders[0], holders[2]);
    fleet.nodes[hung].signal("STOP");
    let answer = fleet.put(server, "/a", "1", "?durability=require(2)&deadline_ms=60000").unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.holders().len(), 2, "{answer:?}");
    assert!(!answer.holders().contains(&fleet.ids[hung]), "{answer:?}");
    // All three are asked for: committed, said by whom, and the same again returns the first outcome.
    let id = "00112233445566778899aabbccddeeff";
    let query = format!("?durability=require(3)&deadline_ms=500&request={id}");
    let answer = fleet.put(server, "/b", "1", &query).unwrap();
    let problem = answer.json();
    assert_eq!((answer.status, answer.code().as_str()), (503, "unconfirmed"), "{problem}");
    assert_eq!(
        (&problem["outcome"], &problem["retry"], &problem["write"]["request"]),
        (&"written".into(), &true.into(), &id.into())
    );
    assert!(!strings(&problem["write"]["holders"]).contains(&fleet.ids[hung]), "{problem}");
    assert_eq!(fleet.value(server, "/b"), "1", "it is committed");
    // `prefer` is content at the deadline, and says with whom.
    let answer = fleet.put(server, "/c", "1", "?durability=prefer(3)&deadline_ms=500").unwrap();
    assert_eq!((answer.status, &answer.json()["confirmed"]), (200, &Value::Bool(false)), "{answer:?}");
    fleet.nodes[hung].signal("CONT");
    let retried = wait_for("the retry is confirmed", || {
        fleet.put(server, "/b", "1", &query.replace("=500", "=60000")).filter(|answer| answer.status == 200)
    });
    assert_eq!(retried.json()["dot"], problem["write"]["dot"]);
    assert_eq!(retried.holders().len(), 3, "{retried:?}");
}

#[test]
fn situation_03_the_only_other_holder_hangs() {
    let fleet = Fleet::start(3, 2, Times { dead: 300_000, quiet: 500 });
    let holders = fleet.wait_settled(2);
    let (server, hung) = (holders[0], holders[1]);
    fleet.nodes[hung].signal("STOP");
    let answer = fleet.put(server, "/a", "1", "?deadline_ms=500").unwrap();
    let problem = answer.json();
    assert_eq!((answer.status, answer.code().as_str()), (503, "unconfirmed"), "{problem}");
    // A disk that is slower than the deadline has not said so yet.
    assert!(strings(&problem["write"]["holders"]).iter().all(|holder| *holder == fleet.ids[server]), "{problem}");
    // The command line says that it is written, where, and exits with 4.
    let output = fleet.nodes[server].client(&["put", "/b", "1", "--require", "2", "--deadline", "500ms"], "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("written as") && said.contains("--request"), "{said}");
    fleet.nodes[hung].signal("CONT");
    wait_for("confirmed again", || fleet.put(server, "/a", "2", "?deadline_ms=60000").filter(|answer| answer.status == 200));
}

#[test]
fn situation_05_r25_a_fresh_owner_asked_early_never_says_that_there_is_nothing() {
    let mut fleet = Fleet::start(3, 2, Times { quiet: 500, ..QUICK });
    let holders = fleet.wait_settled(2);
    let fresh = (0..3).find(|at| !holders.contains(at)).unwrap();
    let keys: Vec<String> = (0..200).map(|n| format!("/old/{n:03}")).collect();
    let ops: Vec<Value> = keys.iter().map(|key| serde_json::json!({ "put": key, "value": "x".repeat(5_000) })).collect();
    let batch = serde_json::json!({ "ops": ops, "durability": "require(2)" }).to_string();
    let answer = fleet.ask(fresh, "POST", "/v1/databases/demo/batch", batch.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    fleet.nodes[holders[0]].kill();
    let port = fleet.nodes[fresh].http;
    let mut by_itself = 0;
    // Keys that are deleted one after the other, and whether an attempt on the next one was made.
    let (mut deleted, mut tried) = (0, false);
    wait_for("it serves by itself", || {
        for key in keys.iter().skip(deleted + 1).step_by(41) {
            let path = format!("/v1/databases/demo/keys{key}");
            let read = request(port, "GET", &path, "", &[])?;
            assert_ne!(read.status, 404, "{key}: {read:?}");
            by_itself += usize::from(read.status == 200 && read.header("kvdb-served-by") == Some(&fleet.ids[fresh]));
            // What is there is not made anew.
            let made = request(port, "PUT", &format!("{path}?deadline_ms=300"), "If-None-Match: *\r\n", b"y")?;
            assert!([412, 503].contains(&made.status), "{key}: {made:?}");
        }
        let gone = request(port, "DELETE", &format!("/v1/databases/demo/keys{}?deadline_ms=1000", keys[deleted]), "", &[])?;
        if gone.status == 200 {
            // After an attempt that was not confirmed the next one may find nothing any more.
            assert!(tried || gone.json()["op"] == "deleted", "{gone:?}");
            (deleted, tried) = (deleted + 1, false);
        } else {
            assert_eq!(gone.status, 503, "{gone:?}");
            tried = true;
        }
        (by_itself > 20 && deleted > 3).then_some(())
    });
    for key in keys.iter().skip(deleted + 1) {
        assert_eq!(fleet.value(fresh, key).len(), 5_000, "{key}");
    }
}
