//! Forebay's own format: small, exact, and readable up to the last whole frame when a recorder died
//! in the middle of one. All numbers are little-endian.
//!
//! The file begins with a header of 32 bytes:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic: `8f 46 42 54 52 43 0d 0a` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | zero |
//! | 12 | 8 | time of the trace's zero, nanoseconds since 1970 UTC; 0 if unknown |
//! | 20 | 8 | zero |
//! | 28 | 4 | CRC32C of the 28 bytes before |
//!
//! The magic has a byte that is not text, `FBTRC`, and a line end that a transfer as text would
//! damage.
//!
//! Frames follow. A frame is a header of 16 bytes and a payload:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | kind: 1 volumes, 2 requests, 3 lost |
//! | 4 | 4 | number of volumes, of requests, or of requests lost |
//! | 8 | 4 | bytes of the payload, at most 512 KiB |
//! | 12 | 4 | CRC32C of the 12 bytes before and the payload |
//!
//! A frame of volumes names those that come next in the numbering, which begins at zero: for each
//! one byte of length and the name. A frame of requests holds 24 bytes for each:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | time, nanoseconds since time zero |
//! | 8 | 8 | offset, bytes |
//! | 16 | 4 | length, bytes |
//! | 20 | 2 | volume |
//! | 22 | 1 | operation: 0 read, 1 write, 2 flush, 3 discard |
//! | 23 | 1 | zero |
//!
//! A frame of lost requests has the number that the recorder lost between the frames before and
//! after it. It has no payload.
//!
//! A volume is named before the first request for it. Bytes after the last whole
//! frame are a truncated recording, not damage. A recorder that continues overwrites them.

use crate::bytes::{u32_at, u64_at};
use crate::{Op, Request};

/// Magic at the start of a file.
pub const MAGIC: [u8; 8] = *b"\x8fFBTRC\r\n";

/// Version for writing, and the newest one for reading.
pub const VERSION: u16 = 1;

pub(crate) const HEADER_BYTES: usize = 32;
/// Size of a frame's header, bytes.
pub const FRAME_BYTES: usize = 16;
/// Size of a request's record, bytes.
pub const RECORD_BYTES: usize = 24;
pub(crate) const MAX_PAYLOAD_BYTES: usize = 512 << 10;
/// Most requests in a frame.
pub const MAX_FRAME_REQUESTS: usize = MAX_PAYLOAD_BYTES / RECORD_BYTES;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Volumes = 1,
    Requests = 2,
    Lost = 3,
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) count: u32,
    pub(crate) payload_bytes: usize,
    checksum: u32,
}

fn crc32c(parts: [&[u8]; 2]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    u32::try_from(digest.finalize()).expect("a 32-bit checksum")
}

/// Returns the file's header.
pub(crate) fn encode_header(origin_unix_ns: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&origin_unix_ns.to_le_bytes());
    let checksum = crc32c([&bytes[..28], &[]]);
    bytes[28..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the time of the trace's zero, nanoseconds since 1970; otherwise the problem of the
/// header.
pub(crate) fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<u64, &'static str> {
    if bytes[..8] != MAGIC {
        return Err("it does not begin as a native trace does: it has another format (--format)");
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version == 0 || version > VERSION {
        return Err("a newer version of Forebay wrote it: read it with that one");
    }
    if u32_at(bytes, 28) != crc32c([&bytes[..28], &[]]) {
        return Err("the header's checksum is wrong");
    }
    Ok(u64_at(bytes, 12))
}

/// Returns a frame with this payload.
pub(crate) fn encode_frame(kind: Kind, count: usize, payload: &[u8]) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    let count = u32::try_from(count).expect("a frame is small");
    let payload_bytes = u32::try_from(payload.len()).expect("a payload is small");
    for (field, value) in bytes
        .chunks_exact_mut(4)
        .zip([kind as u32, count, payload_bytes])
    {
        field.copy_from_slice(&value.to_le_bytes());
    }
    let checksum = crc32c([&bytes[..12], payload]);
    bytes[12..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Completes a frame of requests. `frame` has [`FRAME_BYTES`] of space for the header, and then
/// whole records in the format, at most [`MAX_FRAME_REQUESTS`].
///
/// # Panics
/// If there is no space for a header, or there are too many records.
pub fn complete_requests(frame: &mut [u8]) {
    let (header, records) = frame.split_at_mut(FRAME_BYTES);
    assert!(records.len() <= MAX_PAYLOAD_BYTES, "a frame has an end");
    let made = encode_frame(Kind::Requests, records.len() / RECORD_BYTES, records);
    header.copy_from_slice(&made);
}

/// Returns the header of a frame, without a check of its checksum.
pub(crate) fn decode_frame(bytes: &[u8; FRAME_BYTES]) -> Result<Frame, &'static str> {
    let kind = match u32_at(bytes, 0) {
        1 => Kind::Volumes,
        2 => Kind::Requests,
        3 => Kind::Lost,
        _ => {
            return Err(
                "it is neither of volumes nor of requests, nor does it say how many are lost",
            );
        }
    };
    let payload_bytes = u32_at(bytes, 8) as usize;
    if payload_bytes > MAX_PAYLOAD_BYTES {
        return Err("it is longer than frames are");
    }
    Ok(Frame {
        kind,
        count: u32_at(bytes, 4),
        payload_bytes,
        checksum: u32_at(bytes, 12),
    })
}

impl Frame {
    /// Checks the payload against the header.
    pub(crate) fn check(&self, header: &[u8], payload: &[u8]) -> Result<(), &'static str> {
        if self.checksum != crc32c([&header[..12], payload]) {
            return Err("the checksum is wrong");
        }
        let fits = match self.kind {
            Kind::Requests => self.count as usize * RECORD_BYTES == payload.len(),
            Kind::Volumes => names(payload).count() == self.count as usize,
            Kind::Lost => payload.is_empty(),
        };
        if fits {
            Ok(())
        } else {
            Err("its length is not that of its content")
        }
    }
}

