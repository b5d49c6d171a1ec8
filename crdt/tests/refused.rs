//! For every rule of the format a block that breaks just this one, and the error that it is refused with.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bytes::Bytes;
use crdt::limits::{
    MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_BLOCK_PARENTS, MAX_BLOCK_REQUESTS, MAX_KEY_BYTES, MAX_OP_SUPERSEDED, MAX_VALUE_BYTES,
};
use crdt::{Block, BlockError, Zip215};

use crate::golden;
use crate::raw::{Form, Item, LINK, bytes, dot, list, op, parent, parent_by, text, uint};

/// What a case is called, its bytes, and the error in its debug form without offsets.
struct Case {
    name: String,
    bytes: Bytes,
    error: String,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(&mut self, name: impl Into<String>, form: &Form, error: impl Into<String>) {
        self.0.push(Case { name: name.into(), bytes: form.bytes(), error: error.into() });
    }

    fn rule(&mut self, name: &str, form: &Form, rule: &str) {
        self.add(name, form, format!("Rule({rule})"));
    }

    fn unexpected(&mut self, name: impl Into<String>, form: &Form, wanted: &str) {
        self.add(name, form, format!("Cbor(Unexpected {{ at, wanted: {wanted:?} }})"));
    }

    fn not_canonical(&mut self, name: impl Into<String>, form: &Form) {
        self.add(name, form, "Cbor(NotCanonical { at })");
    }

