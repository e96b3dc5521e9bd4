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

/// Returns `error` with a context and, in a line of its own, the remedy.
pub(crate) fn with_help(error: &Error, context: &str, help: &str) -> Error {
    let why = format!("{}{HELP}{help}", error.report());
    Error::with_source(error.kind(), context, why)
}
