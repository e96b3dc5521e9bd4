//! `check` reports errors of a start on layers of devices, and warns of doubtful configurations.

use std::path::Path;

use crate::checked::{both_refuse, set_len};
use crate::support::{Place, text};
use crate::{check_blocks, write_blocks};

const PLAIN: &str = "{ name = \"disk\", kind = \"file\", path = \"db.img\" }";

/// Returns a configuration over `devices`; `more` is the cache and the backing device of the
/// volume.
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
    let table = "{ name = \"pm\", kind = \"pmem\", path = \"medium\" }, { name = \"fast\", \
        kind = \"btt\", on = \"pm\" }";
    let missing =
        "device \"fast\": there is no block translation table on device \"pm\" (not found)";
    let remedy = format!(
        "help: make one with `forebay format --btt {}`",
        medium.display()
    );
    let cache = cached("data = \"fast\"");
    configure(&place, &format!("{table}, {PLAIN}"), &cache);
    both_refuse(&place, &[missing, &remedy]);
    configure(&place, table, &on("fast"));
    both_refuse(&place, &[missing, &remedy]);
    // There is one, behind a cache, where no check looks.
    place.ok(&["format", "--btt", text(&medium)]);
    place.ok(&["format", "--cache", text(&medium)]);
    let file = "{ name = \"fast\", kind = \"file\", path = \"medium\" }";
    configure(&place, &format!("{file}, {PLAIN}"), &cache);
    both_refuse(&place, &["device \"fast\"", "kind = \"pmem\"", "\"btt\""]);
    configure(&place, &format!("{table}, {PLAIN}"), &cache);
    place.ok(&["check", text(&place.path("forebay.toml"))]);
    place.serve(&[]).terminate();
    // A start repairs a table with one missing info block from the other. `check` does not prevent
    // that.
    let file = std::fs::OpenOptions::new().write(true).open(&medium);
    std::os::unix::fs::FileExt::write_all_at(&file.expect("there"), &[0; 4096], 0)
        .expect("written");
    let output = place.run(&["check", text(&place.path("forebay.toml"))]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("is rewritten from its copy"), "{said}");
    place.serve(&[]).terminate();
    set_len(&medium, 32 << 20);
    // The exit status of `check` reports damage.
    let output = place.run(&["check", text(&place.path("forebay.toml"))]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("was it truncated?"), "{said}");
    let said = place.refused(&["serve", text(&place.path("forebay.toml"))]);
    assert!(said.contains("was it truncated?"), "{said}");
}

/// Checks that the copy of an earlier table at the end of a medium is not used after a format.
#[test]
fn the_copy_of_an_earlier_table_is_not_taken_for_one() {
    let place = Place::new("table-earlier", "wb");
    let cache = place.path("cache");
    let config = place.path("forebay.toml");
    make(&cache, 64 << 20);
    place.ok(&["format", "--btt", text(&cache)]);
    let file = std::fs::OpenOptions::new().write(true).open(&cache);
    std::os::unix::fs::FileExt::write_all_at(&file.expect("there"), &[0; 8192], 0).expect("wiped");
    place.ok(&["format", "--cache", text(&cache), "--force"]);
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
    let before = std::fs::read(&cache).expect("there");
    for command in [
        &["check", "--cache", text(&cache)][..],
        &["check", text(&config)],
    ] {
        let printed = place.ok(command);
        assert!(printed.contains("In order."), "{command:?}: {printed}");
        assert!(
            std::fs::read(&cache).expect("there") == before,
            "{command:?}"
        );
    }
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
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
            "{{ name = \"data\", kind = \"file\", path = \"data\" }}, {{ name = \"map\", \
             kind = \"{kind}\", path = \"map\" }}, {PLAIN}"
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

/// Maximum size of shared memory, bytes; zero for no limit.
fn shared_memory_bytes() -> u64 {
    let output = std::process::Command::new("df")
        .args(["--block-size=1", "--output=size", "/dev/shm"])
        .output();
    let output = output.expect("df runs").stdout;
    let words = String::from_utf8_lossy(&output).into_owned();
    (words.split_whitespace().last()).map_or(0, |last| last.parse().unwrap_or(0))
}

#[test]
fn slots_that_have_no_room_are_refused_before_the_start() {
    let room = shared_memory_bytes();
    if room == 0 || room >= 1000 << 30 {
        println!("SKIPPED: /dev/shm has room for all that can be asked for");
        return;
    }
    let place = Place::new("slots-room", "wt");
    let devices = |capacity: &str| {
        format!(
            "{PLAIN}, {{ name = \"fast\", kind = \"transit\", on = \"disk\", \
             capacity = \"{capacity}\" }}"
        )
    };
    let config = place.path("forebay.toml");
    configure(&place, &devices("1000G"), &on("fast"));
    for command in ["serve", "check"] {
        let said = place.refused(&[command, text(&config)]);
        for part in [
            "forebay.toml:1: device \"fast\": ",
            "use a smaller `capacity`",
        ] {
            assert!(said.contains(part), "{command}: {said}");
        }
        assert_eq!(said.matches("forebay.toml:").count(), 1, "{said}");
    }
    configure(&place, &devices("1M"), &on("fast"));
    place.ok(&["check", text(&config)]);
}

#[test]
fn a_cache_whose_slots_are_not_on_it_yet_starts() {
    let place = Place::new("slots-cache", "wb");
    let devices = format!(
        "{{ name = \"ssd\", kind = \"file\", path = \"cache\" }}, {PLAIN}, \
         {{ name = \"fast\", kind = \"transit\", on = \"ssd\", capacity = \"1M\", \
         policy = \"lru\" }}"
    );
    configure(&place, &devices, &cached("data = \"fast\""));
    let config = place.path("forebay.toml");
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.kill();
    let printed = place.ok(&["check", text(&config)]);
    assert!(
        printed.contains("was not checked: device \"fast\" gets "),
        "{printed}"
    );
    let printed = place.ok(&["check", text(&config), "--json"]);
    assert!(printed.contains("not_looked_at"), "{printed}");
    let said = place.refused(&["check", text(&config), "--repair"]);
    assert!(said.contains("start the daemon once"), "{said}");
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
    let printed = place.ok(&["check", text(&config)]);
    assert!(printed.contains("In order."), "{printed}");
}

#[test]
fn a_cache_on_a_backing_device_is_pointed_out() {
    let place = Place::new("cache-below", "wt");
    place.serve(&[]).terminate();
    let message = "volume \"db\": its backing device \"disk\" holds a Forebay cache";
    assert!(!place.log().contains(message), "{}", place.log());
    place.ok(&["format", "--cache", text(&place.path("db.img"))]);
    let daemon = place.serve(&[]);
    place.wait_for_log(message);
    daemon.terminate();
    let image = place.path("db.img");
    make(&image, 64 << 20);
    place.ok(&["format", "--btt", text(&image)]);
    configure(
        &place,
        "{ name = \"disk\", kind = \"file\", path = \"db.img\" }",
        &on("disk"),
    );
    let daemon = place.serve(&["--adopt", "db"]);
    place.wait_for_log("its backing device \"disk\" holds a block translation table");
    daemon.terminate();
}
