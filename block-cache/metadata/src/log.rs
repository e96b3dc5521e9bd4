//! The log: a ring of records on the metadata device, written in batches of whole units.
//!
//! This module manages positions and does no I/O. One batch is in flight at a time. The caller
//! builds it, writes its extents, makes them durable, and calls [`Log::committed`]; then the next
//! one may begin. A unit is never overwritten while a record in it counts. A batch goes only to
//! positions whose records were dead before the batch was built. Every record of the batch declares
//! them dead through its `tail`. docs/internals/format/log.md has the argument.

use forebay_block::Buf;

use crate::Seed;
use crate::record::{Body, Position, RECORD_BYTES, encode};

/// Where the log lies on the metadata device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGeometry {
    /// First byte.
    pub offset: u64,
    /// Number of records in the ring; fills whole units.
    pub records: u64,
    /// Commit unit, bytes: a record on byte-addressable media, else the larger of the device's
    /// logical and physical block.
    pub unit_bytes: u32,
}

impl LogGeometry {
    /// Records in one unit.
    #[must_use]
    pub const fn unit_records(&self) -> u64 {
        self.unit_bytes as u64 / RECORD_BYTES as u64
    }

    /// Records that a batch has at most.
    #[must_use]
    pub fn batch_records_max(&self) -> u64 {
        (self.records / 16).clamp(4 * self.unit_records(), 1 << 15)
    }
}

/// A part of a batch: where on the device, and what.
#[derive(Clone, Debug)]
pub struct LogExtent {
    /// First byte on the metadata device.
    pub offset: u64,
    /// Whole units.
    pub buf: Buf,
}

/// The log's positions.
#[derive(Debug)]
pub struct Log {
    geometry: LogGeometry,
    seed: Seed,
    /// The next record's number.
    next: u64,
    /// The first record's number of the batch being built.
    batch: u64,
    /// The oldest record that may still count.
    tail: u64,
    /// Tail as of the last durable batch, which the batch being built declares.
    declared: u64,
    /// The batch's bytes.
    bytes: Vec<u8>,
}

impl Log {
    /// A log that continues at `next`, a multiple of a unit's records, with records from `tail` on
    /// still counting.
    ///
    /// # Panics
    /// If `next` does not begin a unit.
    #[must_use]
    pub fn new(geometry: LogGeometry, seed: Seed, tail: u64, next: u64) -> Self {
        assert!(next.is_multiple_of(geometry.unit_records()) && tail <= next);
        Self {
            geometry,
            seed,
            next,
            batch: next,
            tail,
            declared: tail,
            bytes: Vec::new(),
        }
    }

    /// Sets the tail at recovery. Of the records before the next one, those at the positions
    /// `counting` count. Records before the oldest of them are given up, and the next batch
    /// declares that.
    pub fn give_up_before(&mut self, counting: impl Iterator<Item = u32>) {
        self.retire_to(self.oldest_of(counting));
        self.declared = self.tail;
    }

    /// Returns the number of the oldest of the records at these positions of the ring, all of them
    /// behind the tail. Returns the next number if there is none.
    #[must_use]
    pub fn oldest_of(&self, positions: impl IntoIterator<Item = u32>) -> u64 {
        let (records, tail) = (self.geometry.records, self.tail);
        let behind_tail =
            |position: u32| (u64::from(position) + records - tail % records) % records;
        let oldest = positions.into_iter().map(behind_tail).min();
        oldest.map_or(self.next, |oldest| tail + oldest)
    }

    /// Moves the tail in service to the record `number`, unless it is there or further. The batch
    /// being built still declares the former tail, and overwrites nothing behind that. The next one
    /// declares the new tail.
    pub fn retire_to(&mut self, number: u64) {
        self.tail = self.tail.max(number);
        debug_assert!(self.tail <= self.next);
    }

    /// The number that the next record gets.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The number of the first record of the batch being built: those before it are durable.
    #[must_use]
    pub const fn batch(&self) -> u64 {
        self.batch
    }

