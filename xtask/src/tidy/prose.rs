//! The pages of the book have short lines, short sentences, short table cells and standard words.
//!
//! The rule reads `README.md`, `docs/README.md`, the pages on tests, and the Markdown pages under
//! `docs/start`, `docs/concepts`, `docs/operate`, `docs/reference`, `docs/internals` and
//! `docs/results`, and
//! checks:
//!
//! - *Columns*: at most [`COLUMNS`] characters a line. Lines that Markdown cannot break are
//!   excepted. These are lines of a fenced code block, rows of a table, and lines that hold a
//!   single link with a list marker and punctuation.
//! - *Sentences*: at most [`SENTENCE_WORDS`] words, in paragraphs, list items and table cells. A
//!   code span is one word. The text of a link counts, its target does not.
//! - *Cells*: at most [`CELL_CHARACTERS`] characters, without the targets of links.
//! - *Words*: none of [`BANNED`], and no statement that begins with "What" or "Who". Code does not
//!   count.

mod markdown;

use markdown::{Block, Kind, blocks, visible};

use super::{Finding, Source};

const RULE: &str = "prose";

const COLUMNS: usize = 100;
const SENTENCE_WORDS: usize = 25;
const CELL_CHARACTERS: usize = 200;

/// Pages outside of the book's folders.
const PAGES: [&str; 4] = [
    "README.md",
    "docs/README.md",
    "tests/README.md",
    "tests/guest/README.md",
];

const FOLDERS: [&str; 6] = [
    "docs/start/",
    "docs/concepts/",
    "docs/operate/",
    "docs/reference/",
    "docs/internals/",
    "docs/results/",
];

/// Words and phrases that the field does not use, each with the standard term.
const BANNED: [(&str, &str); 44] = [
    ("aftermath", "result, or what exactly happened"),
    ("along", "with"),
    ("as ever", "as before"),
    ("at its word", "believed without a check"),
    ("bring in", "fill, or read"),
    ("brings in", "fills, or reads"),
    ("bringing in", "filling, or reading"),
    ("brought in", "filled, or read"),
    ("by halves", "in part"),
    ("drag in", "fill"),
    ("drags in", "fills"),
    ("go around", "bypass"),
    ("go round", "bypass"),
    ("goes around", "bypasses"),
    ("goes round", "bypasses"),
    ("going around", "bypassing"),
    ("going round", "bypassing"),
    ("gone round", "bypassed"),
    ("heeded", "obeyed"),
    ("in so many words", "explicitly"),
    ("nobody", "a named subject"),
    ("of late", "recently"),
    ("on its way", "in flight"),
    ("round it", "bypass"),
    ("round the cache", "bypass the cache"),
    ("sent round", "bypassed"),
    ("somebody", "a named subject"),
    ("take in", "fill, or promote"),
    ("taken in", "filled, or promoted"),
    ("takes in", "fills, or promotes"),
    ("taking in", "filling, or promoting"),
    ("took in", "filled, or promoted"),
    ("told", "logged, reported, or notified"),
    ("torn away", "removed"),
    ("went", "was written, sent, or read"),
    ("went around", "bypassed"),
    ("went round", "bypassed"),
    ("what is left", "the rest"),
    ("what was left", "the rest"),
    ("who asks", "the client"),
    ("who asked", "the client"),
    ("who comes", "the client"),
    ("whoever", "a named subject"),
    ("yonder", "the other machine"),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let pages = sources.iter().filter(|source| is_page(&source.path));
    pages.flat_map(check_page).collect()
}

fn is_page(path: &str) -> bool {
    let in_book = FOLDERS.iter().any(|folder| path.starts_with(folder));
    PAGES.contains(&path) || (in_book && path.ends_with(".md"))
}

fn check_page(page: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, message: String| {
        findings.push(Finding::new(RULE, format!("{}:{line}", page.path), message));
    };
    for block in blocks(&page.text) {
        check_columns(&block, &mut found);
    }
    check_text(1, &page.text, &mut found);
    findings
}

