//! Every crate takes the workspace's lints and has its place in ARCHITECTURE.md.

use super::{Finding, Source};
use crate::metadata::Metadata;

const RULE: &str = "crates";
const MAP: &str = "ARCHITECTURE.md";

pub(super) fn check(metadata: &Metadata, sources: &[Source]) -> Vec<Finding> {
    let text_of = |path: &str| {
        let source = sources.iter().find(|source| source.path == path);
        source.map(|source| source.text.as_str())
    };
    let map = text_of(MAP);
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let folder = metadata.folder(package);
        let manifest = format!("{folder}/Cargo.toml");
        if !text_of(&manifest).is_some_and(takes_workspace_lints) {
            let message = "add [lints] with workspace = true";
            findings.push(Finding::new(RULE, manifest, message));
        }
        if map.is_some_and(|map| !mentions(map, folder)) {
            let message = format!("says nothing about {folder} ({})", package.name);
            findings.push(Finding::new(RULE, MAP, message));
        }
    }
    findings
}

fn takes_workspace_lints(manifest: &str) -> bool {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[lints]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.replace(' ', "") == "workspace=true")
}

/// Whether the folder is named as a path or a link, as in `base/io`, `base/io/src` or `xtask/`.
fn mentions(map: &str, folder: &str) -> bool {
    map.match_indices(folder).any(|(start, _)| {
        let part_of_a_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        !map[..start].ends_with(part_of_a_name)
            && !map[start + folder.len()..].starts_with(part_of_a_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::planted;

    fn messages(manifest: &str, map: Option<&str>) -> Vec<String> {
        let source = |path: &str, text: &str| Source {
            path: path.into(),
            text: text.into(),
        };
        let mut sources = vec![source("base/io/Cargo.toml", manifest)];
        sources.extend(map.map(|text| source(MAP, text)));
        let metadata = planted(&[("forebay-io", "base/io", &[])]);
        let findings = check(&metadata, &sources).into_iter();
        findings.map(|finding| finding.message).collect()
    }

    const GOOD: &str = "[package]\n\n[lints]\nworkspace = true\n";

    #[test]
    fn a_crate_in_order_passes() {
        assert!(messages(GOOD, None).is_empty());
        assert!(messages(GOOD, Some("see [io](base/io/src/lib.rs)")).is_empty());
    }

    #[test]
    fn a_crate_without_the_lints_is_found() {
        let elsewhere = "[lints]\nrust.x = 1\n[dependencies.a]\nworkspace = true\n";
        for manifest in ["[package]\n", elsewhere] {
            assert_eq!(messages(manifest, None).len(), 1);
        }
    }

    #[test]
    fn a_crate_that_the_map_forgets_is_found() {
        assert_eq!(messages(GOOD, Some("crates/iota only")).len(), 1);
    }
}
