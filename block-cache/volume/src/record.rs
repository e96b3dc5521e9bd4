//! Recording of clients' requests: a ring between the engine reactor, which appends each request,
//! and another thread that stores them.
//!
//! The reactor never waits for the other side, allocates nothing and makes no system call. A
//! request that finds the ring full is counted and not recorded. Requests of one turn of the
//! reactor, at most [`CLOCK_STRIDE`], share one reading of the clock, which would cost more than
//! all the rest.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::{Op, Request};
use forebay_io::rt;

/// Maximum number of requests that share a reading of the clock.
pub const CLOCK_STRIDE: u32 = 16;

/// Value of the tail when the other side has closed the ring.
const CLOSED: u64 = u64::MAX;

/// Length of a record, bytes.
pub const RECORD_BYTES: usize = 24;

/// A record in memory, three words. As little-endian bytes they are a record of the native trace
/// format. The fields are the time in nanoseconds since the start of the recording, the first byte,
/// and a word. The word has the length in bytes (32 bits), the volume (16 bits) and the operation
/// (8 bits). So the other side need not translate.
type Record = [u64; 3];

/// Returns the number of an operation: 0 for a read, 1 for a write with or without FUA, 2 for a
/// flush. A discard or write-zeroes, which transfers no data, is 3.
#[inline]
const fn number_of(op: Op) -> u64 {
    match op {
        Op::Read => 0,
        Op::Write { .. } => 1,
        Op::Flush => 2,
        Op::Discard | Op::WriteZeroes { .. } => 3,
    }
}

/// Each index has its own cache line, so that the two sides do not contend for one.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Index(AtomicU64);

#[derive(Debug)]
struct Ring {
    slots: Box<[[AtomicU64; 3]]>,
    /// Position of the next entry; the recorder's.
    head: Index,
    /// Position of the next entry to take, or [`CLOSED`]; the drain's.
    tail: Index,
    /// Number of requests that found no room.
    lost: AtomicU64,
    ended: AtomicBool,
}

impl Ring {
    /// Returns the index of an entry in `slots`, whose length is a power of two.
    #[inline]
    fn index(&self, at: u64) -> usize {
        at as usize & (self.slots.len() - 1)
    }
}

/// Creates an empty ring for `capacity` requests (rounded up to a power of two, at least two).
/// Returns the recording side, for the engine reactor, and the side that takes entries, for any
/// thread.
#[must_use]
pub fn ring(capacity: usize) -> (Recorder, Drain) {
    let slots = (0..capacity.max(2).next_power_of_two()).map(|_| Default::default());
    let ring = Arc::new(Ring {
        slots: slots.collect(),
        head: Index::default(),
        tail: Index::default(),
        lost: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    });
    let recorder = Recorder {
        ring: Arc::clone(&ring),
        head: Cell::new(0),
        full_at: Cell::new(ring.slots.len() as u64),
        began: Cell::new(None),
        now_ns: Cell::new(0),
        turn: Cell::new(0),
        looks: Cell::new(0),
    };
    (recorder, Drain { ring, tail: 0 })
}

/// Recording side of a ring; see [`Volume::record`](crate::Volume::record). Dropping it ends the
/// recording.
#[derive(Debug)]
pub struct Recorder {
    ring: Arc<Ring>,
    head: Cell<u64>,
    /// Position up to which there is room.
    full_at: Cell<u64>,
    /// Start of the recording.
    began: Cell<Option<Duration>>,
    now_ns: Cell<u64>,
    turn: Cell<u64>,
    /// Requests until the next reading of the clock.
    looks: Cell<u32>,
}

impl Recorder {
    /// Starts the recording's time, if it has not started.
    pub(crate) fn begin(&self) {
        self.began.set(self.began.get().or_else(|| Some(rt::now())));
    }

    /// Records a request that arrives now. Returns false if the other side is closed.
    #[inline]
    pub(crate) fn record(&self, volume: u16, request: &Request) -> bool {
        let time_ns = self.now_ns();
        let rest = u64::from(volume) << 32 | number_of(request.op) << 48;
        match u32::try_from(request.len) {
            Ok(len_bytes) => self.push([time_ns, request.offset, u64::from(len_bytes) | rest]),
            Err(_) => self.record_long(time_ns, request, rest),
        }
    }