    /// Records from the tail to the end.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.next - self.tail
    }

    /// Returns the bytes of the device that hold durable records from the tail on. There are two
    /// ranges where the ring wraps.
    #[must_use]
    pub fn live_bytes(&self) -> Vec<std::ops::Range<u64>> {
        let (ring, offset) = (self.geometry.records, self.geometry.offset);
        let (first, len) = (self.tail % ring, self.batch.saturating_sub(self.tail));
        let until_wrap = len.min(ring - first);
        [first..first + until_wrap, 0..len - until_wrap]
            .into_iter()
            .filter(|records| !records.is_empty())
            .map(|it| {
                offset + it.start * RECORD_BYTES as u64..offset + it.end * RECORD_BYTES as u64
            })
            .collect()
    }

    /// Records in one unit.
    #[must_use]
    pub const fn unit_records(&self) -> u64 {
        self.geometry.unit_records()
    }

    /// Size of the ring, records.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.geometry.records
    }

    /// Number of records that a batch has at most, with any room.
    #[must_use]
    pub fn batch_records_max(&self) -> u64 {
        self.geometry.batch_records_max()
    }

    /// Records that the batch can still take before it would reach positions that it may not
    /// overwrite.
    #[must_use]
    pub const fn room(&self) -> u64 {
        self.declared + self.geometry.records - self.next
    }

    /// Free positions in the last unit of the batch.
    #[must_use]
    pub const fn unit_room(&self) -> u64 {
        let unit = self.geometry.unit_records();
        (unit - self.next % unit) % unit
    }

    /// Whether the batch has no record.
    #[must_use]
    pub const fn batch_is_empty(&self) -> bool {
        self.batch == self.next
    }

    /// Whether the record at a position of the ring belongs to the batch that is not durable yet.
    #[must_use]
    pub const fn in_flight(&self, position: u32) -> bool {
        let records = self.geometry.records;
        let ahead = (position as u64 + records - self.batch % records) % records;
        ahead < self.next - self.batch
    }

    /// Adds a record to the batch. Returns its number.
    ///
    /// # Panics
    /// If the ring has no room: the caller asks [`Log::room`] first.
    pub fn push(&mut self, body: &Body) -> u64 {
        assert!(self.room() > 0, "the log is full");
        let lsn = self.next;
        let units_back = (lsn - self.batch) / self.geometry.unit_records();
        let mut record = [0; RECORD_BYTES];
        let position = Position {
            lsn,
            tail: self.declared,
            units_back: u16::try_from(units_back).expect("a batch has at most 65,536 units"),
        };
        encode(&mut record, self.seed, position, body);
        self.bytes.extend_from_slice(&record);
        self.next += 1;
        lsn
    }

    /// The oldest record; none if it belongs to the batch being built.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        (self.tail < self.batch).then_some(self.tail)
    }

    /// Moves the tail past the oldest record. That record no longer counts, or the batch has it
    /// once more.
    pub fn drop_oldest(&mut self) {
        debug_assert!(self.tail < self.batch);
        self.tail += 1;
    }

    /// Ends the batch: fills its last unit with padding and returns what to write, in one extent
    /// or, where the ring wraps, two.
    pub fn seal(&mut self) -> Vec<LogExtent> {
        while self.unit_room() > 0 {
            self.push(&Body::Pad);
        }
        let start = self.batch % self.geometry.records;
        let until_wrap = usize::try_from(self.geometry.records - start).expect("fits memory");
        let split = (until_wrap * RECORD_BYTES).min(self.bytes.len());
        let mut extents = Vec::with_capacity(2);
        let (first, second) = self.bytes.split_at(split);
        for (at, part) in [(start, first), (0, second)] {
            if !part.is_empty() {
                extents.push(LogExtent {
                    offset: self.geometry.offset + at * RECORD_BYTES as u64,
                    buf: Buf::copied(part),
                });
            }
        }
        self.bytes.clear();
        extents
    }

    /// The sealed batch is durable.
    pub fn committed(&mut self) {
        self.batch = self.next;
        self.declared = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::decode;

    const GEOMETRY: LogGeometry = LogGeometry {
        offset: 4096,
        records: 32,
        unit_bytes: 512,
    };

    #[test]
    fn batches_are_whole_units_and_wrap() {
        let seed = Seed::new(&[1; 16]);
        let mut log = Log::new(GEOMETRY, seed, 0, 0);
        for _ in 0..3 {
            log.push(&Body::Close);
        }
        let extents = log.seal();
        assert_eq!(extents.len(), 1);
        assert_eq!((extents[0].offset, extents[0].buf.len()), (4096, 512));
        log.committed();
        for _ in 0..16 {
            log.push(&Body::Close);
        }
        log.seal();
        log.committed();
        assert_eq!(log.room(), 8);
        // The oldest eight are dropped, but the batch that says so cannot use their room yet.
        for at in 0..8 {
            assert_eq!(log.oldest(), Some(at));
            log.drop_oldest();
        }
        assert_eq!(log.room(), 8);
        log.push(&Body::Close);
        log.seal();
        log.committed();
        assert_eq!(log.room(), 8);
        log.push(&Body::Close);
        let extents = log.seal();
        assert_eq!(extents[0].offset, 4096, "the ring wraps");
        let mut record = [0; RECORD_BYTES];
        extents[0].buf.copy_to(0, &mut record);
        let (position, _) = decode(&record, seed).expect("verifies");
        assert_eq!((position.lsn, position.tail), (32, 8));
    }

    #[test]
    fn in_lines_nothing_is_padded() {
        let lines = LogGeometry {
            unit_bytes: 64,
            ..GEOMETRY
        };
        let mut log = Log::new(lines, Seed::new(&[1; 16]), 0, 0);
        for (records, offset) in [(1, 4096), (3, 4096 + 64), (1, 4096 + 4 * 64)] {
            for _ in 0..records {
                log.push(&Body::Close);
                assert_eq!(log.unit_room(), 0);
            }
            let extents = log.seal();
            assert_eq!(extents.len(), 1);
            let found = (extents[0].offset, extents[0].buf.len());
            assert_eq!(found, (offset, records * RECORD_BYTES));
            log.committed();
        }
    }

    #[test]
    fn a_recovery_gives_up_dead_records() {
        let seed = Seed::new(&[1; 16]);
        let mut log = Log::new(GEOMETRY, seed, 0, 24);
        assert_eq!(log.room(), 8);
        log.give_up_before([20, 17].into_iter());
        assert_eq!((log.used(), log.room()), (7, 25));
        let mut record = [0; RECORD_BYTES];
        log.push(&Body::Close);
        log.seal()[0].buf.copy_to(0, &mut record);
        let (position, _) = decode(&record, seed).expect("verifies");
        assert_eq!(position.tail, 17, "the first batch declares it");
    }

    #[test]
    fn in_service_nothing_is_overwritten_before_the_new_tail_is_durable() {
        let seed = Seed::new(&[1; 16]);
        let mut log = Log::new(GEOMETRY, seed, 0, 24);
        log.retire_to(log.oldest_of([20, 17]));
        assert_eq!((log.used(), log.room()), (7, 8));
        let mut record = [0; RECORD_BYTES];
        for tail in [0, 17] {
            log.push(&Body::Close);
            log.seal()[0].buf.copy_to(0, &mut record);
            let (position, _) = decode(&record, seed).expect("verifies");
            assert_eq!(position.tail, tail);
            log.committed();
        }
    }
}
