mod extended;

use super::*;
use std::cell::Cell;

use forebay_block::{BlockDevice, Buf, Completion, DeviceInfo, Request};
use forebay_io::net::Address;
use forebay_io::rt::block_on_simulated;
use forebay_io::{Engine, Reactor};
use forebay_volume::Volume;
use forebay_wire::nbd::handshake::{
    GREETING_BYTES, InfoRequest, OPTION_REPLY_BYTES, OptionHeader, option,
};

struct Nothing;

impl BlockDevice for Nothing {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("nothing", 1 << 20)
    }

    fn submit(&self, _request: Request, done: Completion) {
        done.complete(Ok(()));
    }
}

#[test]
fn names_that_nbd_cannot_carry_are_refused() {
    block_on_simulated(1, async {
        let exports = Exports::new();
        let volume = |name: &str| Volume::new(name, Rc::new(Nothing), false);
        let kind = |result: Result<()>| result.map_err(|error| error.kind());
        let (first, second) = (volume("a"), volume("b"));
        assert_eq!(kind(exports.add(first.handle(), "words")), Ok(()));
        assert_eq!(kind(exports.add(second.handle(), "")), Ok(()));
        let second = exports.add(first.handle(), "");
        assert_eq!(kind(second), Err(ErrorKind::Busy));
        for bad in ["n\0ul", &"x".repeat(4097)] {
            let refused = exports.add(volume(bad).handle(), "");
            assert_eq!(kind(refused), Err(ErrorKind::InvalidInput));
        }
        let name = |asked: &str| {
            exports
                .find(asked)
                .map(|export| export.volume.name().to_owned())
        };
        assert_eq!(name("").as_deref(), Some("a"), "the first is the default");
        assert_eq!(name("b").as_deref(), Some("b"));
        assert!(exports.remove("a") && !exports.remove("a"));
        assert_eq!(name("").as_deref(), Some("b"));
        assert_eq!(name("a"), None);
    });
}

/// Returns whether the server has closed the connection after `patience`.
async fn closes(stream: Stream, patience: Duration) -> bool {
    let closed = Rc::new(Cell::new(false));
    let closed_now = Rc::clone(&closed);
    rt::spawn(async move {
        while stream
            .recv(Buf::scratch(4096))
            .await
            .is_ok_and(|len| len > 0)
        {}
        closed_now.set(true);
    });
    rt::sleep(patience).await;
    closed.get()
}

fn tls(demand: Demand) -> Tls {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    Tls::new(demand, certificate.as_bytes(), key.as_bytes(), None).expect("they belong together")
}

#[test]
fn a_key_is_not_shown_and_belongs_to_its_certificate() {
    let (own, other) = (
        rcgen::generate_simple_self_signed([]).expect("a certificate"),
        rcgen::generate_simple_self_signed([]).expect("a certificate"),
    );
    let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
    let new = |certificate: &str, key: &str, clients: Option<&str>| {
        let clients = clients.map(str::as_bytes);
        Tls::new(
            Demand::Required,
            certificate.as_bytes(),
            key.as_bytes(),
            clients,
        )
    };
    let good = new(&certificate, &key, Some(&certificate)).expect("they belong together");
    let shown = format!("{good:?}");
    assert!(
        shown.len() < 40 && shown.contains("required: true"),
        "{shown}"
    );
    let cut = key.replace("KEY-----\n", "KEY-----\n!");
    for (certificate, key, clients, said) in [
        (&other.cert.pem(), &key, None, "does not belong"),
        (&key, &key, None, "no certificate"),
        (&certificate, &certificate, None, "no private key"),
        (
            &certificate,
            &cut,
            None,
            "the key's file is not in PEM form",
        ),
        (
            &certificate,
            &key,
            Some(""),
            "the client authority's file has no certificate",
        ),
    ] {
        let refused = new(certificate, key, clients).expect_err(said);
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let report = refused.report();
        assert!(report.contains(said), "{said} in {report}");
        let secret = key.lines().nth(1).expect("a line");
        assert!(!report.contains(secret), "{report}");
    }
}

#[test]
fn the_handshake_of_tls_has_a_time() {
    for engine in [Engine::Auto, Engine::Threads] {
        let reactor = Reactor::simulated(engine, 1).expect("a reactor");
        reactor.run_simulated(async {
            let volume = Volume::new("v", Rc::new(Nothing), false);
            let exports = Arc::new(Exports::with_tls(tls(Demand::Required)));
            exports.add(volume.handle(), "").expect("a free name");
            let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
            let listener = Listener::bind(&any).expect("a port");
            let address = listener.address();
            rt::spawn(async move {
                serve(listener, exports).await.expect("the server goes on");
            });
            // No bytes, or the start of a record.
            for words in [&b""[..], b"\x16\x03\x01\x02\0\x01\0"] {
                let stream = Stream::connect(&address).await.expect("it listens");
                let starttls = OptionHeader {
                    option: option::STARTTLS,
                    length: 0,
                };
                let hello = [&[0, 0, 0, 3], &starttls.encode()[..]].concat();
                stream.send(&[Buf::copied(&hello)]).await.expect("it reads");
                let answers = Buf::scratch(GREETING_BYTES + OPTION_REPLY_BYTES);
                stream.recv_exact(answers).await.expect("an answer");
                if !words.is_empty() {
                    stream.send(&[Buf::copied(words)]).await.expect("it reads");
                }
                assert!(closes(stream, 5 * HANDSHAKE_TIMEOUT).await);
            }
        });
    }
}

