//! Time limit for a phase of a connection.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::Stream;
use crate::rt;

/// Ends a connection at a time limit, also after it is dropped.
#[derive(Debug)]
pub struct Deadline(Rc<Cell<Stage>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Done,
    Expired,
}

impl Deadline {
    /// Shuts `stream` down after `time`, unless it is cancelled or all others drop the stream.
    pub fn set(stream: &Rc<Stream>, time: Duration) -> Self {
        let stage = Rc::new(Cell::new(Stage::Running));
        let (watched, stream) = (Rc::clone(&stage), Rc::downgrade(stream));
        rt::spawn(async move {
            rt::sleep(time).await;
            if watched.get() == Stage::Running
                && let Some(stream) = stream.upgrade()
            {
                watched.set(Stage::Expired);
                stream.shutdown();
            }
        });
        Self(stage)
    }

    /// Returns whether the connection was ended.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.0.get() == Stage::Expired
    }

    /// Lets the connection continue.
    pub fn cancel(self) {
        self.0.set(Stage::Done);
    }
}
