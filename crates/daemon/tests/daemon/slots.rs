//! A transit cache that is left out of the configuration while its slots have what the medium lacks.

use crate::support::{Place, text};
use crate::{check_blocks, write_blocks};

/// A configuration over `devices`, of which the volume lies on `backing`.
fn configure(place: &Place, devices: &str, backing: &str) {
    let config = format!(
        "device = [{devices}]\n\
         volume = [{{ name = \"db\", backing = \"{backing}\" }}]\n\
         export = [{{ volume = \"db\", nbd = \"unix:nbd.sock\" }}]\n\
         [server]\ncontrol = \"control.sock\"\nmetrics = \"127.0.0.1:0\"\nstate = \"state\"\n"
    );
    std::fs::write(place.path("forebay.toml"), config).expect("written");
}

/// Writes to the slots of a cache that keeps them, and ends without a word.
fn leave_something(place: &Place) {
    let daemon = place.serve(&[]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.kill();
}

/// What is acknowledged is not overtaken by who serves, checks or formats the medium without its cache, and is there when
/// that is back.
fn nobody_serves_without(name: &str, devices: &str) {
    let place = Place::new(name, "wt");
    let medium = place.path("db.img");
    let over = "{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", policy = \"lru\" }";
    let with = || configure(&place, &format!("{devices}, {over}"), "fast");
    if devices.contains("btt") {
        place.ok(&["format", "--btt", text(&medium)]);
    }
    with();
    leave_something(&place);
    let config = place.path("forebay.toml");
    configure(&place, devices, "under");
    for command in [
        &["serve", text(&config)][..],
        &["check", text(&config)],
        &["format", "--btt", text(&medium), "--force"],
        &["format", "--cache", text(&medium), "--force"],
    ] {
        let said = place.refused(command);
        for part in [" acknowledged blocks of it are in", "start the daemon once"] {
            assert!(said.contains(part), "{command:?}: {said}");
        }
    }
    with();
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
    configure(&place, devices, "under");
    place.ok(&["check", text(&config)]);
    let daemon = place.serve(&[]);
    check_blocks(&mut place.connect(), 10..20);
    daemon.terminate();
}

#[test]
fn a_file_is_not_served_without_the_slots_that_have_what_it_lacks() {
    let devices = "{ name = \"under\", kind = \"file\", path = \"db.img\" }";
    nobody_serves_without("slots-file", devices);
}

#[test]
fn a_table_is_not_served_or_made_anew_without_the_slots_that_have_what_it_lacks() {
    let devices = "{ name = \"pm\", kind = \"pmem\", path = \"db.img\" }, { name = \"under\", kind = \"btt\", on = \"pm\" }";
    nobody_serves_without("slots-table", devices);
}

#[test]
fn a_check_says_as_a_start_does_that_slots_were_removed() {
    let place = Place::new("slots-removed", "wt");
    let devices = "{ name = \"under\", kind = \"file\", path = \"db.img\" }, \
                   { name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\", policy = \"lru\" }";
    configure(&place, devices, "fast");
    let config = place.path("forebay.toml");
    // Who is there has the slots.
    let daemon = place.serve(&[]);
    place.ok(&["check", text(&config)]);
    write_blocks(&mut place.connect(), 10..20);
    daemon.kill();
    place.ok(&["check", text(&config)]);
    configure(
        &place,
        "{ name = \"under\", kind = \"file\", path = \"db.img\" }",
        "under",
    );
    let said = place.refused(&["check", text(&config)]);
    let file = said
        .split_whitespace()
        .find(|word| word.ends_with(".transit"));
    std::fs::remove_file(file.expect("it is named")).expect("it is there");
    configure(&place, devices, "fast");
    for command in ["check", "serve"] {
        let said = place.refused(&[command, text(&config)]);
        for part in [
            "was removed while",
            "--accept-journal-loss",
            "device \"fast\"",
        ] {
            assert!(said.contains(part), "{command}: {said}");
        }
    }
    let daemon = place.serve(&["--accept-journal-loss"]);
    place.ok(&["check", text(&config)]);
    daemon.terminate();
    place.ok(&["check", text(&config)]);
}
