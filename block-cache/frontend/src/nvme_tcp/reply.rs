//! What waits to be sent, and its bytes.

use std::cell::{Cell, RefCell};

use forebay_block::Buf;
use forebay_wire::nvme::Completion;
use forebay_wire::nvme::command::COMPLETION_BYTES;
use forebay_wire::nvme_tcp::{
    COMMON_BYTES, Common, DATA_BYTES, DIGEST_BYTES, DataHeader, Digests, Kind, MAX_HEADER_BYTES,
    R2t, digest, flag,
};

/// Most bytes beside the data of a reply: a data PDU's header with its padding, the data's digest, and a
/// response.
const HEADER_BYTES: usize = MAX_HEADER_BYTES + DIGEST_BYTES + DATA_BYTES + DIGEST_BYTES;
/// Most replies in one send.
const BATCH: usize = 96;
/// Data after which a send takes no more replies, bytes: the first of them should not wait for the
/// last to be copied.
const BATCH_BYTES: usize = 256 << 10;

/// What is sent to a host.
pub(super) enum Reply {
    /// A completion, after data if there is some.
    Completion(Completion, Option<Buf>),
    /// The host may send data.
    R2t(R2t),
}

struct Entry {
    reply: Reply,
    /// What the command holds of the connection's budget, bytes.
    cost: u64,
}

impl Entry {
    fn data_bytes(&self) -> usize {
        match &self.reply {
            Reply::Completion(_, Some(data)) => data.len(),
            _ => 0,
        }
    }
}

/// A number of replies on their way.
pub(super) struct Batch {
    /// Commands that have ended.
    pub(super) ended: u64,
    pub(super) cost: u64,
}

/// How PDUs to this host look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) digests: Digests,
    /// The host's data alignment, counted from zero in 4 bytes.
    pub(super) alignment: u8,
    /// Whether data may tell of its command's success itself: a host that wants to know the submission
    /// queue's head is told it by a response.
    pub(super) short: bool,
}

/// Replies that wait for the one task that sends.
pub(super) struct Outbox {
    style: Style,
    waiting: RefCell<Vec<Entry>>,
    sending: Cell<bool>,
    /// Memory for all but the data of one send.
    headers: Buf,
}

impl Outbox {
    pub(super) fn new(style: Style) -> Self {
        Self {
            style,
            waiting: RefCell::default(),
            sending: Cell::new(false),
            headers: Buf::scratch(BATCH * HEADER_BYTES),
        }
    }

    /// Adds a reply. True if nobody sends: then the caller has to, until [`Outbox::gather`] gives
    /// nothing.
    pub(super) fn push(&self, reply: Reply, cost: u64) -> bool {
        self.waiting.borrow_mut().push(Entry { reply, cost });
        !self.sending.replace(true)
    }

    /// Puts the next replies into `parts`; the send before has ended. None if there are no more: then
    /// the caller sends no longer.
    pub(super) fn gather(&self, parts: &mut Vec<Buf>) -> Option<Batch> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            self.sending.set(false);
            return None;
        }
        let (mut count, mut data_bytes) = (0, 0);
        for entry in waiting.iter().take(BATCH) {
            count += 1;
            data_bytes += entry.data_bytes();
            if data_bytes >= BATCH_BYTES {
                break;
            }
        }
        let mut batch = Batch { ended: 0, cost: 0 };
        let mut page = Page {
            headers: &self.headers,
            from: 0,
            to: 0,
        };
        for Entry { reply, cost } in waiting.drain(..count) {
            batch.cost += cost;
            match reply {
                Reply::R2t(r2t) => self.put_pdu(&mut page, Kind::R2t, 0, &r2t.encode()),
                Reply::Completion(completion, None) => {
                    batch.ended += 1;
                    self.put_pdu(&mut page, Kind::CapsuleResp, 0, &completion.encode());
                }
                Reply::Completion(completion, Some(data)) => {
                    batch.ended += 1;
                    self.put_data(&mut page, parts, completion, data);
                }
            }
        }
        page.cut(parts);
        Some(batch)
    }

    /// A PDU without data.
    fn put_pdu(&self, page: &mut Page<'_>, kind: Kind, flags: u8, rest: &[u8; COMPLETION_BYTES]) {
        self.put_header(
            page,
            Common::new(kind, flags, 0, self.style.digests, 0),
            rest,
        );
    }

    fn put_header(
        &self,
        page: &mut Page<'_>,
        common: Common,
        rest: &[u8; DATA_BYTES - COMMON_BYTES],
    ) {
        let mut header = [0; DATA_BYTES];
        header[..COMMON_BYTES].copy_from_slice(&common.encode());
        header[COMMON_BYTES..].copy_from_slice(rest);
        page.put(&header);
        if common.flags & flag::HEADER_DIGEST != 0 {
            page.put(&digest(&header));
        }
    }

    fn put_data(&self, page: &mut Page<'_>, parts: &mut Vec<Buf>, end: Completion, data: Buf) {
        let Style {
            digests,
            alignment,
            short,
        } = self.style;
        let length = u32::try_from(data.len()).expect("at most the largest transfer");
        let short = short && end.result == 0;
        let flags = if short {
            flag::LAST | flag::SUCCESS
        } else {
            flag::LAST
        };
        let common = Common::new(Kind::C2hData, flags, length, digests, alignment);
        let rest = DataHeader {
            cid: end.cid,
            tag: 0,
            offset: 0,
            length,
        };
        let before = page.to;
        self.put_header(page, common, &rest.encode());
        let padding = usize::from(common.data_offset) - (page.to - before);
        page.put(&[0; MAX_HEADER_BYTES][..padding]);
        page.cut(parts);
        if digests.data {
            // SAFETY: the read that filled it has ended, and nobody else has this memory.
            let sum = digest(unsafe { data.bytes() });
            page.put(&sum);
        }
        parts.push(data);
        if !short {
            self.put_pdu(page, Kind::CapsuleResp, 0, &end.encode());
        }
    }
}

/// The memory of one send's headers; what follows each other without data between is one part.
struct Page<'a> {
    headers: &'a Buf,
    from: usize,
    to: usize,
}

impl Page<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.headers.copy_from(self.to, bytes);
        self.to += bytes.len();
    }

    fn cut(&mut self, parts: &mut Vec<Buf>) {
        if self.from < self.to {
            parts.push(self.headers.slice(self.from..self.to));
            self.from = self.to;
        }
    }
}
