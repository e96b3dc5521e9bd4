//! TLS of an NBD export: `tls`, `tls_certificate`, `tls_key` and `tls_client_ca`.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::export::RawExport;
use super::problem::{Problems, Span};
use super::{Config, Nbd, Protocol};

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

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawDemand {
    Offered,
    Required,
}

impl RawExport {
    /// Returns the keys of TLS that are present.
    fn tls_keys(&self) -> impl Iterator<Item = (&'static str, Span)> {
        let file =
            |key, file: &Option<Spanned<PathBuf>>| file.as_ref().map(|file| (key, file.span()));
        [
            self.tls.as_ref().map(|tls| ("tls", tls.span())),
            file("tls_certificate", &self.tls_certificate),
            file("tls_key", &self.tls_key),
            file("tls_client_ca", &self.tls_client_ca),
        ]
        .into_iter()
        .flatten()
    }

    /// Whether any key of TLS is present.
    pub(super) fn names_tls(&self) -> bool {
        self.tls_keys().next().is_some()
    }

    /// Checks that no key of TLS is next to another protocol than NBD.
    pub(super) fn check_no_tls(&self, problems: &mut Problems<'_>) {
        for (key, span) in self.tls_keys() {
            let what = format!("`{key}` means something to an NBD export only");
            problems.add(&span, what, "remove it");
        }
    }

    pub(super) fn resolve_tls(&self, problems: &mut Problems<'_>) -> Option<Tls> {
        let (first, span) = self.tls_keys().next()?;
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            problems.add(
                &span,
                format!(
                    "`{first}` needs a certificate with its key, by which clients know this server"
                ),
                "add tls_certificate = \"/etc/forebay/nbd.pem\" and tls_key = \
                 \"/etc/forebay/nbd.key\", both in PEM form, the key of mode 0600; or remove all \
                 that begins with `tls`",
            );
            return None;
        };
        let demand = self.tls.as_ref().map(|tls| *tls.get_ref());
        let required = demand != Some(RawDemand::Offered);
        if let Some(authority) = &self.tls_client_ca
            && !required
        {
            problems.add(
                &authority.span(),
                "`tls_client_ca` keeps nobody out where TLS is only offered: who has no \
                 certificate goes without TLS",
                "set tls = \"required\", or remove `tls_client_ca`",
            );
        }
        let absolute = |path: &Spanned<PathBuf>| problems.base().join(path.get_ref());
        Some(Tls {
            certificate: absolute(certificate),
            key: absolute(key),
            client_ca: self.tls_client_ca.as_ref().map(absolute),
            required,
        })
    }
}

impl Config {
    /// Checks that exports of one address have the same TLS settings: TLS starts before a client
    /// selects an export.
    pub(super) fn check_tls(&self, problems: &mut Problems<'_>) {
        let mut seen: Vec<(&Nbd, usize)> = Vec::new();
        for export in &self.exports {
            let Protocol::Nbd(nbd) = &export.protocol else {
                continue;
            };
            let same = seen.iter().find(|(other, _)| other.listen == nbd.listen);
            if let Some((other, line)) = same
                && other.tls != nbd.tls
            {
                problems.add_at(
                    export.line,
                    format!(
                        "this export and the one in line {line} are at one address, {}, and differ \
                         in TLS, which begins before a client says which of them it wants",
                        nbd.listen
                    ),
                    "give both the same `tls`, `tls_certificate`, `tls_key` and `tls_client_ca`, \
                     or one of them another address",
                );
            }
            seen.push((nbd, export.line));
        }
    }
}
