//! What this crate's tests share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Engine, Reactor};

/// The engines that every test of I/O runs on: both, or loudly only one where io_uring is forbidden.
pub(crate) fn engines() -> Vec<Engine> {
    match Reactor::new(Engine::Uring) {
        Ok(_) => vec![Engine::Uring, Engine::Threads],
        Err(error) => {
            eprintln!("SKIPPED on io_uring: {}", error.report());
            vec![Engine::Threads]
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
