//! Logs to standard error through a thread, so that no logging thread waits for the reader of the
//! log.
//!
//! A reactor that logs while the reader of the pipe is stuck would stop serving. If the reader
//! waits for one of our volumes, that would last for ever. Lines that do not fit into the queue are
//! counted and dropped.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::Result;
use forebay_terminal::wrap::wrap;
use forebay_terminal::{journal, log_filter, out};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines in the queue.
const QUEUE: usize = 4096;

/// Time limit for writing the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// The writing thread.
pub(super) struct Log {
    lines: SyncSender<Entry>,
    thread: JoinHandle<()>,
}

/// A line in the queue. An empty text ends the thread.
#[derive(Default)]
struct Entry {
    text: Vec<u8>,
    /// Priority for systemd's journal; `None` for another reader.
    priority: Option<u8>,
}

/// A line under construction, sent on drop.
struct Line {
    entry: Entry,
    lines: SyncSender<Entry>,
}

/// Writers of lines into the queue.
struct Lines {
    lines: SyncSender<Entry>,
    /// Whether systemd's journal reads the lines.
    to_journal: bool,
}

impl Lines {
    fn line(&self, priority: Option<u8>) -> Line {
        Line {
            entry: Entry {
                text: Vec::with_capacity(200),
                priority,
            },
            lines: self.lines.clone(),
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        self.line(None)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        let level = *metadata.level();
        self.line(self.to_journal.then(|| journal::priority_of(level)))
    }
}

impl std::io::Write for Line {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.entry.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let entry = std::mem::take(&mut self.entry);
        if let Err(TrySendError::Full(_)) = self.lines.try_send(entry) {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Starts logging at the level in `FOREBAY_LOG`, or `info`. A panic then ends the process at once,
/// like a kill: a damaged daemon must not continue.
///
/// # Errors
/// As [`log_filter::from_environment`].
pub(super) fn start() -> Result<Log> {
    let filter = log_filter::from_environment("info")?;
    let (lines, queue) = sync_channel(QUEUE);
    let thread = std::thread::Builder::new()
        .name("log".into())
        .spawn(move || write(&queue))
        .expect("a thread can be started");
    let to_journal = journal::reads_stderr();
    let writers = Lines {
        lines: lines.clone(),
        to_journal,
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(writers);
    // A program that uses this as a library may log already.
    let _ = match to_journal {
        // The journal has the time of each line.
        true => log.without_time().try_init(),
        false => log.try_init(),
    };
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        out::error(&format!(
            "forebay: {panic}\n{backtrace}\nforebay: this is a bug. The process ends at once; \
             nothing that was acknowledged is lost, the next start recovers"
        ));
        std::process::abort();
    }));
    Ok(Log { lines, thread })
}

fn write(queue: &Receiver<Entry>) {
    while let Ok(Entry { text, priority }) = queue.recv() {
        if text.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&text);
        let mut text = wrap(&text).into_owned();
        let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let _ = writeln!(text, "({left_out} lines of the log were left out)");
        }
        if let Some(priority) = priority {
            text = journal::with_priority(&text, priority);
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

impl Log {
    /// Writes the last lines, if the reader accepts them.
    pub(super) fn finish(self) {
        let begin = Instant::now();
        let mut end = Entry::default();
        while let Err(TrySendError::Full(unsent)) = self.lines.try_send(end) {
            end = unsent;
            if begin.elapsed() > LAST_LINES {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        while !self.thread.is_finished() && begin.elapsed() < LAST_LINES {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
