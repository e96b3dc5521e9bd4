//! Server of the control socket: reads requests, passes them to the engine, writes replies.

use std::fs::File;
use std::future::Future;
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};

use super::peer::Peer;
use super::protocol::{LINE_BYTES, Recorded, Reply, Request, line, parse_request};
use super::seats::{Seat, Seats};

/// Future of the last reply to a request.
pub type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// Handles requests.
pub type Handler = Arc<dyn Fn(Request, Caller) -> Answer + Send + Sync>;

/// The client of a request.
#[derive(Debug)]
pub struct Caller {
    /// Receives the parts before the last reply.
    pub parts: mpsc::Sender<Part>,
    /// True once the client has sent more data, or has disconnected.
    pub interrupted: watch::Receiver<bool>,
    /// Says whether the client still waits.
    pub peer: Arc<Peer>,
}

/// A part before the last reply.
#[derive(Debug)]
pub enum Part {
    /// Progress of the request.
    Progress(String),
    /// A part of a trace.
    Trace(Recorded, Vec<u8>),
}

impl Part {
    async fn send(self, write: &mut OwnedWriteHalf) -> std::io::Result<()> {
        match self {
            Self::Progress(text) => write.write_all(&line(&Reply::Progress(text))).await,
            Self::Trace(recorded, bytes) => {
                write.write_all(&line(&Reply::Recorded(recorded))).await?;
                write.write_all(&bytes).await
            }
        }
    }
}

/// Most concurrent clients.
pub const CLIENTS: usize = 64;
/// Longest time between two reports to a client while its request is handled.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Longest wait for another start that looks at the same directory.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// Least time between two log lines about refused clients.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Refuses a directory in which another user could replace the control socket: its clients would
/// trust the answers of that user. The superuser may use the directory of any user.
fn check_directory(directory: &Path) -> Result<()> {
    const STICKY_AND_OTHERS: u32 = 0o1002;
    let what = || format!("directory {} of the control socket", directory.display());
    let found = std::fs::metadata(directory).context(what)?;
    // SAFETY: no memory is involved.
    let user = unsafe { libc::geteuid() };
    let is_foreign = user != 0 && found.uid() != user && found.uid() != 0;
    let cause = match found.mode() & STICKY_AND_OTHERS == 0o2 {
        true => "every user may write to it",
        false if is_foreign => "it belongs to another user",
        false => return Ok(()),
    };
    let what = format!(
        "{}: {cause}\n\
         help: set `control` in [server] (or --control) to a path in a directory of your own",
        what()
    );
    Err(Error::new(ErrorKind::Permission, what))
}

/// Creates the control socket at `path`, with mode 0600, and its directory if that does not exist.
/// Replaces a socket on which no process answers.
///
/// Call it before there are other threads: it sets the process's umask for a moment, so that the
/// socket is never open to others.
///
/// # Errors
/// `Busy` if another daemon answers there; otherwise the error of the operating system.
pub fn bind(path: &Path) -> Result<StdListener> {
    let what = || format!("control socket {}", path.display());
    if let Some(directory) = path.parent().filter(|parent| !parent.exists()) {
        std::fs::create_dir_all(directory).context(|| {
            format!(
                "cannot make {} for the {}\n\
                 help: make it, or set `control` in [server] to another path",
                directory.display(),
                what()
            )
        })?;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(directory, private).context(what)?;
    }
    if let Some(directory) = path.parent() {
        check_directory(directory)?;
    }
    let in_use = || {
        let what = format!(
            "a daemon answers on the {} already\n\
             help: stop it, or set `control` in [server] to another path",
            what()
        );
        Error::new(ErrorKind::Busy, what)
    };
    // Of two starts at once, one would remove the socket of the other.
    let _alone = path.parent().and_then(lock_directory);
    let bound = match bind_private(path) {
        Err(error) if error.kind() == IoKind::AddrInUse => {
            let socket = std::fs::symlink_metadata(path)
                .is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()));
            if !socket {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "a file that is no socket is in the way of the {}\n\
                         help: set `control` in [server] to another path",
                        what()
                    ),
                ));
            }
            match StdStream::connect(path) {
                Err(error) if error.kind() == IoKind::ConnectionRefused => {}
                _ => return Err(in_use()),
            }
            std::fs::remove_file(path).context(what)?;
            bind_private(path)
        }
        bound => bound,
    };
    let listener = bound.context(|| {
        format!(
            "cannot listen on the {}\n\
             help: set `control` in [server] to a path that you may write to",
            what()
        )
    })?;
    listener.set_nonblocking(true).context(what)?;
    Ok(listener)
}

