//! The handshake: from the greeting to the choice of an export.

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_wire::nbd::handshake::{
    Greeting, InfoRequest, OptionHeader, OptionReply, decode_client_flags, decode_name,
    encode_server, flags, option, reply,
};

use crate::net::Receiver;
use forebay_tls::Channel;

use super::context;
use super::export::{Export, Exports, unknown};
use super::headers::Headers;

/// Maximum length of option data, bytes: a name and many information types.
const MAX_OPTION_BYTES: u32 = 8 << 10;

/// Extensions that a connection uses.
#[derive(Clone, Copy)]
pub(super) struct Extensions {
    /// Headers of its messages.
    pub(super) headers: Headers,
    /// Whether the client may ask for the allocation of blocks.
    pub(super) allocation: bool,
}

/// Result of a handshake.
pub(super) struct Session {
    pub(super) export: Export,
    pub(super) extensions: Extensions,
}

/// Outcome of option haggling.
pub(super) enum Outcome {
    /// The client disconnected.
    Left,
    /// The client may start TLS.
    StartTls,
    /// The client has chosen an export.
    Chosen(Session),
}

/// TLS state of a connection (the protocol document's "TLS support").
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Security {
    /// The server has no TLS (NOTLS).
    Absent,
    /// The client may start TLS (SELECTIVETLS, mandatory for no export).
    Offered,
    /// The client must start TLS (FORCEDTLS).
    Required,
    /// TLS is active.
    Active,
}

impl Security {
    /// Returns the state of a new connection.
    pub(super) fn at_first(exports: &Exports) -> Self {
        match exports.tls() {
            None => Self::Absent,
            Some(tls) if tls.is_required() => Self::Required,
            Some(_) => Self::Offered,
        }
    }
}

/// Greets a client and returns its flags. Returns `None` if it disconnected.
pub(super) async fn greet(
    stream: &Stream,
    receiver: &mut Receiver,
    security: Security,
) -> Result<Option<u16>> {
    let greeting = Greeting {
        flags: flags::FIXED_NEWSTYLE | flags::NO_ZEROES,
    };
    send(stream, &greeting.encode()).await?;
    let Some(client_flags) = receiver.take().await? else {
        return Ok(None);
    };
    let client_flags = decode_client_flags(client_flags)?;
    if security == Security::Required && client_flags & flags::FIXED_NEWSTYLE == 0 {
        // This client cannot get an error, since option replies are part of fixed newstyle.
        let old =
            "TLS is required, and the client does not support fixed newstyle, which TLS needs";
        return Err(Error::new(ErrorKind::Permission, old));
    }
    Ok(Some(client_flags))
}

