//! The running hash over everything that happens: two runs are the same if theirs is.

/// A 128-bit hash, the same on every machine. Not against an adversary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHash(u64, u64);

impl Default for TraceHash {
    fn default() -> Self {
        Self(0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b)
    }
}

impl TraceHash {
    /// Takes in a number.
    pub fn number(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        let (high, low) = (product >> 64, product & u128::from(u64::MAX));
        self.0 = u64::try_from(high ^ low).unwrap_or(0).wrapping_add(0xa076_1d64_78bd_642f);
        self.1 = (self.1 ^ self.0).rotate_left(23).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    }

    /// Takes in bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let number = chunk.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            self.number(number);
        }
    }

    /// A half of it.
    #[must_use]
    pub fn short(&self) -> u64 {
        self.1
    }

    /// The hash as 32 hex digits.
    #[must_use]
    pub fn hex(&self) -> String {
        format!("{:016x}{:016x}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_same_on_every_machine_and_tells_orders_apart() {
        let mut hash = TraceHash::default();
        hash.number(1);
        hash.bytes(b"the same everywhere");
        assert_eq!(hash.hex(), "c9da606c21b365b903807e96e8d5eca4");
        let hash_of = |numbers: [u64; 2]| {
            let mut hash = TraceHash::default();
            for number in numbers {
                hash.number(number);
            }
            hash
        };
        assert_ne!(hash_of([1, 2]), hash_of([2, 1]));
    }
}
