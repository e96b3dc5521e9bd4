//! Checks the places of sockets, mount points and state on this machine, before any is created:
//! `forebay check` reports all that `forebay serve` would refuse.

use std::io::ErrorKind as IoKind;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_device::percent_encode;
use forebay_frontend::{fuse, ublk};
use forebay_io::file::RELEASE_TIME;
use forebay_io::net::{Address, check_listen};
use forebay_io::system::{check_storable, check_writable};

use super::problem::Problems;
use super::{Config, Export, Listen, Nbd, Protocol, Tls};
use crate::state::{
    MOVE_AWAY, StateDirectory, holder_in, irregular_files, is_irregular, not_a_directory,
};

impl Listen {
    /// Returns the address in the type of the sockets' layer.
    #[must_use]
    pub fn address(&self) -> Address {
        match self {
            Self::Tcp(address) => Address::Tcp(*address),
            Self::Unix(path) => Address::Unix(path.clone()),
        }
    }
}

/// Returns the address and name of a subsystem, as in status lines.
pub(crate) fn nvme_uri(address: &SocketAddr, nqn: &str) -> String {
    format!("nvme-tcp://{address}/{nqn}")
}

/// Prefix of the socket of a virtual machine's disk in status lines.
pub(crate) const VHOST_USER_AT: &str = "vhost-user-blk: ";

/// Prefix of a block device of this machine in status lines.
pub(crate) const UBLK_AT: &str = "ublk: ";

/// Returns the address as an NBD URI, which every NBD client accepts; with TLS if that is required.
pub(crate) fn nbd_uri(address: &Address, volume: &str, tls: bool) -> String {
    let nbd = if tls { "nbds" } else { "nbd" };
    match address {
        Address::Tcp(address) => format!("{nbd}://{address}/{volume}"),
        Address::Unix(path) => format!("{nbd}+unix:///{volume}?{}", socket_part(path)),
    }
}

/// Returns the part of an NBD URI that names a socket.
fn socket_part(path: &Path) -> String {
    format!("socket={}", percent_encode(path.as_os_str().as_bytes()))
}

impl Config {
    /// Checks everything on this machine that the configuration names, and changes nothing. This
    /// covers devices and files (the cache's if `cached`), sockets, mount points and the state
    /// directory. `running` has the addresses of the daemon on the configuration's control socket,
    /// as in its status, if one runs. Places that this daemon holds are no problem.
    ///
    /// # Errors
    /// `InvalidInput` with file, line and remedy for each problem.
    pub fn check_machine(&self, cached: bool, running: Option<&[String]>) -> Result<()> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut problems = Problems::new(&self.path, &text);
        self.look_at_media(cached, &mut problems);
        self.look_at_folders(&mut problems);
        self.check_distinct(cached, &mut problems);
        let places = Places {
            listening: running.unwrap_or_default(),
            patient_until: Instant::now() + RELEASE_TIME,
        };
        // The daemon on the control socket holds the other places, too.
        let alone = running.is_some() || places.look_at_control(self, &mut problems);
        if alone {
            for (what, help) in state(self, running.is_some()) {
                let what = format!("state directory {} {what}", self.server.state.display());
                problems.add_at(self.server.state_line, what, help);
            }
            places.look_at_metrics(self, &mut problems);
            for export in &self.exports {
                if let Err((what, help)) = places.look_at_export(export) {
                    problems.add_at(export.line, what, help);
                }
            }
        }
        problems.into_result()
    }
}

/// A problem, and the remedy.
type Wrong = (String, String);

struct Places<'a> {
    /// Addresses of the running daemon, as in its status.
    listening: &'a [String],
    /// A killed process holds its sockets and mounts for a short time.
    patient_until: Instant,
}

