//! TLS: certificates that both sides accept, and those that one of them refuses.

use std::path::{Path, PathBuf};

use forebay_tls::{Demand, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::*;

/// An authority, and its certificate in PEM form.
struct Authority(Issuer<'static, KeyPair>, String);

/// A certificate and its key, in PEM form.
struct Signed {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        Self(Issuer::new(params, key), certificate)
    }

    fn sign(&self, name: &str, purpose: ExtendedKeyUsagePurpose) -> Signed {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// TLS of a server with the name, whose clients have to show certificates of this authority.
    fn server(&self, name: &str) -> Tls {
        let own = self.sign(name, ExtendedKeyUsagePurpose::ServerAuth);
        let (certificate, key) = (own.certificate.as_bytes(), own.key.as_bytes());
        let clients = Some(self.1.as_bytes());
        Tls::new(Demand::Required, certificate, key, clients).expect("they belong together")
    }
}

/// A directory of certificates; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, authority: &Authority, own: Option<&Signed>) -> Self {
        let unique = format!("fb-nbd-tls-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(unique));
        std::fs::create_dir_all(&folder.0).expect("a directory");
        folder.put("ca-cert.pem", &authority.1);
        if let Some(own) = own {
            folder.put("client-cert.pem", &own.certificate);
            folder.put("client-key.pem", &own.key);
        }
        folder
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("written");
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The server's URI with TLS.
fn uri(server: &Server, certificates: &Path) -> Uri {
    let plain = server.uri().replace("nbd://", "nbds://");
    let text = format!("{plain}?tls-certificates={}", certificates.display());
    text.parse().expect("a URI")
}

#[test]
fn certificates_serve_every_connection_of_a_device() {
    let authority = Authority::new();
    let own = authority.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let folder = Folder::new("good", &authority, Some(&own));
    let server = Server::start(|number, _| match number {
        2 => Act::PowerLoss,
        _ => Act::Answer,
    });
    let tls = authority.server("127.0.0.1");
    server.offer().tls.replace(Some(tls));
    let uri = uri(&server, folder.path());
    server.run(async move {
        let made = NbdDevice::connect_with(&uri, settings()).await;
        let device = made.expect("connected");
        let data: Vec<_> = (0..60 << 10).map(|at: u32| (at % 251) as u8).collect();
        device.write(0, Buf::copied(&data)).await.expect("1");
        device.flush().await.expect("after the resend");
        assert_eq!(device.losses(), 1);
        let into = Buf::zeroed(data.len());
        device.read(0, into.clone()).await.expect("read");
        assert!(into.to_vec() == data);
    });
}

#[test]
fn certificates_that_do_not_suit_are_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let sign = |by: &Authority| by.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let (own, foreign) = (sign(&authority), sign(&stranger));
    let cases = [
        (
            "none",
            &authority,
            None,
            "127.0.0.1",
            "ended TLS with the alert",
        ),
        (
            "foreign",
            &authority,
            Some(&foreign),
            "127.0.0.1",
            "ended TLS with the alert",
        ),
        (
            "untrusted",
            &stranger,
            Some(&own),
            "127.0.0.1",
            "the server's certificate is refused",
        ),
        (
            "name",
            &authority,
            Some(&own),
            "another.example",
            "the server's certificate is refused: certificate not valid for name",
        ),
    ];
    for (name, trusted, shown, server_name, words) in cases {
        let folder = Folder::new(name, trusted, shown);
        let server = Server::start(|_, _| Act::Answer);
        server
            .offer()
            .tls
            .replace(Some(authority.server(server_name)));
        let uri = uri(&server, folder.path());
        let made = server.run(async move { NbdDevice::connect_with(&uri, settings()).await });
        let report = made.expect_err(name).report();
        assert!(report.contains(words), "{name}: {report}");
        assert!(server.asked().is_empty(), "{name}");
    }
}

#[test]
fn neither_side_falls_back_to_a_connection_without_tls() {
    let authority = Authority::new();
    let own = authority.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
    let folder = Folder::new("plain", &authority, Some(&own));
    let server = Server::start(|_, _| Act::Answer);
    let connect = |uri: Uri| {
        let made = server.run(async move { NbdDevice::connect_with(&uri, settings()).await });
        made.expect_err("no connection").report()
    };
    let report = connect(uri(&server, folder.path()));
    assert!(report.contains("the server offers no TLS"), "{report}");
    let tls = authority.server("127.0.0.1");
    server.offer().tls.replace(Some(tls));
    let report = connect(server.uri().parse().expect("a URI"));
    assert!(report.contains("the server requires TLS"), "{report}");
    std::fs::remove_file(folder.path().join("client-key.pem")).expect("it is there");
    let report = connect(uri(&server, folder.path()));
    assert!(
        report.contains("has only one of client-cert.pem and client-key.pem"),
        "{report}"
    );
    std::fs::remove_file(folder.path().join("ca-cert.pem")).expect("it is there");
    let report = connect(uri(&server, folder.path()));
    assert!(report.contains("ca-cert.pem"), "{report}");
}
