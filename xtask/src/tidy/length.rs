//! Files stay short enough to read in one sitting.

use super::{Finding, Source};

const RULE: &str = "length";
const LINES: usize = 500;
/// In-file tests longer than this belong in a sibling file.
const TEST_LINES: usize = 200;

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        if source.has_extension(&["rs", "sh", "py"]) {
            findings.extend(whole_file(source));
        }
        if source.has_extension(&["rs"]) {
            findings.extend(tests_inside(source));
        }
    }
    findings
}

fn whole_file(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    (lines > LINES).then(|| {
        let message = format!("{lines} lines; the limit is {LINES}: split it by subject");
        Finding::new(RULE, &source.path, message)
    })
}

/// Finds `#[cfg(test)] mod name { ... }` by rustfmt's layout: the closing brace stands alone in the
/// module's column.
fn tests_inside(source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if line.trim() != "#[cfg(test)]" {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let opens = lines[index + 1..]
            .iter()
            .find(|next| !next.trim_start().starts_with("#["));
        if !opens.is_some_and(|next| next.trim_start().starts_with("mod ") && next.ends_with('{')) {
            continue;
        }
        let length = lines[index..]
            .iter()
            .position(|next| *next == closing)
            .map_or(lines.len() - index, |end| end + 1);
        if length > TEST_LINES {
            let place = format!("{}:{}", source.path, index + 1);
            let message =
                format!("{length} lines of tests; over {TEST_LINES} belong in a sibling file");
            findings.push(Finding::new(RULE, place, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: String) -> Vec<Finding> {
        check(&[Source {
            path: path.into(),
            text,
        }])
    }

    #[test]
    fn a_long_file_is_found() {
        for path in ["a.rs", "a.sh", "a.py"] {
            assert!(file(path, "\n".repeat(500)).is_empty(), "{path}");
            assert_eq!(file(path, "\n".repeat(501)).len(), 1, "{path}");
        }
        assert!(file("a.md", "\n".repeat(501)).is_empty());
    }

    #[test]
    fn long_tests_inside_a_file_are_found() {
        let tests = |lines: usize| {
            let body = "    fn x() {}\n".repeat(lines);
            format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{body}}}\nfn b() {{}}\n")
        };
        assert!(file("a.rs", tests(197)).is_empty());
        assert_eq!(file("a.rs", tests(198))[0].place, "a.rs:2");
    }

    #[test]
    fn tests_in_a_sibling_file_pass() {
        let text = "#[cfg(test)]\nmod tests;\n".to_string() + &"fn x() {}\n".repeat(300);
        assert!(file("a.rs", text).is_empty());
    }
}
