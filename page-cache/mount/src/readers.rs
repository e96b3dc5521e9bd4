//! Parking of surplus threads that read the kernel's requests.
//!
//! The kernel hands requests to waiting threads in turn. With sixteen of them, one client at a time
//! finds each thread asleep for long, and its stack and buffer out of the processor's caches. So
//! threads without work park, and [`SPARE`] threads remain. A thread is unparked as soon as all
//! others are serving requests, since these may wait for the source. Reads that occupy their thread
//! only while they use a processor need fewer threads.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of threads that remain available. With one, each request would unpark another thread.
const SPARE: usize = 2;
/// The same after misses.
const SPARE_MISSES: usize = 1;
/// Number of requests in a row after which a thread is in surplus, until it parks. Parking and
/// unparking cost more than a request in memory.
const PATIENCE: u32 = 64;
/// Longest time for which a thread is parked. It then notices that another program has unmounted
/// the file system.
const PARK_MAX: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether the thread counts. It does from its first request on: until then, it may not exist.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    /// Number of requests in a row after which the thread was in surplus.
    static SURPLUS: Cell<u32> = const { Cell::new(0) };
}

/// A request, for the number of threads that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It may wait for the source or another node.
    MayWait,
    /// It is expected to be a read of a page in memory. As many threads serve them as there are
    /// processors.
    Hit,
    /// It is expected to be a read that continues when its page has come. A thread for every second
    /// processor serves them, since programs and other threads of the node use the others. With one
    /// thread, more of them share a packet.
    Miss,
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Readers {
    processors: usize,
    /// Number of threads that have served a request and read the next one, or are about to.
    available: AtomicUsize,
    /// Number of threads that have served a request and are not parked.
    running: AtomicUsize,
    parked: Mutex<Parked>,
    unparked: Condvar,
}

#[derive(Debug, Default)]
struct Parked {
    threads: usize,
    /// Number of these that were unparked and have not noticed. They count as available.
    unparked: usize,
    is_over: bool,
}

/// A request that the calling thread serves, until this is dropped. The drop may park the thread.
pub(crate) struct Serving<'a> {
    readers: &'a Readers,
    kind: Kind,
}

impl Default for Readers {
    fn default() -> Self {
        let processors = std::thread::available_parallelism();
        Self::new(processors.map_or(1, NonZero::get))
    }
}

impl Readers {
    fn new(processors: usize) -> Self {
        Self {
            processors,
            available: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            parked: Mutex::default(),
            unparked: Condvar::new(),
        }
    }

