//! Random numbers that are the same for a seed on every machine and in every version.

/// A generator (xoshiro256++).
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: [u64; 4],
}

impl Random {
    /// Returns the generator for `seed`.
    pub(super) fn new(seed: u64) -> Self {
        let mut counter = seed;
        let state = std::array::from_fn(|_| {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = counter;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        });
        Self { state }
    }

    /// Returns 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let bits = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        bits
    }

    /// Returns a number from 0 to below 1, at equal distances.
    pub(super) fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1_u64 << 53) as f64;
        (self.bits() >> 11) as f64 / STEPS
    }

    /// Returns a number below `bound`. All are equally likely to within one part in 2^64 / bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(bound);
        (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_it_all() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.bits(), random.bits(), random.bits()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // The trace of a seed never changes.
        assert_eq!(draw(0)[0], 0x53175d61490b23df);
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut random = Random::new(7);
        let mut counts = [0_u32; 10];
        let mut sum = 0.0;
        for _ in 0..100_000 {
            counts[usize::try_from(random.below(10)).unwrap()] += 1;
            sum += random.unit();
        }
        for count in counts {
            assert!((9_500..10_500).contains(&count), "{counts:?}");
        }
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005, "{sum}");
    }
}
