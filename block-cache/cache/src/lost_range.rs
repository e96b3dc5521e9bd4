//! Ranges of volumes whose data is lost.

use crate::geometry::{Block, Geometry};

/// A range of a volume whose acknowledged, unflushed data is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The volume's name.
    pub volume: String,
    /// First byte.
    pub offset: u64,
    /// Length, bytes.
    pub len: u64,
}

impl LostRange {
    /// The same bytes in as few ranges as may be, in order.
    pub(crate) fn joined(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort_by(|a, b| (&a.volume, a.offset).cmp(&(&b.volume, b.offset)));
        ranges.dedup_by(|next, last| {
            let touches = next.volume == last.volume && next.offset <= last.offset + last.len;
            if touches {
                last.len = last.len.max(next.offset + next.len - last.offset);
            }
            touches
        });
        ranges
    }
}

/// Granules of a block, as bytes of its volume.
pub(crate) fn ranges(
    geometry: &Geometry,
    volume: &str,
    block: Block,
    granules: u64,
) -> Vec<LostRange> {
    let runs = geometry.runs(block.class, granules, 0..u32::MAX);
    runs.map(|run| LostRange {
        volume: volume.to_owned(),
        offset: geometry.backing_offset(block, run.start),
        len: run.len() as u64,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let range = |volume: &str, offset, len| LostRange {
            volume: volume.to_owned(),
            offset,
            len,
        };
        let found = LostRange::joined(vec![
            range("b", 4, 4),
            range("a", 8, 4),
            range("a", 0, 4),
            range("a", 4, 8),
            range("b", 0, 3),
        ]);
        assert_eq!(
            found,
            [range("a", 0, 12), range("b", 0, 3), range("b", 4, 4)]
        );
    }
}
