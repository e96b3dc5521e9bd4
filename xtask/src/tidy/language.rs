//! Rust sources have short lines, comments in the language of the book, and standard names.
//!
//! The rule reads every Rust file, and checks:
//!
//! - *Columns*: at most [`COLUMNS`] characters a line, of code and of comments.
//! - *Comments*: the rules of sentences, table cells and words that the book has (`prose.rs`).
//! - *Names*: no declared name has one of [`BANNED`] as a word, except [`TERMS`]. Names of types,
//!   functions, parameters, fields, variants, variables and modules are declared names.

mod names;

use super::prose;
use super::{Finding, Source};

const RULE: &str = "language";

const COLUMNS: usize = 100;

/// Words that no name has.
const BANNED: [&str; 9] = [
    "aftermath",
    "again",
    "along",
    "around",
    "bring",
    "early",
    "kept",
    "told",
    "went",
];

/// Names of the field that have such a word.
const TERMS: [&str; 2] = ["write_around", "WriteAround"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    (sources.iter())
        .filter(|source| source.has_extension(&["rs"]))
        .flat_map(check_source)
        .collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, message: String| {
        let place = format!("{}:{line}", source.path);
        findings.push(Finding::new(RULE, place, message));
    };
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS {
            found(
                index + 1,
                format!("{columns} columns: break the line at {COLUMNS}"),
            );
        }
    }
    for (line, text) in comments(&source.text) {
        prose::check_text(line, &text, &mut found);
    }
    for name in names::declared(&source.text) {
        if let Some(word) = banned_word(name) {
            let line = names::line_of(&source.text, name);
            found(line, format!("{name}: no name has the word `{word}`"));
        }
    }
    findings
}

/// Returns the comments that fill whole lines, each with its first line and without its marks.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut open = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = ["///", "//!", "//"]
            .into_iter()
            .find(|mark| line.starts_with(mark));
        let Some(mark) = mark else {
            open = None;
            continue;
        };
        let content = line[mark.len()..].strip_prefix(' ').unwrap_or_default();
        match comments.last_mut() {
            Some((_, comment)) if open == Some(mark) => {
                comment.push('\n');
                comment.push_str(content);
            }
            _ => comments.push((index + 1, content.to_owned())),
        }
        open = Some(mark);
    }
    comments
}

/// Returns the banned word of a name in snake case, camel case or capitals.
fn banned_word(name: &str) -> Option<&'static str> {
    if TERMS.contains(&name) {
        return None;
    }
    let is_capital = name.chars().all(|c| !c.is_lowercase());
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !is_capital {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    (BANNED.into_iter()).find(|banned| words.split('_').any(|word| word == *banned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
        }
    }

    fn places(text: &str) -> Vec<String> {
        let findings = check(&[file("a.rs", text)]);
        findings.into_iter().map(|found| found.place).collect()
    }

    fn words(count: usize) -> String {
        vec!["w"; count].join(" ")
    }

    #[test]
    fn long_lines_of_code_and_comments_are_found() {
        let code = |columns: usize| format!("fn a() {{}}\n{};\n", "x".repeat(columns - 1));
        assert_eq!(places(&code(100)), [""; 0]);
        assert_eq!(places(&code(101)), ["a.rs:2"]);
        let comment = |columns: usize| format!("// {}\n", "x".repeat(columns - 3));
        assert_eq!(places(&comment(100)), [""; 0]);
        assert_eq!(places(&comment(101)), ["a.rs:1"]);
        // Columns are characters, not bytes.
        assert_eq!(places(&"ö".repeat(100)), [""; 0]);
    }

    #[test]
    fn long_sentences_in_comments_are_found() {
        let (half, rest) = (words(13), words(12));
        for mark in ["//", "///", "//!"] {
            let two = |end: &str| format!("\n    {mark} {half}\n    {mark} {rest}{end}.\n");
            assert_eq!(places(&two("")), [""; 0], "{mark}");
            assert_eq!(places(&two(" word")), ["a.rs:2"], "{mark}");
        }
        assert_eq!(places(&format!("// {half}\n\n// {half} word\n")), [""; 0]);
        assert_eq!(places(&format!("//! {half}\n/// {half} word\n")), [""; 0]);
        assert_eq!(
            places(&format!("/// - {half}\n/// - {half} word\n")),
            [""; 0]
        );
        assert_eq!(
            places(&format!("/// ```\n/// {half} {half} word\n/// ```\n")),
            [""; 0]
        );
    }

    #[test]
    fn banned_words_in_comments_are_found() {
        assert_eq!(places("/// A client was told.\nfn a() {}\n"), ["a.rs:1"]);
        assert_eq!(
            places("/// A write goes\n/// round it.\nfn a() {}\n"),
            ["a.rs:1"; 2]
        );
        assert_eq!(places("/// What fails is logged.\nfn a() {}\n"), ["a.rs:1"]);
        assert_eq!(places("/// `told` is a field.\nfn a() {}\n"), [""; 0]);
        assert_eq!(places("fn a() { b(\"it was told\"); }\n"), [""; 0]);
    }

    #[test]
    fn banned_words_in_names_are_found() {
        for word in BANNED {
            let capital = word[..1].to_uppercase() + &word[1..];
            for name in [
                format!("fn {word}() {{}}"),
                format!("fn is_{word}() {{}}"),
                format!("fn {word}_more() {{}}"),
                format!("struct Is{capital};"),
                format!("const {}: u8 = 0;", word.to_uppercase()),
                format!("mod {word};"),
                format!("fn a() {{ let mut {word} = 1; }}"),
                format!("fn a() {{ let (_, Some({word})) = b; }}"),
                format!("fn a({word}: u8) {{}}"),
                format!("struct A<T> {{ a: T, pub(crate) {word}: u8 }}"),
                format!("enum A {{ B(u8), {capital} }}"),
            ] {
                assert_eq!(places(&name), ["a.rs:1"], "{name}");
            }
        }
    }

    #[test]
    fn other_names_pass() {
        for name in [
            "fn beginning() {}",
            "fn keptness() {}",
            "fn write_around() {}",
            "enum A { WriteAround }",
            "fn a() { early(); b.early(); let c = D { early: 1 }; }",
            "impl A for Early {}",
            "// fn early() {}",
            "const A: &str = \"fn early() {}\";",
        ] {
            assert_eq!(places(name), [""; 0], "{name}");
        }
    }

    #[test]
    fn only_rust_files_are_checked() {
        let found = |path: &str| check(&[file(path, "fn early() {}")]).len();
        assert_eq!(found("a/b.rs"), 1);
        assert_eq!(found("a/b.txt"), 0);
        assert_eq!(found("a/rs"), 0);
    }
}
