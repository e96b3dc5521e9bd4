//! Blocks that are written back together with a victim.

/// Returns the dirty granules of a region that are written back with a victim's. These are the runs
/// that the victim's granules are part of, in any block. A backing device with a price per
/// operation takes a run at the price of its first granule. The rest of the run will be evicted
/// soon anyhow, since it was written at the same time.
///
/// `victim` is a part of `region`; both have one bit a granule.
#[must_use]
pub const fn clean_with(victim: u64, region: u64) -> u64 {
    let mut with = victim & region;
    loop {
        let grown = (with | with << 1 | with >> 1) & region;
        if grown == with {
            return with;
        }
        with = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_meet_the_victim_go_whole() {
        assert_eq!(clean_with(0b0000_1000, 0b0111_1011), 0b0111_1000);
        assert_eq!(clean_with(0b0000_1001, 0b0111_1011), 0b0111_1011);
        assert_eq!(clean_with(0, u64::MAX), 0);
        assert_eq!(clean_with(1, u64::MAX), u64::MAX);
        assert_eq!(clean_with(1 << 63, 3 << 62), 3 << 62);
    }
}