    /// Records a request that is longer than an entry can express as several, in whole blocks.
    #[cold]
    fn record_long(&self, time_ns: u64, request: &Request, rest: u64) -> bool {
        let (mut offset_bytes, mut left) = (request.offset, request.len);
        loop {
            let len_bytes = u64::from(u32::try_from(left).unwrap_or(1 << 31));
            let open = self.push([time_ns, offset_bytes, len_bytes | rest]);
            left -= len_bytes;
            offset_bytes += len_bytes;
            if left == 0 || !open {
                return open;
            }
        }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        let turn = rt::turns();
        let looks = self.looks.get();
        if looks == 0 || self.turn.get() != turn {
            self.look(turn);
        } else {
            self.looks.set(looks - 1);
        }
        self.now_ns.get()
    }

    /// Reads the clock.
    #[inline(never)]
    fn look(&self, turn: u64) {
        self.turn.set(turn);
        self.looks.set(CLOCK_STRIDE - 1);
        let now = rt::now();
        let passed = now.saturating_sub(self.began.get().unwrap_or(now));
        self.now_ns
            .set(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX));
    }

    #[inline]
    fn push(&self, record: Record) -> bool {
        let (ring, head) = (&*self.ring, self.head.get());
        if head == self.full_at.get()
            && let Some(open) = self.full(head)
        {
            return open;
        }
        for (word, value) in ring.slots[ring.index(head)].iter().zip(record) {
            word.store(value, Ordering::Relaxed);
        }
        self.head.set(head + 1);
        ring.head.0.store(head + 1, Ordering::Release);
        true
    }

    /// Reads the position of the other side. Returns `None` if there is room. Otherwise the request
    /// is not recorded, and the value is whether the other side is open.
    #[cold]
    fn full(&self, head: u64) -> Option<bool> {
        let ring = &*self.ring;
        let tail = ring.tail.0.load(Ordering::Acquire);
        if tail == CLOSED {
            return Some(false);
        }
        self.full_at.set(tail + ring.slots.len() as u64);
        if head < self.full_at.get() {
            return None;
        }
        let lost = ring.lost.load(Ordering::Relaxed);
        ring.lost.store(lost + 1, Ordering::Relaxed);
        Some(true)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.ring.ended.store(true, Ordering::Release);
    }
}

/// Copies as many records as fit.
fn copy(slots: &[[AtomicU64; 3]], records: &mut [[u8; RECORD_BYTES]]) {
    for (slot, record) in slots.iter().zip(records) {
        let words = slot.each_ref().map(|word| word.load(Ordering::Relaxed));
        record[..8].copy_from_slice(&words[0].to_le_bytes());
        record[8..16].copy_from_slice(&words[1].to_le_bytes());
        record[16..].copy_from_slice(&words[2].to_le_bytes());
    }
}

/// Taking side of a ring. Dropping it ends the recording: the reactor notices when the ring would
/// be full.
#[derive(Debug)]
pub struct Drain {
    ring: Arc<Ring>,
    tail: u64,
}

impl Drain {
    /// Appends the records in the ring, at most `limit`, in order of arrival, [`RECORD_BYTES`]
    /// each. Returns their number.
    pub fn take(&mut self, bytes: &mut Vec<u8>, limit: usize) -> usize {
        let ring = &*self.ring;
        let head = ring.head.0.load(Ordering::Acquire);
        let count = limit.min((head - self.tail) as usize);
        let at = bytes.len();
        bytes.resize(at + count * RECORD_BYTES, 0);
        // Up to the ring's end, then from its beginning.
        let (before, behind) = ring.slots.split_at(ring.index(self.tail));
        let (records, _) = bytes[at..].as_chunks_mut::<RECORD_BYTES>();
        let (first, second) = records.split_at_mut(count.min(behind.len()));
        copy(behind, first);
        copy(before, second);
        self.tail += count as u64;
        self.ring.tail.0.store(self.tail, Ordering::Release);
        count
    }

