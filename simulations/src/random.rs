//! Random numbers: `SplitMix64` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014). The same on
//! every machine and in every release, since a seed must mean the same run.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        // Neighbouring seeds begin far apart.
        random.next();
        random
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: it never ends and is drawn from in many ways")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A stream of its own, so that what one part draws does not change what another gets.
    pub fn split(&mut self) -> Self {
        Self::new(self.next())
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a product: without a division, and as good as even for ends far below 2^64.
        u64::try_from((u128::from(self.next()) * u128::from(end)) >> 64).unwrap_or(0)
    }

    /// An index below `end`.
    pub fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True so many times in a million.
    pub fn millionths(&mut self, millionths: u32) -> bool {
        self.below(1_000_000) < u64::from(millionths)
    }

    /// One of a list.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.index(list.len()))
    }

    /// A waiting time: exponentially distributed around `mean`, at most sixteen times as long.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        // -ln(u) by halving: a whole number of half-lives and a part of one, in integers, since floats may differ.
        let draw = self.next();
        let half_lives = u64::from(draw.leading_zeros().min(23));
        let part = (draw << (draw.leading_zeros() + 1).min(63)) >> 32;
        // Within one half-life the density is nearly even.
        let units = (half_lives << 32) + (0xffff_ffff - part.min(0xffff_ffff));
        u64::try_from((u128::from(units) * u128::from(mean) * 693) / (1_000_u128 << 32)).unwrap_or(u64::MAX)
    }

    /// A 16-byte id.
    pub fn id(&mut self) -> [u8; 16] {
        let mut id = [0; 16];
        let (left, right) = id.split_at_mut(8);
        left.copy_from_slice(&self.next().to_be_bytes());
        right.copy_from_slice(&self.next().to_be_bytes());
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(drawn, [0x61c9_4329_3fff_298c, 0xa09a_6880_3af1_5238, 0x5822_728e_748c_3216]);
        let mut again = Random::new(7);
        assert_eq!(drawn, (0..3).map(|_| again.next()).collect::<Vec<_>>());
        assert_ne!(drawn, (0..3).map(|_| Random::new(8).next()).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_keep_to_their_bounds_and_waits_to_their_mean() {
        let mut random = Random::new(1);
        assert!((0..1_000).all(|_| random.below(10) < 10));
        assert!((0..1_000).all(|_| (3..=5).contains(&random.between(3, 5))));
        assert_eq!((random.below(0), random.index(0)), (0, 0));
        let sum: u64 = (0..100_000).map(|_| random.exponential(1_000)).sum();
        assert!((900..1_100).contains(&(sum / 100_000)), "{}", sum / 100_000);
    }
}
