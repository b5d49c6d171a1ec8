//! Exit codes and one-line errors of the client commands.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::support::{TestNode, failed, kvdb};

#[test]
fn exit_codes_tell_absent_from_bad_from_unreachable() {
    let node = TestNode::start();
    assert_eq!(failed(&node.kvdb(&["get", "/none"], b"")).0, 1);
    assert_eq!(failed(&node.kvdb(&["rm", "/none"], b"")).0, 1);
    let file = node.path("none");
    for args in [
        &["get", ".."][..],
        &["put", "/", "v"],
        &["put", "/a", "v", "--durability", "maybe"],
        &["put", "/a", "--file", file.to_str().unwrap()],
        &["put", "/a", "v", "--file", "f"],
        &["ls", "/a/../b"],
        &["ls", "--limit", "0"],
        &["ls", "--after", ".."],
        &["get", "/a", "--db", ".bad"],
        &["get", "/a", "--db", "none"],
        &["get", "/a", "--server", "https://localhost"],
        &["get", "/a", "--server", "http://"],
        &["get"],
        &["frobnicate"],
        &["import", file.to_str().unwrap()],
        &["peers", "--dial", "nowhere"],
    ] {
        let (code, line) = failed(&node.kvdb(args, b""));
        assert!(code == 2 && line.starts_with("kvdb: "), "{args:?}: {code} {line}");
    }
    for bad in [
        "{\"key\":\"/a\",\"value\":\"no encoding\"}",
        "{\"key\":\"..\",\"encoding\":\"utf8\",\"value\":\"\"}",
        "nothing",
        "{}",
        "{\"key\":\"/a\",\"encoding\":\"base64\",\"value\":\"?\"}",
        "{\"key\":\"/a\",\"encoding\":\"utf8\",\"value\":\"\",\"more\":1}",
    ] {
        let good = "{\"key\":\"/good\",\"encoding\":\"utf8\",\"value\":\"\"}";
        let (code, line) = failed(&node.kvdb(&["import"], format!("{good}\n\n{bad}\n").as_bytes()));
        assert!(code == 2 && line.contains("line 3") && line.contains("0 keys were imported"), "{bad}: {line}");
    }
    assert_eq!(node.list("").0.len(), 0);
    assert!(node.kvdb(&["--help"], b"").status.success());
    let made = node.kvdb(&["db", "create", "new"], b"");
    assert!(String::from_utf8_lossy(&made.stdout).contains("made"));
    assert_eq!(node.kvdb(&["db", "list"], b"").stdout, b"d\nnew\n");
    assert!(node.kvdb(&["put", "/a", "--db", "new", "--", "-x"], b"").status.success());
    assert_eq!(node.kvdb(&["get", "/a", "--db", "new"], b"").stdout, b"-x");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for args in [&["get", "/a"][..], &["put", "/a", "v"], &["ls"], &["status"]] {
        let (code, line) = failed(&kvdb(&format!("http://{free}"), args, b""));
        assert!(code == 3 && line.contains("cannot reach"), "{args:?}: {code} {line}");
    }
}

/// Answers one connection with these bytes, after it has read a request.
fn answer_once(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut some = [0; 4_096];
        let _ = stream.read(&mut some).unwrap();
        stream.write_all(answer).unwrap();
    });
    url
}

