//! The mutation sweep. It removes every flush, FUA, lock and wait by which the engine keeps an
//! order, one at a time. Lives with crashes must find each removal. A checker that cannot fail
//! proves nothing.
//!
//! The engine's own calls report the sites (`forebay_metadata::order`). `findings.txt` holds the
//! case that finds each mutation. The gate replays that case alone, and searches only if the case
//! no longer finds its mutation. A mutation that no case finds stands in `argued.rs` with the
//! reason why the order is redundant.
//!
//! | variable | effect |
//! |---|---|
//! | `FOREBAY_FINDINGS=update` | searches each mutation without a valid finder, writes the file |
//! | `FOREBAY_FINDINGS=search` | searches every mutation, writes the file |
//! | `FOREBAY_SITE=text` | searches the mutations whose name contains the text |

#[path = "../allocator.rs"]
mod allocator;
mod argued;
mod findings;
mod mutations;
mod rotations;
mod search;
#[path = "../stack/mod.rs"]
mod stack;
mod torn;

use std::collections::BTreeMap;
use std::io::Write as _;

use findings::{Finder, Findings};
use mutations::Mutation;
use search::Argued;

/// The command that writes the file.
const UPDATE: &str =
    "FOREBAY_FINDINGS=update cargo test -p forebay-tests --test mutation every_mutation";

/// Source of the finders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The file. A search replaces a finder that no longer finds its mutation.
    File,
    /// As [`Source::File`], for a file that may lack entries and is written.
    Update,
    /// From a search for every mutation. The file is written.
    Search,
}

impl Source {
    fn from_environment() -> Self {
        match std::env::var("FOREBAY_FINDINGS").as_deref() {
            Err(_) => Self::File,
            Ok("update") => Self::Update,
            Ok("search") => Self::Search,
            Ok(other) => {
                panic!("FOREBAY_FINDINGS={other:?}\nhelp: set it to update or to search")
            }
        }
    }
}

/// Hides the panics of the engine, which are findings. Shows those of this test.
fn hide_findings() {
    std::panic::set_hook(Box::new(|info| {
        let is_own = |at: &std::panic::Location<'_>| at.file().contains("tests/mutation");
        if info.location().is_some_and(is_own) {
            eprintln!("{info}");
        }
    }));
}

