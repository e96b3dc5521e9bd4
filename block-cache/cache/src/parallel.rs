//! Several futures at a time.

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::Promise;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

/// Number of parts of one request that run at a time. A request of 1 MiB with blocks of 4 KiB runs
/// at once, so that its records become durable together.
const PARTS_IN_FLIGHT: usize = 256;

/// Runs the parts of a request, up to [`PARTS_IN_FLIGHT`] at a time, starting them in order.
/// Returns the first error, after all parts have ended.
pub(crate) async fn all<F>(parts: impl Iterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let mut parts = parts.fuse();
    // Of the waiting parts, only those that were woken are polled.
    let mut running: FuturesUnordered<F> = parts.by_ref().take(PARTS_IN_FLIGHT).collect();
    let mut result = Ok(());
    while let Some(ended) = running.next().await {
        result = result.and(ended);
        running.extend(parts.next());
    }
    result
}

/// Runs several futures as tasks and waits for all. Their results come in order.
pub(crate) async fn join<T: Clone + 'static>(
    futures: Vec<impl Future<Output = T> + 'static>,
) -> Vec<T> {
    let promises: Vec<Promise<T>> = futures
        .into_iter()
        .map(|future| {
            let promise = Promise::new();
            let set = promise.clone();
            rt::spawn(async move { set.set(future.await) });
            promise
        })
        .collect();
    let mut results = Vec::with_capacity(promises.len());
    for promise in promises {
        results.push(promise.get().await);
    }
    results
}
