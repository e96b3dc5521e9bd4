//! TLS configuration of a server.

use std::fmt;
use std::sync::Arc;

use forebay_block::Result;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use super::material::{Key, authorities, certificates, wrong};

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
    required: bool,
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
        let key = Key::parse(key)?;
        let refusal = key.refusal();
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(format!("no version of TLS: {error}")))?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = authorities("client authority", pem)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| wrong(format!("the client authorities: {error}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key.key).map_err(refusal)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            required: demand == Demand::Required,
        })
    }

    /// Returns whether clients must use TLS.
    #[must_use]
    pub const fn is_required(&self) -> bool {
        self.required
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}
