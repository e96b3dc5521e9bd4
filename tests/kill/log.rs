//! The log of writes, outside of the daemon: the contents that each sector may have.
//!
//! Every sector that a writer sends is stamped throughout with the write's version. The log knows,
//! for each sector, the writes that may be its last. An acknowledged write excludes those that were
//! acknowledged before it was sent. A write without an answer excludes nothing.

use std::collections::HashMap;

use forebay_tests::stamp::{SECTOR_BYTES, Version, ZEROES, read_stamp};

/// One write of one sector that may be its last.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    version: Version,
    sent: u64,
    /// Time of its acknowledgement, or of the first read that returned it.
    done: Option<u64>,
}

/// A sector with contents that it may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) sector: u64,
    /// Version found there. `None` if the bytes are no stamp at all (torn or foreign).
    pub(crate) found: Option<Version>,
    pub(crate) allowed: Vec<Version>,
}

/// The contents that each sector may have. Sectors that were never written are zero.
#[derive(Debug, Default)]
pub(crate) struct Log {
    clock: u64,
    sectors: HashMap<u64, Vec<Candidate>>,
}

/// A write in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) first: u64,
    pub(crate) sectors: u64,
    sent: u64,
}

/// A read in flight, with the contents that it could have returned when it was sent.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) first: u64,
    allowed: Vec<Vec<Candidate>>,
}

const NEVER_WRITTEN: Candidate = Candidate {
    version: ZEROES,
    sent: 0,
    done: Some(0),
};

impl Log {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn candidates(&self, sector: u64) -> Vec<Candidate> {
        let written = self.sectors.get(&sector).cloned();
        written.unwrap_or_else(|| vec![NEVER_WRITTEN])
    }

    /// Notes that a write is about to be sent: from now on each sector may hold it.
    pub(crate) fn send_write(&mut self, first: u64, sectors: u64, version: Version) -> Write {
        let sent = self.tick();
        for sector in first..first + sectors {
            let candidates = self.sectors.entry(sector);
            candidates
                .or_insert_with(|| vec![NEVER_WRITTEN])
                .push(Candidate {
                    version,
                    sent,
                    done: None,
                });
        }
        Write {
            first,
            sectors,
            sent,
        }
    }

    /// Notes that a write was acknowledged. Writes that were over before it was sent are excluded.
    pub(crate) fn acknowledge(&mut self, write: &Write) {
        let now = self.tick();
        for sector in write.first..write.first + write.sectors {
            self.settle(sector, write.sent, now);
        }
    }

    /// Notes that the write sent at `sent` is done, at the latest `now`.
    fn settle(&mut self, sector: u64, sent: u64, now: u64) {
        let Some(candidates) = self.sectors.get_mut(&sector) else {
            return; // Never written, and read as such.
        };
        for candidate in candidates.iter_mut().filter(|c| c.sent == sent) {
            candidate.done.get_or_insert(now);
        }
        candidates.retain(|c| c.done.is_none_or(|done| done >= sent));
    }

    /// Notes that a read is about to be sent.
    pub(crate) fn send_read(&mut self, first: u64, sectors: u64) -> Read {
        self.tick();
        let allowed = (first..first + sectors).map(|sector| self.candidates(sector));
        Read {
            first,
            allowed: allowed.collect(),
        }
    }

    /// Checks the result of a read. Its contents count as acknowledged from here.
    pub(crate) fn finish_read(&mut self, read: &Read, bytes: &[u8]) -> Vec<Mismatch> {
        let now = self.tick();
        let mut mismatches = Vec::new();
        let sectors = bytes.chunks_exact(SECTOR_BYTES).zip(&read.allowed);
        for (sector, (bytes, before)) in (read.first..).zip(sectors) {
            let found = read_stamp(bytes, sector);
            let since = self.candidates(sector);
            let matching = |c: &&Candidate| Some(c.version) == found;
            if let Some(seen) = since.iter().find(matching) {
                self.settle(sector, seen.sent, now);
            } else if !before.iter().any(|c| Some(c.version) == found) {
                let mut allowed: Vec<_> = before.iter().chain(&since).map(|c| c.version).collect();
                allowed.sort_unstable();
                allowed.dedup();
                mismatches.push(Mismatch {
                    sector,
                    found,
                    allowed,
                });
            }
        }
        mismatches
    }

