//! Errors with the remedy in a line of its own.

use forebay_block::{Error, ErrorKind};

/// Remedy for a file that cannot be written.
pub(super) const WRITABLE: &str = "make room on its file system, or make it writable";

/// Remedy for a file whose directory is gone.
const PUT_BACK: &str = "put the directory back where it was, with its files";

/// Start of the line with the remedy.
const HELP: &str = "\n    help: ";

/// Returns the error for something that a stop could not record, with the remedy. `next` says what
/// the next start finds.
pub(crate) fn unnoted(error: &Error, what: &str, next: &str) -> Error {
    let report = error.report();
    let usual = match error.kind() {
        ErrorKind::NotFound => PUT_BACK,
        _ => WRITABLE,
    };
    let (why, help) = report.split_once(HELP).unwrap_or((&report, usual));
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

/// Returns the report of an error, with a remedy: its own, or the usual one of its kind.
pub(crate) fn report_with_help(error: &Error) -> String {
    let report = error.report();
    match report.contains(HELP) {
        true => report,
        false => append_help(report, usual_remedy(error.kind())),
    }
}

/// Returns the remedy for an error of the operating system, or of a device, that has none.
const fn usual_remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Io => "see the kernel's log (`dmesg`) for the device, and repair it",
        ErrorKind::InvalidInput | ErrorKind::OutOfRange => "correct it, and repeat the command",
        ErrorKind::ReadOnly => "make it writable, or name another",
        ErrorKind::NoSpace => "make room, or name another place",
        ErrorKind::Corrupt => "restore it from a copy, and repeat the command",
        ErrorKind::Unsupported => "use a device, file system or kernel that supports it",
        ErrorKind::Busy => "stop the program that uses it, or wait, and repeat the command",
        ErrorKind::NotFound => "name one that exists",
        ErrorKind::Lost => "read the daemon's log, and check the data of all clients",
        ErrorKind::ShuttingDown => "repeat the command after the next start",
        ErrorKind::Permission => "run this as a user that may do it (root: with sudo)",
        ErrorKind::TimedOut => "see whether the device or daemon answers, and repeat the command",
        ErrorKind::Disconnected | ErrorKind::Unreachable => {
            "see whether the other side runs, and repeat the command"
        }
        _ => "read the daemon's log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_a_remedy() {
        let own = Error::new(ErrorKind::Busy, "it is used\nhelp: wait");
        assert_eq!(report_with_help(&own), own.report());
        let system = Error::from(std::io::Error::from_raw_os_error(2)).context("opening a");
        assert_eq!(
            report_with_help(&system),
            "opening a: No such file or directory (os error 2)\n    help: name one that exists"
        );
    }

    #[test]
    fn a_directory_that_is_gone_is_put_back() {
        let gone = Error::from(std::io::Error::from_raw_os_error(2)).context("writing a");
        let report = unnoted(&gone, "the stop", "the next start asks").report();
        assert!(report.contains("help: put the directory back"), "{report}");
        let full = Error::new(ErrorKind::NoSpace, "writing a");
        let report = unnoted(&full, "the stop", "the next start asks").report();
        assert!(report.contains("help: make room"), "{report}");
    }

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