#[test]
fn a_write_without_an_answer_is_unknown_and_a_read_is_not() {
    for answer in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"] {
        assert_eq!(failed(&kvdb(&answer_once(answer), &["rm", "/a"], b"")).0, 4);
        assert_eq!(failed(&kvdb(&answer_once(answer), &["get", "/a"], b"")).0, 3);
    }
    assert_eq!(failed(&kvdb(&answer_once(b""), &["put", "/a", "v"], b"")).0, 4);
    assert_eq!(
        failed(&kvdb(&answer_once(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"), &["get", "/a"], b"")).0,
        3
    );
}

#[test]
fn a05_a_listing_cut_short_is_told_from_a_whole_one() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    let record = "{\"key\":\"/a\",\"encoding\":\"utf8\",\"value\":\"v\"}\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    for cut in [
        format!("{head}{}", chunk(record)),
        format!("{head}{}0\r\n\r\n", chunk(record)),
        format!("{head}{}0\r\n\r\n", chunk("{\"key\":\"/a")),
        format!(
            "{head}{}{}0\r\n\r\n",
            chunk(record),
            chunk(
                "{\"error\":{\"type\":\"\",\"title\":\"\",\"status\":500,\"code\":\"read_failed\",\"detail\":\"bad\",\"outcome\":\"not_written\",\"retry\":false}}\n"
            )
        ),
    ] {
        let answer: &'static str = Box::leak(cut.into_boxed_str());
        for args in [&["ls"][..], &["ls", "--json"], &["export"]] {
            let (code, line) = failed(&kvdb(&answer_once(answer.as_bytes()), args, b""));
            assert!(code == 3 && line.contains("is not all"), "{args:?}: {line}");
        }
    }
}

#[test]
fn databases_are_shown_whole_and_page_by_page_and_waits_name_the_holders() {
    let node = TestNode::start();
    let mut names = vec!["d".to_owned()];
    for n in 0..7 {
        names.push(format!("more-{n}"));
        assert_eq!(node.send("PUT", &format!("/v1/databases/more-{n}"), &[], b"").status, 201);
    }
    let page = node.send("GET", "/v1/databases?limit=3", &[], b"").json();
    assert_eq!((page["databases"].as_array().unwrap().len(), page["next"].as_str()), (3, Some("more-1")));
    let rest = node.send("GET", "/v1/databases?after=more-1&limit=1000", &[], b"").json();
    assert_eq!((rest["databases"].as_array().unwrap().len(), rest["next"].is_null()), (5, true));
    for bad in ["limit=0", "limit=1001", "after=.x", "page=2"] {
        assert_eq!(node.send("GET", &format!("/v1/databases?{bad}"), &[], b"").status, 400, "{bad}");
    }
    let put = node.db("PUT", "keys/a", b"1");
    let shown = String::from_utf8(node.kvdb(&["databases"], b"").stdout).unwrap();
    assert_eq!(shown.lines().filter_map(|line| line.split(' ').nth(1)).collect::<Vec<_>>(), names);
    let figures = node.send("GET", "/v1/databases/d", &[], b"").json();
    let digest = figures["digest"].as_str().unwrap();
    assert!(
        shown.lines().next().unwrap().starts_with(&format!("database d open keys=1 digest={digest} revision=1 id=")),
        "{shown}"
    );
    let dot = put.header("kvdb-dot").unwrap();
    let held = node.kvdb(&["wait", dot, "--holders", "1"], b"");
    let peer = node.send("GET", "/v1/status", &[], b"").json()["peer_id"].as_str().unwrap().to_owned();
    assert_eq!((held.status.code(), String::from_utf8(held.stdout).unwrap()), (Some(0), format!("{peer}\n")));
    assert_eq!(node.kvdb(&["wait", dot], b"").status.code(), Some(0));
    // This node has no network: nobody else will ever have it.
    let refused = node.db("GET", &format!("wait?dot={dot}&holders=2"), b"");
    assert_eq!((refused.status, refused.json()["code"].as_str()), (409, Some("no_network")));
    let unknown = format!("{dot}9");
    let (code, line) = failed(&node.kvdb(&["wait", &unknown, "--holders", "1", "--wait", "50ms"], b""));
    assert!(code == 3 && line.contains("0 of 1"), "{line}");
    assert_eq!(node.db("GET", &format!("wait?dot={dot}&holders=0"), b"").status, 400);
    assert_eq!(node.db("GET", &format!("wait?dot={dot}&holders=513"), b"").status, 400);
}
