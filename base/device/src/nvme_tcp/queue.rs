//! One connection with one command at a time: the admin queue, and an I/O queue until its
//! association is complete.

use std::rc::Rc;

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_io::net::{Address, Stream};
use forebay_wire::nvme::command::COMPLETION_BYTES;
use forebay_wire::nvme::{Command, Completion, Data, Status};
use forebay_wire::nvme_tcp::{
    ADMIN_IN_CAPSULE_BYTES, COMMON_BYTES, Common, DIGEST_BYTES, DataHeader, Digests, Fault,
    Initialize, Kind, Layout, MIN_H2C_DATA_BYTES, Terminate, digest, flag,
};

use super::Uri;
use crate::receiver::Receiver;

/// Room for the data of an answer, bytes: one page.
const ROOM_BYTES: usize = forebay_wire::nvme::identify::PAGE_BYTES;

/// PDU layout of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) digests: Digests,
    /// Target's data alignment in units of 4 bytes, counted from zero.
    pub(super) alignment: u8,
    /// Maximum data in one PDU to the target, bytes.
    pub(super) max_data_bytes: u32,
}

pub(super) struct Queue {
    pub(super) stream: Rc<Stream>,
    pub(super) receiver: Receiver,
    pub(super) style: Style,
    next_cid: u16,
    room: Buf,
}

/// Answer to a command.
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) result: u64,
    /// Valid bytes of [`Queue::page`].
    filled: usize,
}

impl Queue {
    /// Connects and exchanges the initialization PDUs.
    pub(super) async fn open(uri: &Uri) -> Result<Self> {
        let stream = Rc::new(Stream::connect(&Address::Tcp(uri.address)).await?);
        let mut receiver = Receiver::new(Rc::clone(&stream));
        let request = Initialize {
            version: 0,
            alignment: 0,
            digests: uri.digests,
            // At most one R2T for each command at a time.
            limit: 0,
        };
        let common = Common::new(Kind::IcReq, 0, 0, Digests::default(), 0);
        let words = [&common.encode()[..], &request.encode()].concat();
        stream.send(&[Buf::copied(&words)]).await?;
        let (header, layout) = next(&mut receiver, Digests::default()).await?;
        if layout.kind == Kind::C2hTermReq {
            return Err(termination_error(&mut receiver, &header, layout).await);
        }
        if layout.kind != Kind::IcResp {
            return Err(broken("its initialization PDU is malformed"));
        }
        let answer = Initialize::decode(receiver.take().await?).map_err(fault)?;
        if answer.digests != uri.digests {
            let what = "the target refuses the digests that the URI requests\n\
                        help: leave `digest` out, or enable them at the target";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if answer.limit < MIN_H2C_DATA_BYTES || !answer.limit.is_multiple_of(4) {
            return Err(broken("its limit on data is invalid"));
        }
        Ok(Self {
            stream,
            receiver,
            style: Style {
                digests: answer.digests,
                alignment: answer.alignment,
                max_data_bytes: answer.limit,
            },
            next_cid: 0,
            room: Buf::zeroed(ROOM_BYTES),
        })
    }

    /// Sends a command, with data in its capsule or with room for a page, and waits for the answer.
    pub(super) async fn call(&mut self, command: Command, with: CommandData<'_>) -> Result<Answer> {
        self.next_cid = self.next_cid.wrapping_add(1);
        let (cid, mut filled) = (self.next_cid, 0);
        let (place, data) = match with {
            CommandData::Nothing => (Data::Transport { length: 0 }, &[][..]),
            CommandData::Room => {
                let length = u32::try_from(ROOM_BYTES).expect("a page");
                (Data::Transport { length }, &[][..])
            }
            CommandData::InCapsule(data) => {
                let length = u32::try_from(data.len()).expect("short");
                assert!(length <= ADMIN_IN_CAPSULE_BYTES, "what every capsule takes");
                (Data::InCapsule { offset: 0, length }, data)
            }
        };
        let command = Command {
            cid,
            ..command.with_data(place)
        };
        let pdu = capsule(&command, data, self.style);
        self.stream.send(&[Buf::copied(&pdu)]).await?;
        loop {
            let (header, layout) = next(&mut self.receiver, self.style.digests).await?;
            match layout.kind {
                Kind::CapsuleResp => {
                    let rest = rest(&mut self.receiver, &header, layout).await?;
                    let completion = Completion::decode(rest);
                    if completion.cid != cid {
                        return Err(broken("it answers a command that was not sent"));
                    }
                    return Ok(Answer {
                        status: completion.status,
                        result: completion.result,
                        filled,
                    });
                }
                Kind::C2hData if matches!(with, CommandData::Room) => {
                    let data = data_header(&mut self.receiver, &header, layout).await?;
                    let room = ROOM_BYTES - filled;
                    if data.cid != cid
                        || data.offset as usize != filled
                        || data.length as usize > room
                    {
                        return Err(broken("it sends data that was not requested"));
                    }
                    let end = filled + data.length as usize;
                    let into = self.room.slice(filled..end);
                    take_data(&mut self.receiver, &into, layout).await?;
                    filled = end;
                    if header[1] & flag::SUCCESS != 0 {
                        return Ok(Answer {
                            status: Status::SUCCESS,
                            result: 0,
                            filled,
                        });
                    }
                }
                Kind::C2hTermReq => {
                    return Err(termination_error(&mut self.receiver, &header, layout).await);
                }
                _ => return Err(broken("it sends a PDU that was not requested")),
            }
        }
    }

    /// Sends a command that must succeed.
    pub(super) async fn must(
        &mut self,
        what: &str,
        command: Command,
        with: CommandData<'_>,
    ) -> Result<Answer> {
        let answer = self.call(command, with).await?;
        match answer.status {
            Status::SUCCESS => Ok(answer),
            status => Err(refused(what, status)),
        }
    }

    /// Sends a command whose answer is one page, and returns that page.
    pub(super) async fn page(&mut self, what: &str, command: Command) -> Result<[u8; ROOM_BYTES]> {
        let answer = self.must(what, command, CommandData::Room).await?;
        if answer.filled != ROOM_BYTES {
            return Err(broken(&format!("{what}: a part of the page is missing")));
        }
        let mut page = [0; ROOM_BYTES];
        self.room.copy_to(0, &mut page);
        Ok(page)
    }
}

/// Data of a command.
#[derive(Clone, Copy)]
pub(super) enum CommandData<'a> {
    Nothing,
    InCapsule(&'a [u8]),
    /// Room for a page of the answer.
    Room,
}

/// Error of a command that the target answered with an error status.
pub(super) fn refused(what: &str, status: Status) -> Error {
    Error::new(
        status.kind(),
        format!("{what}: the target answers {status}"),
    )
}

/// Error for a target that breaks the protocol.
pub(super) fn broken(what: &str) -> Error {
    let what = format!("the target breaks the protocol: {what}");
    Error::new(ErrorKind::Disconnected, what)
}

pub(super) fn fault(fault: Fault) -> Error {
    broken(&fault.to_string())
}

/// Encodes the PDU of a command with its data.
fn capsule(command: &Command, data: &[u8], style: Style) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short");
    let common = Common::new(Kind::CapsuleCmd, 0, length, style.digests, style.alignment);
    let mut pdu = [&common.encode()[..], &command.encode()].concat();
    if common.flags & flag::HEADER_DIGEST != 0 {
        pdu.extend(digest(&pdu));
    }
    if length > 0 {
        pdu.resize(common.data_offset.into(), 0);
        pdu.extend(data);
    }
    if common.flags & flag::DATA_DIGEST != 0 {
        pdu.extend(digest(data));
    }
    pdu
}

