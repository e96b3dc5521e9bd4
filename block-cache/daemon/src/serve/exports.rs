//! Exports the volumes: NBD, NVMe/TCP, vhost-user-blk and ublk on reactors, FUSE mounts on threads.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_frontend::fuse::{self, FuseMount};
use forebay_frontend::nbd::{self, Exports};
use forebay_frontend::nvme_tcp::{self, Subsystem};
use forebay_frontend::ublk::{self, Left, UblkDevice};
use forebay_frontend::vhost_user;
use forebay_frontend::{Spread, Succession};
use forebay_io::net::{Address, Listener};
use forebay_io::rt::{self, Remote};
use forebay_io::spawn_reactor;
use forebay_volume::VolumeHandle;
use tokio::sync::oneshot;

use super::addresses::Addresses;
use super::disks;
use super::engine::Handle;
use super::reactors::Reactors;
use crate::config::places::{UBLK_AT, VHOST_USER_AT, nbd_uri, nvme_uri};
use crate::config::{Config, Export, Listen, Nbd, NvmeTcp, Protocol, Tls};
use crate::stack::offload;

/// State that other threads need to withdraw a volume.
#[derive(Default)]
pub(super) struct Shared {
    /// Volumes of each NBD server.
    nbd: Mutex<Vec<Arc<Exports>>>,
    /// NVMe subsystems.
    nvme: Mutex<Vec<Arc<Subsystem>>>,
    /// Mounts with their volumes.
    mounts: Mutex<Vec<(String, FuseMount)>>,
    /// Block devices with their volumes.
    disks: Mutex<Vec<(String, UblkDevice)>>,
    /// Disks of virtual machines with their volumes.
    machines: Mutex<Vec<(String, Succession)>>,
}

/// Names of subsystems and their volumes.
type Offered<'a> = Vec<(&'a str, &'a str)>;

/// A volume to export as a block device with a number.
struct Disk<'a> {
    export: &'a Export,
    volume: VolumeHandle,
    number: u32,
}

impl disks::Disk for Disk<'_> {
    fn volume(&self) -> &str {
        &self.export.volume
    }
}

/// The running front-ends.
pub(super) struct Running {
    engine: Handle,
    shared: Arc<Shared>,
    addresses: Addresses,
    /// Reactors besides the engine's, each with the sender that ends it.
    reactors: Vec<(Remote, oneshot::Sender<()>, JoinHandle<()>)>,
    /// Reactors that serve connections; `None` without exports on sockets.
    serving: Option<Reactors>,
}

impl Running {
    pub(super) fn new(engine: Handle) -> Self {
        Self {
            engine,
            shared: Arc::default(),
            addresses: Addresses::default(),
            reactors: Vec::new(),
            serving: None,
        }
    }

