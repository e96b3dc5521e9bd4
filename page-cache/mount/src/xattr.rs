//! Answers with extended attributes.

use std::io;

use fuser::{Errno, ReplyXattr};

use crate::errors::errno_of_io;

/// Answers with bytes if they fit into `size`, or with their number if `size` is 0.
pub(crate) fn answer(reply: ReplyXattr, size: u32, found: io::Result<Vec<u8>>) {
    match found {
        Err(error) => reply.error(errno_of_io(&error)),
        // The system limits a value, and a list of names, to 64 KiB.
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}
