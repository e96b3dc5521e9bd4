//! Connection to a server: the socket itself, or TLS on it.

use std::path::Path;
use std::rc::Rc;

use forebay_block::{Buf, Context as _, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_tls::{Channel, ClientTls, OwnCertificate, Secure};

use super::uri;

pub(super) enum Line {
    Plain(Rc<Stream>),
    Secure(Rc<Stream>, Box<Secure>),
}

impl Line {
    /// Ends the connection. Bytes that were not sent are dropped.
    pub(super) fn abort(&self) {
        match self {
            Self::Plain(stream) | Self::Secure(stream, _) => stream.abort(),
        }
    }
}

impl Channel for Line {
    async fn recv(&self, buf: Buf) -> Result<usize> {
        match self {
            Self::Plain(stream) => stream.recv(buf).await,
            Self::Secure(_, secure) => secure.recv(buf).await,
        }
    }

    async fn recv_exact(&self, buf: Buf) -> Result<()> {
        match self {
            Self::Plain(stream) => stream.recv_exact(buf).await,
            Self::Secure(_, secure) => secure.recv_exact(buf).await,
        }
    }

    async fn send(&self, parts: &[Buf]) -> Result<()> {
        match self {
            Self::Plain(stream) => stream.send(parts).await,
            Self::Secure(_, secure) => secure.send(parts).await,
        }
    }

    fn shutdown(&self) {
        match self {
            Self::Plain(stream) | Self::Secure(stream, _) => stream.shutdown(),
        }
    }
}

/// Reads the certificates of a URI. May block.
///
/// # Errors
/// The system's error; `InvalidInput` for a file that is not what it should be.
pub(super) fn read_certificates(tls: &uri::Tls) -> Result<ClientTls> {
    let read = |name: &str| {
        let path = tls.certificates.join(name);
        std::fs::read(&path).context(|| path.display().to_string())
    };
    let authority = read("ca-cert.pem")?;
    let has = |name: &str| tls.certificates.join(name).exists();
    let own = match (has("client-cert.pem"), has("client-key.pem")) {
        (false, false) => None,
        (true, true) => Some((read("client-cert.pem")?, read("client-key.pem")?)),
        _ => return Err(lone(&tls.certificates)),
    };
    let own = own
        .as_ref()
        .map(|(certificate, key)| OwnCertificate { certificate, key });
    ClientTls::new(&tls.hostname, &authority, own)
        .context(|| tls.certificates.display().to_string())
}

/// Error for a certificate without its key, or a key alone.
fn lone(folder: &Path) -> Error {
    let what = format!(
        "{} has only one of client-cert.pem and client-key.pem\nhelp: put both there, or none",
        folder.display()
    );
    Error::new(ErrorKind::InvalidInput, what)
}
