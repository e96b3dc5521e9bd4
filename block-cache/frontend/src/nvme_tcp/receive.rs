//! Receiver of capsules and data.

use forebay_block::{Buf, Result};
use forebay_wire::nvme::Command;
use forebay_wire::nvme::command::COMMAND_BYTES;
use forebay_wire::nvme_tcp::{
    ADMIN_IN_CAPSULE_BYTES, COMMON_BYTES, Common, DIGEST_BYTES, DataHeader, Fatal, Fault, Kind,
    Layout, Terminate, digest,
};

use crate::net::Receiver;

use super::reply::Style;
use super::{End, cut_off};

/// A command with the data in its capsule.
pub(super) struct Capsule {
    pub(super) command: Command,
    pub(super) data: Option<Buf>,
    /// Whether the data digest matches.
    pub(super) sound: bool,
}

/// Receives the next command. Returns `None` if the host disconnected.
pub(super) async fn next_capsule(
    receiver: &mut Receiver,
    style: Style,
) -> Result<Option<Capsule>, End> {
    let Some(header) = receiver.take::<COMMON_BYTES>().await? else {
        return Ok(None);
    };
    // The host adds no padding, since this target requests no alignment.
    let layout = Common::decode(header).check(style.digests, 0)?;
    if layout.kind != Kind::CapsuleCmd {
        return Err(Fault::plain(Fatal::SequenceError).into());
    }
    let capsule = take_capsule(receiver, &header, layout, ADMIN_IN_CAPSULE_BYTES).await?;
    Ok(Some(capsule))
}

/// Receives the rest of a command's PDU after the common header. Its data may have `most_bytes`.
pub(super) async fn take_capsule(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
    most_bytes: u32,
) -> Result<Capsule, End> {
    let rest = take::<COMMAND_BYTES>(receiver, common, layout).await?;
    if layout.data_bytes > most_bytes {
        return Err(Fault::plain(Fatal::LimitExceeded).into());
    }
    let mut capsule = Capsule {
        command: Command::decode(rest),
        data: None,
        sound: true,
    };
    if layout.data_bytes > 0 {
        let buf = Buf::scratch(layout.data_bytes as usize);
        capsule.sound = take_data(receiver, &buf, layout).await?;
        capsule.data = Some(buf);
    }
    Ok(capsule)
}

/// Receives the rest of a data PDU's header.
pub(super) async fn take_data_header(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
) -> Result<DataHeader, End> {
    let rest = take::<{ DataHeader::BYTES }>(receiver, common, layout).await?;
    let header = DataHeader::decode(rest);
    if header.length != layout.data_bytes {
        return Err(Fault::field(DataHeader::LENGTH_AT).into());
    }
    Ok(header)
}

/// Receives the reason for which a host terminates its connection.
pub(super) async fn take_termination(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
) -> Result<Terminate, End> {
    let rest = take::<{ Terminate::BYTES }>(receiver, common, layout).await?;
    Ok(Terminate::decode(rest))
}

/// Receives the rest of a header and checks its digest.
async fn take<const N: usize>(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
) -> Result<[u8; N], End> {
    let rest = receiver.take::<N>().await?.ok_or_else(cut_off)?;
    if layout.header_digest {
        let expected: [u8; DIGEST_BYTES] = receiver.take().await?.ok_or_else(cut_off)?;
        let mut header = [0; COMMON_BYTES + COMMAND_BYTES];
        header[..COMMON_BYTES].copy_from_slice(common);
        header[COMMON_BYTES..COMMON_BYTES + N].copy_from_slice(&rest);
        if digest(&header[..COMMON_BYTES + N]) != expected {
            return Err(Fault {
                fatal: Fatal::HeaderDigest,
                information: u32::from_le_bytes(expected),
            }
            .into());
        }
    }
    Ok(rest)
}

/// Receives the data of a PDU. Returns whether the data digest matches.
pub(super) async fn take_data(
    receiver: &mut Receiver,
    into: &Buf,
    layout: Layout,
) -> Result<bool, End> {
    receiver.take_payload(into).await?;
    if !layout.data_digest {
        return Ok(true);
    }
    let expected: [u8; DIGEST_BYTES] = receiver.take().await?.ok_or_else(cut_off)?;
    // SAFETY: it was received completely, and no caller gets it before the digest is checked.
    Ok(digest(unsafe { into.bytes() }) == expected)
}
