//! The packages of a workspace, as `cargo metadata --no-deps` prints them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The fields of `cargo metadata --no-deps` that the commands use.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// The members of the workspace.
    pub(crate) packages: Vec<Package>,
    /// The folder of the build results.
    pub(crate) target_directory: PathBuf,
    workspace_root: String,
}

/// One member of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// All direct dependencies: normal, development and build.
    pub(crate) dependencies: Vec<Dependency>,
    manifest_path: String,
}

/// A direct dependency of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// The name of the dependency.
    pub(crate) name: String,
    /// `None` for a normal dependency, otherwise `"dev"` or `"build"`.
    pub(crate) kind: Option<String>,
    /// Whether only a feature needs it.
    pub(crate) optional: bool,
}

impl Metadata {
    /// Returns the packages of the workspace whose manifest is `manifest`.
    ///
    /// # Errors
    /// Returns an error if cargo cannot run, rejects the manifest, or prints something unreadable.
    pub(crate) fn of(manifest: &Path) -> Result<Self, String> {
        let output = Command::new(cargo())
            .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
            .arg("--manifest-path")
            .arg(manifest)
            .output()
            .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("cargo metadata failed: {reason}"));
        }
        Self::parse(&output.stdout)
    }

    /// Parses the output of `cargo metadata`.
    ///
    /// # Errors
    /// Returns an error if a required field is missing.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json)
            .map_err(|error| format!("cannot parse the output of cargo metadata: {error}"))
    }

    /// Returns the folder of `package`, relative to the workspace root.
    pub(crate) fn folder<'a>(&self, package: &'a Package) -> &'a str {
        package
            .manifest_path
            .strip_prefix(&self.workspace_root)
            .unwrap_or(&package.manifest_path)
            .trim_start_matches('/')
            .trim_end_matches("Cargo.toml")
            .trim_end_matches('/')
    }

    /// Returns the package that owns `path`, which is relative to the workspace root.
    pub(crate) fn owner(&self, path: &str) -> Option<&Package> {
        let owns = |package: &&Package| {
            let rest = path.strip_prefix(self.folder(package));
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let owners = self.packages.iter().filter(owns);
        owners.max_by_key(|package| self.folder(package).len())
    }
}

/// The cargo that runs this program, or the one on `PATH`.
pub(crate) fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A package for the tests of other modules: its name, its folder, and its dependencies by name
/// and kind. `"optional"` as the kind marks a normal one that only a feature needs.
#[cfg(test)]
type Planted<'a> = (&'a str, &'a str, &'a [(&'a str, Option<&'a str>)]);

/// Returns a workspace of these packages.
#[cfg(test)]
pub(crate) fn planted(packages: &[Planted<'_>]) -> Metadata {
    let package = |(name, folder, dependencies): &Planted<'_>| Package {
        name: (*name).into(),
        manifest_path: format!("/top/{folder}/Cargo.toml"),
        dependencies: (dependencies.iter())
            .map(|(name, kind)| Dependency {
                name: (*name).into(),
                kind: kind.filter(|kind| *kind != "optional").map(String::from),
                optional: *kind == Some("optional"),
            })
            .collect(),
    };
    Metadata {
        packages: packages.iter().map(package).collect(),
        target_directory: "/top/target".into(),
        workspace_root: "/top".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fields_are_an_error() {
        assert!(Metadata::parse(b"{}").is_err());
    }

    #[test]
    fn the_owner_of_a_path_is_the_package_of_the_innermost_folder() {
        let metadata = planted(&[("tests", "tests", &[]), ("inner", "tests/inner", &[])]);
        let owner = |path| metadata.owner(path).map(|package| package.name.as_str());
        assert_eq!(owner("tests/crash/main.rs"), Some("tests"));
        assert_eq!(owner("tests/inner/lib.rs"), Some("inner"));
        assert_eq!(owner("testsuite/lib.rs"), None);
        assert_eq!(owner("README.md"), None);
    }
}
