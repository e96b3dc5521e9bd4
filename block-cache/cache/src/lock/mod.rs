//! Locks on the granules of regions, by address. Reads that hit take them shared; any change of a
//! granule's content takes them exclusive. Requests with a granule in common are served in order of
//! arrival. So requests to one logical block are ordered across connections.
//!
//! A task that reads or writes granules of a block holds those granules. A task that creates or
//! removes a block holds all granules that the block covers. A task that holds one lock may wait
//! for another only in ascending order of regions (discards and zeroing do), so there is no
//! deadlock. A range of many regions is locked as one: see [`range`].
//!
//! Writes and fills take their locks in
//! [`Engine::lock_blocks`](crate::engine::Engine::lock_blocks), which knows the blocks. Read hits,
//! the reclaimer and the cleaner use this module directly.

mod range;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_metadata::order::{Part, Site};
use forebay_policy::BlockKey;

use crate::geometry::{Block, Geometry};
use crate::map::BlockState;
use range::Held;

/// Returns a key that no block has, for tests that leave a lock out.
fn nobodys() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the key of a region's lock, and the region. The region is `None` if a test leaves the
/// lock out.
fn key_of(site: Site, region: BlockKey) -> (u64, Option<BlockKey>) {
    match site.lacks(Part::Lock) {
        true => (nobodys(), None),
        false => (region.hash(), Some(region)),
    }
}

/// The key is mixed already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[derive(Debug)]
struct Lock {
    /// The region that it is of.
    region: Option<BlockKey>,
    /// Units that are held exclusively.
    exclusive: u64,
    /// Number of readers that hold each granule.
    readers: [u8; 64],
    /// Units that readers hold.
    shared: u64,
    next_ticket: u64,
    queue: VecDeque<Waiting>,
}

impl Lock {
    const fn new(region: Option<BlockKey>) -> Self {
        Self {
            region,
            exclusive: 0,
            readers: [0; 64],
            shared: 0,
            next_ticket: 0,
            queue: VecDeque::new(),
        }
    }
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    granules: u64,
    exclusive: bool,
    waker: Waker,
}

/// The set bits of a mask.
fn bits_of(mask: u64) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let granule = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        (granule < 64).then_some(granule as usize)
    })
}

impl Lock {
    fn admits(&self, granules: u64, exclusive: bool) -> bool {
        if exclusive {
            return (self.exclusive | self.shared) & granules == 0;
        }
        // More readers of one granule than can be counted wait their turn.
        self.exclusive & granules == 0
            && bits_of(self.shared & granules).all(|granule| self.readers[granule] < u8::MAX)
    }

    fn take(&mut self, granules: u64, exclusive: bool) {
        if exclusive {
            self.exclusive |= granules;
            return;
        }
        self.shared |= granules;
        for granule in bits_of(granules) {
            self.readers[granule] += 1;
        }
    }

    fn give_back(&mut self, granules: u64, exclusive: bool) {
        if exclusive {
            debug_assert_eq!(self.exclusive & granules, granules);
            self.exclusive &= !granules;
            return;
        }
        for granule in bits_of(granules) {
            self.readers[granule] -= 1;
            if self.readers[granule] == 0 {
                self.shared &= !(1 << granule);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.exclusive | self.shared == 0
    }

    /// Returns the wakers of the waiters that may continue; each checks for itself.
    fn ready_wakers(&self) -> Vec<Waker> {
        let mut who = Vec::new();
        for (place, waiting) in self.queue.iter().enumerate() {
            if self.admits(waiting.granules, waiting.exclusive)
                && !self.overtakes(place, waiting.granules, waiting.exclusive)
            {
                who.push(waiting.waker.clone());
            }
        }
        who
    }

    /// Returns whether one of the first `place` waiters must go before this one.
    fn overtakes(&self, place: usize, granules: u64, exclusive: bool) -> bool {
        self.queue
            .iter()
            .take(place)
            .any(|ahead| ahead.granules & granules != 0 && (ahead.exclusive || exclusive))
    }
}

/// Returns the region of a block and the granules that the block covers there.
pub(crate) fn lock_of(geometry: Geometry, volume: u16, block: Block) -> (BlockKey, u64) {
    let region = geometry.region_of(block.unit);
    let granules = geometry.covers(geometry.span(block));
    (BlockKey::new(volume, region), granules)
}

type Locks = HashMap<u64, Lock, BuildHasherDefault<Identity>>;

/// All block locks that are held or waited for.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    /// Locks by region. While a range is held, one lock stands for all ranges, so that this is not
    /// empty.
    locks: RefCell<Locks>,
    /// Ranges of regions that are held.
    ranges: RefCell<Vec<Held>>,
}

impl LockTable {
    /// Waits for granules of the region that `region` names.
    #[track_caller]
    pub(crate) fn shared(&self, region: BlockKey, granules: u64) -> Acquire<'_> {
        self.acquire(Site::here(), region, granules, false)
    }

