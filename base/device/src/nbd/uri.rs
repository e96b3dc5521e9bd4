//! NBD URIs (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>), without TLS and
//! vsock.

use std::fmt;
use std::str::FromStr;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::net::Address;

use crate::uri_parts::{percent_decode, resolve};

/// Default port.
const PORT: u16 = 10_809;

/// Address of an export: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Address of the server.
    pub address: Address,
    /// Name of the export; empty for the server's default export.
    pub export: String,
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(address) => write!(f, "nbd://{address}/{}", self.export),
            Address::Unix(path) => {
                write!(f, "nbd+unix:///{}?socket={}", self.export, path.display())
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
                 help: write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH"
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
        let address = match scheme {
            "nbd+unix" if host.is_empty() => {
                let socket = query
                    .split('&')
                    .find_map(|part| part.strip_prefix("socket="));
                let socket = socket
                    .and_then(percent_decode)
                    .filter(|socket| !socket.is_empty());
                Address::Unix(socket.ok_or_else(|| invalid("it names no socket"))?.into())
            }
            "nbd+unix" => return Err(invalid("a Unix socket has no host")),
            "nbd" => {
                Address::Tcp(resolve(host, PORT).ok_or_else(|| invalid("the host is unknown"))?)
            }
            _ => return Err(invalid("this scheme is not supported")),
        };
        Ok(Self { address, export })
    }
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
            ("nbd+unix:///?socket=/run/x", "nbd+unix:///?socket=/run/x"),
            (
                "nbd+unix:///db?tls=no&socket=/a%2fb",
                "nbd+unix:///db?socket=/a/b",
            ),
        ] {
            let uri: Uri = text.parse().expect(text);
            assert_eq!(uri.to_string(), shown);
        }
    }

    #[test]
    fn a_malformed_uri_is_refused_with_the_syntax() {
        for text in [
            "db",
            "/run/nbd.sock",
            "http://x/y",
            "nbds://localhost/x",
            "nbd://127.0.0.1:99999/x",
            "nbd+unix://host/x?socket=/y",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=",
            "nbd+unix:///%ff?socket=/y",
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(error.report().contains("nbd://HOST:PORT/EXPORT"), "{error}");
        }
    }
}
