//! The handshake: from the greeting to the choice of an export.

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_wire::nbd::handshake::{
    Greeting, InfoRequest, OptionHeader, OptionReply, decode_client_flags, decode_name,
    encode_server, flags, option, reply,
};

use crate::net::Receiver;

use super::export::{Export, Exports};

/// Longest data of an option that is looked at, bytes: a name and a good many information types.
const MAX_OPTION_BYTES: u32 = 8 << 10;

/// What a handshake came to.
pub(super) struct Session {
    pub(super) export: Export,
    pub(super) structured: bool,
}

/// Talks with a client until it has chosen an export. None if it left instead.
pub(super) async fn negotiate(
    stream: &Stream,
    receiver: &mut Receiver,
    exports: &Exports,
) -> Result<Option<Session>> {
    let greeting = Greeting {
        flags: flags::FIXED_NEWSTYLE | flags::NO_ZEROES,
    };
    send(stream, &greeting.encode()).await?;
    let Some(client_flags) = receiver.take().await? else {
        return Ok(None);
    };
    let client_flags = decode_client_flags(client_flags)?;
    let mut structured = false;
    while let Some(header) = receiver.take::<16>().await? {
        let header = OptionHeader::decode(&header)?;
        if header.length > MAX_OPTION_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "option {} with {} bytes of data; {MAX_OPTION_BYTES} are the most",
                    header.option, header.length
                ),
            ));
        }
        let data = receiver.take_vec(header.length as usize).await?;
        let mut out = Vec::new();
        let mut chosen = None;
        match header.option {
            option::EXPORT_NAME => {
                // There is no way to say no to this option but to close.
                let name = decode_name(&data)?;
                let export = exports.find(name).ok_or_else(|| unknown(name))?;
                let no_zeroes = client_flags & flags::NO_ZEROES != 0;
                out = export.answer(no_zeroes, structured);
                chosen = Some(export);
            }
            option::ABORT => {
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
                send(stream, &out).await?;
                return Ok(None);
            }
            option::INFO | option::GO => {
                let found = describe(header.option, &data, structured, exports, &mut out);
                if header.option == option::GO {
                    chosen = found;
                }
            }
            option::LIST if data.is_empty() => {
                for export in exports.all() {
                    let server = encode_server(export.volume.name(), &export.description);
                    OptionReply::append(&mut out, header.option, reply::SERVER, &server);
                }
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                structured = true;
                OptionReply::append(&mut out, header.option, reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                let why = b"this option takes no data";
                OptionReply::append(&mut out, header.option, reply::ERR_INVALID, why);
            }
            _ => OptionReply::append(&mut out, header.option, reply::ERR_UNSUP, &[]),
        }
        send(stream, &out).await?;
        if let Some(export) = chosen {
            return Ok(Some(Session { export, structured }));
        }
    }
    Ok(None)
}

/// Answers INFO or GO; the export if all is well.
fn describe(
    asked: u32,
    data: &[u8],
    structured: bool,
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
    for property in export.properties(&request.wanted, structured) {
        OptionReply::append(out, asked, reply::INFO, &property.encode());
    }
    OptionReply::append(out, asked, reply::ACK, &[]);
    Some(export)
}

fn unknown(name: &str) -> Error {
    // The name is a stranger's: shortened, and without control characters.
    let shown: String = name.chars().take(64).collect();
    Error::new(ErrorKind::NotFound, format!("no export called {shown:?}"))
}

async fn send(stream: &Stream, bytes: &[u8]) -> Result<()> {
    stream.send(&[Buf::copied(bytes)]).await
}
