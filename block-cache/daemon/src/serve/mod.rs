//! `forebay serve`: the process that runs a stack.
//!
//! Threads: the *engine* reactor runs the stack. NBD and NVMe/TCP connections and the queues of
//! disks are spread over it and the other reactors. FUSE has threads of its own. The main thread
//! runs the control plane, one tokio runtime that never accesses data.

mod addresses;
pub(crate) mod descriptors;
mod disks;
mod engine;
mod exports;
pub(crate) mod guard;
mod handler;
mod logging;
mod reactors;
mod record;
mod shutdown;
mod watch;

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::limits::address_space_at_start;
use forebay_io::{Engine as IoEngine, Stop, system};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{Config, Export, Io, Poll};
use crate::control;
use crate::stack::Wishes;
use crate::stack::journal::warning_of_place;
use crate::stack::memory::{Needs, RESERVE_BYTES};
use addresses::Addresses;
use descriptors::Descriptors;
use engine::Engine;
use exports::Running;
use forebay_terminal::size::human_duration;
use reactors::Reactors;
use record::Recordings;

/// Time limit for the end of a start after a signal: memory may have to be freed first.
const STOP: Duration = Duration::from_secs(30);
/// The same if the start waits, for a device or another process.
const STOP_WAITING: Duration = Duration::from_secs(2);
/// Time between two checks of a start that was asked to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit for the last check of the devices.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// Serves the volumes of `config` until a signal ends the process.
///
/// # Errors
/// The error that prevents the start, or a clean end. The latter loses nothing, since the next
/// start recovers as after a crash.
pub fn run(config: Config, wishes: &Wishes) -> Result<()> {
    system::one_heap();
    system::ignore_file_size_signal();
    address_space_at_start();
    let log = logging::start()?;
    let result = serve(config, wishes);
    log.finish();
    result
}

