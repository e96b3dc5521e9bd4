//! Waits of a start, which a request to stop ends.

use std::pin::pin;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::{Stop, rt};

/// Time between two checks for a request to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Time that a step gets to end by itself after a request to stop, before it is dropped.
const GRACE: Duration = Duration::from_millis(300);
/// Time limit for the close of a start that was stopped, and of a cache that is still being opened.
pub(super) const STOPPED: Duration = Duration::from_secs(1);

/// Waits for `what`. A request to stop drops `wait`, so dropping it must be safe.
///
/// # Errors
/// `ShuttingDown` if it was stopped.
pub(super) async fn unless_stopped<T>(
    stop: &Stop,
    what: impl Into<String>,
    wait: impl Future<Output = T>,
) -> Result<T> {
    let _waiting = stop.wait_for(what);
    let mut wait = pin!(wait);
    loop {
        if let Some(done) = rt::at_most(LOOK, wait.as_mut()).await {
            return Ok(done);
        }
        stop.check()?;
    }
}

/// Runs a step that may end by itself after a request to stop. Returns `None` if the step had to be
/// dropped, and its state is unknown.
pub(super) async fn unless_cut<T>(
    stop: &Stop,
    what: impl Into<String>,
    step: impl Future<Output = T>,
) -> Option<T> {
    let waiting = stop.wait_for(what);
    let mut step = pin!(step);
    while !stop.is_asked() {
        if let Some(done) = rt::at_most(LOOK, step.as_mut()).await {
            return Some(done);
        }
    }
    // A step that blocks the thread keeps its wait, and the start ends without it.
    let done = rt::at_most(GRACE, step).await;
    drop(waiting);
    done
}

/// Context of the errors of a stopped start that could not undo all of its steps.
pub(super) const UNFINISHED: &str = "the start was stopped in the middle of a step\n\
    help: start again: the next start recovers, as after a kill";

/// Returns the error for such a start.
pub(super) fn unfinished() -> Error {
    Error::new(ErrorKind::TimedOut, UNFINISHED)
}
