//! What is taken for a block has one encoding: its fields, encoded again, give its bytes.
#![no_main]

use bytes::Bytes;
use crdt::{Block, Draft, Signer, Zip215};
use libfuzzer_sys::fuzz_target;

/// Signs everything with the signature that the block has.
struct Same([u8; 32], [u8; 64]);

impl Signer for Same {
    fn public_key(&self) -> [u8; 32] {
        self.0
    }
    fn sign(&self, _: &[u8]) -> [u8; 64] {
        self.1
    }
}

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let verified = Block::verify(bytes.clone(), &mut Zip215(rand::rng()));
    let Ok(block) = Block::from_store(bytes) else {
        assert!(verified.is_err(), "verified, but cannot be read from the store");
        return;
    };
    assert_eq!(block.bytes(), data);
    let signature = data[data.len() - 64..].try_into().unwrap();
    let draft = Draft {
        database: block.database(),
        author: block.author(),
        seq: block.dot().seq,
        stamp: block.stamp(),
        parents: block.parents().to_vec(),
        ops: block.ops().to_vec(),
        answers: block.answers().to_vec(),
    };
    let again = Block::seal(draft, &Same(block.author().public_key, signature)).expect("what is read can be sealed");
    assert_eq!(again.bytes(), data, "two encodings of one block");
});
