//! A small NBD client: one connection over a Unix socket, simple replies, any number of requests in
//! flight. It shares no code with the program under test.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Outcome;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

/// A connection to one export.
pub(super) struct Client {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the export called `name`. The default export's name is empty.
    pub(super) fn connect(socket: &Path, name: &str) -> Outcome<Self> {
        let connected = Self::try_connect(socket, name);
        connected.map_err(|error| format!("NBD over {}: {error}", socket.display()))
    }

    fn try_connect(socket: &Path, name: &str) -> std::io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut replies = BufReader::with_capacity(64 << 10, stream.try_clone()?);
        let mut greeting = [0; 18];
        replies.read_exact(&mut greeting)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(std::io::Error::other("not an NBD server"));
        }
        // Fixed newstyle, no zeroes; then EXPORT_NAME.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        let length = u32::try_from(name.len()).map_err(std::io::Error::other)?;
        hello.extend_from_slice(&length.to_be_bytes());
        hello.extend_from_slice(name.as_bytes());
        stream.write_all(&hello)?;
        let mut export = [0; 10];
        replies.read_exact(&mut export)?;
        Ok(Self { stream, replies })
    }

    fn request(
        &mut self,
        kind: u16,
        cookie: u64,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> Outcome<()> {
        let mut message = Vec::with_capacity(28 + data.len());
        message.extend_from_slice(&0x2560_9513u32.to_be_bytes());
        message.extend_from_slice(&0u16.to_be_bytes());
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&cookie.to_be_bytes());
        message.extend_from_slice(&offset.to_be_bytes());
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(data);
        let sent = self.stream.write_all(&message);
        sent.map_err(|error| format!("sending a request: {error}"))
    }

    /// Starts a write. [`Client::answer`] returns when one has ended.
    pub(super) fn write(&mut self, cookie: u64, offset: u64, data: &[u8]) -> Outcome<()> {
        let length = u32::try_from(data.len()).map_err(|error| error.to_string())?;
        self.request(WRITE, cookie, offset, length, data)
    }

    /// Waits for the answer to any request without data in its answer. Returns its cookie.
    pub(super) fn answer(&mut self) -> Outcome<u64> {
        let mut reply = [0; 16];
        let received = self.replies.read_exact(&mut reply);
        received.map_err(|error| format!("waiting for an answer: {error}"))?;
        let magic = u32::from_be_bytes(reply[..4].try_into().expect("four bytes"));
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        match (magic, error) {
            (0x6744_6698, 0) => Ok(u64::from_be_bytes(
                reply[8..].try_into().expect("eight bytes"),
            )),
            (0x6744_6698, error) => Err(format!("the server answered with error {error}")),
            _ => Err("a malformed answer".into()),
        }
    }

    /// Flushes. No other request may be in flight.
    pub(super) fn flush(&mut self) -> Outcome<()> {
        self.request(FLUSH, u64::MAX, 0, 0, &[])?;
        self.answer().map(drop)
    }

    /// Reads into `data`. No other request may be in flight.
    pub(super) fn read(&mut self, offset: u64, data: &mut [u8]) -> Outcome<()> {
        let length = u32::try_from(data.len()).map_err(|error| error.to_string())?;
        self.request(READ, 0, offset, length, &[])?;
        self.answer()?;
        let received = self.replies.read_exact(data);
        received.map_err(|error| format!("receiving data: {error}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.request(DISCONNECT, 0, 0, 0, &[]);
    }
}

/// Flushes once a second over its own connection, as another application would.
pub(super) struct Flusher {
    end: Sender<()>,
    thread: JoinHandle<Outcome<u64>>,
}

impl Flusher {
    pub(super) fn start(socket: &Path, name: &str) -> Outcome<Self> {
        let mut client = Client::connect(socket, name)?;
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let thread = std::thread::spawn(move || {
            let mut flushes = 0;
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                client.flush()?;
                flushes += 1;
            }
            Ok(flushes)
        });
        Ok(Self { end, thread })
    }

    /// Ends it. Returns the number of flushes.
    pub(super) fn stop(self) -> Outcome<u64> {
        drop(self.end);
        let ended = self.thread.join();
        ended.map_err(|_| "the flusher panicked".to_owned())?
    }
}
