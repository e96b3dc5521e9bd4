//! Regions, blocks and granules: which part of a request lies where.
//!
//! A request is cut at regions, as long as the largest block, and a region's part at the blocks
//! that it has. Blocks are numbered by *units*, as long as the smallest block. A granule is what
//! one bit of a block's valid and dirty maps stands for: max(4 KiB, block / 64).

use std::ops::Range;

use forebay_metadata::superblock::{DirtyZones, Superblock, ZONE_SHIFT};
use forebay_policy::{BlockKey, BlockSizes, Slot, Span};

/// Sizes, and where data begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    sizes: BlockSizes,
    data_offset: u64,
    /// Bytes of a zone, as a power of two.
    zone_shift: u8,
}

/// The part of a request that lies in one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Region number.
    pub(crate) region: u64,
    /// First byte within the region.
    pub(crate) start: u32,
    /// One past the last byte within the region.
    pub(crate) end: u32,
}

/// A cache block of a volume, there or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Number of its first unit.
    pub(crate) unit: u64,
    /// Its size, as a power of two of units.
    pub(crate) class: u8,
}

/// The part of a request that lies in one cache block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The block.
    pub(crate) block: Block,
    /// First byte within the block.
    pub(crate) start: u32,
    /// One past the last byte within the block.
    pub(crate) end: u32,
}

impl Piece {
    pub(crate) const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl Extent {
    pub(crate) const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Which granules of a region stand for those of a block where they are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Those of which everything is set.
    All,
    /// Those of which something is set.
    Any,
}

impl Geometry {
    pub(crate) const fn new(sizes: BlockSizes, data_offset: u64) -> Self {
        Self {
            sizes,
            data_offset,
            zone_shift: ZONE_SHIFT,
        }
    }

    /// Of a cache.
    pub(crate) fn of(superblock: &Superblock) -> Self {
        let sizes = BlockSizes::from_mask(superblock.block_size_bytes, superblock.classes);
        let zone_shift = superblock
            .zones
            .as_ref()
            .map_or(ZONE_SHIFT, DirtyZones::shift);
        Self {
            zone_shift,
            ..Self::new(sizes, superblock.data_offset)
        }
    }

    /// Bytes of a zone, as a power of two.
    pub(crate) const fn zone_shift(&self) -> u8 {
        self.zone_shift
    }

    /// The bit of the zone that a unit of a volume lies in.
    #[inline]
    pub(crate) const fn zone_bit(&self, volume: u16, unit: u64) -> usize {
        DirtyZones::bit(self.zone_shift, volume, unit << self.sizes.unit_shift())
    }

    pub(crate) const fn sizes(&self) -> BlockSizes {
        self.sizes
    }

    pub(crate) const fn unit_bytes(&self) -> u64 {
        self.sizes.unit_bytes()
    }

    pub(crate) const fn block_bytes(&self, class: u8) -> u64 {
        self.sizes.block_bytes(class)
    }

    const fn granule_shift(&self, class: u8) -> u32 {
        granule_shift(self.sizes, class)
    }

    pub(crate) const fn granule_bytes(&self, class: u8) -> u64 {
        1 << self.granule_shift(class)
    }

    /// Granules of a block: up to 64.
    pub(crate) const fn granules(&self, class: u8) -> u32 {
        1 << (self.sizes.unit_shift() + class as u32 - self.granule_shift(class))
    }

    /// Granules of a region, of which there are at most 64, may be larger than those of its blocks.
    const fn region_granule_shift(&self) -> u32 {
        self.granule_shift(self.sizes.top())
    }

    pub(crate) const fn region_granule_bytes(&self) -> u64 {
        1 << self.region_granule_shift()
    }

    /// Granules of a region: up to 64.
    pub(crate) const fn region_granule_count(&self) -> u64 {
        self.sizes.region_bytes() >> self.region_granule_shift()
    }

    /// Regions of a *window*, which has 64 granules: neighbours that are written back together.
    pub(crate) const fn window_regions(&self) -> u64 {
        64 / self.region_granule_count()
    }

    /// Granules of its region that a part touches.
    #[inline]
    pub(crate) const fn region_granules(&self, part: &Extent) -> u64 {
        let shift = self.region_granule_shift();
        bits(part.start >> shift, ((part.end - 1) >> shift) + 1)
    }

    /// Granules of its region that a block covers.
    #[inline]
    pub(crate) const fn covers(&self, span: Span) -> u64 {
        let shift = self.sizes.unit_shift();
        let first = (span.first as u32) << shift;
        let last = first + (span.units() << shift);
        let granule = self.region_granule_shift();
        bits(first >> granule, last >> granule)
    }

