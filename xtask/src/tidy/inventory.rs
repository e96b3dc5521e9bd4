//! Every test function of a package is in tests/inventory.txt, and every entry there has one.
//!
//! This compares function names with the sources, without a build. `cargo xtask gate` compares the
//! whole names with the built tests.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};
use crate::inventory::{Inventory, PATH, REMEDY};
use crate::metadata::Metadata;

const RULE: &str = "inventory";
/// A page whose lists end in names of tests.
const LISTS: &str = "docs/internals/faults.md";
const MARK: &str = concat!("#[te", "st]");

pub(super) fn check(metadata: &Metadata, sources: &[Source]) -> Vec<Finding> {
    let Some(listed) = sources.iter().find(|source| source.path == PATH) else {
        let message = format!("the file is missing\nhelp: {REMEDY}");
        return vec![Finding::new(RULE, PATH, message)];
    };
    let (inventory, flaws) = Inventory::parse(&listed.text);
    let flaws = flaws.into_iter();
    let mut findings: Vec<_> = flaws
        .map(|(line, reason)| Finding::new(RULE, format!("{PATH}:{line}"), reason))
        .collect();

    // For each package, its test functions and the place of one of that name.
    let mut written: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&["rs"]))
    {
        if let Some(package) = metadata.owner(&source.path) {
            let functions = written.entry(&package.name).or_default();
            for (line, function) in test_functions(&source.text) {
                functions.insert(function, format!("{}:{line}", source.path));
            }
        }
    }
    let mut mismatches = Vec::new();
    let mut entries: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for test in inventory.tests.keys() {
        let functions = entries.entry(test.package()).or_default();
        functions.insert(test.function());
        let found = written.get(test.package());
        if !found.is_some_and(|functions| functions.contains_key(test.function())) {
            let end = format!(" {test}");
            let line = listed.text.lines().position(|line| line.ends_with(&end));
            let place = format!("{PATH}:{}", line.map_or(0, |line| line + 1));
            let message = format!("there is no test function of {test}");
            mismatches.push(Finding::new(RULE, place, message));
        }
    }
    for (package, functions) in &written {
        for (function, place) in functions {
            let listed = entries.get(package);
            if !listed.is_some_and(|listed| listed.contains(function.as_str())) {
                let message = format!("{function} of {package} is missing from {PATH}");
                mismatches.push(Finding::new(RULE, place, message));
            }
        }
    }
    // One remedy repairs them all.
    if let Some(last) = mismatches.last_mut() {
        last.message += &format!("\nhelp: {REMEDY}");
    }
    findings.extend(mismatches);
    findings.extend(unknown_tests(&inventory, sources));
    findings
}

/// Finds the names of tests in the lists of a page that no test has.
fn unknown_tests(inventory: &Inventory, sources: &[Source]) -> Vec<Finding> {
    let functions: BTreeSet<&str> = (inventory.tests.keys())
        .map(|test| test.function())
        .collect();
    let Some(page) = sources.iter().find(|source| source.path == LISTS) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (index, line) in page.text.lines().enumerate() {
        let Some((_, name)) = (line.strip_suffix('`')).and_then(|line| line.rsplit_once('`'))
        else {
            continue;
        };
        if !functions.contains(name) {
            let place = format!("{LISTS}:{}", index + 1);
            findings.push(Finding::new(
                RULE,
                place,
                format!("there is no test {name}"),
            ));
        }
    }
    findings
}

/// Returns the test functions of a source with their lines, by rustfmt's layout.
///
/// A function whose name is a macro's variable stands for the names in the calls of that macro.
fn test_functions(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if line.trim_start().trim_start_matches("$(") != MARK {
            continue;
        }
        let functions = lines[index + 1..].iter().enumerate();
        let function = functions.filter_map(|(below, line)| Some((below, function_name(line)?)));
        let Some((below, name)) = function.take(1).next() else {
            continue;
        };
        if name.starts_with('$') {
            found.extend(names_in_calls(&lines, index));
        } else {
            found.push((index + 2 + below, name));
        }
    }
    found
}

/// Returns the name in a line such as `pub fn name(`.
fn function_name(line: &str) -> Option<String> {
    let rest = line.trim_start().trim_start_matches("pub ");
    let rest = rest.trim_start_matches("async ").strip_prefix("fn ")?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
    Some(rest[..end.unwrap_or(rest.len())].to_owned())
}