/// Negotiates with a client until it has chosen an export, or starts TLS.
pub(super) async fn negotiate<C: Channel>(
    channel: &C,
    receiver: &mut Receiver<C>,
    exports: &Exports,
    client_flags: u16,
    security: Security,
) -> Result<Outcome> {
    let mut headers = Headers::Simple;
    let mut allocation_of = None;
    while let Some(header) = receiver.take::<16>().await? {
        let header = OptionHeader::decode(&header)?;
        if header.length > MAX_OPTION_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "option {} with {} bytes of data; the limit is {MAX_OPTION_BYTES}",
                    header.option, header.length
                ),
            ));
        }
        let data = receiver.take_vec(header.length as usize).await?;
        let mut out = Vec::new();
        let mut chosen = None;
        match header.option {
            option::EXPORT_NAME if security == Security::Required => {
                let plain = "the client chose an export without TLS, which is required";
                return Err(Error::new(ErrorKind::Permission, plain));
            }
            option::EXPORT_NAME if headers == Headers::Extended => {
                let extended = "the client chose an export by name, in spite of extended headers";
                return Err(Error::new(ErrorKind::InvalidInput, extended));
            }
            option::EXPORT_NAME => {
                // The only way to refuse this option is to close the connection.
                let name = decode_name(&data)?;
                let export = exports.find(name).ok_or_else(|| unknown(name))?;
                let no_zeroes = client_flags & flags::NO_ZEROES != 0;
                out = export.answer(no_zeroes, headers);
                chosen = Some(export);
            }
            option::ABORT => {
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
                send(channel, &out).await?;
                return Ok(Outcome::Left);
            }
            option::STARTTLS if security == Security::Active => {
                let why = b"TLS has begun already";
                OptionReply::append(&mut out, header.option, reply::ERR_INVALID, why);
            }
            option::STARTTLS if security != Security::Absent && data.is_empty() => {
                if !receiver.is_empty() {
                    // A third party could have added these bytes, and they would pass for
                    // protected.
                    let context = "bytes followed STARTTLS before it was answered";
                    return Err(Error::new(ErrorKind::InvalidInput, context));
                }
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
                send(channel, &out).await?;
                return Ok(Outcome::StartTls);
            }
            option::STARTTLS if security != Security::Absent => {
                let why = b"this option has no data";
                OptionReply::append(&mut out, header.option, reply::ERR_INVALID, why);
            }
            _ if security == Security::Required => {
                let why = b"TLS is required: start with STARTTLS";
                OptionReply::append(&mut out, header.option, reply::ERR_TLS_REQD, why);
            }
            option::INFO | option::GO => {
                let found = describe(header.option, &data, headers, exports, &mut out);
                if header.option == option::GO {
                    chosen = found;
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let chosen = context::answer(header.option, &data, headers, exports, &mut out);
                // A new choice replaces the former one, even if it fails.
                if header.option == option::SET_META_CONTEXT {
                    allocation_of = chosen;
                }
            }
            option::LIST if data.is_empty() => {
                for export in exports.all() {
                    let server = encode_server(export.volume.name(), &export.description);
                    OptionReply::append(&mut out, header.option, reply::SERVER, &server);
                }
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY if headers == Headers::Extended => {
                let why = b"extended headers are enabled";
                OptionReply::append(&mut out, header.option, reply::ERR_EXT_HEADER_REQD, why);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                headers = Headers::Structured;
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
            }
            option::EXTENDED_HEADERS if data.is_empty() => {
                headers = Headers::Extended;
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                let why = b"this option has no data";
                OptionReply::append(&mut out, header.option, reply::ERR_INVALID, why);
            }
            _ => OptionReply::append(&mut out, header.option, reply::ERR_UNSUP, &[]),
        }
        send(channel, &out).await?;
        if let Some(export) = chosen {
            // The context of another export does not count.
            let allocation = allocation_of.as_deref() == Some(export.volume.name());
            let extensions = Extensions {
                headers,
                allocation,
            };
            return Ok(Outcome::Chosen(Session { export, extensions }));
        }
    }
    Ok(Outcome::Left)
}

/// Answers INFO or GO. Returns the export on success.
fn describe(
    asked: u32,
    data: &[u8],
    headers: Headers,
    exports: &Exports,
    out: &mut Vec<u8>,
) -> Option<Export> {
    let request = match InfoRequest::decode(data) {
        Ok(request) => request,
        Err(error) => {
            let why = error.to_string();
            OptionReply::append(out, asked, reply::ERR_INVALID, why.as_bytes());
            return None;
        }
    };
    let Some(export) = exports.find(&request.name) else {
        let why = unknown(&request.name).to_string();
        OptionReply::append(out, asked, reply::ERR_UNKNOWN, why.as_bytes());
        return None;
    };
    for property in export.properties(&request.wanted, headers) {
        OptionReply::append(out, asked, reply::INFO, &property.encode());
    }
    OptionReply::append(out, asked, reply::ACK, &[]);
    Some(export)
}

async fn send(channel: &impl Channel, bytes: &[u8]) -> Result<()> {
    channel.send(&[Buf::copied(bytes)]).await
}
