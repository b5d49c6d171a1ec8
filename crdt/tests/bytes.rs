//! Bytes from nowhere: no input makes the decoder panic, waste memory or accept two forms of one block.

use bytes::Bytes;
use crdt::{Block, BlockError, Ed25519Signer, Signed, Signer, Verifier, Zip215};
use quickcheck::QuickCheck;

use crate::golden::resealed;
use crate::raw::{Form, Item, bytes, head, list, op};
use crate::world::Rng;

/// Leaves the rules alone to judge.
struct AnySignature;

impl Verifier for AnySignature {
    fn verify(&mut self, batch: &[Signed]) -> Vec<bool> {
        vec![true; batch.len()]
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let good = Form::rich().bytes();
    for bit in 0..good.len() * 8 {
        let mut flipped = good.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Block::verify(flipped.into(), &mut Zip215(rand::rng())).is_err(), "bit {bit}");
    }
}

#[test]
fn every_cut_is_refused() {
    let good = Form::rich().bytes();
    for len in 0..good.len() {
        assert!(matches!(Block::verify(good.slice(..len), &mut AnySignature), Err(BlockError::Cbor(_))), "{len} bytes");
    }
}

/// What stands in one place of the bytes after a change at random.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(bytes.len());
    let byte = rng.next().to_le_bytes()[0];
    match rng.below(6) {
        0 => bytes[at] = byte,
        1 => bytes[at] ^= 1 << rng.below(8),
        2 => bytes.insert(at, byte),
        3 => drop(bytes.remove(at)),
        4 => bytes[at] = bytes[at].wrapping_add(1),
        _ => {
            let from = rng.below(bytes.len());
            bytes.swap(at, from);
        }
    }
}

#[test]
fn what_is_accepted_has_one_form_only() {
    // Returns how many were accepted, so that the law is not empty.
    fn law(seed: u64) -> usize {
        let mut rng = Rng(seed);
        let mut accepted = 0;
        for _ in 0..50 {
            let mut bytes = Form::rich().bytes().to_vec();
            for _ in 0..=rng.below(3) {
                mutate(&mut bytes, &mut rng);
            }
            let bytes = Bytes::from(bytes);
            if let Ok(block) = Block::verify(bytes.clone(), &mut AnySignature) {
                accepted += 1;
                assert_eq!(resealed(&block), bytes, "two forms of one block");
            }
        }
        accepted
    }
    assert!(law(1) > 0);
    QuickCheck::new().tests(400).quickcheck(
        (|seed| {
            law(seed);
        }) as fn(u64),
    );
}

#[test]
fn bytes_at_random_never_panic() {
    fn law(bytes: Vec<u8>, headed: bool) {
        let bytes = if headed { [vec![0x8a, 1], bytes].concat() } else { bytes };
        assert!(Block::verify(bytes.into(), &mut AnySignature).is_err());
    }
    QuickCheck::new().tests(2_000).quickcheck(law as fn(Vec<u8>, bool));
}

#[test]
fn x07_declared_lengths_reserve_nothing() {
    let good = Form::rich().bytes();
    for major in [2, 3, 4, 5] {
        for len in [16_384, 1 << 20, 1 << 32, 1 << 40, 1 << 62, 1 << 63, u64::MAX] {
            // Up to the signature, in which any bytes may stand.
            for at in 0..good.len() - 66 {
                let bomb = [&good[..at], &head(major, len), &good[at..]].concat();
                assert!(Block::verify(bomb.into(), &mut AnySignature).is_err());
                let bomb = [&good[..at], &head(major, len)].concat();
                assert!(Block::verify(bomb.into(), &mut AnySignature).is_err());
            }
        }
    }
}