    /// Returns the number of entries that found the ring full so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.ring.lost.load(Ordering::Relaxed)
    }

    /// Returns whether no entries will follow those in the ring.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ring.ended.load(Ordering::Acquire)
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.ring.tail.0.store(CLOSED, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::Buf;
    use forebay_io::rt::block_on_simulated;

    /// First byte, length, and the words of the first.
    fn taken(drain: &mut Drain) -> Vec<(u64, u64, Record)> {
        let mut bytes = vec![7];
        let count = drain.take(&mut bytes, usize::MAX >> 1);
        assert_eq!(bytes.len(), 1 + count * RECORD_BYTES);
        assert_eq!(bytes[0], 7, "it is appended");
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight"));
        let records = bytes[1..].chunks_exact(RECORD_BYTES).map(|record| {
            let words = [0, 8, 16].map(|at| word(&record[at..at + 8]));
            (words[1], words[2] & 0xffff_ffff, words)
        });
        records.collect()
    }

    #[test]
    fn entries_are_read_as_written() {
        block_on_simulated(1, async {
            let (recorder, mut drain) = ring(8);
            recorder.begin();
            let requests = [
                Request::read(4096, Buf::zeroed(512)),
                Request::write(8192, Buf::zeroed(4096), true),
                Request::flush(),
                Request::discard(0, 1 << 20),
                Request::write_zeroes(u64::MAX - 4095, 4095, false, true),
            ];
            for request in &requests {
                assert!(recorder.record(65_535, request));
                rt::sleep(Duration::from_micros(3)).await;
            }
            let entries = taken(&mut drain);
            let ops = [0, 1, 2, 3, 3];
            for (at, ((_, _, words), request)) in entries.iter().zip(&requests).enumerate() {
                let rest = request.len | 65_535 << 32 | ops[at] << 48;
                assert_eq!(*words, [3000 * at as u64, request.offset, rest]);
            }
            assert_eq!((entries.len(), drain.lost()), (5, 0));
        });
    }

    #[test]
    fn a_request_that_is_longer_than_an_entry_is_several() {
        block_on_simulated(1, async {
            let (recorder, mut drain) = ring(8);
            recorder.record(0, &Request::discard(4096, 5 << 30));
            let entries = taken(&mut drain);
            let ranges = entries.iter().map(|(offset, len, _)| (*offset, *len));
            let expected = [(4096, 1 << 31), (4096 + (1 << 31), 3 << 30)];
            assert_eq!(ranges.collect::<Vec<_>>(), expected);
        });
    }

    #[test]
    fn requests_without_room_are_counted_and_recording_continues() {
        block_on_simulated(1, async {
            let (recorder, mut drain) = ring(4);
            for number in 0..10 {
                assert!(recorder.record(0, &Request::discard(number * 512, 512)));
            }
            let firsts = |entries: Vec<(u64, u64, Record)>| -> Vec<_> {
                entries.iter().map(|(offset, ..)| offset / 512).collect()
            };
            assert_eq!(firsts(taken(&mut drain)), [0, 1, 2, 3]);
            assert_eq!(drain.lost(), 6);
            assert!(recorder.record(0, &Request::discard(99 * 512, 512)));
            assert_eq!(firsts(taken(&mut drain)), [99]);
            assert!(!drain.ended());
            drop(recorder);
            assert!(drain.ended());
        });
    }

    #[test]
    fn the_recorder_notices_that_the_reader_is_gone() {
        block_on_simulated(1, async {
            let (recorder, drain) = ring(4);
            drop(drain);
            let recorded = (0..10).take_while(|_| recorder.record(0, &Request::flush()));
            assert_eq!(recorded.count(), 4);
        });
    }

    #[test]
    fn two_threads_lose_nothing_and_mix_nothing_up() {
        const REQUESTS: u64 = 200_000;
        let (send, receive) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut drain: Drain = receive.recv().expect("the ring");
            let mut next = 0;
            loop {
                let ended = drain.ended();
                for (offset, len, _) in taken(&mut drain) {
                    let number = offset / 512;
                    assert!(number >= next, "in order");
                    assert_eq!(len, number % 1000 * 512 + 512);
                    next = number + 1;
                }
                if ended && drain.tail == drain.ring.head.0.load(Ordering::Acquire) {
                    return drain.tail + drain.lost();
                }
            }
        });
        block_on_simulated(1, async move {
            let (recorder, drain) = ring(512);
            send.send(drain).expect("the reader lives");
            for number in 0..REQUESTS {
                recorder.record(
                    0,
                    &Request::discard(number * 512, number % 1000 * 512 + 512),
                );
            }
        });
        assert_eq!(reader.join().expect("no panic"), REQUESTS);
    }
}
