//! The pool of threads in every order, or in as many as there is time for. It uses the pool's
//! source, with a checker's locks and threads in place of the system's.

/// Synchronization for the pool.
mod sync {
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex};
    pub(crate) use shuttle::thread;
    // A hint, right or wrong. Its consequences are decided under a lock, so its own orders need not
    // be tried.
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

    pub(crate) const LOOKS: usize = 1;
}

#[path = "../src/poll_policy.rs"]
mod poll_policy;
#[path = "../src/pool.rs"]
mod pool;

use std::task::{Context, Wake, Waker};

use pool::Pool;
use shuttle::scheduler::DfsScheduler;
use shuttle::sync::{Arc, Condvar, Mutex};

/// Thread that collects results; it sleeps until it is woken.
#[derive(Default)]
struct Collector {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Awakener {
    fn wake(self: std::sync::Arc<Self>) {
        *self.0.woken.lock().expect("sound") = true;
        self.0.changed.notify_one();
    }
}

struct Awakener(Arc<Collector>);

/// Pushes jobs, a few at a time, and collects all results, sleeping whenever there is none.
fn jobs_are_done_once(threads: usize, rounds: u32, jobs: u32) {
    let started = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&started);
    let pool = Pool::new(threads, move |job: u32| {
        seen.lock().expect("sound").push(job);
        job * 10
    });
    let pool = pool.expect("threads");
    let collector = Arc::new(Collector::default());
    let waker = Waker::from(std::sync::Arc::new(Awakener(Arc::clone(&collector))));
    let context = Context::from_waker(&waker);
    let mut results = Vec::new();
    for round in 0..rounds {
        for job in 0..jobs {
            pool.push(round * jobs + job);
        }
        while results.len() < ((round + 1) * jobs) as usize {
            if pool.poll_results(&mut results, &context).is_pending() {
                let mut woken = collector.woken.lock().expect("sound");
                while !*woken {
                    woken = collector.changed.wait(woken).expect("sound");
                }
                *woken = false;
            }
        }
    }
    drop(pool);
    results.sort_unstable();
    let all: Vec<u32> = (0..rounds * jobs).collect();
    assert_eq!(results, all.iter().map(|job| job * 10).collect::<Vec<_>>());
    let mut started = started.lock().expect("sound").clone();
    started.sort_unstable();
    assert_eq!(started, all);
}

#[test]
fn every_order_of_one_thread_and_one_job() {
    let most = 500_000;
    let scheduler = DfsScheduler::new(Some(most), false);
    let runner = shuttle::Runner::new(scheduler, shuttle::Config::default());
    let orders = runner.run(|| jobs_are_done_once(1, 1, 1));
    eprintln!("{orders} orders");
    assert!(orders < most, "there are more");
}

#[test]
fn many_orders_of_several_threads_and_rounds() {
    shuttle::check_random(|| jobs_are_done_once(2, 3, 3), 3000);
    shuttle::check_pct(|| jobs_are_done_once(3, 2, 4), 3000, 4);
}

#[test]
fn jobs_that_nobody_waits_for_do_not_keep_the_pool() {
    shuttle::check_random(
        || {
            let pool = Pool::new(2, |job: u32| job).expect("threads");
            for job in 0..4 {
                pool.push(job);
            }
            drop(pool);
        },
        2000,
    );
}
