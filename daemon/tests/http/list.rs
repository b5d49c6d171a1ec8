//! Listings against a naive reference.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::TestNode;

fn fill(node: &TestNode, keys: &[String]) {
    for chunk in keys.chunks(1_000) {
        let ops: Vec<Value> = chunk.iter().map(|key| json!({"put": key, "value": key})).collect();
        assert_eq!(node.db("POST", "batch", json!({ "ops": ops }).to_string().as_bytes()).status, 200);
    }
}

/// What a record names: a key, or a prefix with a slash after it.
fn name(record: &Value) -> String {
    let prefix = || format!("{}/", record["prefix"].as_str().unwrap());
    record["key"].as_str().map_or_else(prefix, str::to_owned)
}

fn names(records: &[Value]) -> Vec<String> {
    records.iter().map(name).collect()
}

/// All keys, filtered one by one, then folded.
fn reference(keys: &[&str], prefix: &str, after: Option<&str>, limit: Option<usize>, reverse: bool, fold: bool) -> Vec<String> {
    let start = format!("{}/", prefix.trim_end_matches('/'));
    let passed = |key: &str| match after {
        None => false,
        Some(below) if below.ends_with('/') && !reverse => key < below || key.starts_with(below),
        Some(after) if reverse => key >= after,
        Some(after) => key <= after,
    };
    let name = |key: &&str| match key[start.len()..].find('/') {
        Some(at) if fold => format!("{}/", &key[..start.len() + at]),
        _ => (*key).to_owned(),
    };
    let names: BTreeSet<String> = keys.iter().filter(|key| key.starts_with(&start) && !passed(key)).map(name).collect();
    let mut names: Vec<String> = names.into_iter().collect();
    if reverse {
        names.reverse();
    }
    names.truncate(limit.unwrap_or(usize::MAX));
    names
}

