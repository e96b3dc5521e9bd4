//! `cargo xtask nightly`: the checks that are too long for the gate, one part after the other.
//!
//! Each part appends a row to docs/results/nightly.md.

mod lives;
mod log;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::bench::run_for_output;
use crate::checks::{self, Outcome, Tested, cargo_command};
use crate::claims::machine;
use crate::interop;
use crate::inventory::{Inventory, Tier};
use crate::metadata::Metadata;
use crate::nextest::{Nextest, Selection};
use crate::soak;
use crate::steps::{Steps, Verdict, run_command};
use crate::study;
use lives::{Lives, grouped, seeds_of};
use log::{Log, Row};

/// The seeds that one run takes.
const SEEDS: u64 = 50_000;
/// The family of lives that takes every seed of a batch.
const FAMILY: &str = "random lives";
/// The seeds of one batch. The counter in the log advances after each.
const BATCH: u64 = 5_000;
/// The tests that search for mutations that no other test finds.
const SEARCHES: &str = "binary_id(=forebay-tests::mutation) | (test(/found|missing/) & \
    binary_id(/^(forebay-tests::(crash|tree)|forebay-transit|forebay-pagecache)$/))";

/// Options of `cargo xtask nightly`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Start no part, and no batch of seeds, after this many hours
    #[arg(long, value_name = "N", value_parser = duration)]
    hours: Option<Duration>,
    /// Run only this part. May be repeated
    #[arg(long, value_name = "NAME")]
    part: Vec<Part>,
}

fn duration(hours: &str) -> Result<Duration, String> {
    let hours: f64 = hours
        .parse()
        .map_err(|_| "expected a number of hours".to_owned())?;
    Duration::try_from_secs_f64(hours * 3600.0).map_err(|error| error.to_string())
}

/// The parts, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Every test, with all rotations
    Tests,
    /// Random lives with new seeds
    Seeds,
    /// Every mutation of the engine, with the tests that find it
    Mutation,
    /// The fuzz targets compile
    Fuzz,
    /// cargo-deny
    Deny,
    /// The documentation builds, and its examples run
    Docs,
    /// The exports with the clients of a guest's kernel
    Guests,
    /// Power cuts, kills, memory pressure, the kernel's NBD client
    Soak,
    /// The instructions of a cache hit
    Engine,
    /// Deterministic figures of the studies, by another run
    Studies,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Tests => "tests",
            Self::Seeds => "seeds",
            Self::Mutation => "mutation",
            Self::Fuzz => "fuzz",
            Self::Deny => "deny",
            Self::Docs => "docs",
            Self::Guests => "guests",
            Self::Soak => "soak",
            Self::Engine => "engine",
            Self::Studies => "studies",
        }
    }

    fn proves(self) -> &'static str {
        match self {
            Self::Tests => "every test passes in every rotation",
            Self::Seeds => "random lives with crashes lose no acknowledged write",
            Self::Mutation => "a life notices each missing flush, lock or wait",
            Self::Fuzz => "the fuzz targets compile",
            Self::Deny => "licences and advisories of the dependencies",
            Self::Docs => "the documentation builds and its examples run",
            Self::Guests => "a real kernel's clients work with every export",
            Self::Soak => "power cuts, kills and memory pressure lose nothing",
            Self::Engine => "the instructions of a hit are within bounds",
            Self::Studies => "pages of studies match another run of their deterministic cells",
        }
    }
}

