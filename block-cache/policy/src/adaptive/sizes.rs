//! Which block sizes a cache uses, and how a missed range is cut into blocks (AdaCache, section
//! III-B).

use std::fmt;

/// Where a block lies within its region: `1 << class` units from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First unit within the region; a multiple of the block's units.
    pub first: u8,
    /// Binary logarithm of the block's size in units.
    pub class: u8,
}

impl Span {
    /// Units that it covers.
    #[must_use]
    #[inline]
    pub const fn units(self) -> u32 {
        1 << self.class
    }

    /// Its units as bits.
    #[must_use]
    #[inline]
    pub const fn mask(self) -> u64 {
        ones(self.units()) << self.first
    }
}

/// The lowest `count` bits.
pub(super) const fn ones(count: u32) -> u64 {
    if count >= 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    }
}

/// The bits at multiples of `1 << power`.
pub(super) const fn aligned(power: u8) -> u64 {
    ALIGNED[power as usize]
}

/// By class: units at which blocks of it begin.
const ALIGNED: [u64; 7] = {
    let mut aligned = [u64::MAX; 7];
    let mut class = 1;
    while class < aligned.len() {
        // Of the starts of the class below, every second one.
        aligned[class] = aligned[class - 1] / ((1_u64 << (1 << (class - 1))) + 1);
        class += 1;
    }
    aligned
};

/// A set of block sizes: powers of two, the largest at most 64 times the smallest.
///
/// A *unit* is the smallest size. A *region* is an aligned stretch of a volume as long as the
/// largest. No block crosses regions, since every block is aligned to its size. So a request is
/// looked up and cut region by region, with one bit a unit. The result is that of the paper's
/// Algorithms 1 and 2 over the whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    unit_shift: u8,
    /// The class of the largest.
    top: u8,
    /// Bit `k`: blocks of `2^k` units are used.
    classes: u8,
}

impl BlockSizes {
    /// Most units of a region.
    pub const MAX_UNITS: u32 = 64;
    /// Most units of a volume: the map in memory numbers them with 43 bits.
    pub const MAX_VOLUME_UNITS: u64 = 1 << 43;

    /// The sizes, in bytes, in any order.
    ///
    /// # Errors
    /// The fault of the sizes, in words.
    pub fn new(sizes_bytes: &[u64]) -> Result<Self, String> {
        let (Some(&smallest), Some(&largest)) =
            (sizes_bytes.iter().min(), sizes_bytes.iter().max())
        else {
            return Err("there is no block size".into());
        };
        if let Some(odd) = sizes_bytes.iter().find(|size| !size.is_power_of_two()) {
            return Err(format!("a block of {odd} bytes is no power of two"));
        }
        if largest / smallest > u64::from(Self::MAX_UNITS) {
            return Err(format!(
                "the largest block ({largest} bytes) has more than {} times the smallest \
                 ({smallest})",
                Self::MAX_UNITS
            ));
        }
        let unit_shift = smallest.trailing_zeros();
        let mut classes = 0;
        for size in sizes_bytes {
            let bit = 1 << (size.trailing_zeros() - unit_shift);
            if classes & bit != 0 {
                return Err(format!("a block size of {size} bytes is there twice"));
            }
            classes |= bit;
        }
        Ok(Self::from_parts(unit_shift, classes))
    }

    /// The sizes whose bits are set, of `2^k` times the smallest.
    ///
    /// # Panics
    /// If the smallest is no power of two, or its bit, the lowest, is not set.
    #[must_use]
    pub fn from_mask(smallest_bytes: u32, mask: u8) -> Self {
        assert!(smallest_bytes.is_power_of_two() && mask & 1 == 1 && mask < 128);
        Self::from_parts(smallest_bytes.trailing_zeros(), mask)
    }

    fn from_parts(unit_shift: u32, classes: u8) -> Self {
        Self {
            unit_shift: u8::try_from(unit_shift).expect("at most 64 bits"),
            top: u8::try_from(classes.ilog2()).expect("at most 7"),
            classes,
        }
    }

    /// The sizes as bits: `k` for `2^k` times the smallest.
    #[must_use]
    pub const fn mask(self) -> u8 {
        self.classes
    }

    /// The smallest block, bytes.
    #[must_use]
    #[inline]
    pub const fn unit_bytes(self) -> u64 {
        1 << self.unit_shift
    }

    /// Binary logarithm of [`BlockSizes::unit_bytes`].
    #[must_use]
    #[inline]
    pub const fn unit_shift(self) -> u32 {
        self.unit_shift as u32
    }