#[test]
fn r17_prefix_after_limit_reverse_and_delimiter_equal_a_naive_reference() {
    let node = TestNode::start();
    let keys = ["/a", "/a/1", "/a/2", "/a-b", "/ab", "/a/1/x", "/v", "/a/v", "/a/p"];
    fill(&node, &keys.map(str::to_owned));
    let mut compared = 0;
    for prefix in ["", "/", "/a", "a/", "/a/1", "/v", "/none"] {
        for after in [None, Some("/a"), Some("/a/1"), Some("/a/1/"), Some("/a-b"), Some("/a/"), Some("/zzz"), Some("/0")] {
            for limit in [None, Some(1), Some(2), Some(100)] {
                for (reverse, fold) in [(false, false), (false, true), (true, false), (true, true)] {
                    let after_text = after.map(|after| format!("&after={after}")).unwrap_or_default();
                    let limit_text = limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
                    let delimiter = if fold { "&delimiter=/" } else { "" };
                    let query = format!("prefix={prefix}&reverse={reverse}&keys_only=1{after_text}{limit_text}{delimiter}");
                    let normal = format!("/{}", prefix.trim_matches('/'));
                    let (records, _) = node.list(&query);
                    assert_eq!(names(&records), reference(&keys, &normal, after, limit, reverse, fold), "{query}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 500);
}

#[test]
fn k02_a_prefix_is_made_of_whole_segments_in_http_and_cli() {
    let node = TestNode::start();
    fill(&node, &["/foo", "/foo/1", "/foobar", "/foo-1"].map(str::to_owned));
    for (prefix, expected) in [("/foo", "/foo/1\n"), ("/foo/", "/foo/1\n"), ("/fo", ""), ("", "/foo\n/foo-1\n/foo/1\n/foobar\n")]
    {
        let listed = node.kvdb(&["ls", prefix], b"");
        assert_eq!((listed.status.code(), String::from_utf8_lossy(&listed.stdout).as_ref()), (Some(0), expected), "{prefix}");
        let (records, _) = node.list(&format!("prefix={prefix}"));
        assert_eq!(names(&records), expected.lines().collect::<Vec<_>>());
        let exported = node.kvdb(&["export", prefix], b"").stdout;
        assert_eq!(String::from_utf8(exported).unwrap().lines().count(), expected.lines().count() + 1);
    }
    let folded = node.kvdb(&["ls", "--delimiter"], b"").stdout;
    assert_eq!(String::from_utf8(folded).unwrap(), "/foo\n/foo-1\n/foo/\n/foobar\n");
    let help = String::from_utf8(node.kvdb(&["ls", "--help"], b"").stdout).unwrap();
    for key in ["/foo/1", "/foobar", "/foo-1"] {
        assert!(help.contains(key), "the help shows this very example");
    }
}

#[test]
fn a02_pages_of_any_size_make_the_whole() {
    let node = TestNode::start();
    let all: Vec<String> = (0..3_000).map(|n| format!("/{}/{n:05}", if n % 3 == 0 { "b" } else { "a" })).collect();
    fill(&node, &all);
    let mut expected: Vec<String> = all.iter().filter(|key| key.starts_with("/a/")).cloned().collect();
    for (limit, reverse) in [(1, false), (500, false), (499, true), (10_000, false), (2_000, false)] {
        if reverse {
            expected.reverse();
        }
        let mut after = String::new();
        let mut found = Vec::new();
        let most = if limit == 1 { 20 } else { usize::MAX };
        while found.len() < most {
            let (records, end) = node.list(&format!("prefix=/a&limit={limit}&reverse={reverse}{after}&keys_only=true"));
            assert!(records.len() <= limit);
            found.extend(names(&records));
            match end["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        let whole = expected.iter().take(most).cloned().collect::<Vec<_>>();
        assert_eq!(found, whole, "limit {limit}");
        if reverse {
            expected.reverse();
        }
    }
    let (records, end) = node.list("delimiter=/&limit=1");
    assert_eq!((names(&records), end["next"].as_str()), (vec!["/a/".to_owned()], Some("/a/")));
    let (records, end) = node.list("delimiter=/&limit=1&after=/a/");
    assert_eq!((names(&records), end["next"].as_str()), (vec!["/b/".to_owned()], None));
}

#[test]
fn a01_a_listing_is_streamed_and_a_client_that_leaves_stops_it() {
    use std::io::{Read as _, Write as _};
    let node = TestNode::start();
    let ops: Vec<Value> = (0..64).map(|n| json!({"put": format!("/big/{n}"), "value": "x".repeat(60_000)})).collect();
    assert_eq!(node.db("POST", "batch", json!({ "ops": ops }).to_string().as_bytes()).status, 200);
    // More clients than there are places for listings, each gone after the first bytes: their places come back.
    for _ in 0..200 {
        let mut stream = std::net::TcpStream::connect(node.url().strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(b"GET /v1/databases/d/list HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut some = [0; 16];
        stream.read_exact(&mut some).unwrap();
    }
    let mut tries = 0;
    while node.db("GET", "list?limit=1", b"").status == 429 {
        tries += 1;
        assert!(tries < 1_000, "the places never came back");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(node.list("prefix=/big").0.len(), 64);
}

/// What the patterns of a case stand for.
type Naive = fn(&str) -> bool;

#[test]
fn r17_regular_expressions_equal_a_naive_reference() {
    let node = TestNode::start();
    let keys = ["/a", "/a/1", "/a/2", "/a-b", "/ab", "/a/1/x", "/v", "/a/v", "/a/p"];
    fill(&node, &keys.map(str::to_owned));
    let patterns: [(&[&str], Naive); 7] = [
        (&[], |_| true),
        (&["1"], |key| key.contains('1')),
        (&["^/a$"], |key| key == "/a"),
        (&["x$", "^/v"], |key| key.ends_with('x') || key.starts_with("/v")),
        (&["^/a/[0-9]"], |key| key.starts_with("/a/1") || key.starts_with("/a/2")),
        (&["nothing"], |_| false),
        (&["/a.b", "(?i)/AB"], |key| key == "/a-b" || key == "/ab"),
    ];
    for (patterns, matches) in patterns {
        let kept: Vec<&str> = keys.iter().copied().filter(|key| matches(key)).collect();
        let regex = [&[""], patterns].concat().join("&regex=");
        for (prefix, after, limit) in [("/", None, None), ("/a", None, Some(1)), ("/", Some("/a/1"), Some(2)), ("/v", None, None)]
        {
            for (reverse, fold) in [(false, false), (false, true), (true, false), (true, true)] {
                let after_text = after.map(|after| format!("&after={after}")).unwrap_or_default();
                let limit_text = limit.map(|limit| format!("&limit={limit}")).unwrap_or_default();
                let delimiter = if fold { "&delimiter=/" } else { "" };
                let query = format!("prefix={prefix}&reverse={reverse}&keys_only=1{after_text}{limit_text}{delimiter}{regex}");
                let (records, _) = node.list(&query);
                assert_eq!(names(&records), reference(&kept, prefix, after, limit, reverse, fold), "{query}");
            }
        }
        let flags: Vec<&str> = patterns.iter().flat_map(|pattern| ["--regex", pattern]).collect();
        let listed = node.kvdb(&[&["ls"], flags.as_slice()].concat(), b"");
        assert_eq!(
            String::from_utf8(listed.stdout).unwrap().lines().collect::<Vec<_>>(),
            reference(&kept, "/", None, None, false, false)
        );
    }
    let refused = |query: &str| {
        let answer = node.db("GET", &format!("list?{query}"), b"");
        let problem = answer.json();
        assert_eq!((answer.status, problem["code"].as_str()), (400, Some("bad_pattern")), "{query}");
        problem["limit"].as_u64()
    };
    assert_eq!(refused("regex=("), None);
    assert_eq!(refused(&vec!["regex=a"; 17].join("&")), Some(16));
    assert_eq!(refused(&format!("regex={}", "a".repeat(1_025))), Some(1_024));
    assert_eq!(refused("regex=(\\p{L}{100}){100}"), Some(1 << 20));
    assert_eq!(node.kvdb(&["ls", "--regex", "["], b"").status.code(), Some(2));
}

#[test]
fn a01_r15_a_reader_of_one_key_at_a_time_gets_every_key_of_its_moment() {
    use std::io::{BufRead as _, BufReader, Write as _};
    let node = TestNode::start();
    let keys: Vec<String> = (0..60_000).map(|n| format!("/slow/{n:06}")).collect();
    fill(&node, &keys);
    let url = node.url();
    let mut stream = std::net::TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(b"GET /v1/databases/d/list?prefix=/slow HTTP/1.0\r\nhost: localhost\r\n\r\n").unwrap();
    let mut lines = BufReader::with_capacity(256, stream).lines().map(Result::unwrap).skip_while(|line| !line.is_empty()).skip(1);
    let mut found = Vec::new();
    for round in 0..40 {
        // Far slower than the node, which writes, deletes and lists for others meanwhile.
        for line in lines.by_ref().take(10) {
            found.push(serde_json::from_str::<Value>(&line).unwrap()["key"].as_str().unwrap().to_owned());
        }
        let ops: Vec<Value> = keys.iter().skip(round * 1_500).take(1_500).map(|key| json!({ "delete": key })).collect();
        assert_eq!(node.db("POST", "batch", json!({ "ops": ops }).to_string().as_bytes()).status, 200);
        assert_eq!(node.list("prefix=/slow&limit=1").0.len(), usize::from(round < 39));
    }
    let mut end = None;
    for line in lines {
        let record: Value = serde_json::from_str(&line).unwrap();
        match record["key"].as_str() {
            Some(key) => found.push(key.to_owned()),
            None => end = record["end"]["count"].as_u64(),
        }
    }
    assert_eq!((found.len(), end), (keys.len(), Some(keys.len() as u64)));
    assert_eq!(found, keys);
}

#[test]
fn a01_listings_that_nobody_reads_hold_up_no_writer_and_are_whole_when_they_are_read() {
    use std::io::{Read as _, Write as _};
    let node = TestNode::start();
    for part in 0..4 {
        let put = |n| json!({"put": format!("/big/{part}/{n:03}"), "value": "x".repeat(1_000)});
        let ops: Vec<Value> = (0..500).map(put).collect();
        assert_eq!(node.db("POST", "batch", json!({ "ops": ops }).to_string().as_bytes()).status, 200);
    }
    let address = node.url().strip_prefix("http://").unwrap().to_owned();
    let mut readers: Vec<std::net::TcpStream> = (0..20)
        .map(|n| {
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            let query = if n % 2 == 0 { "" } else { "&keys_only=true" };
            let request =
                format!("GET /v1/databases/d/list?prefix=/big{query} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            stream.read_exact(&mut [0; 16]).unwrap();
            stream
        })
        .collect();
    for n in 0..100 {
        assert_eq!(node.db("PUT", &format!("keys/new/{n}"), b"v").status, 200);
    }
    for reader in &mut readers {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(text.contains("{\"end\":{\"count\":2000,\"next\":null}}"), "{}", &text[text.len() - 200..]);
    }
}
