//! The time that a client has to come to the point.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_io::net::Stream;
use forebay_io::rt;

/// Ends a connection that takes too long.
pub(crate) struct Deadline(Rc<Cell<Stage>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Done,
    Expired,
}

impl Deadline {
    /// Shuts `stream` down after `time`, if it is not cancelled before.
    pub(crate) fn set(stream: &Rc<Stream>, time: Duration) -> Self {
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

    /// Whether the connection was ended.
    pub(crate) fn passed(&self) -> bool {
        self.0.get() == Stage::Expired
    }

    /// Lets the connection go on.
    pub(crate) fn cancel(self) {
        self.0.set(Stage::Done);
    }
}