/// Returns the names in a frame of volumes. Ends before a damaged name.
pub(crate) fn names(mut payload: &[u8]) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (len, rest) = payload.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        payload = rest;
        str::from_utf8(name).ok()
    })
}

/// Adds a name to the payload of a frame of volumes.
pub(crate) fn put_name(payload: &mut Vec<u8>, name: &str) {
    // A trace has no longer names; an invalid one is truncated.
    let len = (0..=name.len().min(usize::from(u8::MAX)))
        .rev()
        .find(|at| name.is_char_boundary(*at));
    let name = &name[..len.unwrap_or(0)];
    payload.push(u8::try_from(name.len()).expect("a short name"));
    payload.extend_from_slice(name.as_bytes());
}

/// Adds the record of a request.
pub(crate) fn put_request(payload: &mut Vec<u8>, request: &Request) {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(&request.time_ns.to_le_bytes());
    bytes[8..16].copy_from_slice(&request.offset_bytes.to_le_bytes());
    bytes[16..20].copy_from_slice(&request.len_bytes.to_le_bytes());
    let volume = u16::try_from(request.volume).expect("a trace has at most 65,536 volumes");
    bytes[20..22].copy_from_slice(&volume.to_le_bytes());
    bytes[22] = match request.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
    };
    payload.extend_from_slice(&bytes);
}

/// Returns the request of a record, with the volume's number in the file. Returns `None` for an
/// unknown operation.
#[inline]
pub(crate) fn decode_request(bytes: &[u8]) -> Option<Request> {
    Some(Request {
        time_ns: u64_at(bytes, 0),
        offset_bytes: u64_at(bytes, 8),
        len_bytes: u32_at(bytes, 16),
        volume: u32::from(u16::from_le_bytes([bytes[20], bytes[21]])),
        op: match bytes[22] {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Discard,
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back() {
        let header = encode_header(1_577_808_000_000_000_000);
        assert_eq!(decode_header(&header), Ok(1_577_808_000_000_000_000));
        for byte in 0..HEADER_BYTES {
            let mut damaged = header;
            damaged[byte] ^= 1;
            assert!(decode_header(&damaged).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn a_frame_shows_its_damage() {
        let mut payload = Vec::new();
        put_name(&mut payload, "a");
        put_name(&mut payload, "");
        put_name(&mut payload, &"é".repeat(200));
        let header = encode_frame(Kind::Volumes, 3, &payload);
        let frame = decode_frame(&header).unwrap();
        assert_eq!(frame.check(&header, &payload), Ok(()));
        let found: Vec<_> = names(&payload).collect();
        assert_eq!(found, ["a", "", &"é".repeat(127)]);
        for byte in 0..payload.len() {
            let mut damaged = payload.clone();
            damaged[byte] ^= 1;
            assert!(frame.check(&header, &damaged).is_err(), "byte {byte}");
        }
        let wrong_count = encode_frame(Kind::Volumes, 4, &payload);
        let frame = decode_frame(&wrong_count).unwrap();
        assert!(frame.check(&wrong_count, &payload).is_err());
    }

    #[test]
    fn a_frame_of_records_in_place_is_as_one_that_is_made_of_requests() {
        let mut payload = Vec::new();
        for number in 0..MAX_FRAME_REQUESTS as u64 {
            let request = Request {
                time_ns: number,
                offset_bytes: number * 512,
                len_bytes: 512,
                volume: 1,
                op: Op::Write,
            };
            put_request(&mut payload, &request);
        }
        let mut frame = vec![0xaa; FRAME_BYTES];
        frame.extend_from_slice(&payload);
        complete_requests(&mut frame);
        let header: [u8; FRAME_BYTES] = frame[..FRAME_BYTES].try_into().unwrap();
        let decoded = decode_frame(&header).unwrap();
        assert_eq!(decoded.count as usize, MAX_FRAME_REQUESTS);
        assert_eq!(decoded.check(&header, &payload), Ok(()));
        assert_eq!(
            header,
            encode_frame(Kind::Requests, MAX_FRAME_REQUESTS, &payload)
        );
    }

    #[test]
    fn the_bytes_of_a_record_are_those_of_the_documentation() {
        let request = Request {
            time_ns: 1,
            offset_bytes: 0x200,
            len_bytes: 0x1000,
            volume: 7,
            op: Op::Discard,
        };
        let mut bytes = Vec::new();
        put_request(&mut bytes, &request);
        let expected = [
            1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 7, 0, 3, 0,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(decode_request(&bytes), Some(request));
        bytes[22] = 4;
        assert_eq!(decode_request(&bytes), None);
    }
}
