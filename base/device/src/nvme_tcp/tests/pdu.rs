//! The PDUs of a target, without digests.

use forebay_wire::nvme::{Completion, Status};
use forebay_wire::nvme_tcp::{Common, DataHeader, Digests, Kind};

/// Encodes a PDU of this target, without digests.
pub(super) fn said(kind: Kind, flags: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short");
    let common = Common::new(kind, flags, length, Digests::default(), 0);
    [&common.encode()[..], rest, data].concat()
}

pub(super) fn ended(cid: u16, result: u64, status: Status) -> Vec<u8> {
    let completion = Completion {
        result,
        sq_head: 0,
        sq_id: 0,
        cid,
        status,
    };
    said(Kind::CapsuleResp, 0, &completion.encode(), &[])
}

pub(super) fn data(cid: u16, flags: u8, offset: u32, data: &[u8]) -> Vec<u8> {
    let header = DataHeader {
        cid,
        tag: 0,
        offset,
        length: u32::try_from(data.len()).expect("short"),
    };
    said(Kind::C2hData, flags, &header.encode(), data)
}

/// Encodes an R2T.
pub(super) fn ready(cid: u16, offset: u32, length: u32) -> Vec<u8> {
    let header = DataHeader {
        cid,
        tag: 5,
        offset,
        length,
    };
    said(Kind::R2t, 0, &header.encode(), &[])
}
