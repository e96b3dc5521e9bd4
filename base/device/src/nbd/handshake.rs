//! Handshake: from a URI to a connection in the transmission phase.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::{Deadline, Stream};
use forebay_wire::nbd::handshake::{
    GREETING_BYTES, Greeting, Info, InfoRequest, OPTION_REPLY_BYTES, OptionHeader, OptionReply,
    export, flags, info, option, reply,
};
use forebay_wire::nbd::{MAX_PAYLOAD_BYTES, MAX_STRING_BYTES};

use super::Uri;

/// Time limit of the handshake, without that of the connection.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of an option reply, bytes: a name, a description and some more.
const MAX_REPLY_BYTES: u32 = 4 * MAX_STRING_BYTES as u32;
/// Supported block sizes, bytes.
const BLOCK_BYTES: RangeInclusive<u32> = 512..=65_536;
/// Preferred block size of a server that does not name one, bytes.
const DEFAULT_PREFERRED_BYTES: u32 = 4096;
/// Maximum preferred block size, bytes.
const MAX_PREFERRED_BYTES: u32 = 1 << 20;

/// Transmission flags that this device uses.
const USED: u16 = export::READ_ONLY
    | export::SEND_FLUSH
    | export::SEND_FUA
    | export::SEND_TRIM
    | export::SEND_WRITE_ZEROES
    | export::CAN_MULTI_CONN;

/// Properties of the export, and of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) size_bytes: u64,
    /// Transmission flags that this device uses.
    flags: u16,
    pub(super) blocks: BlockSizes,
    /// Whether replies are structured.
    pub(super) structured: bool,
}

impl Offer {
    /// Returns whether the export has a transmission flag of those that this device uses.
    pub(super) const fn has(&self, flag: u16) -> bool {
        self.flags & USED & flag != 0
    }

    /// Describes a property of the export `now` that rules out that it is this one. The export may
    /// grow.
    pub(super) fn difference(&self, now: &Self) -> Option<String> {
        if now.size_bytes < self.size_bytes {
            let (was, is) = (self.size_bytes, now.size_bytes);
            return Some(format!("it has shrunk from {was} to {is} bytes"));
        }
        if now.flags != self.flags {
            let (was, is) = (self.flags, now.flags);
            return Some(format!("its flags are {is:#x} instead of {was:#x}"));
        }
        (now.blocks != self.blocks).then(|| {
            let BlockSizes {
                minimum_bytes,
                preferred_bytes,
                maximum_bytes,
            } = now.blocks;
            format!("its block sizes are now {minimum_bytes}/{preferred_bytes}/{maximum_bytes}")
        })
    }
}

/// Lengths of requests. Each is a power of two, except the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSizes {
    pub(super) minimum_bytes: u32,
    pub(super) preferred_bytes: u32,
    pub(super) maximum_bytes: u32,
}

/// Block sizes of a server that names none, by the protocol.
const DEFAULT_BLOCKS: BlockSizes = BlockSizes {
    minimum_bytes: *BLOCK_BYTES.start(),
    preferred_bytes: DEFAULT_PREFERRED_BYTES,
    maximum_bytes: MAX_PAYLOAD_BYTES,
};

