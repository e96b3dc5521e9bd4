//! The mutation sweep: every flush, every FUA, every lock and every wait by which the engine keeps an
//! order is left out, one at a time, and random lives with crashes must find that it is missing. A
//! checker that cannot fail proves nothing.
//!
//! The sites are not picked by hand: the engine's own calls report where they are
//! (`forebay_metadata::order`). What no life finds missing stands in `argued.rs` with the reason why it is
//! redundant; for those, a few seeds are tried, or everything with `FOREBAY_SITE=text`, which runs only the
//! sites whose line in the table contains the text.

mod argued;
#[path = "../stack/mod.rs"]
mod stack;
mod torn;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use forebay_cache::plant::{Fault, SitePart, plant, reached, take_out};
use forebay_testkit::crash::{Failure, Report, Target};
use stack::{CacheStack, Setup};

/// Seeds within which what is missing must be found.
const SEEDS: u64 = 200;
/// Seeds that are tried on what stands in `argued.rs`.
const FEW: u64 = 10;
/// Seeds of their own: those of the other tests were made to pass.
const FIRST: u64 = 100_000;
/// Lives from which the sites are collected.
const COLLECTED: usize = 120;
const THREADS: usize = 2;
/// Longer than any mutation takes; one that makes the engine run in circles would take for ever.
const PATIENCE: Duration = Duration::from_mins(20);

fn target(setup: Setup) -> Target<CacheStack> {
    Target {
        stack: CacheStack::new(setup),
        plan: setup.plan(),
        lives: 20,
        failing: true,
        // An aimed life is cut off everywhere as it is.
        forks: !setup.is_aimed(),
        label: setup.to_string(),
        command: "cargo test -p forebay-tests --test mutation",
    }
}

fn setup(seed: u64) -> Setup {
    if seed.is_multiple_of(2) {
        Setup::draw(seed)
    } else {
        Setup::pressed(seed)
    }
}

/// A part of the search for what finds something missing.
#[derive(Clone, Copy)]
enum Try {
    /// Random lives, from this seed on.
    Seeds(u64),
    /// A life that is aimed at one window.
    Aim(u64),
}

/// All that is tried until something is found, in this order; without `thorough` only a beginning. What a few dozen random
/// lives do not find, an aimed one most often does: they take turns.
fn search(thorough: bool) -> Vec<Try> {
    let mut seeds = (0..SEEDS).step_by(FEW as usize).map(Try::Seeds);
    let mut aims = (0..)
        .take_while(|number| Setup::aimed(*number).is_some())
        .map(Try::Aim);
    if !thorough {
        return seeds.take(1).collect();
    }
    let mut tries: Vec<Try> = seeds.by_ref().take(3).collect();
    loop {
        let before = tries.len();
        tries.extend(aims.next());
        tries.extend(seeds.next());
        if tries.len() == before {
            return tries;
        }
    }
}

impl Try {
    /// What the first life saw that finds something missing.
    fn found(self) -> Option<String> {
        match self {
            Self::Seeds(first) => (first..first + FEW).find_map(|seed| {
                let seen = saw(|| target(setup(FIRST + seed)).random(FIRST + seed))?;
                Some(format!("by seed {}: {seen}", seed + 1))
            }),
            Self::Aim(number) => {
                let setup = Setup::aimed(number)?;
                let seen = saw(|| setup.hit(&target(setup)))?;
                Some(format!("by aim {number}: {seen}"))
            }
        }
    }
}

/// What a run found, if anything.
fn saw(run: impl FnOnce() -> Result<Report, Failure>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => Some(failure.message),
        Err(_) => Some("an assertion of the engine".to_owned()),
    }
}

/// A mutation: what is taken out, and how the table and `argued.rs` call it.
struct Mutation {
    change: Change,
    name: String,
    /// By which of its tries it was found, and what that saw.
    found: Mutex<Option<(usize, String)>>,
}

impl Mutation {
    fn new(change: Change, name: String) -> Self {
        let found = Mutex::default();
        Self {
            change,
            name,
            found,
        }
    }

    fn is_found(&self) -> bool {
        self.found.lock().unwrap().is_some()
    }

    /// Makes a try, the `nth`.
    fn search(&self, nth: usize, part: Try) {
        let (over, watch) = mpsc::channel::<()>();
        let name = self.name.clone();
        std::thread::spawn(move || end_after_patience(&name, &watch));
        match self.change {
            Change::Site(site) => take_out(Some(site)),
            Change::Fault(fault) => plant(Some(fault)),
        }
        let found = part.found();
        take_out(None);
        plant(None);
        drop(over);
        let Some(what) = found else { return };
        // It takes long: who watches is told as it goes.
        let _ = writeln!(std::io::stderr(), "found: {}", self.name);
        let mut first = self.found.lock().unwrap();
        // An earlier try may have been under way meanwhile.
        if first.as_ref().is_none_or(|(before, _)| nth < *before) {
            *first = Some((nth, what));
        }
    }
}