/// Runs the parts. Fails if one fails.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    match try_run(root, options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nightly: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, options: &Options) -> Result<bool, String> {
    let metadata = Metadata::of(&root.join("Cargo.toml"))?;
    let night = Night {
        root,
        nextest: Nextest::find(root, &metadata.target_directory)?,
        log: Log::new(root),
        deadline: options.hours.map(|hours| Instant::now() + hours),
    };
    let (commit, machine) = (commit(root), machine());
    let log = |part: Part, counted: &str, took: Duration, result: &str| {
        night.log.append(&Row {
            date: &today()?,
            commit: &commit,
            machine: &machine,
            part: part.name(),
            counted,
            seconds: took.as_secs(),
            result,
        })
    };
    let mut steps = Steps::new();
    for part in Part::value_variants().iter().copied() {
        if !options.part.is_empty() && !options.part.contains(&part) {
            continue;
        }
        if night.is_over() {
            println!("\nNOT STARTED {}: --hours is over", part.name());
            log(part, "", Duration::ZERO, "NOT STARTED: --hours was over")?;
            continue;
        }
        let mut counted = Counted::default();
        steps.run(part.name(), part.proves(), || {
            night.part(part, &mut counted)
        });
        steps.add_replays(counted.replays);
        let Some((took, verdict)) = steps.latest() else {
            continue;
        };
        let result = match verdict {
            Verdict::Skipped(reason) => format!("SKIPPED: {reason}"),
            other => other.word().to_owned(),
        };
        log(part, &counted.text, took, &result)?;
    }
    Ok(steps.conclude())
}

/// The state that the parts share.
struct Night<'a> {
    root: &'a Path,
    nextest: Nextest,
    log: Log,
    /// The time after which nothing starts.
    deadline: Option<Instant>,
}

/// The work that a part did.
#[derive(Default)]
struct Counted {
    /// Text for the log, such as `50,000 seeds`.
    text: String,
    /// Command lines that replay failed tests.
    replays: Vec<String>,
}

