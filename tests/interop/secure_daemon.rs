//! TLS of the `forebay` program: the configurations that it refuses, and a client's copy through
//! it.

use std::os::unix::fs::PermissionsExt as _;

use crate::clients::{noise, text};
use crate::daemon::{CONFIG, Daemon, VOLUME_BYTES};
use crate::programs::{requires, run, run_any};
use forebay_testkit::authority::{Authority, Use, client_folder};

const TLS: &str = r#"nbd = "127.0.0.1:0"
tls_certificate = "server.pem"
tls_key = "server.key"
tls_client_ca = "clients.pem"
"#;

#[test]
fn the_program_serves_tls_and_guards_its_key() {
    if !requires("nbdcopy", "libnbd-bin") {
        return;
    }
    let authority = Authority::new("the authority");
    let (own, other) = (authority.sign(Use::Server), authority.sign(Use::Server));
    let mut daemon = Daemon::prepared("tls", &CONFIG.replace("nbd = \"unix:nbd.sock\"", TLS));
    let key = daemon.path("server.key");
    let put = |name: &str, text: &str| {
        std::fs::write(daemon.path(name), text).expect("a file");
    };
    let mode = |mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&key, mode).expect("set");
    };
    put("server.pem", &own.certificate);
    put("server.key", &own.key);
    put("clients.pem", &authority.certificate);
    let secret = own.key.lines().nth(1).expect("a line of the key");
    // `check` and `serve` report the error with file, line and remedy.
    let refused = |said: &str| {
        for arguments in [["check", "forebay.toml"], ["serve", "forebay.toml"]] {
            let output = daemon.command(&arguments).output().expect("it runs");
            let printed = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success(), "{arguments:?}: {printed}");
            assert!(printed.contains(said), "{said} in {printed}");
            assert!(printed.contains("forebay.toml:"), "{printed}");
            assert!(!printed.contains(secret), "{printed}");
        }
    };
    mode(0o640);
    refused("chmod 0600");
    mode(0o600);
    put("server.pem", &other.certificate);
    refused("the key does not belong to the certificate");
    put("server.pem", &own.key);
    refused("the certificate's file has no certificate in PEM form");
    put("server.pem", &own.certificate);
    put("server.key", &own.certificate);
    refused("no private key in PEM form");
    put("server.key", &own.key.replace("KEY-----\n", "KEY-----\n!"));
    refused("not in PEM form");
    put("server.key", &own.key);
    put("clients.pem", "");
    refused("the client authority's file has no certificate");
    std::fs::remove_file(daemon.path("clients.pem")).expect("removed");
    refused("cannot read the clients' authorities");
    put("clients.pem", &authority.certificate);
    let check = daemon.command(&["check", "forebay.toml"]).status();
    assert!(check.expect("it runs").success());

    daemon.start();
    let log = daemon.log();
    let (_, after) = log.split_once("nbds://").expect("where it listens");
    let address = after.split('/').next().expect("an address").to_owned();
    let certificates = daemon.path("certificates");
    client_folder(
        &certificates,
        &authority,
        Some(&authority.sign(Use::Client)),
    );
    let uri = format!(
        "nbds://{address}/disk?tls-certificates={}",
        text(&certificates)
    );
    let (source, back) = (daemon.path("source"), daemon.path("back"));
    let data = noise(&source, usize::try_from(VOLUME_BYTES).expect("small"));
    run("nbdcopy", &["--flush", text(&source), &uri]);
    run("nbdcopy", &[&uri, text(&back)]);
    assert!(std::fs::read(&back).expect("a file") == data);
    let nobody = daemon.path("nobody");
    client_folder(&nobody, &authority, None);
    let refused = uri.replace(text(&certificates), text(&nobody));
    let output = run_any("nbdcopy", &[&refused, text(&back)]);
    assert!(!output.status.success());
    daemon.wait_for_log("the client shows no certificate");
    assert!(!daemon.log().contains(secret), "a key in the log");
    daemon.stop();
}
