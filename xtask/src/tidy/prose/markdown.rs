//! The parts of Markdown that the rules need: blocks, table cells, links, code spans and sentences.

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A line of a fenced code block, or its fence.
    Code,
    /// An empty line.
    Blank,
    /// A row of a table.
    Row,
    Heading,
    /// A paragraph or a list item.
    Prose,
}

/// Consecutive lines that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block<'a> {
    pub(super) kind: Kind,
    /// Number of the first line, from 1.
    pub(super) line: usize,
    pub(super) lines: Vec<&'a str>,
}

impl Block<'_> {
    /// Returns the block's text in one line, without the marker of a list item.
    pub(super) fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| without_marker(line.trim()));
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// Cuts a page into blocks. Rows of a table are blocks of their own.
pub(super) fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let fence = trimmed.starts_with("```");
        let kind = if fenced || fence {
            Kind::Code
        } else if trimmed.is_empty() {
            Kind::Blank
        } else if trimmed.starts_with('|') {
            Kind::Row
        } else if trimmed.starts_with('#') {
            Kind::Heading
        } else {
            Kind::Prose
        };
        fenced ^= fence;
        match blocks.last_mut() {
            Some(last) if continues(last, kind, trimmed) => last.lines.push(line),
            _ => blocks.push(Block {
                kind,
                line: index + 1,
                lines: vec![line],
            }),
        }
    }
    blocks
}

fn continues(last: &Block<'_>, kind: Kind, trimmed: &str) -> bool {
    kind == Kind::Prose && last.kind == Kind::Prose && without_marker(trimmed) == trimmed
}

/// Removes the marker of a list item or quotation from the beginning of a line.
fn without_marker(line: &str) -> &str {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    if digits.len() < line.len()
        && let Some(rest) = digits.strip_prefix(". ")
    {
        return rest;
    }
    let markers = ["- ", "* ", "+ ", "> "];
    let bare = markers.iter().find_map(|marker| line.strip_prefix(marker));
    bare.unwrap_or(line)
}

/// Whether a line holds one link and nothing else but a list marker and punctuation.
pub(super) fn is_one_link(line: &str) -> bool {
    let line = without_marker(line.trim()).trim_start_matches('!');
    let line = line.trim_end_matches(|c: char| c.is_ascii_punctuation() && c != ')');
    let Some((text, target)) = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]("))
    else {
        return false;
    };
    let ends = target.find(')');
    !text.contains(']') && ends.is_some_and(|end| end + 1 == target.len())
}

/// Cuts a row of a table into its cells.
pub(super) fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|');
    let mut cells = vec![String::new()];
    let mut escaped = false;
    for c in row.chars() {
        match c {
            '|' if !escaped => cells.push(String::new()),
            _ => cells[..].last_mut().expect("one cell at least").push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    cells
}

/// Returns `text` without the targets of its links.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find("](") {
        shown.push_str(&rest[..=begin]);
        let target = &rest[begin + 2..];
        rest = target.find(')').map_or("", |end| &target[end + 1..]);
    }
    shown + rest
}

/// Returns `text` without its code spans.
pub(super) fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Cuts `text` into sentences. A code span is one word, whatever its content.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let parts = text.split('`').enumerate();
    let text: String = parts
        .map(|(index, part)| match index % 2 {
            0 => part.to_owned(),
            _ => "code".to_owned(),
        })
        .collect();
    let mut sentences = vec![String::new()];
    let mut ended = false;
    for c in text.chars() {
        if ended && c.is_whitespace() {
            sentences.push(String::new());
            ended = false;
            continue;
        }
        ended = matches!(c, '.' | '!' | '?') || (ended && "\"')]*_".contains(c));
        sentences[..].last_mut().expect("one sentence").push(c);
    }
    sentences.retain(|sentence| !sentence.trim().is_empty());
    for sentence in &mut sentences {
        *sentence = sentence.trim().trim_start_matches(['*', '"', '(']).into();
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_where_markdown_cuts_them() {
        let text = "# A\nb\nc\n- d\n  e\n1. f\n\n| g |\n| h |\n```\n# i\n```\n";
        let cut: Vec<_> = blocks(text)
            .into_iter()
            .map(|block| (block.kind, block.line, block.text()))
            .collect();
        let expected = [
            (Kind::Heading, 1, "# A"),
            (Kind::Prose, 2, "b c"),
            (Kind::Prose, 4, "d e"),
            (Kind::Prose, 6, "f"),
            (Kind::Blank, 7, ""),
            (Kind::Row, 8, "| g |"),
            (Kind::Row, 9, "| h |"),
            (Kind::Code, 10, "```"),
            (Kind::Code, 11, "# i"),
            (Kind::Code, 12, "```"),
        ];
        let expected = expected.map(|(kind, line, text)| (kind, line, text.to_owned()));
        assert_eq!(cut, expected);
    }

    #[test]
    fn sentences_end_at_marks_before_spaces() {
        assert_eq!(
            sentences("On 6.5 it runs. (So \"it\" does.) `a. b` ends! **Bold.** e"),
            [
                "On 6.5 it runs.",
                "So \"it\" does.)",
                "code ends!",
                "Bold.**",
                "e"
            ]
        );
    }

    #[test]
    fn cells_end_at_bars_that_are_not_escaped() {
        assert_eq!(cells("| a | b\\|c | d"), [" a ", " b\\|c ", " d"]);
    }
}
