mod ends;
mod lines;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use forebay_block::{Completion, DeviceInfo, Op, Request};

use std::ops::Deref;

use super::*;
use crate::log::Log;
use crate::record::{BlockRecord, Body, MarkState};

/// Content of a ring, with its blocks, oldest first.
struct Found {
    replayed: Replayed,
    blocks: Vec<FoundBlock>,
}

impl Deref for Found {
    type Target = Replayed;

    fn deref(&self) -> &Replayed {
        &self.replayed
    }
}

/// A device of plain bytes that completes at once.
struct Bytes(RefCell<Vec<u8>>);

impl BlockDevice for Bytes {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("bytes", self.0.borrow().len() as u64)
    }

    fn submit(&self, request: Request, done: Completion) {
        let at = usize::try_from(request.offset).expect("small");
        let mut bytes = self.0.borrow_mut();
        match (request.op, request.buf) {
            (Op::Read, Some(buf)) => buf.copy_from(0, &bytes[at..at + buf.len()]),
            (Op::Write { .. }, Some(buf)) => {
                let len = buf.len();
                buf.copy_to(0, &mut bytes[at..at + len]);
            }
            _ => {}
        }
        done.complete(Ok(()));
    }
}

const GEOMETRY: LogGeometry = LogGeometry {
    offset: 0,
    records: 32,
    unit_bytes: 512,
};

/// A device that answers so many requests and then none.
struct Vanishing<'a>(&'a Bytes, Cell<u32>);

impl BlockDevice for Vanishing<'_> {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        match self.1.get() {
            0 => done.complete(Err(ErrorKind::Io.into())),
            left => {
                self.1.set(left - 1);
                self.0.submit(request, done);
            }
        }
    }
}

struct Ring {
    device: Bytes,
    log: Log,
}

impl Ring {
    fn new() -> Self {
        Self {
            device: Bytes(RefCell::new(vec![0; 32 * RECORD_BYTES])),
            log: Log::new(GEOMETRY, Seed::new(&[1; 16]), 0, 0),
        }
    }

    /// Writes a batch; `keep` says which of its units reach the device.
    fn batch(&mut self, bodies: &[Body], keep: impl Fn(usize) -> bool) {
        for body in bodies {
            self.log.push(body);
        }
        for extent in self.log.seal() {
            let bytes = extent.buf.to_vec();
            for (unit, chunk) in bytes.chunks(512).enumerate() {
                if keep(unit) {
                    let at = usize::try_from(extent.offset).expect("small") + unit * 512;
                    self.device.0.borrow_mut()[at..at + 512].copy_from_slice(chunk);
                }
            }
        }
        self.log.committed();
    }

    fn drop_to(&mut self, tail: u64) {
        while self.log.oldest().is_some_and(|lsn| lsn < tail) {
            self.log.drop_oldest();
        }
    }

    fn replay(&self, journal: &[(u64, BlockRecord)]) -> Found {
        self.replay_with(Elsewhere {
            journal,
            reached: 0,
        })
    }

    fn replay_with(&self, elsewhere: Elsewhere<'_>) -> Found {
        let mut blocks = Vec::new();
        let report = |found: &[FoundBlock]| blocks.extend_from_slice(found);
        let seed = Seed::new(&[1; 16]);
        let future = replay(&self.device, GEOMETRY, seed, 16, elsewhere, report);
        let replayed = match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.expect("readable"),
            Poll::Pending => panic!("the device completes at once"),
        };
        blocks.reverse();
        Found { replayed, blocks }
    }
}

fn block(slot: u32, number: u64) -> BlockRecord {
    BlockRecord {
        volume: 1,
        class: 0,
        block: number,
        slot,
        valid: 3,
        dirty: 1,
        bad: 0,
        sums: 0,
    }
}

fn kill(slot: u32) -> Body {
    let mut slots = [0; 10];
    slots[0] = slot;
    Body::Kill { slots, count: 1 }
}

fn blocks(replayed: &Found) -> Vec<(u32, u64)> {
    replayed
        .blocks
        .iter()
        .map(|found| (found.block.slot, found.block.block))
        .collect()
}

#[test]
fn the_newest_record_of_a_slot_wins_over_laps() {
    let mut ring = Ring::new();
    assert_eq!(ring.replay(&[]).next, 0, "an empty ring");
    for lap in 0..20 {
        ring.drop_to(ring.log.next().saturating_sub(16));
        ring.batch(
            &[Body::Block(block(1, lap)), Body::Block(block(2, lap + 100))],
            |_| true,
        );
        let found = ring.replay(&[]);
        assert_eq!(blocks(&found), [(1, lap), (2, lap + 100)]);
        assert_eq!((found.next, found.damaged_records), (ring.log.next(), 0));
    }
}

