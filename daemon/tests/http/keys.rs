//! Keys and values, byte by byte, on every way in and out.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use crate::support::{TestNode, failed};

/// Text and bytes that are easily damaged.
const VALUES: [&[u8]; 5] = [b"", b"text \xc3\xa9 \"\\\n", b"\x00\x01\xff\xfe", b"\r\n\r\n", b"\xef\xbb\xbf{}"];

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[test]
fn a04_values_are_byte_exact_in_every_mode() {
    let node = TestNode::start();
    for (n, value) in VALUES.iter().enumerate() {
        let file = node.path("value");
        std::fs::write(&file, value).unwrap();
        let put = node.db("PUT", &format!("keys/http/{n}"), value);
        let tag = format!("\"{}\"", put.json()["dot"].as_str().unwrap());
        assert_eq!((put.status, put.header("etag")), (200, Some(tag.as_str())), "{}", put.text());
        assert!(node.kvdb(&["put", &format!("/stdin/{n}"), "-"], value).status.success());
        assert!(node.kvdb(&["put", &format!("/file/{n}"), "--file", file.to_str().unwrap()], b"").status.success());
        if let Some(text) = std::str::from_utf8(value).ok().filter(|text| !text.contains('\0')) {
            assert!(node.kvdb(&["put", &format!("/argument/{n}"), text], b"").status.success());
        }
        let encoding = if std::str::from_utf8(value).is_ok() { "utf8" } else { "base64" };
        for key in ["http", "stdin", "file", "argument"] {
            let raw = node.db("GET", &format!("keys/{key}/{n}"), b"");
            if raw.status == 404 && key == "argument" && encoding == "base64" {
                continue;
            }
            assert_eq!((raw.status, raw.body.as_slice()), (200, *value), "{key}/{n}");
            let by_cli = node.kvdb(&["get", &format!("/{key}/{n}")], b"");
            assert_eq!(by_cli.stdout, *value);
            let record = node.kvdb(&["get", "--json", &format!("/{key}/{n}")], b"");
            let record: serde_json::Value = serde_json::from_slice(&record.stdout).unwrap();
            assert_eq!(record["encoding"], encoding);
        }
        let head = node.db("HEAD", &format!("keys/http/{n}"), b"");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), Some(value.len().to_string().as_str()));
        assert_eq!(head.header("etag"), put.header("etag"));
    }
    let (records, _) = node.list("prefix=/http");
    for (record, value) in records.iter().zip(VALUES) {
        let encoding: daemon::encoding::Encoding = serde_json::from_value(record["encoding"].clone()).unwrap();
        assert_eq!(encoding.decode(record["value"].as_str().unwrap().to_owned()).unwrap(), value);
    }
    let refused = node.db("POST", "batch", br#"{"ops":[{"put":"/x","encoding":"base64","value":"A"}]}"#);
    assert_eq!((refused.status, refused.json()["detail"].as_str().unwrap().starts_with("op 1:")), (400, true));
}

#[test]
fn a04_an_export_imports_to_the_same_and_a_cut_one_says_so() {
    let node = TestNode::start();
    for (n, value) in VALUES.iter().enumerate() {
        node.db("PUT", &format!("keys/v/{n}%20%22%5C"), value);
    }
    let export = node.kvdb(&["export", "/v"], b"").stdout;
    assert!(String::from_utf8_lossy(&export).ends_with("{\"end\":{\"count\":5}}\n"));
    let other = TestNode::start();
    for _ in 0..2 {
        let imported = other.kvdb(&["import"], &export);
        assert_eq!((imported.status.code(), imported.stdout.len()), (Some(0), 0));
        assert_eq!(other.kvdb(&["export"], b"").stdout, export);
    }
    let lines: Vec<&[u8]> = export.split_inclusive(|byte| *byte == b'\n').collect();
    let without_one = [&lines[..2], &lines[3..]].concat().concat();
    let (code, line) = failed(&other.kvdb(&["import"], &without_one));
    assert!(code == 2 && line.contains("line 5") && line.contains("counts 5"), "{line}");
    let cut = &export[..export.len() / 2];
    let (code, line) = failed(&other.kvdb(&["import"], cut));
    assert!(code == 2 && line.contains("not a record"), "{line}");
    let whole_lines = other.kvdb(&["import"], &lines[..2].concat());
    assert!(whole_lines.status.success() && String::from_utf8_lossy(&whole_lines.stderr).contains("no end record"));
}

