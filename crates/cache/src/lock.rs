//! Locks on the granules of regions, by address: shared for reads that hit, exclusive for everything that
//! changes what a granule holds. First come, first served, among those that want a granule in common.
//! Requests to one logical block are thereby ordered, whatever connection they came from.
//!
//! Who reads or writes granules of a block holds those; who makes a block or takes one away holds all that
//! it covers. A task holds one lock while it waits for another only in ascending order of regions (discards
//! and zeroing do), so there is no cycle.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_metadata::order::{Part, Site};
use forebay_policy::BlockKey;

/// Stands for a block that nobody else locks: what a test locks that leaves a lock out.
fn nobodys() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a region's lock is found by.
fn key_of(site: Site, region: BlockKey) -> u64 {
    match site.lacks(Part::Lock) {
        true => nobodys(),
        false => region.hash(),
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
    /// Units that are held exclusively.
    exclusive: u64,
    /// How often each granule is held by readers.
    readers: [u8; 64],
    /// Units that readers hold.
    shared: u64,
    next_ticket: u64,
    queue: VecDeque<Waiting>,
}

impl Default for Lock {
    fn default() -> Self {
        Self {
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

    /// Those who wait and may go now; each checks for itself.
    fn who_may_go(&self) -> Vec<Waker> {
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

    /// Whether somebody who waits, among the first so many, must go before this one.
    fn overtakes(&self, place: usize, granules: u64, exclusive: bool) -> bool {
        self.queue
            .iter()
            .take(place)
            .any(|ahead| ahead.granules & granules != 0 && (ahead.exclusive || exclusive))
    }
}

/// All block locks that are held or waited for.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    locks: RefCell<HashMap<u64, Lock, BuildHasherDefault<Identity>>>,
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
        Acquire {
            table: self,
            key: key_of(site, region),
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
        let mut guard = Guard {
            table: self,
            key: key_of(site, region),
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
            granules: handed.granules,
            exclusive: handed.exclusive,
        }
    }

    /// Whether the lock could be had at once.
    #[inline]
    pub(crate) fn admits(&self, region: BlockKey, granules: u64, exclusive: bool) -> bool {
        self.locks.borrow().is_empty() || self.admits_beside(region, granules, exclusive)
    }

    /// The same while something is locked. Apart, so that hits have what is above inlined.
    #[inline(never)]
    fn admits_beside(&self, region: BlockKey, granules: u64, exclusive: bool) -> bool {
        let locks = self.locks.borrow();
        locks.get(&region.hash()).is_none_or(|lock| {
            lock.admits(granules, exclusive)
                && !lock.overtakes(lock.queue.len(), granules, exclusive)
        })
    }

    /// Takes a lock that [`LockTable::admits`].
    pub(crate) fn take(&self, region: BlockKey, granules: u64, exclusive: bool) {
        debug_assert!(self.admits(region, granules, exclusive));
        let mut locks = self.locks.borrow_mut();
        let lock = locks.entry(region.hash()).or_default();
        lock.take(granules, exclusive);
    }

    /// Whether somebody holds one of these granules alone now.
    pub(crate) fn is_exclusive(&self, region: BlockKey, granules: u64) -> bool {
        self.locks
            .borrow()
            .get(&region.hash())
            .is_some_and(|lock| lock.exclusive & granules != 0)
    }

    /// Gives back a lock that [`LockTable::take`] took.
    pub(crate) fn release(&self, region: BlockKey, granules: u64, exclusive: bool) {
        self.give_back(region.hash(), granules, exclusive);
    }

    fn give_back(&self, key: u64, granules: u64, exclusive: bool) {
        let mut locks = self.locks.borrow_mut();
        let lock = locks.get_mut(&key).expect("a held lock is in the table");
        lock.give_back(granules, exclusive);
        if lock.is_idle() {
            locks.remove(&key);
            return;
        }
        let woken = lock.who_may_go();
        drop(locks);
        for waker in woken {
            waker.wake();
        }
    }
}

/// A held lock on its way from one task to another.
#[derive(Debug)]
#[must_use = "the lock is held until somebody adopts it"]
pub(crate) struct HandedOver {
    key: u64,
    granules: u64,
    exclusive: bool,
}

/// Waits for a lock.
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct Acquire<'a> {
    table: &'a LockTable,
    key: u64,
    granules: u64,
    exclusive: bool,
    ticket: Option<u64>,
    done: bool,
}

impl<'a> Future for Acquire<'a> {
    type Output = Guard<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard<'a>> {
        let this = &mut *self;
        let mut locks = this.table.locks.borrow_mut();
        let lock = locks.entry(this.key).or_default();
        let (granules, exclusive) = (this.granules, this.exclusive);
        let place = match this.ticket {
            None => lock.queue.len(),
            Some(ticket) => lock
                .queue
                .iter()
                .position(|waiting| waiting.ticket == ticket)
                .expect("a waiter stays in the queue"),
        };
        // Readers may go together; nobody overtakes.
        if lock.admits(granules, exclusive) && !lock.overtakes(place, granules, exclusive) {
            lock.take(granules, exclusive);
            if this.ticket.is_some() {
                lock.queue.remove(place);
            }
            this.done = true;
            return Poll::Ready(Guard {
                table: this.table,
                key: this.key,
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
        let woken = lock.who_may_go();
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
        if locks.get(&self.key).is_some_and(in_the_way) {
            return false;
        }
        let lock = locks.entry(self.key).or_default();
        lock.take(more, self.exclusive);
        self.granules |= more;
        true
    }

    /// Gives the lock to a task that has no part in this borrow: see [`LockTable::adopt`].
    pub(crate) fn hand_over(self) -> HandedOver {
        let guard = std::mem::ManuallyDrop::new(self);
        HandedOver {
            key: guard.key,
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
mod tests {
    use std::rc::Rc;

    use forebay_io::rt;

    use super::*;

    #[test]
    fn writers_exclude_and_nobody_overtakes() {
        rt::block_on_simulated(5, async {
            let table = Rc::new(LockTable::default());
            let log = Rc::new(RefCell::new(Vec::new()));
            let key = BlockKey::new(1, 1);
            let held = table.exclusive(key, 1).await;
            for (name, exclusive) in [("r1", false), ("r2", false), ("w", true), ("r3", false)] {
                let (table, log) = (Rc::clone(&table), Rc::clone(&log));
                rt::spawn(async move {
                    let _guard = if exclusive {
                        table.exclusive(key, 1).await
                    } else {
                        table.shared(key, 1).await
                    };
                    log.borrow_mut().push(format!("+{name}"));
                    rt::sleep(std::time::Duration::from_millis(1)).await;
                    log.borrow_mut().push(format!("-{name}"));
                });
                rt::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert!(!table.admits(key, 1, true) && table.is_exclusive(key, 1));
            drop(held);
            rt::sleep(std::time::Duration::from_secs(1)).await;
            let log = log.borrow();
            assert_eq!(log[4..], ["+w", "-w", "+r3", "-r3"], "{log:?}");
            assert!(log[..2].iter().all(|entry| entry.starts_with("+r")));
            assert!(table.locks.borrow().is_empty());
            assert!(table.admits(key, 1, true));
            table.take(key, 1, true);
            assert!(!table.admits(key, 1, false));
            table.release(key, 1, true);
            assert!(table.locks.borrow().is_empty());
        });
    }

    #[test]
    fn a_lock_is_widened_at_once_or_not_at_all() {
        rt::block_on_simulated(7, async {
            let table = Rc::new(LockTable::default());
            let key = BlockKey::new(1, 1);
            let mut held = table.exclusive(key, 0b0001).await;
            let other = table.shared(key, 0b0100).await;
            assert!(!held.widen(0b0111) && held.granules() == 0b0001);
            assert!(table.try_exclusive(Site::here(), key, 0b0110).is_none());
            let waits = Rc::clone(&table);
            rt::spawn(async move { drop(waits.exclusive(key, 0b1100).await) });
            rt::sleep(std::time::Duration::from_millis(1)).await;
            assert!(!held.widen(0b1000), "it would overtake");
            assert!(held.widen(0b0011) && !table.admits(key, 0b0010, true));
            let handed = held.hand_over();
            assert!(!table.admits(key, 0b0001, true), "it is held still");
            drop((table.adopt(handed), other));
            rt::sleep(std::time::Duration::from_millis(1)).await;
            assert!(table.locks.borrow().is_empty());
            let had = table.try_exclusive(Site::here(), key, 0b0110);
            assert!(had.is_some() && !table.admits(key, 0b0010, false));
        });
    }

    #[test]
    fn who_wants_other_granules_is_not_in_the_way() {
        rt::block_on_simulated(6, async {
            let table = Rc::new(LockTable::default());
            let key = BlockKey::new(1, 1);
            let low = table.exclusive(key, 0b0011).await;
            assert!(table.admits(key, 0b1100, true) && !table.admits(key, 0b0110, false));
            let high = table.shared(key, 0b1100).await;
            // One who waits for a granule of each keeps others from it, but not from the rest.
            let waits = Rc::clone(&table);
            let had = Rc::new(std::cell::Cell::new(false));
            let has = Rc::clone(&had);
            rt::spawn(async move {
                let _both = waits.exclusive(key, 0b0110).await;
                has.set(true);
            });
            rt::sleep(std::time::Duration::from_millis(1)).await;
            assert!(!table.admits(key, 0b0100, false), "it would overtake");
            assert!(table.admits(key, 0b1000, false));
            drop(low);
            rt::sleep(std::time::Duration::from_millis(1)).await;
            assert!(!had.get(), "a reader is left");
            drop(high);
            rt::sleep(std::time::Duration::from_millis(1)).await;
            assert!(had.get());
            assert!(table.locks.borrow().is_empty());
        });
    }
}
