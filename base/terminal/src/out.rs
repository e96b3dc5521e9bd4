//! Standard output. Its reader may close it at any time, as in `forebay status --watch | head`.

use std::io::{ErrorKind, Write as _};

use forebay_block::{Context as _, Result};

use crate::wrap::wrap;

/// Exit status of a process that ends because its output is closed, as a shell shows it.
const NOBODY_READS: i32 = 128 + libc::SIGPIPE;

/// Prints `text`, with its remedies in short lines. If the output is closed, the process ends
/// silently.
///
/// # Errors
/// The error of the operating system, such as a full disk.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(wrap(text).as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(NOBODY_READS),
        printed => printed.context(|| "cannot write to standard output"),
    }
}

/// Prints a line to standard error, with its remedy in short lines; ignores failures.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", wrap(line));
}

/// Standard error for log lines, each written at once. Their remedies are in short lines.
#[derive(Debug)]
pub struct LogOutput;

impl std::io::Write for LogOutput {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        std::io::stderr().write_all(wrap(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
