//! Bits of a region: granules, and runs of them.

/// Returns the bits `first..last`.
pub(super) const fn bits(first: u64, last: u64) -> u64 {
    if first >= last {
        return 0;
    }
    (u64::MAX >> (64 - (last - first))) << first
}

/// Returns runs of set bits: the first, and their number.
pub(super) fn runs(mask: u64) -> impl Iterator<Item = (u32, u32)> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let len = (rest >> first).trailing_ones();
        rest &= !bits(u64::from(first), u64::from(first + len));
        Some((first, len))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_bits() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(u64::MAX).collect::<Vec<_>>(), [(0, 64)]);
        let mask = bits(0, 3) | bits(5, 6) | bits(60, 64);
        assert_eq!(runs(mask).collect::<Vec<_>>(), [(0, 3), (5, 1), (60, 4)]);
    }
}
