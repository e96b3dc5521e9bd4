//! Helpers of this crate's tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::{Engine, Reactor};

/// The engines that every test of I/O runs on: both, or loudly only one where io_uring is
/// forbidden.
pub(crate) fn engines() -> Vec<Engine> {
    match Reactor::new(Engine::Uring) {
        Ok(_) => vec![Engine::Uring, Engine::Threads],
        Err(error) => {
            eprintln!("SKIPPED on io_uring: {}", error.report());
            vec![Engine::Threads]
        }
    }
}

/// A thread, as others of its process see it.
pub(crate) struct Thread {
    status: PathBuf,
}

impl Thread {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        // SAFETY: a plain system call.
        let number = unsafe { libc::gettid() };
        let status = format!("/proc/self/task/{number}/status").into();
        Self { status }
    }

    /// The number of times that the thread has gone to sleep in the kernel.
    pub(crate) fn sleeps(&self) -> u64 {
        let status = std::fs::read_to_string(&self.status).expect("the thread lives");
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count = count.expect("proc(5) has it").trim().parse();
        count.expect("a number")
    }

    /// Waits until the thread has gone to sleep `more` times since `sleeps` was its count.
    pub(crate) fn wait_for_sleeps(&self, sleeps: u64, more: u64) {
        let begin = Instant::now();
        while self.sleeps() < sleeps + more {
            assert!(begin.elapsed() < Duration::from_secs(30), "it never sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A directory that is removed with its contents.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-io-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary directory takes directories");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
