//! Programs' locks of files, `fcntl` and `flock`, on all nodes.
//!
//! They are the system's own locks on the source's file. A program that locks has an open file of its own there, and
//! what is locked through that (`F_OFD_SETLK` of fcntl(2)) excludes all other programs of all nodes. So the kernel
//! cuts and joins ranges; a node that ends, however it ends, has no lock any more; and a directory that is killed
//! changes nothing.
//!
//! In a mapped directory the programs of a mount can go on reading, writing and storing when its node has ended. There
//! the mount itself holds the open files with locks, so that these end when the mount is gone and none of its files is
//! open or mapped any more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_io::fuse::Held;
pub use forebay_io::tree::{ByteRange, Lock};
use forebay_io::tree::{conflicting_lock, try_lock_range};

use crate::keep::PROGRAMS_LAST;

/// Who locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The number of the file.
    pub number: u64,
    /// A process, or an open file, by a number that no other on this node has.
    pub owner: u64,
    /// The open file that it locked through.
    pub handle: u64,
}

/// The locks of one node's programs.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// By file and owner.
    owners: Mutex<BTreeMap<(u64, u64), Owner>>,
}

#[derive(Debug)]
struct Owner {
    /// Its locks end when this is closed.
    file: fs::File,
    /// If the mount has it open too, they outlive this process.
    _held: Option<Held>,
    handle: u64,
}

impl Locks {
    /// Locks a range in place of what the holder had locked there, or unlocks it; all of it or none, without waiting.
    /// Whether it did. `open` gives the holder its own open file.
    pub(crate) fn set(
        &self,
        holder: Holder,
        range: ByteRange,
        lock: Lock,
        open: impl FnOnce() -> io::Result<(fs::File, Option<Held>)>,
    ) -> io::Result<bool> {
        let Some(range) = ours(range) else {
            return match lock {
                Lock::None => Ok(true),
                _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            };
        };
        let mut owners = self.lock();
        let key = (holder.number, holder.owner);
        if let Some(owner) = owners.get(&key) {
            return try_lock_range(&owner.file, range, lock);
        }
        if lock == Lock::None {
            return Ok(true);
        }
        let (file, held) = open()?;
        let locked = try_lock_range(&file, range, lock)?;
        if locked {
            let owner = Owner {
                file,
                _held: held,
                handle: holder.handle,
            };
            owners.insert(key, owner);
        }
        Ok(locked)
    }

    /// Somebody else's lock that keeps a holder from this one.
    pub(crate) fn conflicting(
        &self,
        holder: Holder,
        range: ByteRange,
        lock: Lock,
        open: impl FnOnce() -> io::Result<fs::File>,
    ) -> io::Result<Option<(ByteRange, Lock)>> {
        let Some(range) = ours(range) else {
            return Ok(None);
        };
        let owners = self.lock();
        let found = match owners.get(&(holder.number, holder.owner)) {
            Some(owner) => conflicting_lock(&owner.file, range, lock)?,
            None => conflicting_lock(&open()?, range, lock)?,
        };
        let whole = |range: ByteRange| match range.last {
            // To where files end, whatever is behind that.
            PROGRAMS_LAST => ByteRange {
                last: i64::MAX,
                ..range
            },
            _ => range,
        };
        Ok(found.map(|(range, lock)| (whole(range), lock)))
    }

    /// An owner closes a file: whatever it has locked there, through whichever open file, is free.
    pub(crate) fn close(&self, number: u64, owner: u64) -> bool {
        self.lock().remove(&(number, owner)).is_some()
    }

    /// An open file is closed for good, and so is what belonged to it alone.
    pub(crate) fn close_handle(&self, number: u64, handle: u64) -> bool {
        let mut owners = self.lock();
        let of_file = owners.range((number, 0)..=(number, u64::MAX));
        let closed = of_file.filter(|(_, owner)| owner.handle == handle);
        let closed: Vec<_> = closed.map(|(key, _)| *key).collect();
        closed.iter().for_each(|key| drop(owners.remove(key)));
        !closed.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part that is programs': behind it are [`crate::keep`]'s.
fn ours(range: ByteRange) -> Option<ByteRange> {
    let last = range.last.min(PROGRAMS_LAST);
    (0 <= range.first && range.first <= last).then_some(ByteRange { last, ..range })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ByteRange = ByteRange {
        first: 0,
        last: i64::MAX,
    };

    #[test]
    fn each_owner_has_its_locks_until_it_closes() {
        let path = std::env::temp_dir().join(format!("forebay-locks-{}", std::process::id()));
        fs::write(&path, "data").expect("written");
        let open = || fs::File::options().read(true).write(true).open(&path);
        // Whoever has the file open shares a byte behind those of programs.
        let opened = open().expect("there");
        crate::keep::mark_open(&opened, true).expect("locked");
        let nodes = [Locks::default(), Locks::default()];
        let holder = |owner| Holder {
            number: 5,
            owner,
            handle: owner + 100,
        };
        let set = |node: usize, owner, range, lock| {
            let open = || Ok((open()?, None));
            let set = nodes[node].set(holder(owner), range, lock, open);
            set.expect("answers")
        };
        let range = |first, last| ByteRange { first, last };
        assert!(set(0, 1, ALL, Lock::Exclusive));
        // The same owner again, and others of its own and of another node.
        assert!(set(0, 1, range(3, 4), Lock::Shared));
        assert!(!set(0, 2, range(4, 5), Lock::Shared));
        assert!(set(1, 1, range(3, 4), Lock::Shared));
        assert!(!set(1, 1, range(0, 0), Lock::Exclusive));
        let conflicting = |owner, range| {
            let found = nodes[1].conflicting(holder(owner), range, Lock::Exclusive, open);
            found.expect("answers")
        };
        let behind = range(5, i64::MAX);
        assert_eq!(conflicting(1, behind), Some((behind, Lock::Exclusive)));
        assert!(set(0, 1, behind, Lock::None));
        assert_eq!(conflicting(1, behind), None);
        assert!(set(1, 3, behind, Lock::Exclusive));
        assert!(set(0, 9, ALL, Lock::None), "it has none");
        assert!(nodes[0].close(5, 1) && !nodes[0].close(5, 1));
        assert!(set(1, 1, range(0, 4), Lock::Exclusive));
        assert!(!nodes[1].close_handle(5, 100) && !nodes[1].close_handle(6, 101));
        assert!(nodes[1].close_handle(5, 101));
        assert!(set(0, 1, range(0, 4), Lock::Exclusive));
        assert!(!set(0, 1, behind, Lock::Exclusive), "another file's");
        // A node that ends.
        drop(nodes);
        let free = conflicting_lock(&opened, range(0, PROGRAMS_LAST), Lock::Exclusive);
        assert_eq!(free.expect("answers"), None);
        let open = || Ok((open()?, None));
        let refused = Locks::default().set(holder(1), i64::MAX.into(), Lock::Shared, open);
        let refused = refused.expect_err("ours").raw_os_error();
        assert_eq!(refused, Some(libc::EINVAL));
        fs::remove_file(path).expect("removed");
    }
}
