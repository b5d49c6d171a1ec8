use quickcheck::quickcheck;

use super::super::{Announce, ChunkName, EndReason, Message, Part, RangeFrame, RangeRefusal, Resume, Span};
use super::*;
use crate::net::limits::{MAX_FRAME_ENTRIES, MAX_GOSSIP_MESSAGE_BYTES};

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn entry(replica: u8, seq: u64, floor: u64) -> HaveEntry {
    HaveEntry { replica: ReplicaId([replica; 16]), seq, floor }
}

fn key(text: &str) -> crdt::Key {
    crdt::Key::parse(text).unwrap()
}

fn frames() -> Vec<Frame> {
    let database = DatabaseId([0xdb; 32]);
    let id = crdt::SnapshotId { boot: 1_000, view: 5 };
    let entries = vec![(ReplicaId([1; 16]), 1), (ReplicaId([2; 16]), 300)];
    let summary = Summary { vv_hash: [0xaa; 32], count: 2, heads_hash: [0xbb; 32], digest: Digest(0x0102_0304) };
    vec![
        Frame::Hello(Hello { version: 1, features: 0, max_frame_bytes: 4_259_840, credit_bytes: 262_144 }),
        Frame::Open(database),
        Frame::Close(database),
        Frame::Have { database, kind: HaveKind::Question, summary },
        Frame::HaveList { database, entries: vec![entry(1, 1, 0), entry(2, 300, 299)], last: true },
        Frame::Blocks { database, blocks: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")] },
        Frame::Ack { database, consumed: 70_000, durable: entries },
        Frame::Dropped(database),
        Frame::Error { code: ErrorCode::Protocol, text: "no".into() },
        Frame::Snapshot(database, SnapshotFrame::Want(None)),
        Frame::Snapshot(database, SnapshotFrame::Want(Some(Resume { id, index: 2, at: Bytes::from_static(b"at") }))),
        Frame::Snapshot(database, SnapshotFrame::Head { index: 0, head: Bytes::from_static(b"head") }),
        Frame::Snapshot(
            database,
            SnapshotFrame::Chunk {
                name: ChunkName { id, index: 3, next: Bytes::from_static(b"next") },
                hash: [0xcc; 32],
                bytes: Bytes::from_static(b"chunk"),
            },
        ),
        Frame::Snapshot(database, SnapshotFrame::Taken { id, index: 4 }),
        Frame::Snapshot(database, SnapshotFrame::End { id, reason: EndReason::Busy }),
        Frame::Ranges(database, RangeFrame::Ask { number: 7, span: Span { after: None, through: Some(key("/z")) } }),
        Frame::Ranges(
            database,
            RangeFrame::Parts {
                number: 7,
                vv_hash: [0xaa; 32],
                parts: vec![Part { through: key("/a"), keys: 300, digest: Digest(0x0102_0304) }],
                through: Some(key("/b")),
            },
        ),
        Frame::Ranges(database, RangeFrame::Refused { number: 7, reason: RangeRefusal::Unable }),
    ]
}

#[test]
fn golden_frames() {
    let db = "db".repeat(32);
    let db = format!("5820{db}");
    let list = format!("8450{}0150{}19012c", "01".repeat(16), "02".repeat(16));
    let expected = [
        "8500010 01a004100001a00040000".replace(' ', ""),
        format!("8201{db}"),
        format!("8202{db}"),
        format!("8703{db}005820{}025820{}50{}01020304", "aa".repeat(32), "bb".repeat(32), "00".repeat(12)),
        format!("8404{db}8650{}010050{}19012c19012b01", "01".repeat(16), "02".repeat(16)),
        format!("8305{db}82436f6e654374776f"),
        format!("8406{db}1a00011170{list}"),
        format!("8207{db}"),
        "830802426e6f".to_owned(),
        format!("8210{db}"),
        format!("8610{db}1903e80502426174"),
        format!("8411{db}004468656164"),
        format!("8812{db}1903e80503446e6578745820{}456368756e6b", "cc".repeat(32)),
        format!("8513{db}1903e80504"),
        format!("8514{db}1903e80502"),
        format!("8515{db}0760622f7a"),
        format!("8616{db}075820{}83622f6119012c50{}01020304622f62", "aa".repeat(32), "00".repeat(12)),
        format!("8417{db}0701"),
    ];
    for (frame, expected) in frames().into_iter().zip(expected) {
        let body = frame.encode();
        assert_eq!(hex(&body), expected, "{frame:?}");
        assert_eq!(Frame::decode(body), Ok(frame));
    }
}

#[test]
fn golden_announce_and_block() {
    let announce = Announce {
        database: DatabaseId([0xdb; 32]),
        publisher: [7; 32],
        boot: 5,
        counter: 1000,
        heads_hash: [0xbb; 32],
        vv_hash: [0xaa; 32],
        digest: Digest(1),
        signature: [9; 64],
    };
    let message = Message::Announce(Box::new(announce));
    let expected = format!(
        "89015820{}5820{}051903e85820{}5820{}50{}015840{}",
        "db".repeat(32),
        "07".repeat(32),
        "bb".repeat(32),
        "aa".repeat(32),
        "00".repeat(15),
        "09".repeat(64)
    );
    assert_eq!(hex(&message.encode()), expected);
    assert_eq!(Message::decode(message.encode()), Ok(message));
    let block = Message::Block(Bytes::from_static(b"xy"));
    assert_eq!(hex(&block.encode()), "8200427879");
    assert_eq!(Message::decode(block.encode()), Ok(block));
    let large = Bytes::from(vec![0; MAX_GOSSIP_MESSAGE_BYTES + 1]);
    assert!(matches!(Message::decode(large), Err(WireError::MessageTooLarge { .. })));
}

#[test]
fn r29_lengths_out_of_range_are_refused_in_the_header() {
    for bad in [0, u32::try_from(MAX_FRAME_BYTES).unwrap() + 1, u32::from_be_bytes((-1_i32).to_be_bytes()), u32::MAX] {
        assert_eq!(frame_len(bad.to_be_bytes()), Err(WireError::FrameLength { bytes: u64::from(bad) }));
    }
    assert_eq!(frame_len(u32::try_from(MAX_FRAME_BYTES).unwrap().to_be_bytes()), Ok(MAX_FRAME_BYTES));
}

#[test]
fn r29_cut_extended_and_lying_bodies_are_refused() {
    for frame in frames() {
        let body = frame.encode();
        for cut in 0..body.len() {
            assert!(Frame::decode(body.slice(..cut)).is_err(), "{frame:?} cut at {cut}");
        }
        let mut longer = body.to_vec();
        longer.push(0);
        assert!(Frame::decode(longer.into()).is_err(), "{frame:?} with a byte more");
    }
    let db = "db".repeat(32);
    for (what, bad) in [
        ("unknown kind", "8118".to_owned()),
        ("a snapshot's end without a known reason", format!("85145820{db}010109")),
        ("a wish with half a place", format!("8410{db}0101").replace(&db, &format!("5820{db}"))),
        ("2^62 blocks", format!("83055820{db}9b4000000000000000")),
        ("a block of 2^62 bytes", format!("83055820{db}815b4000000000000000")),
        ("no blocks", format!("83055820{db}80")),
        ("a negative kind", format!("82205820{db}")),
        ("an indefinite list", format!("9f015820{db}ff")),
        ("entries out of order", format!("84045820{db}8650{}010050{}010001", "02".repeat(16), "01".repeat(16))),
        ("a seq of 0", format!("84045820{db}8350{}000001", "02".repeat(16))),
        ("a floor above its seq", format!("84045820{db}8350{}010201", "02".repeat(16))),
        ("an entry without its floor", format!("84045820{db}8250{}0101", "02".repeat(16))),
        ("acknowledged entries out of order", format!("84065820{db}008450{}0150{}01", "02".repeat(16), "01".repeat(16))),
        ("a flag of 2", format!("84045820{db}8002")),
        ("an empty list", "80".to_owned()),
    ] {
        let bytes: Vec<u8> = (0..bad.len() / 2).map(|i| u8::from_str_radix(&bad[2 * i..2 * i + 2], 16).unwrap()).collect();
        assert!(Frame::decode(bytes.into()).is_err(), "{what}");
    }
}

#[test]
fn entries_have_a_limit() {
    let entries = |len: u64| {
        (0..len).map(|i| HaveEntry { replica: ReplicaId(u128::from(i).to_be_bytes()), seq: 1, floor: 1 }).collect::<Vec<_>>()
    };
    let list = |len: usize| {
        let entries = entries(len as u64);
        Frame::decode(Frame::HaveList { database: DatabaseId([0; 32]), entries, last: true }.encode())
    };
    assert!(list(MAX_FRAME_ENTRIES).is_ok());
    assert!(list(MAX_FRAME_ENTRIES + 1).is_err());
}

#[test]
fn a_hello_of_another_version_is_read_as_far_as_the_version() {
    let bytes = Bytes::from_static(&[0x84, 0x00, 0x02, 0x61, 0x78, 0xf6]);
    assert!(matches!(Frame::decode(bytes), Ok(Frame::Hello(Hello { version: 2, .. }))));
}

quickcheck! {
    fn no_bytes_make_the_decoders_panic(bytes: Vec<u8>) -> bool {
        let _ = Frame::decode(bytes.clone().into());
        let _ = Message::decode(bytes.into());
        true
    }

    fn a_flipped_byte_never_panics_and_reencodes_to_itself(which: usize, at: usize, xor: u8) -> bool {
        let frames = frames();
        let mut body = frames[which % frames.len()].encode().to_vec();
        let at = at % body.len();
        body[at] ^= xor;
        match Frame::decode(body.clone().into()) {
            // Another version's hello and the text of an error are read leniently.
            Ok(Frame::Hello(Hello { version, .. })) if version != PROTOCOL_VERSION => true,
            Ok(Frame::Error { .. }) | Err(_) => true,
            Ok(frame) => frame.encode() == body,
        }
    }
}

/// What fuzzing has kept, tried again by every run.
fn corpus(target: &str) -> Vec<Bytes> {
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let files = std::fs::read_dir(std::path::Path::new(&package).join("../fuzz/corpus").join(target)).unwrap();
    let files: Vec<Bytes> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap().into()).collect();
    assert!(files.len() > 3, "the corpus of {target} is empty");
    files
}

#[test]
fn frames_and_messages_from_fuzzing_have_one_encoding() {
    let frames = corpus("frame").into_iter().filter(|bytes| {
        Frame::decode(bytes.clone()).is_ok_and(|frame| {
            // Last words are read as well as may be, and of a hello of another version nothing more.
            let loose = match &frame {
                Frame::Error { .. } => true,
                Frame::Hello(hello) => hello.version != PROTOCOL_VERSION,
                _ => false,
            };
            assert!(frame.encode() == *bytes || loose, "{frame:?}");
            !loose
        })
    });
    assert!(frames.count() > 0, "not one frame");
    let messages = corpus("message").into_iter().filter(|bytes| {
        Message::decode(bytes.clone()).is_ok_and(|message| {
            assert_eq!(message.encode(), bytes, "{message:?}");
            true
        })
    });
    assert!(messages.count() > 0, "not one message");
}
