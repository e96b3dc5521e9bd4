//! A request from another thread to stop a long step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_block::{Error, ErrorKind, Result};

/// A flag that one thread sets and that long steps of others look at. Clones share it.
///
/// Steps that wait also describe their wait, so that the thread that stops them can name it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_asked: AtomicBool,
    waits: Mutex<Waits>,
}

/// Waits in progress, oldest first.
#[derive(Debug, Default)]
struct Waits {
    /// Number of waits so far.
    count: u64,
    /// Waits in progress, with their numbers.
    open: Vec<(u64, String)>,
    /// Newest wait at the time of the request to stop.
    at_request: Option<String>,
}

/// A wait in progress, until it is dropped.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting {
    stop: Stop,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waits = self.stop.waits();
        waits.open.retain(|(number, _)| *number != self.number);
    }
}

impl Stop {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        (self.0.waits.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all who look at it to stop.
    pub fn ask(&self) {
        let mut waits = self.waits();
        if !self.0.is_asked.swap(true, Ordering::Relaxed) {
            waits.at_request = waits.open.last().map(|(_, what)| what.clone());
        }
    }

    /// Returns whether a stop was requested.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.is_asked.load(Ordering::Relaxed)
    }

    /// Ends a step if a stop was requested.
    ///
    /// # Errors
    /// `ShuttingDown` if it was.
    pub fn check(&self) -> Result<()> {
        match self.is_asked() {
            true => Err(Error::new(
                ErrorKind::ShuttingDown,
                "stopped on request before it was complete",
            )),
            false => Ok(()),
        }
    }

    /// Notes that a step waits for `what`, until the result is dropped.
    pub fn wait_for(&self, what: impl Into<String>) -> Waiting {
        let mut waits = self.waits();
        waits.count += 1;
        let number = waits.count;
        waits.open.push((number, what.into()));
        Waiting {
            stop: self.clone(),
            number,
        }
    }

    /// Returns the newest wait in progress.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        self.waits().open.last().map(|(_, what)| what.clone())
    }

    /// Returns the newest wait that was in progress when the stop was requested.
    #[must_use]
    pub fn waited_for(&self) -> Option<String> {
        self.waits().at_request.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reactor;
    use crate::file::{File, FileOptions};
    use crate::testing::{Scratch, engines};

    #[test]
    fn the_newest_wait_is_named_until_it_ends() {
        let stop = Stop::default();
        assert_eq!(stop.waits_for(), None);
        let target = stop.wait_for("a target");
        let lock = stop.clone().wait_for("a lock");
        let named = |found: Option<String>| found.unwrap_or_default();
        assert_eq!(named(stop.waits_for()), "a lock");
        stop.ask();
        drop(lock);
        assert_eq!(named(stop.waits_for()), "a target");
        drop(target);
        assert_eq!(stop.waits_for(), None);
        let _late = stop.wait_for("something else");
        stop.ask();
        assert_eq!(named(stop.waited_for()), "a lock");
    }
    #[test]
    fn a_wait_for_a_holder_of_a_file_ends_on_request() {
        for engine in engines() {
            let reactor = Reactor::new(engine).expect("this engine works here");
            reactor.run(async {
                let scratch = Scratch::new();
                let stop = Stop::default();
                let options = FileOptions {
                    exclusive: true,
                    create_bytes: Some(4 << 20),
                    stop: Some(stop.clone()),
                    ..FileOptions::default()
                };
                let held = File::open(scratch.path("f"), &options).expect("it is free");
                let asker = std::thread::spawn({
                    let stop = stop.clone();
                    move || {
                        while stop.waits_for().is_none() {
                            std::thread::yield_now();
                        }
                        stop.ask();
                        stop.waited_for()
                    }
                });
                let refused = File::open(scratch.path("f"), &options).expect_err("it is held");
                assert_eq!(refused.kind(), ErrorKind::ShuttingDown, "{refused}");
                let what = asker.join().expect("it ends").unwrap_or_default();
                assert!(what.starts_with("another process to release "), "{what}");
                assert_eq!(stop.waits_for(), None);
                drop(held);
            });
        }
    }
}