    /// Granules of a region that some of its units cover.
    pub(crate) fn granules_of_units(&self, units: u64) -> u64 {
        let mut rest = units;
        let mut granules = 0;
        while rest != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "below 64")]
            let first = rest.trailing_zeros() as u8;
            granules |= self.covers(Span { first, class: 0 });
            rest &= rest - 1;
        }
        granules
    }

    /// Granules of a block, as granules of its region.
    #[inline]
    pub(crate) fn spread(&self, granules: u64, span: Span, how: Spread) -> u64 {
        let shift = self.region_granule_shift();
        let first = (u32::from(span.first) << self.sizes.unit_shift()) >> shift;
        let count = (span.units() << self.sizes.unit_shift()) >> shift;
        let ratio = 1 << (shift - self.granule_shift(span.class));
        let whole = bits(0, count);
        if ratio == 1 {
            return (granules & whole) << first;
        }
        let each = bits(0, ratio);
        let set = (0..count).filter(|granule| {
            let part = granules >> (granule * ratio) & each;
            match how {
                Spread::All => part == each,
                Spread::Any => part != 0,
            }
        });
        set.fold(0, |set, granule| set | 1 << (first + granule))
    }

    /// Granules of a region that a block has, as granules of the block.
    pub(crate) fn gather(&self, granules: u64, span: Span) -> u64 {
        let shift = self.region_granule_shift();
        let first = (u32::from(span.first) << self.sizes.unit_shift()) >> shift;
        let count = (span.units() << self.sizes.unit_shift()) >> shift;
        let ratio = 1 << (shift - self.granule_shift(span.class));
        let own = granules >> first & bits(0, count);
        if ratio == 1 {
            return own;
        }
        let set = (0..count).filter(|granule| own >> granule & 1 != 0);
        set.fold(0, |set, granule| set | bits(0, ratio) << (granule * ratio))
    }

    /// The unit that a byte of a volume lies in.
    pub(crate) const fn unit_of(&self, offset: u64) -> u64 {
        offset >> self.sizes.unit_shift()
    }

    /// The region that a byte of a volume lies in.
    pub(crate) const fn region_at(&self, offset: u64) -> u64 {
        self.region_of(self.unit_of(offset))
    }

    /// The region that a unit lies in.
    pub(crate) const fn region_of(&self, unit: u64) -> u64 {
        unit >> self.sizes.top()
    }

    /// Where a block lies within its region.
    pub(crate) const fn span(&self, block: Block) -> Span {
        #[expect(clippy::cast_possible_truncation, reason = "within a region")]
        let first = (block.unit & (self.sizes.region_units() as u64 - 1)) as u8;
        Span {
            first,
            class: block.class,
        }
    }

    /// The block that lies there in a region.
    pub(crate) const fn block_in(&self, region: u64, span: Span) -> Block {
        Block {
            unit: (region << self.sizes.top()) + span.first as u64,
            class: span.class,
        }
    }

    /// Where a byte of a block lies on the backing device.
    pub(crate) const fn backing_offset(&self, block: Block, start: u32) -> u64 {
        (block.unit << self.sizes.unit_shift()) + start as u64
    }

    /// Where a byte of a block in `slot` is on the data device.
    pub(crate) const fn data_offset(&self, slot: Slot, start: u32) -> u64 {
        self.data_offset + ((slot.get() as u64) << self.sizes.unit_shift()) + start as u64
    }

    /// The parts of a range, in order.
    pub(crate) fn parts(self, offset: u64, len: u64) -> impl Iterator<Item = Extent> {
        let (end, bytes) = (offset + len, self.sizes.region_bytes());
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let part = self.part(at, end.min((at / bytes + 1) * bytes));
            at += part.len() as u64;
            Some(part)
        })
    }

    const fn part(&self, from: u64, to: u64) -> Extent {
        let shift = self.sizes.unit_shift() + self.sizes.top() as u32;
        let region = from >> shift;
        #[expect(clippy::cast_possible_truncation, reason = "a region is at most 1 MiB")]
        Extent {
            region,
            start: (from - (region << shift)) as u32,
            end: (to - (region << shift)) as u32,
        }
    }

    /// A part of a region in bytes of a block: where the block begins in its region.
    pub(crate) const fn block_start(&self, span: Span) -> u32 {
        (span.first as u32) << self.sizes.unit_shift()
    }

    /// The range as one part, if it lies in one region.
    pub(crate) const fn single_part(&self, offset: u64, len: u64) -> Option<Extent> {
        let bytes = self.sizes.region_bytes();
        let start = offset & (bytes - 1);
        if start + len > bytes {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a region is at most 1 MiB")]
        Some(Extent {
            region: offset >> (self.sizes.unit_shift() + self.sizes.top() as u32),
            start: start as u32,
            end: (start + len) as u32,
        })
    }

    /// Where a part begins on the backing device.
    pub(crate) const fn region_offset(&self, part: &Extent) -> u64 {
        part.region * self.sizes.region_bytes() + part.start as u64
    }

    /// Units of its region that a part touches.
    #[inline]
    pub(crate) const fn units(&self, part: &Extent) -> u64 {
        if self.sizes.top() == 0 {
            return 1;
        }
        self.sizes.touched(part.start as u64, part.end as u64)
    }

    /// Returns the piece of a part that lies in a block of its region. The part touches the block.
    #[inline(always)]
    pub(crate) fn piece(&self, part: &Extent, span: Span) -> Piece {
        if self.sizes.top() == 0 {
            return Piece {
                block: self.block_in(part.region, span),
                start: part.start,
                end: part.end,
            };
        }
        let first = u32::from(span.first) << self.sizes.unit_shift();
        let bytes = span.units() << self.sizes.unit_shift();
        Piece {
            block: self.block_in(part.region, span),
            start: part.start.max(first) - first,
            end: part.end.min(first + bytes) - first,
        }
    }

    /// Runs of units of its region that a part touches, as bytes within the region, cut to the
    /// part.
    pub(crate) fn runs_of_units(
        self,
        part: &Extent,
        units: u64,
    ) -> impl Iterator<Item = Range<u32>> {
        let shift = self.sizes.unit_shift();
        let (mut rest, part) = (units, *part);
        std::iter::from_fn(move || {
            let first = (rest != 0).then(|| rest.trailing_zeros())?;
            let end = first + (!(rest >> first)).trailing_zeros();
            rest &= !bits(first, end);
            Some(part.start.max(first << shift)..part.end.min(end << shift))
        })
    }

    /// Granules that a piece touches.
    pub(crate) const fn touched(&self, piece: &Piece) -> u64 {
        let shift = self.granule_shift(piece.block.class);
        bits(piece.start >> shift, ((piece.end - 1) >> shift) + 1)
    }

    /// Granules that a piece covers wholly. The last granule of a volume that ends within it counts
    /// as covered when the piece reaches the end, `limit` bytes into the block.
    pub(crate) const fn covered(&self, piece: &Piece, limit: u32) -> u64 {
        let granule = 1_u32 << self.granule_shift(piece.block.class);
        let first = piece.start.div_ceil(granule);
        let last = if piece.end >= limit {
            piece.end.div_ceil(granule)
        } else {
            piece.end / granule
        };
        if first >= last { 0 } else { bits(first, last) }
    }

    /// Runs of set bits of a block of this class as byte ranges within the block, cut to `within`.
    pub(crate) fn runs(
        self,
        class: u8,
        mask: u64,
        within: Range<u32>,
    ) -> impl Iterator<Item = Range<u32>> {
        let shift = self.granule_shift(class);
        let mut rest = mask;
        std::iter::from_fn(move || {
            while rest != 0 {
                let first = rest.trailing_zeros();
                let len = (!(rest >> first)).trailing_zeros();
                rest &= !bits(first, first + len);
                let start = (first << shift).max(within.start);
                let end = ((first + len) << shift).min(within.end);
                if start < end {
                    return Some(start..end);
                }
            }
            None
        })
    }
}

impl Block {
    /// Returns the key of the block in the volume `volume`.
    pub(crate) const fn key(self, volume: u16) -> BlockKey {
        BlockKey::new(volume, self.unit)
    }
}

/// The slots of a block, of which `slot` is the first.
pub(crate) fn slots(slot: Slot, class: u8) -> Range<u64> {
    u64::from(slot.get())..u64::from(slot.get()) + (1 << class)
}

/// Bits `first..last`.
const fn bits(first: u32, last: u32) -> u64 {
    let high = if last >= 64 {
        u64::MAX
    } else {
        (1 << last) - 1
    };
    high & !((1 << first) - 1)
}

const fn granule_shift(sizes: BlockSizes, class: u8) -> u32 {
    let block = sizes.unit_shift() + class as u32;
    if block > 18 { block - 6 } else { 12 }
}

/// Returns the length of a granule in blocks of this class, bytes.
pub(crate) const fn granule_bytes(sizes: BlockSizes, class: u8) -> u64 {
    1 << granule_shift(sizes, class)
}

#[cfg(test)]
mod tests;