fn serve(mut config: Config, wishes: &Wishes) -> Result<()> {
    wishes.check(&config)?;
    let descriptors = Descriptors::raise();
    let of_journal = warning_of_place(&config);
    for warning in config.warnings.iter().chain(&of_journal) {
        tracing::warn!("{warning}");
    }
    descriptors.check(&config)?;
    Needs::of(&config, None).check()?;
    guard::check(&config)?;
    config.check_machine(!wishes.all_without_cache(&config), None)?;
    let local = |export: &Export| export.protocol.is_local();
    let local = config.exports.iter().any(local);
    if let Err(error) = system::io_flusher() {
        match local {
            // The kernel may need a file system on the volume to reclaim memory.
            true => tracing::info!("{}", error.report()),
            false => tracing::debug!("{}", error.report()),
        }
        avoid_deadlock(&mut config);
    }
    let control_socket = control::server::bind(&config.server.control)?;
    let _remove = RemoveAtEnd(&config);
    let metrics = TcpListener::bind(config.server.metrics).context(|| {
        format!(
            "cannot serve metrics on {}\n\
             help: set `metrics` in [server] to a free port (port 0 takes any)",
            config.server.metrics
        )
    })?;
    system::lock_memory();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(|| "control plane")?;
    runtime.block_on(async {
        // From here on signals are handled.
        let mut signals = Signals::new()?;
        let metrics_address = metrics.local_addr().context(|| "metrics")?;
        let stop = Stop::default();
        let starting = Engine::start(config.clone(), wishes.clone(), stop.clone());
        let started = unless_stopped(starting, &stop, signals.end(), true).await;
        let Some((engine, thread)) = started? else {
            return Ok(());
        };
        if local {
            system::reserve_memory(RESERVE_BYTES as usize);
        }
        let mut running = Running::new(engine.clone());
        let mut watch = watch::Watch::new(running.shared());
        let recordings = Arc::new(Recordings::default());
        let started = match stop.is_asked() {
            true => Ok(false),
            false => {
                let starting = async {
                    running.start(&config).await?;
                    wait_for_fast_opening(&engine).await
                };
                is_to_serve(starting, &stop, signals.end()).await
            }
        };
        let result = match started {
            // The signal arrived when everything was open.
            Ok(false) => Ok(()),
            Ok(true) => {
                let mut addresses = running.addresses();
                let control = config.server.control.display();
                addresses.add_own(format!("control on {control}"));
                let page = format!("metrics and status page on http://{metrics_address}/");
                addresses.add_own(page);
                let served = config.clone();
                let memory = engine.ask(async move |engine| {
                    let needs = engine.stack.memory_needs(&served);
                    needs.connections()
                });
                descriptors.share(&running, &config, memory.await?);
                // Nothing refuses this start any more.
                let reported = engine.ask(|engine| async move {
                    engine.stack.forget_reported_losses().await;
                });
                reported.await?;
                announce(&engine, addresses, running.reactors()).await?;
                let handler =
                    handler::new(engine.clone(), running.shared(), Arc::clone(&recordings));
                let source = handler::source(engine.clone());
                let control = tokio::spawn(control::server::serve(
                    control_socket,
                    Arc::clone(&handler),
                    descriptors.control,
                ));
                let http = tokio::spawn(control::http::serve(metrics, source, descriptors.http));
                let ready = engine.ask(|engine| async move {
                    engine.stack.ready().await?;
                    engine.stack.forget_reported_losses().await;
                    Ok(())
                });
                tokio::select! {
                    () = signals.end() => Ok(()),
                    Ok(Err(error)) = control => Err(error),
                    Ok(Err(error)) = http => Err(error),
                    () = engine.ended() => Ok(()),
                    () = watch.run(&engine) => Ok(()),
                    // A start that fails after some reads is still a failed start.
                    Ok(Err(error)) = ready => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        // A device that does not respond does not delay the end.
        let _ = tokio::time::timeout(LAST_LOOK, watch.look(&engine)).await;
        let ended = shutdown::run(&engine, running, &recordings, &stop, &mut signals).await;
        if matches!(ended, Ok(true)) {
            // Its last task has ended; only the end of the thread remains.
            let _ = thread.join();
        }
        result.and(ended.map(|_| ()))
    })
}

/// Time that an opening gets before the daemon announces that it is ready.
const FAST_OPENING: Duration = Duration::from_secs(1);

/// Waits until the caches are open, for [`FAST_OPENING`] at most.
///
/// Most caches open within this time, and most refusals come within it. So a refused start does not
/// announce that it is ready.
///
/// # Errors
/// The reason why a cache or volume could not be opened.
async fn wait_for_fast_opening(engine: &engine::Handle) -> Result<()> {
    let ready = engine.ask(|engine| async move { engine.stack.ready().await });
    match tokio::time::timeout(FAST_OPENING, ready).await {
        Ok(Ok(opened)) => opened,
        // The cache opens behind the announcement, or the engine has ended, which others report.
        Ok(Err(_)) | Err(_) => Ok(()),
    }
}

/// Waits for the last part of a start. Returns whether the daemon is to serve: no `signal` arrived.
///
/// # Errors
/// As [`unless_stopped`].
async fn is_to_serve(
    starting: impl Future<Output = Result<()>>,
    stop: &Stop,
    signal: impl Future<Output = ()>,
) -> Result<bool> {
    let started = unless_stopped(starting, stop, signal, false).await?;
    // The start may have ended by itself after a signal, which no later wait meets.
    Ok(started.is_some() && !stop.is_asked())
}

/// Waits for a start. A `signal` stops it at its next step. Returns `None` if it was stopped.
/// `cleans_up` says that the start then removes all that it created.
///
/// # Errors
/// As the start; `TimedOut` if it does not end after a signal.
async fn unless_stopped<T>(
    starting: impl Future<Output = Result<T>>,
    stop: &Stop,
    signal: impl Future<Output = ()>,
    cleans_up: bool,
) -> Result<Option<T>> {
    let mut starting = std::pin::pin!(starting);
    tokio::select! {
        started = &mut starting => return started.map(Some),
        () = signal => stop.ask(),
    }
    let asked = Instant::now();
    loop {
        match tokio::time::timeout(LOOK, &mut starting).await {
            Ok(Ok(started)) => return Ok(Some(started)),
            Ok(Err(error)) if error.kind() == ErrorKind::ShuttingDown => {
                if cleans_up {
                    let wait = stopped_wait(stop);
                    tracing::info!("the start was stopped{wait}: nothing of it is left");
                }
                return Ok(None);
            }
            Ok(Err(error)) if error.kind() == ErrorKind::TimedOut => break,
            Ok(Err(error)) => return Err(error),
            Err(_) if asked.elapsed() > STOP => {
                let what = format!(
                    "the start did not stop within {}\n    help: see that the devices answer; it \
                     ends as after a kill, and nothing that was acknowledged is lost",
                    human_duration(STOP)
                );
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
            Err(_) if asked.elapsed() > STOP_WAITING && stop.waits_for().is_some() => break,
            Err(_) => {}
        }
    }
    tell_of_cut_start(stop);
    Ok(None)
}

/// Logs that a start was stopped in the middle of a step.
fn tell_of_cut_start(stop: &Stop) {
    tracing::warn!(
        "the start was stopped{}: it ends as after a kill, and nothing that was acknowledged is \
         lost",
        stopped_wait(stop)
    );
}

/// Describes the wait that a request to stop ended; empty if there was none.
fn stopped_wait(stop: &Stop) -> String {
    let wait = stop.waited_for().or_else(|| stop.waits_for());
    wait.map_or_else(String::new, |what| format!(" while it waited for {what}"))
}

/// Selects threads for the I/O of a process that is not an I/O flusher if io_uring could deadlock.
/// With a memory limit of control group version 1, a kernel thread of the ring may need memory in
/// the middle of a request. The memory may become free only after this request.
fn avoid_deadlock(config: &mut Config) {
    if !system::memory_limited_v1() {
        return;
    }
    match config.server.io {
        Io::Auto => {
            tracing::info!(
                "a control group of version 1 limits this process's memory: using the slower \
                 threads engine\n    \
                 help: io_uring could wait for memory that the kernel frees by writing to these \
                 volumes. To use it, give the process CAP_SYS_RESOURCE, or set `io = \"uring\"` in \
                 [server] if nothing on this machine is a client"
            );
            config.server.io = Io::Threads;
        }
        Io::Uring => tracing::warn!(
            "a control group of version 1 limits this process's memory: with `io = \"uring\"`, its \
             clients here may hang\n    \
             help: under memory pressure, mounted file systems on these volumes may wait for ever: \
             give the process CAP_SYS_RESOURCE, or set `io = \"auto\"` in [server]"
        ),
        Io::Threads => {}
    }
}

/// Announces addresses and emulated devices: on standard output, in the status, and to systemd.
async fn announce(
    engine: &engine::Handle,
    addresses: Addresses,
    reactors: Option<Reactors>,
) -> Result<()> {
    // The parent process may have closed standard output.
    let say = |line: &str| _ = writeln!(std::io::stdout(), "{line}");
    let lines = addresses.lines();
    for place in &lines {
        say(place);
    }
    let status = engine.ask(move |engine| async move {
        engine.set_reached(addresses, reactors);
        engine.status()
    });
    for device in status.await?.devices {
        if device.what.contains("emulated") {
            say(&format!("device {:?} is {}", device.name, device.what));
        }
    }
    tracing::info!("ready");
    notify(&[NotifyState::Ready, NotifyState::Status(&serving(&lines))]);
    Ok(())
}

/// Describes the addresses of the daemon for systemd.
fn serving(addresses: &[String]) -> String {
    format!("serving: {}", addresses.join("; "))
}

/// Notifies systemd, if it started this process.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

/// Returns the I/O engine.
pub(crate) const fn io_engine(config: &Config) -> IoEngine {
    match config.server.io {
        Io::Auto => IoEngine::Auto,
        Io::Uring => IoEngine::Uring,
        Io::Threads => IoEngine::Threads,
    }
}

/// Makes the reactor of this thread poll always, if that is configured.
fn poll(config: &Config) {
    if config.server.poll == Poll::Busy {
        // This thread runs a reactor.
        let _ = forebay_io::never_sleep();
    }
}

/// Removes the control socket when dropped.
struct RemoveAtEnd<'a>(&'a Config);

impl Drop for RemoveAtEnd<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0.server.control);
    }
}

/// The signals that the daemon handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind| signal(kind).context(|| "signal handler");
        Ok(Self {
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
            hang_up: of(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to end.
    async fn end(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {
                    tracing::info!("SIGTERM: shutting down");
                    return;
                }
                _ = self.interrupt.recv() => {
                    tracing::info!("SIGINT: shutting down");
                    return;
                }
                _ = self.hang_up.recv() => {
                    tracing::info!(
                        "SIGHUP is ignored: restart the daemon to read the configuration again"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_ends_by_itself_after_a_signal_does_not_serve() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let stop = Stop::default();
        let asked = stop.clone();
        let starting = async move {
            while !asked.is_asked() {
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        let signal = std::future::ready(());
        let serves = runtime.block_on(is_to_serve(starting, &stop, signal));
        assert!(!serves.expect("it has started"));
        // Without a signal it serves.
        let starting = std::future::ready(Ok(()));
        let stop = Stop::default();
        let serves = is_to_serve(starting, &stop, std::future::pending());
        assert!(runtime.block_on(serves).expect("it has started"));
    }
}
