//! What keeps a daemon from its start on layers of devices, `check` has said before; and what deserves a look.

use std::path::Path;

use crate::checked::{both_refuse, set_len};
use crate::support::{Place, text};

const PLAIN: &str = "{ name = \"disk\", kind = \"file\", path = \"db.img\" }";

/// A configuration over `devices`; `more` is the cache and the backing device of the volume.
fn configure(place: &Place, devices: &str, more: &str) {
    let config = format!(
        "device = [{devices}]\n{more}\n\
         export = [{{ volume = \"db\", nbd = \"unix:nbd.sock\" }}]\n\
         [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
    );
    std::fs::write(place.path("forebay.toml"), config).expect("written");
}

fn on(backing: &str) -> String {
    format!("volume = [{{ name = \"db\", backing = \"{backing}\" }}]")
}

fn cached(cache: &str) -> String {
    format!("cache = {{ {cache} }}\n{}", on("disk"))
}

fn make(path: &Path, bytes: u64) {
    let file = std::fs::File::create(path).expect("made");
    file.set_len(bytes).expect("sparse");
}

#[test]
fn a_table_that_is_missing_or_left_out_is_refused_alike() {
    let place = Place::new("table-alike", "wb");
    let medium = place.path("medium");
    make(&medium, 64 << 20);
    let table = "{ name = \"pm\", kind = \"pmem\", path = \"medium\" }, { name = \"fast\", kind = \"btt\", on = \"pm\" }";
    let missing = format!(
        "device \"fast\": there is no block translation table on device \"pm\": make one with `forebay format --btt {}`",
        medium.display()
    );
    let cache = cached("data = \"fast\"");
    configure(&place, &format!("{table}, {PLAIN}"), &cache);
    both_refuse(&place, &[&missing]);
    configure(&place, table, &on("fast"));
    both_refuse(&place, &[&missing]);
    // There is one, and a cache behind it, and nobody looks there.
    place.ok(&["format", "--btt", text(&medium)]);
    place.ok(&["format", "--cache", text(&medium)]);
    let file = "{ name = \"fast\", kind = \"file\", path = \"medium\" }";
    configure(&place, &format!("{file}, {PLAIN}"), &cache);
    both_refuse(&place, &["device \"fast\"", "kind = \"pmem\"", "\"btt\""]);
    configure(&place, &format!("{table}, {PLAIN}"), &cache);
    place.ok(&["check", text(&place.path("forebay.toml"))]);
    place.serve(&[]).terminate();
    set_len(&medium, 32 << 20);
    // The exit status of a check says that there is damage.
    let output = place.run(&["check", text(&place.path("forebay.toml"))]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("was the medium cut?"), "{said}");
    let said = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(said.contains("was the medium cut?"), "{said}");
}

#[test]
fn metadata_in_lines_on_a_file_is_refused_before_the_start() {
    let place = Place::new("lines-alike", "wb");
    let (data, map) = (place.path("data"), place.path("map"));
    make(&data, 64 << 20);
    make(&map, 16 << 20);
    place.ok(&[
        "format",
        "--cache",
        text(&data),
        "--metadata",
        text(&map),
        "--pmem",
    ]);
    let devices = |kind: &str| {
        format!(
            "{{ name = \"data\", kind = \"file\", path = \"data\" }}, {{ name = \"map\", kind = \"{kind}\", path = \"map\" }}, {PLAIN}"
        )
    };
    let cache = cached("data = \"data\", metadata = \"map\"");
    let config = place.path("forebay.toml");
    configure(&place, &devices("file"), &cache);
    for command in ["serve", "check"] {
        let said = place.refused(&[command, text(&config)]);
        assert!(
            said.contains("name it as a device of kind \"pmem\""),
            "{command}: {said}"
        );
    }
    configure(&place, &devices("pmem"), &cache);
    place.ok(&["check", text(&config)]);
}

#[test]
fn a_journal_without_a_directory_is_refused_in_its_line() {
    let place = Place::new("journal-alike", "wb");
    let config = place.path("forebay.toml");
    let changed = std::fs::read_to_string(&config).expect("there");
    let changed = changed.replace("journal = \"journal\"", "journal = \"nowhere/journal\"");
    std::fs::write(&config, changed).expect("written");
    both_refuse(&place, &["forebay.toml:14: ", "there is no directory"]);
}

#[test]
fn slots_that_have_no_room_are_refused_before_the_start() {
    let place = Place::new("slots-room", "wt");
    let devices = |capacity: &str| {
        format!(
            "{PLAIN}, {{ name = \"fast\", kind = \"transit\", on = \"disk\", capacity = \"{capacity}\" }}"
        )
    };
    let config = place.path("forebay.toml");
    configure(&place, &devices("1000G"), &on("fast"));
    for command in ["serve", "check"] {
        let said = place.refused(&[command, text(&config)]);
        for part in ["device \"fast\": ", "use a smaller `capacity`"] {
            assert!(said.contains(part), "{command}: {said}");
        }
    }
    configure(&place, &devices("1M"), &on("fast"));
    place.ok(&["check", text(&config)]);
}

#[test]
fn a_cache_on_a_backing_device_is_pointed_out() {
    let place = Place::new("cache-below", "wt");
    let config = place.path("forebay.toml");
    let check = || {
        let output = place.run(&["check", text(&config)]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let told = "volume \"db\": its backing device \"disk\" holds a Forebay cache";
    assert!(!check().contains(told));
    place.ok(&["format", "--cache", text(&place.path("db.img"))]);
    let said = check();
    assert!(said.contains(told), "{said}");
    let daemon = place.serve(&[]);
    place.wait_for_log(told);
    daemon.terminate();
}
