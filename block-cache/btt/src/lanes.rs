//! Lanes: who has one may write with its free block, and says there which block it reads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// A lane's free block of one arena, and the flog entry that its next write goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) block: u32,
    /// Which of the pair.
    pub(crate) entry: usize,
    pub(crate) sequence: u32,
}

/// All lanes. The *read tracking table* is in them: the block that each one reads.
pub(crate) struct Lanes {
    slots: Box<[Slot]>,
}

/// Apart from its neighbours' cache lines.
#[repr(align(128))]
struct Slot {
    /// One an arena.
    free: Mutex<Box<[Free]>>,
    /// The arena and internal block that is being read, or [`NOTHING`].
    reading: AtomicU64,
}

const NOTHING: u64 = u64::MAX;

fn key(arena: u32, block: u32) -> u64 {
    u64::from(arena) << 32 | u64::from(block)
}

/// A lane that is taken.
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    index: usize,
    free: MutexGuard<'a, Box<[Free]>>,
}

/// A block that is not written to while this lives.
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

/// A number of this thread, so that each begins to look for a lane at another place.
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
    /// For each lane its free blocks, one an arena.
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

    /// Takes the first lane that is free, from the thread's own on; waits for that one if none is.
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

    /// Takes this very lane.
    pub(crate) fn take_this(&self, index: usize) -> Lane<'_> {
        let free = self.slots[index].free.lock();
        Lane {
            lanes: self,
            index,
            // A thread that panicked in a write may have published a block that the lane still calls free.
            free: free.expect("no write on this lane panicked"),
        }
    }
}

impl Lane<'_> {
    pub(crate) const fn index(&self) -> usize {
        self.index
    }

    /// The lane's free block in an arena.
    pub(crate) fn free(&mut self, arena: u32) -> &mut Free {
        &mut self.free[arena as usize]
    }

    /// Says that the lane reads a block. It may have been freed before this was seen: who reads looks at
    /// the map again after it.
    pub(crate) fn pin(&self, arena: u32, block: u32) -> Pin<'_> {
        let reading = &self.lanes.slots[self.index].reading;
        reading.store(key(arena, block), Ordering::Relaxed);
        // Before the map is looked at again: `wait_for_readers` has its counterpart.
        fence(Ordering::SeqCst);
        Pin { reading }
    }

    /// Waits until nobody reads a block that the map does not lead to any more.
    pub(crate) fn wait_for_readers(&self, arena: u32, block: u32) {
        // After the map was changed: a reader either saw that, or is seen here.
        fence(Ordering::SeqCst);
        for slot in &self.lanes.slots {
            let mut rounds = 0_u32;
            while slot.reading.load(Ordering::Acquire) == key(arena, block) {
                rounds += 1;
                match rounds {
                    0..64 => std::hint::spin_loop(),
                    64..256 => std::thread::yield_now(),
                    // The reader has been put to sleep: let it have the processor.
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
        }
    }
}
