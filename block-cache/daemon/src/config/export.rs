//! `[[export]]`: a volume on a protocol.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use forebay_frontend::nvme_tcp::check_nqn;
use forebay_frontend::ublk::NUMBERS;
use serde::Deserialize;
use toml::Spanned;

use super::problem::{Problems, Span};
use super::tls::{RawDemand, Tls, TlsKeys};
use super::whole::Whole;

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name of the volume.
    pub volume: String,
    /// Protocol and address.
    pub protocol: Protocol,
    /// Line in the file.
    pub line: usize,
}

/// Protocol of an export, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NBD, fixed newstyle; the volume's name is the export's name.
    Nbd(Nbd),
    /// One file in a FUSE file system mounted at this path.
    Fuse(PathBuf),
    /// A namespace of an NVMe subsystem, over TCP.
    NvmeTcp(NvmeTcp),
    /// Disk of a virtual machine, whose monitor connects to this Unix socket.
    VhostUserBlk(PathBuf),
    /// Block device of this machine with this number.
    Ublk(u32),
}

/// A server at an address, with or without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nbd {
    /// Address of the server.
    pub listen: Listen,
    /// TLS settings; `None` if clients may not use TLS.
    pub tls: Option<Tls>,
}

/// A subsystem at an address. Exports with one name are namespaces of one subsystem, which is
/// available at all of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeTcp {
    /// Address of the server.
    pub listen: SocketAddr,
    /// Name of the subsystem.
    pub nqn: String,
    /// Names of the hosts that may connect; `None` for all.
    pub allow_hosts: Option<Vec<String>>,
    /// File with the hosts' secrets, if they must authenticate; absolute path.
    pub secrets: Option<PathBuf>,
}

impl Protocol {
    /// Returns the address; `None` for a mount or a block device.
    pub(crate) fn listen(&self) -> Option<Listen> {
        match self {
            Self::Nbd(nbd) => Some(nbd.listen.clone()),
            Self::NvmeTcp(target) => Some(Listen::Tcp(target.listen)),
            Self::VhostUserBlk(path) => Some(Listen::Unix(path.clone())),
            Self::Fuse(_) | Self::Ublk(_) => None,
        }
    }

    /// Whether reactors serve its connections, or the queues of a block device.
    #[must_use]
    pub const fn has_connections(&self) -> bool {
        !matches!(self, Self::Fuse(_))
    }

    /// Whether the kernel of this machine may need it to reclaim memory: a file system on it may
    /// have dirty pages.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Fuse(_) | Self::Ublk(_))
    }
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// Path of a Unix socket; absolute.
    Unix(PathBuf),
}

impl Listen {
    /// Whether two different addresses conflict: one is the wildcard of a port, and the other is
    /// included in it.
    pub(super) fn clashes_with(&self, other: &Self) -> bool {
        let (Self::Tcp(one), Self::Tcp(other)) = (self, other) else {
            return false;
        };
        // The IPv6 wildcard includes IPv4.
        let covers = |all: &SocketAddr, part: &SocketAddr| {
            all.ip().is_unspecified() && (all.is_ipv6() || part.is_ipv4())
        };
        let different = one != other && one.port() == other.port() && one.port() != 0;
        different && (covers(one, other) || covers(other, one))
    }
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
    /// The exported volume.
    ///
    /// - Type: volume name
    pub(super) volume: Spanned<String>,
    /// Where it listens.
    ///
    /// - Of: `nbd`
    /// - Type: address
    /// - Default: required
    /// - Range: `IP:PORT`, or `unix:` with a path
    nbd: Option<Spanned<String>>,
    /// Directory that holds one file named after the volume.
    ///
    /// - Of: `fuse`
    /// - Default: required
    /// - Range: empty, or made at the start
    fuse: Option<Spanned<PathBuf>>,
    /// Where it listens.
    ///
    /// - Of: `nvme-tcp`
    /// - Type: address
    /// - Default: required
    /// - Range: `IP:PORT`
    #[serde(rename = "nvme-tcp")]
    nvme_tcp: Option<Spanned<String>>,
    /// Path of a Unix socket for the machine's monitor, mode 0600.
    ///
    /// - Of: `vhost-user-blk`
    /// - Default: required
    /// - Range: 107 bytes
    #[serde(rename = "vhost-user-blk")]
    vhost_user_blk: Option<Spanned<PathBuf>>,
    /// Number of the device: 0 is `/dev/ublkb0`.
    ///
    /// - Of: `ublk`
    /// - Default: required
    /// - Range: 0 to 1048575
    ublk: Option<Spanned<Whole<0, { NUMBERS - 1 }>>>,
    /// Name of the subsystem.
    ///
    /// - Of: `nvme-tcp`
    /// - Type: text
    /// - Default: required
    /// - Range: 223 bytes
    nqn: Option<Spanned<String>>,
    /// NQNs of the hosts that may connect.
    ///
    /// - Of: `nvme-tcp`
    /// - Default: all hosts
    /// - Range: not empty
    allow_hosts: Option<Spanned<Vec<Spanned<String>>>>,
    /// File with the hosts' secrets.
    ///
    /// - Of: `nvme-tcp`
    /// - Default: none
    /// - Range: mode 0600
    secrets: Option<Spanned<PathBuf>>,
    /// Whether clients without TLS are refused.
    ///
    /// - Of: `nbd`
    /// - Default: `"required"` with a certificate
    /// - Range: `required`, `offered`
    tls: Option<Spanned<RawDemand>>,
    /// The server's certificate, then intermediates.
    ///
    /// - Of: `nbd`
    /// - Default: none
    /// - Range: PEM, with `tls_key`
    tls_certificate: Option<Spanned<PathBuf>>,
    /// Its key, not encrypted.
    ///
    /// - Of: `nbd`
    /// - Default: none
    /// - Range: PEM, mode 0600
    tls_key: Option<Spanned<PathBuf>>,
    /// Authorities that sign the clients' certificates.
    ///
    /// - Of: `nbd`
    /// - Default: none
    /// - Range: PEM, with `tls = "required"`
    tls_client_ca: Option<Spanned<PathBuf>>,
    /// Allows an address that other machines reach, without required TLS (`nbd`) or without
    /// `secrets` (`nvme-tcp`).
    ///
    /// - Of: `nbd`, `nvme-tcp`
    /// - Default: `false`
    insecure: Option<Spanned<bool>>,
}