/// If the newest unit were taken for empty, it would be overwritten.
#[test]
fn records_that_cannot_be_read_any_more_are_an_error_and_not_a_gap() {
    let mut ring = Ring::new();
    for slot in 0..3 {
        ring.batch(&[Body::Block(block(slot, 7))], |_| true);
    }
    let (mut refused, mut read) = (0, 0);
    for answers in 1..20 {
        let device = Vanishing(&ring.device, Cell::new(answers));
        let seed = Seed::new(&[1; 16]);
        let future = replay(&device, GEOMETRY, seed, 16, Elsewhere::default(), |_| {});
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(replayed)) => {
                assert_eq!(replayed.empty_units, [0; 0], "after {answers}");
                read += 1;
            }
            Poll::Ready(Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                refused += 1;
            }
            Poll::Pending => panic!("the device completes at once"),
        }
    }
    assert!(refused > 0 && read > 0, "{refused} {read}");
}

#[test]
fn a_killed_slot_stays_dead_when_only_its_kill_is_overwritten() {
    let mut ring = Ring::new();
    ring.batch(&[Body::Block(block(1, 7))], |_| true);
    ring.batch(&[kill(1)], |_| true);
    ring.drop_to(16);
    ring.batch(&[Body::Close], |_| true);
    ring.batch(&[Body::Close], |_| true);
    assert!(blocks(&ring.replay(&[])).is_empty());
    // The ring is full; this batch of two units goes over the record and its kill. Only the second
    // unit reaches the device: the record is there, the kill is not.
    let pads = [Body::Pad; 16];
    ring.batch(&pads, |unit| unit == 1);
    assert!(blocks(&ring.replay(&[])).is_empty());
}

#[test]
fn a_torn_batch_is_no_damage_and_a_rotten_unit_is() {
    let mut ring = Ring::new();
    ring.batch(&[Body::Block(block(1, 7))], |_| true);
    ring.batch(&[Body::Block(block(2, 8))], |_| true);
    let many: Vec<Body> = (3..12).map(|slot| Body::Block(block(slot, 9))).collect();
    ring.batch(&many, |unit| unit == 1);
    let found = ring.replay(&[]);
    assert_eq!(blocks(&found), [(1, 7), (2, 8), (11, 9)]);
    assert_eq!(found.damaged_records, 0);
    ring.device.0.borrow_mut()[512 + 70] ^= 1;
    ring.device.0.borrow_mut()[512 + 5] ^= 1;
    let found = ring.replay(&[]);
    assert_eq!(found.damaged_records, 2);
    assert_eq!(blocks(&found), [(1, 7), (11, 9)]);
}

/// A position recorded outside the log turns an apparently earlier end into damage.
#[test]
fn an_end_that_was_further_is_damage() {
    let mut ring = Ring::new();
    for slot in 1..4 {
        ring.batch(&[Body::Block(block(slot, 7))], |_| true);
    }
    let entries = [(16, block(9, 90)), (24, block(10, 100))];
    let elsewhere = |reached| Elsewhere {
        journal: &entries,
        reached,
    };
    for reached in [0, 8, 23, 24] {
        let found = ring.replay_with(elsewhere(reached));
        assert_eq!((found.next, found.damaged_records), (24, 0), "{reached}");
    }
    let whole = ring.device.0.borrow().clone();
    // One record, the newest two units, all three.
    for (rot, sound) in [(16..17, 2), (8..24, 1), (0..24, 0)] {
        ring.device.0.borrow_mut().copy_from_slice(&whole);
        let bytes = rot.start * RECORD_BYTES..rot.end * RECORD_BYTES;
        ring.device.0.borrow_mut()[bytes].fill(0xa5);
        let unknown = ring.replay_with(elsewhere(0));
        assert_eq!(unknown.damaged_records, 0, "nothing says so: {rot:?}");
        let found = ring.replay_with(elsewhere(24));
        assert_eq!(
            (found.next, found.damaged_records),
            (24, rot.len() as u64),
            "{rot:?}"
        );
        let mut expected: Vec<_> = (1..=sound).map(|slot| (slot, 7)).collect();
        expected.extend([(9, 90), (10, 100)]);
        assert_eq!(blocks(&found), expected, "{rot:?}");
        assert!(found.torn_units.is_empty(), "nothing is mended there");
        // The log that continues there is no more damaged than that.
        let mut log = Log::new(GEOMETRY, Seed::new(&[1; 16]), found.tail, found.next);
        log.push(&Body::Close);
        std::mem::swap(&mut ring.log, &mut log);
        ring.batch(&[], |_| true);
        let second = ring.replay_with(elsewhere(24));
        assert_eq!(second.next, 32, "{rot:?}");
        let still = if sound == 0 { 0 } else { rot.len() as u64 };
        assert_eq!(second.damaged_records, still, "{rot:?}");
    }
}