#[test]
fn f03_an_export_keeps_expiry_and_shows_all_siblings_if_asked() {
    let node = TestNode::start();
    node.kvdb(&["put", "/soon", "1", "--ttl", "1ms"], b"");
    node.kvdb(&["put", "/later", "2", "--ttl", "7d"], b"");
    // Two writers that had not seen each other: one names what it has seen, which is nothing.
    node.kvdb(&["put", "/both", "a"], b"");
    let nothing = format!("{}-1", "0".repeat(32));
    node.kvdb(&["put", "/both", "b", "--seen", &nothing], b"");
    let siblings = node.kvdb(&["export", "--siblings"], b"").stdout;
    let lines: Vec<serde_json::Value> =
        siblings.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let both = lines.iter().find(|line| line["key"] == "/both").unwrap();
    let values: Vec<_> = both["siblings"].as_array().unwrap().iter().map(|sibling| sibling["value"].as_str().unwrap()).collect();
    assert_eq!(values.len(), 2, "{both}");
    assert!(
        both["siblings"].as_array().unwrap().iter().all(|sibling| sibling["dot"].is_string() && sibling["stamp"].is_string())
    );
    let later = lines.iter().find(|line| line["key"] == "/later").unwrap();
    assert!(later["siblings"][0]["expires_ms"].is_u64(), "{later}");
    let (code, line) = failed(&node.kvdb(&["import"], &siblings));
    assert!(code == 2 && line.contains("--siblings"), "{line}");
    let export = node.kvdb(&["export"], b"").stdout;
    let other = TestNode::start();
    assert!(other.kvdb(&["import"], &export).status.success());
    let again = String::from_utf8(other.kvdb(&["export"], b"").stdout).unwrap();
    assert!(again.contains("\"/later\"") && again.contains("expires_ms") && !again.contains("\"/soon\""), "{again}");
    // What has expired since it was exported is not imported.
    let expired = br#"{"key":"/gone","encoding":"utf8","value":"x","expires_ms":1}"#;
    assert!(other.kvdb(&["import"], expired).status.success());
    assert_eq!(other.kvdb(&["get", "/gone"], b"").status.code(), Some(1));
}

#[test]
fn k04_every_way_in_gives_a_key_the_same_form() {
    let node = TestNode::start();
    let (odd, normal) = (" /a//b/ ", "/ /a/b/ ");
    let writes: [(&str, &dyn Fn() -> bool); 5] = [
        ("path", &|| node.db("PUT", "keys/%20/a//b/%20", b"path").status == 200),
        ("query", &|| node.db("PUT", "keys?key=+/a//b/%20", b"query").status == 200),
        ("batch", &|| {
            node.db("POST", "batch", json!({"ops": [{"put": odd, "value": "batch"}]}).to_string().as_bytes()).status == 200
        }),
        ("import", &|| {
            let line = json!({"key": odd, "encoding": "utf8", "value": "import"}).to_string();
            node.kvdb(&["import"], line.as_bytes()).status.success()
        }),
        ("command", &|| node.kvdb(&["put", odd, "command"], b"").status.success()),
    ];
    for (value, write) in writes {
        assert!(write(), "{value}");
        let (records, _) = node.list("");
        let found: Vec<&str> = records.iter().map(|record| record["key"].as_str().unwrap()).collect();
        assert_eq!(found, [normal], "{value}");
        assert_eq!(node.kvdb(&["get", odd], b"").stdout, value.as_bytes());
        assert_eq!(node.db("GET", &format!("keys?key={}", encode(normal)), b"").body, value.as_bytes());
    }
    assert!(node.kvdb(&["rm", odd], b"").status.success());
    assert_eq!(node.list("").0.len(), 0);
}