    /// After a crash and a check, each sector holds the contents that the check found.
    pub(crate) fn restart(&mut self, first: u64, bytes: &[u8]) {
        let now = self.tick();
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            let found = read_stamp(bytes, sector);
            if let Some(candidates) = self.sectors.get_mut(&sector) {
                candidates.retain(|c| Some(c.version) == found);
                candidates.truncate(1);
                for candidate in candidates.iter_mut() {
                    candidate.done.get_or_insert(now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_tests::stamp::stamp;

    use super::*;

    fn content(first: u64, sectors: u64, version: Version) -> Vec<u8> {
        let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
        if version != ZEROES {
            stamp(&mut bytes, first, version);
        }
        bytes
    }

    fn check(log: &mut Log, first: u64, bytes: &[u8]) -> Vec<Mismatch> {
        let read = log.send_read(first, (bytes.len() / SECTOR_BYTES) as u64);
        log.finish_read(&read, bytes)
    }

    fn acknowledged(log: &mut Log, first: u64, sectors: u64, version: Version) {
        let write = log.send_write(first, sectors, version);
        log.acknowledge(&write);
    }

    #[test]
    fn acknowledged_content_is_accepted() {
        let mut log = Log::default();
        for _ in 0..2 {
            assert!(check(&mut log, 0, &content(0, 4, ZEROES)).is_empty());
        }
        acknowledged(&mut log, 8, 8, 1);
        acknowledged(&mut log, 10, 1, 2);
        let mut bytes = content(8, 8, 1);
        bytes[2 * SECTOR_BYTES..3 * SECTOR_BYTES].copy_from_slice(&content(10, 1, 2));
        assert!(check(&mut log, 8, &bytes).is_empty());
    }

    #[test]
    fn a_lost_acknowledged_write_is_found() {
        let mut log = Log::default();
        acknowledged(&mut log, 8, 2, 1);
        acknowledged(&mut log, 9, 1, 2);
        let found = check(&mut log, 8, &content(8, 2, 1));
        let expected = Mismatch {
            sector: 9,
            found: Some(1),
            allowed: vec![2],
        };
        assert_eq!(found, [expected]);
        assert_eq!(check(&mut log, 8, &content(8, 1, ZEROES)).len(), 1);
    }

    #[test]
    fn torn_misplaced_and_foreign_sectors_are_found() {
        let mut log = Log::default();
        acknowledged(&mut log, 8, 1, 1);
        acknowledged(&mut log, 9, 1, 1);
        let mut torn = content(8, 1, 1);
        torn[300] ^= 1;
        for bytes in [torn, content(9, 1, 1), vec![7; SECTOR_BYTES]] {
            assert_eq!(check(&mut log, 8, &bytes)[0].found, None);
        }
    }

    #[test]
    fn in_flight_is_old_or_new_and_stays_as_read() {
        let mut log = Log::default();
        acknowledged(&mut log, 8, 2, 1);
        log.send_write(8, 2, 2);
        assert!(check(&mut log, 8, &content(8, 2, 1)).is_empty());
        assert!(check(&mut log, 8, &content(8, 1, 2)).is_empty());
        assert_eq!(check(&mut log, 8, &content(8, 1, 1)).len(), 1);
        assert!(check(&mut log, 9, &content(9, 1, 1)).is_empty());
    }

    #[test]
    fn of_concurrent_writes_either_may_be_last() {
        let mut log = Log::default();
        let one = log.send_write(8, 1, 1);
        let two = log.send_write(8, 1, 2);
        log.acknowledge(&two);
        log.acknowledge(&one);
        assert!(check(&mut log, 8, &content(8, 1, 1)).is_empty());
        assert!(!check(&mut log, 8, &content(8, 1, ZEROES)).is_empty());
    }

    #[test]
    fn content_found_at_a_restart_is_the_only_accepted_content() {
        let mut log = Log::default();
        acknowledged(&mut log, 8, 1, 1);
        log.send_write(8, 1, 2);
        log.restart(8, &content(8, 1, 1));
        assert!(check(&mut log, 8, &content(8, 1, 1)).is_empty());
        assert_eq!(check(&mut log, 8, &content(8, 1, 2)).len(), 1);
    }
}
