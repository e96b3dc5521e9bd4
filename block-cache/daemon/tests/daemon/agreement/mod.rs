//! `check CONFIG` and `serve CONFIG` agree: both refuse a configuration with the same message.
//!
//! A case is a base and one or two faults in it, chosen by a seed. A base is a configuration with
//! its media, in a certain state. `check` runs first, then `serve`. The gate takes new cases with
//! every commit; the nightly run takes more than 500.

mod base;
mod faults;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_testkit::daemon::unwrapped;
use forebay_testkit::rotation::Lives;

use base::{Base, Place};
use faults::Fault;

/// Each fault is the first one in an equal share of the cases. The second one is random.
const LIVES: Lives = Lives {
    pinned: &[],
    gate: 90,
    whole: 630,
    share: 1,
};

/// Number of cases that run at a time.
const WORKERS: usize = 2;

/// Outcome of one of the two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No fault: `serve` serves.
    Good,
    /// Exit status 1, with this message.
    Refused(String),
    /// Exit status 3 of `check`: damage, with its whole output.
    Damaged(String),
}

/// A case that follows from its seed.
struct Case {
    seed: u64,
    base: Base,
    faults: Vec<&'static Fault>,
}

/// Generator of pseudorandom numbers (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let all = faults::all();
        let first = all[(seed % all.len() as u64) as usize];
        let bases: Vec<_> = Base::ALL
            .into_iter()
            .filter(|base| (first.on)(*base))
            .collect();
        let base = bases[draw.below(bases.len())];
        let mut faults = vec![first];
        if draw.below(2) == 1 {
            let others = all
                .into_iter()
                .filter(|fault| (fault.on)(base) && fault.fits(first));
            let others: Vec<_> = others.collect();
            faults.push(others[draw.below(others.len())]);
        }
        Self { seed, base, faults }
    }

    fn named(&self) -> String {
        let names: Vec<_> = self.faults.iter().map(|fault| fault.name).collect();
        format!("{:?} with {}", self.base, names.join(" and "))
    }
}

/// Returns the message of an error without the name of the program. Paths are relative to the
/// place, and each remedy is one line.
fn message(text: &str, place: &Place) -> String {
    let begin = text
        .rfind("forebay: ")
        .map_or(0, |at| at + "forebay: ".len());
    place.relative(unwrapped(&text[begin..]).trim_end())
}

/// Returns the first lines of the findings in a report of damage, without their kind.
fn findings(report: &str) -> impl Iterator<Item = &str> {
    let marks = ["PROBLEM: ", "DAMAGE: "];
    (report.lines()).filter_map(move |line| marks.iter().find_map(|mark| line.strip_prefix(mark)))
}

/// Compares the outcomes of the two commands. `log` is the log of `serve`.
///
/// # Errors
/// The reason why they disagree.
fn compare(faults: &[&Fault], check: &Outcome, serve: &Outcome, log: &str) -> Result<(), String> {
    let says = |said: &str| {
        let said_by = |fault: &&Fault| fault.says.iter().any(|part| said.contains(part));
        faults.iter().any(said_by)
    };
    let alone = faults.len() == 1;
    match (check, serve) {
        (Outcome::Good, Outcome::Good) => Ok(()),
        (Outcome::Refused(check), Outcome::Refused(serve)) => match () {
            () if check == serve && alone && !says(check) => {
                Err("the fault does not list the message that it causes".into())
            }
            () if check == serve => Ok(()),
            // The two commands may meet different faults first. Each must be reported.
            () if !alone && says(check) && says(serve) => Ok(()),
            () => Err("they say different things".into()),
        },
        // The report of `check` has damage that prevents a start, in the words of the start.
        (Outcome::Damaged(check), Outcome::Refused(serve)) => match check.contains(serve) {
            true => Ok(()),
            false if !alone && says(check) && says(serve) => Ok(()),
            false => Err("the start says something different of the damage".into()),
        },
        (Outcome::Damaged(check), Outcome::Good) => {
            let unsaid = findings(check).find(|finding| !log.contains(finding));
            match (faults.iter().any(|fault| fault.served.is_some()), unsaid) {
                (true, None) => Ok(()),
                (true, Some(finding)) => Err(format!("the start does not log: {finding}")),
                (false, _) => Err("damage that prevents no start is no exception".into()),
            }
        }
        (Outcome::Good, Outcome::Refused(_)) => Err("check misses it".into()),
        (Outcome::Refused(_), Outcome::Good) => Err("serve does not mind".into()),
        (_, Outcome::Damaged(_)) => Err("serve has no such status".into()),
    }
}

