//! TLS of an NBD export: `tls`, `tls_certificate`, `tls_key` and `tls_client_ca`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_frontend::nbd::{self, Demand};
use forebay_io::file::open_regular;
use serde::Deserialize;
use toml::Spanned;

use super::problem::{Problems, Span};
use crate::secrets::read_private;

/// Largest file of certificates, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// TLS settings of an NBD export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// File with the server's certificate and intermediate certificates; absolute path.
    pub certificate: PathBuf,
    /// File with its key; absolute path.
    pub key: PathBuf,
    /// File with the authorities that sign clients' certificates, if clients need one; absolute
    /// path.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without TLS are refused.
    pub required: bool,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Permission` if other users can read or change the key. `InvalidInput` for an invalid file,
    /// or a key of another certificate. No error contains part of the key.
    pub(crate) fn load(&self) -> Result<nbd::Tls> {
        let certificate = read_public(&self.certificate, "the certificate")?;
        let key = read_private(&self.key, "the key")?;
        let clients = self.client_ca.as_deref();
        let clients = clients.map(|path| read_public(path, "the clients' authorities"));
        let clients = clients.transpose()?;
        let demand = match self.required {
            true => Demand::Required,
            false => Demand::Offered,
        };
        nbd::Tls::new(demand, &certificate, key.as_bytes(), clients.as_deref()).context(|| {
            let mut files = format!(
                "TLS with {} and {}",
                self.certificate.display(),
                self.key.display()
            );
            if let Some(clients) = &self.client_ca {
                files += &format!(", clients' authorities in {}", clients.display());
            }
            files
        })
    }
}

fn read_public(path: &Path, what: &str) -> Result<Vec<u8>> {
    let shown = path.display();
    let unreadable = || format!("cannot read {what} in {shown}");
    let opened = open_regular(path, File::options().read(true));
    let file = opened.context(unreadable)?;
    let about = file.metadata().context(unreadable)?;
    if about.len() > MAX_BYTES {
        let why = format!(
            "{shown}, which should have {what}, is above 1 MiB\n\
             help: name the right file"
        );
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .context(unreadable)?;
    Ok(bytes)
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawDemand {
    Offered,
    Required,
}

/// The keys of TLS of an export.
#[derive(Clone, Copy)]
pub(super) struct TlsKeys<'a> {
    /// Whether clients must use TLS.
    pub(super) demand: Option<&'a Spanned<RawDemand>>,
    /// File with the server's certificate.
    pub(super) certificate: Option<&'a Spanned<PathBuf>>,
    /// File with its key.
    pub(super) key: Option<&'a Spanned<PathBuf>>,
    /// File with the authorities that sign clients' certificates.
    pub(super) client_ca: Option<&'a Spanned<PathBuf>>,
}

impl TlsKeys<'_> {
    /// Returns the keys that are present.
    fn present(self) -> impl Iterator<Item = (&'static str, Span)> {
        let file = |key, file: Option<&Spanned<PathBuf>>| file.map(|file| (key, file.span()));
        [
            self.demand.map(|demand| ("tls", demand.span())),
            file("tls_certificate", self.certificate),
            file("tls_key", self.key),
            file("tls_client_ca", self.client_ca),
        ]
        .into_iter()
        .flatten()
    }

    /// Whether any key is present.
    pub(super) fn any(self) -> bool {
        self.present().next().is_some()
    }

    /// Checks that no key is next to another protocol than NBD.
    pub(super) fn check_none(self, problems: &mut Problems<'_>) {
        for (key, span) in self.present() {
            let what = format!("`{key}` means something to an NBD export only");
            problems.add(&span, what, "remove it");
        }
    }

    pub(super) fn resolve(self, problems: &mut Problems<'_>) -> Option<Tls> {
        let (first, span) = self.present().next()?;
        let (Some(certificate), Some(key)) = (self.certificate, self.key) else {
            problems.add(
                &span,
                format!(
                    "`{first}` needs a certificate with its key, by which clients know this server"
                ),
                "add tls_certificate = \"PATH\" and tls_key = \"PATH\", both PEM, the key of mode \
                 0600; or remove all that begins with `tls`",
            );
            return None;
        };
        let demand = self.demand.map(|demand| *demand.get_ref());
        let required = demand != Some(RawDemand::Offered);
        if let Some(authority) = self.client_ca
            && !required
        {
            problems.add(
                &authority.span(),
                "`tls_client_ca` excludes no client where TLS is only offered: one without a \
                 certificate connects without TLS",
                "set tls = \"required\", or remove `tls_client_ca`",
            );
        }
        let absolute = |path: &Spanned<PathBuf>| problems.base().join(path.get_ref());
        Some(Tls {
            certificate: absolute(certificate),
            key: absolute(key),
            client_ca: self.client_ca.map(absolute),
            required,
        })
    }
}
