//! A gossip message has one encoding.
#![no_main]
#![allow(dead_code, unused_imports, reason = "a part of kvdb")]

mod net;

use bytes::Bytes;
use crdt::Zip215;
use libfuzzer_sys::fuzz_target;
use net::wire::Message;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Message::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(message.encode(), data, "two encodings of {message:?}");
        if let Message::Announce(announce) = message {
            announce.verify(&mut Zip215(rand::rng()));
        }
    }
});
