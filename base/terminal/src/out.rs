//! Standard output. Its reader may close it at any time, as in `forebay status --watch | head`.

use std::io::{ErrorKind, Write as _};

use forebay_block::{Context as _, Result};

/// Exit status of a process that ends because its output is closed, as a shell shows it.
const NOBODY_READS: i32 = 128 + libc::SIGPIPE;

/// Prints `text` unchanged. If the output is closed, the process ends silently.
///
/// # Errors
/// The error of the operating system, such as a full disk.
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

/// Prints a line to standard error; ignores failures.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