#[test]
fn k06_every_size_has_its_limit_and_its_number() {
    let node = TestNode::start();
    for length in [1, 255, 511, 512, 1023] {
        let key = "k".repeat(length);
        assert_eq!(node.db("PUT", &format!("keys/{key}"), b"v").status, 200, "{length}");
        assert_eq!(node.db("GET", &format!("keys?key={key}"), b"").body, b"v");
    }
    for length in [1024, 4096] {
        let key = "k".repeat(length);
        let long = node.db("PUT", &format!("keys/{key}"), b"v");
        assert_eq!((long.status, long.json()["limit"].as_u64()), (413, Some(1024)), "{length}");
        assert!(long.json()["detail"].as_str().unwrap().contains("1024"));
        let (code, line) = failed(&node.kvdb(&["put", &key, "v"], b""));
        assert!(code == 2 && line.contains("1024"), "{line}");
    }
    // A request line of this length is refused before there is a request.
    assert!(matches!(node.db("PUT", &format!("keys/{}", "k".repeat(65_536)), b"v").status, 414 | 431));
    let value = vec![0; 1 << 20];
    assert_eq!(node.db("PUT", "keys/max", &value).status, 200);
    assert_eq!(node.db("GET", "keys/max", b"").body, value);
    let more = [value.as_slice(), b"0"].concat();
    let refused = node.db("PUT", "keys/more", &more);
    assert_eq!((refused.status, refused.json()["code"].as_str()), (413, Some("value_too_long")));
    assert_eq!((refused.json()["limit"].as_u64(), refused.json()["outcome"].as_str()), (Some(1 << 20), Some("not_written")));
    let chunks = [format!("{:x}\r\n", more.len()).as_bytes(), &more, b"\r\n0\r\n\r\n"].concat();
    let refused = node.send("PUT", "/v1/databases/d/keys/more", &[("transfer-encoding", "chunked")], &chunks);
    assert_eq!((refused.status, refused.json()["limit"].as_u64()), (413, Some(1 << 20)), "a length that is not announced");
    let (code, line) = failed(&node.kvdb(&["put", "/more", "-"], &more));
    assert!(code == 2 && line.contains("1048576"), "{line}");
    let ops = vec![json!({"put": "/a", "value": "x".repeat(1 << 20)}); 9];
    let batch = node.db("POST", "batch", json!({ "ops": ops }).to_string().as_bytes());
    assert_eq!((batch.status, batch.json()["limit"].as_u64()), (413, Some(8 << 20)));
    let ops: Vec<_> = (0..5).map(|n| json!({"put": format!("/b/{n}"), "value": "x".repeat(1 << 20)})).collect();
    let batch = node.db("POST", "batch", json!({ "ops": ops }).to_string().as_bytes());
    assert_eq!((batch.status, batch.json()["limit"].as_u64()), (413, Some(4 << 20)), "{}", batch.text());
    assert_eq!(node.list("prefix=/b").0.len(), 0, "a refused batch leaves nothing");
}

#[test]
fn k07_every_key_survives_every_way() {
    let node = TestNode::start();
    let keys =
        ["a%2Fb", "a//b", "/a", "a/", "a#b", "a?b", "a%b", "a+b", "a b", "a;b", "a..b", "é/ü", "a&b=c", "..a", "~\"<>\\^`{|}"];
    for key in keys {
        let normal = kvdb_key(key);
        assert_eq!(node.db("PUT", &format!("keys/{}", encode(key)), key.as_bytes()).status, 200, "{key}");
        let (records, _) = node.list("keys_only=true");
        assert_eq!(records.iter().map(|record| record["key"].as_str().unwrap()).collect::<Vec<_>>(), [normal.as_str()], "{key}");
        assert_eq!(node.kvdb(&["ls", "-0"], b"").stdout, format!("{normal}\0").as_bytes());
        for below in [
            format!("keys/{}", encode(&normal)),
            format!("keys{}", encode_segments(&normal)),
            format!("keys?key={}", encode(&normal)),
        ] {
            assert_eq!(node.db("GET", &below, b"").body, key.as_bytes(), "{below}");
        }
        assert_eq!(node.kvdb(&["get", &normal], b"").stdout, key.as_bytes());
        assert_eq!(node.db("DELETE", &format!("keys?key={}", encode(&normal)), b"").status, 200);
        assert_eq!(node.list("").0.len(), 0);
    }
    // Sent as they are, these mean what they say: nothing is cleaned, collapsed or redirected.
    for (sent, normal) in
        [("a+b", "/a+b"), ("a;b", "/a;b"), ("a//b", "/a/b"), ("/a", "/a"), ("a/", "/a"), ("a%2Fb", "/a/b"), ("a%252Fb", "/a%2Fb")]
    {
        assert_eq!(node.db("PUT", &format!("keys/{sent}"), b"v").status, 200, "{sent}");
        assert_eq!(node.list("").0[0]["key"], normal, "{sent}");
        assert_eq!(node.db("DELETE", &format!("keys/{sent}"), b"").status, 200);
    }
    for (sent, code) in [
        ("..", "bad_key"),
        ("a/../b", "bad_key"),
        ("%2e%2e", "bad_key"),
        ("a%b", "bad_encoding"),
        ("%FF", "bad_encoding"),
        ("", "bad_key"),
    ] {
        let refused = node.db("PUT", &format!("keys/{sent}"), b"v");
        assert_eq!((refused.status, refused.json()["code"].as_str()), (400, Some(code)), "{sent}");
    }
    assert_eq!(node.list("").0.len(), 0);
}