/// Checks sentences, table cells and words of a Markdown text that begins in line `first`.
pub(super) fn check_text(first: usize, text: &str, found: &mut impl FnMut(usize, String)) {
    for mut block in blocks(text) {
        block.line += first - 1;
        match block.kind {
            Kind::Code | Kind::Blank => continue,
            Kind::Row => check_cells(&block, found),
            Kind::Heading => {}
            Kind::Prose => check_sentences(block.line, &block.text(), found),
        }
        check_words(&block, found);
    }
}

fn check_columns(block: &Block<'_>, found: &mut impl FnMut(usize, String)) {
    if matches!(block.kind, Kind::Code | Kind::Row) {
        return;
    }
    for (index, line) in block.lines.iter().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS && !markdown::is_one_link(line) {
            found(
                block.line + index,
                format!("{columns} columns: break the line at {COLUMNS}"),
            );
        }
    }
}

fn check_cells(block: &Block<'_>, found: &mut impl FnMut(usize, String)) {
    for cell in markdown::cells(block.lines[0]) {
        let text = visible(&cell);
        let characters = text.trim().chars().count();
        if characters > CELL_CHARACTERS {
            found(
                block.line,
                format!(
                    "a table cell of {characters} characters, more than {CELL_CHARACTERS}: move it \
                     out of the table"
                ),
            );
        }
        check_sentences(block.line, &cell, found);
    }
}

fn check_sentences(line: usize, text: &str, found: &mut impl FnMut(usize, String)) {
    for sentence in markdown::sentences(&visible(text)) {
        let words = sentence.split_whitespace().filter(|word| is_word(word));
        let count = words.count();
        let begin: Vec<_> = sentence.split_whitespace().take(6).collect();
        let begin = begin.join(" ");
        if count > SENTENCE_WORDS {
            found(
                line,
                format!(
                    "a sentence of {count} words, more than {SENTENCE_WORDS}: split \"{begin} ...\""
                ),
            );
        }
        let statement = !sentence.trim_end().ends_with('?');
        if statement && (sentence.starts_with("What ") || sentence.starts_with("Who ")) {
            found(line, format!("name the subject of \"{begin} ...\""));
        }
    }
}

/// Whether it counts as a word: a dash between spaces does not.
fn is_word(word: &str) -> bool {
    word.contains(|c: char| c.is_alphanumeric())
}

