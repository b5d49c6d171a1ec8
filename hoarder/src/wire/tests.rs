use crdt::Ed25519Signer;
use crdt::testing::{FakeSigner, FakeVerifier};

use super::*;
use crate::testing::{key, member};

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn frames() -> Vec<Frame> {
    let database = DatabaseId([0xdb; 32]);
    let vv: VersionVector = [(ReplicaId([1; 16]), 1), (ReplicaId([2; 16]), 300)].into_iter().collect();
    let (one, two) = (member(1), member(2));
    let mut live = vec![one, two];
    live.sort();
    let epoch = Epoch([0xee; 16]);
    let store = StoreId([0x55; 16]);
    let report = Report { store, was_ready: true, ready: false, holders: 2, creator: Some(one), vv: vv.clone() };
    vec![
        Frame::Probe { id: 1 },
        Frame::Alive { id: 1, member: one, boot: 7 },
        Frame::ProbeFor { id: 2, target: two },
        Frame::Lookup { id: 3, epoch },
        Frame::View { id: 3, epoch, live },
        Frame::State { id: 4, database },
        Frame::StateIs { id: 4, database, report: None },
        Frame::StateIs { id: 4, database, report: Some(report) },
        Frame::Cover(Cover { attempt: 9, database, purpose: Purpose::HandOver, vv: vv.clone() }),
        Frame::Cover(Cover { attempt: 9, database, purpose: Purpose::Confirm, vv }),
        Frame::Covered(CoverAnswer { attempt: 9, database, verdict: Verdict::Leaving, epoch, decider: None }),
        Frame::Fallen { database, store },
        Frame::Call { call: 5, epoch, deadline_ms: 3_000, request: [3; 16], database, body: Bytes::from_static(b"op") },
        Frame::Reply { call: 5, code: Code::StaleView, body: Bytes::new() },
        Frame::Beat(Bytes::from_static(b"b")),
    ]
}

#[test]
fn golden_frames() {
    let db = format!("5820{}", "db".repeat(32));
    let peer = |number| format!("5826{}", hex(&member(number).to_bytes()));
    let epoch = format!("50{}", "ee".repeat(16));
    let store = format!("50{}", "55".repeat(16));
    let vv = format!("8450{}0150{}19012c", "01".repeat(16), "02".repeat(16));
    let mut live = [member(1), member(2)].map(|peer| format!("5826{}", hex(&peer.to_bytes())));
    live.sort();
    let expected = [
        "820001".to_owned(),
        format!("840101{}07", peer(1)),
        format!("830202{}", peer(2)),
        format!("830303{epoch}"),
        format!("840403{epoch}82{}", live.concat()),
        format!("830504{db}"),
        format!("830604{db}"),
        format!("890604{db}{store}010002{}{vv}", peer(1)),
        format!("850709{db}00{vv}"),
        format!("850709{db}01{vv}"),
        format!("860809{db}02{epoch}40"),
        format!("8309{db}{store}"),
        format!("870a05{epoch}190bb850{}{db}426f70", "03".repeat(16)),
        "840b050740".to_owned(),
        "820c4162".to_owned(),
    ];
    assert_eq!(frames().len(), expected.len());
    for (frame, expected) in frames().into_iter().zip(expected) {
        let body = frame.encode();
        assert_eq!(hex(&body), expected, "{frame:?}");
        assert_eq!(Frame::decode(body), Ok(frame));
    }
}

#[test]
fn golden_beat_and_its_signature() {
    let beat = Beat {
        member: [0; 32],
        boot: 5,
        counter: 6,
        capacity: 100,
        draining: true,
        leaving: false,
        view: Epoch([0xee; 16]),
        clock_ms: 1_000,
        signature: [0; 64],
    };
    let beat = beat.signed(&FakeSigner([7; 32]));
    let signature = hex(&beat.signature);
    let text = format!("8a005820{}050618640100 50{}1903e85840{signature}", "07".repeat(32), "ee".repeat(16)).replace(' ', "");
    assert_eq!(hex(&beat.encode()), text);
    assert_eq!(Beat::decode(beat.encode()), Ok(beat.clone()));
    assert!(beat.verify(&mut FakeVerifier));
    for forged in [
        Beat { counter: 7, ..beat.clone() },
        Beat { boot: 6, ..beat.clone() },
        Beat { leaving: true, ..beat.clone() },
        Beat { member: key(2), ..beat.clone() },
    ] {
        assert!(!forged.verify(&mut FakeVerifier), "{forged:?}");
    }
    let real = beat.signed(&Ed25519Signer::from_seed([1; 32]));
    assert_eq!(real.member, key(1));
}