    /// The largest block, which is a region's and a group's size, bytes.
    #[must_use]
    #[inline]
    pub const fn region_bytes(self) -> u64 {
        self.block_bytes(self.top())
    }

    /// Returns the size of the largest volume whose blocks can be numbered, in bytes.
    #[must_use]
    pub const fn largest_volume_bytes(self) -> u64 {
        Self::MAX_VOLUME_UNITS.saturating_mul(self.unit_bytes())
    }

    /// Units of a region.
    #[must_use]
    #[inline]
    pub const fn region_units(self) -> u32 {
        1 << self.top()
    }

    /// The class of the largest block.
    #[must_use]
    #[inline]
    pub const fn top(self) -> u8 {
        self.top
    }

    /// Size of a block of a class, bytes.
    #[must_use]
    #[inline]
    pub const fn block_bytes(self, class: u8) -> u64 {
        1 << (self.unit_shift + class)
    }

    /// Whether a class is one of the sizes.
    #[must_use]
    pub const fn has(self, class: u8) -> bool {
        class < 8 && self.classes >> class & 1 != 0
    }

    /// The classes, from the smallest on.
    pub fn classes(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |class| self.has(*class))
    }

    /// Units of a region that `start..end`, bytes within it, touches.
    #[must_use]
    #[inline]
    pub const fn touched(self, start: u64, end: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "at most 64 units")]
        let (first, last) = (
            (start >> self.unit_shift) as u32,
            ((end - 1) >> self.unit_shift) as u32,
        );
        ones(last + 1) & !ones(first)
    }

    /// First units that blocks may have which cover any of these units.
    #[must_use]
    pub const fn starts(self, units: u64) -> u64 {
        let (mut class, mut covering, mut starts) = (0, units, 0);
        // Of `covering`, a bit says whether any unit of a block of `class` from there on is one of
        // them.
        while class <= self.top() {
            if self.has(class) {
                starts |= covering & ALIGNED[class as usize];
            }
            // By less than 64, of which a block has at most so many.
            covering |= covering >> ((1 << class) & 63);
            class += 1;
        }
        starts
    }

    /// Cuts missing units of a region into blocks. Takes from the first unit on the largest block
    /// that is aligned there and covers only missing units.
    ///
    /// This follows the paper's prose. As printed, Algorithm 1 allocates a unit too many for
    /// requests that end on a boundary. It does not end after a hit beyond the request. Algorithm 2
    /// continues with smaller blocks behind the one that it has just allocated.
    pub fn cut(self, missing: u64) -> impl Iterator<Item = Span> {
        let mut rest = missing;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let first = rest.trailing_zeros();
            let run = (rest >> first).trailing_ones();
            let aligned = if first == 0 {
                7
            } else {
                first.trailing_zeros()
            };
            let fits = run.ilog2().min(aligned);
            // Sizes up to what fits; the smallest is always among them.
            let usable = u32::from(self.classes) & ((2 << fits) - 1);
            #[expect(clippy::cast_possible_truncation, reason = "first < 64, class < 8")]
            let span = Span {
                first: first as u8,
                class: usable.ilog2() as u8,
            };
            rest &= !span.mask();
            Some(span)
        })
    }
}

impl BlockSizes {
    /// Cuts missing units of a region into blocks if only some of them were requested. Requested
    /// units are cut as by [`BlockSizes::cut`]. The rest is cut into the smallest blocks, since
    /// part of it may prove useless while another part is warm. A whole region is one block.
    pub fn cut_asked(self, missing: u64, asked: u64) -> impl Iterator<Item = Span> {
        let whole = missing == ones(self.region_units());
        let (large, small) = match whole {
            true => (missing, 0),
            false => (missing & asked, missing & !asked),
        };
        let units = Self { classes: 1, ..self };
        self.cut(large).chain(units.cut(small))
    }
}

