//! Handshake: from a URI to a connection in the transmission phase.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::Stream;
use forebay_io::rt;
use forebay_wire::nbd::handshake::{
    CLIENT_FLAGS_BYTES, GREETING_BYTES, Greeting, Info, InfoRequest, OPTION_REPLY_BYTES,
    OptionHeader, OptionReply, flags, info, option, reply,
};
use forebay_wire::nbd::{MAX_PAYLOAD_BYTES, MAX_STRING_BYTES};

use super::Uri;

/// Time limit of the handshake.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum length of an option reply, bytes: a name, a description and some more.
const LONGEST_BYTES: u32 = 4 * MAX_STRING_BYTES as u32;
/// Supported block sizes, bytes.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65_536;

/// Properties of the export.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) size_bytes: u64,
    /// Transmission flags.
    pub(super) flags: u16,
    pub(super) minimum_bytes: u32,
    pub(super) preferred_bytes: u32,
    pub(super) maximum_bytes: u32,
}

pub(super) async fn connect(uri: &Uri) -> Result<(Rc<Stream>, Offer)> {
    let stream = Rc::new(Stream::connect(&uri.address).await?);
    let agreed = Rc::new(Cell::new(false));
    let (watched, over) = (Rc::clone(&stream), Rc::clone(&agreed));
    rt::spawn(async move {
        rt::sleep(PATIENCE).await;
        if !over.get() {
            watched.shutdown();
        }
    });
    let offer = negotiate(&stream, &uri.export).await?;
    agreed.set(true);
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

async fn negotiate(stream: &Stream, name: &str) -> Result<Offer> {
    let greeting = Greeting::decode(&receive(stream, GREETING_BYTES).await?)?;
    if greeting.flags & flags::FIXED_NEWSTYLE == 0 {
        let what = "the server speaks an older protocol than fixed newstyle";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let ours = u32::from(flags::FIXED_NEWSTYLE | greeting.flags & flags::NO_ZEROES);
    let data = InfoRequest {
        name: name.to_owned(),
        wanted: vec![info::BLOCK_SIZE],
    };
    let data = data.encode();
    let header = OptionHeader {
        option: option::GO,
        length: u32::try_from(data.len()).expect("a short name"),
    };
    let mut said = Vec::with_capacity(CLIENT_FLAGS_BYTES + data.len() + 16);
    said.extend_from_slice(&ours.to_be_bytes());
    said.extend_from_slice(&header.encode());
    said.extend_from_slice(&data);
    stream.send(&[Buf::copied(&said)]).await?;
    let mut size = None;
    let (mut minimum, mut preferred, mut maximum) = (512, 4096, MAX_PAYLOAD_BYTES);
    while let Some(property) = property(stream, name).await? {
        match property {
            Info::Export { size_bytes, flags } => size = Some((size_bytes, flags)),
            Info::BlockSize {
                minimum: least,
                preferred: best,
                maximum: most,
            } => {
                if !least.is_power_of_two() || least > *BLOCK_BYTES.end() || most < least {
                    let what =
                        format!("the server's blocks of {least} to {most} bytes are not supported");
                    return Err(Error::new(ErrorKind::Unsupported, what));
                }
                minimum = least.max(*BLOCK_BYTES.start());
                preferred = best.clamp(minimum, 1 << 20).next_power_of_two();
                maximum = most.max(minimum);
            }
            _ => {}
        }
    }
    let (size_bytes, flags) = size.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            "the server does not report the size of the export",
        )
    })?;
    Ok(Offer {
        size_bytes,
        flags,
        minimum_bytes: minimum,
        preferred_bytes: preferred,
        maximum_bytes: maximum,
    })
}

/// Returns the next reply to GO. `None` ends the replies: transmission starts.
async fn property(stream: &Stream, name: &str) -> Result<Option<Info>> {
    let header = OptionReply::decode(&receive(stream, OPTION_REPLY_BYTES).await?)?;
    if header.option != option::GO || header.length > LONGEST_BYTES {
        let what = "the server answers an option that was not sent";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let data = receive(stream, header.length as usize).await?;
    let (kind, what) = match header.kind {
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
        reply::ERR_SHUTDOWN => (ErrorKind::ShuttingDown, "the server is shutting down"),
        _ => (ErrorKind::Unsupported, "the server refuses the export"),
    };
    let mut said = format!("export {name:?}: {what}");
    if !data.is_empty() {
        said += &format!(
            " (message of the server: {:?})",
            String::from_utf8_lossy(&data)
        );
    }
    Err(Error::new(kind, said))
}
