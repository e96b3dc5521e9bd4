//! Errors with the remedy in a line of its own.

use forebay_block::Error;

/// Remedy for a file that cannot be written.
pub(super) const WRITABLE: &str = "make room on its file system, or make it writable";

/// Start of the line with the remedy.
const HELP: &str = "\n    help: ";

/// Returns the error for something that a stop could not record, with the remedy. `next` says what
/// the next start finds.
pub(crate) fn unnoted(error: &Error, what: &str, next: &str) -> Error {
    let report = error.report();
    let (why, help) = report.split_once(HELP).unwrap_or((&report, WRITABLE));
    let text = format!("{why}{HELP}{help}; {next}");
    Error::with_source(error.kind(), format!("{what} is not noted"), text)
}

/// Returns `error` with a context and, in a line of its own, the remedy. A remedy that `error` has
/// comes first.
pub(crate) fn with_help(error: &Error, context: &str, help: &str) -> Error {
    Error::with_source(error.kind(), context, append_help(error.report(), help))
}

/// Appends the line with the remedy to `text`, or the remedy to the line that `text` has.
pub(crate) fn append_help(text: String, help: &str) -> String {
    match text.contains(HELP) {
        true => format!("{text}; {help}"),
        false => text + HELP + help,
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::ErrorKind;

    use super::*;

    #[test]
    fn a_remedy_of_the_cause_comes_first() {
        for (cause, expected) in [
            ("it is full", "a: it is full (no space left)\n    help: b"),
            (
                "it is full\nhelp: make room",
                "a: it is full (no space left)\n    help: make room; b",
            ),
        ] {
            let cause = Error::new(ErrorKind::NoSpace, cause);
            let error = with_help(&cause, "a", "b");
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            assert_eq!(error.report(), expected);
            // It keeps one line with the remedy below other contexts.
            let outer = error.context("c\nhelp: d");
            assert_eq!(outer.report(), format!("c: {expected}"));
        }
    }
}
