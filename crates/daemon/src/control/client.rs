//! The command line's side of the control socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_block::{Context as _, Error, ErrorKind, Result};

use super::protocol::{LINE_BYTES, Reply, Request, line};

/// Longest silence of a daemon at work: it reports progress every second.
const SILENCE: Duration = Duration::from_secs(60);

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// When nothing answers there, or one may not.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| {
            let what = match error.kind() {
                std::io::ErrorKind::PermissionDenied => format!(
                    "you may not open the control socket {}: run this as the user that runs the daemon \
                     (root: with sudo)",
                    path.display()
                ),
                _ => format!(
                    "no daemon answers on {}: start one with `forebay serve CONFIG`, or name its socket \
                     with --control",
                    path.display()
                ),
            };
            Error::from(error).context(what)
        })?;
        let set = stream.set_read_timeout(Some(SILENCE));
        set.context(|| "control socket")?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request and waits for its end. `progress` is told how far it is.
    ///
    /// # Errors
    /// What the daemon says, or that the connection failed.
    pub fn call(&mut self, request: &Request, mut progress: impl FnMut(&str)) -> Result<Reply> {
        let sent = self.stream.get_mut().write_all(&line(request));
        sent.context(|| "the daemon closed the control socket")?;
        loop {
            let mut text = Vec::new();
            let limit = 16 * LINE_BYTES as u64;
            let read = (&mut self.stream).take(limit).read_until(b'\n', &mut text);
            read.context(|| "the daemon did not answer; its log says more")?;
            if text.is_empty() {
                let what = "the daemon ended before it answered; its log says more";
                return Err(Error::new(ErrorKind::Disconnected, what));
            }
            let reply: Reply = serde_json::from_slice(&text).map_err(|error| {
                let what = "the daemon's answer makes no sense; is it of another version?";
                Error::with_source(ErrorKind::Disconnected, what, error)
            })?;
            match reply {
                Reply::Progress(text) => progress(&text),
                Reply::Error { kind, message } => {
                    // Already as people read it, with the kind where that says something.
                    return Err(Error::with_source(kind_of(&kind), "", message));
                }
                reply => return Ok(reply),
            }
        }
    }
}

/// The kind by its name; `Io` for one that this version does not know.
pub(crate) fn kind_of(name: &str) -> ErrorKind {
    use ErrorKind as K;
    [
        K::InvalidInput,
        K::NotFound,
        K::Busy,
        K::Unsupported,
        K::ReadOnly,
        K::NoSpace,
        K::Lost,
        K::Corrupt,
        K::ShuttingDown,
    ]
    .into_iter()
    .find(|kind| kind.as_str() == name)
    .unwrap_or(K::Io)
}