/// Where the log has no room behind what it lost, it continues where that began, and nothing of it
/// can come back.
#[test]
fn a_lost_end_that_left_no_room_is_written_over() {
    let mut ring = Ring::new();
    for slot in 1..5 {
        ring.batch(&[Body::Block(block(slot, 7))], |_| true);
    }
    // The unit at 1,024 cannot be read now.
    let healed = ring.device.0.borrow()[1024..].to_vec();
    ring.device.0.borrow_mut()[1024..].fill(0xa5);
    let elsewhere = |reached| Elsewhere {
        journal: &[],
        reached,
    };
    let found = ring.replay_with(elsewhere(32));
    assert_eq!((found.tail, found.next, found.damaged_records), (0, 16, 16));
    assert_eq!(found.lost, 16..32);
    assert_eq!(blocks(&found), [(1, 7), (2, 7)]);
    for emptied in [false, true] {
        // It becomes readable after a start has continued.
        ring.device.0.borrow_mut()[1024..].copy_from_slice(&healed);
        if emptied {
            let future =
                rewrite_last_batch(&ring.device, GEOMETRY, Seed::new(&[1; 16]), &found.replayed);
            let done = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(done, Poll::Ready(Ok(()))));
        }
        ring.log = Log::new(GEOMETRY, Seed::new(&[1; 16]), found.tail, found.next);
        ring.batch(&[Body::Block(block(4, 9))], |_| true);
        let second = blocks(&ring.replay_with(elsewhere(24)));
        let newest = if emptied { (4, 9) } else { (4, 7) };
        assert_eq!(second.last(), Some(&newest));
    }
    // A whole ring further: nothing that is there was left.
    let found = ring.replay_with(elsewhere(64));
    let ends = (found.tail, found.next, found.damaged_records);
    assert_eq!(ends, (64, 64, 32));
    assert!(blocks(&found).is_empty() && found.lost.is_empty());
}

#[test]
fn journal_entries_stand_where_they_were_stamped() {
    let mut ring = Ring::new();
    ring.batch(&[Body::Block(block(1, 7))], |_| true);
    ring.batch(&[kill(2), Body::Block(block(3, 30))], |_| true);
    let journal = [
        (8, block(1, 70)),
        (8, block(2, 20)),
        (9, block(3, 31)),
        (16, block(3, 32)),
        (16, block(4, 40)),
    ];
    let found = ring.replay(&journal);
    assert_eq!(blocks(&found), [(1, 70), (3, 32), (4, 40)]);
    assert!(found.blocks.iter().all(|found| found.lsn.is_none()));
    // The entry for slot 2 came before its kill and stays dead.
}

#[test]
fn a_mended_gap_is_never_taken_for_damage() {
    let mut ring = Ring::new();
    ring.batch(&[Body::Block(block(1, 7))], |_| true);
    let many: Vec<Body> = (3..12).map(|slot| Body::Block(block(slot, 9))).collect();
    ring.batch(&many, |unit| unit == 1);
    let found = ring.replay(&[]);
    assert_eq!(
        (found.torn_units.as_slice(), found.last_batch),
        (&[8][..], 8)
    );
    let incomplete = ring.device.0.borrow().clone();
    for completed in [false, true] {
        *ring.device.0.borrow_mut() = incomplete.clone();
        if completed {
            let future =
                rewrite_last_batch(&ring.device, GEOMETRY, Seed::new(&[1; 16]), &found.replayed);
            let done = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(done, Poll::Ready(Ok(()))));
        }
        let mut log = Log::new(GEOMETRY, Seed::new(&[1; 16]), found.tail, found.next);
        log.push(&Body::Close);
        let extent = log.seal().remove(0);
        let at = usize::try_from(extent.offset).expect("small");
        let bytes = extent.buf.to_vec();
        ring.device.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        let second = ring.replay(&[]);
        assert_eq!(second.damaged_records, if completed { 0 } else { 8 });
        assert_eq!(blocks(&second), [(1, 7), (11, 9)]);
    }
}

#[test]
fn a_close_voids_marks_until_the_next_open() {
    let mark = Body::Mark {
        volume: 1,
        region: 5,
        state: MarkState::MaybeDirty,
    };
    let open = Body::Open {
        boot_id: [4; 16],
        journal: true,
    };
    let mut ring = Ring::new();
    ring.batch(&[open, mark], |_| true);
    let found = ring.replay(&[]);
    assert_eq!((found.marks.len(), found.clean), (1, false));
    ring.batch(&[Body::Close], |_| true);
    let found = ring.replay(&[]);
    assert_eq!((found.marks.len(), found.clean), (0, true));
    ring.batch(&[open], |_| true);
    let found = ring.replay(&[]);
    assert_eq!((found.marks.len(), found.clean), (0, false));
    let opening = Opening {
        boot_id: [4; 16],
        had_journal: true,
    };
    assert_eq!(found.last_open, Some(opening));

    // A batch of an earlier version, in which the tail reached the mark.
    let mut ring = Ring::new();
    ring.batch(&[open, mark], |_| true);
    ring.batch(&[Body::Close, mark], |_| true);
    let found = ring.replay(&[]);
    assert_eq!((found.marks.len(), found.clean), (0, true));
}
