//! Handshake: from a URI to a connection in the transmission phase.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::{Deadline, Stream};
use forebay_tls::{Channel, ClientTls, Secure};
use forebay_wire::nbd::context::{BASE_ALLOCATION, Context, ContextRequest};
use forebay_wire::nbd::handshake::{
    GREETING_BYTES, Greeting, Info, InfoRequest, OPTION_REPLY_BYTES, OptionHeader, OptionReply,
    export, flags, info, option, reply,
};
use forebay_wire::nbd::{MAX_PAYLOAD_BYTES, MAX_STRING_BYTES};

use super::Uri;
use super::line::Line;

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
    size_bytes: u64,
    /// Transmission flags that this device uses.
    flags: u16,
    pub(super) blocks: BlockSizes,
    /// Whether replies are structured.
    pub(super) structured: bool,
    /// Identifier of `base:allocation`, if the server has that.
    pub(super) allocation: Option<u32>,
}

impl Offer {
    /// Returns whether the export has a transmission flag of those that this device uses.
    pub(super) const fn has(&self, flag: u16) -> bool {
        self.flags & USED & flag != 0
    }

    /// Returns the size in whole blocks, bytes.
    pub(super) const fn whole_bytes(&self) -> u64 {
        let block = self.blocks.minimum_bytes as u64;
        self.size_bytes / block * block
    }

    /// Returns whether another connection of the same server has the same offer. Identifiers of
    /// contexts are those of a connection.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let unnumbered = |offer: &Self| Self {
            allocation: offer.allocation.map(|_| 0),
            ..*offer
        };
        unnumbered(self) == unnumbered(other)
    }

    /// Describes a difference by which the export `now` cannot be this one, whose last size was
    /// `was_bytes`. Returns `None` if there is none. Growth is no difference.
    pub(super) fn difference(&self, was_bytes: u64, now: &Self) -> Option<String> {
        let is_bytes = now.whole_bytes();
        if is_bytes < was_bytes {
            return Some(format!(
                "it has shrunk from {was_bytes} to {is_bytes} bytes"
            ));
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
pub(super) async fn connect(uri: &Uri, tls: Option<&ClientTls>) -> Result<(Rc<Line>, Offer)> {
    let stream = Rc::new(Stream::connect(&uri.address).await?);
    let deadline = Deadline::set(&stream, TIMEOUT);
    let line = greet(&stream, tls).await?;
    let offer = negotiate(&line, &uri.export).await?;
    deadline.cancel();
    Ok((Rc::new(line), offer))
}

async fn receive(stream: &impl Channel, len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let buf = Buf::scratch(len);
    stream.recv_exact(buf.clone()).await?;
    Ok(buf.to_vec())
}

/// Answers the greeting, and starts TLS if there is a configuration.
async fn greet(stream: &Rc<Stream>, tls: Option<&ClientTls>) -> Result<Line> {
    let greeting = Greeting::decode(&receive(&**stream, GREETING_BYTES).await?)?;
    if greeting.flags & flags::FIXED_NEWSTYLE == 0 {
        let what = "the server speaks an older protocol than fixed newstyle";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let client_flags = u32::from(flags::FIXED_NEWSTYLE | greeting.flags & flags::NO_ZEROES);
    let client_flags = Buf::copied(&client_flags.to_be_bytes());
    stream.send(&[client_flags]).await?;
    let Some(tls) = tls else {
        return Ok(Line::Plain(Rc::clone(stream)));
    };
    let start = encode_option(option::STARTTLS, &[]);
    stream.send(&[Buf::copied(&start)]).await?;
    if next_reply(&**stream, option::STARTTLS).await?.kind != reply::ACK {
        let what = "the server offers no TLS\nhelp: configure it there, or write nbd:// here";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let secure = Secure::connect(Rc::clone(stream), tls).await?;
    Ok(Line::Secure(Rc::clone(stream), Box::new(secure)))
}

/// Asks for structured replies, and selects the export.
async fn negotiate(stream: &Line, name: &str) -> Result<Offer> {
    let asks = encode_option(option::STRUCTURED_REPLY, &[]);
    stream.send(&[Buf::copied(&asks)]).await?;
    // A server that does not know the option answers with an error.
    let answer = next_reply(stream, option::STRUCTURED_REPLY).await?;
    let structured = answer.kind == reply::ACK;
    let allocation = match structured {
        true => select_allocation(stream, name).await?,
        false => None,
    };
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
        allocation,
    })
}

/// Selects the context `base:allocation`. Returns its identifier, or `None` without it.
async fn select_allocation(stream: &impl Channel, name: &str) -> Result<Option<u32>> {
    let wanted = ContextRequest {
        name: name.to_owned(),
        queries: vec![BASE_ALLOCATION.to_owned()],
    };
    let asks = encode_option(option::SET_META_CONTEXT, &wanted.encode());
    stream.send(&[Buf::copied(&asks)]).await?;
    let mut found = None;
    loop {
        let answer = next_reply(stream, option::SET_META_CONTEXT).await?;
        match answer.kind {
            reply::META_CONTEXT => {
                let context = Context::decode(&answer.data)?;
                if context.name == BASE_ALLOCATION {
                    found = Some(context.id);
                }
            }
            reply::ACK => return Ok(found),
            // GO reports what is wrong with the export.
            _ => return Ok(None),
        }
    }
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
async fn next_reply(stream: &impl Channel, option: u32) -> Result<Reply> {
    let header = OptionReply::decode(&receive(stream, OPTION_REPLY_BYTES).await?)?;
    if header.option != option || header.length > MAX_REPLY_BYTES {
        let what = "the server's reply is too long, or answers an option that was not sent";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(Reply {
        kind: header.kind,
        data: receive(stream, header.length as usize).await?,
    })
}

/// Returns the next reply to GO. `None` ends the replies: transmission starts.
async fn next_property(stream: &Line, name: &str) -> Result<Option<Info>> {
    let Reply { kind, data } = next_reply(stream, option::GO).await?;
    let (kind, what, help) = match kind {
        reply::ACK => return Ok(None),
        reply::INFO => return Info::decode(&data).map(Some),
        reply::ERR_UNKNOWN => (
            ErrorKind::NotFound,
            "the server has no such export",
            "name an export of `nbdinfo --list`",
        ),
        reply::ERR_UNSUP => (
            ErrorKind::Unsupported,
            "the server does not support the option GO",
            "use a server that speaks fixed newstyle",
        ),
        reply::ERR_POLICY => (
            ErrorKind::Permission,
            "the server denies access by its policy",
            "admit this client at the server",
        ),
        reply::ERR_TLS_REQD => (
            ErrorKind::Permission,
            "the server requires TLS",
            "write nbds with tls-certificates=DIRECTORY in the URI",
        ),
        reply::ERR_SHUTDOWN => (
            ErrorKind::ShuttingDown,
            "the server is shutting down",
            "start it, or name another one",
        ),
        _ => (
            ErrorKind::Unsupported,
            "the server refuses the export",
            "read its log",
        ),
    };
    let mut message = format!("export {name:?}: {what}\nhelp: {help}");
    if !data.is_empty() {
        let detail = String::from_utf8_lossy(&data);
        message += &format!(" (message of the server: {detail:?})");
    }
    Err(Error::new(kind, message))
}