    /// Begins to serve a request on the calling thread.
    pub(crate) fn serve(&self, kind: Kind) -> Serving<'_> {
        let left = if COUNTS.replace(true) {
            self.available.fetch_sub(1, Ordering::AcqRel) - 1
        } else {
            self.running.fetch_add(1, Ordering::AcqRel);
            self.available.load(Ordering::Acquire)
        };
        let running_max = match kind {
            Kind::MayWait => usize::MAX,
            Kind::Hit => self.processors,
            Kind::Miss => self.processors.div_ceil(2),
        };
        let helps = self.running.load(Ordering::Acquire) < running_max;
        if left == 0 && helps {
            let mut parked = self.lock();
            if parked.threads > parked.unparked {
                parked.unparked += 1;
                self.available.fetch_add(1, Ordering::AcqRel);
                self.running.fetch_add(1, Ordering::AcqRel);
                self.unparked.notify_one();
            }
        }
        Serving {
            readers: self,
            kind,
        }
    }

    /// Unparks all threads for good.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.unparked.notify_all();
    }

    /// Parks the calling thread while `spare` others suffice.
    fn park(&self, spare: usize) {
        let mut parked = self.lock();
        let spare = |available: usize| (available > spare).then(|| available - 1);
        let taken = self
            .available
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, spare);
        if parked.is_over || taken.is_err() {
            if taken.is_ok() {
                self.available.fetch_add(1, Ordering::AcqRel);
            }
            return;
        }
        parked.threads += 1;
        self.running.fetch_sub(1, Ordering::AcqRel);
        let waits = |parked: &mut Parked| parked.unparked == 0 && !parked.is_over;
        let woken = self
            .unparked
            .wait_timeout_while(parked, PARK_MAX, waits)
            .unwrap_or_else(PoisonError::into_inner);
        parked = woken.0;
        parked.threads -= 1;
        match parked.unparked.checked_sub(1) {
            Some(left) => parked.unparked = left,
            None => {
                self.available.fetch_add(1, Ordering::AcqRel);
                self.running.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parked> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let available = self.readers.available.fetch_add(1, Ordering::AcqRel) + 1;
        let spare = match self.kind {
            Kind::MayWait | Kind::Hit => SPARE,
            Kind::Miss => SPARE_MISSES,
        };
        let surplus = match available > spare {
            true => SURPLUS.get() + 1,
            false => 0,
        };
        SURPLUS.set(surplus % PATIENCE);
        if surplus == PATIENCE {
            self.readers.park(spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;
    use std::time::Instant;

    use super::*;

    const THREADS: usize = 5;

    /// A thread that serves one request, and as many as may park it when it gets a message.
    struct Reader {
        thread: JoinHandle<()>,
        go: Sender<()>,
        /// Gets a message after the first request, and one at the end.
        done: Receiver<()>,
    }

    fn start(readers: &Arc<Readers>) -> Vec<Reader> {
        let start_one = |_| {
            let (go, may_go) = channel();
            let (sender, done) = channel();
            let readers = Arc::clone(readers);
            let thread = std::thread::spawn(move || {
                drop(readers.serve(Kind::MayWait));
                sender.send(()).expect("the test receives");
                may_go.recv().expect("the test sends");
                // The last of these requests may park it.
                SURPLUS.set(0);
                for _ in 0..PATIENCE {
                    drop(readers.serve(Kind::MayWait));
                }
                sender.send(()).expect("the test receives");
            });
            done.recv().expect("it serves");
            Reader { thread, go, done }
        };
        (0..THREADS).map(start_one).collect()
    }

    fn wait_for_parked(readers: &Readers, threads: usize) {
        let begin = Instant::now();
        while readers.lock().threads != threads {
            assert!(begin.elapsed() < Duration::from_secs(30), "{readers:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn surplus_threads_park_and_are_unparked_when_all_others_serve() {
        let readers = Arc::<Readers>::default();
        // This thread is one of them.
        drop(readers.serve(Kind::MayWait));
        let all = start(&readers);
        const PARKED: usize = THREADS + 1 - SPARE;
        for (number, reader) in all.iter().enumerate() {
            reader.go.send(()).expect("it waits");
            if number < PARKED {
                wait_for_parked(&readers, number + 1);
            } else {
                reader.done.recv().expect("it does not park");
            }
        }
        assert_eq!(readers.available.load(Ordering::Relaxed), SPARE);
        let mut serving = vec![readers.serve(Kind::MayWait)];
        assert_eq!(readers.lock().threads, PARKED, "one is left");
        // Each request of the last available thread unparks one.
        for left in (0..PARKED).rev() {
            serving.push(readers.serve(Kind::MayWait));
            wait_for_parked(&readers, left);
        }
        drop(serving);
        for reader in all {
            reader.thread.join().expect("no panic");
        }
        assert_eq!(readers.available.load(Ordering::Relaxed), THREADS + 1);
    }

    #[test]
    fn reads_that_occupy_no_thread_use_fewer_threads() {
        let readers = Arc::new(Readers::new(SPARE + 1));
        drop(readers.serve(Kind::MayWait));
        let all = start(&readers);
        const PARKED: usize = THREADS + 1 - SPARE;
        for (number, reader) in all.iter().take(PARKED).enumerate() {
            reader.go.send(()).expect("it waits");
            wait_for_parked(&readers, number + 1);
        }
        let serving: Vec<_> = (0..SPARE).map(|_| readers.serve(Kind::Hit)).collect();
        wait_for_parked(&readers, PARKED - 1);
        assert_eq!(readers.running.load(Ordering::Relaxed), SPARE + 1);
        let short = readers.serve(Kind::Hit);
        assert_eq!(readers.available.load(Ordering::Relaxed), 0, "all serve");
        assert_eq!(readers.lock().threads, PARKED - 1);
        drop(short);
        let miss = readers.serve(Kind::Miss);
        assert_eq!(readers.lock().threads, PARKED - 1);
        drop(miss);
        let waits = readers.serve(Kind::MayWait);
        wait_for_parked(&readers, PARKED - 2);
        drop((serving, waits));
        readers.end();
        for reader in all {
            let _ = reader.go.send(());
            reader.thread.join().expect("no panic");
        }
    }

    #[test]
    fn threads_that_never_served_a_request_do_not_count() {
        let readers = Arc::<Readers>::default();
        // Others may not exist, so that this one does not park.
        for _ in 0..2 * PATIENCE {
            drop(readers.serve(Kind::MayWait));
        }
        assert_eq!(readers.available.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_end_unparks_all_threads() {
        let readers = Arc::<Readers>::default();
        let all = start(&readers);
        let (surplus, rest) = all.split_at(THREADS - SPARE);
        for (number, reader) in surplus.iter().enumerate() {
            reader.go.send(()).expect("it waits");
            wait_for_parked(&readers, number + 1);
        }
        readers.end();
        for reader in rest {
            reader.go.send(()).expect("it waits");
        }
        for reader in all {
            reader.done.recv().expect("the end");
            reader.thread.join().expect("no panic");
        }
        for _ in 0..2 * PATIENCE {
            drop(readers.serve(Kind::MayWait));
        }
        assert_eq!(readers.available.load(Ordering::Relaxed), THREADS + 1);
    }
}
