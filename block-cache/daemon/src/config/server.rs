//! `[server]`: settings of the process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use serde::Deserialize;
use toml::Spanned;

use super::problem::Problems;
use super::whole::Whole;

/// Settings of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Number of reactor threads: one runs the cache, the others serve connections.
    pub reactors: usize,
    /// Path of the control socket.
    pub control: PathBuf,
    /// Line of it in the file.
    pub control_line: Option<usize>,
    /// Address of `/metrics` and the status page; loopback.
    pub metrics: SocketAddr,
    /// Line of it in the file.
    pub metrics_line: Option<usize>,
    /// State directory, with the volumes' epochs.
    pub state: PathBuf,
    /// Line of it in the file.
    pub state_line: Option<usize>,
    /// I/O engine.
    pub io: Io,
    /// Polling of idle reactors.
    pub poll: Poll,
}

/// Polling of idle reactors.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Poll if work has arrived soon lately, then sleep.
    #[default]
    Adaptive,
    /// Poll always: each reactor uses a whole processor.
    Busy,
}

/// I/O engine.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// io_uring if the kernel allows it, otherwise threads.
    #[default]
    Auto,
    /// io_uring; the start fails without it.
    Uring,
    /// A pool of threads.
    Threads,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    /// Threads that serve connections; one of them also runs the cache.
    ///
    /// - Default: `1`
    /// - Range: 1 to 64
    reactors: Option<Spanned<Whole<1, 64>>>,
    /// Control socket, mode 0600.
    ///
    /// - Default: `/run/forebay/control.sock`
    /// - Range: 107 bytes
    control: Option<Spanned<PathBuf>>,
    /// Status page, metrics and health.
    ///
    /// - Type: address
    /// - Default: `"127.0.0.1:9809"`
    /// - Range: loopback
    metrics: Option<Spanned<String>>,
    /// State directory: keep it with the machine.
    ///
    /// - Default: `/var/lib/forebay`
    state: Option<Spanned<PathBuf>>,
    /// Way of I/O to the kernel.
    ///
    /// - Default: `"auto"`
    /// - Range: `auto`, `uring`, `threads`
    io: Option<Io>,
    /// Behaviour of an idle reactor.
    ///
    /// - Default: `"adaptive"`
    /// - Range: `adaptive`, `busy`
    poll: Option<Spanned<Poll>>,
}

impl RawServer {
    pub(super) fn resolve(&self, problems: &mut Problems<'_>) -> Server {
        let reactors = self.reactors.as_ref().and_then(|count| {
            let what = |count| format!("{count} reactors are not possible");
            Whole::check(count, problems, what, "; one a core is the most that helps")
        });
        let metrics = self.metrics.as_ref().and_then(|text| {
            let address = text.get_ref().parse::<SocketAddr>().ok();
            let loopback = address.filter(|address| address.ip().is_loopback());
            if loopback.is_none() {
                problems.add(
                    &text.span(),
                    match address {
                        Some(_) => format!("{:?} is no loopback address", text.get_ref()),
                        None => format!("{:?} is no IP address with a port", text.get_ref()),
                    },
                    "write metrics = \"127.0.0.1:9809\"; a proxy can make it reachable from \
                     elsewhere",
                );
            }
            loopback
        });
        let control = self.control.as_ref().map(|path| {
            let absolute = problems.base().join(path.get_ref());
            if absolute.as_os_str().len() > super::SOCKET_PATH_BYTES {
                problems.add(&path.span(), super::LONG_SOCKET, super::LONG_SOCKET_HELP);
            }
            absolute
        });
        if let Some(poll) = &self.poll
            && (*poll.get_ref(), self.io) == (Poll::Busy, Some(Io::Threads))
        {
            problems.add(
                &poll.span(),
                "reactors cannot look for work with io = \"threads\"".to_owned(),
                "leave `poll` or `io` out: only io_uring has no need to ask the system",
            );
        }
        let line = |start: Option<usize>| start.map(|start| problems.line(start));
        Server {
            reactors: reactors.map_or(1, |count| count as usize),
            control: control.unwrap_or_else(default_control),
            control_line: line(self.control.as_ref().map(|path| path.span().start)),
            metrics: metrics.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9809))),
            metrics_line: line(self.metrics.as_ref().map(|text| text.span().start)),
            state: self
                .state
                .as_ref()
                .map_or_else(default_state, |path| problems.base().join(path.get_ref())),
            state_line: line(self.state.as_ref().map(|path| path.span().start)),
            io: self.io.unwrap_or_default(),
            poll: self
                .poll
                .as_ref()
                .map_or_else(Poll::default, |poll| *poll.get_ref()),
        }
    }
}

impl Server {
    /// Replaces the control socket of the configuration. A relative path starts at the working
    /// directory.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is too long for a socket.
    pub fn set_control(&mut self, path: &Path) -> Result<()> {
        let absolute = std::path::absolute(path).context(|| "--control")?;
        if absolute.as_os_str().len() > super::SOCKET_PATH_BYTES {
            let what = format!(
                "--control {}: {}\nhelp: {}",
                path.display(),
                super::LONG_SOCKET,
                super::LONG_SOCKET_HELP
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        self.control = absolute;
        self.control_line = None;
        Ok(())
    }
}

fn is_root() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the default control socket: under `/run` for root, otherwise in the user's runtime
/// directory.
#[must_use]
pub fn default_control() -> PathBuf {
    if is_root() {
        return "/run/forebay/control.sock".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(run) => PathBuf::from(run).join("forebay/control.sock"),
        None => {
            // SAFETY: no memory is involved.
            let user = unsafe { libc::geteuid() };
            format!("/tmp/forebay-{user}/control.sock").into()
        }
    }
}

/// Returns the default state directory.
#[must_use]
pub fn default_state() -> PathBuf {
    if is_root() {
        return "/var/lib/forebay".into();
    }
    match (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")) {
        (Some(state), _) => PathBuf::from(state).join("forebay"),
        (None, Some(home)) => PathBuf::from(home).join(".local/state/forebay"),
        (None, None) => "/var/lib/forebay".into(),
    }
}
