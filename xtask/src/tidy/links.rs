//! Relative links in Markdown lead to files that exist inside the repository.

use std::collections::BTreeSet;

use super::{Finding, Source};

const RULE: &str = "links";

pub(super) fn check(sources: &[Source], paths: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources
        .iter()
        .filter(|source| source.has_extension(&["md"]))
    {
        let folder = source
            .path
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        for (line, target) in targets(&source.text) {
            let file = target.split(['#', '?']).next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if elsewhere || file.is_empty() {
                continue;
            }
            let found =
                resolve(folder, file).is_some_and(|path| path.is_empty() || paths.contains(&path));
            if !found {
                let place = format!("{}:{line}", source.path);
                let message = format!("the link to {target} leads nowhere in this repository");
                findings.push(Finding::new(RULE, place, message));
            }
        }
    }
    findings
}

/// The targets of `[text](target)` and `[text]: target`, each with its line, outside of code.
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

/// A link's target without its optional title and angle brackets.
fn target_of(text: &str) -> String {
    let target = text.split_whitespace().next().unwrap_or_default();
    target.trim_matches(['<', '>']).into()
}

/// The line with what stands between backticks taken out.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// `link`, as seen from `folder`, from the repository's top. `None` when it leaves the repository.
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
        let source = Source {
            path: "docs/a.md".into(),
            text: text.into(),
        };
        check(&[source], &paths.map(String::from).into()).len()
    }

    #[test]
    fn living_links_pass() {
        assert_eq!(
            dead("[a](format.md) [b](../README.md#top) [c](../docs/) [d](#here)"),
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
    fn links_out_of_the_repository_are_found() {
        assert_eq!(dead("[a](../../elsewhere.md)"), 1);
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(dead("`[a](none.md)`\n```\n[b](none.md)\n```\n"), 0);
    }
}
