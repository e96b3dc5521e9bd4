//! Unfinished work is not committed: no half of a merge, no stub, no fix-it note, no ignored test
//! without a reason.
//!
//! The marks are spelled in two halves here, so that this file does not find itself.

use super::{Finding, Source};

const RULE: &str = "marks";
const STUBS: [&str; 2] = [concat!("to", "do!("), concat!("unimple", "mented!(")];
const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const MERGES: [&str; 2] = [concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];
const IGNORE: &str = concat!("#[ign", "ore");

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        if !source.has_extension(&["rs", "sh", "py", "toml", "md"]) {
            continue;
        }
        let rust = source.has_extension(&["rs"]);
        for (index, line) in source.text.lines().enumerate() {
            let note = NOTES.iter().find(|note| has_word(line, note));
            let message = if MERGES.iter().any(|mark| line.starts_with(mark)) {
                "a merge is unfinished".into()
            } else if let Some(note) = note {
                format!("{note}: finish it, or open an issue and describe the present state")
            } else if let Some(stub) = STUBS.iter().find(|stub| rust && line.contains(*stub)) {
                format!("{stub}): a stub is not finished work")
            } else if rust && ignores_without_reason(line) {
                "an ignored test says why: #[ignore = \"reason\"]".into()
            } else {
                continue;
            };
            findings.push(Finding::new(
                RULE,
                format!("{}:{}", source.path, index + 1),
                message,
            ));
        }
    }
    findings
}

/// Whether `word` stands alone in `line` (a `mktemp` template is not a note).
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let part_of_a_word = |c: char| c.is_alphanumeric() || c == '_';
        !line[..start].ends_with(part_of_a_word)
            && !line[start + word.len()..].starts_with(part_of_a_word)
    })
}

fn ignores_without_reason(line: &str) -> bool {
    line.trim_start().strip_prefix(IGNORE).is_some_and(|rest| {
        let reason = rest.trim_start().strip_prefix('=').unwrap_or_default();
        reason.trim_matches([' ', '"', ']']).is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, line: &str) -> usize {
        check(&[Source {
            path: path.into(),
            text: format!("fn before() {{}}\n{line}\n"),
        }])
        .len()
    }

    #[test]
    fn stubs_are_found() {
        for stub in STUBS {
            assert_eq!(findings("a.rs", &format!("    {stub});")), 1);
            assert_eq!(findings("a.md", &format!("    {stub});")), 0);
        }
    }

    #[test]
    fn halves_of_merges_are_found() {
        for mark in MERGES {
            assert_eq!(findings("a.md", &format!("{mark}HEAD")), 1);
            assert_eq!(findings("a.md", &format!("as in {mark}HEAD")), 0);
        }
    }

    #[test]
    fn notes_are_found_where_they_stand_alone() {
        for note in NOTES {
            assert_eq!(findings("a.sh", &format!("# {note}: later")), 1);
        }
        assert_eq!(
            findings("a.sh", &format!("mktemp -d /tmp/a.{0}{0}", NOTES[1])),
            0
        );
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        assert_eq!(findings("a.rs", &format!("    {IGNORE}]")), 1);
        assert_eq!(findings("a.rs", &format!("    {IGNORE} = \"\"]")), 1);
        assert_eq!(
            findings("a.rs", &format!("    {IGNORE} = \"needs root\"]")),
            0
        );
    }
}
