//! Requests of commands to the directory of a pool, over its status socket. Requests and answers
//! are lines of JSON.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::pool::Pool;
use crate::status::Status;

/// Longest wait for a directory's answer, in addition to the time limit of the request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// The status.
    Status,
    /// A flush of all nodes.
    Flush {
        /// Time limit for all nodes to answer.
        timeout_ms: u64,
    },
}

/// Answer to [`Request::Flush`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct FlushReport {
    /// Bytes of dirty pages that are durable now.
    pub(crate) bytes: u64,
    /// Files of which a write was refused or lost.
    pub(crate) failed: Vec<String>,
    /// Number of such files without a name here.
    pub(crate) unnamed: u64,
    /// Files with pages of ended nodes that were not durable in time.
    pub(crate) unsaved: Vec<String>,
    /// Nodes that did not answer in time.
    pub(crate) silent: Vec<u8>,
    /// Nodes that ended before they answered.
    pub(crate) ended: Vec<u8>,
    /// Nodes that a restarted directory waits for.
    pub(crate) awaited: Vec<u8>,
}

/// Requests the status from the directory of a pool.
///
/// # Errors
/// `NotFound` if no directory answers there, or errors of the system.
pub fn status(pool: &Pool) -> Result<Status> {
    let text = ask(pool, Request::Status, ANSWER_TIMEOUT)?;
    serde_json::from_slice(&text).map_err(other_version)
}

/// Makes the writes of all nodes durable, and the pages that outlived their nodes. Returns the
/// number of bytes that were not before.
///
/// # Errors
/// - `Lost` with the names of files of which a write was refused or lost. The next `fsync` of their
///   writers reports it, too.
/// - `TimedOut` with the nodes that did not answer in time, or the files with pages of ended nodes
///   that were not durable in time.
/// - `Disconnected` if a node or the directory has ended meanwhile.
/// - `Busy` if a restarted directory waits for nodes.
/// - `NotFound` if no directory answers there, or errors of the system.
pub fn flush(pool: &Pool, patience: Duration) -> Result<u64> {
    let timeout_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    let text = ask(
        pool,
        Request::Flush { timeout_ms },
        patience + ANSWER_TIMEOUT,
    )?;
    if text.is_empty() {
        let context = "flush: the directory has ended before all nodes had flushed\n\
                       help: start it, and repeat the flush";
        return Err(Error::new(ErrorKind::Disconnected, context));
    }
    let report: FlushReport = serde_json::from_slice(&text).map_err(other_version)?;
    report.failure(patience).map_or(Ok(report.bytes), Err)
}

impl FlushReport {
    /// Returns the report as one line of JSON.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Returns the error of a flush that did not succeed.
    fn failure(&self, patience: Duration) -> Option<Error> {
        let (kind, context) = if !self.awaited.is_empty() {
            let context = format!(
                "flush: the directory was restarted, and waits for {}\n\
                 help: repeat the flush when they have returned",
                nodes(&self.awaited)
            );
            (ErrorKind::Busy, context)
        } else if !self.ended.is_empty() {
            let context = format!(
                "flush: {} ended before the flush did: unflushed writes may be lost\n\
                 help: see the log of the directory, and repeat the flush for the other nodes",
                nodes(&self.ended)
            );
            (ErrorKind::Disconnected, context)
        } else if !self.silent.is_empty() {
            let context = format!(
                "flush: {} did not answer in {patience:?}\n\
                 help: check whether the source answers, and repeat the flush with more --timeout",
                nodes(&self.silent)
            );
            (ErrorKind::TimedOut, context)
        } else if !self.unsaved.is_empty() {
            let context = format!(
                "flush: the source has not taken pages of ended nodes in {patience:?}:{}\n\
                 help: check whether the source answers, and repeat the flush with more --timeout",
                lines(&self.unsaved)
            );
            (ErrorKind::TimedOut, context)
        } else if !self.failed.is_empty() || self.unnamed > 0 {
            let mut context = "flush: writes of these files were refused or lost:".to_owned();
            context.push_str(&lines(&self.failed));
            if self.unnamed > 0 {
                context.push_str(&format!("\n  {} others", self.unnamed));
            }
            context.push_str("\nhelp: see the log, and check the room of the source");
            (ErrorKind::Lost, context)
        } else {
            return None;
        };
        Some(Error::new(kind, context))
    }
}

/// Sends a request, and returns the answer: nothing if the directory ends meanwhile.
fn ask(pool: &Pool, request: Request, patience: Duration) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(pool.status_socket()).map_err(|error| {
        let context = format!(
            "no directory answers in the pool {}\n\
             help: start one with `forebay pagecache directory`, or name its pool with --pool",
            pool.path().display()
        );
        Error::with_source(ErrorKind::NotFound, context, error)
    })?;
    stream.set_read_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(&request).map_err(other_version)?;
    line.push(b'\n');
    let mut text = Vec::new();
    let answered = stream.write_all(&line);
    match answered.and_then(|()| stream.read_to_end(&mut text)) {
        Err(error) if is_end(&error) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(text),
    }
}

/// Returns whether the other side has ended.
fn is_end(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

fn other_version(error: serde_json::Error) -> Error {
    let context = "the directory's answer cannot be parsed\n\
                   help: use the same version of Forebay for the command and the directory";
    Error::with_source(ErrorKind::Disconnected, context, error)
}

fn lines(names: &[String]) -> String {
    names.iter().map(|name| format!("\n  {name}")).collect()
}

fn nodes(numbers: &[u8]) -> String {
    let numbers: Vec<String> = numbers
        .iter()
        .map(|number| format!("node {number}"))
        .collect();
    numbers.join(", ")
}
