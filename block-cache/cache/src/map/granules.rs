//! State of the granules of blocks.

use forebay_policy::Slot;

/// State of each granule of all blocks, by slot, two bits each. The four states: empty; clean and
/// not requested by a client since the block was placed; clean and requested; dirty, which implies
/// requested.
///
/// A block has two maps, one behind the other. The first has the requested granules, dirty ones
/// among them. The second has the dirty granules and the clean granules that were not requested.
#[derive(Debug)]
pub(crate) struct Granules {
    bytes: Vec<u8>,
    /// Granules of a unit.
    unit: usize,
}

impl Granules {
    pub(crate) fn new(units: u32, granules: u32) -> Self {
        let (units, unit) = (units as usize, granules as usize);
        Self {
            bytes: vec![0; (units * unit * 2).div_ceil(8)],
            unit,
        }
    }

    /// The `count` bits of one map; a power of two, and aligned to that.
    #[inline]
    fn bits(&self, at: usize, count: usize) -> u64 {
        if count <= 8 {
            let mask = u64::MAX >> (64 - count);
            return u64::from(self.bytes[at / 8] >> (at % 8)) & mask;
        }
        let mut wide = [0; 8];
        wide[..count / 8].copy_from_slice(&self.bytes[at / 8..(at + count) / 8]);
        u64::from_le_bytes(wide)
    }

    fn set_bits(&mut self, at: usize, count: usize, bits: u64) {
        debug_assert!(count == 64 || bits >> count == 0);
        let bytes = bits.to_le_bytes();
        if count < 8 {
            let mask = !(u8::MAX >> (8 - count) << (at % 8));
            let byte = &mut self.bytes[at / 8];
            *byte = *byte & mask | bytes[0] << (at % 8);
        } else {
            self.bytes[at / 8..(at + count) / 8].copy_from_slice(&bytes[..count / 8]);
        }
    }

    /// The two maps of a block of so many granules.
    #[inline(always)]
    fn both(&self, slot: Slot, granules: u32) -> (u64, u64) {
        if granules == 8 {
            let at = slot.index() * self.unit / 8 * 2;
            let maps = &self.bytes[at..at + 2];
            return (u64::from(maps[0]), u64::from(maps[1]));
        }
        let (at, count) = (slot.index() * self.unit * 2, granules as usize);
        (self.bits(at, count), self.bits(at + count, count))
    }

    #[inline(always)]
    fn set_both(&mut self, slot: Slot, granules: u32, maps: (u64, u64)) {
        let (at, count) = (slot.index() * self.unit * 2, granules as usize);
        self.set_bits(at, count, maps.0);
        self.set_bits(at + count, count, maps.1);
    }

    /// Valid and dirty of a block of so many granules.
    #[inline(always)]
    pub(crate) fn get(&self, slot: Slot, granules: u32) -> (u64, u64) {
        let (first, second) = self.both(slot, granules);
        (first | second, first & second)
    }

    /// Notes requests of valid granules, and ignores others. Returns those that had been requested
    /// before.
    #[inline(always)]
    pub(crate) fn ask(&mut self, slot: Slot, granules: u32, asked: u64) -> u64 {
        let (first, second) = self.both(slot, granules);
        let new = asked & second & !first;
        if new != 0 {
            self.set_both(slot, granules, (first | new, second & !new));
        }
        first & asked
    }

    /// Sets which granules are valid and which are dirty. Granules that turn dirty count as
    /// requested. Granules that turn valid otherwise count as not requested.
    pub(crate) fn set(&mut self, slot: Slot, granules: u32, valid: u64, dirty: u64) {
        debug_assert_eq!(dirty & !valid, 0, "dirty granules are valid");
        let asked = self.both(slot, granules).0 & valid | dirty;
        self.set_both(slot, granules, (asked, dirty | valid & !asked));
    }

    /// Bytes of memory.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = u64::MAX;

    #[test]
    fn maps_of_blocks_of_all_sizes_lie_beside_each_other() {
        for unit in [1, 2, 4, 8] {
            // Blocks of 1, 2, 4, ... units, one behind the other in slots that are aligned to
            // them.
            let mut granules = Granules::new(128, unit);
            let block = |class: u32| (Slot::new(1 << class), unit << class);
            let blocks: Vec<(Slot, u32)> = (0..6).map(block).collect();
            for (nth, &(slot, count)) in blocks.iter().enumerate() {
                let all = ALL >> (64 - count.min(64));
                let dirty = 0x5aa5_1234_9669_f00f >> nth & all;
                granules.set(slot, count.min(64), all, dirty);
                assert_eq!(granules.ask(slot, count.min(64), 1), dirty & 1);
            }
            for (nth, &(slot, count)) in blocks.iter().enumerate() {
                let all = ALL >> (64 - count.min(64));
                let dirty = 0x5aa5_1234_9669_f00f >> nth & all;
                assert_eq!(granules.get(slot, count.min(64)), (all, dirty));
                assert_eq!(granules.ask(slot, count.min(64), 1), 1, "{unit} {count}");
                granules.set(slot, count.min(64), 0, 0);
            }
            assert!(
                granules.bytes.iter().all(|byte| *byte == 0),
                "nothing is left"
            );
        }
    }

    #[test]
    fn granules_count_as_requested_until_they_turn_invalid() {
        let (mut granules, slot) = (Granules::new(16, 8), Slot::new(3));
        granules.set(slot, 8, 0xff, 0);
        assert_eq!(granules.ask(slot, 8, 0b0110), 0, "it came along");
        assert_eq!(granules.ask(slot, 8, 0b1000), 0);
        assert_eq!(granules.ask(slot, 8, 0b11100), 0b01100);
        assert_eq!(granules.get(slot, 8), (0xff, 0), "nothing else changes");
        // Of what is not there nothing is noted.
        granules.set(slot, 8, 0xf0, 0);
        assert_eq!(granules.ask(slot, 8, 0xf), 0);
        granules.set(slot, 8, 0xff, 0);
        assert_eq!(granules.ask(slot, 8, 0xf), 0);
    }

    #[test]
    fn dirty_granules_count_as_requested_after_they_turn_clean() {
        let (mut granules, slot) = (Granules::new(16, 8), Slot::new(0));
        granules.set(slot, 8, 0xff, 0x0f);
        granules.set(slot, 8, 0xff, 0);
        assert_eq!(granules.get(slot, 8), (0xff, 0));
        assert_eq!(
            (granules.ask(slot, 8, 1), granules.ask(slot, 8, 0x10)),
            (1, 0)
        );
    }
}
