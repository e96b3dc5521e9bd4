//! The documented units for systemd: their commands, and the units themselves if `systemd-analyze`
//! is present.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Parser;
use forebay_pagecache_cli::Arguments;

/// Program that the units start, and one in its place that exists.
const PROGRAM: &str = "/usr/local/bin/forebay";
const SUBSTITUTE: &str = "/bin/true";

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    _arguments: Arguments,
}

/// Returns file name and text of each documented unit.
fn units() -> Vec<(String, String)> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/operate/page-cache-service.md"
    );
    let page = fs::read_to_string(page).expect("the page");
    let mut units = Vec::new();
    for part in page.split("`/etc/systemd/system/").skip(1) {
        let (name, rest) = part.split_once('`').expect("a name");
        let (_, rest) = rest.split_once("```ini\n").expect("a unit");
        let (text, _) = rest.split_once("```").expect("its end");
        units.push((name.to_owned(), text.to_owned()));
    }
    assert_eq!(units.len(), 2);
    units
}

#[test]
fn documented_units_start_commands_that_exist() {
    let units = units();
    let lines = units.iter().flat_map(|(_, text)| text.lines());
    let commands = lines.filter_map(|line| {
        let command = line.strip_prefix("ExecStart=");
        command.or_else(|| line.strip_prefix("ExecStop=-"))
    });
    let mut count = 0;
    for command in commands {
        let command = command.replace("%i", "1");
        let words = command.strip_prefix(&format!("{PROGRAM} pagecache "));
        let words = words.unwrap_or_else(|| panic!("{command}"));
        let words = ["pagecache"].into_iter().chain(words.split(' '));
        if let Err(error) = CommandLine::try_parse_from(words) {
            panic!("{command}: {error}");
        }
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn systemd_accepts_the_documented_units() {
    let analyze = || Command::new("systemd-analyze");
    if !analyze()
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        let said = writeln!(
            std::io::stderr(),
            "SKIPPED: a test of units: there is no systemd-analyze"
        );
        return said.expect("there is a standard error");
    }
    let folder = std::env::temp_dir().join(format!("forebay-units-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("made");
    let paths: Vec<PathBuf> = units()
        .into_iter()
        .map(|(name, text)| {
            let path = folder.join(name.replace('@', "@1"));
            fs::write(&path, text.replace(PROGRAM, SUBSTITUTE)).expect("written");
            path
        })
        .collect();
    let verified = analyze()
        .arg("verify")
        .args(&paths)
        .output()
        .expect("it runs");
    fs::remove_dir_all(&folder).expect("removed");
    let complaints = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{complaints}");
    // Unknown keys are complaints only.
    assert!(!complaints.contains("forebay"), "{complaints}");
}