    /// Waits for granules of the region that `region` names, alone.
    #[track_caller]
    pub(crate) fn exclusive(&self, region: BlockKey, granules: u64) -> Acquire<'_> {
        self.acquire(Site::here(), region, granules, true)
    }

    pub(crate) fn acquire(
        &self,
        site: Site,
        region: BlockKey,
        granules: u64,
        exclusive: bool,
    ) -> Acquire<'_> {
        let (key, region) = key_of(site, region);
        Acquire {
            table: self,
            key,
            region,
            granules,
            exclusive,
            ticket: None,
            done: false,
        }
    }

    /// Takes granules of a region alone, if that can be had at once.
    pub(crate) fn try_exclusive(
        &self,
        site: Site,
        region: BlockKey,
        granules: u64,
    ) -> Option<Guard<'_>> {
        let (key, region) = key_of(site, region);
        let mut guard = Guard {
            table: self,
            key,
            region,
            granules: 0,
            exclusive: true,
        };
        guard.widen(granules).then_some(guard)
    }

    /// A lock that [`Guard::hand_over`] gave away.
    pub(crate) const fn adopt(&self, handed: HandedOver) -> Guard<'_> {
        Guard {
            table: self,
            key: handed.key,
            region: handed.region,
            granules: handed.granules,
            exclusive: handed.exclusive,
        }
    }

    /// Returns whether the lock is available at once.
    #[inline]
    pub(crate) fn admits(&self, region: BlockKey, granules: u64, exclusive: bool) -> bool {
        self.locks.borrow().is_empty() || self.admits_locked(region, granules, exclusive)
    }

    /// The same while something is locked. Apart, so that hits have what is above inlined.
    #[inline(never)]
    fn admits_locked(&self, region: BlockKey, granules: u64, exclusive: bool) -> bool {
        let locks = self.locks.borrow();
        let admits = locks.get(&region.hash()).is_none_or(|lock| {
            lock.admits(granules, exclusive)
                && !lock.overtakes(lock.queue.len(), granules, exclusive)
        });
        admits && !self.is_in_range(Some(region))
    }

    /// Takes a lock that [`LockTable::admits`].
    pub(crate) fn take(&self, region: BlockKey, granules: u64, exclusive: bool) {
        debug_assert!(self.admits(region, granules, exclusive));
        let mut locks = self.locks.borrow_mut();
        let lock = locks.entry(region.hash());
        let lock = lock.or_insert_with(|| Lock::new(Some(region)));
        lock.take(granules, exclusive);
    }

    /// Returns whether one of these granules is locked exclusively now.
    pub(crate) fn is_exclusive(&self, region: BlockKey, granules: u64) -> bool {
        self.locks
            .borrow()
            .get(&region.hash())
            .is_some_and(|lock| lock.exclusive & granules != 0)
            || self.is_in_range(Some(region))
    }

    /// Gives back a lock that [`LockTable::take`] took.
    pub(crate) fn release(&self, region: BlockKey, granules: u64, exclusive: bool) {
        self.give_back(region.hash(), granules, exclusive);
    }

    /// Returns whether a task holds the lock of some of a cached block alone.
    pub(crate) fn is_changed(&self, geometry: Geometry, entry: &BlockState) -> bool {
        let (region, granules) = lock_of(geometry, entry.key.volume(), entry.block());
        self.is_exclusive(region, granules)
    }

    fn give_back(&self, key: u64, granules: u64, exclusive: bool) {
        let mut locks = self.locks.borrow_mut();
        let lock = locks.get_mut(&key).expect("a held lock is in the table");
        lock.give_back(granules, exclusive);
        if lock.is_idle() {
            locks.remove(&key);
            return;
        }
        let woken = lock.ready_wakers();
        drop(locks);
        for waker in woken {
            waker.wake();
        }
    }
}

