//! Lanes: the owner of a lane may write with its free block, and publishes there which block it
//! reads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Free block of a lane in one arena, and the flog entry of its next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) block: u32,
    /// Entry of the pair.
    pub(crate) entry: usize,
    pub(crate) sequence: u32,
}

/// All lanes. They contain the *read tracking table*: the block that each lane reads.
pub(crate) struct Lanes {
    slots: Box<[Slot]>,
}

/// A lane, in its own cache lines.
#[repr(align(128))]
struct Slot {
    /// Free blocks, one an arena.
    free: Mutex<Box<[Free]>>,
    /// Arena and internal block that is being read, or [`NOTHING`].
    reading: AtomicU64,
}

const NOTHING: u64 = u64::MAX;

fn key(arena: u32, block: u32) -> u64 {
    u64::from(arena) << 32 | u64::from(block)
}

/// A lane in use.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    index: usize,
    free: MutexGuard<'a, Box<[Free]>>,
}

/// A pinned block: it is not overwritten until this is dropped.
pub(crate) struct Pin<'a> {
    reading: &'a AtomicU64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.reading.store(NOTHING, Ordering::Release);
    }
}

thread_local! {
    static HOME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns a number of this thread, so that threads start at different lanes.
fn home() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    HOME.with(|home| {
        home.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            home.set(Some(number));
            number
        })
    })
}

impl Lanes {
    /// Creates the lanes, each with its free blocks, one an arena.
    pub(crate) fn new(free: Vec<Box<[Free]>>) -> Self {
        let slots = free.into_iter().map(|free| Slot {
            free: Mutex::new(free),
            reading: AtomicU64::new(NOTHING),
        });
        Self {
            slots: slots.collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Takes the first free lane, starting at the thread's own. Waits for that one if none is free.
    pub(crate) fn take(&self) -> Lane<'_> {
        let home = home() % self.slots.len();
        for step in 0..self.slots.len() {
            let index = (home + step) % self.slots.len();
            if let Ok(free) = self.slots[index].free.try_lock() {
                return Lane {
                    lanes: self,
                    index,
                    free,
                };
            }
        }
        self.take_this(home)
    }

    /// Takes this lane.
    pub(crate) fn take_this(&self, index: usize) -> Lane<'_> {
        let free = self.slots[index].free.lock();
        Lane {
            lanes: self,
            index,
            // A thread that panicked in a write may have published a block that the lane still
            // counts as free.
            free: free.expect("no write on this lane panicked"),
        }
    }
}

impl Lane<'_> {
    pub(crate) const fn index(&self) -> usize {
        self.index
    }

    /// Returns the lane's free block in an arena.
    pub(crate) fn free(&mut self, arena: u32) -> &mut Free {
        &mut self.free[arena as usize]
    }

    /// Publishes that the lane reads a block. The block may have been freed before that is visible,
    /// so the reader must check the map again.
    pub(crate) fn pin(&self, arena: u32, block: u32) -> Pin<'_> {
        let reading = &self.lanes.slots[self.index].reading;
        reading.store(key(arena, block), Ordering::Relaxed);
        // Precedes the second read of the map, as the counterpart of `wait_for_readers`.
        fence(Ordering::SeqCst);
        Pin { reading }
    }

    /// Waits until no lane reads a block that is not mapped any more.
    pub(crate) fn wait_for_readers(&self, arena: u32, block: u32) {
        // Follows the change of the map: a reader either sees the change, or is seen here.
        fence(Ordering::SeqCst);
        for slot in &self.lanes.slots {
            let mut rounds = 0_u32;
            while slot.reading.load(Ordering::Acquire) == key(arena, block) {
                rounds += 1;
                match rounds {
                    0..64 => std::hint::spin_loop(),
                    64..256 => std::thread::yield_now(),
                    // The reader may be descheduled: let it run.
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
    }
}
