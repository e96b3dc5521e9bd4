//! A client that may send anything.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_wire::nbd::handshake::{Greeting, Info, InfoRequest, OptionHeader, OptionReply};
use forebay_wire::nbd::handshake::{option, reply};
use forebay_wire::nbd::transmission::{Request, SimpleReply};

use crate::server::Server;

/// Timeout for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Raw<S = UnixStream> {
    pub(crate) stream: S,
}

impl Raw {
    /// Connects and sends nothing.
    pub(crate) fn silent(server: &Server) -> Self {
        let stream = UnixStream::connect(server.socket()).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream }
    }

    /// Connects and exchanges greetings.
    pub(crate) fn greeted(server: &Server) -> Self {
        let mut raw = Self::silent(server);
        let greeting = Greeting::decode(&raw.bytes::<18>()).expect("a greeting");
        assert_eq!(greeting.flags, 3);
        raw.say(&3_u32.to_be_bytes());
        raw
    }

    /// Connects and continues to transmission, with simple replies.
    pub(crate) fn ready(server: &Server) -> Self {
        let mut raw = Self::greeted(server);
        raw.go("disk");
        raw
    }
}

impl<S: Read + Write> Raw<S> {
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub(crate) fn option(&mut self, option: u32, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("short");
        self.say(&OptionHeader { option, length }.encode());
        self.say(data);
    }

    /// Returns the next reply to an option.
    pub(crate) fn answer(&mut self) -> (OptionReply, Vec<u8>) {
        let header = OptionReply::decode(&self.bytes::<20>()).expect("a reply");
        let mut data = vec![0; header.length as usize];
        self.stream.read_exact(&mut data).expect("its data");
        (header, data)
    }

    /// Chooses an export. Returns its properties.
    pub(crate) fn go(&mut self, name: &str) -> Vec<Info> {
        let request = InfoRequest {
            name: name.to_owned(),
            wanted: vec![],
        };
        self.option(option::GO, &request.encode());
        let mut properties = Vec::new();
        loop {
            let (header, data) = self.answer();
            match header.kind {
                reply::INFO => properties.push(Info::decode(&data).expect("a property")),
                reply::ACK => return properties,
                other => panic!("reply {other:#x} to GO"),
            }
        }
    }

    pub(crate) fn request(&mut self, command: u16, offset: u64, length: u32) {
        let request = Request {
            flags: 0,
            command,
            cookie: offset ^ 0xf0eb,
            offset,
            length,
        };
        self.say(&request.encode());
    }

    /// Returns the next simple reply, without data.
    pub(crate) fn simple(&mut self) -> SimpleReply {
        SimpleReply::decode(&self.bytes::<16>()).expect("a simple reply")
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream
            .read_exact(&mut bytes)
            .expect("the server answers");
        bytes
    }

    /// Reads `len` bytes of data.
    pub(crate) fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).expect("the data");
        data
    }

    /// Waits until the server closes. Returns everything that it sent before.
    pub(crate) fn closed(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => rest,
            Err(error) => panic!("the server does not close: {error}"),
        }
    }
}
