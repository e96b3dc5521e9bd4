//! The run of the directory. The thread that has received packets processes them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};

use super::Server;
use super::connection::Input;

/// Interval of the checks for deaths.
const TICK: Duration = Duration::from_millis(20);

/// The running directory, for the threads of the connections. It is there while it runs.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Option<Box<Server>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, Option<Box<Server>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `body` with the directory, if it runs.
    pub(super) fn with(&self, body: impl FnOnce(&mut Server) -> Result<()>) -> Result<()> {
        self.lock().as_mut().map_or(Ok(()), |server| {
            body(server)?;
            server.end_flushes();
            Ok(())
        })
    }
}

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
