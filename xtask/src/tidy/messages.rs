//! Errors and log lines have one short line that names the problem, and a line with the remedy.
//!
//! The rule reads the Rust files of the products. A message is a text in one of these places:
//!
//! - the arguments of a call in [`CALLS`], or of a macro in [`MACROS`];
//! - the value of a variable in [`VARIABLES`].
//!
//! The rule checks:
//!
//! - *First line*: at most [`CHARACTERS`] characters, without placeholders.
//! - *Help*: the remedy begins a line with `help: `, once.
//! - *Language*: the rules of sentences and words that the book has (`prose.rs`).

mod texts;

use super::prose;
use super::{Finding, Source};

const RULE: &str = "messages";

/// Characters of the first line, without placeholders.
const CHARACTERS: usize = 120;

/// Calls that make an error or a part of its text. A method is listed with its variable.
const CALLS: [&str; 12] = [
    "Error::new",
    "Error::with_source",
    "append_help",
    "context",
    "corrupt",
    "malformed",
    "problems.add",
    "problems.add_at",
    "problems.warn",
    "refuse",
    "with_help",
    "wrong",
];

/// Macros that log a line.
const MACROS: [&str; 3] = ["error!", "warn!", "info!"];

/// Variables that hold the text of an error before it is made.
const VARIABLES: [&str; 5] = ["context", "help", "message", "said", "what"];

const FOLDERS: [&str; 4] = ["base/", "block-cache/", "page-cache/", "planner/"];

const HELP: &str = "help: ";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let products = sources.iter().filter(|source| is_product(source));
    products.flat_map(check_source).collect()
}

/// Whether a file is a product's code, and no test, example or benchmark.
fn is_product(source: &Source) -> bool {
    let path = &*source.path;
    let is_apart = ["/tests/", "/examples/", "/benches/"]
        .iter()
        .any(|folder| path.contains(folder));
    source.has_extension(&["rs"])
        && FOLDERS.iter().any(|folder| path.starts_with(folder))
        && !is_apart
        && !path.ends_with("/tests.rs")
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, message: String| {
        let place = format!("{}:{line}", source.path);
        findings.push(Finding::new(RULE, place, message));
    };
    for (line, text) in texts::messages(&source.text) {
        check_message(line, &text, &mut found);
    }
    findings
}

fn check_message(line: usize, text: &str, found: &mut impl FnMut(usize, String)) {
    let first = text.lines().next().unwrap_or_default();
    let characters = texts::without_placeholders(first).chars().count();
    if characters > CHARACTERS {
        found(
            line,
            format!(
                "a message of {characters} characters, more than {CHARACTERS}: shorten it, and put \
                 the remedy on a line `{HELP}...`"
            ),
        );
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let helps = lines.iter().filter(|line| line.starts_with(HELP)).count();
    let is_inside = |line: &&str| line.contains(&format!(" {HELP}"));
    if helps > 1 || lines.iter().any(is_inside) {
        found(line, format!("`{HELP}` begins the last line, once"));
    }
    for part in lines {
        let sentence = part.strip_prefix(HELP).unwrap_or(part);
        prose::check_text(line, &texts::with_nouns(sentence), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(path: &str, text: &str) -> Vec<String> {
        let source = Source {
            path: path.into(),
            text: text.into(),
        };
        let findings = check(&[source]);
        findings.into_iter().map(|found| found.place).collect()
    }

    /// Code that makes an error or a log line of a literal, in each way.
    fn uses(literal: &str) -> [String; 11] {
        [
            format!("fn a() {{\nError::new(Io, {literal})}}"),
            format!("fn a() {{\nError::with_source(Io, format!({literal}, b), c)}}"),
            format!("fn a() {{\nb().context(|| format!({literal}))?;}}"),
            format!("fn a() {{\nreturn refuse(Io, format!({literal}, b));}}"),
            format!("fn a() {{\nwith_help(&b, {literal}, &c)}}"),
            format!("fn a() {{\nproblems.add(&b.span(), c, {literal});}}"),
            format!("fn a() {{\ntracing::warn!(b = c(), {literal}, d);}}"),
            format!("fn a() {{\nerror!({literal});}}"),
            format!("fn a() {{\nlet what = match b {{ true => {literal}, _ => c }};}}"),
            format!("fn a() {{\nlet message = format!({literal});}}"),
            format!("fn a() {{\nlet help = {literal};}}"),
        ]
    }

    fn expect(literal: &str, findings: usize) {
        for text in uses(literal) {
            let expected = vec!["base/a/src/b.rs:2"; findings];
            assert_eq!(places("base/a/src/b.rs", &text), expected, "{text}");
        }
    }

    #[test]
    fn long_first_lines_are_found() {
        let words = |characters: usize| "wo ".repeat(characters)[..characters - 1].to_owned() + "x";
        expect(&format!("\"{}\"", words(75)), 0);
        let long = "characters ".repeat(11);
        expect(&format!("\"{}\"", &long[..120]), 0);
        expect(&format!("\"{}\"", &long[..121]), 1);
        expect(&format!("\"{}\\n{}\"", &long[..120], &long[..110]), 0);
        // Placeholders have no length, and a continued line no indentation.
        expect(&format!("\"{}{{name:?}}{{}}\"", &long[..120]), 0);
        expect(
            &format!("\"{}\\\n        {}\"", &long[..60], &long[..60]),
            0,
        );
        expect(
            &format!("\"{}\\\n        {}\"", &long[..60], &long[..61]),
            1,
        );
    }

    #[test]
    fn a_help_inside_of_a_line_is_found() {
        expect("\"a is full; help: make room\"", 1);
        expect("\"a is full\\nhelp: make room\\nhelp: restart\"", 1);
        expect("\"a is full\\nhelp: make room\"", 0);
        expect("\"a is full\\n    help: make room\"", 0);
        expect("\"help: make room\"", 0);
    }

    #[test]
    fn words_that_the_field_does_not_use_are_found() {
        expect("\"a client was told\"", 1);
        expect("\"a is full\\nhelp: sent round the cache\"", 2);
        expect("\"What was written is lost\"", 1);
        expect("\"`told` is {told}\"", 0);
    }

    #[test]
    fn other_texts_pass() {
        for text in [
            "fn a() { b(\"it was told\") }",
            "fn a() { b.add(\"it was told\") }",
            "fn a() { let c = \"it was told\"; Error::new(Io, c) }",
            "fn a() { Error::new(Io, b); c(\"it was told\"); }",
            "fn a() { let what = b; c(\"it was told\"); }",
            "// Error::new(Io, \"it was told\")",
            "fn a() {}\n#[cfg(test)]\nmod tests {\nError::new(Io, \"it was told\");}",
        ] {
            assert_eq!(places("base/a/src/b.rs", text), [""; 0], "{text}");
        }
        let text = "fn a() { Error::new(Io, \"it was told\") }";
        for path in [
            "base/a/tests/b.rs",
            "base/a/src/tests.rs",
            "base/a/src/b/tests/c.rs",
            "base/a/examples/b.rs",
            "tests/b.rs",
            "base/a/src/b.md",
        ] {
            assert_eq!(places(path, text), [""; 0], "{path}");
        }
        assert_eq!(places("page-cache/a/src/b.rs", text).len(), 1);
    }
}
