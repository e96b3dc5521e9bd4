//! A small NBD client over a Unix socket: blocking, pipelined, simple replies.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_wire::nbd::{handshake, transmission};
use handshake::{Greeting, Info, InfoRequest, OptionHeader, OptionReply, flags, option, reply};
use transmission::{REQUEST_BYTES, Request, SIMPLE_REPLY_BYTES, SimpleReply, command};

/// Timeout for an answer of the daemon.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to one export.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// Size of the export, bytes.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this, bytes.
    pub block_bytes: u32,
    /// The request of each cookie.
    waiting: HashMap<u64, Request>,
    next_cookie: u64,
}

/// A reply: the cookie of its request, and the data of a read.
#[derive(Debug)]
pub struct Reply {
    /// Cookie of the request.
    pub cookie: u64,
    /// Data of a read.
    pub data: Vec<u8>,
}

fn protocol(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

fn decoded<T>(result: Result<T, forebay_block::Error>) -> io::Result<T> {
    result.map_err(|error| protocol(error.report()))
}

impl Client {
    /// Connects and opens `export`.
    ///
    /// # Errors
    /// Returns the socket's error, or an answer that breaks the protocol.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;

        let mut greeting = [0; handshake::GREETING_BYTES];
        stream.read_exact(&mut greeting)?;
        decoded(Greeting::decode(&greeting))?;
        let both = u32::from(flags::FIXED_NEWSTYLE | flags::NO_ZEROES);
        stream.write_all(&both.to_be_bytes())?;

        let wanted = vec![handshake::info::BLOCK_SIZE];
        let name = export.to_owned();
        let data = InfoRequest { name, wanted }.encode();
        let header = OptionHeader {
            option: option::GO,
            length: u32::try_from(data.len()).map_err(io::Error::other)?,
        };
        stream.write_all(&[header.encode().as_slice(), &data].concat())?;

        let mut client = Self {
            stream,
            size_bytes: 0,
            block_bytes: 512,
            waiting: HashMap::new(),
            next_cookie: 1,
        };
        while let Some(info) = client.read_info()? {
            match info {
                Info::Export { size_bytes, .. } => client.size_bytes = size_bytes,
                Info::BlockSize { minimum, .. } => client.block_bytes = minimum.max(512),
                _ => {}
            }
        }
        Ok(client)
    }

    /// Returns the next answer to GO, or `None` once the server starts transmission.
    fn read_info(&mut self) -> io::Result<Option<Info>> {
        let mut header = [0; handshake::OPTION_REPLY_BYTES];
        self.stream.read_exact(&mut header)?;
        let header = decoded(OptionReply::decode(&header))?;
        let mut data = vec![0; header.length as usize];
        self.stream.read_exact(&mut data)?;
        match header.kind {
            reply::ACK => Ok(None),
            reply::INFO => decoded(Info::decode(&data)).map(Some),
            other => Err(protocol(format!("GO was answered with {other:#x}"))),
        }
    }

    /// Number of requests without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// Sends a request and returns its cookie. `payload` follows a write.
    ///
    /// # Errors
    /// Returns the socket's error.
    pub fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let request = Request {
            flags,
            command,
            cookie,
            offset,
            length,
        };
        let mut bytes = Vec::with_capacity(REQUEST_BYTES + payload.len());
        bytes.extend_from_slice(&request.encode());
        bytes.extend_from_slice(payload);
        self.waiting.insert(cookie, request);
        self.stream.write_all(&bytes)?;
        Ok(cookie)
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// Returns `InvalidData` if the reply reports an error, or the socket's error.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut bytes = [0; SIMPLE_REPLY_BYTES];
        self.stream.read_exact(&mut bytes)?;
        let SimpleReply { error, cookie } = decoded(SimpleReply::decode(&bytes))?;
        let Some(request) = self.waiting.remove(&cookie) else {
            return Err(protocol(format!("a reply with unknown cookie {cookie}")));
        };
        if error != 0 {
            let what = format!("{request:?} was answered with error {error}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut data = Vec::new();
        if request.command == command::READ {
            data.resize(request.length as usize, 0);
            self.stream.read_exact(&mut data)?;
        }
        Ok(Reply { cookie, data })
    }

    /// Reads a range and waits for it.
    ///
    /// # Errors
    /// As [`Self::receive`].
    ///
    /// # Panics
    /// Panics if another request is in flight.
    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        assert_eq!(self.in_flight(), 0, "another request is in flight");
        self.send(command::READ, 0, offset, length, &[])?;
        Ok(self.receive()?.data)
    }
}
