//! The clean end. Each step has a time limit. If a step exceeds it, the process ends as if killed.
//! This loses no acknowledged writes: the next start recovers.

use std::future::Future;
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::Stop;
use sd_notify::NotifyState;

use super::Signals;
use super::engine::Handle;
use super::exports::Running;
use super::record::Recordings;
use crate::stack::{CLOSE, offload};
use forebay_terminal::size::{human_count, human_duration};

/// Time limit for unmounting, during which the kernel writes back its data.
const UNMOUNT: Duration = Duration::from_secs(60);
/// Time limit for requests in flight.
const DRAIN: Duration = Duration::from_secs(60);
/// Additional time of a step, for the engine to report what is not complete. After it, the engine
/// itself does not respond.
const GRACE: Duration = Duration::from_secs(5);

/// Stops I/O, makes acknowledged writes durable, and marks the cache as cleanly shut down. A cache
/// that is still being opened is left as after a kill. Returns whether the engine ends.
pub(super) async fn run(
    engine: &Handle,
    running: Running,
    recordings: &Recordings,
    stop: &Stop,
    signals: &mut Signals,
) -> Result<bool> {
    super::notify(&[NotifyState::Stopping]);
    let opening = engine.ask(|engine| async move { engine.stack.is_opening() });
    let what = "waiting for the engine to answer";
    let is_opening = step(what, GRACE, opening, engine, signals).await?;
    if is_opening {
        // Ends the attaches that wait for the cache, and then the requests that wait for them.
        stop.ask();
    }
    let ended = end(engine, running, recordings, is_opening, signals).await;
    match ended {
        Err(error) if stop.is_asked() && error.kind() == ErrorKind::ShuttingDown => {
            super::tell_of_cut_start(stop);
            Ok(false)
        }
        ended => ended.map(|()| true),
    }
}

async fn end(
    engine: &Handle,
    running: Running,
    recordings: &Recordings,
    is_opening: bool,
    signals: &mut Signals,
) -> Result<()> {
    let begin = Instant::now();
    let begun = engine.ask(|engine| async move { engine.shutting_down.set(true) });
    let what = "waiting for the engine to answer";
    step(what, GRACE, begun, engine, signals).await?;
    let exports = running.shared();
    let unmount = offload(move || {
        exports.withdraw(None);
        Ok(())
    });
    // A file that cannot be unmounted in time returns errors; its data is safe.
    if let Err(error) = step("unmounting files", UNMOUNT, unmount, engine, signals).await {
        tracing::warn!("{}", error.report());
    }
    // Requests that wait for the opening end with it, in the close.
    if !is_opening {
        let drain = engine.ask(|engine| async move { engine.stack.drain_within(DRAIN).await });
        step(
            "waiting for requests in flight",
            DRAIN + GRACE,
            flat(drain),
            engine,
            signals,
        )
        .await?;
    }
    recordings.end().await;
    running.stop();
    let close = engine.ask(|engine| async move {
        let closed = engine.stack.close().await;
        engine.end();
        closed
    });
    step(
        "flushing and closing the devices",
        CLOSE + GRACE,
        flat(close),
        engine,
        signals,
    )
    .await?;
    let took = human_duration(begin.elapsed());
    tracing::info!("clean shutdown in {took}");
    Ok(())
}

async fn flat<T>(asked: impl Future<Output = Result<Result<T>>>) -> Result<T> {
    asked.await?
}

/// Runs `work` with a time limit, and logs its progress every second. More signals change nothing.
async fn step<T>(
    what: &str,
    bound: Duration,
    work: impl Future<Output = Result<T>>,
    engine: &Handle,
    signals: &mut Signals,
) -> Result<T> {
    let begin = Instant::now();
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = signals.end() => {
                tracing::info!(
                    "the shutdown is in progress ({what}); another signal does not speed it up"
                );
            }
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                let waiting = engine.volumes.iter().map(|volume| volume.stats().in_flight);
                let waiting: u64 = waiting.sum();
                let elapsed = human_duration(begin.elapsed());
                let waiting = human_count(waiting, "request");
                tracing::info!("{what}: {elapsed} so far, {waiting} in flight");
                super::notify(&[NotifyState::ExtendTimeoutUsec(5_000_000)]);
                if begin.elapsed() > bound {
                    return Err(Error::new(
                        ErrorKind::TimedOut,
                        format!(
                            "{what} took longer than {}: ending without a clean mark\n    help: \
                             start again, which recovers: nothing that was acknowledged is lost",
                            human_duration(bound)
                        ),
                    ));
                }
            }
        }
    }
}
