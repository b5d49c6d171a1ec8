//! Conditions, dots seen, siblings, reads at a dot, expiry and request ids, over HTTP and by the command line.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Answer, TestNode, failed};

/// Asks until the answer is as wanted, for half a minute at most.
fn until<T: std::fmt::Debug>(ask: impl Fn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    for _ in 0..1_500 {
        let answer = ask();
        if wanted(&answer) {
            return answer;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{:?}", ask());
}

fn dot(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["dot"].as_str().unwrap().to_owned()
}

fn write(node: &TestNode, method: &str, below: &str, header: (&str, &str), body: &[u8]) -> Answer {
    node.send(method, &format!("/v1/databases/d/{below}"), &[header], body)
}

fn tag(dot: &str) -> String {
    format!("\"{dot}\"")
}

/// A refusal by a condition: what is there by its word.
fn refused(answer: &Answer) -> Value {
    let problem = answer.json();
    assert_eq!((answer.status, problem["code"].as_str()), (412, Some("condition_failed")), "{problem}");
    assert_eq!((problem["outcome"].as_str(), problem["retry"].as_bool()), (Some("not_written"), Some(false)));
    assert_eq!(answer.header("etag"), problem["current"].as_str().map(tag).as_deref());
    problem["current"].clone()
}

fn digest(node: &TestNode) -> Value {
    let figures = node.send("GET", "/v1/databases/d", &[], b"").json();
    json!([figures["digest"], figures["revision"]])
}

#[test]
fn a_condition_that_fails_answers_412_with_what_is_there_and_leaves_no_trace() {
    let node = TestNode::start();
    let absent = ("if-none-match", "*");
    let first = dot(&write(&node, "PUT", "keys/a", absent, b"1"));
    let before = digest(&node);
    assert_eq!(refused(&write(&node, "PUT", "keys/a", absent, b"2")), first.as_str());
    assert_eq!(refused(&write(&node, "PUT", "keys/none", ("if-match", &tag(&first)), b"2")), Value::Null);
    assert_eq!(refused(&write(&node, "DELETE", "keys/a", absent, b"")), first.as_str());
    let ops = json!({"ops": [{"put": "/b", "value": "1"}, {"put": "/a", "value": "2", "if_absent": true}]}).to_string();
    assert_eq!(refused(&node.db("POST", "batch", ops.as_bytes())), first.as_str());
    assert_eq!(digest(&node), before, "a refused write leaves no trace");
    let second = dot(&write(&node, "PUT", "keys/a", ("if-match", &tag(&first)), b"2"));
    assert_eq!(refused(&write(&node, "DELETE", "keys/a", ("if-match", &tag(&first)), b"")), second.as_str());
    let lines =
        format!("{{\"delete\":\"/a\",\"if_match\":\"{second}\"}}\n{{\"put\":\"/b\",\"value\":\"3\",\"if_absent\":true}}\n");
    let kind = ("content-type", "application/x-ndjson");
    assert_eq!(write(&node, "POST", "batch", kind, lines.as_bytes()).json()["ops"], json!(["deleted", "put"]));
    for (ops, said) in [
        ("{\"ops\":[{\"put\":\"/a\",\"value\":\"\",\"if_absent\":true,\"if_match\":\"x\"}]}", "cannot both"),
        ("{\"ops\":[{\"put\":\"/a\",\"value\":\"\",\"if_match\":\"x\"}]}", "32 hex digits"),
        ("{\"ops\":[{\"delete\":\"/a\",\"ttl_ms\":1}]}", "a delete without"),
        ("{\"ops\":[{\"put\":\"/a\",\"value\":\"\",\"ttl_ms\":0}]}", "from 1 to"),
    ] {
        let answer = node.db("POST", "batch", ops.as_bytes());
        assert!(answer.status == 400 && answer.text().contains(said), "{ops}: {}", answer.text());
    }
}

#[test]
fn conditions_on_the_command_line_exit_with_1_and_name_what_is_there() {
    let node = TestNode::start();
    assert!(node.kvdb(&["put", "/a", "1", "--if-absent"], b"").status.success());
    let first = node.db("GET", "keys/a", b"").header("kvdb-dot").unwrap().to_owned();
    let other = format!("{}-1", "0".repeat(32));
    for args in [
        &["put", "/a", "2", "--if-absent"][..],
        &["put", "/a", "2", "--if-match", &other],
        &["rm", "/a", "--if-match", &other],
        &["rm", "/a", "--if-absent"],
    ] {
        let (code, line) = failed(&node.kvdb(args, b""));
        assert!(code == 1 && line.contains(&first), "{args:?}: {line}");
    }
    let (code, line) = failed(&node.kvdb(&["put", "/b", "2", "--if-match", &first], b""));
    assert!(code == 1 && line.contains("nothing is there"), "{line}");
    assert_eq!(node.db("GET", "keys/a", b"").body, b"1");
    assert!(node.kvdb(&["put", "/a", "2", "--if-match", &first], b"").status.success());
    let ops = b"{\"put\":\"/b\",\"value\":\"1\"}\n{\"delete\":\"/a\",\"if_absent\":true}\n";
    assert_eq!(failed(&node.kvdb(&["batch"], ops)).0, 1);
    assert_eq!(node.list("").0.len(), 1);
    for args in [
        &["put", "/a", "2", "--if-absent", "--if-match", &other][..],
        &["put", "/a", "2", "--if-match", "1"],
        &["put", "/a", "2", "--seen", "1"],
        &["put", "/a", "2", "--request", "1"],
        &["put", "/a", "2", "--ttl", "5"],
        &["put", "/a", "2", "--ttl", "-5s"],
        &["put", "/a", "2", "--ttl", "99999999999999999999d"],
        &["get", "/a", "--wait", "5s"],
        &["batch", "/no/such/file"],
    ] {
        assert_eq!(failed(&node.kvdb(args, b"")).0, 2, "{args:?}");
    }
}

#[test]
fn a_write_that_names_what_it_has_seen_leaves_the_others_as_siblings() {
    let node = TestNode::start();
    let first = dot(&node.db("PUT", "keys/a", b"1"));
    let second = dot(&node.db("PUT", "keys/a?seen=", b"2"));
    node.db("PUT", "keys/other", b"alone");
    let siblings = node.db("GET", "siblings?key=/a", b"").json()["siblings"].clone();
    let found: Vec<&str> = siblings.as_array().unwrap().iter().map(|one| one["dot"].as_str().unwrap()).collect();
    assert_eq!(found, [second.as_str(), &first], "the winner first");
    let peer = node.send("GET", "/v1/status", &[], b"").json()["peer_id"].clone();
    assert!(siblings.as_array().unwrap().iter().all(|one| one["author"] == peer && one["expires_ms"].is_null()));
    let shown = String::from_utf8(node.kvdb(&["siblings", "/a"], b"").stdout).unwrap();
    assert!(shown.starts_with(&format!("{second} stamp=")) && shown.lines().count() == 2, "{shown}");
    assert_eq!(failed(&node.kvdb(&["siblings", "/none"], b"")).0, 1);
    assert_eq!(node.kvdb(&["conflicts"], b"").stdout, b"/a\n");
    assert_eq!(node.kvdb(&["conflicts", "/a"], b"").stdout, b"", "a prefix is made of whole segments");
    let third = dot(&node.db("PUT", &format!("keys/a?seen={first}"), b"3"));
    let left = node.db("GET", "siblings?key=/a", b"").json()["siblings"].as_array().unwrap().len();
    assert_eq!(left, 2);
    assert_eq!(node.db("DELETE", &format!("keys/a?seen={first}"), b"").json(), json!({ "dot": null, "op": "absent" }));
    assert!(node.kvdb(&["rm", "/a", "--seen", &format!("{second},{third}")], b"").status.success());
    assert_eq!(node.db("GET", "keys/a", b"").status, 404);
    let dots = |count: u64| (1..=count).map(|seq| format!("{}-{seq}", "0".repeat(32))).collect::<Vec<_>>();
    let ops = |count| json!({"ops": [{"put": "/c", "value": "", "seen": dots(count)}]}).to_string();
    assert_eq!(node.db("POST", "batch", ops(4_096).as_bytes()).status, 200);
    let over = node.db("POST", "batch", ops(4_097).as_bytes());
    assert_eq!((over.status, over.json()["code"].as_str()), (413, Some("too_many_seen")));
    assert_eq!(over.json()["limit"], 4_096);
}

#[test]
fn conflicts_are_listed_in_pages_and_as_a_stream_and_only_while_more_than_one_value_is_alive() {
    let node = TestNode::start();
    for n in 0..30 {
        node.db("PUT", &format!("keys/c/{n:02}"), b"1");
        if n % 3 == 0 {
            node.db("PUT", &format!("keys/c/{n:02}?seen="), b"2");
        }
    }
    // The second value does not live long, and then it is no conflict.
    node.db("PUT", "keys/expired", b"1");
    node.db("PUT", "keys/expired?seen=&ttl_ms=1", b"2");
    let wanted: Vec<String> = (0..30).step_by(3).map(|n| format!("/c/{n:02}")).collect();
    let lines = |text: &str| text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>();
    let whole = until(|| lines(&node.db("GET", "conflicts", b"").text()), |whole| whole.len() == wanted.len() + 1);
    let keys =
        |records: &[Value]| records.iter().filter_map(|record| Some(record["key"].as_str()?.to_owned())).collect::<Vec<_>>();
    assert_eq!(keys(&whole), wanted);
    assert!(whole[0]["siblings"] == 2 && whole[0]["value"] == "2");
    for limit in [1, 3, 10, 11] {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let records = lines(&node.db("GET", &format!("conflicts?prefix=/c&limit={limit}{after}"), b"").text());
            found.extend(keys(&records));
            let Some(next) = records.last().unwrap()["end"]["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(found, wanted, "pages of {limit}");
    }
    let folded = lines(&node.db("GET", "conflicts?delimiter=/", b"").text());
    assert_eq!((folded.len(), &folded[0]["prefix"]), (2, &json!("/c")));
    let shown = node.kvdb(&["conflicts", "--limit", "2", "--after", "/c/03"], b"");
    assert_eq!(shown.stdout, b"/c/06\n/c/09\n");
    assert!(String::from_utf8_lossy(&shown.stderr).contains("there is more"));
}

#[test]
fn a_read_at_a_dot_waits_for_it_and_says_when_it_has_not_come() {
    let node = TestNode::start();
    let put = dot(&node.db("PUT", "keys/a", b"1"));
    let seq: u64 = put.split('-').nth(1).unwrap().parse().unwrap();
    let next = format!("{}-{}", put.split('-').next().unwrap(), seq + 1);
    assert_eq!(node.db("GET", &format!("keys/a?at={put}"), b"").body, b"1");
    for below in ["keys/a", "list", "siblings", "conflicts"] {
        let key = if below == "siblings" { "&key=/a" } else { "" };
        let late = node.db("GET", &format!("{below}?at={next}&wait=1{key}"), b"");
        assert_eq!((late.status, late.json()["code"].as_str()), (503, Some("not_covered")), "{below}");
        assert_eq!((late.json()["retry"].as_bool(), late.json()["outcome"].as_str()), (Some(true), Some("not_written")));
        let bad = node.db("GET", &format!("{below}?wait=1{key}"), b"");
        assert!(bad.status == 400 && bad.text().contains("at="), "{below}: {}", bad.text());
        assert_eq!(node.db("GET", &format!("{below}?at=1{key}"), b"").status, 400);
        let long = node.db("GET", &format!("{below}?at={next}&wait=60001{key}"), b"");
        assert!(long.status == 400 && long.text().contains("60000"), "{below}: {}", long.text());
    }
    let (code, line) = failed(&node.kvdb(&["get", "/a", "--at", &next, "--wait", "1ms"], b""));
    assert!(code == 3 && line.contains(&next), "{line}");
    // It comes while the read waits.
    thread::scope(|scope| {
        let reader = scope.spawn(|| node.db("GET", &format!("keys/a?at={next}&wait=30000"), b""));
        assert_eq!(dot(&node.db("PUT", "keys/a", b"2")), next);
        assert_eq!(reader.join().unwrap().body, b"2");
    });
    assert_eq!(node.kvdb(&["get", "/a", "--at", &next], b"").stdout, b"2");
    let known = node.send("GET", "/v1/databases/d/keys/a", &[("if-none-match", &tag(&next))], b"");
    assert_eq!((known.status, known.body.len(), known.header("etag")), (304, 0, Some(tag(&next).as_str())));
    let changed = node.send("GET", "/v1/databases/d/keys/a", &[("if-none-match", &tag(&put))], b"");
    assert_eq!((changed.status, changed.body.as_slice()), (200, b"2".as_slice()));
}

#[test]
fn an_expired_value_is_hidden_from_every_read_and_the_one_beside_it_surfaces() {
    let node = TestNode::start();
    let stays = dot(&node.db("PUT", "keys/a", b"stays"));
    let goes = dot(&node.db("PUT", "keys/a?seen=&ttl_ms=1500", b"goes"));
    let lives = node.db("GET", "keys/a", b"");
    // On a slow machine it may have gone by now.
    if lives.body == b"goes" {
        assert_eq!((lives.header("kvdb-dot"), lives.header("kvdb-siblings")), (Some(goes.as_str()), Some("2")));
        assert!(lives.header("kvdb-expires-ms").is_some());
    }
    until(|| node.db("GET", "keys/a", b"").body, |body| body == b"stays");
    assert_eq!(node.list("").0[0]["dot"], stays.as_str());
    assert_eq!(node.list("").0[0]["siblings"], 1);
    assert_eq!(node.db("GET", "siblings?key=/a", b"").json()["siblings"].as_array().unwrap().len(), 1);
    assert_eq!(node.kvdb(&["conflicts"], b"").stdout, b"");
    assert_eq!(refused(&write(&node, "PUT", "keys/a", ("if-match", &tag(&goes)), b"x")), stays.as_str());
    assert!(node.kvdb(&["put", "/long", "v", "--ttl", "12h"], b"").status.success());
    let listed = node.list("prefix=/").0.into_iter().find(|record| record["key"] == "/long").unwrap();
    let header = node.db("HEAD", "keys/long", b"").header("kvdb-expires-ms").map(str::to_owned);
    assert_eq!(header, Some(listed["expires_ms"].to_string()));
    for bad in ["0", "-1", "x", "9999999999999999999"] {
        assert_eq!(node.db("PUT", &format!("keys/a?ttl_ms={bad}"), b"").status, 400, "{bad}");
    }
    assert_eq!(node.db("DELETE", "keys/a?ttl_ms=5", b"").status, 400);
}

#[test]
fn a_request_is_written_once_however_often_it_is_tried() {
    let mut node = TestNode::start();
    let id = "00112233445566778899aabbccddeeff";
    // Attempts in flight at the same time join.
    let dots: BTreeSet<String> = thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn({
                    let node = &node;
                    move || dot(&node.db("PUT", &format!("keys/a?request={id}"), &[n]))
                })
            })
            .collect();
        tries.into_iter().map(|attempt| attempt.join().unwrap()).collect()
    });
    let revision = |node: &TestNode| node.send("GET", "/v1/databases/d", &[], b"").json()["revision"].clone();
    assert_eq!((dots.len(), revision(&node)), (1, json!(1)));
    let again = node.db("PUT", &format!("keys/a?request={id}"), b"again");
    assert_eq!((again.json()["op"].as_str(), again.header("etag")), (Some("repeated"), None), "no tag for what may be gone");
    assert_eq!(again.header("kvdb-dot"), dots.first().map(String::as_str));
    // After a restart, and when a condition would not hold any more.
    let ops = b"{\"put\":\"/b\",\"value\":\"1\",\"if_absent\":true}\n{\"delete\":\"/a\"}\n";
    let request = "ffeeddccbbaa99887766554433221100";
    let run = |node: &TestNode| -> Value {
        let output = node.kvdb(&["batch", "-", "--request", request], ops);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let first = run(&node);
    assert_eq!(first["ops"], json!(["put", "deleted"]));
    node.db("PUT", "keys/a", b"later");
    node.restart();
    let retried = run(&node);
    assert_eq!((&retried["dot"], &retried["ops"]), (&first["dot"], &json!(["repeated", "repeated"])));
    assert_eq!((node.db("GET", "keys/a", b"").body, revision(&node)), (b"later".to_vec(), json!(3)));
    for bad in ["1", &"g".repeat(32), &"A".repeat(32)] {
        assert_eq!(node.db("PUT", &format!("keys/a?request={bad}"), b"").status, 400, "{bad}");
    }
}
