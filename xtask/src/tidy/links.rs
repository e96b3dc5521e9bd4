//! Relative links in Markdown lead to existing files inside the repository, and to existing
//! headings in these files.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Source};

const RULE: &str = "links";

pub(super) fn check(sources: &[Source], paths: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pages = sources
        .iter()
        .filter(|source| source.has_extension(&["md"]));
    let headings: BTreeMap<&str, BTreeSet<String>> = pages
        .clone()
        .map(|page| (page.path.as_str(), anchors(&page.text)))
        .collect();
    for source in pages {
        let folder = source
            .path
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        for (line, target) in targets(&source.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = file.split('?').next().unwrap_or_default();
            let path = match file {
                "" => Some(source.path.clone()),
                _ => resolve(folder, file),
            };
            let found = path.filter(|path| path.is_empty() || paths.contains(path));
            let problem = match found {
                None => "leads nowhere in this repository",
                Some(path) if !has_anchor(&headings, &path, anchor) => "leads to no heading there",
                Some(_) => continue,
            };
            let place = format!("{}:{line}", source.path);
            let message = format!("the link to {target} {problem}");
            findings.push(Finding::new(RULE, place, message));
        }
    }
    findings
}

/// Whether the page at `path` has the heading that `anchor` names. Files of other kinds count as
/// having it.
fn has_anchor(headings: &BTreeMap<&str, BTreeSet<String>>, path: &str, anchor: &str) -> bool {
    let page = headings.get(path);
    anchor.is_empty() || page.is_none_or(|headings| headings.contains(anchor))
}

/// Returns the anchors of a page's headings, as GitHub makes them: small letters, hyphens for
/// spaces, no punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let in_anchor = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let title: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(in_anchor)
            .collect();
        anchors.insert(title.replace(' ', "-"));
    }
    anchors
}

/// Returns the targets of `[text](target)` and `[text]: target`, each with its line, outside of
/// code.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let prose = without_code(line);
        for (start, _) in prose.match_indices("](") {
            let rest = &prose[start + 2..];
            if let Some(end) = rest.find(')') {
                found.push((index + 1, target_of(&rest[..end])));
            }
        }
        if let Some((_, target)) = prose
            .split_once("]:")
            .filter(|(name, _)| name.starts_with('['))
        {
            found.push((index + 1, target_of(target)));
        }
    }
    found
}

/// Returns a link's target without its optional title and angle brackets.
fn target_of(text: &str) -> String {
    let target = text.split_whitespace().next().unwrap_or_default();
    target.trim_matches(['<', '>']).into()
}

/// Returns the line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// Returns the path of `link` from the repository's root, as seen from `folder`. `None` if it
/// leaves the repository.
fn resolve(folder: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = if link.starts_with('/') {
        Vec::new()
    } else {
        folder.split('/').filter(|part| !part.is_empty()).collect()
    };
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> usize {
        let paths = ["README.md", "docs", "docs/format.md", "docs/a.md"];
        let source = |path: &str, text: &str| Source {
            path: path.into(),
            text: text.into(),
        };
        let format = "# The `format`: all of it\n```\n# code\n```\n#none\n";
        let sources = [source("docs/a.md", text), source("docs/format.md", format)];
        check(&sources, &paths.map(String::from).into()).len()
    }

    #[test]
    fn living_links_pass() {
        assert_eq!(
            dead("# Here\n[a](format.md) [b](../README.md#top) [c](../docs/) [d](#here)"),
            0
        );
        assert_eq!(
            dead("[e](https://example.org/x) [`code`](format.md \"title\")"),
            0
        );
        assert_eq!(dead("[f]: format.md"), 0);
    }

    #[test]
    fn dead_links_are_found() {
        assert_eq!(dead("[a](layout.md) and [b](../docs/none/x.rs)"), 2);
        assert_eq!(dead("[c]: layout.md"), 1);
    }

    #[test]
    fn dead_anchors_are_found() {
        assert_eq!(dead("[a](format.md#the-format-all-of-it)"), 0);
        assert_eq!(dead("[a](format.md#the-format) [b](#here)"), 2);
        assert_eq!(dead("[a](format.md#code) [b](format.md#none)"), 2);
    }

    #[test]
    fn links_out_of_the_repository_are_found() {
        assert_eq!(dead("[a](../../elsewhere.md)"), 1);
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(dead("`[a](none.md)`\n```\n[b](none.md)\n```\n"), 0);
    }
}
