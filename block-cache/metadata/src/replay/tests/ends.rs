//! The end of the log is found without reading all of it, and is the one that reading all of it
//! finds.

use std::cell::{Cell, RefCell};

use forebay_block::{Completion, DeviceInfo, Error, ErrorKind, Op, Request};
use proptest::prelude::*;

use super::*;
use crate::replay::end::{read_all, search};

/// Long enough that not all of it is read: 2,048 units.
const LONG: LogGeometry = LogGeometry {
    offset: 0,
    records: 16_384,
    unit_bytes: 512,
};
/// Twice as many as a batch of its log may have.
const WINDOW: u64 = 2 * LONG.records / 16;

/// Counts what is read of some bytes, and cannot read one unit of them.
struct Counting {
    bytes: Bytes,
    read: Cell<u64>,
    unreadable: Option<u64>,
}

impl BlockDevice for Counting {
    fn info(&self) -> DeviceInfo {
        self.bytes.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let range = request.offset..request.offset + request.len;
        if request.op == Op::Read {
            self.read.set(self.read.get() + request.len);
            if self.unreadable.is_some_and(|at| range.contains(&at)) {
                return done.complete(Err(Error::new(ErrorKind::Io, "unreadable")));
            }
        }
        self.bytes.submit(request, done);
    }
}

fn now<T>(future: impl Future<Output = Result<T>>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.expect("the device answers"),
        Poll::Pending => panic!("the device completes at once"),
    }
}

fn long() -> Ring {
    let bytes = vec![0; usize::try_from(LONG.records).expect("small") * RECORD_BYTES];
    Ring {
        device: Bytes(RefCell::new(bytes)),
        log: Log::new(LONG, Seed::new(&[1; 16]), 0, 0),
    }
}

fn look<'a>(device: &'a dyn BlockDevice) -> super::super::ring::Ring<'a> {
    super::super::ring::Ring {
        device,
        geometry: LONG,
        seed: Seed::new(&[1; 16]),
    }
}

/// Fills the log with batches of these lengths, keeping its last quarter.
fn fill(ring: &mut Ring, batches: impl Iterator<Item = usize>) {
    for len in batches {
        ring.drop_to(ring.log.next().saturating_sub(LONG.records / 4));
        ring.batch(&vec![Body::Pad; len], |_| true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_end_is_the_one_that_reading_everything_finds(
        batches in prop::collection::vec(1usize..=1024, 1..60),
        last in 1usize..=1024,
        intact in any::<u64>(),
        rotten in prop::collection::vec(0u64..2048, 0..40),
    ) {
        let mut ring = long();
        fill(&mut ring, batches.into_iter());
        ring.drop_to(ring.log.next().saturating_sub(LONG.records / 4));
        // A crash tears the last one.
        ring.batch(&vec![Body::Pad; last], |unit| intact >> (unit % 64) & 1 == 1);
        // Some units rot, wherever they are.
        for unit in rotten {
            let at = usize::try_from(unit).expect("small") * 512;
            ring.device.0.borrow_mut()[at..at + 512].fill(0x55);
        }
        let all = now(read_all(&look(&ring.device))).newest;
        let near = now(search(&look(&ring.device)));
        if let Some(near) = near {
            prop_assert_eq!(Some(near), all);
        }
    }
}

#[test]
fn little_is_read_to_find_it() {
    let mut ring = long();
    for batches in [1, 20, 60] {
        fill(&mut ring, (0..batches).map(|nth| 100 + nth * 7));
        let device = Counting {
            bytes: Bytes(RefCell::new(ring.device.0.borrow().clone())),
            read: Cell::new(0),
            unreadable: None,
        };
        let newest = now(search(&look(&device))).expect("found");
        assert_eq!(newest.lsn + 1, ring.log.next(), "after {batches} batches");
        // The window, the range between two sampled units, and reads that were begun ahead.
        let most = (2 * WINDOW + 5 * WINDOW) * RECORD_BYTES as u64 + 16 * 512;
        assert!(device.read.get() <= most, "{} bytes", device.read.get());
        assert!(device.read.get() < LONG.records * RECORD_BYTES as u64);
    }
}

#[test]
fn a_unit_that_cannot_be_read_where_the_end_may_be_has_everything_read() {
    let mut ring = long();
    fill(&mut ring, (0..60).map(|nth| 100 + nth * 7));
    let end = ring.log.next() % LONG.records * RECORD_BYTES as u64;
    let device = Counting {
        bytes: Bytes(RefCell::new(ring.device.0.borrow().clone())),
        read: Cell::new(0),
        unreadable: Some(end),
    };
    assert!(now(search(&look(&device))).is_none());
    let search = now(read_all(&look(&device)));
    assert_eq!(
        (
            search.newest.map(|newest| newest.lsn + 1),
            search.unreadable_units
        ),
        (Some(ring.log.next()), 1)
    );
}

#[test]
fn a_kill_below_the_tail_still_shadows_older_journal_entries() {
    let mut ring = long();
    ring.batch(&[Body::Block(block(1, 7))], |_| true);
    ring.batch(&[kill(1)], |_| true);
    fill(&mut ring, std::iter::repeat_n(1000, 8));
    ring.drop_to(4096);
    fill(&mut ring, std::iter::once(8));
    let mut found = Vec::new();
    // Stamped before the kill, which is below the tail.
    let journal = [(8, block(1, 70)), (12, block(2, 80))];
    let seed = Seed::new(&[1; 16]);
    let report = |blocks: &[FoundBlock]| found.extend_from_slice(blocks);
    let elsewhere = Elsewhere {
        journal: &journal,
        reached: 0,
    };
    let replayed = now(replay(&ring.device, LONG, seed, 16, elsewhere, report));
    assert!(replayed.tail > 16);
    let slots: Vec<u32> = found.iter().map(|found| found.block.slot).collect();
    assert_eq!(slots, [2]);
}

/// After damage that is longer than a batch, newer records are not searched for. A position
/// recorded outside the log makes replay find them.
#[test]
fn records_behind_damage_longer_than_a_batch_are_found() {
    for newest_too in [false, true] {
        let mut ring = long();
        ring.batch(&[Body::Block(block(1, 7))], |_| true);
        fill(&mut ring, std::iter::repeat_n(600, 9));
        let rot = ring.log.next() - 3 * WINDOW / 2;
        ring.batch(&[Body::Block(block(2, 8))], |_| true);
        let end = ring.log.next();
        let rotten = rot..match newest_too {
            true => end,
            false => end - 8,
        };
        let at = |lsn: u64| usize::try_from(lsn).expect("small") * RECORD_BYTES;
        ring.device.0.borrow_mut()[at(rotten.start)..at(rotten.end)].fill(0xa5);
        let seed = Seed::new(&[1; 16]);
        let mut found = Vec::new();
        let report = |blocks: &[FoundBlock]| found.extend_from_slice(blocks);
        let elsewhere = Elsewhere {
            journal: &[],
            reached: end,
        };
        let replayed = now(replay(&ring.device, LONG, seed, 16, elsewhere, report));
        assert_eq!(
            (replayed.next, replayed.damaged_records),
            (end, rotten.end - rotten.start),
            "{newest_too}"
        );
        let slots: Vec<u32> = found.iter().map(|found| found.block.slot).collect();
        assert_eq!(slots, [if newest_too { 1 } else { 2 }]);
    }
}
