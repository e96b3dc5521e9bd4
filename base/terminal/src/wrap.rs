//! Remedies of errors and log lines, in lines that a terminal shows whole.

use std::borrow::Cow;

/// Longest line of a remedy, characters. A longer word, such as a path, has a line of its own.
const CHARACTERS: usize = 120;

/// Start of the line with the remedy.
const HELP: &str = "    help: ";

/// Start of its further lines.
const INDENT: &str = "          ";

/// Returns `text` with its remedies wrapped. Other lines are unchanged.
#[must_use]
pub fn wrap(text: &str) -> Cow<'_, str> {
    if !text.contains(HELP) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 64);
    let mut is_help = false;
    for line in text.split_inclusive('\n') {
        is_help = line.starts_with(HELP) || is_help && line.starts_with(INDENT);
        match is_help {
            true => push_wrapped(line, &mut out),
            false => out.push_str(line),
        }
    }
    out.into()
}

/// Appends a line of a remedy.
fn push_wrapped(line: &str, out: &mut String) {
    let (start, words) = line.split_at(HELP.len());
    out.push_str(start);
    let mut column = HELP.len();
    for (nth, word) in words.split(' ').enumerate() {
        let length = word.trim_end_matches('\n').chars().count();
        if nth > 0 && column + 1 + length > CHARACTERS {
            out.push('\n');
            out.push_str(INDENT);
            column = INDENT.len();
        } else if nth > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_remedies_are_wrapped() {
        let long = ["word"; 40].join(" ");
        for same in [
            format!("forebay: {long}\n"),
            format!("{HELP}short\n{INDENT}and shorter\n"),
            format!("{INDENT}{long}"),
        ] {
            assert_eq!(wrap(&same), same);
        }
        let wrapped = wrap(&format!("{HELP}{long}\nnext: {long}\n")).into_owned();
        let lines: Vec<_> = wrapped.lines().collect();
        assert_eq!(lines.len(), 3, "{wrapped}");
        assert_eq!(lines[0].chars().count(), 119, "one word more is too long");
        assert!(lines[1].starts_with(&format!("{INDENT}word")), "{wrapped}");
        assert_eq!(lines[2], format!("next: {long}"));
        let joined = wrapped.replace(&format!("\n{INDENT}"), " ");
        assert_eq!(joined, format!("{HELP}{long}\nnext: {long}\n"));
    }

    #[test]
    fn a_path_is_not_broken() {
        let path = format!("/{}", "x".repeat(200));
        let wrapped = wrap(&format!("{HELP}move {path} away")).into_owned();
        let expected = format!("{HELP}move\n{INDENT}{path}\n{INDENT}away");
        assert_eq!(wrapped, expected);
        // The lines after it are of its remedy.
        let twice = wrap(&wrapped).into_owned();
        assert_eq!(twice, wrapped);
    }
}
