//! The thread of the engine reactor, and requests of other threads to it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Instant;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::rt::{self, Remote};
use forebay_io::{Reactor, Stop};
use forebay_volume::VolumeHandle;
use tokio::sync::{oneshot, watch};

use super::addresses::Addresses;
use super::reactors::Reactors;
use crate::config::Config;
use crate::stack::{Stack, Wishes, place_of_path};
use crate::status::Status;

thread_local! {
    static ENGINE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// State on the engine reactor.
pub(super) struct Engine {
    pub(super) stack: Stack,
    io_engine: &'static str,
    /// Paths of the configuration and of the state directory.
    configuration: String,
    state: String,
    started: Instant,
    /// Addresses of the exports, and the reactors that serve their connections.
    addresses: RefCell<Addresses>,
    reactors: RefCell<Option<Reactors>>,
    pub(super) shutting_down: Cell<bool>,
    /// Ends the reactor.
    end: RefCell<Option<oneshot::Sender<()>>>,
}

/// Access to the engine for other threads.
#[derive(Clone)]
pub(super) struct Handle {
    remote: Remote,
    pub(super) volumes: Vec<VolumeHandle>,
    ended: watch::Receiver<()>,
}

/// Opens the stack, reports that, and holds it until the end.
async fn main(
    config: Config,
    wishes: Wishes,
    stop: Stop,
    io_engine: &'static str,
    sender: oneshot::Sender<Result<(Remote, Vec<VolumeHandle>)>>,
) {
    super::poll(&config);
    let stack = match Stack::open_until(&config, &wishes, &stop).await {
        Ok(stack) => stack,
        Err(error) => {
            let _ = sender.send(Err(error));
            return;
        }
    };
    let (end, to_end) = oneshot::channel();
    let volumes = stack.volumes();
    let engine = Rc::new(Engine {
        stack,
        io_engine,
        configuration: place_of_path(&config.path),
        state: place_of_path(&config.server.state),
        started: Instant::now(),
        addresses: RefCell::default(),
        reactors: RefCell::default(),
        shutting_down: Cell::new(false),
        end: RefCell::new(Some(end)),
    });
    ENGINE.set(Some(engine));
    let _ = sender.send(Ok((rt::remote(), volumes)));
    let _ = to_end.await;
    ENGINE.set(None);
}

impl Engine {
    /// Starts the thread, and opens the stack on it; `stop` cancels that.
    pub(super) async fn start(
        config: Config,
        wishes: Wishes,
        stop: Stop,
    ) -> Result<(Handle, JoinHandle<()>)> {
        let (sender, receiver) = oneshot::channel();
        let (alive, ended) = watch::channel(());
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || {
                let _alive = alive;
                match Reactor::new(super::io_engine(&config)) {
                    Ok(reactor) => {
                        let io_engine = reactor.engine_name();
                        reactor.run(main(config, wishes, stop, io_engine, sender));
                    }
                    Err(error) => _ = sender.send(Err(error)),
                }
            });
        let thread = thread.context(|| "cannot start the engine's thread")?;
        let opened = receiver.await.unwrap_or_else(|_| {
            let what = "the engine's thread died at its start";
            Err(Error::new(ErrorKind::Io, what))
        });
        let (remote, volumes) = opened?;
        let handle = Handle {
            remote,
            volumes,
            ended,
        };
        Ok((handle, thread))
    }

    pub(super) fn set_reached(&self, addresses: Addresses, reactors: Option<Reactors>) {
        self.addresses.replace(addresses);
        self.reactors.replace(reactors);
    }

    /// Removes the exports of a withdrawn volume from the status. Returns the remaining addresses.
    pub(super) fn withdraw(&self, volume: &str) -> Vec<String> {
        let mut addresses = self.addresses.borrow_mut();
        addresses.withdraw(volume);
        addresses.lines()
    }

    /// Refuses changes during shutdown.
    pub(super) fn check_open(&self) -> Result<()> {
        match self.shutting_down.get() {
            true => Err(Error::new(
                ErrorKind::ShuttingDown,
                "the daemon takes no more commands\nhelp: repeat the command after the next start",
            )),
            false => Ok(()),
        }
    }

    /// Ends the reactor and drops the stack.
    pub(super) fn end(&self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
    }

    pub(super) fn status(&self) -> Status {
        Status {
            uptime_s: self.started.elapsed().as_secs(),
            configuration: self.configuration.clone(),
            state: self.state.clone(),
            io_engine: self.io_engine.into(),
            shutting_down: self.shutting_down.get(),
            listening: self.addresses.borrow().lines(),
            reactors: self
                .reactors
                .borrow()
                .as_ref()
                .map_or_else(Vec::new, Reactors::status),
            ..self.stack.status()
        }
    }
}

impl Handle {
    /// Runs `ask` on the engine's reactor. It completes even if the caller stops waiting.
    ///
    /// # Errors
    /// `ShuttingDown` if the engine has ended.
    pub(super) async fn ask<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        ask: impl FnOnce(Rc<Engine>) -> F + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.remote.call(move || {
            if let Some(engine) = ENGINE.with_borrow(Clone::clone) {
                rt::spawn(async move {
                    let _ = sender.send(ask(engine).await);
                });
            }
        });
        receiver
            .await
            .map_err(|_| Error::new(ErrorKind::ShuttingDown, "the engine has ended"))
    }

    /// Returns the reactor of the engine, for tasks besides the stack.
    pub(super) const fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Waits until the engine's thread has ended.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}
