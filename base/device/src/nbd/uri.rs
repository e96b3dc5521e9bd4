//! NBD URIs (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>), without vsock.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::Address;

use crate::uri_parts::{percent_decode, resolve};

/// Default port.
const PORT: u16 = 10_809;

/// Address of an export: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`, or one of
/// these with `nbds` and `tls-certificates=DIRECTORY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Address of the server.
    pub address: Address,
    /// The server as written: host and port, or the path of its socket.
    pub server: String,
    /// Name of the export; empty for the server's default export.
    pub export: String,
    /// Parameters of TLS; `None` unless the scheme begins with `nbds`.
    pub tls: Option<Tls>,
}

/// Parameters of TLS in a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Absolute path of the directory of `ca-cert.pem`, and of `client-cert.pem` with
    /// `client-key.pem` if the server wants a certificate.
    pub certificates: PathBuf,
    /// Name for which the server's certificate must be valid.
    pub hostname: String,
}

impl Uri {
    /// Returns whether it names a socket by a relative path, which means another one elsewhere.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        matches!(&self.address, Address::Unix(path) if path.is_relative())
    }
}

impl fmt::Display for Uri {
    /// Prints no parameters of TLS.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "nbds" } else { "nbd" };
        let Self { server, export, .. } = self;
        match &self.address {
            Address::Tcp(_) => write!(f, "{scheme}://{server}/{export}"),
            Address::Unix(path) => {
                write!(f, "{scheme}+unix:///{export}?socket={}", path.display())
            }
        }
    }
}

impl FromStr for Uri {
    type Err = Error;

    /// Parses a URI. A host name is resolved, which may block.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let what = format!(
                "{text:?} is not an NBD URI: {why}\n\
                 help: write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH; for TLS, \
                 nbds and tls-certificates=DIRECTORY"
            );
            Error::new(ErrorKind::InvalidInput, what)
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| invalid("it has no ://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = place.split_once('/').unwrap_or((place, ""));
        let export =
            percent_decode(export).ok_or_else(|| invalid("the export's name is not UTF-8"))?;
        let value = |name: &str| {
            let mut parts = query.split('&').filter_map(|part| part.split_once('='));
            let text = parts.find_map(|(key, value)| (key == name).then_some(value));
            text.map(|text| {
                let decoded = percent_decode(text).filter(|value| !value.is_empty());
                decoded.ok_or_else(|| invalid(&format!("{name} has no value")))
            })
            .transpose()
        };
        let (address, server, name) = match scheme {
            "nbd+unix" | "nbds+unix" if host.is_empty() => {
                let socket = value("socket")?.ok_or_else(|| invalid("it names no socket"))?;
                let address = Address::Unix(socket.into());
                let server = address.to_string();
                (address, server, "localhost".to_owned())
            }
            "nbd+unix" | "nbds+unix" => return Err(invalid("a Unix socket has no host")),
            "nbd" | "nbds" => {
                let host = host.to_lowercase();
                if host.contains('@') {
                    return Err(invalid("NBD has no users"));
                }
                let unknown = || match port_is_valid(&host) {
                    Some(false) => invalid("the port is no number up to 65535"),
                    _ => {
                        let what = format!(
                            "NBD server {host}: the name is not known\n\
                             help: see /etc/hosts and the name servers, or write its address"
                        );
                        Error::new(ErrorKind::NotFound, what)
                    }
                };
                let address = resolve(&host, PORT).ok_or_else(unknown)?;
                let (name, server) = match host.rsplit_once(':') {
                    Some((name, _)) if !host.ends_with(']') => (name, host.clone()),
                    _ => (&*host, format!("{host}:{PORT}")),
                };
                let name = name.trim_start_matches('[').trim_end_matches(']');
                (Address::Tcp(address), server, name.to_owned())
            }
            "nbd+vsock" | "nbds+vsock" => return Err(invalid("vsock is not supported")),
            _ => return Err(invalid("this scheme is not supported")),
        };
        // An ignored parameter could weaken what its author asks for.
        for part in query.split('&').filter(|part| part.starts_with("tls-")) {
            let (key, _) = part.split_once('=').unwrap_or((part, ""));
            if !matches!(key, "tls-certificates" | "tls-hostname") {
                return Err(invalid(&format!("{key} is not supported")));
            }
        }
        let tls = match (scheme.starts_with("nbds"), value("tls-certificates")?) {
            (true, Some(path)) => {
                let certificates = PathBuf::from(path);
                if !certificates.is_absolute() {
                    return Err(invalid("tls-certificates is not an absolute path"));
                }
                Some(Tls {
                    certificates,
                    hostname: value("tls-hostname")?.unwrap_or(name),
                })
            }
            (true, None) => return Err(invalid("TLS needs tls-certificates=DIRECTORY")),
            (false, Some(_)) => return Err(invalid("only nbds uses tls-certificates")),
            (false, None) => None,
        };
        Ok(Self {
            address,
            server,
            export,
            tls,
        })
    }
}

