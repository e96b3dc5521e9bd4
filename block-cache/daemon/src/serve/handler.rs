//! Handles control requests by asking the engine.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use sd_notify::NotifyState;
use tokio::sync::mpsc;

use super::engine::{Engine, Handle};
use super::exports::Shared;
use super::record::Recordings;
use crate::control::http::Source;
use crate::control::peer::Peer;
use crate::control::protocol::{ListedSnapshot, Reply, Request};
use crate::control::server::{Caller, Handler, Part};
use crate::stack::offload;
use crate::state::with_help;
use forebay_terminal::size::human_bytes;

/// Interval of progress reports.
const PROGRESS: Duration = Duration::from_secs(1);

/// Time limit of the engine for its status.
const STATUS: Duration = Duration::from_secs(5);

/// Returns the handler for the control socket's server.
pub(super) fn new(engine: Handle, exports: Arc<Shared>, recordings: Arc<Recordings>) -> Handler {
    Arc::new(move |request, caller| {
        let (engine, exports) = (engine.clone(), Arc::clone(&exports));
        let recordings = Arc::clone(&recordings);
        Box::pin(async move {
            let answer = answer(request, &engine, exports, &recordings, caller).await;
            answer.unwrap_or_else(|error| Reply::error(&error))
        })
    })
}

/// Returns the source of the status for the HTTP server.
pub(super) fn source(engine: Handle) -> Source {
    Arc::new(move || {
        let engine = engine.clone();
        Box::pin(async move {
            let status = engine.ask(|engine| async move { engine.status() }).await;
            status.map_or_else(
                |error| Reply::error(&error),
                |status| Reply::Status(Box::new(status)),
            )
        })
    })
}

/// A command of a client that waits.
struct Command<'a> {
    engine: &'a Handle,
    peer: &'a Arc<Peer>,
    name: &'static str,
}

impl Command<'_> {
    /// Runs the first step of the command on the engine's reactor, unless the daemon shuts down or
    /// the client has left meanwhile. Such a client has reported a failure.
    async fn begin<T: Send + 'static, F: Future<Output = Result<T>> + 'static>(
        &self,
        step: impl FnOnce(Rc<Engine>) -> F + Send + 'static,
    ) -> Result<T> {
        let (peer, name) = (Arc::clone(self.peer), self.name);
        let work = self.engine.ask(move |engine| async move {
            engine.check_open()?;
            peer.check_waits(name)?;
            step(engine).await
        });
        work.await?
    }
}

