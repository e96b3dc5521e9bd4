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
const COLLECTED: u64 = 120;
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

/// What the first life saw that finds something missing: of random ones, or, in a search that is thorough,
/// of those that are aimed at one window each.
fn found(thorough: bool) -> Option<String> {
    let seeds = if thorough { SEEDS } else { FEW };
    let random = |seed| saw(|| target(setup(seed)).random(seed));
    let mut aims = (0..).map_while(Setup::aimed).enumerate();
    let aimed = |(number, setup): (usize, Setup)| {
        let seen = saw(|| setup.hit(&target(setup)))?;
        Some(format!("by aim {number}: {seen}"))
    };
    (FIRST..FIRST + seeds)
        .find_map(|seed| Some(format!("by seed {}: {}", seed - FIRST + 1, random(seed)?)))
        .or_else(|| thorough.then(|| aims.find_map(aimed))?)
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

fn collect() -> Vec<Mutation> {
    let mut sites: BTreeSet<SitePart> = BTreeSet::new();
    for seed in 0..COLLECTED {
        if let Err(failure) = target(setup(seed)).random(seed) {
            panic!("{failure}");
        }
        sites.extend(reached());
    }
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
    let sites = sites.into_iter().map(|site| {
        let (file, line, _, part) = site;
        let (function, text) = source(file, line);
        let file = file.trim_start_matches("crates/").replace("/src/", "/");
        Mutation {
            change: Change::Site(site),
            name: format!("{file} {function} {part:?}: {text}"),
        }
    });
    let faults = faults.into_iter().map(|fault| Mutation {
        change: Change::Fault(fault),
        name: format!("fault {fault:?}"),
    });
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
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (over, watch) = mpsc::channel::<()>();
                    let name = mutation.name.clone();
                    std::thread::spawn(move || end_after_patience(&name, &watch));
                    match mutation.change {
                        Change::Site(site) => take_out(Some(site)),
                        Change::Fault(fault) => plant(Some(fault)),
                    }
                    let argued = argued::reason(&mutation.name).is_some();
                    let found = found(!argued || !only.is_empty());
                    take_out(None);
                    plant(None);
                    drop(over);
                    // It takes long: who watches is told as it goes.
                    let seen = if found.is_some() {
                        "found"
                    } else {
                        "not found"
                    };
                    let _ = writeln!(std::io::stderr(), "{seen}: {}", mutation.name);
                    results.lock().unwrap().push((mutation, found));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
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
        assert!(
            !only.is_empty() || results.iter().any(|(m, _)| m.name.contains(part)),
            "argued, but not there: {part}"
        );
    }
    assert!(
        !only.is_empty() || results.iter().any(|(m, _)| m.name.contains("Step")),
        "no site was collected"
    );
}
