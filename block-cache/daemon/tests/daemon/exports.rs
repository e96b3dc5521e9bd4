//! Ends of exports while the daemon runs.

use super::support::{Place, text};

/// Volumes `logs` and `db` on one socket; `db` is also a namespace and a virtual machine's disk.
const EXPORTS: &str = r#"
[[device]]
name = "more"
kind = "file"
path = "logs.img"
[[volume]]
name = "logs"
backing = "more"
[[export]]
volume = "logs"
nbd = "unix:nbd.sock"
[[export]]
volume = "db"
nvme-tcp = "127.0.0.1:0"
nqn = "nqn.2026-11.io.forebay:db"
[[export]]
volume = "db"
vhost-user-blk = "vm.sock"
"#;

/// Returns the addresses in the status, as JSON and as text.
fn addresses(place: &Place) -> Vec<String> {
    let status = place.status();
    let listening = status["listening"].as_array().expect("a list");
    let lines = listening.iter().map(|line| line.as_str().expect("text"));
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    let shown = place.ok(&["status"]);
    for line in &lines {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    lines
}

/// Checks that the configuration is in order beside the running daemon, which has the cache.
fn check(place: &Place) {
    let output = place.run(&["check", text(&place.path("forebay.toml"))]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("the configuration is in order"),
        "{output:?}"
    );
}

#[test]
fn the_status_lists_no_export_of_a_detached_volume() {
    let place = Place::new("exports", "wb");
    place.create_file("logs.img", 64 << 20);
    place.configure("wb", EXPORTS);
    let daemon = place.serve(&[]);
    let before = addresses(&place);
    let of = |lines: &[String], part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!(of(&before, "/db?socket="), 1, "{before:?}");
    assert_eq!(of(&before, "volume \"db\""), 2, "{before:?}");

    place.ok(&["detach", "db"]);
    let left = addresses(&place);
    for part in ["/db?socket=", "volume \"db\"", "NBD: no volume at"] {
        assert_eq!(of(&left, part), 0, "{part} in {left:?}");
    }
    for part in [
        "/logs?socket=",
        "NVMe/TCP: no volume at nvme-tcp://127.0.0.1:",
        "vhost-user-blk: no volume at /",
        "control on ",
    ] {
        assert_eq!(of(&left, part), 1, "{part} in {left:?}");
    }
    // The daemon holds these addresses until its end, which is no problem of the configuration.
    check(&place);

    place.ok(&["detach", "logs"]);
    let left = addresses(&place);
    assert_eq!(of(&left, "/logs?socket="), 0, "{left:?}");
    assert_eq!(
        of(&left, "NBD: no volume at nbd+unix:///?socket="),
        1,
        "{left:?}"
    );
    check(&place);
    daemon.terminate();
}
