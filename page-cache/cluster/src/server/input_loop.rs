//! The loop of the directory over its inputs other than packets.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};

use super::Server;
use super::connection::Input;
use super::running::Running;

/// Interval of the checks for deaths.
const TICK: Duration = Duration::from_millis(20);

impl Server {
    /// Runs until an error that makes further work impossible: the pool cannot be written.
    ///
    /// # Errors
    /// Errors of the system.
    ///
    /// # Panics
    /// Never: a directory has its inputs until it runs.
    pub fn run(mut self) -> Result<()> {
        let inputs = self.inputs.take().expect("a directory runs once");
        let running = Arc::clone(&self.running);
        *running.lock() = Some(Box::new(self));
        let ended = take_inputs(&running, &inputs);
        // The connections have the other reference.
        drop(running.lock().take());
        ended
    }
}

/// Gives inputs other than packets to the directory, and has it check for deaths, until an error.
fn take_inputs(running: &Running, inputs: &Receiver<Input>) -> Result<()> {
    let mut ticked = Instant::now();
    loop {
        let input = match inputs.recv_timeout(TICK) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let context = "page cache directory: the connections have ended";
                return Err(Error::new(ErrorKind::Disconnected, context));
            }
        };
        let is_due = ticked.elapsed() >= TICK;
        running.with(|server| {
            input.map_or(Ok(()), |input| server.take(input))?;
            if is_due { server.tick() } else { Ok(()) }
        })?;
        if is_due {
            ticked = Instant::now();
        }
    }
}
