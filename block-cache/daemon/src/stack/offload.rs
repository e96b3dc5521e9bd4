//! Runs work that may wait for a file system outside of the reactor.

use forebay_block::{Error, ErrorKind, Result};
use forebay_cache::failpoints::carried;
use tokio::sync::oneshot;

/// Runs `work` on a thread of its own while the reactor continues.
///
/// # Errors
/// The error of `work`, or that no thread could be started.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let work = carried(work);
    std::thread::Builder::new()
        .name("offload".into())
        .spawn(move || {
            // The receiver may be gone.
            let _ = sender.send(work());
        })?;
    receiver.await.unwrap_or_else(|_| {
        let what = "a thread for work on files ended without a result\n    \
                        help: see the log for its panic, and report that as a bug of Forebay";
        Err(Error::new(ErrorKind::Io, what))
    })
}
