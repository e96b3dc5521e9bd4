//! `forebay trace record`: records the requests to a running daemon as a trace.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_trace::write::{Part, destination, with_remedy};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::duration::recording;
use crate::control::client::{Client, Control, kind_of};
use crate::control::protocol::{LINE_BYTES, Recorded, Reply, Request, line};
use crate::serve::guard;
use forebay_terminal::out;
use forebay_terminal::size::{Interval, Size, human_bytes, human_count};

/// Least limit on the size of a recording, bytes.
const SMALLEST_BYTES: u64 = 4096;

/// Record the requests of clients to a running daemon
///
/// Records every request with its volume, operation, offset, length and time of arrival, without
/// its data. Writes of zeroes are recorded as discards. Clients never wait for the recorder:
/// requests that it cannot record in time are counted, and the file contains the count. It ends
/// with Ctrl-C, --duration, --max-size or the daemon's end. A killed recorder leaves a file that is
/// readable up to that point.
///
/// The file has Forebay's own format, which `forebay trace`, `simulate`, `mrc` and `replay` read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  forebay trace record monday.fbt --duration 1h
  forebay trace record db.fbt --volume db --max-size 1G --control /run/forebay/control.sock")]
pub(super) struct Arguments {
    /// File to write
    pub(super) out: PathBuf,
    /// Record only this volume; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(super) volume: Vec<String>,
    /// End after this time, such as 60s or 30m
    #[arg(long, value_name = "TIME", value_parser = recording)]
    pub(super) duration: Option<Interval>,
    /// End before the file exceeds this size
    #[arg(long, value_name = "SIZE")]
    pub(super) max_size: Option<Size>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(super) force: bool,
}

