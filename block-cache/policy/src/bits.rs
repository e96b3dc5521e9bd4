//! Sets of small numbers: a bit each, and above it a bit for each word that has one.

/// A set of numbers below a bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitSet {
    bits: Vec<u64>,
    words: Vec<u64>,
}

impl BitSet {
    /// An empty one for numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        let bits = vec![0; bound.div_ceil(64)];
        let words = vec![0; bits.len().div_ceil(64)];
        Self { bits, words }
    }

    /// Makes room for numbers below `bound`.
    pub(crate) fn grow(&mut self, bound: usize) {
        self.bits.resize(bound.div_ceil(64).max(self.bits.len()), 0);
        self.words
            .resize(self.bits.len().div_ceil(64).max(self.words.len()), 0);
    }

    /// How many of these numbers are there.
    pub(crate) fn count(&self, numbers: std::ops::Range<usize>) -> u32 {
        let mut count = 0;
        let mut at = numbers.start;
        while let Some(found) = self.next(at).filter(|found| *found < numbers.end) {
            // The rest of the word.
            let end = (found / 64 * 64 + 64).min(numbers.end);
            let rest = self.bits[found / 64] & u64::MAX << (found % 64);
            let masked = match end % 64 {
                0 => rest,
                within => rest & !(u64::MAX << within),
            };
            count += masked.count_ones();
            at = end;
        }
        count
    }

    /// Adds a number. Returns whether it was not there.
    ///
    /// # Panics
    /// If it is not below the bound.
    #[inline]
    pub(crate) fn insert(&mut self, number: usize) -> bool {
        let word = &mut self.bits[number / 64];
        let new = *word >> (number % 64) & 1 == 0;
        *word |= 1 << (number % 64);
        self.words[number / 4096] |= 1 << (number / 64 % 64);
        new
    }

    /// Takes a number out.
    ///
    /// # Panics
    /// If it is not below the bound.
    #[inline]
    pub(crate) fn remove(&mut self, number: usize) {
        let word = &mut self.bits[number / 64];
        *word &= !(1 << (number % 64));
        if *word == 0 {
            self.words[number / 4096] &= !(1 << (number / 64 % 64));
        }
    }

    /// The first number from `at` on.
    #[inline]
    pub(crate) fn next(&self, at: usize) -> Option<usize> {
        let first = at / 64;
        let rest = self.bits.get(first)? & u64::MAX << (at % 64);
        if rest != 0 {
            return Some(first * 64 + rest.trailing_zeros() as usize);
        }
        let next = first + 1;
        let mut mask = u64::MAX << (next % 64);
        for (above, words) in self.words.iter().enumerate().skip(next / 64) {
            let words = words & mask;
            if words != 0 {
                let word = above * 64 + words.trailing_zeros() as usize;
                return Some(word * 64 + self.bits[word].trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Bytes of memory that it takes.
    pub(crate) const fn memory_bytes(&self) -> usize {
        (self.bits.len() + self.words.len()) * size_of::<u64>()
    }
}