/// Runs `work` for each seed on a few threads. A panic does not prevent the other seeds.
/// `name` returns the case of a seed, for the report of a panic.
fn for_each(seeds: &[u64], name: impl Fn(u64) -> String + Sync, work: impl Fn(u64) + Sync) {
    let panics = AtomicUsize::new(0);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let worked = catch_unwind(AssertUnwindSafe(|| work(*seed)));
                    if worked.is_err() {
                        eprintln!("FOREBAY_SEED={seed}: {} panicked", name(*seed));
                        panics.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(panics.into_inner(), 0, "cases panicked");
}

#[test]
fn check_and_serve_agree() {
    let failures = Mutex::new(Vec::new());
    let (good, refused, damaged) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let seeds = LIVES.seeds();
    for_each(
        &seeds,
        |seed| Case::of(seed).named(),
        |seed| {
            let case = Case::of(seed);
            let place = Place::new(&format!("agree-{seed}"), case.base);
            let planted: Vec<_> = case
                .faults
                .iter()
                .map(|fault| fault.plant(&place))
                .collect();
            let check = place.check();
            let serve = place.serve();
            let log = place.relative(&place.log());
            drop(planted);
            let count = match check {
                Outcome::Good => &good,
                Outcome::Refused(_) => &refused,
                Outcome::Damaged(_) => &damaged,
            };
            count.fetch_add(1, Ordering::Relaxed);
            if let Err(why) = compare(&case.faults, &check, &serve, &log) {
                let name = case.named();
                failures.lock().expect("no panics").push(format!(
                    "FOREBAY_SEED={}: {name}: {why}\n  check: {check:?}\n  serve: {serve:?}",
                    case.seed
                ));
            }
        },
    );
    let failures = failures.into_inner().expect("no panics");
    let count = |number: AtomicUsize| number.into_inner();
    let (good, refused, damaged) = (count(good), count(refused), count(damaged));
    eprintln!(
        "{} cases: {good} good, {refused} refused, {damaged} damaged",
        seeds.len()
    );
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        seeds.len(),
        failures.join("\n")
    );
    assert!(
        seeds.len() < faults::all().len() || refused > good + damaged,
        "hardly anything is refused"
    );
}

/// Check that one command omits: this command runs before the fault exists.
#[test]
fn a_check_that_one_side_leaves_out_is_found() {
    let seeds: Vec<u64> = (0..faults::all().len() as u64).collect();
    let found = AtomicUsize::new(0);
    let fault_at = |index| faults::all()[index as usize];
    for_each(
        &seeds,
        |index| fault_at(index).name.into(),
        |index| {
            let fault = fault_at(index);
            // One fault of each part of the configuration and of the media.
            if !fault.sample {
                return;
            }
            let base = Base::ALL
                .into_iter()
                .find(|base| (fault.on)(*base))
                .expect("one");
            let place = Place::new(&format!("agree-left-out-{index}"), base);
            let check_without = place.check();
            assert_eq!(check_without, Outcome::Good, "{base:?}");
            let planted = fault.plant(&place);
            let (check, serve) = (place.check(), place.serve());
            let log = place.relative(&place.log());
            drop(planted);
            let compare = |check, serve, log| compare(&[fault], check, serve, log);
            assert_eq!(compare(&check, &serve, &log), Ok(()), "{}", fault.name);
            for (check, serve) in [(&check_without, &serve), (&check, &Outcome::Good)] {
                if (check, serve) == (&Outcome::Good, &Outcome::Good) {
                    // An exception, which only the log of `serve` shows.
                    continue;
                }
                let different = compare(check, serve, "");
                assert!(different.is_err(), "{}: {check:?}, {serve:?}", fault.name);
            }
            // One word of the first line differs.
            let worded = |outcome: &Outcome| match outcome {
                Outcome::Good => Outcome::Good,
                Outcome::Refused(said) => Outcome::Refused(planted_word(said)),
                Outcome::Damaged(said) => Outcome::Damaged(planted_word(said)),
            };
            let different = compare(&check, &worded(&serve), &planted_word(&log));
            assert!(different.is_err(), "{}: a word of {serve:?}", fault.name);
            found.fetch_add(1, Ordering::Relaxed);
        },
    );
    assert!(found.into_inner() >= 8, "few are tried");
}

/// Returns a message with another last word in each line.
fn planted_word(message: &str) -> String {
    let lines = message.lines().map(|line| {
        let (begin, _) = line.rsplit_once(' ').unwrap_or((line, ""));
        format!("{begin} else")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Cases in which `check` reports damage and `serve` starts all the same, each with its reason.
#[test]
fn exceptions_are_documented() {
    let text = include_str!("../../../../../docs/operate/starting.md");
    let exceptions = faults::all().into_iter().filter_map(|fault| fault.served);
    let exceptions: Vec<_> = exceptions.collect();
    assert!(!exceptions.is_empty());
    for reason in exceptions {
        assert!(
            text.contains(reason),
            "docs/operate/starting.md does not have: {reason}"
        );
    }
}