/// Problem of a key next to a protocol to which it does not apply.
const ONLY_NVME: &str = "means something to an NVMe/TCP export only";

/// Parses `127.0.0.1:10809` or `unix:/path`.
fn parse_listen(text: &str, base: &Path) -> Option<Listen> {
    match text.strip_prefix("unix:") {
        Some("") => None,
        Some(path) => Some(Listen::Unix(base.join(path))),
        None => text.parse().ok().map(Listen::Tcp),
    }
}

fn check_socket(problems: &mut Problems<'_>, span: &Span, path: &Path) {
    if path.as_os_str().len() > super::SOCKET_PATH_BYTES {
        problems.add(span, super::LONG_SOCKET, super::LONG_SOCKET_HELP);
    }
}

impl RawExport {
    pub(super) fn resolve(&self, problems: &mut Problems<'_>) -> Option<Export> {
        let volume = self.volume.get_ref();
        let span = self.volume.span();
        let named = [
            self.nbd.is_some(),
            self.fuse.is_some(),
            self.nvme_tcp.is_some(),
            self.vhost_user_blk.is_some(),
            self.ublk.is_some(),
        ];
        if named.iter().filter(|named| **named).count() > 1 {
            problems.add(
                &span,
                format!("this export of volume {volume:?} names two protocols"),
                "write an [[export]] table for each, with `nbd`, `nvme-tcp`, `vhost-user-blk`, \
                 `ublk` or `fuse`",
            );
            return None;
        }
        let protocol = if let Some(nbd) = &self.nbd {
            Protocol::Nbd(self.resolve_nbd(problems, nbd)?)
        } else if let Some(path) = &self.fuse {
            Protocol::Fuse(problems.base().join(path.get_ref()))
        } else if let Some(address) = &self.nvme_tcp {
            Protocol::NvmeTcp(self.resolve_nvme_tcp(problems, address)?)
        } else if let Some(path) = &self.vhost_user_blk {
            let socket = problems.base().join(path.get_ref());
            check_socket(problems, &path.span(), &socket);
            Protocol::VhostUserBlk(socket)
        } else if let Some(number) = &self.ublk {
            let what = |number| format!("{number} is no number of a ublk device");
            let number = Whole::check(number, problems, what, ": 0 is /dev/ublkb0")?;
            Protocol::Ublk(number)
        } else {
            problems.add(
                &span,
                format!("this export of volume {volume:?} names no protocol"),
                "add nbd = \"IP:PORT\" or \"unix:PATH\", nvme-tcp = \"IP:PORT\" with an nqn, \
                 vhost-user-blk = \"PATH\", ublk = 0 or fuse = \"PATH\"",
            );
            return None;
        };
        if let (Some(insecure), Protocol::Fuse(_) | Protocol::VhostUserBlk(_) | Protocol::Ublk(_)) =
            (&self.insecure, &protocol)
        {
            problems.add(
                &insecure.span(),
                "`insecure` means nothing to an export that no network reaches",
                "remove it",
            );
        }
        if !matches!(protocol, Protocol::Nbd(_)) {
            self.tls_keys().check_none(problems);
        }
        if !matches!(protocol, Protocol::NvmeTcp(_)) {
            let nqn = self.nqn.as_ref().map(|nqn| ("nqn", nqn.span()));
            let hosts = self.allow_hosts.as_ref();
            let hosts = hosts.map(|hosts| ("allow_hosts", hosts.span()));
            let secrets = self.secrets.as_ref();
            let secrets = secrets.map(|secrets| ("secrets", secrets.span()));
            for (key, span) in nqn.into_iter().chain(hosts).chain(secrets) {
                problems.add(&span, format!("`{key}` {ONLY_NVME}"), "remove it");
            }
        }
        Some(Export {
            volume: volume.clone(),
            protocol,
            line: problems.line(span.start),
        })
    }