impl Places<'_> {
    /// Returns the result of `look`. Waits while another process may be about to release the place.
    fn patiently(&self, look: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            match look() {
                Err(error)
                    if error.kind() == ErrorKind::Busy && Instant::now() < self.patient_until =>
                {
                    std::thread::sleep(Duration::from_millis(20));
                }
                seen => return seen,
            }
        }
    }

    fn is_held(&self, held: impl Fn(&str) -> bool) -> bool {
        self.listening.iter().any(|place| held(place))
    }

    /// Whether no daemon has the control socket.
    fn look_at_control(&self, config: &Config, problems: &mut Problems<'_>) -> bool {
        let path = &config.server.control;
        let address = Address::Unix(path.clone());
        let looked = check_creatable(path).and_then(|()| check_listen(&address));
        let Err(error) = looked else { return true };
        let busy = error.kind() == ErrorKind::Busy;
        let what = match busy {
            true => format!(
                "a daemon answers on the control socket {} already",
                path.display()
            ),
            false => format!("control socket {}: {}", path.display(), error.report()),
        };
        let help = match busy {
            true => "stop it, or set `control` in [server] (or --control) to another path",
            false => "set `control` in [server] (or --control) to a path that you may write to",
        };
        problems.add_at(config.server.control_line, what, help);
        !busy
    }

    fn look_at_metrics(&self, config: &Config, problems: &mut Problems<'_>) {
        let address = config.server.metrics;
        let own = format!("http://{address}/");
        if address.port() == 0 || self.is_held(|place| place.contains(&own)) {
            return;
        }
        if let Err(error) = self.patiently(|| check_listen(&Address::Tcp(address))) {
            let what = match error.kind() {
                ErrorKind::Busy => format!("{address}, where metrics are served, is in use"),
                _ => format!("metrics cannot be served: {}", error.report()),
            };
            let help = "set `metrics` in [server] to an address of this machine with a free port \
                        (port 0 takes any)";
            problems.add_at(config.server.metrics_line, what, help);
        }
    }

    /// Whether an export may listen. Addresses of the running daemon that begin and end like this
    /// one are its own.
    fn look_at_socket(
        &self,
        volume: &str,
        listen: &Listen,
        before: &str,
        after: &str,
    ) -> Result<(), Wrong> {
        if matches!(listen, Listen::Tcp(tcp) if tcp.port() == 0)
            || self.is_held(|place| place.contains(before) && place.ends_with(after))
        {
            return Ok(());
        }
        let address = listen.address();
        let parent = match listen {
            Listen::Unix(path) => check_creatable(path),
            Listen::Tcp(_) => Ok(()),
        };
        let looked = parent.and_then(|()| self.patiently(|| check_listen(&address)));
        looked.map_err(|error| {
            let what = match error.kind() {
                ErrorKind::Busy => {
                    format!("{listen}, where volume {volume:?} is exported, is in use")
                }
                _ => format!("the export of volume {volume:?}: {}", error.report()),
            };
            let help = match error.kind() {
                ErrorKind::Busy => {
                    "stop the program that answers there, or give the export another address"
                }
                _ => "give the export an address that this user may listen on",
            };
            (what, help.into())
        })
    }

    fn look_at_export(&self, export: &Export) -> Result<(), Wrong> {
        let volume = &export.volume;
        match &export.protocol {
            Protocol::Nbd(Nbd { listen, tls }) => {
                let (before, after) = match listen {
                    // With or without TLS: the running daemon may have another setting.
                    Listen::Tcp(tcp) => (format!("://{tcp}/"), String::new()),
                    Listen::Unix(path) => (String::new(), format!("?{}", socket_part(path))),
                };
                if let Some(Err(error)) = tls.as_ref().map(Tls::load) {
                    let what = format!("the export of volume {volume:?}: {}", error.report());
                    let help = "let `tls_certificate`, `tls_key` (its own, of mode 0600) and \
                                `tls_client_ca` name PEM files that this user may read";
                    return Err((what, help.into()));
                }
                self.look_at_socket(volume, listen, &before, &after)
            }
            Protocol::NvmeTcp(target) => {
                if let Some(Err(error)) = target.secrets.as_deref().map(crate::secrets::read) {
                    let what = format!("the export of volume {volume:?}: {}", error.report());
                    let help = "let `secrets` name a file of this user, of mode 0600, with a line \
                        for each host";
                    return Err((what, help.into()));
                }
                let before = nvme_uri(&target.listen, "");
                self.look_at_socket(volume, &Listen::Tcp(target.listen), &before, "")
            }
            Protocol::VhostUserBlk(path) => {
                let (before, after) = (VHOST_USER_AT, path.display().to_string());
                self.look_at_socket(volume, &Listen::Unix(path.clone()), before, &after)
            }
            Protocol::Ublk(number) => {
                let own = format!("is {}", ublk::path(*number).display());
                if self.is_held(|place| place.starts_with(UBLK_AT) && place.ends_with(&own)) {
                    return Ok(());
                }
                ublk::check_attachable().map_err(|error| {
                    let what = format!("the export of volume {volume:?}: {}", error.report());
                    let help = "load the module, or export the volume over NBD instead";
                    (what, help.into())
                })
            }
            Protocol::Fuse(directory) => {
                let own = format!("is the file {}/", as_mounted(directory).display());
                if self.is_held(|place| place.contains(&own)) {
                    return Ok(());
                }
                let parent = match std::fs::symlink_metadata(directory) {
                    Err(error) if is_absent(&error) => check_creatable(directory),
                    _ => Ok(()),
                };
                let looked = parent.and_then(|()| self.patiently(|| fuse::check_mount(directory)));
                looked.map_err(|error| {
                    let what = format!("the export of volume {volume:?}: {}", error.report());
                    let help = "let `fuse` name an empty directory, or one that can be made";
                    (what, help.into())
                })
            }
        }
    }
}

