//! Puts the volumes on their protocols: NBD servers on reactors, FUSE mounts on threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_frontend::Spread;
use forebay_frontend::fuse::{self, FuseMount};
use forebay_frontend::nbd::{self, Exports};
use forebay_io::net::{Address, Listener};
use forebay_io::rt::{self, Remote};
use forebay_io::spawn_reactor;
use forebay_volume::VolumeHandle;
use tokio::sync::oneshot;

use super::engine::Handle;
use crate::config::places::nbd_uri;
use crate::config::{Config, Listen, Protocol};
use crate::control::status::ReactorStatus;

/// What other threads need to take a volume out of service.
#[derive(Default)]
pub(super) struct Shared {
    /// The volumes of each NBD server.
    nbd: Mutex<Vec<Arc<Exports>>>,
    /// Volume and mount.
    mounts: Mutex<Vec<(String, FuseMount)>>,
}

/// The front-ends, running.
pub(super) struct Running {
    engine: Handle,
    shared: Arc<Shared>,
    listening: Vec<String>,
    /// Reactors beside the engine's, each with what ends it.
    reactors: Vec<(Remote, oneshot::Sender<()>, JoinHandle<()>)>,
    /// Who serves NBD connections; none when nothing is exported over NBD.
    nbd: Option<Reactors>,
}

/// The reactors that serve NBD connections.
#[derive(Clone)]
pub(super) struct Reactors {
    names: Vec<String>,
    spread: Arc<Spread>,
}

impl Reactors {
    pub(super) fn status(&self) -> Vec<ReactorStatus> {
        let counts = self.spread.connections();
        let named = self.names.iter().zip(counts);
        named
            .map(|(name, nbd_connections)| ReactorStatus {
                name: name.clone(),
                nbd_connections,
            })
            .collect()
    }
}

impl Running {
    pub(super) fn new(engine: Handle) -> Self {
        Self {
            engine,
            shared: Arc::default(),
            listening: Vec::new(),
            reactors: Vec::new(),
            nbd: None,
        }
    }