pub(super) fn run(arguments: &Arguments, control: &Control) -> Result<()> {
    let path = &arguments.out;
    let max_bytes = arguments.max_size.map(|size| size.0);
    if max_bytes.is_some_and(|max| max < SMALLEST_BYTES) {
        let what = "--max-size is too small for a record\nhelp: give at least 4K";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    check_place(path, control)?;
    let what = || format!("cannot record into {}", path.display());
    let (mut place, file) = Place::create(path, arguments.force)?;
    let request = Request::Record {
        volumes: arguments.volume.clone(),
        max_bytes,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(what)?;
    let (total, ended) = runtime.block_on(async {
        let mut recording = Recording::begin(control, &request, file, &mut place).await?;
        let duration = arguments.duration.map(|duration| duration.0);
        let ended = recording.run(duration).await;
        recording.shown.finish_and_clear();
        Ok::<_, Error>((recording.total, ended))
    })?;
    drop(place);
    let written = format!("{} in {}", human_bytes(total.bytes), path.display());
    match ended {
        Ok(done) => out::print(&format!("{done}; {written}\n")),
        Err(error) if total.bytes > 0 => Err(error.context(format!(
            "the recording has stopped, and can be read up to there: {}, {written}",
            human_count(total.requests, "request")
        ))),
        Err(error) => Err(error),
    }
}

/// Refuses a file on a volume of the recorded daemon: the recording would record its own writes.
fn check_place(path: &Path, control: &Control) -> Result<()> {
    let reply = Client::connect(control)?.call(&Request::Status {}, |_| ())?;
    let Reply::Status(status) = reply else {
        return Ok(());
    };
    let Some(export) = guard::export_with(path, &status.listening) else {
        return Ok(());
    };
    let what = format!(
        "{} lies on a volume that the daemon serves ({export})\n\
         help: name a file on another file system: the recording would record itself",
        path.display()
    );
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// File of a recording. It gets its name once the daemon records. Until then an existing file stays
/// unchanged, and a failure leaves no file.
struct Place {
    path: PathBuf,
    part: Option<Part>,
    overwrite: bool,
}

impl Place {
    fn create(path: &Path, overwrite: bool) -> Result<(Self, File)> {
        let path = destination(path, overwrite)?;
        let (part, file) = Part::create(&path)?;
        let place = Self {
            path,
            part: Some(part),
            overwrite,
        };
        Ok((place, file))
    }

    /// Renames the file, since the recording has begun.
    fn begun(&mut self) -> Result<()> {
        let Some(part) = self.part.take() else {
            return Ok(());
        };
        destination(&self.path, self.overwrite)?;
        let what = || format!("cannot record into {}", self.path.display());
        part.rename(&self.path).context(what)
    }
}

struct Recording<'a> {
    place: &'a mut Place,
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    file: File,
    total: Recorded,
    shown: ProgressBar,
    /// Longest time between two messages of the daemon. While it records, it sends one every
    /// second.
    silence: Duration,
}

impl<'a> Recording<'a> {
    async fn begin(
        control: &Control,
        request: &Request,
        file: File,
        place: &'a mut Place,
    ) -> Result<Self> {
        let what = || format!("control socket {}", control.path.display());
        let stream = UnixStream::connect(&control.path).await.context(what)?;
        let (read, mut write) = stream.into_split();
        write.write_all(&line(request)).await.context(what)?;
        let shown = match std::io::stderr().is_terminal() {
            true => ProgressBar::new_spinner(),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("recording for {elapsed}: {msg} (Ctrl-C ends it)");
        shown.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Ok(Self {
            place,
            read: BufReader::with_capacity(256 << 10, read),
            write,
            file,
            total: Recorded::default(),
            shown,
            silence: control.patience.silence,
        })
    }

    /// Writes messages until the recording ends. Returns the daemon's last message.
    async fn run(&mut self, duration: Option<Duration>) -> Result<String> {
        let of = |kind| signal(kind).context(|| "signal handler");
        let mut interrupt = of(SignalKind::interrupt())?;
        let mut terminate = of(SignalKind::terminate())?;
        let end = duration.map(|duration| Instant::now() + duration);
        let mut asked = false;
        let mut text = Vec::new();
        loop {
            let ask = wish_to_end(&mut interrupt, &mut terminate, end.filter(|_| !asked));
            tokio::select! {
                // The part read so far stays in `text` if the other branch completes first.
                read = read_line(&mut self.read, &mut text, self.silence) => read?,
                () = ask => {
                    if asked {
                        let what = "a second signal came before the daemon had sent the rest\n\
                                    help: the file has the records until then";
                        return Err(Error::new(ErrorKind::Disconnected, what));
                    }
                    asked = true;
                    // The daemon detects the shutdown and sends the rest.
                    self.write.shutdown().await.context(|| "control socket")?;
                    continue;
                }
            }
            if let Some(done) = self.take(&text).await? {
                self.file
                    .sync_data()
                    .context(|| "cannot make the trace durable")?;
                return Ok(done);
            }
            text.clear();
        }
    }

    /// Handles a reply and its data. Returns the text of the last one.
    async fn take(&mut self, text: &[u8]) -> Result<Option<String>> {
        let reply: Reply = serde_json::from_slice(text).map_err(|error| {
            let what = "the daemon's answer is invalid\nhelp: use the version of the daemon";
            Error::with_source(ErrorKind::Disconnected, what, error)
        })?;
        match reply {
            Reply::Recorded(recorded) => {
                let mut left = recorded.bytes;
                while left > 0 {
                    let read = tokio::time::timeout(self.silence, self.read.fill_buf()).await;
                    let have = read
                        .map_err(|_| silent(self.silence))?
                        .context(|| "control socket")?;
                    if have.is_empty() {
                        return Err(gone());
                    }
                    let some = have.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let written = self.file.write_all(&have[..some]);
                    written
                        .map_err(|error| with_remedy(&self.place.path, error))
                        .context(|| "cannot write the trace")?;
                    self.read.consume(some);
                    left -= some as u64;
                }
                if recorded.bytes > 0 {
                    self.place.begun()?;
                }
                self.total.bytes += recorded.bytes;
                self.total.requests += recorded.requests;
                self.total.lost += recorded.lost;
                let Recorded {
                    bytes,
                    requests,
                    lost,
                } = self.total;
                let size = human_bytes(bytes);
                self.shown
                    .set_message(format!("{requests} requests, {lost} lost, {size}"));
                Ok(None)
            }
            Reply::Done(done) => Ok(Some(done)),
            Reply::Error { kind, message } => Err(Error::with_source(kind_of(&kind), "", message)),
            Reply::Progress(_) | Reply::Status(_) | Reply::Snapshots(_) => Ok(None),
        }
    }
}

/// Reads to the end of a line. The part read so far stays in `text` if the future is dropped.
async fn read_line(
    read: &mut BufReader<OwnedReadHalf>,
    text: &mut Vec<u8>,
    silence: Duration,
) -> Result<()> {
    let limit = (16 * LINE_BYTES).saturating_sub(text.len()) as u64;
    let mut read = read.take(limit);
    let read = tokio::time::timeout(silence, read.read_until(b'\n', text)).await;
    read.map_err(|_| silent(silence))?
        .context(|| "control socket")?;
    match text.last() {
        Some(b'\n') => Ok(()),
        _ => Err(gone()),
    }
}

fn gone() -> Error {
    let what = "the daemon ended before the recording\nhelp: read the daemon's log";
    Error::new(ErrorKind::Disconnected, what)
}

fn silent(limit: Duration) -> Error {
    let what = format!("the daemon has not answered for {limit:?}\nhelp: read its log");
    Error::new(ErrorKind::TimedOut, what)
}

/// Waits for a signal, or for the time `end`.
async fn wish_to_end(interrupt: &mut Signal, terminate: &mut Signal, end: Option<Instant>) {
    let time = async {
        match end {
            Some(end) => tokio::time::sleep_until(end.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = time => {}
    }
}