impl BlockSizes {
    /// Returns the sizes to use with a server that names these ones.
    ///
    /// # Errors
    /// `Unsupported` if no block size suits both sides.
    fn agreed(minimum: u32, preferred: u32, maximum: u32) -> Result<Self> {
        if !minimum.is_power_of_two() || minimum > *BLOCK_BYTES.end() || maximum < minimum {
            let what =
                format!("the server's blocks of {minimum} to {maximum} bytes are not supported");
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let minimum_bytes = minimum.max(*BLOCK_BYTES.start());
        let preferred = preferred.clamp(minimum_bytes, MAX_PREFERRED_BYTES);
        Ok(Self {
            minimum_bytes,
            preferred_bytes: preferred.next_power_of_two(),
            maximum_bytes: maximum.max(minimum_bytes),
        })
    }
}

/// Connects to the server and asks for the export. The stream is in the transmission phase.
///
/// # Errors
/// Errors of the connection; `NotFound`, `Permission`, `ShuttingDown` or `Unsupported` if the
/// server refuses the export; `Unsupported` or `InvalidInput` for an answer that does not suit.
pub(super) async fn connect(uri: &Uri) -> Result<(Rc<Stream>, Offer)> {
    if uri.tls.is_some() {
        let what = "TLS to an NBD server is not supported";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let stream = Rc::new(Stream::connect(&uri.address).await?);
    let deadline = Deadline::set(&stream, TIMEOUT);
    let offer = negotiate(&stream, &uri.export).await?;
    deadline.cancel();
    Ok((stream, offer))
}

async fn receive(stream: &Stream, len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let buf = Buf::scratch(len);
    stream.recv_exact(buf.clone()).await?;
    Ok(buf.to_vec())
}

/// Answers the greeting, asks for structured replies, and selects the export.
async fn negotiate(stream: &Stream, name: &str) -> Result<Offer> {
    let greeting = Greeting::decode(&receive(stream, GREETING_BYTES).await?)?;
    if greeting.flags & flags::FIXED_NEWSTYLE == 0 {
        let what = "the server speaks an older protocol than fixed newstyle";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let client_flags = u32::from(flags::FIXED_NEWSTYLE | greeting.flags & flags::NO_ZEROES);
    let asks = encode_option(option::STRUCTURED_REPLY, &[]);
    let hello = [&client_flags.to_be_bytes()[..], &asks].concat();
    stream.send(&[Buf::copied(&hello)]).await?;
    // A server that does not know the option answers with an error.
    let answer = next_reply(stream, option::STRUCTURED_REPLY).await?;
    let structured = answer.kind == reply::ACK;
    let request = InfoRequest {
        name: name.to_owned(),
        wanted: vec![info::BLOCK_SIZE],
    };
    let go = encode_option(option::GO, &request.encode());
    stream.send(&[Buf::copied(&go)]).await?;
    let (mut export, mut blocks) = (None, DEFAULT_BLOCKS);
    while let Some(property) = next_property(stream, name).await? {
        match property {
            Info::Export { size_bytes, flags } => export = Some((size_bytes, flags)),
            Info::BlockSize {
                minimum,
                preferred,
                maximum,
            } => blocks = BlockSizes::agreed(minimum, preferred, maximum)?,
            _ => {}
        }
    }
    let (size_bytes, flags) = export.ok_or_else(|| {
        let what = "the server does not report the size of the export";
        Error::new(ErrorKind::InvalidInput, what)
    })?;
    Ok(Offer {
        size_bytes,
        flags: flags & USED,
        blocks,
        structured,
    })
}

/// Encodes an option with its data.
fn encode_option(option: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader {
        option,
        length: u32::try_from(data.len()).expect("a short name"),
    };
    [&header.encode()[..], data].concat()
}

/// Reply to an option.
struct Reply {
    /// See [`reply`].
    kind: u32,
    data: Vec<u8>,
}

/// Receives the next reply to `option`.
async fn next_reply(stream: &Stream, option: u32) -> Result<Reply> {
    let header = OptionReply::decode(&receive(stream, OPTION_REPLY_BYTES).await?)?;
    if header.option != option || header.length > MAX_REPLY_BYTES {
        let what = "the server answers an option that was not sent";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(Reply {
        kind: header.kind,
        data: receive(stream, header.length as usize).await?,
    })
}

/// Returns the next reply to GO. `None` ends the replies: transmission starts.
async fn next_property(stream: &Stream, name: &str) -> Result<Option<Info>> {
    let Reply { kind, data } = next_reply(stream, option::GO).await?;
    let (kind, what) = match kind {
        reply::ACK => return Ok(None),
        reply::INFO => return Info::decode(&data).map(Some),
        reply::ERR_UNKNOWN => (ErrorKind::NotFound, "there is no such export"),
        reply::ERR_UNSUP => (
            ErrorKind::Unsupported,
            "the server does not support the option GO",
        ),
        reply::ERR_POLICY => (
            ErrorKind::Permission,
            "the server denies access by its policy",
        ),
        reply::ERR_TLS_REQD => (ErrorKind::Permission, "the server requires TLS"),
        reply::ERR_SHUTDOWN => (ErrorKind::ShuttingDown, "the server is shutting down"),
        _ => (ErrorKind::Unsupported, "the server refuses the export"),
    };
    let mut message = format!("export {name:?}: {what}");
    if !data.is_empty() {
        let detail = String::from_utf8_lossy(&data);
        message += &format!(" (message of the server: {detail:?})");
    }
    Err(Error::new(kind, message))
}
