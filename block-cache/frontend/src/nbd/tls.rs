//! TLS configuration of a server.

use std::fmt;
use std::sync::Arc;

use forebay_block::{Error, ErrorKind, Result};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::key::{Kind, USABLE};

/// Whether clients must use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// TLS is optional.
    Offered,
    /// Clients without TLS are refused.
    Required,
}

/// TLS 1.2 and 1.3 for the clients of a server, with certificates.
///
/// Sessions are not resumed: every connection presents its certificates, and nothing of it stays in
/// memory.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    pub(super) required: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints nothing of the key.
        f.debug_struct("Tls")
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Creates a configuration with the server's `certificate`, its intermediate certificates in
    /// order, and the `key` that belongs to it. `authorities` sign the certificates of clients, if
    /// clients must present some. All are in PEM form.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is invalid, or the key belongs to another certificate. Errors
    /// never contain any part of the key.
    pub fn new(
        demand: Demand,
        certificate: &[u8],
        key: &[u8],
        client_authorities: Option<&[u8]>,
    ) -> Result<Self> {
        let chain = certificates("certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
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
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("no version of TLS: {error}")))?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates("client authority", pem)? {
                    roots
                        .add(authority)
                        .map_err(|error| wrong(format!("a client authority: {error}")))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| wrong(format!("the client authorities: {error}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    wrong("the key does not belong to the certificate")
                }
                error => {
                    let kind = kind.map_or_else(String::new, |kind| format!(" ({kind})"));
                    wrong(format!("the certificate and its key{kind}: {error}"))
                }
            })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            required: demand == Demand::Required,
        })
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

/// Parses the certificates of a file; at least one.
fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| wrong(format!("the {what}'s file is not in PEM form: {error}")))?;
    if found.is_empty() {
        let none = format!("the {what}'s file has no certificate in PEM form");
        return Err(wrong(none));
    }
    Ok(found)
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}