fn check_words(block: &Block<'_>, found: &mut impl FnMut(usize, String)) {
    let text = markdown::without_code(&visible(&block.text())).to_lowercase();
    let words: Vec<_> = text
        .split(|c: char| !c.is_alphanumeric() && c != '\'')
        .filter(|word| !word.is_empty())
        .collect();
    let text = format!(" {} ", words.join(" "));
    for (banned, standard) in BANNED {
        if text.contains(&format!(" {banned} ")) {
            found(
                block.line,
                format!("\"{banned}\" is not a term of the field: write {standard}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let findings = check(&[Source {
            path: path.into(),
            text: text.into(),
        }]);
        let shown = findings.into_iter();
        shown
            .map(|finding| format!("{} {}", finding.place, finding.message))
            .collect()
    }

    fn faults(text: &str) -> usize {
        messages("docs/start/a.md", text).len()
    }

    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    #[test]
    fn only_pages_of_the_book_are_read() {
        let text = "It went.\n";
        for page in [
            "README.md",
            "docs/README.md",
            "tests/README.md",
            "docs/operate/a.md",
            "docs/internals/a/b.md",
            "docs/results/a.md",
        ] {
            assert_eq!(messages(page, text).len(), 1, "{page}");
        }
        for other in ["CHANGELOG.md", "tests/notes.md", "docs/start/a.rs"] {
            assert_eq!(messages(other, text).len(), 0, "{other}");
        }
    }

    #[test]
    fn long_lines_are_found() {
        let fits = "x".repeat(100);
        let long = "x".repeat(101);
        assert_eq!(faults(&fits), 0);
        assert_eq!(faults(&long), 1);
        assert_eq!(faults(&format!("- a\n  {long}\n")), 1);
        assert_eq!(faults(&format!("# {long}\n")), 1);
        let found = messages("docs/start/a.md", &format!("a\nb\n{long}\n"));
        assert!(found[0].starts_with("docs/start/a.md:3 "), "{found:?}");
    }

    #[test]
    fn lines_that_cannot_be_broken_may_be_long() {
        let long = "x".repeat(120);
        assert_eq!(faults(&format!("```sh\n{long}\n```\n")), 0);
        assert_eq!(faults(&format!("- [a b](../{long}.md)\n")), 0);
        assert_eq!(faults(&format!("[a b](../{long}.md),\n")), 0);
        assert_eq!(faults(&format!("| {long} | b |\n")), 0);
        assert_eq!(faults(&format!("see [a b](../{long}.md)\n")), 1);
        assert_eq!(faults(&format!("[a](b) [a](../{long}.md)\n")), 1);
    }

    #[test]
    fn long_sentences_are_found() {
        let half = words(13);
        let rest = words(SENTENCE_WORDS - 13);
        assert_eq!(faults(&format!("{half}\n{rest}.\n")), 0);
        assert_eq!(faults(&format!("{half}\n{rest} word.\n")), 1);
        assert_eq!(faults(&format!("{half}.\n{half} word.\n")), 0);
        assert_eq!(faults(&format!("- {half}\n- {half} word\n")), 0);
        assert_eq!(faults(&format!("- {half}\n  {half} word\n")), 1);
        assert_eq!(faults(&format!("{half}\n\n{half} word\n")), 0);
        // A version does not end a sentence, and a code span is one word.
        assert_eq!(faults(&format!("{half} 6.5\n{rest}.\n")), 1);
        assert_eq!(faults(&format!("{half} `a b c d`\n{}.\n", words(11))), 0);
        assert_eq!(faults(&format!("{half} [a](b c)\n{}.\n", words(11))), 0);
        assert_eq!(faults(&format!("| {} |\n", words(26))), 1);
    }

    #[test]
    fn long_cells_are_found() {
        let cell = format!("{}. ", "y".repeat(9)).repeat(18);
        assert_eq!(faults(&format!("| a | {cell} |\n")), 0);
        let found = messages("docs/start/a.md", &format!("| a | {cell}{cell} |\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("table cell"), "{found:?}");
        assert_eq!(faults(&format!("| [a]({}) |\n", "z".repeat(300))), 0);
        assert_eq!(faults(&format!("| {cell} \\| {cell} |\n")), 1);
    }

    #[test]
    fn banned_words_are_found() {
        for (word, _) in BANNED {
            let found = messages("docs/start/a.md", &format!("It {word} then.\n"));
            let named = found
                .iter()
                .any(|line| line.contains(&format!("\"{word}\"")));
            assert!(named, "{word}: {found:?}");
        }
        assert_eq!(faults("A write goes\nround a cache.\n"), 1);
        assert_eq!(faults("# Aftermath\n"), 1);
        assert_eq!(faults("| a | it went |\n"), 1);
        assert_eq!(faults("`went` and [x](told.md)\n```\ntold\n```\n"), 0);
        assert_eq!(faults("Untold stories of twenty wents, alongside.\n"), 0);
    }

    #[test]
    fn statements_name_their_subject() {
        assert_eq!(faults("What the cache holds is served.\n"), 1);
        assert_eq!(faults("It is so. Who fails is logged.\n"), 1);
        assert_eq!(faults("- What fails\n  is logged.\n"), 1);
        assert_eq!(faults("What can fail? A whatever.\n"), 0);
    }
}
