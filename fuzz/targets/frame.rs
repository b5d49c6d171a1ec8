//! A sync frame has one encoding.
#![no_main]
#![allow(dead_code, unused_imports, reason = "a part of kvdb")]

mod net;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use net::wire::{Frame, PROTOCOL_VERSION, frame_len, header};

fuzz_target!(|data: &[u8]| {
    if let Some(head) = data.first_chunk::<4>()
        && let Ok(len) = frame_len(*head)
    {
        assert_eq!(u32::from_be_bytes(*head) as usize, len);
    }
    if let Ok(frame) = Frame::decode(Bytes::copy_from_slice(data)) {
        // Last words are read as well as may be, and of a hello of another version nothing more.
        match &frame {
            Frame::Error { .. } => return,
            Frame::Hello(hello) if hello.version != PROTOCOL_VERSION => return,
            _ => {}
        }
        let again = frame.encode();
        assert_eq!(again, data, "two encodings of {frame:?}");
        assert_eq!(frame_len(header(&again).unwrap()).unwrap(), data.len());
    }
});
