//! The running directory, which the threads of its connections share. The thread that has received
//! packets processes them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_block::Result;

use super::Server;

/// The running directory, for the threads of the connections. It is there while it runs.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Option<Box<Server>>>);

impl Running {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Box<Server>>> {
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
