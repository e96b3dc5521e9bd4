//! Standard output. Its reader may close it at any time, as in `forebay status --watch | head`.

use std::io::{ErrorKind, Write as _};

use forebay_block::{Context as _, Result};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use crate::journal;
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

/// Prints the error that ends a command, as [`note`]. The journal has it as an error.
pub fn error(text: &str) {
    match journal::reads_stderr() {
        true => {
            let text = journal::with_priority(&wrap(text), journal::ERROR);
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        false => note(text),
    }
}

/// Writers of log lines to standard error.
#[derive(Debug)]
pub struct LogOutputs {
    to_journal: bool,
}

impl LogOutputs {
    /// Returns the writers. Lines have priorities if systemd's journal reads them.
    #[must_use]
    pub fn new() -> Self {
        Self {
            to_journal: journal::reads_stderr(),
        }
    }
}

impl Default for LogOutputs {
    fn default() -> Self {
        Self::new()
    }
}

impl MakeWriter<'_> for LogOutputs {
    type Writer = LogOutput;

    fn make_writer(&self) -> LogOutput {
        LogOutput { priority: None }
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> LogOutput {
        LogOutput {
            priority: self
                .to_journal
                .then(|| journal::priority_of(*metadata.level())),
        }
    }
}

/// Standard error for log lines, each written at once. Their remedies are in short lines.
#[derive(Debug)]
pub struct LogOutput {
    /// Priority for the journal; `None` for another reader.
    priority: Option<u8>,
}

impl std::io::Write for LogOutput {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let mut text = wrap(&text);
        if let Some(priority) = self.priority {
            text = journal::with_priority(&text, priority).into();
        }
        std::io::stderr().write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