    fn too_many(&mut self, name: &str, form: &Form, what: &str, limit: usize) {
        self.add(name, form, format!("Cbor(TooMany {{ at, what: {what:?}, len: {}, limit: {limit} }})", limit + 1));
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Cases::default();
    frame(&mut cases);
    numbers(&mut cases);
    identity(&mut cases);
    table(&mut cases);
    parents(&mut cases);
    ops(&mut cases);
    keys(&mut cases);
    values_and_dots(&mut cases);
    requests(&mut cases);
    signatures(&mut cases);
    forms(&mut cases);
    cases.0
}

fn frame(cases: &mut Cases) {
    let heads: [(&str, &[u8]); 5] =
        [("nine", &[0x89]), ("eleven", &[0x8b]), ("wide", &[0x98, 10]), ("indefinite", &[0x9f]), ("map", &[0xaa])];
    for (name, head) in heads {
        let form = Form { head: head.to_vec(), ..Form::rich() };
        cases.unexpected(format!("head_{name}"), &form, "an array of 10 items");
    }
    let empty = Form { head: vec![], fields: vec![], signature: Some(Item::Raw(vec![])), ..Form::rich() };
    cases.add("empty_input", &empty, "Cbor(Truncated { at })");
    cases.add("head_only", &Form { head: vec![0x8a], ..empty }, "Cbor(Truncated { at })");
    for (name, tail) in [("zero", 0), ("break", 0xff)] {
        cases.add(format!("trailing_{name}"), &Form { tail: vec![tail], ..Form::rich() }, "Cbor(Trailing { at })");
    }
    let cut = Form { signature: Some(Item::Raw(Form::rich().signature_item().encode()[..65].to_vec())), ..Form::rich() };
    cases.add("signature_cut_short", &cut, "Cbor(Truncated { at })");
    let big = Form { tail: vec![0; MAX_BLOCK_BYTES + 1 - Form::rich().bytes().len()], ..Form::rich() };
    cases.add("block_too_large", &big, format!("TooLarge {{ bytes: {} }}", MAX_BLOCK_BYTES + 1));
}

fn numbers(cases: &mut Cases) {
    for found in [0, 2, 23, 1 << 40] {
        cases.add(format!("version_{found}"), &Form::with(0, uint(found)), format!("Version {{ found: {found} }}"));
    }
    let kinds: [(&str, &[u8]); 9] = [
        ("negative", &[0x20]),
        ("half_float", &[0xf9, 0x3c, 0x00]),
        ("double_float", &[0xfb, 0x3f, 0xf1, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9a]),
        ("true", &[0xf5]),
        ("undefined", &[0xf7]),
        ("null", &[0xf6]),
        ("bignum", &[0xc2, 0x41, 0x01]),
        ("tagged", &[0xd8, 0x2a, 0x01]),
        ("break", &[0xff]),
    ];
    for (field, what) in [(0, "the format version"), (4, "a seq"), (5, "a stamp")] {
        for (name, item) in kinds {
            cases.unexpected(format!("field_{field}_{name}"), &Form::with(field, Item::Raw(item.to_vec())), what);
        }
        cases.unexpected(format!("field_{field}_text"), &Form::with(field, text("1")), what);
        for value in [1 << 63, u64::MAX] {
            cases.add(format!("field_{field}_{value}"), &Form::with(field, uint(value)), "Cbor(IntegerTooLarge { at })");
        }
        let form = Form::changed(field, |item| *item = Item::Raw(vec![0x1c]));
        cases.not_canonical(format!("field_{field}_reserved"), &form);
        // A longer float that a shorter one could hold.
        let form = Form::with(field, Item::Raw(vec![0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]));
        cases.not_canonical(format!("field_{field}_wide_float"), &form);
    }
    cases.rule("seq_zero", &Form::with(4, uint(0)), "SeqZero");
}

fn identity(cases: &mut Cases) {
    let what = "a database id of 32 bytes";
    cases.unexpected("database_31_bytes", &Form::with(1, bytes(&[1; 31])), what);
    cases.too_many("database_33_bytes", &Form::with(1, bytes(&[1; 33])), what, 32);
    cases.unexpected("database_text", &Form::with(1, Item::Text(vec![b'a'; 32])), what);
    let author = |items: &[Item]| Form::with(2, list(items.to_vec()));
    cases.unexpected("author_one_item", &author(&[bytes(&[1; 32])]), "an author of 2 items");
    cases.too_many("author_three_items", &author(&[bytes(&[1; 32]), uint(1), uint(1)]), "an author of 2 items", 2);
    cases.unexpected("author_no_list", &Form::with(2, bytes(&[1; 32])), "an author of 2 items");
    cases.unexpected("public_key_31_bytes", &author(&[bytes(&[1; 31]), uint(1)]), "a public key of 32 bytes");
    cases.too_many("public_key_33_bytes", &author(&[bytes(&[1; 33]), uint(1)]), "a public key of 32 bytes", 32);
    cases.unexpected("nonce_bytes", &author(&[bytes(&[1; 32]), bytes(&[1])]), "a nonce");
    cases.add("nonce_2_63", &author(&[bytes(&[1; 32]), uint(1 << 63)]), "Cbor(IntegerTooLarge { at })");
}

fn table(cases: &mut Cases) {
    let table = |ids: &[[u8; 16]]| Form::with(3, list(ids.iter().map(|id| bytes(id))));
    cases.rule("table_descending", &table(&[[0x22; 16], [0x11; 16]]), "TableOrder");
    cases.rule("table_twice", &table(&[[0x11; 16], [0x11; 16]]), "TableOrder");
    cases.rule(
        "table_has_author",
        &table(&[Form::rich().replica(), crdt::ReplicaId([0xff; 16])].map(|id| id.0)),
        "TableHasAuthor",
    );
    cases.rule("table_unused", &table(&[[0x11; 16], [0x22; 16], [0x23; 16]]), "TableUnused");
    cases.rule("table_too_short", &table(&[[0x11; 16]]), "ReplicaIndex");
    let what = "a replica id of 16 bytes";
    cases.unexpected("replica_id_15_bytes", &Form::with(3, list([bytes(&[1; 15])])), what);
    cases.too_many("replica_id_17_bytes", &Form::with(3, list([bytes(&[1; 17])])), what, 16);
    cases.unexpected("table_no_list", &Form::with(3, uint(0)), "a replica table");
    let more = MAX_BLOCK_BYTES / 17 + 1;
    let declared = Form::with(3, Item::Raw(crate::raw::head(4, more as u64)));
    cases.too_many("table_longer_than_a_block", &declared, "a replica table", more - 1);
    cases.add("table_longer_than_the_input", &Form::with(3, Item::Raw(crate::raw::head(4, 10_000))), "Cbor(Truncated { at })");
}

fn parents(cases: &mut Cases) {
    let parents = |items: &[Item]| Form::with(6, list(items.to_vec()));
    cases.rule("parents_descending", &parents(&[parent(1, 70), parent(0, 499)]), "ParentOrder");
    cases.rule("parents_two_of_one_replica", &parents(&[parent(1, 69), parent(1, 70)]), "ParentOrder");
    cases.rule("parents_two_of_the_author", &parents(&[parent(0, 498), parent(0, 499)]), "ParentOrder");
    cases.rule("parent_twice", &parents(&[parent(1, 70), parent(1, 70)]), "ParentOrder");
    cases.rule("parent_own_seq", &parents(&[parent(0, 500)]), "OwnSeqNotSmaller");
    cases.rule("parent_later_own_seq", &parents(&[parent(0, 501)]), "OwnSeqNotSmaller");
    cases.rule("parent_seq_zero", &parents(&[parent(1, 0)]), "SeqZero");
    cases.rule("parent_own_seq_zero", &parents(&[parent(0, 0)]), "SeqZero");
    cases.rule("parent_index", &parents(&[parent(3, 1)]), "ReplicaIndex");
    cases.rule("parent_index_huge", &parents(&[parent(i64::MAX as u64, 1)]), "ReplicaIndex");
    cases.add("parent_index_2_63", &parents(&[parent(1 << 63, 1)]), "Cbor(IntegerTooLarge { at })");
    cases.add("parent_seq_2_63", &parents(&[parent(1, 1 << 63)]), "Cbor(IntegerTooLarge { at })");
    cases.unexpected("parent_two_items", &parents(&[dot(1, 70)]), "a parent of 3 items");
    let four = Form::changed(6, |item| item.items()[0].items().push(uint(1)));
    cases.too_many("parent_four_items", &four, "a parent of 3 items", 3);
    cases.unexpected("parent_index_text", &parents(&[list([text("1"), uint(1), uint(1)])]), "a replica index");
    cases.unexpected("parent_seq_text", &parents(&[list([uint(1), text("1"), uint(1)])]), "a seq");
    cases.unexpected("parents_no_list", &Form::with(6, uint(0)), "a list of parents");
    for (at, name) in [
        (1, "tag"),
        (2, "type"),
        (3, "length"),
        (4, "multibase"),
        (5, "cid_version"),
        (6, "codec"),
        (7, "hash"),
        (8, "hash_length"),
    ] {
        for flip in [1, 0x80] {
            let mut link = LINK;
            link[at] ^= flip;
            cases.unexpected(format!("link_{name}_{flip}"), &parents(&[parent_by(0, 499, &link)]), "a link");
        }
    }
    cases.unexpected("link_without_tag", &parents(&[parent_by(0, 499, &LINK[2..])]), "a link");
    let wide = [&[0xd9, 0x00, 0x2a], &LINK[2..]].concat();
    cases.unexpected("link_with_a_wide_tag", &parents(&[parent_by(0, 499, &wide)]), "a link");
    let over: Vec<Item> = (0..=MAX_BLOCK_PARENTS as u64).map(|index| parent(index, 1)).collect();
    cases.too_many("too_many_parents", &parents(&over), "a list of parents", MAX_BLOCK_PARENTS);
}

fn ops(cases: &mut Cases) {
    let put = |key: &str| op(key, bytes(b"x"), []);
    cases.rule("no_ops", &Form::lone([]), "NoOps");
    cases.rule("ops_descending", &Form::lone([put("/b"), put("/a")]), "OpOrder");
    cases.rule("key_twice", &Form::lone([put("/a"), put("/a")]), "OpOrder");
    // The order is that of the bytes, not of the segments.
    cases.rule("ops_by_segments", &Form::lone([put("/a/b"), put("/a-b")]), "OpOrder");
    cases.rule(
        "op_of_two_items",
        &Form::lone([Item::Raw([vec![0x82], text("/a").encode(), bytes(b"x").encode(), vec![0x80]].concat())]),
        "OpItems",
    );
    cases.rule(
        "op_of_no_items",
        &Form::lone([Item::Raw([vec![0x80], text("/a").encode(), bytes(b"x").encode(), vec![0x80]].concat())]),
        "OpItems",
    );
    let five = Form::lone([list([text("/a"), bytes(b""), list([]), uint(1), uint(1)])]);
    cases.too_many("op_of_five_items", &five, "an op of 3 or 4 items", 4);
    cases.unexpected("op_no_list", &Form::lone([uint(1)]), "an op of 3 or 4 items");
    cases.unexpected("ops_no_list", &Form::with(7, Item::Null), "a list of ops");
    cases.rule("tombstone_over_nothing", &Form::lone([op("/a", Item::Null, [])]), "EmptyTombstone");
    let expiring = |value: Item, expiry: Item| Form::lone([list([text("/a"), value, list([dot(0, 1)]), expiry])]);
    cases.rule("tombstone_with_expiry", &expiring(Item::Null, uint(1)), "TombstoneExpiry");
    cases.rule("expiry_zero", &expiring(bytes(b""), uint(0)), "ExpiryZero");
    cases.add("expiry_2_63", &expiring(bytes(b""), uint(1 << 63)), "Cbor(IntegerTooLarge { at })");
    cases.unexpected("expiry_null", &expiring(bytes(b""), Item::Null), "an expiry");
    let over = (0..=MAX_BLOCK_OPS).map(|index| put(&format!("/{index:05}")));
    cases.too_many("too_many_ops", &Form::lone(over), "a list of ops", MAX_BLOCK_OPS);
}

fn keys(cases: &mut Cases) {
    let bad: [(&str, &[u8], &str); 20] = [
        ("noslash", b"noslash", "NotNormal"),
        ("climbing", b"../../h", "NotNormal"),
        ("climbing_from_root", b"/../h", "DotSegment { segment: \"..\" }"),
        ("climbing_inside", b"/a/../../h", "DotSegment { segment: \"..\" }"),
        ("climbing_at_the_end", b"/a/..", "DotSegment { segment: \"..\" }"),
        ("dot", b"/a/./b", "DotSegment { segment: \".\" }"),
        ("double_slash", b"/a//b/", "NotNormal"),
        ("double_slash_first", b"//a", "NotNormal"),
        ("trailing_slash", b"/a/", "NotNormal"),
        ("empty", b"", "Empty"),
        ("root", b"/", "Empty"),
        ("slashes", b"//", "NotNormal"),
        ("nul", b"/a\0", "Nul"),
        ("nul_alone", b"/\0", "Nul"),
        ("ff", b"/\xff", "NotUtf8"),
        ("cut_utf8", b"/\xc3", "NotUtf8"),
        ("overlong_utf8", b"/\xc0\xaf", "NotUtf8"),
        ("surrogate", b"/\xed\xa0\x80", "NotUtf8"),
        ("above_unicode", b"/\xf4\x90\x80\x80", "NotUtf8"),
        ("latin_1", b"/caf\xe9", "NotUtf8"),
    ];
    for (name, key, error) in bad {
        let form = Form::lone([list([Item::Text(key.to_vec()), bytes(b"x"), list([])])]);
        cases.add(format!("key_{name}"), &form, format!("Key {{ op: 0, source: {error} }}"));
    }
    let second = Form::lone([op("/a", bytes(b"x"), []), op("b", bytes(b"x"), [])]);
    cases.add("key_of_the_second_op", &second, "Key { op: 1, source: NotNormal }");
    let long = format!("/{}", "k".repeat(MAX_KEY_BYTES));
    cases.too_many("key_too_long", &Form::lone([op(&long, bytes(b"x"), [])]), "a key", MAX_KEY_BYTES);
    cases.unexpected("key_as_bytes", &Form::lone([list([bytes(b"/a"), bytes(b"x"), list([])])]), "a key");
}

fn values_and_dots(cases: &mut Cases) {
    let value = |item: Item| Form::lone([op("/a", item, [])]);
    cases.unexpected("value_text", &value(text("x")), "a value or null");
    cases.unexpected("value_undefined", &value(Item::Raw(vec![0xf7])), "a value or null");
    cases.unexpected("value_false", &value(Item::Raw(vec![0xf4])), "a value or null");
    cases.not_canonical("null_in_two_bytes", &value(Item::Raw(vec![0xf8, 0x16])));
    cases.too_many("value_too_long", &value(bytes(&vec![1; MAX_VALUE_BYTES + 1])), "a value or null", MAX_VALUE_BYTES);
    let dots = |dots: &[Item]| Form::changed(7, |item| item.items()[0].items()[2] = list(dots.to_vec()));
    cases.rule("superseded_descending", &dots(&[dot(2, 1), dot(0, 30)]), "SupersededOrder");
    cases.rule("superseded_seqs_descending", &dots(&[dot(2, 2), dot(2, 1)]), "SupersededOrder");
    cases.rule("superseded_twice", &dots(&[dot(2, 1), dot(2, 1)]), "SupersededOrder");
    cases.rule("superseded_own_seq", &dots(&[dot(0, 500), dot(2, 1)]), "OwnSeqNotSmaller");
    cases.rule("superseded_later_own_seq", &dots(&[dot(0, 501), dot(2, 1)]), "OwnSeqNotSmaller");
    cases.rule("superseded_seq_zero", &dots(&[dot(2, 0)]), "SeqZero");
    cases.rule("superseded_index", &dots(&[dot(3, 1)]), "ReplicaIndex");
    cases.unexpected("dot_of_one_item", &dots(&[list([uint(2)])]), "a dot of 2 items");
    cases.too_many("dot_of_three_items", &dots(&[list([uint(2), uint(1), uint(1)])]), "a dot of 2 items", 2);
    let over: Vec<Item> = (1..=MAX_OP_SUPERSEDED as u64 + 1).map(|seq| dot(2, seq)).collect();
    cases.too_many("too_many_superseded", &dots(&over), "a list of superseded dots", MAX_OP_SUPERSEDED);
}

fn requests(cases: &mut Cases) {
    let request = |id: u8, ops: &[u64]| list([bytes(&[id; 16]), list(ops.iter().map(|op| uint(*op)))]);
    let requests = |items: &[Item]| Form::with(8, list(items.to_vec()));
    cases.rule("requests_descending", &requests(&[request(2, &[0]), request(1, &[1])]), "RequestOrder");
    cases.rule("request_twice", &requests(&[request(1, &[0]), request(1, &[0])]), "RequestOrder");
    cases.rule("request_op_beyond", &requests(&[request(1, &[0, 3])]), "RequestOps");
    cases.rule("request_ops_descending", &requests(&[request(1, &[1, 0])]), "RequestOps");
    cases.rule("request_op_twice", &requests(&[request(1, &[1, 1])]), "RequestOps");
    cases.rule("request_op_above_u32", &requests(&[request(1, &[1 << 32])]), "RequestOps");
    cases.unexpected("request_id_15_bytes", &requests(&[list([bytes(&[1; 15]), list([])])]), "a request id of 16 bytes");
    cases.too_many("request_id_17_bytes", &requests(&[list([bytes(&[1; 17]), list([])])]), "a request id of 16 bytes", 16);
    cases.unexpected("request_of_one_item", &requests(&[list([bytes(&[1; 16])])]), "a request of 2 items");
    cases.unexpected("requests_missing", &requests(&[]).without(8), "a list of requests");
    let over: Vec<Item> = (0..=MAX_BLOCK_REQUESTS as u128).map(|id| list([bytes(&id.to_be_bytes()), list([uint(0)])])).collect();
    cases.too_many("too_many_requests", &requests(&over), "a list of requests", MAX_BLOCK_REQUESTS);
}

fn signatures(cases: &mut Cases) {
    let by = |signature: &[u8]| Form { signature: Some(bytes(signature)), ..Form::rich() };
    let good = Form::rich().sign(&Form::rich().body());
    cases.unexpected("signature_63_bytes", &by(&good[..63]), "a signature of 64 bytes");
    cases.too_many("signature_65_bytes", &by(&[good.as_slice(), &[0]].concat()), "a signature of 64 bytes", 64);
    cases.unexpected(
        "signature_text",
        &Form { signature: Some(Item::Text(good.to_vec())), ..Form::rich() },
        "a signature of 64 bytes",
    );
    cases.add("signature_zero", &by(&[0; 64]), "Signature");
    for at in [0, 31, 32, 63] {
        let mut flipped = good;
        flipped[at] ^= 1;
        cases.add(format!("signature_flipped_{at}"), &by(&flipped), "Signature");
    }
    for domain in ["kvdb/block/2", "kvdb/block/", "", "kvdb/announce/1"] {
        let form = Form { domain: domain.into(), ..Form::rich() };
        cases.add(format!("signature_domain_{}", domain.replace('/', "_")), &form, "Signature");
    }
    cases.add(
        "signature_of_another_key",
        &Form { signature: Some(bytes(&Form { seed: [8; 32], ..Form::rich() }.sign(&Form::rich().body()))), ..Form::rich() },
        "Signature",
    );
    let with_head = [Form::rich().head, Form::rich().body()].concat();
    cases.add("signature_over_the_head_too", &by(&Form::rich().sign(&with_head)), "Signature");
    let others = [
        (1, bytes(&[9; 32])),
        (4, uint(501)),
        (5, uint(1)),
        (6, list([parent(0, 498), parent(1, 70)])),
        (
            7,
            list([
                op("/a", bytes(b"other"), [dot(0, 30), dot(2, 1)]),
                op("/b", Item::Null, [dot(1, 2)]),
                op("/c", bytes(b""), []),
            ]),
        ),
        (8, list([])),
    ];
    for (field, item) in others {
        let form = Form { signature: Some(bytes(&good)), ..Form::with(field, item) };
        cases.add(format!("signature_over_another_field_{field}"), &form, "Signature");
    }
    for field in 0..9 {
        let body: Vec<u8> = Form::rich().without(field).body();
        cases.add(format!("signature_not_over_field_{field}"), &by(&Form::rich().sign(&body)), "Signature");
    }
}

/// Every field in every longer form, and every list and string with an indefinite length.
fn forms(cases: &mut Cases) {
    let rich = Form::rich();
    for (field, item) in rich.fields.iter().enumerate() {
        let shortest = match item.encode()[0] & 0x1f {
            0..24 => 0,
            24 => 1,
            25 => 2,
            26 => 4,
            _ => 8,
        };
        for width in [1, 2, 4, 8].into_iter().filter(|width| *width > shortest) {
            cases.not_canonical(format!("field_{field}_in_{width}_bytes"), &Form::with(field, item.widened(width)));
        }
        if matches!(item, Item::Array(_) | Item::Bytes(_)) {
            cases.not_canonical(format!("field_{field}_indefinite"), &Form::with(field, item.indefinite()));
        }
    }
    let inner: [(&str, usize, &[usize]); 9] = [
        ("public_key", 2, &[0]),
        ("replica_id", 3, &[0]),
        ("parent", 6, &[0]),
        ("op", 7, &[0]),
        ("key", 7, &[0, 0]),
        ("value", 7, &[0, 1]),
        ("superseded", 7, &[0, 2]),
        ("request", 8, &[0]),
        ("request_ops", 8, &[0, 1]),
    ];
    for (name, field, path) in inner {
        let at = |change: fn(&Item) -> Item| {
            Form::changed(field, |item| {
                let item = path.iter().fold(item, |item, index| &mut item.items()[*index]);
                *item = change(item);
            })
        };
        cases.not_canonical(format!("{name}_wide"), &at(|item| item.widened(2)));
        cases.not_canonical(format!("{name}_indefinite"), &at(Item::indefinite));
    }
    let signature = rich.signature_item();
    cases.not_canonical("signature_wide", &Form { signature: Some(signature.widened(2)), ..rich.clone() });
    cases.not_canonical("signature_indefinite", &Form { signature: Some(signature.indefinite()), ..rich });
}

impl Form {
    fn signature_item(&self) -> Item {
        bytes(&self.sign(&self.body()))
    }

