//! What members of a fleet say to each other has one encoding.
#![no_main]
#![allow(dead_code, unused_imports, reason = "a part of hoarder")]

// hoarder has peer ids from kvdb, which is not built here.
extern crate self as kvdb;
pub use libp2p_identity::PeerId;

#[path = "../../hoarder/src/limits.rs"]
mod limits;
#[path = "../../hoarder/src/wire/mod.rs"]
mod wire;

use bytes::Bytes;
use crdt::Zip215;
use libfuzzer_sys::fuzz_target;
use wire::{Answer, Beat, Frame, Operation, frame_len};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub [u8; 16]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub [u8; 16]);

/// As in hoarder, where they stand beside what is no wire.
mod barrier {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Durability {
        Require(u8),
        Prefer(u8),
        Local,
    }

    impl Durability {
        pub(crate) fn numbers(self) -> (u64, u64) {
            match self {
                Self::Require(k) => (0, u64::from(k)),
                Self::Prefer(k) => (1, u64::from(k)),
                Self::Local => (2, 0),
            }
        }

        pub(crate) fn from_numbers(mode: u64, k: u64) -> Option<Self> {
            let k = u8::try_from(k).ok()?;
            match mode {
                0 | 1 if !(1..=crate::limits::MAX_HOLDERS).contains(&k) => None,
                0 => Some(Self::Require(k)),
                1 => Some(Self::Prefer(k)),
                2 if k == 0 => Some(Self::Local),
                _ => None,
            }
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum UnconfirmedReason {
        Deadline,
        Dropped,
        Views,
    }
}

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Some(head) = data.first_chunk::<4>() {
        let _ = frame_len(*head);
    }
    if let Ok(frame) = Frame::decode(bytes.clone()) {
        assert_eq!(frame.encode(), data, "two encodings of {frame:?}");
    }
    if let Ok(beat) = Beat::decode(bytes.clone()) {
        assert_eq!(beat.encode(), data, "two encodings of {beat:?}");
        beat.verify(&mut Zip215(rand::rng()));
    }
    if let Ok(operation) = Operation::decode(bytes.clone()) {
        assert_eq!(operation.encode(), data, "two encodings of {operation:?}");
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(answer.encode(), data, "two encodings of {answer:?}");
    }
});
