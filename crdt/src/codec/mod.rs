//! Bytes on the wire and on disk, apart from the types that the rest works with.

pub(crate) mod block;
pub mod cbor;
