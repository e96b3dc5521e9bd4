//! Units of the log: blocks of a disk, or lines of byte-addressable media.

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf};

use super::{COPY_BYTES, INCOMPAT_LINES, Role, Superblock};
use crate::record::RECORD_BYTES;

/// The commit unit on byte-addressable media, bytes: a line, which holds one record.
pub const LINE_BYTES: u32 = RECORD_BYTES as u32;
/// The smallest commit unit on any other media, bytes.
pub const SECTOR_BYTES: u32 = 512;

/// The lines in which `bytes` differ from what the device has at `at`, and their places: neighbours
/// together. All of them where that cannot be read.
pub(super) async fn changed(device: &dyn BlockDevice, at: u64, bytes: &[u8]) -> Vec<(u64, Buf)> {
    let there = Buf::scratch(bytes.len());
    if device.read(at, there.clone()).await.is_err() {
        return vec![(at, Buf::copied(bytes))];
    }
    let (there, line) = (there.to_vec(), LINE_BYTES as usize);
    let lines = bytes.chunks(line).zip(there.chunks(line)).enumerate();
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (nth, _) in lines.filter(|(_, (new, old))| new != old) {
        let (start, end) = (nth * line, (nth + 1) * line);
        match runs.last_mut() {
            Some(run) if run.end == start => run.end = end,
            _ => runs.push(start..end),
        }
    }
    let part = |run: std::ops::Range<usize>| (at + run.start as u64, Buf::copied(&bytes[run]));
    runs.into_iter().map(part).collect()
}

impl Superblock {
    /// Whether the log is written in lines: its device must be byte-addressable, with nothing
    /// between.
    #[must_use]
    pub const fn has_lines(&self) -> bool {
        self.incompat & INCOMPAT_LINES != 0
    }

    /// Whether these bytes are a copy of a superblock that says so of its own device.
    ///
    /// # Panics
    /// If they are fewer than [`COPY_BYTES`].
    #[must_use]
    pub fn writes_lines(copy: &[u8]) -> bool {
        Self::decode(&copy[..COPY_BYTES])
            .is_some_and(|found| found.has_lines() && found.role == Role::Metadata)
    }

    /// A line is a unit only where the features and the role say so. On a device with data, power
    /// loss would tear the data.
    pub(super) fn unit_is_sound(&self) -> bool {
        let unit = self.log.unit_bytes;
        match self.has_lines() {
            true => unit == LINE_BYTES && self.role != Role::Whole,
            false => unit.is_power_of_two() && (SECTOR_BYTES..=65536).contains(&unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::{DirtyTracking, PlanInput};

    fn planned(
        unit_bytes: u32,
        metadata_bytes: Option<u64>,
        input: (DirtyTracking, bool),
    ) -> Superblock {
        Superblock::plan(PlanInput {
            data_bytes: 1 << 30,
            metadata_bytes,
            unit_bytes,
            block_size_bytes: 4096,
            classes: 1,
            region_shift: 6,
            dirty_tracking: input.0,
            checksums: input.1,
            uuid: [3; 16],
        })
        .expect("fits")
    }

    #[test]
    fn a_log_in_lines_and_the_tables_behind_it_fit_the_device() {
        for tracking in DirtyTracking::ALL {
            for (checksums, bytes) in [(false, 1 << 20), (true, 1 << 20), (true, (3 << 20) + 4096)]
            {
                let found = planned(64, Some(bytes), (tracking, checksums));
                found.sound("test").expect("sound");
                assert!(found.has_lines());
                assert_eq!(found.log.unit_records(), 1);
                assert_eq!(Superblock::decode(&found.encode()), Some(found.clone()));
                let mut end = found.log.offset + found.log.records * RECORD_BYTES as u64;
                if let Some(tree) = found.tree() {
                    assert_eq!((tree.offset, tree.unit_bytes), (end, SECTOR_BYTES));
                    end += tree.bytes();
                }
                if let Some(sums) = found.checksum_table() {
                    // The tree may take as much as that of the largest cache.
                    assert!(sums.offset >= end && sums.unit_bytes == LINE_BYTES);
                    end = sums.offset + sums.bytes();
                }
                let slot = 4 * RECORD_BYTES as u64 + 4;
                assert!(
                    end <= bytes && bytes - end < 16 * slot + 16384,
                    "{end} of {bytes}"
                );
            }
        }
    }

    #[test]
    fn lines_are_for_a_device_of_their_own_and_say_so_to_older_versions() {
        let plain = (DirtyTracking::Exact, false);
        let mut found = planned(64, Some(1 << 20), plain);
        assert_eq!(found.incompat, INCOMPAT_LINES);
        found.role = Role::Whole;
        assert!(found.sound("test").is_err(), "data beside it");
        found.role = Role::Data;
        found.sound("test").expect("the data device's copy");
        found.incompat = 0;
        assert!(
            found.sound("test").is_err(),
            "an older version would read it"
        );
        for (unit, metadata) in [(512, Some(1 << 20)), (4096, Some(1 << 20)), (64, None)] {
            let mut found = planned(unit, metadata, plain);
            assert_eq!((found.incompat, found.log.unit_bytes), (0, unit.max(512)));
            found.incompat = INCOMPAT_LINES;
            assert!(found.sound("test").is_err(), "a unit of {unit}");
        }
    }
}