/// `32K`, or `32K..256K` where every power of two between is one, or `32K,128K`.
impl fmt::Display for BlockSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |class: u8| match self.block_bytes(class) {
            bytes if bytes >= 1 << 20 => format!("{}M", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{}K", bytes >> 10),
            bytes => bytes.to_string(),
        };
        let classes: Vec<u8> = self.classes().collect();
        match classes[..] {
            [only] => f.write_str(&name(only)),
            [first, .., last] if classes.len() == usize::from(last - first) + 1 => {
                write!(f, "{}..{}", name(first), name(last))
            }
            _ => {
                let names: Vec<String> = classes.iter().copied().map(name).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    fn paper() -> BlockSizes {
        BlockSizes::new(&[32 * K, 64 * K, 128 * K, 256 * K]).expect("right")
    }

    fn cut(sizes: BlockSizes, missing: u64) -> Vec<(u8, u8)> {
        let spans = sizes.cut(missing);
        spans.map(|span| (span.first, span.class)).collect()
    }

    #[test]
    fn the_papers_example() {
        // Offset 48K, length 184K; 128K to 256K is cached: 32K at 32K and 64K at 64K are allocated.
        let wanted = paper().touched(48 * K, 232 * K);
        assert_eq!(wanted, 0b1111_1110);
        assert_eq!(cut(paper(), wanted & !0b1111_0000), [(1, 0), (2, 1)]);
    }

    #[test]
    fn ends_on_boundaries_take_nothing_more() {
        let sizes = paper();
        assert_eq!(sizes.touched(0, 32 * K), 1);
        assert_eq!(sizes.touched(32 * K, 64 * K), 2);
        assert_eq!(sizes.touched(0, 256 * K), 0xff);
        assert_eq!(cut(sizes, 0xff), [(0, 3)]);
        assert_eq!(cut(sizes, 0x7e), [(1, 0), (2, 1), (4, 1), (6, 0)]);
        assert_eq!(cut(sizes, 0b0101_1001), [(0, 0), (3, 0), (4, 0), (6, 0)]);
    }

    #[test]
    fn sizes_that_are_left_out_are_not_used() {
        let sizes = BlockSizes::new(&[256 * K, 32 * K]).expect("right");
        assert_eq!(cut(sizes, 0xff), [(0, 3)]);
        assert_eq!(cut(sizes, 0x0f), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        let one = BlockSizes::new(&[4 * K]).expect("right");
        assert_eq!((one.region_units(), cut(one, 1)), (1, vec![(0, 0)]));
        let wide = BlockSizes::new(&[4 * K, 256 * K]).expect("right");
        assert_eq!(cut(wide, u64::MAX), [(0, 6)]);
        assert_eq!(wide.touched(0, 256 * K), u64::MAX);
        assert_eq!(cut(wide, u64::MAX - 1).len(), 63);
    }

    #[test]
    fn read_ahead_is_in_the_smallest_blocks() {
        let spans = |missing, asked| -> Vec<(u8, u8)> {
            let spans = paper().cut_asked(missing, asked);
            spans.map(|span| (span.first, span.class)).collect()
        };
        assert_eq!(spans(0b1111, 0b0011), [(0, 1), (2, 0), (3, 0)]);
        assert_eq!(spans(0b1111, 0), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        assert_eq!(spans(0xff, 1), [(0, 3)]);
        assert_eq!(spans(0b1100, 0b1111), [(2, 1)]);
    }

    #[test]
    fn every_missing_unit_is_in_one_block_and_nothing_else() {
        let sizes = paper();
        for missing in 0..=0xff_u64 {
            let mut covered = 0;
            for span in sizes.cut(missing) {
                assert_eq!(covered & span.mask(), 0, "{missing:b}: overlap");
                assert_eq!(u32::from(span.first) % span.units(), 0, "aligned");
                covered |= span.mask();
            }
            assert_eq!(covered, missing);
        }
    }

    #[test]
    fn starts_are_those_of_all_blocks_that_touch() {
        for some in [&[32][..], &[32, 64, 128, 256], &[4, 256], &[4, 16, 64]] {
            let bytes: Vec<u64> = some.iter().map(|size| size * K).collect();
            let sizes = BlockSizes::new(&bytes).expect("right");
            for first in 0..sizes.region_units() {
                for last in first..sizes.region_units() {
                    let units = ones(last + 1) & !ones(first);
                    let mut expected = 0;
                    for class in sizes.classes() {
                        for start in (0..sizes.region_units()).step_by(1 << class) {
                            let span = Span {
                                first: start as u8,
                                class,
                            };
                            expected |= u64::from(span.mask() & units != 0) << start;
                        }
                    }
                    assert_eq!(sizes.starts(units), expected, "{sizes}, {first}..={last}");
                }
            }
        }
    }

    #[test]
    fn names_and_mistakes() {
        assert_eq!(paper().to_string(), "32K..256K");
        let two = BlockSizes::new(&[32 * K, 128 * K]).expect("right");
        assert_eq!(two.to_string(), "32K,128K");
        for wrong in [&[][..], &[3 * K], &[4 * K, 512 * K], &[4 * K, 4 * K]] {
            assert!(BlockSizes::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