#[test]
fn r29_every_cut_and_every_byte_more_is_refused_and_no_length_beyond_the_limit_is_believed() {
    for frame in frames() {
        let body = frame.encode();
        for end in 0..body.len() {
            assert!(Frame::decode(body.slice(..end)).is_err(), "{frame:?} cut at {end}");
        }
        let longer: Bytes = [body.as_ref(), &[0]].concat().into();
        assert!(Frame::decode(longer).is_err());
    }
    assert_eq!(frame_len([0; 4]), Err(WireError::FrameLength { bytes: 0 }));
    assert_eq!(frame_len([0xff; 4]), Err(WireError::FrameLength { bytes: u64::from(u32::MAX) }));
    let most = u32::try_from(MAX_FRAME_BYTES).unwrap();
    assert_eq!(frame_len(most.to_be_bytes()), Ok(MAX_FRAME_BYTES));
    assert!(frame_len((most + 1).to_be_bytes()).is_err());
    assert!(header(&[]).is_err());
}

#[test]
fn flipped_bits_never_panic_and_what_is_read_is_written_the_same() {
    for frame in frames() {
        let body = frame.encode();
        for at in 0..body.len() {
            for bit in 0..8 {
                let mut bytes = body.to_vec();
                bytes[at] ^= 1 << bit;
                if let Ok(read) = Frame::decode(bytes.clone().into()) {
                    assert_eq!(read.encode(), bytes);
                }
            }
        }
    }
}

#[test]
fn only_three_codes_are_retried() {
    let retried = [Code::NotReady, Code::StaleView, Code::Broken];
    for (code, _) in [
        (Code::Done, 0),
        (Code::Unconfirmed, 1),
        (Code::Absent, 2),
        (Code::NoDatabase, 3),
        (Code::Refused, 4),
        (Code::NotEnoughHolders, 5),
    ] {
        assert!(!code.is_retried());
    }
    assert!(retried.iter().all(|code| code.is_retried()));
}

#[test]
fn operations_and_answers_have_golden_bytes() {
    use crate::barrier::{Durability, UnconfirmedReason};
    let payload = Bytes::from_static(b"p");
    let write =
        |durability| Operation::Write { durability, conditional: true, attempt: false, stale: true, payload: payload.clone() };
    let operations = [
        (Operation::Read { stale: true, confirmed: false, payload: payload.clone() }, "840001004170"),
        (write(None), "8701030001000 14170"),
        (write(Some(Durability::Prefer(3))), "8701010301000 14170"),
    ];
    for (operation, expected) in operations {
        assert_eq!(hex(&operation.encode()), expected.replace(' ', ""), "{operation:?}");
        assert_eq!(Operation::decode(operation.encode()), Ok(operation));
    }
    let one = member(1);
    let peer = format!("5826{}", hex(&one.to_bytes()));
    let dot = Some(crdt::Dot { replica: ReplicaId([4; 16]), seq: 9 });
    let full = Answer { served_by: one, stale: true, dot, holders: vec![one], reason: Some(UnconfirmedReason::Views), payload };
    assert_eq!(hex(&full.encode()), format!("8800{peer}0150{}0981{peer}034170", "04".repeat(16)));
    for answer in [full, Answer::plain(one, Bytes::new())] {
        assert_eq!(Answer::decode(answer.encode()), Ok(answer));
    }
}

/// Odd and good inputs that are kept, tried again by every run.
#[test]
fn inputs_that_are_kept_have_one_encoding() {
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let mut read = 0;
    for file in std::fs::read_dir(std::path::Path::new(&package).join("../fuzz/corpus/fleet")).unwrap() {
        let bytes: Bytes = std::fs::read(file.unwrap().path()).unwrap().into();
        for again in [
            Frame::decode(bytes.clone()).ok().map(|frame| frame.encode()),
            Beat::decode(bytes.clone()).ok().map(|beat| beat.encode()),
            Operation::decode(bytes.clone()).ok().map(|operation| operation.encode()),
            Answer::decode(bytes.clone()).ok().map(|answer| answer.encode()),
        ] {
            assert!(again.as_ref().is_none_or(|again| *again == bytes), "{bytes:?}");
            read += usize::from(again.is_some());
        }
    }
    assert!(read > 3, "nothing of it can be read");
}