impl Night<'_> {
    fn is_over(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn part(&self, part: Part, counted: &mut Counted) -> Outcome {
        let root = self.root;
        match part {
            Part::Tests => {
                let program = interop::program(root)?;
                let variables = [
                    ("FOREBAY_ROTATION", "all".into()),
                    ("FOREBAY_BIN", program.display().to_string()),
                ];
                self.tests(None, &variables, counted)
            }
            Part::Seeds => self.seeds(counted),
            Part::Mutation => {
                let variables = [
                    ("FOREBAY_ROTATION", "all".into()),
                    ("FOREBAY_FINDINGS", "search".into()),
                ];
                self.tests(Some(SEARCHES.into()), &variables, counted)
            }
            Part::Fuzz => checks::fuzz(root),
            Part::Deny => checks::deny(root),
            Part::Docs => docs(root),
            Part::Guests => guests(root),
            Part::Soak => soaks(root, counted),
            Part::Engine => checks::engine(root),
            Part::Studies => {
                let checked = study::check(root)?;
                counted.text = checked.counted;
                Ok(checked.verdict)
            }
        }
    }

    /// Runs the tests that `filter` selects, and counts their rows.
    fn tests(
        &self,
        filter: Option<String>,
        variables: &[(&'static str, String)],
        counted: &mut Counted,
    ) -> Outcome {
        let tested = self.run_tests(filter, variables)?;
        let lives = Lives::of(&tested.cases)?;
        counted.text = format!("{} tests", grouped(tested.cases.len() as u64));
        if lives.lives > 0 {
            counted.text += &format!("; {lives}");
        }
        counted.replays = tested.replays;
        Ok(tested.verdict)
    }

    fn run_tests(
        &self,
        filter: Option<String>,
        variables: &[(&'static str, String)],
    ) -> Result<Tested, String> {
        let mut variables = variables.to_vec();
        variables.push(("FOREBAY_ROWS", "1".into()));
        let selection = Selection {
            profile: "nightly",
            packages: &[],
            filter,
            variables,
        };
        checks::tests(&self.nextest, &selection)
    }

    /// Runs batches of new seeds until there are enough or the time is over. A batch that fails
    /// does not end the part: one run reports all failures.
    fn seeds(&self, counted: &mut Counted) -> Outcome {
        let filter = Inventory::read(self.root)?.filter(Tier::Seeds);
        let filter = filter.ok_or("the inventory has no test of tier seeds")?;
        let first = self.log.next_seed()?;
        let (mut next, mut sum, mut verdict) = (first, Lives::default(), Verdict::Passed);
        while next < first + SEEDS && !self.is_over() {
            let variables = [
                ("FOREBAY_SEED", next.to_string()),
                ("FOREBAY_SEEDS", BATCH.to_string()),
            ];
            println!("seeds {next} to {}", next + BATCH - 1);
            let tested = self.run_tests(Some(filter.clone()), &variables)?;
            next += BATCH;
            self.log.set_next_seed(next)?;
            sum.add(&Lives::of(&tested.cases)?);
            counted.replays.extend(tested.replays);
            let lived = seeds_of(FAMILY, &tested.cases)?;
            if tested.verdict != Verdict::Passed {
                verdict = tested.verdict;
            } else if lived != BATCH {
                return Err(format!("{lived} of {BATCH} seeds were lived: {FAMILY}"));
            }
            let seeds = grouped(next - first);
            counted.text = format!("{seeds} seeds from {}; {sum}", grouped(first));
        }
        Ok(verdict)
    }
}

/// Builds the documentation without warnings, and runs its examples.
///
/// It is for developers: the page of a crate links to its private modules.
fn docs(root: &Path) -> Outcome {
    let mut build = cargo_command(root, &["doc", "--workspace", "--no-deps", "--locked"]);
    build.args(["--document-private-items", "--keep-going"]);
    let flags = "-D warnings -A rustdoc::private-intra-doc-links";
    let built = run_command(build.env("RUSTDOCFLAGS", flags))?;
    let mut test = cargo_command(root, &["test", "--doc", "--workspace", "--locked"]);
    let tested = run_command(&mut test)?;
    Ok(Verdict::of(
        built == Verdict::Passed && tested == Verdict::Passed,
    ))
}

/// Runs the tests in a guest, and the exchange of block translation tables with its kernel.
fn guests(root: &Path) -> Outcome {
    let exports = checks::guests(root, false, &interop::program(root)?)?;
    if matches!(exports, Verdict::Skipped(_)) {
        return Ok(exports);
    }
    let mut script = Command::new(root.join("tests/guest/btt.sh"));
    let tables = run_command(&mut script)?;
    Ok(Verdict::of(
        exports == Verdict::Passed && tables == Verdict::Passed,
    ))
}

/// Runs the soaks. Those that need a guest are skipped where its packages are missing.
fn soaks(root: &Path, counted: &mut Counted) -> Outcome {
    let guest = interop::has_packages(root);
    let (mut holds, mut ran, mut texts) = (true, false, Vec::new());
    for (name, soak) in soak::nightly() {
        if !guest && soak.needs_guest() {
            println!(
                "SKIPPED soak {name}: packages of the guest are missing (tests/guest/setup.sh)"
            );
            texts.push(format!("{name} skipped"));
            continue;
        }
        match soak::attempt(root, &soak) {
            Ok(Some(report)) => {
                ran = true;
                let held = report.claims.iter().filter(|claim| claim.holds).count();
                texts.push(format!("{name} {held} of {}", report.claims.len()));
                holds &= report.holds();
            }
            Ok(None) => texts.push(format!("{name} skipped")),
            Err(error) => {
                eprintln!("soak {name}: {error}");
                texts.push(format!("{name} failed"));
                (ran, holds) = (true, false);
            }
        }
    }
    counted.text = format!("claims that hold: {}", texts.join(", "));
    match ran {
        true => Ok(Verdict::of(holds)),
        false => Ok(Verdict::Skipped("no soak can run here".into())),
    }
}

/// Returns the short commit id, with `+` if any file except the log differs from the commit.
fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(root).args(arguments);
        run_for_output(command)
    };
    let Ok(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".into();
    };
    let others = format!(":(exclude){}", log::PATH);
    match git(&["status", "--porcelain", "--", ".", &others]) {
        Ok(changes) if changes.is_empty() => commit,
        _ => commit + "+",
    }
}

/// Returns the date in UTC, as `2026-11-30`.
fn today() -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%d"]);
    run_for_output(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_may_have_a_fraction() {
        assert_eq!(duration("1.5"), Ok(Duration::from_secs(5400)));
        for bad in ["", "-1", "NaN", "soon"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
