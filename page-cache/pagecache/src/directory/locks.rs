//! Locks of ranges of a file's pages, granted in order of arrival.

use std::collections::BTreeMap;

use crate::message::{LockRange, NodeId};

#[derive(Debug)]
struct Lock {
    node: NodeId,
    ticket: u64,
    range: LockRange,
    held: bool,
}

/// All locks, held and waiting. A request waits for every earlier conflicting one, held or not. So
/// no request waits for ever behind later ones.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    /// By inode, in order of arrival.
    files: BTreeMap<u64, Vec<Lock>>,
}

impl RangeLocks {
    pub(super) fn lock(
        &mut self,
        node: NodeId,
        ticket: u64,
        range: LockRange,
        granted: &mut impl FnMut(NodeId, u64),
    ) {
        let locks = self.files.entry(range.inode).or_default();
        locks.push(Lock {
            node,
            ticket,
            range,
            held: false,
        });
        grant(locks, granted);
    }

    /// Restores a lock that a node reports as held or waiting. Held ones precede all waiting ones.
    /// The caller must call [`RangeLocks::grant_all`] at the end.
    pub(super) fn restore(&mut self, node: NodeId, ticket: u64, range: LockRange, held: bool) {
        let locks = self.files.entry(range.inode).or_default();
        let at = match held {
            true => locks.partition_point(|lock| lock.held),
            false => locks.len(),
        };
        let lock = Lock {
            node,
            ticket,
            range,
            held,
        };
        locks.insert(at, lock);
    }

    /// Grants all locks that can be granted.
    pub(super) fn grant_all(&mut self, granted: &mut impl FnMut(NodeId, u64)) {
        for locks in self.files.values_mut() {
            grant(locks, granted);
        }
    }

    /// Releases the locks for which `gone` holds, and grants waiting ones. Returns how many locks
    /// or waits ended.
    pub(super) fn release(
        &mut self,
        gone: impl Fn(NodeId, u64) -> bool,
        granted: &mut impl FnMut(NodeId, u64),
    ) -> usize {
        let mut released = 0;
        self.files.retain(|_, locks| {
            let before = locks.len();
            locks.retain(|lock| !gone(lock.node, lock.ticket));
            if locks.len() != before {
                released += before - locks.len();
                grant(locks, granted);
            }
            !locks.is_empty()
        });
        released
    }
}

fn grant(locks: &mut [Lock], granted: &mut impl FnMut(NodeId, u64)) {
    for at in 0..locks.len() {
        let (earlier, rest) = locks.split_at_mut(at);
        let lock = &mut rest[0];
        let free = earlier
            .iter()
            .all(|other| !other.range.conflicts(&lock.range));
        if !lock.held && free {
            lock.held = true;
            granted(lock.node, lock.ticket);
        }
    }
}