    /// Returns the reactors that serve connections.
    pub(super) fn reactors(&self) -> Option<Reactors> {
        self.serving.clone()
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Returns the addresses of the exports.
    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    /// Starts all exports of `config`. After an error, [`Running::stop`] ends those that run.
    pub(super) async fn start(&mut self, config: &Config) -> Result<()> {
        let mut names = Vec::new();
        for number in 1..config.server.reactors {
            let (sender, receiver) = oneshot::channel();
            let (end, to_end) = oneshot::channel();
            let name = format!("net-{number}");
            let own = config.clone();
            let thread = spawn_reactor(&name, super::io_engine(config), move || async move {
                super::poll(&own);
                let _ = sender.send(rt::remote());
                let _ = to_end.await;
            })?;
            let remote = receiver
                .await
                .map_err(|_| Error::new(ErrorKind::Io, format!("reactor {name} died")))?;
            self.reactors.push((remote, end, thread));
            names.push(name);
        }
        names.push("engine".into());
        let remotes = self.reactors.iter().map(|(remote, ..)| remote.clone());
        let spread = Arc::new(Spread::new(remotes.chain([self.engine.remote().clone()])));
        let connections = |export: &Export| export.protocol.has_connections();
        if config.exports.iter().any(connections) {
            let spread = Arc::clone(&spread);
            self.serving = Some(Reactors { names, spread });
        }
        self.start_nbd(config, &spread).await?;
        self.start_nvme(config, &spread).await?;
        for export in &config.exports {
            if let Protocol::Fuse(directory) = &export.protocol {
                let volume = self.handle(&export.volume)?;
                let directory = directory.clone();
                let mount = offload(move || fuse::mount(volume, &directory)).await;
                let mount = mount.context(|| config.place(export.line))?;
                let (volume, file) = (&export.volume, mount.file().display());
                let line = format!("FUSE: volume {volume:?} is the file {file}");
                self.addresses.add(volume, line);
                lock(&self.shared.mounts).push((export.volume.clone(), mount));
            }
        }
        // Last, since these wait until the cache is open.
        self.start_vhost_user(config, &spread).await?;
        self.start_ublk(config, &spread).await
    }

    /// Starts an NBD server for each address, with all volumes exported there.
    async fn start_nbd(&mut self, config: &Config, spread: &Arc<Spread>) -> Result<()> {
        let mut servers: BTreeMap<String, (&Nbd, usize, Vec<&str>)> = BTreeMap::new();
        for export in &config.exports {
            if let Protocol::Nbd(nbd) = &export.protocol {
                let server = servers
                    .entry(nbd.listen.to_string())
                    .or_insert_with(|| (nbd, export.line, Vec::new()));
                server.2.push(&export.volume);
            }
        }
        for (Nbd { listen, tls }, line, volumes) in servers.into_values() {
            let required = tls.as_ref().is_some_and(|tls| tls.required);
            let tls = tls.as_ref().map(Tls::load).transpose();
            let tls = tls.context(|| config.place(line))?;
            let exports = Arc::new(tls.map_or_else(Exports::new, Exports::with_tls));
            for name in &volumes {
                let description = format!("Forebay volume {name}");
                exports.add(self.handle(name)?, description)?;
            }
            lock(&self.shared.nbd).push(Arc::clone(&exports));
            if let Listen::Unix(path) = listen {
                make_parent(path)?;
            }
            let spread = Arc::clone(spread);
            let serve = |listener| nbd::serve_on(listener, exports, spread);
            let started = self.listen(listen.address(), "NBD server", serve).await;
            let address = started.context(|| no_address(config, line))?;
            let at = nbd_uri(&address, "", required);
            for volume in volumes {
                let line = format!("NBD: {}", nbd_uri(&address, volume, required));
                self.addresses.add_held(volume, line, "NBD: ", &at);
            }
        }
        Ok(())
    }

    /// Creates the NVMe subsystems, and starts a target for each address with all its subsystems.
    async fn start_nvme(&mut self, config: &Config, spread: &Arc<Spread>) -> Result<()> {
        // Distinguishes the volumes of this machine from another's with the same names.
        let origin = std::fs::read("/etc/machine-id").unwrap_or_default();
        let mut subsystems: BTreeMap<&str, Arc<Subsystem>> = BTreeMap::new();
        let mut namespaces: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut targets: BTreeMap<SocketAddr, (usize, Offered<'_>)> = BTreeMap::new();
        for export in &config.exports {
            let Protocol::NvmeTcp(NvmeTcp {
                listen,
                nqn,
                allow_hosts,
                secrets,
            }) = &export.protocol
            else {
                continue;
            };
            if !subsystems.contains_key(nqn.as_str()) {
                let secrets = secrets.as_deref().map(crate::secrets::read).transpose();
                let secrets = secrets.context(|| config.place(export.line))?;
                let hosts = allow_hosts.clone();
                let subsystem = Subsystem::with_secrets(nqn, hosts, secrets, &origin)?;
                lock(&self.shared.nvme).push(Arc::clone(&subsystem));
                subsystems.insert(nqn, subsystem);
            }
            let volume = export.volume.as_str();
            if !namespaces.contains_key(&(nqn.as_str(), volume)) {
                let nsid = subsystems[nqn.as_str()].add(self.handle(volume)?)?;
                namespaces.insert((nqn, volume), nsid);
            }
            let target = targets.entry(*listen);
            let target = target.or_insert_with(|| (export.line, Vec::new()));
            target.1.push((nqn, volume));
        }
        for (listen, (line, offered)) in targets {
            let exports = Arc::new(nvme_tcp::Exports::new());
            let names: BTreeSet<_> = offered.iter().map(|(nqn, _)| *nqn).collect();
            for nqn in names {
                exports.add(Arc::clone(&subsystems[nqn]))?;
            }
            let spread = Arc::clone(spread);
            let serve = |listener| nvme_tcp::serve_on(listener, exports, spread);
            let started = self.listen(Address::Tcp(listen), "NVMe/TCP target", serve);
            let Address::Tcp(address) = started.await.context(|| no_address(config, line))? else {
                unreachable!("it was bound to a TCP address");
            };
            for (nqn, volume) in offered {
                let (at, nsid) = (nvme_uri(&address, nqn), namespaces[&(nqn, volume)]);
                let line = format!("NVMe/TCP: {at} is volume {volume:?}, namespace {nsid}");
                self.addresses.add_held(volume, line, "NVMe/TCP: ", &at);
            }
        }
        Ok(())
    }

    /// Starts a server for each disk of a virtual machine. Not before the cache is open, as in
    /// [`Running::start_ublk`].
    async fn start_vhost_user(&mut self, config: &Config, spread: &Arc<Spread>) -> Result<()> {
        for export in &config.exports {
            let Protocol::VhostUserBlk(path) = &export.protocol else {
                continue;
            };
            make_parent(path)?;
            let (volume, spread) = (self.handle(&export.volume)?, Arc::clone(spread));
            let name = export.volume.clone();
            let generation = (self.engine)
                .ask(move |engine| async move { engine.stack.disk_generation(&name).await })
                .await?;
            let generation = generation.context(|| config.place(export.line))?;
            let origin = [origin(config), generation.as_bytes()].concat();
            let succession = Succession::new(&volume, &origin);
            let machine = (export.volume.clone(), succession.clone());
            lock(&self.shared.machines).push(machine);
            let serve = |listener| vhost_user::serve_on(listener, volume, succession, spread);
            let address = Address::Unix(path.clone());
            let started = self.listen(address, "vhost-user server", serve).await;
            started.context(|| no_address(config, export.line))?;
            let (volume, path) = (&export.volume, path.display().to_string());
            let line = format!("{VHOST_USER_AT}volume {volume:?} is the disk at {path}");
            (self.addresses).add_held(volume, line, VHOST_USER_AT, &path);
        }
        Ok(())
    }

    /// Exports volumes as block devices of this machine, or takes over waiting devices. Not before
    /// the cache is open: if opening fails, users of the devices keep waiting and get no errors.
    async fn start_ublk<'a>(&mut self, config: &'a Config, spread: &Arc<Spread>) -> Result<()> {
        let ublk = |export: &'a Export| match export.protocol {
            Protocol::Ublk(number) => Some((export, number)),
            _ => None,
        };
        let mut disks = Vec::new();
        for (export, number) in config.exports.iter().filter_map(ublk) {
            disks.push(Disk {
                export,
                volume: self.handle(&export.volume)?,
                number,
            });
        }
        let Self {
            engine,
            shared,
            addresses,
            ..
        } = self;
        let place = |disk: &Disk<'_>| config.place(disk.export.line);
        let gap = async |disk: &Disk<'_>| {
            let name = disk.export.volume.clone();
            let gap = engine.ask(move |engine| async move { engine.stack.disk_gap(&name).await });
            gap.await?.context(|| place(disk))
        };
        let attach = async |disk: Disk<'_>, gap| {
            let (volume, number) = (disk.volume.clone(), disk.number);
            let (origin, spread) = (origin(config).to_vec(), Arc::clone(spread));
            let attach = move || ublk::attach(volume, number, &origin, gap, &spread);
            let attached = offload(attach).await;
            let device = attached.context(|| place(&disk))?;
            let (volume, path) = (&disk.export.volume, device.path().display().to_string());
            addresses.add(volume, format!("{UBLK_AT}volume {volume:?} is {path}"));
            lock(&shared.disks).push((volume.clone(), device));
            Ok(())
        };
        let forget = async |volume: &str| {
            let name = volume.to_owned();
            let noted =
                engine.ask(move |engine| async move { engine.stack.clear_disk_gap(&name).await });
            noted.await?
        };
        disks::attach_all(disks, gap, attach, forget).await
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

    /// Starts a server, which accepts on the first reactor besides the engine's, if there is one.
    /// Returns its address.
    async fn listen<F: Future<Output = Result<()>> + 'static>(
        &self,
        address: Address,
        what: &'static str,
        serve: impl FnOnce(Listener) -> F + Send + 'static,
    ) -> Result<Address> {
        let beside = self.reactors.first().map(|(remote, ..)| remote);
        let reactor = beside.unwrap_or(self.engine.remote());
        let (sender, receiver) = oneshot::channel();
        reactor.call(move || match Listener::bind(&address) {
            Ok(listener) => {
                let _ = sender.send(Ok(listener.address()));
                rt::spawn(async move {
                    if let Err(error) = serve(listener).await {
                        let why = error.report();
                        tracing::error!("the {what} on {address} has ended: {why}");
                    }
                });
            }
            Err(error) => _ = sender.send(Err(error)),
        });
        receiver
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the reactor has ended")))
    }

    /// Ends the reactors besides the engine's, and drops their connections.
    pub(super) fn stop(self) {
        for (_, end, thread) in self.reactors {
            let _ = end.send(());
            let _ = thread.join();
        }
    }
}

