//! File locks of programs, `fcntl` and `flock`, on all nodes.
//!
//! They are locks of the system on the source's file. A program that locks has its own open file
//! there. A lock through that (`F_OFD_SETLK` of fcntl(2)) excludes all other programs of all nodes.
//! So the kernel splits and merges ranges, and a node that ends in any way loses its locks. The
//! death of a directory has no effect.
//!
//! In a mapped directory, programs may continue reading, writing and storing after the end of their
//! node. There the mount itself holds the open files with locks. The locks end when the mount is
//! gone and none of its files is open or mapped any more.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_io::fuse::Held;
pub use forebay_io::tree::{ByteRange, Lock};
use forebay_io::tree::{conflicting_lock, try_lock_range};

use crate::second_names::PROGRAMS_LAST;

/// Holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The number of the file.
    pub number: u64,
    /// A process or an open file, as a number that is unique on this node.
    pub owner: u64,
    /// Open file through which it locked.
    pub handle: u64,
}

/// Locks of one node's programs.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Owners by file and owner number.
    owners: Mutex<BTreeMap<(u64, u64), Owner>>,
}

#[derive(Debug)]
struct Owner {
    /// Open file; its locks end when it is closed.
    file: fs::File,
    /// The mount's hold on the file, with which the locks outlive this process.
    _held: Option<Held>,
    handle: u64,
}

impl Locks {
    /// Replaces the holder's locks in a range by this lock, or unlocks the range. It is all or
    /// nothing, and does not wait. Returns whether it succeeded. `open` returns an open file for
    /// the holder.
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

    /// Returns a lock of another owner that conflicts with this one.
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
            // The rest of the file, whatever is beyond it.
            PROGRAMS_LAST => ByteRange {
                last: i64::MAX,
                ..range
            },
            _ => range,
        };
        Ok(found.map(|(range, lock)| (whole(range), lock)))
    }

    /// Releases all locks of an owner that closes a file, through any open file. Returns whether
    /// there were any.
    pub(crate) fn close(&self, number: u64, owner: u64) -> bool {
        self.lock().remove(&(number, owner)).is_some()
    }

    /// Releases the locks of an open file that is closed for good. Returns whether there were any.
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

/// Returns the part that programs may lock: [`crate::second_names`] uses the bytes beyond it.
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
        // Each user of the open file shares a byte beyond those of programs.
        let opened = open().expect("there");
        crate::second_names::mark_open(&opened, true).expect("locked");
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
        // The same owner a second time, and others of this and another node.
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
