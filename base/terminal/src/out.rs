//! Standard output. Whoever reads it may leave at any time, as in `forebay status --watch | head`.

use std::io::{ErrorKind, Write as _};

use forebay_block::{Context as _, Result};

/// What a shell shows for a program that ended because nobody reads what it prints.
const NOBODY_READS: i32 = 128 + libc::SIGPIPE;

/// Prints `text` as it is. When nobody reads any more, the process ends quietly.
///
/// # Errors
/// What the system says, if it cannot be written (a full disk).
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(NOBODY_READS),
        printed => printed.context(|| "cannot write to standard output"),
    }
}

/// Prints a line to standard error, if anybody reads there.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