    /// Who serves NBD connections.
    pub(super) fn reactors(&self) -> Option<Reactors> {
        self.nbd.clone()
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Where clients find what, in words.
    pub(super) fn listening(&self) -> Vec<String> {
        self.listening.clone()
    }

    /// Starts everything that `config` exports. On an error, what runs is ended by
    /// [`Running::stop`].
    pub(super) async fn start(&mut self, config: &Config) -> Result<()> {
        let mut names = Vec::new();
        for number in 1..config.server.reactors {
            let (tell, told) = oneshot::channel();
            let (end, to_end) = oneshot::channel();
            let name = format!("nbd-{number}");
            let thread = spawn_reactor(&name, super::io_engine(config), move || async move {
                let _ = tell.send(rt::remote());
                let _ = to_end.await;
            })?;
            let remote = told
                .await
                .map_err(|_| Error::new(ErrorKind::Io, format!("reactor {name} died")))?;
            self.reactors.push((remote, end, thread));
            names.push(name);
        }
        names.push("engine".into());
        let remotes = self.reactors.iter().map(|(remote, ..)| remote.clone());
        let spread = Arc::new(Spread::new(remotes.chain([self.engine.remote().clone()])));
        // One server for each address, with all volumes that are exported there.
        let mut servers: BTreeMap<String, (Listen, usize, Vec<&str>)> = BTreeMap::new();
        for export in &config.exports {
            if let Protocol::Nbd(listen) = &export.protocol {
                let server = servers
                    .entry(listen.to_string())
                    .or_insert_with(|| (listen.clone(), export.line, Vec::new()));
                server.2.push(&export.volume);
            }
        }
        if !servers.is_empty() {
            let spread = Arc::clone(&spread);
            self.nbd = Some(Reactors { names, spread });
        }
        for (listen, line, volumes) in servers.into_values() {
            let place = config.place(line);
            let address = self
                .serve_nbd(&spread, &listen, &volumes)
                .await
                .context(|| {
                    format!(
                        "{place}: the export has no address (give it another, or stop what uses \
                         this one)"
                    )
                })?;
            for volume in volumes {
                self.listening
                    .push(format!("NBD: {}", nbd_uri(&address, volume)));
            }
        }
        for export in &config.exports {
            if let Protocol::Fuse(directory) = &export.protocol {
                let volume = self.handle(&export.volume)?;
                let directory = directory.clone();
                let mount =
                    super::shutdown::blocking(move || fuse::mount(volume, &directory)).await;
                let mount = mount.context(|| config.place(export.line))?;
                self.listening.push(format!(
                    "FUSE: volume {:?} is the file {}",
                    export.volume,
                    mount.file().display()
                ));
                lock(&self.shared.mounts).push((export.volume.clone(), mount));
            }
        }
        Ok(())
    }

    fn handle(&self, name: &str) -> Result<VolumeHandle> {
        let found = self
            .engine
            .volumes
            .iter()
            .find(|volume| volume.name() == name);
        found
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("volume {name:?}")))
    }

    /// Starts a server, which accepts on the first reactor beside the engine's, if there is one;
    /// returns where it listens.
    async fn serve_nbd(
        &self,
        spread: &Arc<Spread>,
        listen: &Listen,
        volumes: &[&str],
    ) -> Result<Address> {
        let exports = Arc::new(Exports::new());
        for name in volumes {
            let description = format!("Forebay volume {name}");
            exports.add(self.handle(name)?, description)?;
        }
        lock(&self.shared.nbd).push(Arc::clone(&exports));
        if let Listen::Unix(path) = listen {
            make_parent(path)?;
        }
        let address = listen.address();
        let beside = self.reactors.first().map(|(remote, ..)| remote);
        let reactor = beside.unwrap_or(self.engine.remote());
        let spread = Arc::clone(spread);
        let (tell, told) = oneshot::channel();
        reactor.call(move || match Listener::bind(&address) {
            Ok(listener) => {
                let _ = tell.send(Ok(listener.address()));
                rt::spawn(async move {
                    if let Err(error) = nbd::serve_on(listener, exports, spread).await {
                        let what = error.report();
                        tracing::error!("the NBD server on {address} has ended: {what}");
                    }
                });
            }
            Err(error) => _ = tell.send(Err(error)),
        });
        told.await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the reactor has ended")))
    }

    /// Ends the reactors beside the engine's: connections are dropped.
    pub(super) fn stop(self) {
        for (_, end, thread) in self.reactors {
            let _ = end.send(());
            let _ = thread.join();
        }
    }
}

fn make_parent(path: &std::path::Path) -> Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    let made = std::fs::create_dir_all(parent);
    made.context(|| format!("cannot make the directory of the socket {}", path.display()))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Takes a volume, or all, out of service: no new NBD connection finds it, and its file is
    /// unmounted. Blocks while the kernel writes back what it has of the file.
    pub(super) fn withdraw(&self, volume: Option<&str>) {
        for exports in lock(&self.nbd).iter() {
            if let Some(volume) = volume {
                exports.remove(volume);
            }
        }
        let mounts: Vec<_> = {
            let mut mounts = lock(&self.mounts);
            let (gone, stay) = mounts
                .drain(..)
                .partition(|(name, _)| volume.is_none_or(|volume| volume == name));
            *mounts = stay;
            gone
        };
        for (name, mount) in mounts {
            let file = mount.file().display().to_string();
            match mount.unmount() {
                Ok(true) => tracing::info!("volume {name:?}: {file} is unmounted"),
                Ok(false) => tracing::warn!(
                    "volume {name:?}: {file} is still in use (a loop device?); its users get errors \
                     from now on"
                ),
                Err(error) => tracing::warn!("volume {name:?}: {file}: {}", error.report()),
            }
        }
    }
}
