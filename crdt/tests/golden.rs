//! Golden bytes: what the format looks like, kept as files so that it cannot change unseen.
//!
//! `GOLDEN_WRITE=1 cargo test -p crdt` writes the files anew; the diff is then to be read with care.

use std::fmt::Write as _;
use std::path::PathBuf;

use bytes::Bytes;
use crdt::limits::{
    MAX_BLOCK_BYTES, MAX_BLOCK_OPS, MAX_BLOCK_PARENTS, MAX_BLOCK_REQUESTS, MAX_KEY_BYTES, MAX_OP_SUPERSEDED, MAX_UINT,
    MAX_VALUE_BYTES,
};
use crdt::{
    Answer, Author, Block, BlockError, BlockHash, Change, Dot, Draft, Ed25519Signer, Expiry, Op, Parent, ReplicaId, RequestId,
    Rule, Signer, Stamp, Zip215,
};

use crate::raw::Form;
use crate::world::{database, key};

fn path(name: &str) -> PathBuf {
    crate::package().join("tests/golden").join(name)
}

/// Compares with the kept file, line by line.
pub fn keep(name: &str, content: &str) {
    let path = path(name);
    if std::env::var_os("GOLDEN_WRITE").is_some() {
        std::fs::write(&path, content).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (number, (kept, now)) in (1..).zip(kept.lines().zip(content.lines())) {
        assert_eq!(kept, now, "{name}:{number}: the format has changed");
    }
    assert_eq!(kept.len(), content.len(), "{name}: the format has changed");
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn signer() -> Ed25519Signer {
    Ed25519Signer::from_seed([7; 32])
}

fn put(at: &str, value: impl Into<Bytes>, superseded: Vec<Dot>) -> Op {
    Op { key: key(at), change: Change::Put { value: value.into(), expiry: None }, superseded }
}

fn foreign(number: u8, seq: u64) -> Dot {
    Dot { replica: ReplicaId([number; 16]), seq }
}

fn parent(dot: Dot) -> Parent {
    Parent { dot, hash: BlockHash([0xcc; 32]) }
}

fn draft(seq: u64, parents: Vec<Parent>, ops: Vec<Op>) -> Draft {
    let author = Author { public_key: signer().public_key(), nonce: 1_000 };
    Draft { database: database(), author, seq, stamp: Stamp(1 << 40), parents, ops, answers: Vec::new() }
}

fn own(seq: u64) -> Dot {
    Dot { replica: draft(1, vec![], vec![]).author.replica(&database()), seq }
}

/// Valid blocks, small enough to be kept.
fn good() -> Vec<(&'static str, Draft)> {
    let tombstone = |at: &str, superseded| Op { key: key(at), change: Change::Tombstone, superseded };
    let change = |ms| Change::Put { value: Bytes::from_static(b"v"), expiry: Expiry::at_unix_ms(ms) };
    let expiring = |at: &str, ms| Op { key: key(at), change: change(ms), superseded: vec![] };
    let answer = |id, ops| Answer { request: RequestId([id; 16]), ops };
    let two = || vec![put("/a", "1", vec![]), put("/b", "2", vec![])];
    vec![
        ("put", draft(1, vec![], vec![put("/k", "value", vec![])])),
        ("empty_value", draft(1, vec![], vec![put("/k", "", vec![])])),
        ("tombstone", draft(2, vec![parent(own(1))], vec![tombstone("/k", vec![own(1)])])),
        ("expiry", draft(1, vec![], vec![expiring("/k", 1), expiring("/l", 1_800_000_000_000), expiring("/m", MAX_UINT)])),
        (
            "several_replicas",
            draft(
                300,
                vec![parent(foreign(9, 256)), parent(own(299)), parent(foreign(1, 65_536))],
                vec![
                    put("/k", "v", vec![foreign(9, 24), foreign(1, 23), own(3), own(299), foreign(5, MAX_UINT)]),
                    tombstone("/a", vec![foreign(200, 1)]),
                ],
            ),
        ),
        ("unicode_key", draft(1, vec![], vec![put("/é/\u{10ffff}/a b%2F", "v", vec![]), put("/a..b/...", "", vec![])])),
        (
            "requests",
            Draft { answers: vec![answer(9, vec![0, 1]), answer(2, vec![1]), answer(5, vec![])], ..draft(1, vec![], two()) },
        ),
        (
            "greatest_numbers",
            Draft {
                author: Author { public_key: signer().public_key(), nonce: MAX_UINT },
                stamp: Stamp(MAX_UINT),
                ..draft(MAX_UINT, vec![], vec![put("/k", "v", vec![])])
            },
        ),
        ("stamp_zero", Draft { stamp: Stamp(0), ..draft(1, vec![], vec![put("/k", "v", vec![])]) }),
        ("longest_key", draft(1, vec![], vec![put(&format!("/{}", "k".repeat(MAX_KEY_BYTES - 1)), "v", vec![])])),
        (
            "most_parents",
            draft(
                2,
                (0..MAX_BLOCK_PARENTS)
                    .map(|at| parent(if at == 0 { own(1) } else { foreign(u8::try_from(at).unwrap(), 1) }))
                    .collect(),
                two(),
            ),
        ),
    ]
}

fn described(block: &Block) -> String {
    let mut text = String::new();
    writeln!(text, "cid {}\ndot {}\nstamp {}", block.hash().cid(), block.dot(), block.stamp().0).unwrap();
    writeln!(text, "database {}\nnonce {}", block.database(), block.author().nonce).unwrap();
    block.parents().iter().for_each(|parent| writeln!(text, "parent {} {}", parent.dot, parent.hash.cid()).unwrap());
    for op in block.ops() {
        let change = match &op.change {
            Change::Put { value, expiry } => format!("{} {}", value.escape_ascii(), expiry.map_or(0, Expiry::unix_ms)),
            Change::Tombstone => "-".to_owned(),
        };
        writeln!(text, "op {} {change} {:?}", op.key, op.superseded).unwrap();
    }
    block.answers().iter().for_each(|answer| writeln!(text, "request {:02x?} {:?}", answer.request.0, answer.ops).unwrap());
    text
}

#[test]
fn good_blocks_have_the_bytes_and_fields_on_file() {
    let mut kept = String::new();
    let mut add = |name: &str, block: &Block| {
        writeln!(kept, "# {name}\n{}bytes {}\n", described(block), hex(block.bytes())).unwrap();
    };
    for (name, draft) in good() {
        let sealed = Block::seal(draft, &signer()).expect(name);
        let received = Block::verify(sealed.bytes().clone(), &mut Zip215(rand::rng())).expect(name);
        assert_eq!(received, sealed, "{name}");
        assert_eq!(received.hash(), sealed.hash());
        add(name, &received);
    }
    // The block by hand has what the encoder would have written.
    let rich = Block::verify(Form::rich().bytes(), &mut Zip215(rand::rng())).unwrap();
    assert_eq!(resealed(&rich), *rich.bytes());
    assert_eq!(rich.dot(), Dot { replica: Form::rich().replica(), seq: 500 });
    add("rich", &rich);
    keep("good.txt", &kept);
}

/// A signer that always gives the same answer.
struct Replay([u8; 32], [u8; 64]);

impl Signer for Replay {
    fn public_key(&self) -> [u8; 32] {
        self.0
    }
    fn sign(&self, _: &[u8]) -> [u8; 64] {
        self.1
    }
}

pub fn fields(block: &Block) -> Draft {
    Draft {
        database: block.database(),
        author: block.author(),
        seq: block.dot().seq,
        stamp: block.stamp(),
        parents: block.parents().to_vec(),
        ops: block.ops().to_vec(),
        answers: block.answers().to_vec(),
    }
}

/// The bytes of a block made again from its fields, with the same signature.
pub fn resealed(block: &Block) -> Bytes {
    let signature = block.bytes()[block.bytes().len() - 64..].try_into().unwrap();
    Block::seal(fields(block), &Replay(block.author().public_key, signature)).unwrap().bytes().clone()
}

#[test]
fn blocks_at_every_limit_are_valid() {
    let many = |count: usize| (0..count).map(|index| put(&format!("/{index:05}"), "x", vec![])).collect::<Vec<_>>();
    let dots = |count: u64| (1..=count).map(|seq| foreign(1, seq)).collect::<Vec<_>>();
    let answers =
        |count: usize| (0..count as u128).map(|id| Answer { request: RequestId(id.to_be_bytes()), ops: vec![0] }).collect();
    let cases = [
        draft(1, vec![], many(MAX_BLOCK_OPS)),
        draft(1, vec![], vec![put("/k", vec![7; MAX_VALUE_BYTES], vec![])]),
        draft(1, vec![], vec![put("/k", "x", dots(MAX_OP_SUPERSEDED as u64))]),
        Draft { answers: answers(MAX_BLOCK_REQUESTS), ..draft(1, vec![], many(1)) },
    ];
    for draft in cases {
        let block = Block::seal(draft, &signer()).unwrap();
        let received = Block::verify(block.bytes().clone(), &mut Zip215(rand::rng())).unwrap();
        assert_eq!(received, block);
        assert_eq!(resealed(&received), *block.bytes());
    }
    let sized = |last: usize| {
        let mut ops: Vec<Op> = (0..3).map(|index| put(&format!("/{index}"), vec![1; MAX_VALUE_BYTES], vec![])).collect();
        ops.push(put("/last", vec![1; last], vec![]));
        Block::seal(draft(1, vec![], ops), &signer())
    };
    let rest = MAX_BLOCK_BYTES - sized(100_000).unwrap().bytes().len() + 100_000;
    let largest = sized(rest).unwrap();
    assert_eq!(largest.bytes().len(), MAX_BLOCK_BYTES);
    assert!(Block::verify(largest.bytes().clone(), &mut Zip215(rand::rng())).is_ok());
    assert_eq!(sized(rest + 1), Err(BlockError::TooLarge { bytes: MAX_BLOCK_BYTES + 1 }));
}

#[test]
fn drafts_beyond_a_limit_or_rule_are_not_sealed() {
    let one = || vec![put("/k", "x", vec![])];
    let refused = |draft: Draft| Block::seal(draft, &signer()).unwrap_err();
    let too_many = |what, limit: usize| BlockError::TooMany { what, len: limit + 1, limit };
    let parents = (0..=MAX_BLOCK_PARENTS).map(|number| parent(foreign(u8::try_from(number).unwrap(), 1))).collect();
    assert_eq!(refused(draft(1, parents, one())), too_many("parents", MAX_BLOCK_PARENTS));
    let ops = (0..=MAX_BLOCK_OPS).map(|index| put(&format!("/{index}"), "x", vec![])).collect();
    assert_eq!(refused(draft(1, vec![], ops)), too_many("ops", MAX_BLOCK_OPS));
    let dots = (1..=MAX_OP_SUPERSEDED as u64 + 1).map(|seq| foreign(1, seq)).collect();
    let error = refused(draft(1, vec![], vec![put("/k", "x", dots)]));
    assert_eq!(error, too_many("superseded dots", MAX_OP_SUPERSEDED));
    assert!(error.to_string().contains("4097") && error.to_string().contains("4096"), "{error}");
    let answers = (0..=MAX_BLOCK_REQUESTS as u128).map(|id| Answer { request: RequestId(id.to_be_bytes()), ops: vec![] });
    let error = refused(Draft { answers: answers.collect(), ..draft(1, vec![], one()) });
    assert_eq!(error, too_many("requests", MAX_BLOCK_REQUESTS));
    let error = refused(draft(1, vec![], vec![put("/k", vec![0; MAX_VALUE_BYTES + 1], vec![])]));
    assert_eq!(error, BlockError::ValueTooLarge { op: 0, bytes: MAX_VALUE_BYTES + 1 });
    let tombstone = Op { key: key("/k"), change: Change::Tombstone, superseded: vec![] };
    let twice = vec![Answer { request: RequestId([1; 16]), ops: vec![] }; 2];
    let beyond = vec![Answer { request: RequestId([1; 16]), ops: vec![1] }];
    let rules = [
        (Rule::NoOps, draft(1, vec![], vec![])),
        (Rule::SeqZero, draft(0, vec![], one())),
        (Rule::SeqZero, draft(1, vec![parent(foreign(1, 0))], one())),
        (Rule::OwnSeqNotSmaller, draft(1, vec![parent(own(1))], one())),
        (Rule::ParentOrder, draft(1, vec![parent(foreign(1, 1)), parent(foreign(1, 2))], one())),
        (Rule::OpOrder, draft(1, vec![], [one(), one()].concat())),
        (Rule::SupersededOrder, draft(1, vec![], vec![put("/k", "x", vec![foreign(1, 1); 2])])),
        (Rule::EmptyTombstone, draft(1, vec![], vec![tombstone])),
        (Rule::RequestOrder, Draft { answers: twice, ..draft(1, vec![], one()) }),
        (Rule::RequestOps, Draft { answers: beyond, ..draft(1, vec![], one()) }),
        (Rule::IntegerTooLarge, draft(MAX_UINT + 1, vec![], one())),
        (Rule::IntegerTooLarge, Draft { stamp: Stamp(MAX_UINT + 1), ..draft(1, vec![], one()) }),
        (
            Rule::IntegerTooLarge,
            Draft { author: Author { nonce: u64::MAX, ..draft(1, vec![], one()).author }, ..draft(1, vec![], one()) },
        ),
        (Rule::IntegerTooLarge, draft(1, vec![parent(foreign(1, MAX_UINT + 1))], one())),
        (Rule::IntegerTooLarge, draft(1, vec![], vec![put("/k", "x", vec![foreign(1, u64::MAX)])])),
    ];
    for (rule, draft) in rules {
        assert_eq!(refused(draft), BlockError::Rule(rule));
    }
}
