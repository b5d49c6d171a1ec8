//! What the tests of the machines share.

use kvdb::PeerId;

/// A member's key from a number; its peer id follows from it.
pub(crate) fn key(number: u8) -> [u8; 32] {
    crdt::Signer::public_key(&crdt::Ed25519Signer::from_seed([number; 32]))
}

pub(crate) fn member(number: u8) -> PeerId {
    kvdb::net::gossip::peer_of(&key(number)).unwrap()
}
