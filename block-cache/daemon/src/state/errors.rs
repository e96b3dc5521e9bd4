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

/// Returns `error` with a context and, in a line of its own, the remedy. If the error has a remedy
/// already, that one stays: it is nearer to the cause.
pub(crate) fn with_help(error: &Error, context: &str, help: &str) -> Error {
    let report = error.report();
    let why = match report.contains(HELP) {
        true => report,
        false => format!("{report}{HELP}{help}"),
    };
    Error::with_source(error.kind(), context, why)
}

#[cfg(test)]
mod tests {
    use forebay_block::ErrorKind;

    use super::*;

    #[test]
    fn an_error_has_the_remedy_that_is_nearest_to_its_cause() {
        let plain = Error::new(ErrorKind::Io, "the disk failed");
        let report = with_help(&plain, "the cache", "replace it").report();
        assert_eq!(
            report,
            "the cache: the disk failed (I/O error)\n    help: replace it"
        );
        let full = Error::new(ErrorKind::NoSpace, "db.disk\nhelp: make room");
        let report = with_help(&full, "the cache", "replace it").report();
        let expected = "the cache: db.disk (no space left)\n    help: make room";
        assert_eq!(report, expected);
    }
}
