//! Whatever is written, sent, doubled, reordered, lost or restarted: equal sets give equal states, those of a naive fold.
#![no_main]
#![allow(dead_code, unused_imports, reason = "the nodes of crdt's own tests")]

#[path = "../../crdt/tests/walk.rs"]
mod walk;
#[path = "../../crdt/tests/world.rs"]
mod world;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| walk::walk(data));