/// Receives the common header of the next PDU.
pub(super) async fn next(
    receiver: &mut Receiver,
    digests: Digests,
) -> Result<([u8; COMMON_BYTES], Layout)> {
    let header = receiver.take().await?;
    let layout = Common::decode(header).check(digests, 0).map_err(fault)?;
    Ok((header, layout))
}

/// Receives the rest of a PDU's header and checks the header digest.
pub(super) async fn rest<const N: usize>(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
) -> Result<[u8; N]> {
    const { assert!(N <= COMPLETION_BYTES, "no header from a target is longer") };
    let rest = receiver.take::<N>().await?;
    if layout.header_digest {
        let digest_sent: [u8; DIGEST_BYTES] = receiver.take().await?;
        let mut header = [0; COMMON_BYTES + COMPLETION_BYTES];
        header[..COMMON_BYTES].copy_from_slice(common);
        header[COMMON_BYTES..COMMON_BYTES + N].copy_from_slice(&rest);
        if digest(&header[..COMMON_BYTES + N]) != digest_sent {
            return Err(broken("the digest of a header does not match"));
        }
    }
    Ok(rest)
}

/// Receives the rest of the header of a PDU that carries data for this host or requests data from
/// it.
pub(super) async fn data_header(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
) -> Result<DataHeader> {
    let header = DataHeader::decode(rest(receiver, common, layout).await?);
    if layout.kind == Kind::C2hData && header.length != layout.data_bytes {
        return Err(broken("the two lengths of a PDU's data differ"));
    }
    Ok(header)
}

/// Receives the data of a PDU and checks the data digest.
pub(super) async fn take_data(receiver: &mut Receiver, into: &Buf, layout: Layout) -> Result<()> {
    receiver.data(into).await?;
    if !layout.data_digest {
        return Ok(());
    }
    let digest_sent: [u8; DIGEST_BYTES] = receiver.take().await?;
    // SAFETY: it was received completely, and no caller gets it before the digest is checked.
    match digest(unsafe { into.bytes() }) == digest_sent {
        true => Ok(()),
        false => Err(broken("the digest of data does not match")),
    }
}

/// Receives the reason for which the target terminates the connection.
pub(super) async fn termination_error(
    receiver: &mut Receiver,
    common: &[u8; COMMON_BYTES],
    layout: Layout,
) -> Error {
    match rest(receiver, common, layout).await.map(Terminate::decode) {
        Ok(Terminate { fatal, information }) => {
            let what = format!(
                "the target ends the connection: a PDU of this host was invalid (error {fatal}, \
                 information {information})"
            );
            Error::new(ErrorKind::Disconnected, what)
        }
        Err(error) => error,
    }
}
