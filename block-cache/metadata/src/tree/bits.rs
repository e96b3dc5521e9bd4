//! An array of bits.

/// One bit for each node of a tree, rounded up to words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// An array of which all bits are clear.
    #[must_use]
    pub fn new(bits: u32) -> Self {
        Self(vec![0; bits.div_ceil(64) as usize])
    }

    /// Whether a bit is set.
    ///
    /// # Panics
    /// If there is no such bit. So do the other functions that take one.
    #[must_use]
    pub fn get(&self, at: u32) -> bool {
        self.0[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    /// Sets a bit.
    pub fn set(&mut self, at: u32) {
        self.0[(at / 64) as usize] |= 1 << (at % 64);
    }

    /// Clears a bit.
    pub fn clear(&mut self, at: u32) {
        self.0[(at / 64) as usize] &= !(1 << (at % 64));
    }

    /// Sets or clears a bit.
    pub fn put(&mut self, at: u32, value: bool) {
        if value { self.set(at) } else { self.clear(at) }
    }

    pub(super) fn clear_all(&mut self) {
        self.0.fill(0);
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }

    /// Bytes of memory that the bits take.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }

    /// The bits that are set, from the first on.
    pub fn ones(&self) -> impl Iterator<Item = u32> + '_ {
        self.0
            .iter()
            .enumerate()
            .flat_map(|(word, bits)| ones(*bits).map(move |bit| word as u32 * 64 + bit))
    }
}

/// The bits that are set in a word.
pub(super) fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_are_the_set_bits() {
        let mut bits = Bits::new(200);
        let set = [0, 1, 63, 64, 130, 199];
        set.iter().for_each(|&at| bits.set(at));
        assert_eq!(bits.ones().collect::<Vec<_>>(), set);
        bits.clear(63);
        bits.put(1, false);
        bits.put(2, true);
        assert_eq!(bits.ones().collect::<Vec<_>>(), [0, 2, 64, 130, 199]);
        bits.clear_all();
        assert_eq!(bits.ones().count(), 0);
    }
}
