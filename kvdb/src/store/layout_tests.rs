//! Golden bytes: what is on disk today must be readable tomorrow, and damage must be told from it.

use std::fmt::Write as _;

use bytes::Bytes;
use crdt::{
    Author, BlockHash, Check, Digest, Dot, Expiry, Head, Key, LogEntry, Meta, Projection, ReplicaId, RequestId, RequestRecord,
    Row, Sibling, Stamp, VvEntry,
};

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn dot(seq: u64) -> Dot {
    Dot { replica: ReplicaId([0xaa; 16]), seq }
}

fn sibling(seq: u64, len: u32, value: Option<&'static [u8]>) -> Sibling {
    let expiry = Expiry::at_unix_ms(seq * 0x10);
    let value = value.map(Bytes::from_static);
    Sibling { dot: dot(seq), stamp: Stamp(0x0102), expiry, len, check: Check(0xcc), value }
}

fn key() -> Key {
    Key::parse("/a/b").unwrap()
}

const REPLICA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const CHECK: &str = "000000000000000000000000000000cc";
const HASH: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn head() -> Head {
    Head { hash: BlockHash([0xbb; 32]), stamp: Stamp(9) }
}

/// Every proper beginning of a record, and the record with a byte more, must be refused.
fn lengths_are_checked<T: std::fmt::Debug>(record: &[u8], read: impl Fn(&[u8]) -> Result<T, Malformed>) {
    for len in 0..record.len() {
        assert!(read(&record[..len]).is_err(), "{len} of {} bytes", record.len());
    }
    assert!(read(&[record, &[0]].concat()).is_err());
    version_is_checked(record, read);
}

fn version_is_checked<T: std::fmt::Debug>(record: &[u8], read: impl Fn(&[u8]) -> Result<T, Malformed>) {
    assert!(read(record).is_ok());
    let mut newer = record.to_vec();
    newer[0] = 2;
    assert_eq!(read(&newer).unwrap_err(), Malformed("its version is not known"));
}

#[test]
fn rows() {
    let mut writer = Writer::default();
    assert_eq!(hex(writer.row_key(7, &key()).bytes()), "000000072f612f62");
    assert_eq!(read_row_key(writer.bytes()), Ok(key()));
    let row = Row::new(vec![sibling(2, 3, Some(b"xyz")), sibling(1, 513, None), sibling(0, 0, Some(b""))]);
    let record = writer.row(&row).bytes().to_vec();
    let expected = [
        "01",
        &format!("00{REPLICA}0000000000000002000000000000010200000000000000200000 0003{CHECK}78797a"),
        &format!("01{REPLICA}0000000000000001000000000000010200000000000000100000 0201{CHECK}"),
        &format!("00{REPLICA}0000000000000000000000000000010200000000000000000000 0000{CHECK}"),
    ];
    assert_eq!(hex(&record), expected.concat().replace(' ', ""));
    assert_eq!(read_row(&record, Projection::Rows), Ok(row.clone()));
    let bare = read_row(&record, Projection::Keys).unwrap();
    assert!(bare.siblings().iter().all(|sibling| sibling.value.is_none()));
    assert_eq!(bare.dots().collect::<Vec<_>>(), row.dots().collect::<Vec<_>>());
}

