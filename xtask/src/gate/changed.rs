//! `--changed BASE`: the packages that the changes since a commit affect.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::bench::run_for_output;
use crate::checks::PROGRAM_USER;
use crate::metadata::Metadata;

/// The package that makes the program `forebay`.
pub(super) const PROGRAM: &str = "forebay";
/// Folders and files at the root that affect every build.
const EVERYTHING: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    ".cargo/",
    ".config/",
    "rust-toolchain",
    "rust-toolchain.toml",
];

/// The parts of the workspace that the gate has to check.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The packages to build and test; `None` for all.
    packages: Option<BTreeSet<String>>,
    /// Whether a change affects the fuzz targets.
    pub(crate) fuzz: bool,
    /// Whether a change affects the set of dependencies or the rules for it.
    pub(crate) deny: bool,
    /// Whether a change affects the tests in a guest.
    pub(crate) guests: bool,
}

impl Scope {
    /// Returns the scope of the whole gate. Fuzz targets and cargo-deny are in the nightly run.
    pub(crate) fn whole() -> Self {
        Self {
            packages: None,
            fuzz: false,
            deny: false,
            guests: true,
        }
    }

    /// Returns the scope of the changes since `base`: commits, the working tree, untracked files.
    ///
    /// # Errors
    /// Returns an error if git does not know `base`, or a manifest is unreadable.
    pub(crate) fn since(base: &str, root: &Path, workspace: &Metadata) -> Result<Self, String> {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.current_dir(root).args(arguments);
            run_for_output(command)
        };
        git(&[
            "rev-parse",
            "--verify",
            "--quiet",
            &format!("{base}^{{commit}}"),
        ])
        .map_err(|_| {
            format!("git finds no commit {base:?}\nhelp: name a commit or a branch, such as main")
        })?;
        let changed = git(&["diff", "--name-only", "--no-renames", "-z", base, "--"])?;
        let untracked = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
        let paths = changed.split('\0').chain(untracked.split('\0'));
        let paths: Vec<_> = paths.filter(|path| !path.is_empty()).collect();
        let fuzz = Metadata::of(&root.join("fuzz/Cargo.toml"))?;
        Ok(Self::of_changes(&paths, workspace, &fuzz))
    }

    fn of_changes(paths: &[&str], workspace: &Metadata, fuzz: &Metadata) -> Self {
        let any = |test: &dyn Fn(&str) -> bool| paths.iter().any(|path| test(path));
        let whole = any(&|path| {
            let mut everything = EVERYTHING.iter();
            everything.any(|part| path == *part || (part.ends_with('/') && path.starts_with(part)))
        });
        let affected = closure(workspace, &changed(paths, workspace));
        let mut targets = fuzz
            .packages
            .iter()
            .flat_map(|package| &package.dependencies);
        Self {
            fuzz: whole
                || any(&|path| path.starts_with("fuzz/"))
                || targets.any(|used| affected.contains(&used.name)),
            deny: any(&|path| ["Cargo.lock", "Cargo.toml", "deny.toml"].contains(&file_name(path))),
            guests: whole
                || affected.contains(PROGRAM)
                || any(&|path| path.starts_with("tests/guest/")),
            packages: (!whole).then_some(affected),
        }
    }

    /// Returns whether the package is in scope.
    pub(crate) fn includes(&self, package: &str) -> bool {
        let packages = self.packages.as_ref();
        packages.is_none_or(|packages| packages.contains(package))
    }

    /// Returns whether no package is in scope.
    pub(crate) fn is_empty(&self) -> bool {
        self.packages.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// Returns the packages to name on a command line. Empty if the whole workspace is in scope.
    pub(crate) fn packages(&self) -> Vec<String> {
        self.packages.iter().flatten().cloned().collect()
    }

    /// Returns whether a step starts the program.
    pub(crate) fn needs_program(&self) -> bool {
        self.guests || self.includes(PROGRAM_USER)
    }
}

/// Returns the packages that own one of the paths. Documents affect no build.
fn changed<'a>(paths: &[&str], workspace: &'a Metadata) -> Vec<&'a str> {
    let document = |path: &&&str| path.ends_with(".md") || **path == crate::inventory::PATH;
    let sources = paths.iter().filter(|path| !document(path));
    let owners = sources.filter_map(|path| workspace.owner(path));
    owners.map(|package| package.name.as_str()).collect()
}