/// Prints past the test harness, which captures the output of tests that pass.
fn announce(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[test]
fn every_mutation_is_found_or_argued() {
    hide_findings();
    let mutations = mutations::collect();
    assert!(
        mutations
            .iter()
            .any(|mutation| mutation.name.contains("Step")),
        "no site was collected"
    );
    if let Ok(part) = std::env::var("FOREBAY_SITE") {
        let chosen = mutations.into_iter().filter(|m| m.name.contains(&part));
        let chosen: Vec<Mutation> = chosen.collect();
        search::find(&chosen, Argued::Search);
        return assert_explained(&chosen);
    }
    assert_argued_exist(&mutations);
    let source = Source::from_environment();
    let file = Findings::read();
    if source == Source::File {
        file.assert_names(&mutations);
    }
    if source != Source::Search {
        replay(&mutations, &file);
    }
    search::find(
        &mutations,
        match source {
            // The file marks the others as argued, so these had a finder.
            Source::File => Argued::Search,
            Source::Update | Source::Search => Argued::Glance,
        },
    );
    assert_explained(&mutations);
    if source != Source::File {
        Findings::of(&mutations).write();
    }
}

/// Replays the remembered finder of each mutation.
///
/// # Panics
/// Panics if a finder finds something in the unchanged engine. It would prove nothing about its
/// mutation.
fn replay(mutations: &[Mutation], file: &Findings) {
    let cases = file.cases();
    search::on_threads(cases.len(), |number| {
        let (setup, case) = cases[number];
        if let Some(finding) = search::replay(setup, case) {
            panic!("without a mutation, {finding}");
        }
    });
    search::on_threads(mutations.len(), |number| {
        let mutation = &mutations[number];
        match file.finder(&mutation.name) {
            Some(Finder::Case(setup, case)) if !mutation.replay(setup, case) => {
                announce(&format!(
                    "stale: {} is not found by {setup}: {case}; help: {UPDATE}",
                    mutation.name
                ));
            }
            Some(Finder::Case(..)) | None => {}
            Some(Finder::Argued) => mutation.skip(),
        }
    });
}

/// Checks that each mutation is found, or argued to be redundant.
fn assert_explained(mutations: &[Mutation]) {
    let mut unexplained = Vec::new();
    let mut found = 0;
    for mutation in mutations {
        match (mutation.found(), argued::reason(&mutation.name)) {
            (Some(finding), _) => {
                found += 1;
                println!("{}\n    found by {finding}", mutation.name);
            }
            (None, Some(reason)) => println!("{}\n    not found: {reason}", mutation.name),
            (None, None) => unexplained.push(&mutation.name),
        }
    }
    announce(&format!("{found} of {} mutations found", mutations.len()));
    assert!(
        unexplained.is_empty(),
        "neither found nor argued:\n{unexplained:#?}"
    );
}

/// Checks that each argued site exists.
fn assert_argued_exist(mutations: &[Mutation]) {
    for (part, _) in argued::ARGUED {
        let exists = mutations.iter().any(|m| m.name.contains(part))
            || (argued::SELDOM.contains(&part) && mutations::has_function(part));
        assert!(exists, "argued, but not there: {part}");
    }
}

/// The file is verified: each kind of mismatch is found.
#[test]
fn a_file_that_does_not_match_the_sites_is_found() {
    let text = "one Step: a();\n    wb flush fits 0: random 5\ntwo Wait: b();\n    argued\n";
    let file = Findings::parse(text).expect("parses");
    let sites = |names: &[&str]| -> BTreeMap<String, ()> {
        names.iter().map(|name| ((*name).to_owned(), ())).collect()
    };
    assert_eq!(file.to_string(), format!("{}{text}", findings::HEAD));
    let both = sites(&["one Step: a();", "two Wait: b();"]);
    assert_eq!(file.mismatches(both.keys()), Vec::<String>::new());
    let missing = sites(&["one Step: a();", "three Lock: c();", "two Wait: b();"]);
    let found = file.mismatches(missing.keys());
    assert_eq!(found, ["without an entry: three Lock: c();"]);
    let seldom = format!("{}: d();", argued::SELDOM[0]);
    let seldom = sites(&["one Step: a();", "two Wait: b();", &seldom]);
    assert_eq!(file.mismatches(seldom.keys()), Vec::<String>::new());
    let gone = sites(&["two Wait: b();"]);
    let found = file.mismatches(gone.keys());
    assert_eq!(found, ["without a site: one Step: a();"]);
    for wrong in [
        "one Step: a();\n",
        "    argued\n",
        "one Step: a();\n    wb flush: random 5\n",
        "one Step: a();\n    argued\none Step: a();\n    argued\n",
    ] {
        assert!(Findings::parse(wrong).is_err(), "{wrong:?}");
    }
}

/// A finder that does not find its mutation is stale, and the search finds another.
#[test]
fn a_stale_finder_is_replaced_by_a_search() {
    hide_findings();
    let mutations = mutations::faults();
    let mutation = &mutations[0];
    // The life of a stack that caches nothing finds no fault of the cache.
    let setup = "pt sync fits 0".parse().expect("a setup");
    let case = "random 1".parse().expect("a case");
    assert!(!mutation.replay(setup, case), "{}", mutation.name);
    search::find(&mutations[..1], Argued::Glance);
    let finding = mutation.found().expect("the search finds it");
    let other = mutations::faults();
    assert!(other[0].replay(finding.setup, finding.case), "{finding}");
}
