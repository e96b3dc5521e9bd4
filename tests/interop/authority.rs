//! Certificates for servers and clients, made anew by each test.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// Somebody who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM form.
    pub(crate) certificate: String,
}

/// A certificate and its key, in PEM form.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// What a certificate is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A server on this machine.
    Server,
    Client,
    /// A client, some time ago.
    ExpiredClient,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    pub(crate) fn sign(&self, what: Use) -> Signed {
        let names = match what {
            Use::Server => vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            Use::Client | Use::ExpiredClient => vec!["client".to_owned()],
        };
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, "a test");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match what {
            Use::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client | Use::ExpiredClient => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if what == Use::ExpiredClient {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Makes a folder as libnbd's and QEMU's clients want it: whom to trust, and what to show.
pub(crate) fn client_folder(folder: &Path, trusted: &Authority, own: Option<&Signed>) {
    std::fs::create_dir(folder).expect("a folder of our own");
    let put = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("a file");
    };
    put("ca-cert.pem", &trusted.certificate);
    if let Some(own) = own {
        put("client-cert.pem", &own.certificate);
        put("client-key.pem", &own.key);
    }
}