    fn without(mut self, field: usize) -> Self {
        self.fields.remove(field);
        self
    }
}

/// The error's debug form, with the numbers of offsets left out.
fn shown(error: &BlockError) -> String {
    let text = format!("{error:?}");
    let mut parts = text.split(" at: ");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        write!(shown, " at{rest}").unwrap();
    }
    shown
}

#[test]
fn r06_every_forbidden_form_is_refused_with_its_own_error() {
    Block::verify(Form::rich().bytes(), &mut Zip215(rand::rng())).expect("the block that all cases are made from is valid");
    let (mut names, mut kept) = (BTreeSet::new(), String::new());
    for Case { name, bytes, error } in cases() {
        assert!(names.insert(name.clone()), "two cases are called {name}");
        let found = Block::verify(bytes.clone(), &mut Zip215(rand::rng())).expect_err(&name);
        assert_eq!(shown(&found), error, "{name}");
        // What the store would say of these bytes, which it does not verify again.
        if found != BlockError::Signature {
            assert_eq!(Block::from_store(bytes.clone()).as_ref(), Err(&found), "{name}");
        }
        if bytes.len() <= 2_048 {
            writeln!(kept, "# {name}\nerror {found:?}\nbytes {}\n", golden::hex(&bytes)).unwrap();
        }
    }
    golden::keep("bad.txt", &kept);
}