    const fn tls_keys(&self) -> TlsKeys<'_> {
        TlsKeys {
            demand: self.tls.as_ref(),
            certificate: self.tls_certificate.as_ref(),
            key: self.tls_key.as_ref(),
            client_ca: self.tls_client_ca.as_ref(),
        }
    }

    fn resolve_nbd(&self, problems: &mut Problems<'_>, nbd: &Spanned<String>) -> Option<Nbd> {
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
        let tls = self.tls_keys().resolve(problems);
        if let Listen::Tcp(address) = &listen {
            match &tls {
                Some(Tls {
                    required: true,
                    client_ca,
                    ..
                }) => {
                    let insecure = self.insecure.as_ref().is_some_and(|i| *i.get_ref());
                    if client_ca.is_none() && !insecure && !address.ip().is_loopback() {
                        problems.warn(
                            &span,
                            "TLS encrypts this export, but each client that reaches it may use it: \
                             `tls_client_ca` would ask clients for certificates",
                        );
                    }
                }
                // The problem with TLS is reported already.
                None if self.tls_keys().any() => {}
                _ => {
                    let remedy = "set tls = \"required\" with `tls_certificate` and `tls_key`, \
                                  listen on 127.0.0.1 or a Unix socket";
                    self.check_open(problems, &span, address, "NBD", remedy);
                }
            }
        }
        if let Listen::Unix(path) = &listen {
            check_socket(problems, &span, path);
        }
        Some(Nbd { listen, tls })
    }

    /// An address that other machines can reach needs explicit consent.
    fn check_open(
        &self,
        problems: &mut Problems<'_>,
        span: &Span,
        address: &SocketAddr,
        protocol: &str,
        remedy: &str,
    ) {
        let insecure = self.insecure.as_ref().is_some_and(|i| *i.get_ref());
        if address.ip().is_loopback() || insecure {
            return;
        }
        problems.add(
            span,
            format!(
                "{address} can be reached from other machines, and {protocol} here has neither \
                 encryption nor authentication"
            ),
            format!("{remedy}, or add insecure = true where the network is trusted"),
        );
    }

    fn resolve_nvme_tcp(
        &self,
        problems: &mut Problems<'_>,
        address: &Spanned<String>,
    ) -> Option<NvmeTcp> {
        let span = address.span();
        let Ok(listen) = address.get_ref().parse() else {
            problems.add(
                &span,
                format!("{:?} is no address to listen on", address.get_ref()),
                "write an IP address with a port, such as \"127.0.0.1:4420\"",
            );
            return None;
        };
        if self.secrets.is_none() {
            let remedy = "add secrets, by which hosts authenticate themselves, listen on 127.0.0.1";
            self.check_open(problems, &span, &listen, "NVMe/TCP", remedy);
        }
        let Some(nqn) = &self.nqn else {
            problems.add(
                &span,
                "an NVMe/TCP export needs `nqn`, the name by which hosts connect to it",
                format!(
                    "add one that no other machine uses, such as nqn = \
                     \"nqn.2026-11.io.forebay:{}\"",
                    self.volume.get_ref()
                ),
            );
            return None;
        };
        let hosts = self.allow_hosts.as_ref();
        let listed = hosts.into_iter().flat_map(|hosts| hosts.get_ref());
        for name in std::iter::once(nqn).chain(listed) {
            if check_nqn(name.get_ref()).is_err() {
                problems.add(
                    &name.span(),
                    format!("{:?} is no NVMe qualified name", name.get_ref()),
                    "write \"nqn.YYYY-MM.\", a reversed domain, a colon and a name, 223 bytes at \
                     most; a host's own is in its /etc/nvme/hostnqn",
                );
            }
        }
        if let Some(hosts) = hosts
            && hosts.get_ref().is_empty()
        {
            problems.add(
                &hosts.span(),
                "`allow_hosts` is empty: no host could connect",
                "name the hosts (each has its name in /etc/nvme/hostnqn), or leave it out for all",
            );
        }
        let name = |name: &Spanned<String>| name.get_ref().clone();
        Some(NvmeTcp {
            listen,
            nqn: nqn.get_ref().clone(),
            allow_hosts: hosts.map(|hosts| hosts.get_ref().iter().map(name).collect()),
            secrets: self
                .secrets
                .as_ref()
                .map(|path| problems.base().join(path.get_ref())),
        })
    }
}