/// A held lock that passes from one task to another.
#[derive(Debug)]
#[must_use = "the lock is held until somebody adopts it"]
pub(crate) struct HandedOver {
    key: u64,
    region: Option<BlockKey>,
    granules: u64,
    exclusive: bool,
}

/// Waits for a lock.
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct Acquire<'a> {
    table: &'a LockTable,
    key: u64,
    region: Option<BlockKey>,
    granules: u64,
    exclusive: bool,
    ticket: Option<u64>,
    done: bool,
}

impl<'a> Future for Acquire<'a> {
    type Output = Guard<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard<'a>> {
        let this = &mut *self;
        let in_range = this.table.is_in_range(this.region);
        let mut locks = this.table.locks.borrow_mut();
        let lock = locks.entry(this.key);
        let lock = lock.or_insert_with(|| Lock::new(this.region));
        let (granules, exclusive) = (this.granules, this.exclusive);
        let place = match this.ticket {
            None => lock.queue.len(),
            Some(ticket) => lock
                .queue
                .iter()
                .position(|waiting| waiting.ticket == ticket)
                .expect("a waiter stays in the queue"),
        };
        // Readers may share; later ones do not overtake earlier ones.
        if !in_range
            && lock.admits(granules, exclusive)
            && !lock.overtakes(place, granules, exclusive)
        {
            lock.take(granules, exclusive);
            if this.ticket.is_some() {
                lock.queue.remove(place);
            }
            this.done = true;
            return Poll::Ready(Guard {
                table: this.table,
                key: this.key,
                region: this.region,
                granules,
                exclusive,
            });
        }
        let waker = cx.waker().clone();
        match this.ticket {
            None => {
                let ticket = lock.next_ticket;
                lock.next_ticket += 1;
                lock.queue.push_back(Waiting {
                    ticket,
                    granules,
                    exclusive,
                    waker,
                });
                this.ticket = Some(ticket);
            }
            Some(_) => lock.queue[place].waker = waker,
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.filter(|_| !self.done) else {
            return;
        };
        let mut locks = self.table.locks.borrow_mut();
        let Some(lock) = locks.get_mut(&self.key) else {
            return;
        };
        lock.queue.retain(|waiting| waiting.ticket != ticket);
        // It may have been woken, and in the way of those behind it.
        let woken = lock.ready_wakers();
        if lock.is_idle() {
            locks.remove(&self.key);
        }
        drop(locks);
        for waker in woken {
            waker.wake();
        }
    }
}

/// A held lock; dropping it gives it back.
#[must_use = "dropping the guard releases the lock"]
pub(crate) struct Guard<'a> {
    table: &'a LockTable,
    key: u64,
    region: Option<BlockKey>,
    granules: u64,
    exclusive: bool,
}

impl Guard<'_> {
    /// The granules that it holds.
    pub(crate) const fn granules(&self) -> u64 {
        self.granules
    }

    /// Takes more granules of the region, if that can be had at once.
    pub(crate) fn widen(&mut self, granules: u64) -> bool {
        let more = granules & !self.granules;
        let mut locks = self.table.locks.borrow_mut();
        let in_the_way = |lock: &Lock| {
            !lock.admits(more, self.exclusive)
                || lock.overtakes(lock.queue.len(), more, self.exclusive)
        };
        if locks.get(&self.key).is_some_and(in_the_way) || self.table.is_in_range(self.region) {
            return false;
        }
        let lock = locks.entry(self.key);
        let lock = lock.or_insert_with(|| Lock::new(self.region));
        lock.take(more, self.exclusive);
        self.granules |= more;
        true
    }

    /// Gives the lock to a task that has no part in this borrow: see [`LockTable::adopt`].
    pub(crate) fn hand_over(self) -> HandedOver {
        let guard = std::mem::ManuallyDrop::new(self);
        HandedOver {
            key: guard.key,
            region: guard.region,
            granules: guard.granules,
            exclusive: guard.exclusive,
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.granules == 0 {
            // It was refused.
            return;
        }
        self.table
            .give_back(self.key, self.granules, self.exclusive);
    }
}

#[cfg(test)]
mod tests;
