//! A guest's memory: its rings, the requests that it puts there, and the answers.

use forebay_wire::virtio_blk::{Header, SEGMENT_BYTES, Segment, request, status};

use super::model::Write;
use super::{Conversation, ENTRIES, QUEUES, REGION_BYTES};

/// Concurrent requests, each with its page.
pub(super) const SLOTS: u16 = 8;
/// Size of such a page.
pub(super) const SLOT_BYTES: usize = 4096;
/// Offset of the status in a page.
const STATUS: u64 = 24;
/// Offset of the descriptors in a page.
const TABLE: u64 = 128;
/// Offset of the data in a page.
const DATA: u64 = 512;
/// Maximum number of sectors of a request.
pub(super) const MOST_SECTORS: u32 = 6;
/// Content of an unwritten page.
pub(super) const LEFT: u8 = 0xa5;
// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Returns the offsets of a queue's descriptors, available and used entries in the file.
pub(super) const fn places(queue: usize) -> [u64; 3] {
    let base = 0x2000 * queue as u64;
    [base, base + 0x800, base + 0x1000]
}

/// Returns the offset of a slot's page in the file.
pub(super) const fn page(slot: u16) -> u64 {
    0x4000 + slot as u64 * SLOT_BYTES as u64
}

/// Returns the guest's address of an offset in the file.
pub(super) const fn guest(at: u64) -> u64 {
    match at < REGION_BYTES {
        true => 0x10_0000 + at,
        false => 0x80_0000 + at - REGION_BYTES,
    }
}

/// A request without an answer.
pub(super) struct Asked {
    pub(super) header: Header,
    /// Bytes of data in either direction.
    bytes: u32,
    begun: u64,
    write: Option<Write>,
}

impl Conversation<'_> {
    pub(super) fn put_descriptor(
        &self,
        at: u64,
        (address, len, flags, next): (u64, u32, u16, u16),
    ) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.here.put(at, &bytes);
    }

    pub(super) fn kick(&self, queue: usize) {
        // The counter is far from full.
        let _ = self.here.kicks[queue].write(1);
    }

    /// Makes a chain available, and kicks.
    pub(super) fn offer(&mut self, queue: usize, head: u16) {
        let [_, available, _] = places(queue);
        let next = &mut self.available[queue];
        let entry = available + 4 + u64::from(*next % ENTRIES) * 2;
        *next = next.wrapping_add(1);
        self.here.put(entry, &head.to_le_bytes());
        self.here.put(available + 2, &next.to_le_bytes());
        self.kick(queue);
    }

    /// Sends a request, in pieces, whose length is sometimes not a multiple of sectors.
    pub(super) fn ask(
        &mut self,
        queue: usize,
        slot: u16,
        (kind, sector, sectors): (u32, u64, u32),
        lie: u8,
        pieces: u8,
    ) {
        let at = page(slot);
        self.here.put(at, &[LEFT; SLOT_BYTES]);
        let header = Header { kind, sector };
        self.here.put(at, &header.encode());
        self.value = self.value.wrapping_add(1);
        let short = if lie & 0xf0 == 0xf0 { 1 } else { 0 };
        let mut write = None;
        let bytes = match kind {
            request::FLUSH => 0,
            request::DISCARD | request::WRITE_ZEROES => {
                let segment = Segment {
                    sector,
                    sectors,
                    flags: 0,
                };
                self.here.put(at + DATA, &segment.encode());
                write = Some(self.model.begin(sector, sectors.into(), 0));
                SEGMENT_BYTES as u32 - short
            }
            request::OUT => {
                let data = vec![self.value; sectors as usize * 512];
                self.here.put(at + DATA, &data);
                write = Some(self.model.begin(sector, sectors.into(), self.value));
                sectors * 512 - short
            }
            request::GET_ID => 20,
            _ => sectors * 512 - short,
        };
        let reads = matches!(kind, request::IN | request::GET_ID);
        let mut list = vec![(at, 16, NEXT)];
        let piece = (bytes / u32::from(pieces)).max(1);
        let mut done = 0;
        while done < bytes {
            let len = piece.min(bytes - done);
            let flags = if reads { WRITE | NEXT } else { NEXT };
            list.push((at + DATA + u64::from(done), len, flags));
            done += len;
        }
        list.push((at + STATUS, 1, WRITE));
        let table = at + TABLE;
        for (next, (place, len, flags)) in (1..).zip(&list) {
            let entry = table + u64::from(next - 1) * 16;
            self.put_descriptor(entry, (guest(*place), *len, *flags, next));
        }
        let bytes_of_table = u32::try_from(list.len() * 16).expect("short");
        let head = places(queue)[0] + u64::from(slot) * 16;
        self.put_descriptor(head, (guest(table), bytes_of_table, INDIRECT, 0));
        self.asked[usize::from(slot)] = Some(Asked {
            header,
            bytes,
            begun: self.model.moment(),
            write,
        });
        self.offer(queue, slot);
    }

    /// Checks the answers.
    pub(super) fn take_used(&mut self) {
        for queue in 0..QUEUES {
            let used = places(queue)[2];
            let done = u16::from_le_bytes(self.here.get(used + 2));
            // An overwritten ring has arbitrary content.
            let new = done.wrapping_sub(self.used[queue]).min(ENTRIES);
            for _ in 0..new {
                let at = used + 4 + u64::from(self.used[queue] % ENTRIES) * 8;
                let [a, b, c, d, rest @ ..] = self.here.get::<8>(at);
                self.used[queue] = self.used[queue].wrapping_add(1);
                let head = u32::from_le_bytes([a, b, c, d]);
                self.answered(head, u32::from_le_bytes(rest));
            }
            self.used[queue] = done;
        }
    }

    fn answered(&mut self, head: u32, written: u32) {
        let slot = self.asked.get_mut(head as usize);
        let Some(asked) = slot.and_then(Option::take) else {
            assert!(self.wild, "an answer to nothing: {head}");
            return;
        };
        if self.wild {
            return;
        }
        let at = page(u16::try_from(head).expect("one of ours"));
        let [status_byte] = self.here.get(at + STATUS);
        let reads = matches!(asked.header.kind, request::IN | request::GET_ID);
        let well = status_byte == status::OK;
        let expected = 1 + if well && reads { asked.bytes } else { 0 };
        assert!(
            status_byte <= status::UNSUPP,
            "{status_byte} of {:?}",
            asked.header
        );
        assert_eq!(written, expected, "{status_byte} of {:?}", asked.header);
        let mut data = vec![0; SLOT_BYTES - DATA as usize];
        self.here.look(at + DATA, &mut data);
        let (data, behind) = data.split_at(asked.bytes as usize);
        if reads {
            assert!(behind.iter().all(|byte| *byte == LEFT), "memory behind it");
        }
        if !well {
            return;
        }
        self.answered += 1;
        if let Some(write) = &asked.write {
            self.model.succeeded(write);
        }
        if asked.header.kind == request::IN {
            for (block, bytes) in (asked.header.sector..).zip(data.chunks(512)) {
                let may = self.model.may_be(block, bytes, asked.begun);
                assert!(may, "block {block} cannot hold {:?}", &bytes[..8]);
            }
        }
    }
}
