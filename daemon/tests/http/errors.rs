//! Bad input over HTTP: each error is a problem document with its code.

use serde_json::{Value, json};

use crate::support::{Answer, TestNode, failed};

fn check(answer: &Answer, status: u16, code: &str) -> Value {
    assert_eq!(answer.status, status, "{code}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{code}");
    let problem = answer.json();
    assert_eq!((problem["code"].as_str(), problem["status"].as_u64()), (Some(code), Some(u64::from(status))), "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    assert_eq!(problem["outcome"], "not_written");
    assert!(problem["retry"].is_boolean());
    problem
}

#[test]
fn every_refusal_is_a_problem_with_its_code_and_changes_nothing() {
    let node = TestNode::start();
    let before = node.send("GET", "/v1/databases/d", &[], b"").json();
    let long_key = "k".repeat(1025);
    let long_query = format!("/v1/databases/d/list?prefix={}", "k".repeat(9_000));
    let many = json!({"ops": (0..16_385).map(|n| json!({"put": format!("/{n}"), "value": ""})).collect::<Vec<_>>()}).to_string();
    let many = many.as_bytes();
    let db = "/v1/databases/d";
    let blank = vec![b' '; 20_000];
    for (method, path, body, status, code) in [
        ("GET", "/", &b""[..], 404, "route_not_found"),
        ("GET", "/v1/nothing", b"", 404, "route_not_found"),
        ("GET", "//v1/status", b"", 404, "route_not_found"),
        ("GET", "/v1/databases/d/", b"", 404, "route_not_found"),
        ("GET", "/v1/databases/.d", b"", 400, "bad_database_name"),
        ("PUT", "/v1/databases/a%2Fb", b"", 400, "bad_database_name"),
        ("PUT", "/v1/databases/new", b"a value whose key was cut off", 400, "bad_request"),
        ("GET", "/v1/databases/none", b"", 404, "database_not_found"),
        ("PUT", "/v1/databases/none/keys/a", b"v", 404, "database_not_found"),
        ("GET", "/v1/databases/d/keys/none", b"", 404, "key_not_found"),
        ("HEAD", "/v1/databases/d/nothing", b"", 404, ""),
        ("POST", "/v1/databases/d/keys/a", b"", 405, "method_not_allowed"),
        ("POST", "/v1/databases/d", b"", 405, "method_not_allowed"),
        ("PATCH", "/v1/databases/d", b"", 409, "no_fleet"),
        ("GET", "/v1/fleet/members", b"", 409, "no_fleet"),
        ("POST", "/v1/fleet/drain", b"", 409, "no_fleet"),
        ("GET", "/v1/fleet/drain", b"", 405, "method_not_allowed"),
        ("POST", "/v1/fleet/members/x/forget", b"", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/a?durability=require(2)", b"v", 409, "no_fleet"),
        ("PUT", "/v1/databases/d/keys/a?durability=require(9)", b"v", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/a?deadline_ms=500", b"v", 409, "no_fleet"),
        ("GET", "/v1/databases/d/keys/a?stale=true", b"", 400, "bad_request"),
        ("DELETE", "/v1/status", b"", 405, "method_not_allowed"),
        ("PUT", "/v1/databases/d/keys", b"v", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/a?key=b", b"v", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/a?durability=maybe", b"v", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/a?durabilty=sync", b"v", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/a?durability=sync&durability=sync", b"v", 400, "bad_request"),
        ("PUT", "/v1/databases/d/keys/%2f", b"v", 400, "bad_key"),
        ("PUT", "/v1/databases/d/keys/a%00", b"v", 400, "bad_key"),
        ("PUT", "/v1/databases/d/keys/%zz", b"v", 400, "bad_encoding"),
        ("PUT", &format!("{db}/keys/{long_key}"), b"v", 413, "key_too_long"),
        ("GET", &long_query, b"", 414, "query_too_long"),
        ("GET", "/v1/databases/d/list?limit=0", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?limit=-1", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?limit=99999999999999999999", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?reverse=maybe", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?delimiter=-", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?regexp=a", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?regex=%28", b"", 400, "bad_pattern"),
        ("GET", "/v1/databases/d/watch?from=0-x", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/list?prefix=..", b"", 400, "bad_key"),
        ("GET", "/v1/databases/d/list?after=", b"", 400, "bad_key"),
        ("GET", "/v1/databases/d/wait", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/wait?dot=1", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/wait?dot=1&timeout_ms=60001", b"", 400, "bad_request"),
        ("GET", "/v1/databases/d/siblings", b"", 400, "bad_request"),
        ("POST", "/v1/databases/d/batch", b"{\"ops\": [", 400, "bad_request"),
        ("POST", "/v1/databases/d/batch", b"{\"ops\": [{\"put\": \"/a\"}]}", 400, "bad_request"),
        ("POST", "/v1/databases/d/batch", b"{\"ops\": [{\"put\": \"/a\", \"delete\": \"/a\"}]}", 400, "bad_request"),
        (
            "POST",
            "/v1/databases/d/batch",
            b"{\"ops\": [{\"put\": \"/a\", \"value\": \"\", \"vlaue\": \"\"}]}",
            400,
            "bad_request",
        ),
        (
            "POST",
            "/v1/databases/d/batch",
            b"{\"ops\": [{\"put\": \"/ok\", \"value\": \"\"}, {\"delete\": \"..\"}]}",
            400,
            "bad_key",
        ),
        ("POST", "/v1/databases/d/batch", b"{\"ops\": [], \"durability\": \"no\"}", 400, "bad_request"),
        ("POST", "/v1/databases/d/batch", b"\xff", 400, "bad_request"),
        ("POST", "/v1/databases/d/batch", many, 413, "batch_too_large"),
        ("POST", "/v1/peers", b"{}", 400, "bad_request"),
        ("POST", "/v1/peers", b"{\"address\": \"here\"}", 400, "bad_request"),
        ("POST", "/v1/peers", b"{\"address\": \"/ip4/127.0.0.1/tcp/1\"}", 502, "dial_failed"),
        ("POST", "/v1/peers", &blank, 413, "body_too_long"),
    ] {
        let answer = node.send(method, path, &[], body);
        if method == "HEAD" {
            assert_eq!((answer.status, answer.body.len()), (status, 0));
        } else {
            check(&answer, status, code);
        }
    }
    for (name, value) in [("if-match", "*"), ("if-none-match", "\"x\""), ("if-unmodified-since", "*")] {
        for method in ["PUT", "DELETE"] {
            let answer = node.send(method, "/v1/databases/d/keys/a", &[(name, value)], b"");
            check(&answer, 501, "condition_unsupported");
        }
    }
    let form = node.send("POST", "/v1/databases/d/batch", &[("content-type", "application/x-www-form-urlencoded")], b"ops=1");
    check(&form, 400, "bad_request");
    assert_eq!(node.send("GET", "/v1/databases/d", &[], b"").json(), before);
    let names = node.send("GET", "/v1/databases", &[], b"").json();
    assert_eq!(names["databases"].as_array().unwrap().len(), 1, "no database was made by the way");
}

#[test]
fn a_refusal_reaches_a_client_that_sends_a_long_body() {
    let node = TestNode::start();
    let value = vec![7; 1 << 20];
    for _ in 0..20 {
        let (code, line) = failed(&node.kvdb(&["put", "/a", "-", "--db", "none"], &value));
        assert!(code == 2 && line.contains("no database none"), "{code} {line}");
    }
}

#[test]
fn x10_tokens_scopes_hosts_and_origins() {
    let open = TestNode::start();
    check(&open.send("GET", "/v1/status", &[("host", "evil.example")], b""), 403, "host_refused");
    check(
        &open.send("POST", "/v1/databases/d/batch", &[("origin", "http://evil.example")], b"{\"ops\":[]}"),
        403,
        "origin_refused",
    );
    assert_eq!(open.send("GET", "/v1/status", &[("host", "localhost:1")], b"").status, 200);
    let node = TestNode::with(
        "[[http.tokens]]\ntoken = \"reader-reader-reader\"\nscopes = [\"read\"]\n[[http.tokens]]\ntoken = \"writer-writer-writer\"\nscopes = [\"write\"]\n",
    );
    let ask =
        |token: &str, method: &str, path: &str| node.send(method, path, &[("authorization", &format!("Bearer {token}"))], b"");
    let unknown = node.send("GET", "/v1/status", &[], b"");
    check(&unknown, 401, "unauthorized");
    assert_eq!(unknown.header("www-authenticate"), Some("Bearer"));
    check(&node.send("GET", "/v1/nothing", &[], b""), 401, "unauthorized");
    assert_eq!(node.send("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(node.send("GET", "/readyz", &[], b"").status, 200);
    let (reader, writer) = ("reader-reader-reader", "writer-writer-writer");
    check(&ask("reader-reader-readeR", "GET", "/v1/status"), 401, "unauthorized");
    assert_eq!(ask(reader, "GET", "/v1/databases/d/list").status, 200);
    check(&ask(reader, "PUT", "/v1/databases/d/keys/a"), 403, "forbidden");
    check(&ask(reader, "POST", "/v1/databases/d/batch"), 403, "forbidden");
    check(&ask(reader, "PUT", "/v1/databases/new"), 403, "forbidden");
    check(&ask(reader, "POST", "/v1/peers"), 403, "forbidden");
    assert_eq!(ask(writer, "PUT", "/v1/databases/d/keys/a").status, 200);
    check(&ask(writer, "GET", "/v1/databases/d/keys/a"), 403, "forbidden");
    let value = node.kvdb(&["get", "/a", "--token", reader], b"");
    assert!(value.status.success() && value.stdout.is_empty());
}

#[test]
fn metrics_status_and_health_tell_what_happened() {
    let node = TestNode::start();
    node.db("PUT", "keys/a", b"v");
    node.db("GET", "keys/none", b"");
    let metrics = node.send("GET", "/metrics", &[], b"").text();
    for line in [
        "kvdb_http_requests_total{route=\"put\",status=\"200\"} 1",
        "kvdb_http_requests_total{route=\"get\",status=\"404\"} 1",
        "kvdb_keys{database=\"d\"} 1",
        "kvdb_poisoned 0",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}\n{metrics}");
    }
    let status = node.send("GET", "/v1/status", &[], b"").json();
    assert_eq!((status["databases"][0]["keys"].as_u64(), status["poisoned"].is_null()), (Some(1), true));
    assert_eq!(node.send("GET", "/v1/peers", &[], b"").json(), json!({ "peers": [] }));
    let shown = String::from_utf8(node.kvdb(&["status"], b"").stdout).unwrap();
    assert!(shown.contains("database d keys=1 digest="), "{shown}");
}
