//! Estimates how often keys were used recently, in eight to sixteen bytes for each slot.

use forebay_policy::BlockKey;

const ROWS: usize = 4;
const MAX_COUNT: u64 = 15;
/// Number of increments for each slot after which all counters are halved.
const SAMPLE: usize = 10;
/// Clears the bit that a shift moved from one counter into the one below.
const WITHOUT_TOP_BITS: u64 = 0x7777_7777_7777_7777;

/// Four rows of 32 four-bit counters.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([[u64; 2]; ROWS]);

impl Line {
    /// Returns a key's counter in each row.
    fn counts(&self, hash: u64) -> [u64; ROWS] {
        std::array::from_fn(|row| {
            let (word, shift) = place(hash, row);
            (self.0[row][word] >> shift) & MAX_COUNT
        })
    }
}

/// Returns word and shift of a key's counter in a row.
const fn place(hash: u64, row: usize) -> (usize, u32) {
    let five_bits = (hash >> (5 * row)) as u32 & 31;
    ((five_bits >> 4) as usize, (five_bits & 15) * 4)
}

/// A count-min sketch with minimal increment and aging. From G. Einziger, R. Friedman and B. Manes,
/// "TinyLFU: A Highly Efficient Cache Admission Policy", TOS 2017, section 3. A key's four counters
/// are in one cache line of the processor.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    lines: Vec<Line>,
    increments: usize,
    sample: usize,
}

impl Sketch {
    pub(super) fn new(slots: usize) -> Self {
        // 16 counters for each slot, 128 in a line.
        let lines = slots.div_ceil(8).next_power_of_two();
        Self {
            lines: vec![Line([[0; 2]; ROWS]); lines],
            increments: 0,
            sample: SAMPLE * slots.max(1),
        }
    }

    /// Returns the key's line.
    fn line(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.lines.len() - 1)
    }

    /// Returns how often the key was used recently, at most 15; overestimates rather than
    /// underestimates.
    pub(super) fn estimate(&self, key: BlockKey) -> u64 {
        let hash = key.hash();
        let counts = self.lines[self.line(hash)].counts(hash);
        counts.into_iter().fold(MAX_COUNT, u64::min)
    }

    /// Adds a use.
    pub(super) fn increment(&mut self, key: BlockKey) {
        let hash = key.hash();
        let at = self.line(hash);
        let line = &mut self.lines[at];
        let counts = line.counts(hash);
        let least = counts.into_iter().fold(MAX_COUNT, u64::min);
        if least == MAX_COUNT {
            return;
        }
        for (row, count) in counts.into_iter().enumerate() {
            let (word, shift) = place(hash, row);
            line.0[row][word] += u64::from(count == least) << shift;
        }
        self.increments += 1;
        if self.increments >= self.sample {
            self.age();
        }
    }

    fn age(&mut self) {
        for word in self
            .lines
            .iter_mut()
            .flat_map(|line| line.0.as_flattened_mut())
        {
            *word = *word >> 1 & WITHOUT_TOP_BITS;
        }
        self.increments /= 2;
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_too_low_and_seldom_too_high() {
        let mut sketch = Sketch::new(1000);
        let key = |n| BlockKey::new(1, n);
        for n in 0..500 {
            for _ in 0..=n % 8 {
                sketch.increment(key(n));
            }
        }
        let wrong = (0..500).filter(|&n| {
            let estimate = sketch.estimate(key(n));
            assert!(estimate > n % 8, "key {n} was used {} times", n % 8 + 1);
            estimate != n % 8 + 1
        });
        assert!(wrong.count() < 50);
    }

    #[test]
    fn ages_by_half_after_ten_uses_a_slot() {
        let mut sketch = Sketch::new(2);
        let key = BlockKey::new(0, 1);
        for _ in 0..13 {
            sketch.increment(key);
        }
        assert_eq!(sketch.estimate(key), 13);
        let other = (2..)
            .map(|n| BlockKey::new(0, n))
            .find(|&other| sketch.estimate(other) == 0)
            .expect("most keys share no counter with this one");
        for _ in 0..7 {
            sketch.increment(other);
        }
        assert_eq!((sketch.estimate(key), sketch.estimate(other)), (6, 3));
        assert_eq!(sketch.increments, 10);
        for _ in 0..9 {
            sketch.increment(key);
        }
        assert_eq!(sketch.estimate(key), MAX_COUNT, "and there it stays");
        sketch.increment(key);
        assert_eq!(sketch.estimate(key), MAX_COUNT);
    }
}
