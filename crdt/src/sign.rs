//! Signatures: Ed25519, verified by the rules of ZIP-215, under which single and batch verdicts agree.

use ed25519_zebra::{Signature, SigningKey, VerificationKeyBytes, batch};

pub use rand_core::CryptoRng;

/// What signs this node's blocks.
pub trait Signer {
    /// The ed25519 public key.
    fn public_key(&self) -> [u8; 32];
    /// Signs the message.
    fn sign(&self, message: &[u8]) -> [u8; 64];
}

/// A message with the signature that it claims to have.
#[derive(Debug, Clone)]
pub struct Signed {
    /// The claimed author's public key.
    pub public_key: [u8; 32],
    /// The claimed signature.
    pub signature: [u8; 64],
    /// The signed message.
    pub message: Vec<u8>,
}

/// What verifies others' blocks.
pub trait Verifier {
    /// One verdict for each member, the same as if it stood alone.
    fn verify(&mut self, batch: &[Signed]) -> Vec<bool>;
}

/// An ed25519 key in memory.
#[derive(Clone)]
pub struct Ed25519Signer(SigningKey);

impl Ed25519Signer {
    /// The key made from a 32-byte seed.
    #[must_use]
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(SigningKey::from(seed))
    }
}

impl std::fmt::Debug for Ed25519Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ed25519Signer(..)")
    }
}

impl Signer for Ed25519Signer {
    fn public_key(&self) -> [u8; 32] {
        VerificationKeyBytes::from(&self.0).into()
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

/// Verifies by ZIP-215, in batches; the generator supplies the random factors of the batch equation.
#[derive(Debug)]
pub struct Zip215<R>(pub R);

impl<R: CryptoRng> Verifier for Zip215<R> {
    fn verify(&mut self, batch: &[Signed]) -> Vec<bool> {
        let items: Vec<batch::Item> = batch.iter().map(item).collect();
        if items.len() > 1 {
            let mut whole = batch::Verifier::new();
            for item in &items {
                whole.queue(item.clone());
            }
            if whole.verify(&mut self.0).is_ok() {
                return vec![true; batch.len()];
            }
        }
        // One bad member fails the whole batch: judge each alone.
        items.into_iter().map(|item| item.verify_single().is_ok()).collect()
    }
}

fn item(signed: &Signed) -> batch::Item {
    let key = VerificationKeyBytes::from(signed.public_key);
    (key, Signature::from_bytes(&signed.signature), &signed.message).into()
}
