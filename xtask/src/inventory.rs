//! `tests/inventory.txt`: every test of the workspace by name, with the run that it belongs to.
//!
//! Each line is `TIER BINARY-ID TEST-NAME`, sorted by binary and test. Binary ids are those of
//! nextest: `forebay-cache` (unit tests), `forebay-tests::crash` (a test target),
//! `forebay::bin/forebay`. A deleted or renamed test is a visible change of this file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use crate::metadata::Metadata;
use crate::nextest::Nextest;
use crate::test_name::Test;

/// The inventory's path, relative to the workspace root.
pub(crate) const PATH: &str = "tests/inventory.txt";
/// The command that repairs a wrong inventory.
pub(crate) const REMEDY: &str =
    "run `cargo xtask inventory --write` and commit tests/inventory.txt";

const HEADER: &str = "\
# TIER BINARY-ID TEST-NAME, sorted by binary and test; tests/README.md defines the tiers.
# `cargo xtask inventory --write` rewrites this file. Edit the tiers by hand.
";

/// Options of `cargo xtask inventory`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rewrite the file: existing tests keep their tier, new tests get `gate`
    #[arg(long)]
    write: bool,
}

/// Runs that a test belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Runs whole in the gate and in the nightly run.
    Gate,
    /// The gate runs a fixed core and a rotating part; the nightly run runs all of it.
    Rotated,
    /// Random lives: the gate runs seeds derived from the commit, the nightly run many more.
    Seeds,
    /// Runs in the nightly run only.
    Nightly,
}

impl Tier {
    const ALL: [Self; 4] = [Self::Gate, Self::Rotated, Self::Seeds, Self::Nightly];

    const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Rotated => "rotated",
            Self::Seeds => "seeds",
            Self::Nightly => "nightly",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// All tests with their tiers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    pub(crate) tests: BTreeMap<Test, Tier>,
}

/// A malformed line: its number, from one, and the reason.
pub(crate) type Flaw = (usize, String);

impl Inventory {
    /// Reads the inventory of the workspace at `root`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or a line is malformed.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(root.join(PATH))
            .map_err(|error| format!("cannot read {PATH}: {error}\nhelp: {REMEDY}"))?;
        let (inventory, flaws) = Self::parse(&text);
        match flaws.first() {
            None => Ok(inventory),
            Some((line, reason)) => Err(format!("{PATH}:{line}: {reason}")),
        }
    }

    /// Parses an inventory. Reports malformed lines and omits them.
    pub(crate) fn parse(text: &str) -> (Self, Vec<Flaw>) {
        let (mut inventory, mut flaws) = (Self::default(), Vec::new());
        let mut previous: Option<Test> = None;
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('#') {
                continue;
            }
            let mut flaw = |reason: String| flaws.push((index + 1, reason));
            let [tier, binary, name] = line.split(' ').collect::<Vec<_>>()[..] else {
                flaw(format!("expected TIER BINARY-ID TEST-NAME, found {line:?}"));
                continue;
            };
            let Some(tier) = Tier::parse(tier) else {
                let known = Tier::ALL.map(Tier::name).join(", ");
                flaw(format!("unknown tier {tier:?}\nhelp: use one of {known}"));
                continue;
            };
            let test = Test {
                binary: binary.into(),
                name: name.into(),
            };
            if inventory.tests.insert(test.clone(), tier).is_some() {
                flaw(format!("duplicate entry {test}"));
            } else if previous.as_ref().is_some_and(|previous| *previous > test) {
                flaw(format!("{test} is out of order\nhelp: {REMEDY}"));
            }
            previous = Some(test);
        }
        (inventory, flaws)
    }

    /// Returns the inventory as the text of its file.
    pub(crate) fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        for (test, tier) in &self.tests {
            text += &format!("{} {test}\n", tier.name());
        }
        text
    }

    /// Returns an inventory of `listed` with the tiers of `self`. New tests get `gate`.
    pub(crate) fn rewritten(&self, listed: &BTreeSet<Test>) -> Self {
        let tier = |test| self.tests.get(test).copied().unwrap_or(Tier::Gate);
        let tests = listed.iter().map(|test| (test.clone(), tier(test)));
        Self {
            tests: tests.collect(),
        }
    }

    /// Compares the inventory with the tests that were built, in the packages that `selected`
    /// accepts. Returns one message for each difference.
    pub(crate) fn differences(
        &self,
        listed: &BTreeSet<Test>,
        selected: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let missing = listed
            .iter()
            .filter(|test| !self.tests.contains_key(test))
            .map(|test| format!("missing from {PATH}: {test}"));
        let stale = self
            .tests
            .keys()
            .filter(|test| selected(test.package()) && !listed.contains(test))
            .map(|test| format!("in {PATH}, but not built: {test}"));
        missing.chain(stale).collect()
    }

    /// Returns a nextest filter expression for the tests of `tier`, `None` if there are none.
    pub(crate) fn filter(&self, tier: Tier) -> Option<String> {
        let mut binaries: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (test, _) in self.tests.iter().filter(|(_, found)| **found == tier) {
            let tests = binaries.entry(&test.binary).or_default();
            tests.push(format!("test(={})", test.name));
        }
        let expressions: Vec<String> = binaries
            .iter()
            .map(|(binary, tests)| format!("(binary_id(={binary}) & ({}))", tests.join(" | ")))
            .collect();
        (!expressions.is_empty()).then(|| expressions.join(" | "))
    }
}