/// Returns the names at the beginnings of lines, each followed by a colon, in the calls of the
/// macro that has line `index`.
fn names_in_calls(lines: &[&str], index: usize) -> Vec<(usize, String)> {
    let above = lines[..index].iter().rev();
    let mut names = above.filter_map(|line| line.trim().strip_prefix("macro_rules! "));
    let Some(name) = names.next() else {
        return Vec::new();
    };
    let opening = format!("{}! {{", name.trim_end_matches([' ', '{']));
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim();
        if line == opening {
            inside = true;
        } else if line == "}" {
            inside = false;
        } else if let (true, Some((name, _))) = (inside, line.split_once(':')) {
            found.push((index + 1, name.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::planted;

    /// The findings for an inventory and the source of the one package, `a`.
    fn findings(inventory: &str, text: &str) -> Vec<String> {
        let source = |path: &str, text: &str| Source {
            path: path.into(),
            text: text.into(),
        };
        let sources = [
            source(PATH, inventory),
            source("crates/a/src/lib.rs", &text.replace("MARK", MARK)),
        ];
        let metadata = planted(&[("a", "crates/a", &[])]);
        let findings = check(&metadata, &sources).into_iter();
        findings
            .map(|finding| format!("{}: {}", finding.place, finding.message))
            .collect()
    }

    const TESTS: &str =
        "    MARK\n    #[should_panic]\n    fn one() {}\n\n    MARK\n    fn two() {}\n";

    #[test]
    fn an_inventory_that_matches_the_sources_passes() {
        assert_eq!(findings("gate a x::one\nseeds a::it two\n", TESTS), [""; 0]);
    }

    #[test]
    fn a_missing_inventory_is_found() {
        assert_eq!(check(&planted(&[]), &[]).len(), 1);
    }

    #[test]
    fn a_test_without_an_entry_is_found() {
        let found = findings("gate a x::one\n", TESTS);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/a/src/lib.rs:6: two of a is missing"));
    }

    #[test]
    fn an_entry_without_a_test_is_found() {
        let found = findings("gate a one\ngate a three\ngate a two\n", TESTS);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("tests/inventory.txt:2: there is no test function of a three"),
            "{found:?}"
        );
        let other = findings("gate a one\ngate a two\ngate b one\n", TESTS);
        assert!(
            other[0].starts_with("tests/inventory.txt:3: there is no test function of b one"),
            "{other:?}"
        );
    }

    #[test]
    fn a_page_that_names_an_unknown_test_is_found() {
        let page = Source {
            path: LISTS.into(),
            text: "Text with `code`.\n\n- one thing: `one`\n- another:\n  `three`\n".into(),
        };
        let (inventory, _) = Inventory::parse("gate a x::one\ngate a two\n");
        let found = unknown_tests(&inventory, &[page]).into_iter();
        let found: Vec<_> = found
            .map(|finding| format!("{}: {}", finding.place, finding.message))
            .collect();
        assert_eq!(
            found,
            ["docs/internals/faults.md:5: there is no test three"]
        );
    }

    #[test]
    fn malformed_lines_are_found() {
        for (line, reason) in [
            ("daily a two\n", "unknown tier"),
            ("gate a one\n", "duplicate"),
            ("gate a an\n", "out of order"),
        ] {
            let found = findings(&format!("gate a one\n{line}"), TESTS);
            assert!(found[0].starts_with("tests/inventory.txt:2: "), "{found:?}");
            assert!(found[0].contains(reason), "{found:?}");
        }
    }

    #[test]
    fn functions_inside_of_macros_are_found() {
        let text = "proptest! {\n    MARK\n    fn one(\n        x in 0..1,\n    ) {}\n}\n";
        assert_eq!(findings("gate a one\n", text), [""; 0]);
        assert_eq!(findings("", text).len(), 1);
    }

    #[test]
    fn names_in_the_calls_of_a_macro_are_found() {
        let text = "macro_rules! each {\n    ($($name:ident: $flaw:ident;)*) => {\n        \
            $(MARK\n        fn $name() {}\n        )*\n    };\n}\n\neach! {\n    \
            one: First;\n    two: Second;\n}\n";
        assert_eq!(findings("gate a one\ngate a two\n", text), [""; 0]);
        assert_eq!(findings("gate a one\n", text).len(), 1);
    }
}
