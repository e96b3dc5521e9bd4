//! Client of the control socket, for the command line.

use std::io::{BufRead as _, BufReader, ErrorKind as IoKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_block::{Context as _, Error, ErrorKind, Result};

use super::protocol::{LINE_BYTES, Reply, Request, line};

/// Time limits of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Longest silence of the daemon, which reports at least every two seconds.
    pub silence: Duration,
    /// Longest time without a new report.
    pub standstill: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(10),
            standstill: Duration::from_secs(120),
        }
    }
}

impl Patience {
    /// Returns limits that both equal `limit`, or the defaults.
    #[must_use]
    pub fn new(limit: Option<Duration>) -> Self {
        limit.map_or_else(Self::default, |limit| Self {
            silence: limit,
            standstill: limit,
        })
    }
}

/// Address of the daemon, and time limits.
#[derive(Clone, Debug)]
pub struct Control {
    /// Path of its socket.
    pub path: PathBuf,
    /// Time limits of a command.
    pub patience: Patience,
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    patience: Patience,
}

impl Client {
    /// Connects to the daemon.
    ///
    /// # Errors
    /// If no daemon answers, or permission is denied; `TimedOut` if a daemon does not accept
    /// connections.
    pub fn connect(control: &Control) -> Result<Self> {
        let Control { path, patience } = control;
        let stream = connect(path, patience.silence).map_err(|error| {
            let path = path.display();
            let what = match error.kind() {
                std::io::ErrorKind::PermissionDenied => format!(
                    "you may not open the control socket {path}\n\
                     help: run this as the user that runs the daemon (root: with sudo)"
                ),
                std::io::ErrorKind::TimedOut => {
                    return unanswered(
                        format_args!("waited {:?} to connect", patience.silence),
                        path,
                        false,
                    );
                }
                _ => format!(
                    "no daemon answers on {path}\n\
                     help: start one with `forebay serve CONFIG`, or name its socket with --control"
                ),
            };
            Error::from(error).context(what)
        })?;
        let set = stream
            .set_read_timeout(Some(patience.silence))
            .and_then(|()| stream.set_write_timeout(Some(patience.silence)));
        set.context(|| "control socket")?;
        Ok(Self {
            stream: BufReader::new(stream),
            path: path.clone(),
            patience: *patience,
        })
    }

    /// Sends a request and waits for its end. Calls `progress` with each report.
    ///
    /// # Errors
    /// The error of the daemon, or of the connection; `TimedOut` if the daemon is silent for too
    /// long, or reports nothing new.
    pub fn call(&mut self, request: &Request, mut progress: impl FnMut(&str)) -> Result<Reply> {
        let sent = self.stream.get_mut().write_all(&line(request));
        sent.map_err(|error| self.failed(request, error))?;
        let (mut said, mut since) = (String::new(), Instant::now());
        loop {
            let mut text = Vec::new();
            let limit = 16 * LINE_BYTES as u64;
            let read = (&mut self.stream).take(limit).read_until(b'\n', &mut text);
            read.map_err(|error| self.failed(request, error))?;
            if text.is_empty() {
                let what = "the daemon ended before it answered\nhelp: read the daemon's log";
                return Err(Error::new(ErrorKind::Disconnected, what));
            }
            let reply: Reply = serde_json::from_slice(&text).map_err(|error| {
                let what = "the daemon's answer is invalid\nhelp: use the version of the daemon";
                Error::with_source(ErrorKind::Disconnected, what, error)
            })?;
            match reply {
                Reply::Progress(text) => {
                    if text != said {
                        (said, since) = (text, Instant::now());
                        progress(&said);
                    } else if since.elapsed() > self.patience.standstill {
                        return Err(stands_still(self.patience.standstill, &said));
                    }
                }
                Reply::Error { kind, message } => {
                    // The message is complete, with the kind if that adds anything.
                    return Err(Error::with_source(kind_of(&kind), "", message));
                }
                reply => return Ok(reply),
            }
        }
    }

    fn failed(&self, request: &Request, error: std::io::Error) -> Error {
        // Error of a socket after its time limit.
        if matches!(error.kind(), IoKind::WouldBlock | IoKind::TimedOut) {
            let what = request.waits_for().unwrap_or("waiting for the daemon");
            let silence = self.patience.silence;
            let what = format_args!("{what} for {silence:?}");
            return unanswered(what, self.path.display(), true);
        }
        Error::from(error)
            .context("the daemon ended before it answered\nhelp: read the daemon's log")
    }
}

/// Connects within a time limit. If a daemon does not accept and its queue is full, connecting
/// waits for ever.
fn connect(path: &Path, limit: Duration) -> std::io::Result<UnixStream> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = path.to_path_buf();
    std::thread::Builder::new()
        .name("connect".into())
        .spawn(move || {
            // The receiver may be gone.
            let _ = sender.send(UnixStream::connect(path));
        })?;
    let late = |_| std::io::Error::from(IoKind::TimedOut);
    receiver.recv_timeout(limit).map_err(late)?
}

fn unanswered(what: std::fmt::Arguments<'_>, path: std::path::Display<'_>, is_sent: bool) -> Error {
    let begun = match is_sent {
        true => "; a command that it has begun may continue",
        false => "",
    };
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "the daemon on {path} does not answer ({what})\n\
             help: see whether its process hangs or is stopped, or raise --timeout{begun}"
        ),
    )
}

fn stands_still(limit: Duration, said: &str) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "no progress for {limit:?} ({said}); the daemon continues it\n\
             help: see with `forebay status` whether a device hangs, or wait longer with --timeout"
        ),
    )
}

/// Returns the kind with this name; `Io` for a name that this version does not know.
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
        K::TimedOut,
    ]
    .into_iter()
    .find(|kind| kind.as_str() == name)
    .unwrap_or(K::Io)
}
