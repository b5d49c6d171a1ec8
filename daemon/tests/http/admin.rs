//! Compacting and dropping over HTTP and the command line.

use serde_json::Value;

use crate::support::{Answer, TestNode, failed};

fn ask(node: &TestNode, method: &str, path: &str, body: &[u8]) -> Answer {
    node.send(method, path, &[], body)
}

#[test]
fn a_compaction_says_how_far_it_is_and_what_it_did() {
    let node = TestNode::start();
    for n in 0..300 {
        assert_eq!(ask(&node, "PUT", &format!("/v1/databases/d/keys/k{}", n % 10), b"value").status, 200);
    }
    let lines = |query: &str| -> Vec<Value> {
        let answer = ask(&node, "POST", &format!("/v1/databases/d/compact?{query}"), b"");
        assert_eq!(answer.status, 200);
        answer
            .body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    };
    // No other node has anything.
    let kept = lines("min_age_seconds=0");
    let end = &kept.last().unwrap()["end"];
    assert_eq!((end["blocks"].as_u64(), end["unsafe_bytes"] == end["history_bytes"]), (Some(0), true), "{kept:?}");
    let done = lines("alone=true&min_age_seconds=0");
    assert_eq!(done[0]["dropping"]["of"], 300);
    let end = &done.last().unwrap()["end"];
    assert_eq!(
        (end["blocks"].as_u64(), end["history_bytes"].as_u64(), end["log_floor"].as_u64()),
        (Some(300), Some(0), Some(300))
    );
    let output = node.kvdb(&["compact", "--db", "d", "--alone"], b"");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("blocks=0 bytes=0 history_bytes=0 "));
    for (method, path, status) in [
        ("GET", "/v1/databases/d/compact", 405),
        ("POST", "/v1/databases/none/compact", 404),
        ("POST", "/v1/databases/d/compact?min_age_seconds=-1", 400),
        ("POST", "/v1/databases/d/compact?what=1", 400),
    ] {
        assert_eq!(ask(&node, method, path, b"").status, status, "{method} {path}");
    }
    let status: Value = serde_json::from_slice(&ask(&node, "GET", "/v1/status", b"").body).unwrap();
    for kind in ["live_bytes", "history_bytes", "engine_bytes"] {
        assert!(status["disk"][kind].is_u64(), "{status}");
    }
    let metrics = String::from_utf8(ask(&node, "GET", "/metrics", b"").body).unwrap();
    assert!(
        metrics.contains("kvdb_disk_use_bytes{kind=\"history\"}") && metrics.contains("kvdb_history_bytes{database=\"d\"} 0")
    );
}

#[test]
fn a_database_is_dropped_only_with_a_word_and_can_be_made_again() {
    let node = TestNode::start();
    assert_eq!(ask(&node, "PUT", "/v1/databases/d/keys/k", b"value").status, 200);
    let (code, line) = failed(&node.kvdb(&["drop", "d"], b""));
    assert!(code == 2 && line.contains("--yes"), "{line}");
    assert!(node.kvdb(&["drop", "d", "--yes"], b"").status.success());
    let gone = ask(&node, "GET", "/v1/databases/d/keys/k", b"");
    assert_eq!((gone.status, gone.json()["code"].as_str()), (404, Some("database_not_found")));
    assert_eq!(ask(&node, "DELETE", "/v1/databases/d", b"").status, 404);
    assert_eq!(ask(&node, "PUT", "/v1/databases/d", b"").status, 201);
    assert_eq!(ask(&node, "GET", "/v1/databases/d/keys/k", b"").json()["code"], "key_not_found");
    let list = ask(&node, "GET", "/v1/databases", b"").json();
    assert_eq!(list["databases"][0]["generation"], 1);
    assert_eq!(ask(&node, "DELETE", "/v1/databases/d", b"").json()["dropped"], true);
}
