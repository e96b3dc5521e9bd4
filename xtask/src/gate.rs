//! `cargo xtask gate`: every check that a change must pass, in at most 25 minutes on two cores.

mod changed;
mod rotation;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::checks::{self, Outcome, cargo_command};
use crate::interop;
use crate::inventory::{self, Inventory, Tier};
use crate::metadata::Metadata;
use crate::nextest::{Nextest, Selection};
use crate::steps::{Steps, Verdict, run_command};
use crate::tidy;
use changed::Scope;

/// The time that the gate may take from a clean clone on two cores, minutes.
const BUDGET_MINUTES: u64 = 25;
/// The package whose benchmark counts the instructions of the engine.
const BENCHES: &str = "forebay-benches";

/// Options of `cargo xtask gate`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Check only the packages that changed since this commit, and those that depend on them
    #[arg(long, value_name = "BASE")]
    changed: Option<String>,
}

/// Runs the gate. Fails when a step fails.
pub(crate) fn run(root: &Path, options: &Options) -> ExitCode {
    match Gate::new(root, options) {
        Ok(gate) if gate.run() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The state that the steps share.
struct Gate<'a> {
    root: &'a Path,
    scope: Scope,
    nextest: Nextest,
    rotation: String,
}

impl<'a> Gate<'a> {
    fn new(root: &'a Path, options: &Options) -> Result<Self, String> {
        let metadata = Metadata::of(&root.join("Cargo.toml"))?;
        let nextest = Nextest::find(root, &metadata.target_directory)?;
        let scope = match &options.changed {
            None => Scope::whole(),
            Some(base) => Scope::since(base, root, &metadata)?,
        };
        let (rotation, origin) = rotation::rotation(root)?;
        println!("rotation: {}={rotation} ({origin})", rotation::VARIABLE);
        if options.changed.is_some() {
            let packages = scope.packages();
            let packages = match (scope.is_empty(), packages.is_empty()) {
                (true, _) => "none".into(),
                (false, true) => "all".into(),
                (false, false) => packages.join(" "),
            };
            println!("affected packages: {packages}");
        }
        Ok(Self {
            root,
            scope,
            nextest,
            rotation,
        })
    }

    /// Runs all steps. Returns whether none failed.
    fn run(&self) -> bool {
        let mut steps = Steps::new();
        self.check_sources(&mut steps);
        // Without tests that compile, the steps after them would fail for the same reason.
        if self.scope.is_empty() || self.build(&mut steps) {
            self.check_builds(&mut steps);
        }
        let passed = steps.conclude();
        let minutes = steps.elapsed().as_secs() / 60;
        if minutes >= BUDGET_MINUTES {
            println!("WARNING: the gate took {minutes} minutes; its budget is {BUDGET_MINUTES}");
        }
        passed
    }

    /// Runs the checks that need no build of the workspace.
    fn check_sources(&self, steps: &mut Steps) {
        let root = self.root;
        let proves = "layers, file lengths, links, the inventory by name";
        steps.run("tidy", proves, || Ok(tidy::run(root).into()));
        steps.run("fmt", "the layout of the sources", || {
            run_command(&mut cargo_command(root, &["fmt", "--all", "--check"]))
        });
        let proves = "the shell scripts have no known fault";
        steps.run("shellcheck", proves, || checks::shellcheck(root));
        if self.scope.deny {
            let proves = "licences and advisories of the dependencies";
            steps.run("deny", proves, || checks::deny(root));
        }
        if self.scope.fuzz {
            steps.run("fuzz", "the fuzz targets compile", || checks::fuzz(root));
        }
    }

    /// Checks and builds the packages in scope. Returns whether the tests compile.
    fn build(&self, steps: &mut Steps) -> bool {
        let packages = self.scope.packages();
        let proves = "the compiler's and clippy's lints";
        steps.run("clippy", proves, || self.clippy(&packages));
        if !steps.run("build", "every test compiles", || {
            run_command(&mut self.nextest.build(&packages))
        }) {
            return false;
        }
        let proves = "no test was dropped without notice";
        steps.run("inventory", proves, || self.inventory(&packages));
        true
    }

    /// Runs the tests, the benchmark and the guests in scope.
    fn check_builds(&self, steps: &mut Steps) {
        let (root, scope) = (self.root, &self.scope);
        if !scope.is_empty() {
            let mut replays = Vec::new();
            let proves = "unit, crash, model, kill and client tests";
            steps.run("tests", proves, || {
                let tested = self.tests(&scope.packages())?;
                replays = tested.replays;
                Ok(tested.verdict)
            });
            steps.add_replays(replays);
        }
        if scope.includes(BENCHES) {
            let proves = "the instructions of a hit are within bounds";
            steps.run("engine", proves, || checks::engine(root));
        }
        if scope.guests {
            steps.run("guests", "a real kernel's clients, short form", || {
                checks::guests(root, true, &self.program()?)
            });
        }
    }

    /// Returns the program that the tests and the guests start. It has overflow checks and debug
    /// assertions.
    fn program(&self) -> Result<PathBuf, String> {
        // The build of its package's tests produced it.
        let built = self.nextest.target().join("debug/forebay");
        match self.scope.includes(changed::PROGRAM) && built.is_file() {
            true => Ok(built),
            false => interop::program(self.root),
        }
    }

    fn clippy(&self, packages: &[String]) -> Outcome {
        let mut command = cargo_command(self.root, &["clippy", "--all-targets", "--locked"]);
        if packages.is_empty() {
            command.arg("--workspace");
        }
        for package in packages {
            command.args(["--package", package]);
        }
        run_command(command.args(["--", "-D", "warnings"]))
    }

    fn inventory(&self, packages: &[String]) -> Outcome {
        let listed = self.nextest.list(packages)?;
        let inventory = Inventory::read(self.root)?;
        let selected = |package: &str| self.scope.includes(package);
        Ok(Verdict::of(inventory::compare(
            &inventory, &listed, selected,
        )))
    }

    fn tests(&self, packages: &[String]) -> Result<checks::Tested, String> {
        let nightly = Inventory::read(self.root)?.filter(Tier::Nightly);
        let mut variables = vec![(rotation::VARIABLE, self.rotation.clone())];
        if self.scope.needs_program() {
            let program = self.program()?;
            variables.push(("FOREBAY_BIN", program.display().to_string()));
        }
        checks::tests(
            &self.nextest,
            &Selection {
                profile: "gate",
                packages,
                filter: nightly.map(|nightly| format!("not ({nightly})")),
                variables,
            },
        )
    }
}
