//! The fuzz targets are not members of the workspace. Their lock file names the dependencies of the
//! workspace's crates, so a change of those makes it stale.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};
use crate::metadata::{Metadata, Package};

const RULE: &str = "fuzz";
const LOCK: &str = "fuzz/Cargo.lock";

pub(super) fn check(metadata: &Metadata, sources: &[Source]) -> Vec<Finding> {
    let Some(lock) = sources.iter().find(|source| source.path == LOCK) else {
        return Vec::new();
    };
    let stale = lock.text.split("[[package]]").skip(1).filter_map(|entry| {
        let name = quoted(entry.lines().find(|line| line.starts_with("name = "))?)?;
        let package = (metadata.packages.iter()).find(|package| package.name == name)?;
        let (listed, needed) = (listed(entry), needed(package));
        let is_known = |name: &&str| needed.contains_key(name);
        let is_listed = |(name, optional): (&&str, &bool)| *optional || listed.contains(name);
        let fresh = listed.iter().all(is_known) && needed.iter().all(is_listed);
        (!fresh).then_some(name)
    });
    let names: Vec<&str> = stale.collect();
    if names.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "the dependencies of {} have changed: run `cargo update --workspace` in fuzz",
        names.join(", ")
    );
    vec![Finding::new(RULE, LOCK, message)]
}

/// Returns the names of the dependencies that a package needs outside of its tests, and whether
/// each is optional.
fn needed(package: &Package) -> BTreeMap<&str, bool> {
    let dependencies = package.dependencies.iter();
    dependencies
        .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
        .map(|dependency| (dependency.name.as_str(), dependency.optional))
        .collect()
}

/// Returns the names of the dependencies that an entry lists. A version may follow a name.
fn listed(entry: &str) -> BTreeSet<&str> {
    let list = entry
        .split_once("dependencies = [")
        .map_or("", |(_, list)| {
            list.split_once(']').map_or(list, |(list, _)| list)
        });
    let names = list.lines().filter_map(quoted);
    names
        .filter_map(|text| text.split_whitespace().next())
        .collect()
}

/// Returns the first text in quotation marks.
fn quoted(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::planted;

    const LOCKED: &str = "[[package]]\nname = \"libc\"\n\n[[package]]\nname = \"one\"\n\
                          dependencies = [\n \"libc 0.2\",\n \"two\",\n]\n";

    fn found(dependencies: &[(&str, Option<&str>)]) -> usize {
        let lock = Source {
            path: LOCK.into(),
            text: LOCKED.into(),
        };
        check(&planted(&[("one", "base/one", dependencies)]), &[lock]).len()
    }

    #[test]
    fn a_lock_with_the_dependencies_of_each_crate_passes() {
        assert_eq!(found(&[("libc", None), ("two", Some("build"))]), 0);
        assert_eq!(
            found(&[("libc", None), ("two", None), ("kit", Some("dev"))]),
            0
        );
    }

    #[test]
    fn an_optional_dependency_may_be_listed_or_not() {
        let optional = Some("optional");
        assert_eq!(found(&[("libc", None), ("two", optional)]), 0);
        assert_eq!(
            found(&[("libc", None), ("two", None), ("three", optional)]),
            0
        );
    }

    #[test]
    fn a_dependency_that_was_added_or_removed_is_found() {
        assert_eq!(found(&[("libc", None)]), 1);
        assert_eq!(found(&[("libc", None), ("two", None), ("three", None)]), 1);
    }
}
