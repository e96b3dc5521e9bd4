//! `[[export]]`: a volume on a protocol.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use super::Config;
use super::problem::{Problems, Span};

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name of the volume.
    pub volume: String,
    /// Where clients find it.
    pub protocol: Protocol,
    /// The line of the file.
    pub line: usize,
}

/// The protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NBD, fixed newstyle; the volume's name is the export's name.
    Nbd(Listen),
    /// One file in a FUSE file system that is mounted here.
    Fuse(PathBuf),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket; absolute.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only one of two different addresses can be listened on: one is all of a port, and the
    /// other a part of it.
    pub(super) fn clashes_with(&self, other: &Self) -> bool {
        let (Self::Tcp(one), Self::Tcp(other)) = (self, other) else {
            return false;
        };
        // All of IPv6 is all of IPv4, too.
        let covers = |all: &SocketAddr, part: &SocketAddr| {
            all.ip().is_unspecified() && (all.is_ipv6() || part.is_ipv4())
        };
        let different = one != other && one.port() == other.port() && one.port() != 0;
        different && (covers(one, other) || covers(other, one))
    }
}

/// Whether the kernel chooses the port.
fn any_port(listen: &Listen) -> bool {
    matches!(listen, Listen::Tcp(address) if address.port() == 0)
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExport {
    pub(super) volume: Spanned<String>,
    nbd: Option<Spanned<String>>,
    fuse: Option<Spanned<PathBuf>>,
    insecure: Option<Spanned<bool>>,
}

/// Parses `127.0.0.1:10809` or `unix:/path`.
fn parse_listen(text: &str, base: &Path) -> Option<Listen> {
    match text.strip_prefix("unix:") {
        Some("") => None,
        Some(path) => Some(Listen::Unix(base.join(path))),
        None => text.parse().ok().map(Listen::Tcp),
    }
}

impl RawExport {
    pub(super) fn resolve(&self, problems: &mut Problems<'_>) -> Option<Export> {
        let volume = self.volume.get_ref();
        let span = self.volume.span();
        let protocol = match (&self.nbd, &self.fuse) {
            (Some(nbd), None) => Protocol::Nbd(self.resolve_nbd(problems, nbd)?),
            (None, Some(path)) => Protocol::Fuse(problems.base().join(path.get_ref())),
            (Some(_), Some(_)) => {
                problems.add(
                    &span,
                    format!("this export of volume {volume:?} names two protocols"),
                    "write two [[export]] tables, one with `nbd` and one with `fuse`",
                );
                return None;
            }
            (None, None) => {
                problems.add(
                    &span,
                    format!("this export of volume {volume:?} names no protocol"),
                    "add nbd = \"127.0.0.1:10809\", nbd = \"unix:/run/forebay/db.sock\" or fuse = \"/run/forebay/db\"",
                );
                return None;
            }
        };
        if let (Some(insecure), Protocol::Fuse(_)) = (&self.insecure, &protocol) {
            problems.add(
                &insecure.span(),
                "`insecure` means nothing to a FUSE export",
                "remove it",
            );
        }
        Some(Export {
            volume: volume.clone(),
            protocol,
            line: problems.line(span.start),
        })
    }

    fn resolve_nbd(&self, problems: &mut Problems<'_>, nbd: &Spanned<String>) -> Option<Listen> {
        let text = nbd.get_ref();
        let span: Span = nbd.span();
        let Some(listen) = parse_listen(text, &problems.base()) else {
            problems.add(
                &span,
                format!("{text:?} is no address to listen on"),
                "write an IP address with a port (\"127.0.0.1:10809\") or \"unix:\" with a path",
            );
            return None;
        };
        let insecure = self.insecure.as_ref().is_some_and(|i| *i.get_ref());
        if let Listen::Tcp(address) = &listen
            && !address.ip().is_loopback()
            && !insecure
        {
            problems.add(
                &span,
                format!(
                    "{address} can be reached from other machines, and NBD here has neither \
                     encryption nor authentication"
                ),
                "listen on 127.0.0.1 or a Unix socket, or add insecure = true where the network is trusted",
            );
        }
        if let Listen::Unix(path) = &listen
            && path.as_os_str().len() > super::SOCKET_PATH_BYTES
        {
            problems.add(&span, super::LONG_SOCKET, super::LONG_SOCKET_HELP);
        }
        Some(listen)
    }
}

impl Config {
    /// Addresses that cannot all be listened on.
    pub(super) fn check_addresses(&self, problems: &mut Problems<'_>) {
        let mut nbd: Vec<(&Listen, usize)> = Vec::new();
        for export in &self.exports {
            let Protocol::Nbd(listen) = &export.protocol else {
                continue;
            };
            let twin = nbd.iter().find(|(other, _)| other.clashes_with(listen));
            if let Some((other, line)) = twin {
                problems.add_at(
                    export.line,
                    format!("{listen} and {other} of the export in line {line} cannot both be listened on"),
                    "use the same address for both (volumes are told apart by their names), or another port",
                );
            }
            nbd.push((listen, export.line));
        }
        let own = [
            (
                Listen::Tcp(self.server.metrics),
                self.server.metrics_line,
                "metrics",
            ),
            (
                Listen::Unix(self.server.control.clone()),
                self.server.control_line,
                "control",
            ),
        ];
        for (address, line, key) in own {
            let same = |other: &Listen| {
                (*other == address && !any_port(other)) || other.clashes_with(&address)
            };
            let Some((other, export)) = nbd.iter().find(|(other, _)| same(other)) else {
                continue;
            };
            let (line, what) = match line {
                Some(line) => (
                    line,
                    format!("`{key}` is {address}, and so is the export in line {export}: {other}"),
                ),
                None => (
                    *export,
                    format!(
                        "the export's {other} is also `{key}` in [server], where {address} is the default"
                    ),
                ),
            };
            let help =
                format!("set `{key}` in [server] to another address, or give the export another");
            problems.add_at(line, what, help);
        }
    }
}
