//! `cargo xtask tidy`: rules of the project that no compiler checks.
//!
//! Each rule is one file with one function from its input to its findings. Each rule's tests plant
//! a violation: a rule that cannot fail proves nothing.

mod circles;
mod crates;
mod fuzz_lock;
mod inventory;
mod language;
mod layers;
mod length;
mod links;
mod marks;
mod messages;
mod pages;
mod prose;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::metadata::Metadata;

/// Folders without files of the project.
const SKIPPED_FOLDERS: [&str; 5] = [".git", "target", "corpus", "artifacts", "node_modules"];

/// One text file of the repository.
#[derive(Debug, Clone)]
struct Source {
    /// Path from the repository's root, with `/` between the parts.
    path: String,
    text: String,
}

impl Source {
    fn has_extension(&self, extensions: &[&str]) -> bool {
        Path::new(&self.path)
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| extensions.contains(&extension))
    }
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    rule: &'static str,
    /// A file, with a line if possible.
    place: String,
    message: String,
}

impl Finding {
    fn new(rule: &'static str, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            rule,
            place: place.into(),
            message: message.into(),
        }
    }
}

/// Checks everything and prints the findings.
pub(crate) fn run(root: &Path) -> ExitCode {
    match check(root) {
        Ok((checked, findings)) => report(checked, &findings),
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(root: &Path) -> Result<(usize, Vec<Finding>), String> {
    let mut tree = Tree::default();
    tree.read_folder(root, "")
        .map_err(|error| format!("cannot read {}: {error}", root.display()))?;
    let metadata = Metadata::of(&root.join("Cargo.toml"))?;

    let mut findings = layers::check(&metadata);
    findings.extend(crates::check(&metadata, &tree.sources));
    findings.extend(circles::check(&metadata, &tree.sources));
    findings.extend(fuzz_lock::check(&metadata, &tree.sources));
    findings.extend(length::check(&tree.sources));
    findings.extend(marks::check(&tree.sources));
    findings.extend(words::check(&tree.sources));
    findings.extend(prose::check(&tree.sources));
    findings.extend(language::check(&tree.sources));
    findings.extend(messages::check(&tree.sources));
    findings.extend(pages::check(root)?);
    findings.extend(links::check(&tree.sources, &tree.paths));
    findings.extend(inventory::check(&metadata, &tree.sources));
    Ok((tree.sources.len(), findings))
}

fn report(checked: usize, findings: &[Finding]) -> ExitCode {
    for finding in findings {
        let Finding {
            rule,
            place,
            message,
        } = finding;
        println!("error[{rule}] {place}: {message}");
    }
    let errors = findings.len();
    println!("tidy: {checked} files checked, {errors} errors");
    if errors == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The repository's files: every path, and the text of those that are text.
#[derive(Debug, Default)]
struct Tree {
    paths: BTreeSet<String>,
    sources: Vec<Source>,
}

impl Tree {
    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<io::Result<_>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                    self.paths.insert(path.clone());
                    self.read_folder(&entry.path(), &format!("{path}/"))?;
                }
            } else if kind.is_file() {
                self.paths.insert(path.clone());
                if let Ok(text) = String::from_utf8(fs::read(entry.path())?) {
                    self.sources.push(Source { path, text });
                }
            }
        }
        Ok(())
    }
}