/// Compares the inventory with the built tests, or rewrites it.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    match try_run(root, options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("inventory: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, options: &Options) -> Result<bool, String> {
    let metadata = Metadata::of(&root.join("Cargo.toml"))?;
    let listed = Nextest::find(root, &metadata.target_directory)?.list(&[])?;
    if !options.write {
        return Ok(compare(&Inventory::read(root)?, &listed, |_| true));
    }
    let path = root.join(PATH);
    let old = match fs::read_to_string(&path) {
        Ok(text) => Inventory::parse(&text).0,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Inventory::default(),
        Err(error) => return Err(format!("cannot read {PATH}: {error}")),
    };
    let new = old.rewritten(&listed);
    for difference in old.differences(&listed, |_| true) {
        println!("{difference}");
    }
    fs::write(&path, new.text()).map_err(|error| format!("cannot write {PATH}: {error}"))?;
    println!("{PATH}: {} tests", new.tests.len());
    Ok(true)
}

/// Prints the differences between the inventory and the built tests. Returns whether there are
/// none.
pub(crate) fn compare(
    inventory: &Inventory,
    listed: &BTreeSet<Test>,
    selected: impl Fn(&str) -> bool,
) -> bool {
    let differences = inventory.differences(listed, selected);
    for difference in &differences {
        println!("{difference}");
    }
    if differences.is_empty() {
        println!("{} tests, all in {PATH}", listed.len());
    } else {
        println!("help: {REMEDY}");
    }
    differences.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(binary: &str, name: &str) -> Test {
        Test {
            binary: binary.into(),
            name: name.into(),
        }
    }

    fn parsed(text: &str) -> Inventory {
        let (inventory, flaws) = Inventory::parse(text);
        assert!(flaws.is_empty(), "{flaws:?}");
        inventory
    }

    const GOOD: &str = "gate a x::one\nrotated a x::two\nnightly b::it three\nseeds b::it two\n";

    #[test]
    fn an_inventory_survives_writing_and_reading() {
        let inventory = parsed(GOOD);
        assert_eq!(inventory.tests[&test("b::it", "two")], Tier::Seeds);
        assert_eq!(parsed(&inventory.text()), inventory);
        assert_eq!(inventory.text(), HEADER.to_owned() + GOOD);
    }

    #[test]
    fn malformed_lines_are_reported() {
        let flaws = |text: &str| Inventory::parse(text).1;
        for (text, reason) in [
            ("often a one\n", "unknown tier"),
            ("gate a\n", "expected TIER"),
            ("\n", "expected TIER"),
            ("gate a one\ngate a one\n", "duplicate"),
            ("gate a two\ngate a one\n", "out of order"),
            ("gate b one\ngate a one\n", "out of order"),
        ] {
            let found = flaws(text);
            assert_eq!(found.len(), 1, "{text:?}: {found:?}");
            assert_eq!(found[0].0, text.lines().count());
            assert!(found[0].1.contains(reason), "{found:?}");
        }
    }

    #[test]
    fn missing_and_stale_tests_are_differences() {
        let inventory = parsed(GOOD);
        let mut listed: BTreeSet<Test> = inventory.tests.keys().cloned().collect();
        assert!(inventory.differences(&listed, |_| true).is_empty());
        listed.insert(test("a", "new"));
        listed.remove(&test("b::it", "two"));
        let found = inventory.differences(&listed, |_| true);
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("inventory.txt: a new"), "{found:?}");
        assert!(found[1].ends_with("not built: b::it two"), "{found:?}");
        assert_eq!(inventory.differences(&listed, |name| name == "a").len(), 1);
    }

    #[test]
    fn a_rewritten_inventory_keeps_tiers_and_drops_stale_tests() {
        let listed = [test("a", "new"), test("a", "x::two")].into();
        let new = parsed(GOOD).rewritten(&listed);
        assert_eq!(new, parsed("gate a new\nrotated a x::two\n"));
    }

    #[test]
    fn a_filter_names_the_tests_of_one_tier() {
        let inventory = parsed("nightly a one\nnightly a two\ngate b one\nnightly b two\n");
        let expected =
            "(binary_id(=a) & (test(=one) | test(=two))) | (binary_id(=b) & (test(=two)))";
        assert_eq!(inventory.filter(Tier::Nightly).as_deref(), Some(expected));
        assert_eq!(inventory.filter(Tier::Seeds), None);
    }
}