#[test]
fn a_client_without_an_export_in_time_is_disconnected() {
    for engine in [Engine::Auto, Engine::Threads] {
        let reactor = Reactor::simulated(engine, 1).expect("a reactor");
        reactor.run_simulated(async {
            let volume = Volume::new("v", Rc::new(Nothing), false);
            let exports = Arc::new(Exports::new());
            exports.add(volume.handle(), "").expect("a free name");
            let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
            let listener = Listener::bind(&any).expect("a port");
            let address = listener.address();
            rt::spawn(async move {
                serve(listener, exports).await.expect("the server goes on");
            });
            let connect = || async { Stream::connect(&address).await.expect("it listens") };
            // One client is silent. The other has chosen its export and may be silent for ever.
            let silent = connect().await;
            let chosen = connect().await;
            chosen
                .recv_exact(Buf::scratch(GREETING_BYTES))
                .await
                .expect("a greeting");
            let data = InfoRequest {
                name: "v".to_owned(),
                wanted: vec![],
            }
            .encode();
            let go = OptionHeader {
                option: option::GO,
                length: u32::try_from(data.len()).expect("short"),
            };
            let words = [&[0, 0, 0, 3], &go.encode()[..], &data].concat();
            chosen.send(&[Buf::copied(&words)]).await.expect("it reads");
            assert!(closes(silent, 5 * HANDSHAKE_TIMEOUT).await);
            assert!(!closes(chosen, HANDSHAKE_TIMEOUT).await);
        });
    }
}

/// Creates a self-signed certificate and its key with openssl. Returns `None` if openssl is missing
/// or cannot create such a key.
fn made_by_openssl(arguments: &[&str]) -> Option<(Vec<u8>, Vec<u8>)> {
    let place = std::env::temp_dir().join(format!(
        "forebay-key-{}-{}",
        arguments.join("-").replace([':', '/'], "-"),
        std::process::id()
    ));
    std::fs::create_dir_all(&place).expect("made");
    let (certificate, key) = (place.join("certificate"), place.join("key"));
    let output = std::process::Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-days",
            "1",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost", "-newkey"])
        .args(arguments)
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output();
    let made = output.is_ok_and(|output| output.status.success());
    let read = |path| std::fs::read(path).expect("written");
    let both = made.then(|| (read(&certificate), read(&key)));
    std::fs::remove_dir_all(&place).expect("ours");
    if both.is_none() {
        eprintln!("SKIPPED: openssl makes no key of {arguments:?} here");
    }
    both
}

#[test]
fn a_key_that_cannot_be_used_is_named_with_its_kind_and_size() {
    let ec = |curve: &'static str| vec!["ec", "-pkeyopt", curve];
    for (arguments, refused) in [
        (vec!["rsa:1024"], Some("RSA of 1024 bits")),
        (vec!["rsa:1536"], Some("RSA of 1536 bits")),
        (vec!["rsa:2050"], Some("RSA of 2050 bits")),
        (vec!["rsa:2560"], Some("RSA of 2560 bits")),
        (ec("ec_paramgen_curve:secp521r1"), Some("ECDSA on P-521")),
        (
            ec("ec_paramgen_curve:secp256k1"),
            Some("ECDSA on secp256k1"),
        ),
        (vec!["ed448"], Some("Ed448")),
        (vec!["rsa:2048"], None),
        (vec!["rsa:3072"], None),
        (ec("ec_paramgen_curve:prime256v1"), None),
        (ec("ec_paramgen_curve:secp384r1"), None),
        (vec!["ed25519"], None),
    ] {
        let Some((certificate, key)) = made_by_openssl(&arguments) else {
            continue;
        };
        let made = Tls::new(Demand::Required, &certificate, &key, None);
        match (made, refused) {
            (Ok(_), None) => {}
            (Err(error), Some(kind)) => {
                let said = error.report();
                for part in [kind, "make one that is", "Ed25519"] {
                    assert!(said.contains(part), "{arguments:?}: {said}");
                }
            }
            (made, _) => panic!("{arguments:?}: {made:?}"),
        }
    }
}
