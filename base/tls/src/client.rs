//! TLS configuration of an initiator.

use std::fmt;
use std::sync::Arc;

use forebay_block::Result;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;

use super::material::{Key, authorities, certificates, wrong};

/// Certificate by which an initiator proves itself, and its key, in PEM form.
#[derive(Clone, Copy)]
pub struct OwnCertificate<'a> {
    /// The certificate and its intermediate certificates, in order.
    pub certificate: &'a [u8],
    /// Key of the certificate.
    pub key: &'a [u8],
}

/// TLS 1.2 and 1.3 to one server, whose certificate is verified.
///
/// Sessions are not resumed: every connection presents and verifies the certificates.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints nothing of the key.
        f.debug_struct("ClientTls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ClientTls {
    /// Creates a configuration for the server `name`: a host name or an address for which its
    /// certificate must be valid. `server_authorities` sign that certificate.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is invalid, or the key belongs to another certificate. Errors
    /// never contain any part of the key.
    pub fn new(
        name: &str,
        server_authorities: &[u8],
        own: Option<OwnCertificate<'_>>,
    ) -> Result<Self> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| wrong(format!("{name:?} is no name of a server with TLS")))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("no version of TLS: {error}")))?
            .with_root_certificates(authorities("server authority", server_authorities)?);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(OwnCertificate { certificate, key }) => {
                let chain = certificates("certificate", certificate)?;
                let key = Key::parse(key)?;
                let refusal = key.refusal();
                builder
                    .with_client_auth_cert(chain, key.key)
                    .map_err(refusal)?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
            name,
        })
    }

    pub(super) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    pub(super) fn name(&self) -> ServerName<'static> {
        self.name.clone()
    }
}
