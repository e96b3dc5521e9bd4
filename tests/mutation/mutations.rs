//! The mutations: each site of the engine that enforces an order, and planted faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use forebay_cache::failpoints::{Fault, SitePart, plant, reached, take_out};
use forebay_testkit::case::Case;

use crate::search::{self, Try};
use crate::stack::Setup;

/// Number of lives from which the sites are collected.
const COLLECTED: usize = 120;

/// A change of the engine.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Removes a part of a site.
    Site(SitePart),
    /// Plants a fault.
    Fault(Fault),
}

/// A life that finds a mutation.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The configuration of the stack.
    pub(crate) setup: Setup,
    /// The run.
    pub(crate) case: Case,
    /// The violation, in one line or more.
    pub(crate) violation: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.violation.lines().next().unwrap_or_default();
        write!(f, "{}: {}: {first}", self.setup, self.case)
    }
}

/// The state of the search for a mutation.
#[derive(Debug)]
enum State {
    /// No try has found it.
    Open,
    /// The file says that no case finds it.
    Skipped,
    /// The try of this number found it.
    Found(usize, Finding),
}

/// A change of the engine that lives must find.
#[derive(Debug)]
pub(crate) struct Mutation {
    change: Change,
    /// File, function, part and source line of a site, or the name of a fault.
    pub(crate) name: String,
    state: Mutex<State>,
}

impl Mutation {
    fn new(change: Change, name: String) -> Self {
        let state = Mutex::new(State::Open);
        Self {
            change,
            name,
            state,
        }
    }

    /// Whether a search would add nothing.
    pub(crate) fn is_settled(&self) -> bool {
        !matches!(*self.state.lock().unwrap(), State::Open)
    }

    pub(crate) fn found(&self) -> Option<Finding> {
        match &*self.state.lock().unwrap() {
            State::Found(_, finding) => Some(finding.clone()),
            State::Open | State::Skipped => None,
        }
    }

    /// Excludes the mutation from searches.
    pub(crate) fn skip(&self) {
        *self.state.lock().unwrap() = State::Skipped;
    }

    /// Whether a remembered case finds the mutation.
    pub(crate) fn replay(&self, setup: Setup, case: Case) -> bool {
        let finding = self.mutated(|| search::replay(setup, case));
        let Some(finding) = finding else {
            return false;
        };
        *self.state.lock().unwrap() = State::Found(0, finding);
        true
    }

    /// Runs the try of number `nth`.
    pub(crate) fn search(&self, nth: usize, part: Try) {
        let Some(finding) = self.mutated(|| part.find()) else {
            return;
        };
        // The gate relies on the replay of the case.
        let replayed = self.mutated(|| search::replay(finding.setup, finding.case));
        assert!(
            replayed.is_some(),
            "{}: found by {finding}, and not by its replay",
            self.name
        );
        crate::announce(&format!("found: {}", self.name));
        let mut state = self.state.lock().unwrap();
        // A concurrent earlier try may end later.
        match &*state {
            State::Found(earlier, _) if *earlier < nth => {}
            _ => *state = State::Found(nth, finding),
        }
    }

    /// Runs `work` with the change in this thread's engines.
    fn mutated<T>(&self, work: impl FnOnce() -> T) -> T {
        let watch = search::Watch::new(&self.name);
        match self.change {
            Change::Site(site) => take_out(Some(site)),
            Change::Fault(fault) => plant(Some(fault)),
        }
        let result = work();
        take_out(None);
        plant(None);
        drop(watch);
        result
    }
}

/// Returns a line of the source and its function.
fn source(file: &str, line: u32) -> (String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let before: Vec<&str> = text.lines().take(line as usize).collect();
    let function = (before.iter().rev())
        .find_map(|line| line.split_once("fn "))
        .map_or("", |(_, rest)| rest.split(['(', '<']).next().unwrap_or(""));
    let line = before.last().copied().unwrap_or_default();
    (function.to_owned(), line.trim().to_owned())
}

/// Whether the source has the function of a site that [`source`] would name so.
pub(crate) fn has_function(name: &str) -> bool {
    let mut words = name.split(' ');
    let (file, function) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (package, rest) = file.split_once('/').expect("a crate and a file");
    ["base", "block-cache"].iter().any(|product| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let path = folder.join(product).join(package).join("src").join(rest);
        let text = std::fs::read_to_string(path);
        text.is_ok_and(|text| text.contains(&format!("fn {function}(")))
    })
}

/// Returns the path of a source file without the folder of its product and without `src`.
fn short_name(file: &str) -> String {
    let (_, rest) = file.split_once('/').expect("the folder of a product");
    rest.replace("/src/", "/")
}

/// Returns every mutation, sorted by name.
pub(crate) fn collect() -> Vec<Mutation> {
    let sites = Mutex::new(BTreeSet::<SitePart>::new());
    search::on_threads(COLLECTED, |seed| {
        search::live(seed as u64);
        sites.lock().unwrap().extend(reached());
    });
    // Sites with equal lines have numbers from the second one on.
    let mut alike = BTreeMap::<String, u32>::new();
    let sites = sites.into_inner().unwrap().into_iter().map(|site| {
        let (file, line, _, part) = site;
        let (function, text) = source(file, line);
        let file = short_name(file);
        let name = format!("{file} {function} {part:?}: {text}");
        let nth = alike.entry(name.clone()).or_default();
        *nth += 1;
        let name = match nth {
            1 => name,
            nth => format!("{name} #{nth}"),
        };
        Mutation::new(Change::Site(site), name)
    });
    let mut mutations: Vec<Mutation> = sites.collect();
    mutations.extend(faults());
    mutations.sort_by(|one, other| one.name.cmp(&other.name));
    mutations
}

/// Faults of the engine that the lives of this sweep must find.
pub(crate) const FAULTS: [Fault; 8] = [
    Fault::ForgetRewrite,
    Fault::ClaimBeforeFlush,
    Fault::RetryFailedFlush,
    Fault::ChecksumBeforeData,
    Fault::TrustOpen,
    Fault::ClearDirtyZone,
    Fault::IndexWithoutMarks,
    Fault::IndexWithoutJournal,
];

/// Returns the mutations that plant a fault.
pub(crate) fn faults() -> Vec<Mutation> {
    let mutation = |fault| Mutation::new(Change::Fault(fault), format!("fault {fault:?}"));
    FAULTS.into_iter().map(mutation).collect()
}