/// Returns a directory's path without links, except for the last part, which may be a mount that
/// does not respond.
fn as_mounted(directory: &Path) -> PathBuf {
    let parent = directory.parent().and_then(|p| p.canonicalize().ok());
    match (parent, directory.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => directory.to_path_buf(),
    }
}

/// Whether it does not exist, or a parent is not a directory.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), IoKind::NotFound | IoKind::NotADirectory)
}

/// Whether a file could be created at `path`, with its parent directories.
fn check_creatable(path: &Path) -> Result<()> {
    let above = path.ancestors().skip(1);
    let Some((directory, found)) = above
        .map(|directory| (directory, std::fs::metadata(directory)))
        .find(|(_, found)| !matches!(found, Err(error) if is_absent(error)))
    else {
        return Ok(());
    };
    let name = directory.display();
    if found.is_ok_and(|found| !found.is_dir()) {
        let what = format!(
            "{name} is not a directory, and {} is under it",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let made = check_writable(directory).and_then(|()| check_storable(directory, 1, 0));
    made.map_err(|error| error.context(format!("nothing can be made in {name}")))
}

/// Number of files that a start writes into the state directory besides those of volumes. These are
/// a temporary file, and the records of the cache and of slots.
const STATE_FILES: usize = 4;

/// Returns the number of files that a start creates in the state directory.
fn state_files(config: &Config) -> usize {
    let path = &config.server.state;
    let is_absent = |name: &String| !path.join(name).exists();
    let volumes = config.volumes.iter().map(|volume| &volume.name);
    let names = volumes.flat_map(|name| [format!("{name}.epoch"), format!("{name}.disk")]);
    names.chain(["lock".to_owned()]).filter(is_absent).count() + STATE_FILES
}

/// Checks that a start can write its files into the state directory, or into the parent in which it
/// will be created.
fn check_state_storable(config: &Config) -> Result<()> {
    let path = &config.server.state;
    let there = path.ancestors().find(|directory| directory.exists());
    let files = state_files(config);
    check_storable(there.unwrap_or(path), files as u64, files)
}

/// Returns the problems of the state directory. `ours` says whether the daemon under check holds
/// it.
fn state(config: &Config, ours: bool) -> Vec<Wrong> {
    let path = &config.server.state;
    if let Some(kind) = not_a_directory(path) {
        let help = "set `state` in [server] to a directory, or move what is there away";
        return vec![(format!("is not a directory: it is {kind}"), help.into())];
    }
    let irregular = irregular_files(path);
    if !irregular.is_empty() {
        let wrong = irregular.iter();
        let wrong = wrong.map(|(name, kind)| (is_irregular(name, kind), MOVE_AWAY.into()));
        return wrong.collect();
    }
    let looked = match std::fs::metadata(path) {
        Err(error) if is_absent(&error) => {
            check_creatable(path).and_then(|()| check_state_storable(config))
        }
        Err(error) => Err(error.into()),
        Ok(_) if ours => check_writable(path).and_then(|()| check_state_storable(config)),
        Ok(_) => check_writable(path)
            .and_then(|()| StateDirectory::look(path))
            .and_then(|()| check_state_storable(config)),
    };
    let Err(error) = looked else {
        return Vec::new();
    };
    vec![match error.kind() {
        ErrorKind::Busy => (
            format!("is held by another daemon{}", holder_in(path)),
            "stop that one, or set `state` in [server] to a directory of its own".into(),
        ),
        ErrorKind::NoSpace => (
            format!("cannot be used: {}", error.report()),
            "make room on its file system, or set `state` in [server] to a directory on another one"
                .into(),
        ),
        _ => (
            format!("cannot be used: {}", error.report()),
            "set `state` in [server] to a directory that you may write to".into(),
        ),
    }]
}

#[cfg(test)]
mod tests;
