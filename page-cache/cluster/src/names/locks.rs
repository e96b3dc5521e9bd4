//! Locks of programs, by file number.

use std::io;

use super::Names;
use crate::locks::{ByteRange, Holder, Lock};

impl Names {
    /// Replaces the holder's locks in a range of a file by this lock, or unlocks the range. It is
    /// all or nothing, and does not wait. Returns whether it succeeded.
    ///
    /// # Errors
    /// Errors of the system; `EINVAL` for the last possible bytes of a file.
    pub fn lock_range(&self, holder: Holder, range: ByteRange, lock: Lock) -> io::Result<bool> {
        let open = || {
            let file = self.reopen(&*self.file(holder.number)?)?;
            let held = match self.is_mapped(holder.number)? {
                true => Some(self.hold(&file)?),
                false => None,
            };
            Ok((file, held))
        };
        self.locks.set(holder, range, lock, open)
    }

    /// Returns a lock of another owner, on any node, that conflicts with this one.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn conflicting_lock(
        &self,
        holder: Holder,
        range: ByteRange,
        lock: Lock,
    ) -> io::Result<Option<(ByteRange, Lock)>> {
        let open = || self.reopen(&*self.file(holder.number)?);
        self.locks.conflicting(holder, range, lock, open)
    }

    /// Releases all locks of an owner that closes a file. Returns whether there were any.
    pub fn unlock_owner(&self, number: u64, owner: u64) -> bool {
        self.locks.close(number, owner)
    }

    /// Releases the locks of an open file that is closed for good. Returns whether there were any.
    pub fn unlock_handle(&self, number: u64, handle: u64) -> bool {
        self.locks.close_handle(number, handle)
    }
}
