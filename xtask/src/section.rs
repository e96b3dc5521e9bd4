//! Sections of a page of results that different commands write.

use std::path::Path;

/// The title of the section that `cargo xtask bench policy` writes.
pub(crate) const SPEED: &str = "## Speed";

/// A section of a page that is there already, with its title; empty if it is not.
pub(crate) fn kept_section(path: &Path, title: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().skip_while(|line| *line != title);
    let Some(first) = lines.next() else {
        return String::new();
    };
    let rest = lines.take_while(|line| !line.starts_with("## "));
    let lines: Vec<&str> = std::iter::once(first).chain(rest).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// A page with one section replaced, or put at the end.
pub(crate) fn with_section(path: &Path, title: &str, section: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let old = kept_section(path, title);
    match old.is_empty() {
        true => format!("{}\n\n{section}", text.trim_end()),
        false => text.replacen(old.trim_end(), section.trim_end(), 1),
    }
}
