//! Blocks and granules: which part of a request lies where.
//!
//! A granule is what one bit of a block's valid and dirty maps stands for:
//! max(4 KiB, block / 64).

use std::ops::Range;

/// Sizes, as shifts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    block_shift: u32,
    granule_shift: u32,
    data_offset: u64,
}

/// The part of a request that lies in one cache block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Block number.
    pub(crate) block: u64,
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

impl Geometry {
    pub(crate) const fn new(block_size_bytes: u32, data_offset: u64) -> Self {
        let block_shift = block_size_bytes.trailing_zeros();
        let granule_shift = if block_shift > 18 {
            block_shift - 6
        } else {
            12
        };
        Self {
            block_shift,
            granule_shift,
            data_offset,
        }
    }

    pub(crate) const fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }

    pub(crate) const fn granule_bytes(&self) -> u64 {
        1 << self.granule_shift
    }

    /// Granules of a block: up to 64.
    pub(crate) const fn granules(&self) -> u32 {
        1 << (self.block_shift - self.granule_shift)
    }

    pub(crate) const fn block_of(&self, offset: u64) -> u64 {
        offset >> self.block_shift
    }

    /// Where a byte of a block lies on the backing device.
    pub(crate) const fn backing_offset(&self, block: u64, start: u32) -> u64 {
        (block << self.block_shift) + start as u64
    }

    /// Where a byte of a slot lies on the data device.
    pub(crate) const fn data_offset(&self, slot: u32, start: u32) -> u64 {
        self.data_offset + ((slot as u64) << self.block_shift) + start as u64
    }

    /// The pieces of a range, in order.
    pub(crate) fn pieces(self, offset: u64, len: u64) -> impl Iterator<Item = Piece> {
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let block = at >> self.block_shift;
            let base = block << self.block_shift;
            let stop = end.min(base + self.block_bytes());
            let piece = Piece {
                block,
                start: u32::try_from(at - base).expect("within a block"),
                end: u32::try_from(stop - base).expect("within a block"),
            };
            at = stop;
            Some(piece)
        })
    }

    /// The range as one piece, if it lies in one block.
    pub(crate) const fn single_piece(&self, offset: u64, len: u64) -> Option<Piece> {
        let mask = self.block_bytes() - 1;
        let start = offset & mask;
        if start + len > self.block_bytes() {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a block is at most 1 MiB")]
        Some(Piece {
            block: offset >> self.block_shift,
            start: start as u32,
            end: (start + len) as u32,
        })
    }

    /// Granules that a piece touches.
    pub(crate) const fn touched(&self, piece: &Piece) -> u64 {
        let first = piece.start >> self.granule_shift;
        let last = (piece.end - 1) >> self.granule_shift;
        bits(first, last + 1)
    }

    /// Granules that a piece covers wholly. The last granule of a volume that ends within it counts
    /// as covered when the piece reaches the end, `limit` bytes into the block.
    pub(crate) const fn covered(&self, piece: &Piece, limit: u32) -> u64 {
        let granule = 1_u32 << self.granule_shift;
        let first = piece.start.div_ceil(granule);
        let last = if piece.end >= limit {
            piece.end.div_ceil(granule)
        } else {
            piece.end >> self.granule_shift
        };
        if first >= last { 0 } else { bits(first, last) }
    }

    /// Runs of set bits as byte ranges within the block, cut to `within`.
    pub(crate) fn runs(self, mask: u64, within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let mut rest = mask;
        std::iter::from_fn(move || {
            while rest != 0 {
                let first = rest.trailing_zeros();
                let len = (!(rest >> first)).trailing_zeros();
                rest &= !bits(first, first + len);
                let start = (first << self.granule_shift).max(within.start);
                let end = ((first + len) << self.granule_shift).min(within.end);
                if start < end {
                    return Some(start..end);
                }
            }
            None
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_cut_at_blocks() {
        let geometry = Geometry::new(32 << 10, 0);
        let pieces: Vec<_> = geometry.pieces(40 << 10, 60 << 10).collect();
        let expected = [(1, 8 << 10, 32 << 10), (2, 0, 32 << 10), (3, 0, 4 << 10)]
            .map(|(block, start, end)| Piece { block, start, end });
        assert_eq!(pieces, expected);
    }

    #[test]
    fn granules_are_touched_and_covered() {
        let geometry = Geometry::new(32 << 10, 0);
        let piece = |start, end| Piece {
            block: 0,
            start,
            end,
        };
        assert_eq!(geometry.touched(&piece(512, 8192)), 0b11);
        assert_eq!(geometry.covered(&piece(512, 8192), 32768), 0b10);
        assert_eq!(geometry.covered(&piece(0, 5120), 5120), 0b11);
        assert_eq!(geometry.covered(&piece(512, 1024), 32768), 0);
        let large = Geometry::new(1 << 20, 0);
        assert_eq!(large.granule_bytes(), 16 << 10);
        assert_eq!(large.touched(&piece(0, 1 << 20)), u64::MAX);
        assert_eq!(large.covered(&piece(0, 1 << 20), 1 << 20), u64::MAX);
        assert_eq!(Geometry::new(4096, 0).touched(&piece(0, 4096)), 1);
    }

    #[test]
    fn runs_are_byte_ranges() {
        let geometry = Geometry::new(32 << 10, 0);
        let runs: Vec<_> = geometry.runs(0b1101_1000, 13_000..31_000).collect();
        assert_eq!(runs, [13_000..20_480, 24_576..31_000]);
        let all: Vec<_> = Geometry::new(1 << 20, 0)
            .runs(u64::MAX, 0..1 << 20)
            .collect();
        assert_eq!((all.len(), all[0].clone()), (1, 0..1 << 20));
    }
}
