//! Arrows between crates point down only: the allowed dependencies, from `cargo metadata`.

use super::Finding;
use crate::metadata::{Dependency, Metadata};

const RULE: &str = "layers";

/// Our crates and their floors, from the ground up. A crate may depend on lower floors only. Crates
/// on one floor do not know each other.
const FLOORS: [(&str, u8); 29] = [
    ("forebay-block", 0),
    ("forebay-io", 1),
    ("forebay-wire", 1),
    ("forebay-auth", 2),
    ("forebay-fuse", 2),
    ("forebay-terminal", 2),
    ("forebay-object", 2),
    ("forebay-tls", 2),
    ("forebay-device", 3),
    ("forebay-btt", 4),
    ("forebay-transit", 4),
    ("forebay-pagecache", 4),
    ("forebay-policy", 4),
    ("forebay-metadata", 4),
    ("forebay-cache", 5),
    ("forebay-caiti", 5),
    ("forebay-mapperx", 5),
    ("forebay-cluster", 5),
    ("forebay-volume", 6),
    ("forebay-mount", 6),
    ("forebay-frontend", 7),
    ("forebay-trace", 7),
    ("forebay-pagecache-cli", 8),
    ("forebay-planner-cli", 8),
    ("forebay", 9),
    ("forebay-testkit", 10),
    ("forebay-benches", 10),
    ("forebay-tests", 11),
    ("xtask", 11),
];

/// Crates that decide or translate and do no I/O. Of our crates they may use `forebay-block` alone,
/// so that the engine, the simulator and the fuzzers run the same code.
const PURE: [&str; 4] = [
    "forebay-policy",
    "forebay-metadata",
    "forebay-wire",
    "forebay-pagecache",
];

/// Crates of other projects that only one of ours may use.
const RESERVED: [(&str, &[&str]); 2] = [
    ("io-uring", &["forebay-io"]),
    (
        "fuser",
        &["forebay-fuse", "forebay-frontend", "forebay-mount"],
    ),
];

const TESTKIT: &str = "forebay-testkit";

/// The crate that may use the testkit outside of its tests: its benchmarks drive the daemon.
const TESTKIT_USER: &str = "xtask";

pub(super) fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("{}/Cargo.toml", metadata.folder(package));
        let name = &package.name;
        let Some(own) = floor(name) else {
            let message = format!("{name} has no floor: name it in xtask/src/tidy/layers.rs");
            findings.push(Finding::new(RULE, place, message));
            continue;
        };
        for dependency in &package.dependencies {
            if let Some(message) = objection(name, own, dependency) {
                findings.push(Finding::new(RULE, &place, message));
            }
        }
    }
    findings
}

fn floor(name: &str) -> Option<u8> {
    FLOORS
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
        .map(|(_, floor)| *floor)
}

fn objection(name: &str, own: u8, dependency: &Dependency) -> Option<String> {
    let used = dependency.name.as_str();
    if let Some((_, only)) = RESERVED.iter().find(|(reserved, _)| *reserved == used) {
        let message = || format!("only {} may use {used}, not {name}", only.join(", "));
        return (!only.contains(&name)).then(message);
    }
    let theirs = floor(used)?;
    if dependency.kind.as_deref() == Some("dev") {
        // Tests may look up. cargo itself refuses a cycle of ordinary dependencies.
        return None;
    }
    if used == TESTKIT && name != TESTKIT_USER {
        return Some(format!("{used} is for tests: make it a dev-dependency"));
    }
    if theirs >= own {
        return Some(format!(
            "{name} may not depend on {used}: arrows point down only"
        ));
    }
    if PURE.contains(&name) && used != "forebay-block" {
        return Some(format!(
            "{name} does no I/O: of ours it may use forebay-block only, not {used}"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::planted;

    fn messages(name: &str, dependencies: &[(&str, Option<&str>)]) -> Vec<String> {
        let metadata = planted(&[(name, "crates/one", dependencies)]);
        let findings = check(&metadata);
        assert!(findings.iter().all(|f| f.place == "crates/one/Cargo.toml"));
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn arrows_that_point_down_pass() {
        let down = [
            ("forebay-policy", None),
            ("forebay-metadata", None),
            ("hashbrown", None),
        ];
        assert!(messages("forebay-cache", &down).is_empty());
    }

    #[test]
    fn an_arrow_that_points_up_or_sideways_is_found() {
        assert_eq!(
            messages("forebay-cache", &[("forebay-volume", None)]).len(),
            1
        );
        assert_eq!(
            messages("forebay-trace", &[("forebay-frontend", None)]).len(),
            1
        );
        assert_eq!(
            messages("forebay-cache", &[("forebay-volume", Some("build"))]).len(),
            1
        );
    }

    #[test]
    fn a_pure_crate_that_learns_about_io_is_found() {
        assert!(messages("forebay-metadata", &[("forebay-block", None)]).is_empty());
        assert_eq!(messages("forebay-policy", &[("forebay-io", None)]).len(), 1);
    }

    #[test]
    fn the_testkit_is_a_dev_dependency_only() {
        assert!(messages("forebay-cache", &[(TESTKIT, Some("dev"))]).is_empty());
        assert_eq!(messages("forebay-tests", &[(TESTKIT, None)]).len(), 1);
        assert!(messages(TESTKIT_USER, &[(TESTKIT, None)]).is_empty());
    }

    #[test]
    fn reserved_crates_stay_with_their_owner() {
        assert!(messages("forebay-io", &[("io-uring", None)]).is_empty());
        assert_eq!(messages("forebay-device", &[("io-uring", None)]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_floor_is_found() {
        assert_eq!(messages("forebay-attic", &[]).len(), 1);
    }
}
