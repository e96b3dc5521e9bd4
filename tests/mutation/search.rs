//! The search for a life that finds a mutation: random lives, and lives aimed at one window.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebay_testkit::case::Case;
use forebay_testkit::crash::{Failure, Target, last_case};

use crate::argued;
use crate::mutations::{Finding, Mutation};
use crate::stack::{CacheStack, Setup};

/// Number of seeds within which a mutation must be found.
const SEEDS: u64 = 200;
/// Number of seeds in one try.
const FEW: u64 = 10;
/// First seed of the search. Other tests were tuned to pass with the smaller ones.
const FIRST: u64 = 100_000;
const THREADS: usize = 2;
/// Timeout for a mutation, far longer than any takes. An engine in an endless loop exceeds it.
const PATIENCE: Duration = Duration::from_mins(20);

pub(crate) fn target(setup: Setup) -> Target<CacheStack> {
    Target {
        stack: CacheStack::new(setup),
        plan: setup.plan(),
        lives: 20,
        failing: true,
        // A sweep of an aimed life tries other outcomes at each of its crashes.
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

/// Lives the random life of `seed`, which must find nothing.
pub(crate) fn live(seed: u64) {
    if let Err(failure) = target(setup(seed)).random(seed) {
        panic!("{failure}");
    }
}

/// A part of the search.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Try {
    /// [`FEW`] random lives, from this seed on.
    Seeds(u64),
    /// The lives of this aim.
    Aim(u64),
}

impl Try {
    /// Returns the first finding.
    pub(crate) fn find(self) -> Option<Finding> {
        match self {
            Self::Seeds(first) => (FIRST + first..FIRST + first + FEW).find_map(|seed| {
                let setup = setup(seed);
                observe(setup, || target(setup).random(seed))
            }),
            Self::Aim(number) => {
                let setup = Setup::aimed(number)?;
                let mut seeds = 1..=setup.aim_seeds();
                seeds.find_map(|seed| observe(setup, || setup.hit(&target(setup), seed)))
            }
        }
    }
}

/// Returns the finding of one case.
pub(crate) fn replay(setup: Setup, case: Case) -> Option<Finding> {
    observe(setup, || target(setup).replay(case))
}

/// Returns the violation that a run finds.
fn observe<T>(setup: Setup, run: impl FnOnce() -> Result<T, Failure>) -> Option<Finding> {
    let (case, violation) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(_)) => return None,
        Ok(Err(failure)) => (failure.case, failure.message),
        Err(_) => {
            let case = last_case().expect("the driver began a case");
            (case, "an assertion of the engine".to_owned())
        }
    };
    Some(Finding {
        setup,
        case,
        violation,
    })
}

/// Returns all tries, in order, or only the first one if not `thorough`. Random lives and aims
/// alternate, because an aim most often finds a mutation that a few dozen random lives miss.
fn tries(thorough: bool) -> Vec<Try> {
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

/// Effort for a mutation whose order is argued to be redundant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argued {
    /// The first try.
    Glance,
    /// Every try.
    Search,
}

/// Searches for each mutation that is not settled.
pub(crate) fn find(mutations: &[Mutation], argued: Argued) {
    // The first try of each mutation precedes the second try of any. So no thread has a long search
    // at the end, and the same try always finds a mutation first.
    let mut queue = Vec::new();
    for mutation in mutations.iter().filter(|mutation| !mutation.is_settled()) {
        let is_argued = argued::reason(&mutation.name).is_some();
        let numbered = match (is_argued, argued) {
            (true, Argued::Glance) => tries(false),
            _ => tries(true),
        };
        let numbered = numbered.into_iter().enumerate();
        queue.extend(numbered.map(|(nth, part)| (nth, part, mutation)));
    }
    queue.sort_by_key(|(nth, ..)| *nth);
    on_threads(queue.len(), |number| {
        let (nth, part, mutation) = queue[number];
        if !mutation.is_settled() {
            mutation.search(nth, part);
        }
    });
}

/// Runs `work` on each number below `count`, in order, on all threads.
pub(crate) fn on_threads(count: usize, work: impl Fn(usize) + Sync) {
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

/// Ends the process, with a line that names the mutation, unless it is dropped in time.
pub(crate) struct Watch {
    _end: mpsc::Sender<()>,
}

impl Watch {
    pub(crate) fn new(name: &str) -> Self {
        let (sender, receiver) = mpsc::channel();
        let name = name.to_owned();
        std::thread::spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                crate::announce(&format!("still running after {PATIENCE:?}: {name}"));
                std::process::exit(1);
            }
        });
        Self { _end: sender }
    }
}