#[test]
fn x07_deep_nesting_and_many_empty_items_are_refused() {
    for nested in [0x81, 0xd8, 0x9f, 0xbf, 0x5f, 0xc2] {
        for field in 0..9 {
            let bytes = Form::with(field, Item::Raw(vec![nested; 100_000])).bytes();
            assert!(matches!(Block::verify(bytes, &mut AnySignature), Err(BlockError::Cbor(_))));
        }
    }
    let empty = |field| Form::with(field, list((0..1_000_000).map(|_| list([])))).bytes();
    for field in [3, 6, 7, 8] {
        assert!(Block::verify(empty(field), &mut AnySignature).is_err());
    }
    let dots = Form::lone([op("/a", bytes(b""), (0..1_000_000).map(|_| list([])))]).bytes();
    assert!(Block::verify(dots, &mut AnySignature).is_err());
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The points of small order, canonical and not: 8 points, 14 encodings.
fn small_order() -> Vec<[u8; 32]> {
    let ff = |first: &str, last: &str| format!("{first}{}{last}", "ff".repeat(30));
    let zero = |first: &str, last: &str| format!("{first}{}{last}", "00".repeat(30));
    let eight = [
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03",
    ];
    let mut points = vec![zero("01", "00"), zero("00", "00"), zero("00", "80"), zero("01", "80")];
    for first in ["ec", "ed", "ee"] {
        points.extend([ff(first, "7f"), ff(first, "ff")]);
    }
    points.extend([format!("{}05", eight[0]), format!("{}85", eight[0]), format!("{}7a", eight[1]), format!("{}fa", eight[1])]);
    points.iter().map(|text| hex(text).try_into().unwrap()).collect()
}

/// Signatures with the verdict that ZIP-215 gives them.
fn vectors() -> Vec<(String, bool, Signed)> {
    let mut vectors = Vec::new();
    for line in include_str!("golden/zip215.txt").lines().filter(|line| !line.starts_with('#')) {
        let [verdict, name, key, signature, message] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (public_key, signature) = (hex(key).try_into().unwrap(), hex(signature).try_into().unwrap());
        vectors.push((name.to_owned(), verdict == "good", Signed { public_key, signature, message: hex(message) }));
    }
    assert_eq!(small_order().len(), 14);
    for key in small_order() {
        for r in small_order() {
            let mut signature = [0; 64];
            signature[..32].copy_from_slice(&r);
            let signed = Signed { public_key: key, signature, message: b"any message at all".to_vec() };
            vectors.push(("small order".to_owned(), true, signed));
        }
    }
    vectors
}

fn honest(number: u8) -> Signed {
    let signer = Ed25519Signer::from_seed([number; 32]);
    let message = vec![number; 40];
    Signed { public_key: signer.public_key(), signature: signer.sign(&message), message }
}

#[test]
fn zip_215_gives_each_signature_its_verdict_alone() {
    for (name, good, signed) in vectors() {
        assert_eq!(Zip215(rand::rng()).verify(std::slice::from_ref(&signed)), [good], "{name}: {signed:02x?}");
    }
    assert!(Zip215(rand::rng()).verify(&[]).is_empty());
}

#[test]
fn zip_215_gives_each_signature_the_same_verdict_in_a_batch() {
    let vectors = vectors();
    let bad = Signed { message: b"other".to_vec(), ..honest(1) };
    for (name, good, signed) in &vectors {
        let with_good = [honest(1), signed.clone(), honest(2)];
        assert_eq!(Zip215(rand::rng()).verify(&with_good), [true, *good, true], "{name}");
        let with_bad = [signed.clone(), bad.clone(), honest(2), signed.clone()];
        assert_eq!(Zip215(rand::rng()).verify(&with_bad), [*good, false, true, *good], "{name}");
    }
    // All at once; the good ones without a single bad one, which is the batch equation's own verdict.
    let all: Vec<Signed> = vectors.iter().map(|(_, _, signed)| signed.clone()).collect();
    let verdicts: Vec<bool> = vectors.iter().map(|(_, good, _)| *good).collect();
    assert_eq!(Zip215(rand::rng()).verify(&all), verdicts);
    let good: Vec<Signed> = vectors.into_iter().filter(|(_, good, _)| *good).map(|(_, _, signed)| signed).collect();
    for _ in 0..20 {
        assert!(Zip215(rand::rng()).verify(&good).iter().all(|verdict| *verdict));
    }
}

#[test]
fn blocks_of_small_order_authors_are_valid_alone_and_in_a_batch() {
    let mut blocks = Vec::new();
    for (key, r) in small_order().into_iter().zip(small_order().into_iter().rev()) {
        let mut form = Form::lone([op("/k", bytes(b"x"), [])]);
        form.fields[2] = list([bytes(&key), Item::Uint(1)]);
        form.signature = Some(bytes(&[r, [0; 32]].concat()));
        blocks.push(form.bytes());
    }
    let alone: Vec<_> = blocks.iter().map(|bytes| Block::verify(bytes.clone(), &mut Zip215(rand::rng()))).collect();
    assert!(alone.iter().all(Result::is_ok));
    assert_eq!(Block::verify_all(blocks.clone(), &mut Zip215(rand::rng())), alone);
    // With a malformed and a wrongly signed one among them every verdict stays with its block.
    blocks.insert(0, Bytes::from_static(b"no block"));
    blocks.insert(3, Form { domain: b"other".to_vec(), ..Form::rich() }.bytes());
    blocks.push(Form::rich().bytes());
    let together = Block::verify_all(blocks.clone(), &mut Zip215(rand::rng()));
    for (bytes, verdict) in blocks.iter().zip(&together) {
        assert_eq!(*verdict, Block::verify(bytes.clone(), &mut Zip215(rand::rng())));
    }
    assert_eq!(together.iter().filter(|verdict| verdict.is_err()).count(), 2);
}
