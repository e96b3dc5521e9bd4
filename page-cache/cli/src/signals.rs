//! Signals that end a directory or a node.

use std::time::Duration;

use forebay_block::{Context as _, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let terminate = signal(SignalKind::terminate()).context(|| "catching SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context(|| "catching SIGINT")?;
        drop(inside);
        Ok(Self {
            runtime,
            terminate,
            interrupt,
        })
    }

    /// Waits for a signal. Returns whether one arrived in this time.
    pub(crate) fn wait(&mut self, time: Duration) -> bool {
        let (terminate, interrupt) = (&mut self.terminate, &mut self.interrupt);
        self.runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                () = tokio::time::sleep(time) => false,
            }
        })
    }
}