/// Locks the directory of a socket, against other starts, for the lifetime of the result. Goes on
/// without the lock if a program holds it for long.
fn lock_directory(directory: &Path) -> Option<File> {
    let file = File::open(directory).ok()?;
    let begin = Instant::now();
    while file.try_lock().is_err() && begin.elapsed() < LOCK_WAIT {
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(file)
}

fn bind_private(path: &Path) -> std::io::Result<StdListener> {
    // SAFETY: no memory is involved.
    let before = unsafe { libc::umask(0o177) };
    let bound = StdListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    bound
}

/// Serves clients for ever, at most `most` at a time: a further client replaces an idle one. Runs
/// on a tokio runtime.
///
/// # Errors
/// If the listener cannot be used. An error of a client ends only its connection.
pub async fn serve(listener: StdListener, handler: Handler, most: usize) -> Result<()> {
    let listener = UnixListener::from_std(listener).context(|| "control socket")?;
    let seats = Seats::new(most);
    let mut logged_at: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => match seats.take() {
                Some(seat) => {
                    let handler = Arc::clone(&handler);
                    tokio::spawn(async move {
                        if let Err(error) = client(stream, handler, seat).await {
                            tracing::debug!("a control client left: {error}");
                        }
                    });
                    // Lets a disconnected client release its descriptor before the next accept.
                    tokio::task::yield_now().await;
                }
                None => {
                    let what = format!(
                        "the daemon answers {most} commands at this moment\n\
                         help: repeat the command later"
                    );
                    let refusal = line(&Reply::error(&Error::new(ErrorKind::Busy, what)));
                    // It fits the socket's buffer.
                    let _ = stream.write_all(&refusal).await;
                }
            },
            Err(error) => {
                if logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_PAUSE) {
                    logged_at = Some(Instant::now());
                    tracing::warn!("control socket: {error}; it is tried again");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn client(stream: UnixStream, handler: Handler, seat: Seat) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut request = Vec::new();
    loop {
        request.clear();
        let mut limited = (&mut read).take(LINE_BYTES as u64);
        let received_bytes = tokio::select! {
            read = limited.read_until(b'\n', &mut request) => read?,
            () = seat.evicted() => return Ok(()),
        };
        if received_bytes == 0 {
            return Ok(());
        }
        if request.last() != Some(&b'\n') {
            let error = Error::new(
                ErrorKind::InvalidInput,
                "a request ends with a line feed and has at most 1 MiB\n\
                 help: send one JSON object a line",
            );
            return write.write_all(&line(&Reply::error(&error))).await;
        }
        seat.begin();
        match parse_request(&request) {
            Ok(request) => answer(request, &handler, &mut read, &mut write).await?,
            Err(error) => write.write_all(&line(&Reply::error(&error))).await?,
        }
        seat.end();
    }
}

/// Sends parts of the answer while the work continues. Work that has begun completes even if the
/// client disconnects: the handler has passed it to the engine's reactor.
async fn answer(
    request: Request,
    handler: &Handler,
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> std::io::Result<()> {
    let (parts, mut replies) = mpsc::channel(4);
    let (interrupt, interrupted) = watch::channel(false);
    let waits_for = request.waits_for();
    let peer = Arc::new(Peer::of(read.get_ref().as_ref())?);
    let mut work = handler(
        request,
        Caller {
            parts,
            interrupted,
            peer,
        },
    );
    loop {
        let is_waiting = !*interrupt.borrow();
        tokio::select! {
            biased;
            Some(part) = replies.recv() => part.send(write).await?,
            last = &mut work => {
                while let Ok(part) = replies.try_recv() {
                    part.send(write).await?;
                }
                return write.write_all(&line(&last)).await;
            }
            // The data is parsed after this answer.
            _ = read.fill_buf(), if is_waiting => { interrupt.send_replace(true); }
            () = tokio::time::sleep(HEARTBEAT), if waits_for.is_some() => {
                let text = waits_for.unwrap_or_default().to_owned();
                // Work with several steps is completed even if the client disconnects between two
                // of them.
                let _ = Part::Progress(text).send(write).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::client::{Client, Control, Patience};
    use crate::control::protocol::Request;

    fn control(path: &Path) -> Control {
        Control {
            path: path.to_path_buf(),
            patience: Patience::default(),
        }
    }

    /// Returns a daemon that flushes in two steps and supports nothing else.
    fn handler() -> Handler {
        Arc::new(|request, caller| {
            Box::pin(async move {
                let Request::Flush { volume } = request else {
                    let error = Error::new(ErrorKind::Unsupported, "only flush");
                    return Reply::error(&error);
                };
                for left in ["2 left", "1 left"] {
                    caller
                        .parts
                        .send(Part::Progress(left.into()))
                        .await
                        .expect("the client listens");
                }
                Reply::Done(format!("flushed {volume:?}"))
            })
        })
    }

    fn with_server(name: &str, test: impl FnOnce(&Path)) {
        let directory = std::env::temp_dir().join(format!("fb-{name}-{}", std::process::id()));
        let path = directory.join("control.sock");
        let listener = bind(&path).expect("the socket can be made");
        std::thread::scope(|scope| {
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(async {
                    tokio::select! {
                        result = serve(listener, handler(), 4) => result.expect("serves for ever"),
                        _ = stopped => {}
                    }
                });
            });
            test(&path);
            drop(stop);
        });
        std::fs::remove_dir_all(&directory).expect("it was there");
    }

    #[test]
    fn a_request_has_progress_and_one_end() {
        with_server("progress", |path| {
            let mut client = Client::connect(&control(path)).expect("the server listens");
            for _ in 0..2 {
                let mut seen = Vec::new();
                let request = Request::Flush {
                    volume: Some("db".into()),
                };
                let reply = client
                    .call(&request, |text| seen.push(text.to_owned()))
                    .expect("it is answered");
                assert_eq!(reply, Reply::Done("flushed Some(\"db\")".into()));
                assert_eq!(seen, ["2 left", "1 left"]);
            }
            let refused = client.call(&Request::Status {}, |_| ()).unwrap_err();
            assert!(refused.report().contains("only flush"), "{refused:?}");
            let mode = std::fs::metadata(path)
                .expect("a socket")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        });
    }

    #[test]
    fn garbage_is_answered_and_the_server_lives_on() {
        use std::io::{Read as _, Write as _};
        with_server("garbage", |path| {
            let mut stream = StdStream::connect(path).expect("the server listens");
            stream.write_all(b"\xff\xfe{\n").expect("sent");
            let mut answer = [0; 9];
            stream.read_exact(&mut answer).expect("answered");
            assert_eq!(&answer, b"{\"error\":");
            let mut flood = StdStream::connect(path).expect("the server listens");
            flood.write_all(&vec![b'x'; LINE_BYTES + 1]).ok();
            let mut text = String::new();
            flood.read_to_string(&mut text).ok();
            assert!(text.is_empty() || text.contains("at most 1 MiB"), "{text}");
            let mut client = Client::connect(&control(path)).expect("the server lives on");
            let request = Request::Flush { volume: None };
            assert!(client.call(&request, |_| ()).is_ok());
        });
    }

    #[test]
    fn a_second_daemon_is_refused_and_a_dead_ones_socket_replaced() {
        let directory = std::env::temp_dir().join(format!("fb-stale-{}", std::process::id()));
        let path = directory.join("control.sock");
        let first = bind(&path).expect("the socket can be made");
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::Busy);
        drop(first);
        drop(bind(&path).expect("a socket that nobody answers on is replaced"));
        std::fs::remove_dir_all(&directory).expect("it was there");
    }
}