#[test]
fn every_rule_and_every_error_has_a_case() {
    let seen: String = cases().into_iter().map(|case| case.error + "\n").collect();
    let variants = |source: &str, name: &str| -> Vec<String> {
        let start = source.find(&format!("pub enum {name} {{")).unwrap();
        let body = &source[start..start + source[start..].find("\n}").unwrap()];
        let words = body.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with(char::is_uppercase));
        words.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned()).collect()
    };
    let block = include_str!("../src/block.rs");
    // Refused when sealing; a received block cannot have them, since its bytes are refused before.
    let sealing = ["ValueTooLarge", "TooMany", "IntegerTooLarge", "TooLong"];
    for rule in variants(block, "Rule") {
        assert!(seen.contains(&format!("Rule({rule})")) || sealing.contains(&rule.as_str()), "no case for {rule}");
    }
    for error in variants(include_str!("../src/codec/cbor.rs"), "CborError") {
        assert!(seen.contains(&format!("Cbor({error}")), "no case for {error}");
    }
    for error in variants(block, "BlockError") {
        assert!(seen.lines().any(|line| line.starts_with(&error)) || sealing.contains(&error.as_str()), "no case for {error}");
    }
    for error in variants(include_str!("../src/key.rs"), "KeyError") {
        assert!(seen.contains(&format!("source: {error}")) || sealing.contains(&error.as_str()), "no case for {error}");
    }
}
