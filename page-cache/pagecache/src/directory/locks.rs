//! Locks of ranges of a file's pages, first come, first served.

use std::collections::BTreeMap;

use crate::message::{LockRange, NodeId};

#[derive(Debug)]
struct Lock {
    node: NodeId,
    ticket: u64,
    range: LockRange,
    held: bool,
}

/// All locks, held and waited for. A request waits for everyone before it that it conflicts with, held or not:
/// so none waits for ever behind later ones.
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

    /// Takes over a lock, of which a node says whether it was held: those that were come before all that wait. To be
    /// followed by [`RangeLocks::grant_all`].
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

    /// Grants what can be.
    pub(super) fn grant_all(&mut self, granted: &mut impl FnMut(NodeId, u64)) {
        for locks in self.files.values_mut() {
            grant(locks, granted);
        }
    }

    /// Lets go of what `gone` names, and grants what waited for it. Returns how many locks or waits ended.
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