async fn answer(
    request: Request,
    engine: &Handle,
    exports: Arc<Shared>,
    recordings: &Recordings,
    caller: Caller,
) -> Result<Reply> {
    let progress = &caller.parts;
    let command = Command {
        engine,
        peer: &caller.peer,
        name: request.command(),
    };
    let done = match request {
        Request::Status {} => {
            let asked = engine.ask(|engine| async move { engine.status() });
            let status = tokio::time::timeout(STATUS, asked).await;
            let status = status.map_err(|_| {
                let what = format!(
                    "the engine has not answered for {STATUS:?}\nhelp: see the daemon's log, and \
                     whether its device hangs"
                );
                Error::new(ErrorKind::TimedOut, what)
            })??;
            return Ok(Reply::Status(Box::new(status)));
        }
        Request::Flush { volume } => {
            let name = volume.clone();
            let work = command.begin(move |engine| async move {
                let whose = name.as_deref().unwrap_or("all volumes");
                tracing::info!("flush requested: {whose}");
                engine.stack.write_back(name.as_deref()).await
            });
            with_progress(work, || dirty_left(engine, volume.clone()), progress).await?
        }
        Request::Mode { volume, mode } => {
            let work = command.begin(move |engine| async move {
                log_success(engine.stack.set_mode(&volume, mode).await)
            });
            work.await?
        }
        Request::Cleaning { policy } => {
            let work = command.begin(move |engine| async move {
                log_success(engine.stack.set_cleaning(&policy))
            });
            work.await?
        }
        Request::Detach {
            volume,
            abandon_dirty,
        } => {
            let name = volume.clone();
            let work = command.begin(move |engine| async move {
                // Refused before clients lose access.
                engine.stack.check_detach(&name).await
            });
            work.await?;
            caller.peer.check_waits(command.name)?;
            let name = volume.clone();
            offload(move || {
                exports.remove_disks(&name)?;
                exports.withdraw(Some(&name));
                Ok(())
            })
            .await?;
            let name = volume.clone();
            let work = engine.ask(move |engine| async move {
                let _detaching = engine.stack.begin_detach(&name)?;
                let left = engine.withdraw(&name);
                super::notify(&[NotifyState::Status(&super::serving(&left))]);
                let done = match abandon_dirty {
                    true => engine.stack.abandon(&name).await,
                    false => engine.stack.detach(&name).await,
                };
                match &done {
                    Ok(done) => tracing::info!("{done}"),
                    Err(error) => tracing::error!("detach of {name:?}: {}", error.report()),
                }
                // Connected clients continue.
                done.map_err(|error| {
                    let help = "it has no export any more: remove the cause and repeat the \
                                detach, or restart the daemon to serve it";
                    with_help(&error, "", help)
                })
            });
            let left = || dirty_left(engine, Some(volume.clone()));
            with_progress(work, left, progress).await??
        }
        Request::Forget {
            volume,
            discard_dirty,
        } => {
            let work = command.begin(move |engine| async move {
                log_success(engine.stack.forget_volume(&volume, discard_dirty).await)
            });
            work.await?
        }
        Request::Grow { volume } => {
            let work = command
                .begin(move |engine| async move { log_success(engine.stack.grow(&volume).await) });
            work.await?
        }
        Request::Snapshot {
            volume, name: None, ..
        } => {
            let work =
                command.begin(move |engine| async move { engine.stack.snapshots(&volume).await });
            let listed = work.await?.into_iter().map(|snapshot| ListedSnapshot {
                name: snapshot.name,
                size_bytes: snapshot.size_bytes,
                created_s: snapshot.time.as_secs(),
            });
            return Ok(Reply::Snapshots(listed.collect()));
        }
        Request::Snapshot {
            volume,
            name: Some(name),
            delete: true,
        } => {
            let work = command.begin(move |engine| async move {
                log_success(engine.stack.delete_snapshot(&volume, &name).await)
            });
            work.await?
        }
        Request::Snapshot {
            volume,
            name: Some(name),
            ..
        } => {
            let whose = volume.clone();
            let work = command.begin(move |engine| async move {
                log_success(engine.stack.snapshot(&volume, &name).await)
            });
            with_progress(work, || dirty_left(engine, Some(whose.clone())), progress).await?
        }
        Request::Scrub { stop: true, .. } => {
            let work = command.begin(|engine| async move { engine.stack.stop_scrub() });
            work.await?
        }
        Request::Scrub {
            bytes_per_second, ..
        } => {
            let work = command.begin(move |engine| async move {
                log_success(engine.stack.scrub(bytes_per_second).await)
            });
            with_progress(work, || scrub_progress(engine), progress).await?
        }
        Request::Record { volumes, max_bytes } => {
            command.begin(|_| async { Ok(()) }).await?;
            recordings.run(engine, volumes, max_bytes, caller).await?
        }
    };
    Ok(Reply::Done(done))
}

/// Logs the description of a successful command.
fn log_success(done: Result<String>) -> Result<String> {
    if let Ok(done) = &done {
        tracing::info!("{done}");
    }
    done
}

/// Waits for `work`. Sends the text of `describe` to the client every second.
async fn with_progress<T, F: Future<Output = Option<String>>>(
    work: impl Future<Output = T>,
    describe: impl Fn() -> F,
    progress: &mpsc::Sender<Part>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(PROGRESS) => {
                if let Some(text) = describe().await {
                    // The client may be gone; the work continues.
                    let _ = progress.try_send(Part::Progress(text));
                }
            }
        }
    }
}

/// Describes the dirty data that a volume, or all of them, still have.
async fn dirty_left(engine: &Handle, volume: Option<String>) -> Option<String> {
    let left = engine
        .ask(move |engine| async move { engine.stack.dirty_bytes(volume.as_deref()) })
        .await;
    Some(format!("{} left to write back", human_bytes(left.ok()?)))
}

/// Describes the progress of the scrub.
async fn scrub_progress(engine: &Handle) -> Option<String> {
    let far = engine.ask(|engine| async move { engine.stack.scrub_progress() });
    far.await.ok()?
}