/// Returns `packages` and all that depend on one of them, directly or through others.
fn closure(workspace: &Metadata, packages: &[&str]) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = packages.iter().map(|name| (*name).to_owned()).collect();
    loop {
        let before = found.len();
        for package in &workspace.packages {
            let mut dependencies = package.dependencies.iter();
            // Tests of this package start the program. No manifest shows that.
            let starts_program = package.name == PROGRAM_USER && found.contains(PROGRAM);
            if starts_program || dependencies.any(|used| found.contains(&used.name)) {
                found.insert(package.name.clone());
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::planted;

    fn scope(paths: &[&str]) -> Scope {
        let workspace = planted(&[
            ("block", "base/block", &[]),
            (
                "cache",
                "block-cache/cache",
                &[("block", None), ("serde", None)],
            ),
            ("kit", "testkit", &[("block", None)]),
            ("policy", "block-cache/policy", &[("kit", Some("dev"))]),
            ("trace", "planner/trace", &[("policy", Some("build"))]),
            (PROGRAM, "block-cache/daemon", &[("cache", None)]),
            (PROGRAM_USER, "tests", &[]),
            ("xtask", "xtask", &[]),
        ]);
        let fuzz = planted(&[("fuzz", "fuzz", &[("cache", None)])]);
        Scope::of_changes(paths, &workspace, &fuzz)
    }

    fn affected(paths: &[&str]) -> Vec<String> {
        let scope = scope(paths);
        assert!(scope.packages.is_some());
        scope.packages()
    }

    #[test]
    fn a_change_affects_all_that_depend_on_its_package() {
        assert_eq!(affected(&["xtask/src/main.rs"]), ["xtask"]);
        assert_eq!(affected(&["planner/trace/src/lib.rs"]), ["trace"]);
        let through_others = affected(&["base/block/src/lib.rs"]);
        let all = [
            "block",
            "cache",
            PROGRAM,
            PROGRAM_USER,
            "kit",
            "policy",
            "trace",
        ];
        assert_eq!(through_others, all);
    }

    #[test]
    fn development_and_build_dependencies_count() {
        assert_eq!(
            affected(&["testkit/src/lib.rs"]),
            ["kit", "policy", "trace"]
        );
    }

    #[test]
    fn the_program_affects_the_tests_that_start_it_and_the_guests() {
        let scope = scope(&["block-cache/daemon/src/main.rs"]);
        assert_eq!(scope.packages(), [PROGRAM, PROGRAM_USER]);
        assert!(scope.guests && scope.needs_program() && !scope.fuzz);
    }

    #[test]
    fn a_change_of_the_build_affects_everything() {
        for path in [
            "Cargo.toml",
            "Cargo.lock",
            ".cargo/config.toml",
            ".config/nextest.toml",
        ] {
            let scope = scope(&[path]);
            assert_eq!(scope.packages, None, "{path}");
            assert!(scope.includes("xtask") && !scope.is_empty() && scope.fuzz);
        }
        assert!(scope(&["crates/.cargo/config.toml"]).packages.is_some());
    }

    #[test]
    fn documents_affect_no_package() {
        let scope = scope(&["README.md", "base/block/README.md", "tests/inventory.txt"]);
        assert!(scope.is_empty() && !scope.needs_program());
        assert!(!(scope.fuzz || scope.deny || scope.guests));
    }

    #[test]
    fn fuzz_targets_follow_their_dependencies() {
        assert!(scope(&["base/block/src/lib.rs"]).fuzz);
        assert!(scope(&["fuzz/Cargo.lock"]).fuzz);
        assert!(!scope(&["testkit/src/lib.rs"]).fuzz);
    }

    #[test]
    fn dependencies_are_checked_when_a_manifest_changes() {
        assert!(scope(&["planner/trace/Cargo.toml"]).deny);
        assert!(scope(&["deny.toml"]).deny);
        assert!(!scope(&["planner/trace/src/lib.rs"]).deny);
    }
}
