//! `findings.txt`: the case that finds each mutation.
//!
//! A line with the name of a mutation precedes an indented line with its finder: a case as replay
//! commands write it, or `argued`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use forebay_testkit::case::Case;

use crate::argued::SELDOM;
use crate::mutations::Mutation;
use crate::stack::Setup;

/// The first lines of the file.
pub(crate) const HEAD: &str = "\
# The case that finds each mutation of tests/mutation; the gate replays it.
# FOREBAY_FINDINGS=update cargo test -p forebay-tests --test mutation every_mutation writes it.
";

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mutation/findings.txt");

/// The entry of one mutation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finder {
    /// A case that finds it.
    Case(Setup, Case),
    /// No case finds it, and `argued.rs` says why.
    Argued,
}

impl fmt::Display for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Case(setup, case) => write!(f, "{setup}: {case}"),
            Self::Argued => write!(f, "argued"),
        }
    }
}

impl Finder {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "argued" {
            return Ok(Self::Argued);
        }
        let (setup, case) = (text.split_once(": "))
            .ok_or_else(|| format!("{text:?} is not a setup, a colon and a case"))?;
        Ok(Self::Case(setup.parse()?, case.parse()?))
    }
}

/// The entries, by the names of the mutations.
#[derive(Debug)]
pub(crate) struct Findings(BTreeMap<String, Finder>);

impl Findings {
    /// Reads the file. A missing file has no entries.
    pub(crate) fn read() -> Self {
        let text = match std::fs::read_to_string(PATH) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => panic!("{PATH}: {error}"),
        };
        Self::parse(&text).unwrap_or_else(|error| panic!("{PATH}: {error}"))
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// Returns the first line that breaks the format.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut entries = BTreeMap::new();
        let mut name = None;
        for (number, line) in (1..).zip(text.lines()) {
            let within = |error: String| format!("line {number}: {error}");
            match (line.strip_prefix("    "), name) {
                _ if line.starts_with('#') => {}
                (None, None) => name = Some(line),
                (Some(finder), Some(of)) => {
                    let finder = Finder::parse(finder).map_err(within)?;
                    if entries.insert(of.to_owned(), finder).is_some() {
                        return Err(within(format!("a second entry for {of:?}")));
                    }
                    name = None;
                }
                (None, Some(of)) => return Err(within(format!("no finder for {of:?}"))),
                (Some(_), None) => return Err(within("a finder without a name".to_owned())),
            }
        }
        match name {
            None => Ok(Self(entries)),
            Some(of) => Err(format!("no finder for {of:?}")),
        }
    }

    /// Returns the findings of the mutations that were searched.
    pub(crate) fn of(mutations: &[Mutation]) -> Self {
        let entry = |mutation: &Mutation| {
            let finder = match mutation.found() {
                Some(finding) => Finder::Case(finding.setup, finding.case),
                None => Finder::Argued,
            };
            (mutation.name.clone(), finder)
        };
        Self(mutations.iter().map(entry).collect())
    }

    pub(crate) fn write(&self) {
        let path = PathBuf::from(PATH);
        std::fs::write(&path, self.to_string()).unwrap_or_else(|error| panic!("{PATH}: {error}"));
    }

    pub(crate) fn finder(&self, name: &str) -> Option<Finder> {
        self.0.get(name).copied()
    }

    /// Returns each case once.
    pub(crate) fn cases(&self) -> Vec<(Setup, Case)> {
        let mut cases = Vec::new();
        for finder in self.0.values() {
            if let Finder::Case(setup, case) = *finder
                && !cases.contains(&(setup, case))
            {
                cases.push((setup, case));
            }
        }
        cases
    }

    /// Returns the sites without an entry and the entries without a site. The lives that collect
    /// the sites may miss those of [`SELDOM`], which need no entry.
    pub(crate) fn mismatches<'a>(&self, names: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut unmatched: Vec<&String> = self.0.keys().collect();
        let mut mismatches = Vec::new();
        let is_seldom = |name: &str| SELDOM.iter().any(|seldom| name.starts_with(seldom));
        for name in names {
            match unmatched.iter().position(|entry| *entry == name) {
                Some(entry) => drop(unmatched.swap_remove(entry)),
                None if is_seldom(name) => {}
                None => mismatches.push(format!("without an entry: {name}")),
            }
        }
        unmatched.retain(|name| !is_seldom(name));
        unmatched.sort();
        mismatches.extend(
            unmatched
                .into_iter()
                .map(|name| format!("without a site: {name}")),
        );
        mismatches
    }

    /// Checks that each mutation has an entry and each entry a mutation.
    pub(crate) fn assert_names(&self, mutations: &[Mutation]) {
        let mismatches = self.mismatches(mutations.iter().map(|mutation| &mutation.name));
        assert!(
            mismatches.is_empty(),
            "{PATH} does not match the engine: {mismatches:#?}\n\
             help: FOREBAY_FINDINGS=update cargo test -p forebay-tests --test mutation \
             every_mutation"
        );
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEAD}")?;
        for (name, finder) in &self.0 {
            writeln!(f, "{name}\n    {finder}")?;
        }
        Ok(())
    }
}
