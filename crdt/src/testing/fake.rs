//! Signatures that cost next to nothing, for tests that need many blocks and no secrecy.

use sha2::{Digest as _, Sha256};

use crate::sign::{Signed, Signer, Verifier};

/// "Signs" with a hash of the public key and the message.
#[derive(Debug, Clone, Copy)]
pub struct FakeSigner(pub [u8; 32]);

impl Signer for FakeSigner {
    fn public_key(&self) -> [u8; 32] {
        self.0
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        let hash = Sha256::new().chain_update(self.0).chain_update(message).finalize();
        let mut signature = [0; 64];
        for (at, byte) in signature.iter_mut().zip(hash.iter().cycle()) {
            *at = *byte;
        }
        signature
    }
}

/// Accepts what [`FakeSigner`] signs, nothing else.
#[derive(Debug, Clone, Copy)]
pub struct FakeVerifier;

impl Verifier for FakeVerifier {
    fn verify(&mut self, batch: &[Signed]) -> Vec<bool> {
        batch.iter().map(|signed| FakeSigner(signed.public_key).sign(&signed.message) == signed.signature).collect()
    }
}
