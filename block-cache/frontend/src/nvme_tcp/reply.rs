//! Queue of PDUs to send, and their encoding.

use std::cell::{Cell, RefCell};

use forebay_block::Buf;
use forebay_wire::nvme::Completion;
use forebay_wire::nvme::command::COMPLETION_BYTES;
use forebay_wire::nvme_tcp::{
    COMMON_BYTES, Common, DATA_BYTES, DIGEST_BYTES, DataHeader, Digests, Kind, MAX_HEADER_BYTES,
    R2t, digest, flag,
};

/// Maximum bytes of a reply without its data: the header of a data PDU with padding, the data
/// digest, and a response.
const HEADER_BYTES: usize = MAX_HEADER_BYTES + DIGEST_BYTES + DATA_BYTES + DIGEST_BYTES;
/// Maximum number of replies in one send.
const BATCH: usize = 96;
/// Amount of data at which a send is full, bytes. Without the limit, the first reply would wait
/// until the last is copied.
const BATCH_BYTES: usize = 256 << 10;

/// Message to a host.
pub(super) enum Reply {
    /// A completion, after its data if there is some.
    Completion(Completion, Option<Buf>),
    /// A request for data (R2T).
    R2t(R2t),
}

struct Entry {
    reply: Reply,
    /// Cost of the command in the connection's budget, bytes.
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

/// Replies of one send.
pub(super) struct Batch {
    /// Number of commands that ended.
    pub(super) ended: u64,
    pub(super) cost: u64,
}

/// PDU layout of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) digests: Digests,
    /// Host's data alignment in units of 4 bytes, counted from zero.
    pub(super) alignment: u8,
    /// Whether a data PDU may report success without a response. A host with flow control needs the
    /// response for the submission queue head.
    pub(super) short: bool,
}

/// Replies that wait for the sending task.
pub(super) struct Outbox {
    style: Style,
    waiting: RefCell<Vec<Entry>>,
    sending: Cell<bool>,
    /// Memory of one send, without the data.
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

    /// Adds a reply. Returns true if no task sends: then the caller must send until
    /// [`Outbox::gather`] returns `None`.
    pub(super) fn push(&self, reply: Reply, cost: u64) -> bool {
        self.waiting.borrow_mut().push(Entry { reply, cost });
        !self.sending.replace(true)
    }

    /// Puts the next replies into `parts`, after the previous send has ended. Returns `None` if
    /// there are none: then the caller stops sending.
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

    /// Encodes a PDU without data.
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
            // SAFETY: the read that filled it has ended, and no other task has this memory.
            let sum = digest(unsafe { data.bytes() });
            page.put(&sum);
        }
        parts.push(data);
        if !short {
            self.put_pdu(page, Kind::CapsuleResp, 0, &end.encode());
        }
    }
}

/// Headers of one send. Adjacent headers without data between them form one part.
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
