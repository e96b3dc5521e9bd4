//! Certificates and keys in PEM form.

use forebay_block::{Error, ErrorKind, Result};
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::key::{Kind, USABLE};

/// A private key, and its kind if that is known.
pub(super) struct Key {
    pub(super) key: PrivateKeyDer<'static>,
    kind: Option<Kind>,
}

impl Key {
    /// Parses a key. Errors never contain any part of it.
    pub(super) fn parse(pem: &[u8]) -> Result<Self> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
            pem::Error::NoItemsFound => wrong(
                "the key's file has no private key in PEM form, or an encrypted one\n\
                 help: decrypt it",
            ),
            // The library's message could contain a part of the file.
            _ => wrong("the key's file is not in PEM form"),
        })?;
        let kind = Kind::of(&key);
        if let Some(kind) = kind.filter(|kind| !kind.is_usable()) {
            return Err(wrong(format!(
                "the key is {kind}, which is not supported\n\
                 help: make one that is {USABLE}, with a certificate for it"
            )));
        }
        Ok(Self { key, kind })
    }

    /// Returns a function that translates an error of a certificate with this key.
    pub(super) fn refusal(&self) -> impl Fn(rustls::Error) -> Error + use<> {
        let kind = self.kind;
        move |error| match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong("the key does not belong to the certificate")
            }
            error => {
                let kind = kind.map_or_else(String::new, |kind| format!(" ({kind})"));
                wrong(format!("the certificate and its key{kind}: {error}"))
            }
        }
    }
}

/// Parses the certificates of a file; at least one.
pub(super) fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| wrong(format!("the {what}'s file is not in PEM form: {error}")))?;
    if found.is_empty() {
        let none = format!("the {what}'s file has no certificate in PEM form");
        return Err(wrong(none));
    }
    Ok(found)
}

/// Parses the certificates of authorities; at least one.
pub(super) fn authorities(what: &str, pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(what, pem)? {
        roots
            .add(authority)
            .map_err(|error| wrong(format!("a {what}: {error}")))?;
    }
    Ok(roots)
}

pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}