fn kvdb_key(text: &str) -> String {
    kvdb::Key::parse(text).unwrap().as_str().to_owned()
}

fn encode_segments(key: &str) -> String {
    key.split('/').map(encode).collect::<Vec<_>>().join("/")
}

#[test]
fn deletes_batches_siblings_and_waits_answer_what_became_of_them() {
    let mut node = TestNode::start();
    let put = node.db("PUT", "keys/a?durability=sync", b"1");
    let dot = put.json()["dot"].as_str().unwrap().to_owned();
    assert_eq!(put.header("kvdb-dot"), Some(dot.as_str()));
    let siblings = node.db("GET", "siblings?key=/a", b"").json();
    assert_eq!(
        (siblings["siblings"][0]["dot"].as_str(), siblings["siblings"].as_array().unwrap().len()),
        (Some(dot.as_str()), 1)
    );
    assert_eq!(node.db("GET", &format!("wait?dot={dot}"), b"").status, 200);
    let never = format!("{}-1", "0".repeat(32));
    let late = node.db("GET", &format!("wait?dot={never}&timeout_ms=1"), b"");
    assert_eq!(
        (late.status, late.json()["code"].as_str(), late.json()["retry"].as_bool()),
        (503, Some("not_covered"), Some(true))
    );
    let ops = json!({"ops": [{"put": "/b", "value": "old"}, {"put": "b/", "value": "new"}, {"delete": "/a"}, {"delete": "/none"}], "durability": "sync"});
    let batch = node.db("POST", "batch", ops.to_string().as_bytes()).json();
    assert_eq!(batch["ops"], json!(["overridden", "put", "deleted", "absent"]));
    let lines = b"{\"put\":\"/c\",\"value\":\"1\"}\n\n{\"delete\":\"/b\"}\n";
    let kind = [("content-type", "application/x-ndjson")];
    let batch = node.send("POST", "/v1/databases/d/batch?durability=buffered", &kind, lines).json();
    assert_eq!(batch["ops"], json!(["put", "deleted"]));
    assert_eq!(node.db("DELETE", "keys/b", b"").json(), json!({ "dot": null, "op": "absent" }));
    assert_eq!(node.db("POST", "batch", b"{\"ops\":[]}").json(), json!({ "dot": null, "ops": [] }));
    let digest = node.send("GET", "/v1/databases/d", &[], b"").json()["digest"].clone();
    assert_eq!(node.send("PUT", "/v1/databases/other", &[], b"").status, 201);
    assert_eq!(node.send("PUT", "/v1/databases/other", &[], b"").status, 200);
    node.restart();
    let after = node.send("GET", "/v1/databases/d", &[], b"").json();
    assert_eq!((after["keys"].as_u64(), &after["digest"]), (Some(1), &digest));
    let open = node.send("GET", "/v1/databases", &[], b"").json();
    let names: Vec<_> =
        open["databases"].as_array().unwrap().iter().map(|db| (db["name"].as_str().unwrap(), db["open"].as_bool())).collect();
    assert_eq!(names, [("d", Some(true)), ("other", Some(true))], "what was there is open again");
}