#[test]
fn damaged_rows() {
    let mut writer = Writer::default();
    let record = writer.row(&Row::new(vec![sibling(2, 3, Some(b"xyz"))])).bytes().to_vec();
    let read = |bytes: &[u8]| read_row(bytes, Projection::Rows);
    lengths_are_checked(&record, read);
    let with = |at: usize, byte| {
        let mut record = record.clone();
        record[at] = byte;
        read(&record).unwrap_err().0
    };
    assert_eq!(with(1, 2), "a value's place is not known");
    assert_eq!(with(34, 0xff), "an expiry is out of range");
    assert_eq!(with(42, 0xff), "it is too short");
    assert_eq!(read(&[RECORD_VERSION]), Err(Malformed("the row is empty")));
    for bad in [&b""[..], b"\0\0\0", b"\0\0\0\x01", b"\0\0\0\x01a", b"\0\0\0\x01/a/", b"\0\0\0\x01/\xff"] {
        assert!(read_row_key(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn values() {
    let mut writer = Writer::default();
    let expected = format!("0000000700042f612f62{REPLICA}0000000000000005");
    assert_eq!(hex(writer.value_key(7, &key(), &dot(5)).bytes()), expected);
    assert_eq!(hex(writer.value(b"xyz").bytes()), "0178797a");
    assert_eq!(read_value(writer.bytes()), Ok(Bytes::from_static(b"xyz")));
    version_is_checked(b"\x01xyz", read_value);
    assert!(read_value(b"").is_err());
    assert!(!is_apart(512) && is_apart(513));
}

#[test]
fn blocks_and_log() {
    let mut writer = Writer::default();
    assert_eq!(hex(writer.block_key(7, &dot(5)).bytes()), format!("00000007{REPLICA}0000000000000005"));
    writer.block_record(3, &BlockHash([0xbb; 32]), b"block");
    assert_eq!(hex(writer.bytes()), format!("010000000000000003{HASH}626c6f636b"));
    let block = read_block(writer.bytes()).unwrap();
    assert_eq!((block.revision, block.hash, block.bytes), (3, BlockHash([0xbb; 32]), &b"block"[..]));
    let short = &writer.bytes()[..40];
    assert!(read_block(short).is_err());
    version_is_checked(writer.bytes(), |bytes| read_block(bytes).map(|block| block.revision));

    let log_key = writer.log_key(7, 3).bytes().to_vec();
    assert_eq!(hex(&log_key), "000000070000000000000003");
    let record = writer.log(&dot(5), 0x0a0b).bytes().to_vec();
    assert_eq!(hex(&record), format!("01{REPLICA}000000000000000500000a0b"));
    assert_eq!(read_log(&log_key, &record), Ok(LogEntry { revision: 3, dot: dot(5), bytes: 0x0a0b }));
    lengths_are_checked(&record, |bytes| read_log(&log_key, bytes));
    assert!(read_log(&log_key[1..], &record).is_err());
}

#[test]
fn state() {
    let mut writer = Writer::default();
    let meta = Meta { clock: Stamp(1), digest: Digest(2), revision: 3, keys: 4, log_floor: 5, history_bytes: 6, requests: 7 };
    let entry = VvEntry { seq: 5, author: Author { public_key: [0xbb; 32], nonce: 6 } };
    let heads = vec![(dot(5), head()), (dot(6), head())];
    let packed = format!("{REPLICA}0000000000000005{HASH}0000000000000009{REPLICA}0000000000000006{HASH}0000000000000009");
    let single = format!("{HASH}0000000000000009");
    let vv = format!("0000000000000005{HASH}0000000000000006");
    let figures =
        "0000000000000001000000000000000000000000000000020000000000000003 0000000000000004 0000000000000005 0000000000000006 0000000000000007"
            .replace(' ', "");
    let cases = [
        (
            writer.meta_key(7).bytes().to_vec(),
            writer.meta(&meta).bytes().to_vec(),
            "01".to_owned(),
            figures,
            StateRecord::Meta(meta),
        ),
        (
            writer.heads_key(7).bytes().to_vec(),
            writer.heads(&heads).bytes().to_vec(),
            "02".to_owned(),
            packed,
            StateRecord::Heads(heads),
        ),
        (
            writer.head_key(7, &dot(5)).bytes().to_vec(),
            writer.single_head(&head()).bytes().to_vec(),
            format!("03{REPLICA}0000000000000005"),
            single,
            StateRecord::Head(dot(5), head()),
        ),
        (
            writer.vv_key(7, &dot(5).replica).bytes().to_vec(),
            writer.vv(&entry).bytes().to_vec(),
            format!("04{REPLICA}"),
            vv,
            StateRecord::Vv(dot(5).replica, entry),
        ),
        (
            writer.floor_key(7, &dot(5).replica).bytes().to_vec(),
            writer.floor(8).bytes().to_vec(),
            format!("05{REPLICA}"),
            "0000000000000008".to_owned(),
            StateRecord::Floor(dot(5).replica, 8),
        ),
    ];
    for (key, record, golden_key, golden, expected) in cases {
        assert_eq!((hex(&key), hex(&record)), (format!("00000007{golden_key}"), format!("01{golden}")));
        assert_eq!(read_state(&key, &record), Ok(expected));
        version_is_checked(&record, |bytes| read_state(&key, bytes));
        assert!(read_state(&key, &record[..record.len() - 1]).is_err());
        assert!(read_state(&key, &[&record[..], &[0]].concat()).is_err());
        assert!(read_state(&[&key[..], &[0]].concat(), &record).is_err());
    }
    assert_eq!(read_state(&[0, 0, 0, 7, 9], &[RECORD_VERSION]), Err(Malformed("its tag is not known")));
    assert!(read_state(&[0, 0, 0, 7], &[RECORD_VERSION]).is_err());
}

#[test]
fn what_goes_with_time() {
    let mut writer = Writer::default();
    let age = writer.age_key(7, Stamp(9), &RequestId([0xdd; 16])).bytes().to_vec();
    assert_eq!(hex(&age), format!("000000070000000000000009{}", "dd".repeat(16)));
    assert_eq!(read_age(&age, &[RECORD_VERSION]), Ok((Stamp(9), RequestId([0xdd; 16]))));
    let key = Key::parse("/a/b").unwrap();
    let expiry = writer.expiry_key(7, Expiry::at_unix_ms(258).unwrap(), &key).bytes().to_vec();
    assert_eq!(hex(&expiry), "0000000700000000000001022f612f62");
    assert_eq!(read_expiry(&expiry, &[RECORD_VERSION]), Ok((Expiry::at_unix_ms(258).unwrap(), key)));
    for cut in 0..age.len() {
        assert!(read_age(&age[..cut], &[RECORD_VERSION]).is_err());
    }
    for cut in 0..13 {
        assert!(read_expiry(&expiry[..cut], &[RECORD_VERSION]).is_err());
    }
    assert!(read_age(&[&age[..], &[0]].concat(), &[RECORD_VERSION]).is_err());
    assert!(read_expiry(&[&expiry[..], b"/"].concat(), &[RECORD_VERSION]).is_err());
    for record in [&[][..], &[2], &[RECORD_VERSION, 0]] {
        assert!(read_age(&age, record).is_err() && read_expiry(&expiry, record).is_err());
    }
}

#[test]
fn requests() {
    let mut writer = Writer::default();
    assert_eq!(hex(writer.request_key(7, &RequestId([0xdd; 16])).bytes()), format!("00000007{}", "dd".repeat(16)));
    let record = RequestRecord { dot: dot(5), ops: vec![1, 2], stamp: Stamp(9) };
    let bytes = writer.request(&record).bytes().to_vec();
    assert_eq!(hex(&bytes), format!("01{REPLICA}000000000000000500000000000000090000000100000002"));
    assert_eq!(read_request(&bytes), Ok(record));
    version_is_checked(&bytes, read_request);
    assert!(read_request(&bytes[..bytes.len() - 1]).is_err());
    assert!(read_request(&bytes[..30]).is_err());
}

#[test]
fn a_databases_range_ends_before_the_next_number() {
    assert_eq!(number_range(0xff), vec![0, 0, 0, 0xff]..vec![0, 0, 1, 0]);
}

/// What fuzzing has kept, tried again by every run: a record or an error, never a panic.
#[test]
fn records_from_fuzzing_are_records_or_errors() {
    let package = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let mut read = 0;
    for file in std::fs::read_dir(std::path::Path::new(&package).join("../fuzz/corpus/record")).unwrap() {
        let data = std::fs::read(file.unwrap().path()).unwrap();
        let (key, record) = data.split_at(data.first().map_or(0, |len| usize::from(*len).min(data.len())));
        let oks = [
            read_row_key(&data).is_ok(),
            read_row(&data, Projection::Rows).is_ok_and(|row| !row.is_empty()),
            read_value(&data).is_ok(),
            read_block(&data).is_ok(),
            read_log(key, record).is_ok(),
            read_state(key, record).is_ok(),
            read_request(&data).is_ok(),
        ];
        read += oks.iter().filter(|ok| **ok).count();
    }
    assert!(read > 0, "not one record");
}
