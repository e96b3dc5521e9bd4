//! Logs to standard error through a thread, so that no logging thread waits for the reader of the
//! log.
//!
//! A reactor that logs while the reader of the pipe is stuck would stop serving. If the reader
//! waits for one of our volumes, that would last for ever. Lines that do not fit into the queue are
//! counted and dropped.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_block::Result;
use tracing_subscriber::fmt::MakeWriter;

use forebay_terminal::log_filter;
use forebay_terminal::wrap::wrap;

/// Most lines in the queue.
const QUEUE: usize = 4096;

/// Time limit for writing the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// The writing thread.
pub(super) struct Log {
    lines: SyncSender<Vec<u8>>,
    thread: JoinHandle<()>,
}

/// A line under construction, sent on drop.
struct Line {
    text: Vec<u8>,
    lines: SyncSender<Vec<u8>>,
}

struct Lines(SyncSender<Vec<u8>>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line {
            text: Vec::with_capacity(200),
            lines: self.0.clone(),
        }
    }
}

impl std::io::Write for Line {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if let Err(TrySendError::Full(_)) = self.lines.try_send(text) {
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
    // A program that uses this as a library may log already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(Lines(lines.clone()))
        .try_init();
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        let _ = writeln!(
            std::io::stderr(),
            "forebay: {panic}\n{backtrace}\nforebay: this is a bug. The process ends at once; \
             nothing that was acknowledged is lost, the next start recovers"
        );
        std::process::abort();
    }));
    Ok(Log { lines, thread })
}

fn write(queue: &Receiver<Vec<u8>>) {
    while let Ok(line) = queue.recv() {
        if line.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(wrap(&text).as_bytes());
        let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let _ = writeln!(stderr, "({left_out} lines of the log were left out)");
        }
    }
}

impl Log {
    /// Writes the last lines, if the reader accepts them.
    pub(super) fn finish(self) {
        let begin = Instant::now();
        let mut end = Vec::new();
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