/// Distinguishes these volumes from others with the same names; unique for each daemon.
fn origin(config: &Config) -> &[u8] {
    config.server.state.as_os_str().as_encoded_bytes()
}

fn no_address(config: &Config, line: usize) -> String {
    let place = config.place(line);
    format!("{place}: the export has no address\nhelp: give it another, or free this one")
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

/// Removes and returns the entries of a volume, or of all.
fn take<T>(list: &Mutex<Vec<(String, T)>>, volume: Option<&str>) -> Vec<(String, T)> {
    let mut list = lock(list);
    let (taken, stay) = list
        .drain(..)
        .partition(|(name, _)| volume.is_none_or(|volume| volume == name));
    *list = stay;
    taken
}

/// Removes block devices, also from the list, until one fails.
fn remove_unused(disks: &mut Vec<(String, UblkDevice)>) -> Result<()> {
    let busy = |disk: &UblkDevice| {
        let disk = disk.path().display().to_string();
        let what = format!("{disk} is in use\nhelp: unmount its file systems first");
        Error::new(ErrorKind::Busy, what)
    };
    for (_, disk) in disks.iter() {
        if disk.in_use()? {
            return Err(busy(disk));
        }
    }
    while let Some((name, disk)) = disks.last() {
        match disk.detach()? {
            Left::Removed => {
                tracing::info!("volume {name:?}: {} is removed", disk.path().display())
            }
            Left::Waiting => return Err(busy(disk)),
        }
        disks.pop();
    }
    Ok(())
}

impl Shared {
    /// Returns a message for each file that another program has unmounted.
    pub(super) fn lost_mounts(&self) -> Vec<String> {
        let message = |(name, mount): &(String, FuseMount)| {
            let file = mount.file().display();
            let lost = !mount.is_mounted();
            lost.then(|| {
                format!(
                    "volume {name:?}: {file} was unmounted by another program\n    \
                     help: restart the daemon to mount it"
                )
            })
        };
        lock(&self.mounts).iter().filter_map(message).collect()
    }

    /// Removes the block devices of a volume that is withdrawn permanently; none if one is in use.
    /// Blocks as long as the volume takes to respond.
    ///
    /// # Errors
    /// `Busy` with the device, or the reason why it could not be removed. The volume must stay
    /// then, since the device does.
    pub(super) fn remove_disks(&self, volume: &str) -> Result<()> {
        let mut disks = take(&self.disks, Some(volume));
        let removed = remove_unused(&mut disks);
        lock(&self.disks).append(&mut disks);
        removed
    }

    /// Withdraws a volume, or all. New NBD connections do not find it, NVMe hosts learn that it is
    /// gone, and its file is unmounted. Its block device is removed, or waits for the next process
    /// if it is in use. Blocks while the kernel writes back its data of the file.
    pub(super) fn withdraw(&self, volume: Option<&str>) {
        for exports in lock(&self.nbd).iter() {
            if let Some(volume) = volume {
                exports.remove(volume);
            }
        }
        for subsystem in lock(&self.nvme).iter() {
            if let Some(volume) = volume {
                subsystem.remove(volume);
            }
        }
        for (name, machine) in lock(&self.machines).iter() {
            // When the process ends, the remaining devices are left to the next one.
            if volume == Some(name) {
                machine.end();
            }
        }
        for (name, disk) in take(&self.disks, volume) {
            let path = disk.path().display().to_string();
            match disk.detach() {
                Ok(Left::Removed) => tracing::info!("volume {name:?}: {path} is removed"),
                Ok(Left::Waiting) => tracing::warn!(
                    "volume {name:?}: {path} is in use: its users wait until this volume is served \
                     again"
                ),
                Err(error) => tracing::warn!("volume {name:?}: {}", error.report()),
            }
        }
        for (name, mount) in take(&self.mounts, volume) {
            let file = mount.file().display().to_string();
            match mount.unmount() {
                Ok(true) => tracing::info!("volume {name:?}: {file} is unmounted"),
                Ok(false) => tracing::warn!(
                    "volume {name:?}: {file} is still in use (a loop device?); its users get \
                     errors from now on"
                ),
                Err(error) => tracing::warn!("volume {name:?}: {file}: {}", error.report()),
            }
        }
    }
}
