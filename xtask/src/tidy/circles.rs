//! Arrows inside a crate point down only: its modules form no circle.
//!
//! Neighbours are the modules of one parent, each with all modules below it. One neighbour depends
//! on another if a path in its code (`crate::…`, `super::…`) ends there. A path through a re-export
//! ends at the module that defines the item. A module may name the modules below it, so that a
//! folder can have a front. Modules of tests do not count.

pub(super) mod code;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};
use crate::metadata::Metadata;
use tree::Tree;

const RULE: &str = "circles";

/// Neighbours that depend on each other, in order, below a parent.
type Circle = (String, Vec<String>);

pub(super) fn check(metadata: &Metadata, sources: &[Source]) -> Vec<Finding> {
    let texts: BTreeMap<&str, &str> = (sources.iter())
        .map(|source| (source.path.as_str(), source.text.as_str()))
        .collect();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let folder = metadata.folder(package);
        let roots = ["lib.rs", "main.rs"].map(|file| format!("{folder}/src/{file}"));
        let found: BTreeSet<Circle> = (roots.iter())
            .filter_map(|root| Tree::read(&texts, root))
            .flat_map(|tree| circles(&tree.arrows()))
            .collect();
        let place = format!("{folder}/src");
        for (parent, names) in &found {
            let message = format!(
                "the modules {} depend on each other in a circle: move the shared part below them",
                listed(parent, names)
            );
            findings.push(Finding::new(RULE, &place, message));
        }
    }
    findings
}

fn listed(parent: &str, names: &[String]) -> String {
    match parent {
        "" => names.join(", "),
        parent => format!("{parent}::{{{}}}", names.join(", ")),
    }
}

/// Returns the circles of neighbours, from the arrows between modules.
fn circles(arrows: &BTreeSet<(Vec<String>, Vec<String>)>) -> BTreeSet<Circle> {
    // Arrows by parent: the neighbours that each neighbour depends on.
    let mut levels: BTreeMap<&[String], BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for (from, to) in arrows {
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if let (Some(from_name), Some(to_name)) = (from.get(common), to.get(common)) {
            let level = levels.entry(&from[..common]).or_default();
            level.entry(from_name).or_default().insert(to_name);
        }
    }
    let mut found = BTreeSet::new();
    for (parent, arrows) in levels {
        for name in arrows.keys() {
            let ahead = reached(&arrows, name);
            let circle = ahead
                .iter()
                .filter(|other| reached(&arrows, other).contains(name));
            let circle: Vec<String> = circle.map(|name| (*name).to_owned()).collect();
            if circle.len() > 1 {
                found.insert((parent.join("::"), circle));
            }
        }
    }
    found
}

/// Returns the names that can be reached from one, by one arrow or more.
fn reached<'a>(arrows: &BTreeMap<&str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut rest: Vec<&str> = vec![from];
    while let Some(name) = rest.pop() {
        for next in arrows.get(name).into_iter().flatten() {
            if reached.insert(*next) {
                rest.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::planted;

    /// Returns the messages about a package of these files.
    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = (files.iter())
            .map(|(file, text)| Source {
                path: format!("crates/one/src/{file}"),
                text: (*text).into(),
            })
            .collect();
        let metadata = planted(&[("one", "crates/one", &[])]);
        let found = check(&metadata, &sources);
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn arrows_that_point_down_are_no_circle() {
        let files = [
            ("lib.rs", "mod high;\nmod low;\npub use high::High;"),
            (
                "high/mod.rs",
                "mod part;\nuse crate::low::Low;\nuse part::Part;",
            ),
            ("high/part.rs", "use super::High;"),
            ("low.rs", "//! See [`crate::high`].\nstruct Low;"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn neighbours_that_depend_on_each_other_are_found() {
        let files = [
            ("lib.rs", "mod one;\nmod two;"),
            ("one.rs", "use crate::two::Two;"),
            ("two.rs", "fn go() { crate::one::go(); }"),
        ];
        let found = findings(&files);
        assert!(
            found.len() == 1 && found[0].contains("one, two"),
            "{found:?}"
        );
    }

    #[test]
    fn a_circle_of_folders_through_other_files_is_found() {
        let files = [
            ("lib.rs", "mod one;\nmod two;"),
            ("one/mod.rs", "mod a;\nmod b;"),
            ("one/a.rs", "use crate::two::{c::C, d};"),
            ("one/b.rs", "struct B;"),
            ("two/mod.rs", "pub mod c;\npub mod d;"),
            ("two/c.rs", "struct C;"),
            ("two/d.rs", "use crate::one::b::B;"),
        ];
        assert_eq!(findings(&files).len(), 1);
    }

    #[test]
    fn a_circle_through_a_re_export_is_found() {
        let files = [
            ("lib.rs", "mod one;\nmod two;\npub use two::Two;"),
            ("one.rs", "use crate::Two;"),
            ("two.rs", "use crate::one::One;"),
        ];
        assert_eq!(findings(&files).len(), 1);
    }

    #[test]
    fn tests_may_look_up() {
        let files = [
            ("lib.rs", "mod one;\nmod two;"),
            ("one.rs", "use crate::two::Two;"),
            ("two.rs", "#[cfg(test)]\nmod tests { use crate::one::One; }"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }
}
