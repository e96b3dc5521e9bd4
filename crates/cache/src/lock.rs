//! Locks on cache blocks, by address: shared for reads that hit, exclusive for everything that
//! changes what a block holds. First come, first served. Requests to one logical block are thereby
//! ordered, whatever connection they came from.
//!
//! A task holds at most one block lock while it waits for another, except for discards and zeroing,
//! which take theirs in ascending order; so there is no cycle.

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

#[derive(Debug, Default)]
struct Lock {
    readers: u32,
    writer: bool,
    next_ticket: u64,
    queue: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    exclusive: bool,
    waker: Waker,
}

impl Lock {
    const fn admits(&self, exclusive: bool) -> bool {
        !self.writer && (!exclusive || self.readers == 0)
    }

    fn take(&mut self, exclusive: bool) {
        if exclusive {
            self.writer = true;
        } else {
            self.readers += 1;
        }
    }
}

/// All block locks that are held or waited for.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    locks: RefCell<HashMap<u64, Lock, BuildHasherDefault<Identity>>>,
}

impl LockTable {
    #[track_caller]
    pub(crate) fn shared(&self, key: BlockKey) -> Acquire<'_> {
        self.acquire(Site::here(), key, false)
    }

    #[track_caller]
    pub(crate) fn exclusive(&self, key: BlockKey) -> Acquire<'_> {
        self.acquire(Site::here(), key, true)
    }

    fn acquire(&self, site: Site, key: BlockKey, exclusive: bool) -> Acquire<'_> {
        let hash = if site.lacks(Part::Lock) {
            nobodys()
        } else {
            key.hash()
        };
        Acquire {
            table: self,
            key: hash,
            exclusive,
            ticket: None,
            done: false,
        }
    }

    /// Whether the lock could be had at once.
    #[inline]
    pub(crate) fn admits(&self, key: BlockKey, exclusive: bool) -> bool {
        let locks = self.locks.borrow();
        locks.is_empty()
            || locks
                .get(&key.hash())
                .is_none_or(|lock| lock.queue.is_empty() && lock.admits(exclusive))
    }

    /// Takes a lock that [`LockTable::admits`].
    pub(crate) fn take(&self, key: BlockKey, exclusive: bool) {
        debug_assert!(self.admits(key, exclusive));
        let mut locks = self.locks.borrow_mut();
        locks.entry(key.hash()).or_default().take(exclusive);
    }

    /// Whether somebody holds the exclusive lock now.
    pub(crate) fn is_exclusive(&self, key: BlockKey) -> bool {
        self.locks
            .borrow()
            .get(&key.hash())
            .is_some_and(|lock| lock.writer)
    }

    /// Gives back a lock that [`LockTable::take`] took.
    pub(crate) fn release(&self, key: BlockKey, exclusive: bool) {
        self.give_back(key.hash(), exclusive);
    }

    fn give_back(&self, key: u64, exclusive: bool) {
        let mut locks = self.locks.borrow_mut();
        let lock = locks.get_mut(&key).expect("a held lock is in the table");
        if exclusive {
            debug_assert!(lock.writer);
            lock.writer = false;
        } else {
            lock.readers -= 1;
        }
        if lock.queue.is_empty() {
            if lock.readers == 0 {
                locks.remove(&key);
            }
            return;
        }
        // Wake the first, and if it is a reader the readers behind it; each checks for itself.
        let mut woken = Vec::new();
        for waiting in &lock.queue {
            if waiting.exclusive && !woken.is_empty() {
                break;
            }
            woken.push(waiting.waker.clone());
            if waiting.exclusive {
                break;
            }
        }
        drop(locks);
        for waker in woken {
            waker.wake();
        }
    }
}

/// Waits for a lock.
#[must_use = "a future does nothing unless it is awaited"]
pub(crate) struct Acquire<'a> {
    table: &'a LockTable,
    key: u64,
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
        let exclusive = this.exclusive;
        let place = match this.ticket {
            None => lock.queue.len(),
            Some(ticket) => lock
                .queue
                .iter()
                .position(|waiting| waiting.ticket == ticket)
                .expect("a waiter stays in the queue"),
        };
        // Readers may go together; nobody overtakes.
        let first = lock
            .queue
            .iter()
            .take(place)
            .all(|ahead| !ahead.exclusive && !exclusive);
        if first && lock.admits(exclusive) {
            lock.take(exclusive);
            if this.ticket.is_some() {
                lock.queue.remove(place);
            }
            this.done = true;
            return Poll::Ready(Guard {
                table: this.table,
                key: this.key,
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
        if let Some(lock) = locks.get_mut(&self.key) {
            lock.queue.retain(|waiting| waiting.ticket != ticket);
            if lock.queue.is_empty() && lock.readers == 0 && !lock.writer {
                locks.remove(&self.key);
            }
        }
    }
}

/// A held lock; dropping it gives it back.
#[must_use = "dropping the guard releases the lock"]
pub(crate) struct Guard<'a> {
    table: &'a LockTable,
    key: u64,
    exclusive: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.table.give_back(self.key, self.exclusive);
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
            let held = table.exclusive(key).await;
            for (name, exclusive) in [("r1", false), ("r2", false), ("w", true), ("r3", false)] {
                let (table, log) = (Rc::clone(&table), Rc::clone(&log));
                rt::spawn(async move {
                    let _guard = if exclusive {
                        table.exclusive(key).await
                    } else {
                        table.shared(key).await
                    };
                    log.borrow_mut().push(format!("+{name}"));
                    rt::sleep(std::time::Duration::from_millis(1)).await;
                    log.borrow_mut().push(format!("-{name}"));
                });
                rt::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert!(!table.admits(key, true) && table.is_exclusive(key));
            drop(held);
            rt::sleep(std::time::Duration::from_secs(1)).await;
            let log = log.borrow();
            assert_eq!(log[4..], ["+w", "-w", "+r3", "-r3"], "{log:?}");
            assert!(log[..2].iter().all(|entry| entry.starts_with("+r")));
            assert!(table.locks.borrow().is_empty());
            assert!(table.admits(key, true));
            table.take(key, true);
            assert!(!table.admits(key, false));
            table.release(key, true);
            assert!(table.locks.borrow().is_empty());
        });
    }
}
