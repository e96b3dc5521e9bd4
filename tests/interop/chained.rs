//! One `forebay` program backs a volume with the export of another, by NVMe/TCP with DH-HMAC-CHAP.
//! The tests check the refused hosts, the messages of both sides, and that no log has a secret.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use crate::clients::{noise, text};
use crate::daemon::{CONFIG, Daemon, VOLUME_BYTES};
use crate::programs::{requires, run};

const NQN: &str = "nqn.2026-11.io.forebay:far";
const HOST: &str = "nqn.2026-11.io.forebay:near";
/// Time between two lines of a log about connections that were closed, seconds.
const WINDOW_S: usize = 10;
/// Attempts of each wrong host.
const TRIES: usize = 3;

/// Returns a secret that the program generates.
fn secret(daemon: &Daemon) -> String {
    let output = daemon.command(&["secret", "generate"]).output();
    let printed = String::from_utf8(output.expect("it runs").stdout).expect("text");
    printed.trim().to_owned()
}

/// Writes a file with the permissions `mode`.
fn put(daemon: &Daemon, text: &str, mode: u32) {
    let path = daemon.path("secrets");
    std::fs::write(&path, text).expect("a file");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, mode).expect("set");
}

#[test]
fn a_wrong_host_name_or_secret_is_refused_and_logged_once() {
    let export = format!("nvme-tcp = \"127.0.0.1:0\"\nnqn = \"{NQN}\"\nsecrets = \"secrets\"");
    let mut far = Daemon::prepared("far", &CONFIG.replace("nbd = \"unix:nbd.sock\"", &export));
    let [own, theirs, wrong] = [secret(&far), secret(&far), secret(&far)];
    put(&far, &format!("{HOST} {own} {theirs}\n"), 0o600);
    far.start();
    let log = far.log();
    let (_, after) = log.split_once("nvme-tcp://").expect("where it listens");
    let address = after.split('/').next().expect("an address").to_owned();
    let config = |query: &str| {
        let uri = format!("nvme-tcp://{address}/{NQN}?host={HOST}");
        let device = format!("kind = \"nvme-tcp\"\nuri = \"{uri}\"{query}");
        CONFIG.replace("kind = \"file\"\npath = \"backing\"", &device)
    };
    let (sealed, open) = (config("\nsecrets = \"secrets\""), config(""));
    let mut near = Daemon::prepared("near", &sealed);
    let silent = |output: &str| {
        for secret in [&own, &theirs, &wrong] {
            let body = secret.split(':').nth(2).expect("a secret's third part");
            assert!(!output.contains(body), "a secret in {output}");
        }
    };
    let begin = Instant::now();
    let stranger = sealed.replace(HOST, "nqn.2026-11.io.forebay:stranger");
    let line = |own: &str, theirs: &str| format!("{HOST} {own} {theirs}\n");
    let right = line(&own, &theirs);
    for (config, secrets, mode, said) in [
        (&open, &right, 0o600, "give the device `secrets`"),
        (&sealed, &right, 0o644, "chmod 0600"),
        (&sealed, &line(&wrong, &theirs), 0o600, "the same secrets"),
        (
            &sealed,
            &line(&own, &wrong),
            0o600,
            "has not authenticated itself",
        ),
        (&stranger, &right, 0o600, "has no line for"),
        (
            &stranger,
            &right.replace(HOST, "nqn.2026-11.io.forebay:stranger"),
            0o600,
            "does not allow host",
        ),
    ] {
        std::fs::write(near.path("forebay.toml"), config).expect("a configuration");
        put(&near, secrets, mode);
        for _ in 0..TRIES {
            let output = near.command(&["check", "forebay.toml"]).output();
            let output = output.expect("it runs");
            let printed = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success(), "{said}: {printed}");
            assert!(printed.contains(said), "{said} in {printed}");
            silent(&printed);
        }
    }
    // The first is logged at once, the others as a count.
    far.wait_for_log("more NVMe/TCP connections were closed");
    let windows = begin.elapsed().as_secs() as usize / WINDOW_S;
    let log = far.log();
    let lines = log.lines().filter(|line| line.contains("closed")).count();
    assert!((2..=2 + windows).contains(&lines), "{lines} lines: {log}");
    assert!(
        log.contains("the response does not match the secret"),
        "{log}"
    );

    std::fs::write(near.path("forebay.toml"), &sealed).expect("a configuration");
    put(&near, &right, 0o600);
    near.start();
    if requires("nbdcopy", "libnbd-bin") {
        let (source, back) = (near.path("source"), near.path("back"));
        let data = noise(&source, usize::try_from(VOLUME_BYTES).expect("small"));
        let uri = near.uri();
        run("nbdcopy", &["--flush", text(&source), &uri]);
        run("nbdcopy", &[&uri, text(&back)]);
        assert!(std::fs::read(&back).expect("a file") == data);
    }
    near.stop();
    far.stop();
    silent(&near.log());
    silent(&far.log());
}
