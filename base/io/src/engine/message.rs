//! The message of a gathered send: one system call sends many buffers.

use std::cell::RefCell;

use forebay_block::Buf;

/// A gathered send. While one is in flight nothing changes it.
pub(crate) struct Message(RefCell<Gather>);

struct Gather {
    header: libc::msghdr,
    vector: Vec<libc::iovec>,
    /// Keeps the parts alive.
    parts: Vec<Buf>,
}

impl Message {
    /// Returns a message without parts.
    pub(crate) fn new() -> Self {
        Self(RefCell::new(Gather {
            // SAFETY: all zeroes is a valid value of this plain structure.
            header: unsafe { std::mem::zeroed() },
            vector: Vec::new(),
            parts: Vec::new(),
        }))
    }

    /// Starts a send of `parts`.
    pub(crate) fn load(&self, parts: &[Buf]) {
        let mut gather = self.0.borrow_mut();
        gather.unload();
        gather.parts.extend_from_slice(parts);
        let Gather { vector, parts, .. } = &mut *gather;
        vector.extend(parts.iter().map(|part| libc::iovec {
            iov_base: part.as_ptr().cast(),
            iov_len: part.len(),
        }));
        gather.header.msg_iov = gather.vector.as_mut_ptr();
        gather.header.msg_iovlen = gather.vector.len();
    }

    /// Returns the header for a system call. None when everything was sent.
    pub(crate) fn header(&self) -> Option<*const libc::msghdr> {
        let gather = self.0.borrow();
        (gather.header.msg_iovlen > 0).then_some(&raw const gather.header)
    }

    /// Skips the bytes that were sent.
    pub(crate) fn advance(&self, mut sent: usize) {
        let mut gather = self.0.borrow_mut();
        let start = gather.vector.len() - gather.header.msg_iovlen;
        let mut next = start;
        for part in &mut gather.vector[start..] {
            if sent < part.iov_len {
                part.iov_base = part.iov_base.wrapping_byte_add(sent);
                part.iov_len -= sent;
                break;
            }
            sent -= part.iov_len;
            next += 1;
        }
        let left = &mut gather.vector[next..];
        let (first, count) = (left.as_mut_ptr(), left.len());
        gather.header.msg_iov = first;
        gather.header.msg_iovlen = count;
    }

    /// Releases the parts.
    pub(crate) fn unload(&self) {
        self.0.borrow_mut().unload();
    }
}

impl Gather {
    fn unload(&mut self) {
        self.vector.clear();
        self.parts.clear();
        self.header.msg_iov = std::ptr::null_mut();
        self.header.msg_iovlen = 0;
    }
}