/// Returns whether the port of a host is a number of 16 bits; `None` without a port.
fn port_is_valid(host: &str) -> Option<bool> {
    // The colons of an IPv6 address are within brackets.
    let (_, port) = host.rsplit_once(':')?;
    (!port.ends_with(']')).then(|| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_servers_and_exports() {
        for (text, shown) in [
            ("nbd://127.0.0.1:9/db", "nbd://127.0.0.1:9/db"),
            ("nbd://127.0.0.1", "nbd://127.0.0.1:10809/"),
            ("nbd://[::1]/a%20b/c", "nbd://[::1]:10809/a b/c"),
            ("nbd://LOCALHOST/x", "nbd://localhost:10809/x"),
            ("nbd+unix:///?socket=/run/x", "nbd+unix:///?socket=/run/x"),
            (
                "nbds+unix:///a?socket=/x&tls-certificates=/etc/pki/me",
                "nbds+unix:///a?socket=/x",
            ),
            (
                "nbd+unix:///db?tls=no&socket=/a%2fb",
                "nbd+unix:///db?socket=/a/b",
            ),
        ] {
            let uri: Uri = text.parse().expect(text);
            assert_eq!(uri.to_string(), shown);
        }
        let text = "nbds://[::1]:9/db?tls-certificates=/etc/pki/m%65";
        let tls = |text: &str| {
            let uri: Uri = text.parse().expect(text);
            uri.tls.expect("it has TLS")
        };
        assert_eq!(tls(text).hostname, "::1");
        assert_eq!(tls(text).certificates.to_str(), Some("/etc/pki/me"));
        let named = format!("{text}&tls-hostname=store");
        assert_eq!(tls(&named).hostname, "store");
    }

    #[test]
    fn a_malformed_uri_is_refused_with_the_syntax() {
        for text in [
            "db",
            "/run/nbd.sock",
            "http://x/y",
            "nbds://localhost/x",
            "nbds://localhost/x?tls-certificates=pki",
            "nbds://localhost/x?tls-certificates=/pki&tls-verify-peer=false",
            "nbds://localhost/x?tls-psk-file=/psk",
            "nbd://localhost/x?tls-certificates=/pki",
            "nbd+vsock://2:10809/x",
            "nbd://127.0.0.1:99999/x",
            "nbd://me@127.0.0.1/x",
            "nbd+unix://host/x?socket=/y",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=",
            "nbd+unix:///%ff?socket=/y",
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(error.report().contains("nbd://HOST:PORT/EXPORT"), "{error}");
        }
    }

    #[test]
    fn a_name_that_is_not_known_is_no_syntax_error() {
        let error = "nbd://nosuch.host.invalid/db".parse::<Uri>();
        let error = error.expect_err("reserved by RFC 2606");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.report());
        assert_eq!(port_is_valid("[::1]"), None);
        assert_eq!(port_is_valid("[::1]:7"), Some(true));
    }
}
