//! Threads of a node.

use std::thread::JoinHandle;

use forebay_block::Result;

/// Starts a thread.
pub(super) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
    Ok(thread)
}

/// Waits for the end of threads, which report their errors by themselves.
pub(super) fn join_all(threads: &mut Vec<JoinHandle<()>>) {
    for thread in threads.drain(..) {
        let _ = thread.join();
    }
}