#[derive(Clone, Copy)]
enum Change {
    Site(SitePart),
    Fault(Fault),
}

/// Ends the test, and says where it was, if what `watch` belongs to is not over in time.
fn end_after_patience(name: &str, watch: &mpsc::Receiver<()>) {
    if watch.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
        // The test's output is captured, and it will not end to show it.
        let _ = writeln!(
            std::io::stderr(),
            "still running after {PATIENCE:?}: {name}"
        );
        std::process::exit(1);
    }
}

/// A line of the source and the function that it stands in.
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

/// Whether the source has the function of a site that is named as [`source`] would.
fn has_function(name: &str) -> bool {
    let mut words = name.split(' ');
    let (file, function) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (package, rest) = file.split_once('/').expect("a crate and a file");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let text = std::fs::read_to_string(path.join(package).join("src").join(rest));
    text.is_ok_and(|text| text.contains(&format!("fn {function}(")))
}

/// Runs `work` on each of these numbers, on all threads. It is handed out in their order.
fn on_threads(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        number if number < count => work(number),
                        _ => break,
                    }
                }
            });
        }
    });
}

fn collect() -> Vec<Mutation> {
    let sites = Mutex::new(BTreeSet::<SitePart>::new());
    on_threads(COLLECTED, |seed| {
        let seed = seed as u64;
        if let Err(failure) = target(setup(seed)).random(seed) {
            panic!("{failure}");
        }
        sites.lock().unwrap().extend(reached());
    });
    let faults = [
        Fault::ForgetRewrite,
        Fault::ClaimBeforeFlush,
        Fault::RetryFailedFlush,
        Fault::SumBeforeData,
        Fault::TrustOpen,
        Fault::ClearDirtyTract,
        Fault::SketchWithoutMarks,
        Fault::SketchWithoutJournal,
    ];
    let sites = sites.into_inner().unwrap().into_iter().map(|site| {
        let (file, line, _, part) = site;
        let (function, text) = source(file, line);
        let file = file.trim_start_matches("crates/").replace("/src/", "/");
        let name = format!("{file} {function} {part:?}: {text}");
        Mutation::new(Change::Site(site), name)
    });
    let faults = faults
        .into_iter()
        .map(|fault| Mutation::new(Change::Fault(fault), format!("fault {fault:?}")));
    sites.chain(faults).collect()
}

#[test]
fn what_is_left_out_is_found_missing() {
    std::panic::set_hook(Box::new(|info| {
        // The engine's assertions are findings; the test's own must be seen.
        if info
            .location()
            .is_some_and(|at| at.file().contains("tests/mutation"))
        {
            eprintln!("{info}");
        }
    }));
    let only = std::env::var("FOREBAY_SITE").unwrap_or_default();
    let mutations: Vec<Mutation> = (collect().into_iter())
        .filter(|mutation| mutation.name.contains(&only))
        .collect();
    // First the first try of each, last the last one of those that nothing finds, so that no thread is left with a long
    // one alone in the end. An earlier try is always begun before a later one: which one finds it first is no chance.
    let mut tries = Vec::new();
    for mutation in &mutations {
        let argued = argued::reason(&mutation.name).is_some();
        let search = search(!argued || !only.is_empty());
        tries.extend(
            search
                .into_iter()
                .enumerate()
                .map(|(nth, part)| (nth, part, mutation)),
        );
    }
    tries.sort_by_key(|(nth, ..)| *nth);
    on_threads(tries.len(), |number| {
        let (nth, part, mutation) = tries[number];
        if !mutation.is_found() {
            mutation.search(nth, part);
        }
    });
    let mut results: Vec<(&Mutation, Option<String>)> = (mutations.iter())
        .map(|mutation| {
            (
                mutation,
                mutation.found.lock().unwrap().take().map(|(_, what)| what),
            )
        })
        .collect();
    results.sort_by(|one, other| one.0.name.cmp(&other.0.name));
    let mut unexplained = Vec::new();
    for (mutation, found) in &results {
        let name = &mutation.name;
        match (found, argued::reason(name)) {
            (Some(what), _) => {
                let what = what.lines().next().unwrap_or_default();
                println!("{name}\n    found {what}");
            }
            (None, Some(reason)) => println!("{name}\n    not found: {reason}"),
            (None, None) => unexplained.push(name),
        }
    }
    let count = results.iter().filter(|(_, found)| found.is_some()).count();
    println!("{count} of {} found within {SEEDS} seeds", results.len());
    assert!(
        unexplained.is_empty(),
        "neither found nor argued:\n{unexplained:#?}"
    );
    for (part, _) in argued::ARGUED {
        let is_there = results.iter().any(|(m, _)| m.name.contains(part))
            || argued::SELDOM.contains(&part) && has_function(part);
        assert!(
            !only.is_empty() || is_there,
            "argued, but not there: {part}"
        );
    }
    assert!(
        !only.is_empty() || results.iter().any(|(m, _)| m.name.contains("Step")),
        "no site was collected"
    );
}
