//! Programs' locks of what they know by number.

use std::io;

use super::Names;
use crate::locks::{ByteRange, Holder, Lock};

impl Names {
    /// Locks a range of a file in place of what the holder had locked there, or unlocks it: all of it or none, without
    /// waiting. Whether it did.
    ///
    /// # Errors
    /// What the system says; `EINVAL` for the last bytes that a file could have.
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

    /// A lock of somebody else, on any node, that keeps a holder from this one.
    ///
    /// # Errors
    /// What the system says.
    pub fn conflicting_lock(
        &self,
        holder: Holder,
        range: ByteRange,
        lock: Lock,
    ) -> io::Result<Option<(ByteRange, Lock)>> {
        let open = || self.reopen(&*self.file(holder.number)?);
        self.locks.conflicting(holder, range, lock, open)
    }

    /// An owner closes a file, and so loses all that it has locked there. Whether it had locked anything.
    pub fn unlock_owner(&self, number: u64, owner: u64) -> bool {
        self.locks.close(number, owner)
    }

    /// An open file is closed for good, and with it goes what was locked for it. Whether anything was.
    pub fn unlock_handle(&self, number: u64, handle: u64) -> bool {
        self.locks.close_handle(number, handle)
    }
}
