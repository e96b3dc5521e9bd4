//! Address of a namespace, as a URI.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use forebay_auth::HostSecrets;
use forebay_block::{Error, ErrorKind, Result};
use forebay_wire::nvme::fabrics::is_nqn;
use forebay_wire::nvme_tcp::Digests;

use crate::uri_parts::{hash, percent_decode, resolve};

/// Default port.
const PORT: u16 = 4420;
/// Default queue depth, in commands.
const DEPTH: u16 = 127;
const MAX_DEPTH: u16 = 1023;
/// Address of a namespace and the way to connect to it:
/// `nvme-tcp://HOST[:PORT]/NQN[?nsid=N&digest=header,data&queue_depth=N&host=NQN]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Address of the target.
    pub address: SocketAddr,
    /// Name of the subsystem.
    pub nqn: String,
    /// Namespace identifier; the first namespace of the subsystem if `None`.
    pub nsid: Option<u32>,
    /// Digests to request.
    pub digests: Digests,
    /// Maximum number of commands in flight.
    pub queue_depth: u16,
    /// NQN of this host, by which the target knows it. The default is derived from the machine's
    /// identifier.
    pub host: String,
    /// Secrets for the authentication of this host and of the target. They are never printed.
    pub secrets: Option<HostSecrets>,
}

impl fmt::Display for Uri {
    /// Prints the address only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvme-tcp://{}/{}", self.address, self.nqn)?;
        match self.nsid {
            Some(nsid) => write!(f, "?nsid={nsid}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Uri {
    type Err = Error;

    /// Parses a URI. A host name is resolved, which may block.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let what = format!(
                "{text:?} is not an NVMe/TCP URI: {why}\n\
                 help: write nvme-tcp://HOST:PORT/NQN, optionally followed by \
                 ?nsid=N&digest=header,data&queue_depth=N&host=NQN"
            );
            Error::new(ErrorKind::InvalidInput, what)
        };
        let rest = text.strip_prefix("nvme-tcp://");
        let rest = rest.ok_or_else(|| invalid("it does not begin with nvme-tcp://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, nqn) = place.split_once('/').unwrap_or((place, ""));
        let name = |text: &str, whose: &str| {
            let name = percent_decode(text).filter(|name| is_nqn(name));
            name.ok_or_else(|| invalid(&format!("{text:?} is not the NQN of a {whose}")))
        };
        let nqn = name(nqn, "subsystem")?;
        let mut uri = Self {
            address: resolve(host, PORT).ok_or_else(|| invalid("the host is unknown"))?,
            nqn,
            nsid: None,
            digests: Digests::default(),
            queue_depth: DEPTH,
            host: host_name(),
            secrets: None,
        };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("nsid", number)) => {
                    let number = number.parse().ok().filter(|&n| n > 0 && n < u32::MAX);
                    uri.nsid = Some(number.ok_or_else(|| invalid("nsid is not a number"))?);
                }
                Some(("queue_depth", number)) => {
                    let number = number.parse().ok();
                    let depth = number.filter(|depth| (1..=MAX_DEPTH).contains(depth));
                    uri.queue_depth =
                        depth.ok_or_else(|| invalid("queue_depth is not from 1 to 1023"))?;
                }
                Some(("host", host)) => uri.host = name(host, "host")?,
                Some(("digest", which)) => {
                    for digest in which.split(',') {
                        match digest {
                            "header" => uri.digests.header = true,
                            "data" => uri.digests.data = true,
                            _ => return Err(invalid("digest is not header, data, or header,data")),
                        }
                    }
                }
                _ => return Err(invalid(&format!("{part:?} is not an option"))),
            }
        }
        Ok(uri)
    }
}

impl Uri {
    /// Returns the host identifier, which is derived from its name and so is stable.
    pub(super) fn host_id(&self) -> [u8; 16] {
        let half = |seed: u8| {
            let bytes = std::iter::once(seed).chain(self.host.bytes());
            hash(bytes).to_be_bytes()
        };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&half(0));
        id[8..].copy_from_slice(&half(1));
        id
    }
}

/// Returns the default host name of this machine.
fn host_name() -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let number = hash(machine.into_iter());
    format!("nqn.2026-11.io.forebay:host-{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_subsystems_and_options() {
        let uri: Uri = "nvme-tcp://127.0.0.1/nqn.a:b".parse().expect("a URI");
        assert_eq!(uri.to_string(), "nvme-tcp://127.0.0.1:4420/nqn.a:b");
        assert_eq!((uri.nsid, uri.queue_depth), (None, 127));
        assert_eq!(uri.digests, Digests::default());
        let text =
            "nvme-tcp://[::1]:9/nqn.a%3ab?nsid=7&digest=data,header&queue_depth=4&host=nqn.h";
        let uri: Uri = text.parse().expect("a URI");
        assert_eq!(uri.to_string(), "nvme-tcp://[::1]:9/nqn.a:b?nsid=7");
        assert_eq!((uri.queue_depth, &*uri.host), (4, "nqn.h"));
        assert!(uri.digests.header && uri.digests.data);
        let other: Uri = "nvme-tcp://[::1]:9/nqn.a:b".parse().expect("a URI");
        assert_ne!(uri.host_id(), other.host_id());
        assert_ne!(uri.host_id()[..8], uri.host_id()[8..]);
    }

    #[test]
    fn a_malformed_uri_is_refused_with_the_syntax() {
        for text in [
            "nqn.a:b",
            "nbd://127.0.0.1/nqn.a:b",
            "nvme-tcp://127.0.0.1",
            "nvme-tcp://127.0.0.1/db",
            "nvme-tcp://127.0.0.1:99999/nqn.a:b",
            "nvme-tcp://127.0.0.1/nqn.a:b?nsid=0",
            "nvme-tcp://127.0.0.1/nqn.a:b?queue_depth=0",
            "nvme-tcp://127.0.0.1/nqn.a:b?queue_depth=1024",
            "nvme-tcp://127.0.0.1/nqn.a:b?digest=all",
            "nvme-tcp://127.0.0.1/nqn.a:b?host=me",
            "nvme-tcp://127.0.0.1/nqn.a:b?tls",
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(
                error.report().contains("nvme-tcp://HOST:PORT/NQN"),
                "{error}"
            );
        }
    }
}
