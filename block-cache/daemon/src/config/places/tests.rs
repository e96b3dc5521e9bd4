//! Problems that `check` and `serve` find on this machine.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use super::*;

/// A directory with a valid configuration.
struct Place(PathBuf);

const TEXT: &str = r#"
[[device]]
name = "disk"
kind = "file"
path = "disk"

[[volume]]
name = "db"
backing = "disk"

[[export]]
volume = "db"
nbd = "unix:run/d b.sock"

[server]
control = "run/control.sock"
metrics = "127.0.0.1:0"
state = "state"
"#;

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fb-places-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        let disk = std::fs::File::create(path.join("disk")).expect("made");
        disk.set_len(1 << 20).expect("sparse");
        Self(path)
    }

    fn config(&self, from: &str, to: &str) -> Config {
        assert!(TEXT.contains(from), "{from}");
        let path = self.0.join("f.toml");
        std::fs::write(&path, TEXT.replace(from, to)).expect("written");
        Config::load(&path).expect("right as far as it can be seen")
    }

    fn check(&self, from: &str, to: &str) -> Result<(), String> {
        let config = self.config(from, to);
        let checked = config.check_machine(true, None);
        checked.map_err(|error| error.report())
    }

    /// Checks that the report names the line, has a remedy, and contains all of `parts`.
    fn refused(&self, from: &str, to: &str, line: usize, parts: &[&str]) {
        let report = self.check(from, to).expect_err(to);
        let at = format!("{}:{line}: ", self.0.join("f.toml").display());
        assert!(report.starts_with(&at), "{at}: {report}");
        for part in parts.iter().chain(&["\n    help: "]) {
            assert!(report.contains(part), "{part} in {report}");
        }
        assert_eq!(report.matches("help: ").count(), 1, "{report}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn missing_places_pass_the_check_and_are_not_created() {
    let place = Place::new("good");
    assert_eq!(place.check("", ""), Ok(()));
    let mut left: Vec<_> = std::fs::read_dir(&place.0)
        .expect("there")
        .map(|entry| entry.expect("there").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["disk", "f.toml"]);
}

#[test]
fn a_socket_has_a_directory_and_nobody_else() {
    let place = Place::new("sockets");
    let run = place.0.join("run");
    std::fs::write(&run, "a file").expect("written");
    let report = place.check("", "").expect_err("a file is in the way");
    assert_eq!(report.matches("is not a directory, and").count(), 2);
    std::fs::remove_file(&run).expect("there");
    std::fs::create_dir(&run).expect("made");
    let socket = run.join("d b.sock");
    std::fs::write(&socket, "notes").expect("written");
    place.refused("", "", 12, &["a file exists there that is not a socket"]);
    std::fs::remove_file(&socket).expect("there");
    let listener = UnixListener::bind(&socket).expect("bound");
    place.refused("", "", 12, &["is in use", "stop the program"]);
    drop(listener);
    assert_eq!(place.check("", ""), Ok(()), "nobody answers any more");
    // The daemon on the control socket has the other places: one problem, not many.
    let _nbd = UnixListener::bind(run.join("other.sock")).expect("bound");
    let _control = UnixListener::bind(run.join("control.sock")).expect("bound");
    let said = ["a daemon answers on the control socket", "--control"];
    place.refused("run/d b.sock", "run/other.sock", 16, &said);
}

#[test]
fn a_port_is_free() {
    let place = Place::new("ports");
    // On a loopback address that no other process uses, so that the port is free after its release.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = std::net::Ipv4Addr::new(127, high, middle, low);
    let taken = TcpListener::bind((own, 0)).expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    place.refused("unix:run/d b.sock", &address, 12, &[&address, "is in use"]);
    place.refused("127.0.0.1:0", &address, 17, &["metrics", "is in use"]);
    // Not an address of this machine (RFC 5737).
    let elsewhere = "192.0.2.1:10809\"\ninsecure = true #\"";
    let said = ["192.0.2.1:10809", "the export of volume \"db\""];
    place.refused("unix:run/d b.sock", elsewhere, 12, &said);
    drop(taken);
    assert_eq!(place.check("unix:run/d b.sock", &address), Ok(()));
}

#[test]
fn the_state_has_a_directory_of_its_own() {
    let place = Place::new("state");
    let state = place.0.join("state");
    std::fs::write(&state, "a file").expect("written");
    place.refused("", "", 18, &["state directory", "is not a directory"]);
    std::fs::remove_file(&state).expect("there");
    let held = StateDirectory::open(&state).expect("free");
    place.refused("", "", 18, &["is held by another daemon"]);
    drop(held);
    assert_eq!(place.check("", ""), Ok(()));
    let nowhere = "state = \"disk/state\"";
    place.refused(
        "state = \"state\"",
        nowhere,
        18,
        &["is not a directory, and"],
    );
    // A default has no line to name.
    let mut config = place.config("state = \"state\"", "");
    config.server.state = "/dev/null".into();
    let report = config.check_machine(true, None).expect_err("no directory");
    let at = format!("{}: state directory", place.0.join("f.toml").display());
    assert!(report.report().starts_with(&at), "{report:?}");
}

#[test]
fn a_mount_point_is_an_empty_directory() {
    let place = Place::new("fuse");
    let looked = fuse::check_mount(&place.0.join("new"));
    if let Err(error) = looked {
        eprintln!("SKIPPED: no FUSE here: {}", error.report());
        return;
    }
    let fuse = |path: &str| format!("fuse = \"{path}\"");
    let nbd = "nbd = \"unix:run/d b.sock\"";
    assert_eq!(place.check(nbd, &fuse("mnt/db")), Ok(()));
    assert!(!place.0.join("mnt").exists(), "only looked at");
    place.refused(nbd, &fuse("disk"), 12, &["is not a directory"]);
    place.refused(nbd, &fuse("disk/db"), 12, &["is not a directory, and"]);
    std::fs::create_dir(place.0.join("full")).expect("made");
    assert_eq!(place.check(nbd, &fuse("full")), Ok(()));
    std::fs::write(place.0.join("full/notes"), "mine").expect("written");
    place.refused(nbd, &fuse("full"), 12, &["name an empty directory"]);
}

#[test]
fn sockets_ports_and_state_of_the_running_daemon_pass_the_check() {
    let place = Place::new("running");
    let run = place.0.join("run");
    std::fs::create_dir(&run).expect("made");
    let _control = UnixListener::bind(run.join("control.sock")).expect("bound");
    let _nbd = UnixListener::bind(run.join("d b.sock")).expect("bound");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound");
    let _state = StateDirectory::open(&place.0.join("state")).expect("free");
    let config = place.config("127.0.0.1:0", &address.to_string());
    let socket = Address::Unix(run.join("d b.sock"));
    let mut listening = vec![
        format!("NBD: {}", nbd_uri(&socket, "db", false)),
        format!("metrics and status page on http://{address}/"),
    ];
    let check = |listening: &[String]| config.check_machine(true, Some(listening));
    check(&listening).expect("all of it is its own");
    listening.pop();
    let report = check(&listening).expect_err("another's").report();
    assert!(
        report.contains("where metrics are served, is in use"),
        "{report}"
    );
    assert!(!report.contains("d b.sock"), "{report}");
}
