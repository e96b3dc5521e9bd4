//! Evicting threads on a virtual clock. Each does one job at a time, then polls for the next one
//! for a while, and sleeps. The library's threads do the same (block-cache/transit/src/pool.rs) and
//! decide on polling by the same code.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_io::rt;
use forebay_io::sync::Semaphore;
use forebay_transit::Workers;

use crate::poll_policy::PollPolicy;

/// How long a thread looks out for a job before it sleeps: measured, the median of many times.
pub(crate) fn look_ns() -> u64 {
    let queued = AtomicUsize::new(0);
    let mut times: Vec<Duration> = (0..1001)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..Workers::LOOKS {
                std::hint::black_box(queued.load(Ordering::Relaxed));
                std::hint::spin_loop();
            }
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    u64::try_from(times[times.len() / 2].as_nanos()).unwrap_or(u64::MAX)
}

/// A thread without a job.
#[derive(Clone, Copy)]
struct Idle {
    /// As it was at the end of its last job,
    before: PollPolicy,
    /// which was at this moment;
    since: Duration,
    /// as it is when it has begun to look out, or to sleep,
    after: PollPolicy,
    /// and until when it looks out.
    until: Duration,
}

/// Threads that evict.
pub(crate) struct Evictors {
    free: Semaphore,
    idle: RefCell<Vec<Idle>>,
    look: Duration,
    woken: Cell<u64>,
}

/// A thread that was taken for a job.
pub(crate) struct Taken {
    poll_policy: PollPolicy,
    /// It had to be woken.
    pub(crate) asleep: bool,
}

impl Evictors {
    /// So many threads, which look out for `look` before they sleep, and sleep at first.
    pub(crate) fn new(threads: usize, look: Duration) -> Self {
        let asleep = Idle {
            before: PollPolicy::default(),
            since: Duration::ZERO,
            after: PollPolicy::default(),
            until: Duration::ZERO,
        };
        let threads = threads.max(1);
        Self {
            free: Semaphore::new(threads as u64),
            idle: RefCell::new(vec![asleep; threads]),
            look,
            woken: Cell::new(0),
        }
    }

    /// Jobs for which a thread had to be woken.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.get()
    }

    /// A thread, as soon as one has nothing else to do: one that looks out, if there is one.
    pub(crate) async fn take(&self) -> Taken {
        self.free.acquire(1).await;
        let mut idle = self.idle.borrow_mut();
        let newest = (0..idle.len()).max_by_key(|nth| idle[*nth].until);
        let Idle {
            before,
            since,
            mut after,
            until,
        } = idle.swap_remove(newest.expect("as many are idle as the semaphore has left"));
        let now = rt::now();
        // A job was there when the last one ended.
        let at_once = since == now && until > Duration::ZERO;
        let asleep = !at_once && now >= until;
        if until > since {
            after.ended(!asleep);
        }
        self.woken.set(self.woken.get() + u64::from(asleep));
        let poll_policy = if at_once { before } else { after };
        Taken {
            poll_policy,
            asleep,
        }
    }

    /// A job is done.
    pub(crate) fn put(&self, thread: Taken) {
        let (before, since) = (thread.poll_policy, rt::now());
        let mut after = before;
        let until = match after.begins() {
            true => since + self.look,
            false => since,
        };
        self.idle.borrow_mut().push(Idle {
            before,
            since,
            after,
            until,
        });
        self.free.release(1);
    }
}
