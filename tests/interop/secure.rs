//! TLS: real clients with certificates, and clients that are refused.

use std::path::PathBuf;

use forebay_frontend::nbd::{Demand, Tls};
use forebay_io::Engine;

use crate::clients::{noise, text};
use crate::programs::{requires, requires_nbdsh, run, run_any};
use crate::server::{Server, Setup};
use forebay_testkit::authority::{Authority, Signed, Use, client_folder};

/// A server with a certificate, and its authority.
pub(crate) struct Secured {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
}

impl Secured {
    /// With `authenticate`, clients have to show certificates of the same authority.
    pub(crate) fn start(setup: Setup, demand: Demand, authenticate: bool) -> Self {
        let authority = Authority::new("the authority");
        let own = authority.sign(Use::Server);
        let clients = authenticate.then_some(authority.certificate.as_bytes());
        let (certificate, key) = (own.certificate.as_bytes(), own.key.as_bytes());
        let tls = Tls::new(demand, certificate, key, clients).expect("they belong together");
        Self {
            server: Server::start_with(setup, Some(tls)),
            authority,
        }
    }

    /// A folder for a client that trusts the server's authority and shows `own`.
    fn folder(&self, name: &str, own: Option<&Signed>) -> PathBuf {
        let folder = self.server.folder().join(name);
        client_folder(&folder, &self.authority, own);
        folder
    }

    fn uri(&self, certificates: &std::path::Path) -> String {
        let tcp = &self.server.tcp;
        format!("nbds://{tcp}/disk?tls-certificates={}", text(certificates))
    }
}

/// Both engines, and a volume of another reactor.
fn setups() -> [Setup; 3] {
    let threads = Setup {
        engine: Engine::Threads,
        ..Setup::default()
    };
    let apart = Setup {
        apart: true,
        ..Setup::default()
    };
    [Setup::default(), threads, apart]
}

#[test]
fn nbdcopy_reads_written_data_back_through_tls() {
    if !requires("nbdcopy", "libnbd-bin") || !requires("nbdinfo", "libnbd-bin") {
        return;
    }
    for setup in setups() {
        let secured = Secured::start(setup, Demand::Required, true);
        let own = secured.authority.sign(Use::Client);
        let uri = secured.uri(&secured.folder("client", Some(&own)));
        let all = run("nbdinfo", &["--json", &uri]);
        assert!(all.contains("\"TLS\": true"), "{all}");
        assert!(all.contains("\"structured\": true"), "{all}");
        let folder = secured.server.folder();
        let (source, back) = (folder.join("source"), folder.join("back"));
        let data = noise(&source, 64 << 20);
        run("nbdcopy", &["--flush", text(&source), &uri]);
        run("nbdcopy", &[&uri, text(&back)]);
        assert!(std::fs::read(&back).expect("a file") == data, "{setup:?}");
        // Without TLS, the server reveals nothing of its exports.
        let plain = run_any("nbdinfo", &[&secured.server.tcp_uri("disk")]);
        let said = String::from_utf8_lossy(&plain.stderr);
        assert!(
            !plain.status.success() && said.contains("not supported"),
            "{said}"
        );
    }
}

#[test]
fn libnbd_uses_every_size_through_tls() {
    if !requires_nbdsh() {
        return;
    }
    let secured = Secured::start(Setup::default(), Demand::Required, false);
    let program = format!(
        r#"
import nbd, os
h = nbd.NBD()
h.set_tls(nbd.TLS_REQUIRE)
h.set_tls_certificates({:?})
h.set_uri_allow_local_file(True)
h.connect_uri(uri)
assert h.get_tls_negotiated()
for size in [512, 4096, 16384, 65536, 1 << 20, 32 << 20]:
    data = os.urandom(size)
    h.pwrite(data, 0)
    assert h.pread(size, 0) == data, size
    assert h.pread(512, size - 512) == data[-512:]
# Many at once, of sizes that end everywhere in a record.
data = os.urandom(8 << 20)
h.pwrite(data, 0)
sizes = [512 * (1 + at % 90) for at in range(64)]
buffers = [nbd.Buffer(size) for size in sizes]
cookies = [h.aio_pread(buffers[at], at * 65536) for at in range(64)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for at, cookie in enumerate(cookies):
    assert h.aio_command_completed(cookie)
    assert buffers[at].to_bytearray() == data[at * 65536:at * 65536 + sizes[at]], at
h.flush()
h.shutdown()
"#,
        text(&secured.folder("client", None))
    );
    let uri = secured.server.tcp_uri("disk").replace("nbd:", "nbds:");
    crate::programs::nbdsh(&uri, &program);
}

#[test]
fn qemu_writes_and_reads_through_tls() {
    if !requires("qemu-img", "qemu-utils") {
        return;
    }
    let secured = Secured::start(Setup::default(), Demand::Required, true);
    let own = secured.authority.sign(Use::Client);
    let certificates = secured.folder("client", Some(&own));
    let folder = secured.server.folder();
    let (source, back) = (folder.join("source"), folder.join("back"));
    let data = noise(&source, 64 << 20);
    let object = format!(
        "tls-creds-x509,id=tls,endpoint=client,dir={}",
        text(&certificates)
    );
    let (host, port) = secured.server.tcp.rsplit_once(':').expect("an address");
    let image = format!(
        "driver=nbd,host={host},port={port},export=disk,tls-creds=tls,tls-hostname=localhost"
    );
    let mut there = vec!["convert", "--object", &object, "--target-image-opts", "-n"];
    there.extend(["-f", "raw", text(&source), &image]);
    run("qemu-img", &there);
    let mut convert = vec!["convert", "--object", &object, "--image-opts", &image];
    convert.extend(["-O", "raw", text(&back)]);
    run("qemu-img", &convert);
    assert!(std::fs::read(&back).expect("a file") == data);
}

#[test]
fn a_client_with_the_wrong_certificate_or_none_is_refused() {
    if !requires("nbdinfo", "libnbd-bin") {
        return;
    }
    let secured = Secured::start(Setup::default(), Demand::Required, true);
    let stranger = Authority::new("another authority");
    let clients = [
        ("none", None),
        ("strange", Some(stranger.sign(Use::Client))),
        ("expired", Some(secured.authority.sign(Use::ExpiredClient))),
        // A server's certificate does not count for a client.
        ("server", Some(secured.authority.sign(Use::Server))),
    ];
    for (name, own) in clients {
        let uri = secured.uri(&secured.folder(name, own.as_ref()));
        let output = run_any("nbdinfo", &["--size", &uri]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{name}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{name}");
    }
    let own = secured.authority.sign(Use::Client);
    let uri = secured.uri(&secured.folder("right", Some(&own)));
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), "67108864");
    // A client that trusts another authority rejects the server.
    let folder = secured.server.folder().join("elsewhere");
    client_folder(&folder, &stranger, Some(&own));
    let output = run_any("nbdinfo", &["--size", &secured.uri(&folder)]);
    assert!(!output.status.success());
}

#[test]
fn offered_tls_is_optional_for_clients() {
    if !requires("nbdinfo", "libnbd-bin") {
        return;
    }
    let secured = Secured::start(Setup::default(), Demand::Offered, false);
    let with = secured.uri(&secured.folder("client", None));
    for uri in [with, secured.server.tcp_uri("disk")] {
        assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), "67108864");
    }
}
