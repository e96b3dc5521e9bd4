//! What is known of the granules of blocks.

/// The maps of all blocks, by place, three bits a granule: valid, dirty, and asked for by a client since
/// the block was placed.
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
            bytes: vec![0; (units * unit * 3).div_ceil(8)],
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

    /// Valid and dirty of a block of so many granules.
    #[inline(always)]
    pub(crate) fn get(&self, place: u32, granules: u32) -> (u64, u64) {
        if granules == 8 {
            let at = place as usize * self.unit / 8 * 3;
            let maps = &self.bytes[at..at + 2];
            return (u64::from(maps[0]), u64::from(maps[1]));
        }
        let (at, count) = (place as usize * self.unit * 3, granules as usize);
        (self.bits(at, count), self.bits(at + count, count))
    }

    /// Notes granules that are asked for. Returns whether one of them had been before.
    #[inline(always)]
    pub(crate) fn ask(&mut self, place: u32, granules: u32, asked: u64) -> bool {
        if granules == 8 {
            let map = &mut self.bytes[place as usize * self.unit / 8 * 3 + 2];
            let before = *map;
            *map |= asked as u8;
            return u64::from(before) & asked != 0;
        }
        let (at, count) = (place as usize * self.unit * 3, granules as usize);
        let before = self.bits(at + 2 * count, count);
        self.set_bits(at + 2 * count, count, before | asked);
        before & asked != 0
    }

    pub(crate) fn forget_asked(&mut self, place: u32, granules: u32) {
        let (at, count) = (place as usize * self.unit * 3, granules as usize);
        self.set_bits(at + 2 * count, count, 0);
    }

    pub(crate) fn set(&mut self, place: u32, granules: u32, valid: u64, dirty: u64) {
        let (at, count) = (place as usize * self.unit * 3, granules as usize);
        self.set_bits(at, count, valid);
        self.set_bits(at + count, count, dirty);
    }

    /// Bytes of memory.
    pub(crate) const fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_blocks_of_all_sizes_lie_beside_each_other() {
        for unit in [1, 2, 4, 8] {
            // Blocks of 1, 2, 4, ... units, one behind the other in places that are aligned to them.
            let mut granules = Granules::new(128, unit);
            let blocks: Vec<(u32, u32)> = (0..6).map(|class| (1 << class, unit << class)).collect();
            for (nth, &(place, count)) in blocks.iter().enumerate() {
                let all = u64::MAX >> (64 - count.min(64));
                let valid = 0x5aa5_1234_9669_f00f >> nth & all;
                granules.set(place, count.min(64), valid, all ^ valid);
                assert!(!granules.ask(place, count.min(64), 1));
            }
            for (nth, &(place, count)) in blocks.iter().enumerate() {
                let all = u64::MAX >> (64 - count.min(64));
                let valid = 0x5aa5_1234_9669_f00f >> nth & all;
                assert_eq!(granules.get(place, count.min(64)), (valid, all ^ valid));
                assert!(granules.ask(place, count.min(64), 1), "{unit} {count}");
                granules.set(place, count.min(64), 0, 0);
                granules.forget_asked(place, count.min(64));
            }
            assert!(
                granules.bytes.iter().all(|byte| *byte == 0),
                "nothing is left"
            );
        }
    }
}
