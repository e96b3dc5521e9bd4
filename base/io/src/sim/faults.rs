//! Faults of a simulated device, and their times.

use std::ops::Range;

use forebay_block::{Op, Request};

/// Kinds of operations that faults are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpClass {
    /// Reads.
    Read,
    /// Writes and write-zeroes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

impl OpClass {
    pub(super) const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write { .. } | Op::WriteZeroes { .. } => Self::Write,
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
        }
    }
}

/// Trouble of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// Nothing that it is asked ends, for so many microseconds.
    Stalls(u64),
    /// It is gone: whatever it is asked fails.
    Vanishes,
}

/// A while in which whatever changes a device fails, and may be read all the same until power is
/// lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spell {
    /// Which writes, write-zeroes, discards and flushes fail, counted together, from one since the
    /// plan was set.
    pub changes: Range<u64>,
    /// Whether flushes among them fail; else they succeed.
    pub flushes: bool,
}

/// Plan of faults for one device.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// The n-th operation of a kind fails, counted from one since the plan was set.
    pub fail_nth: Option<(OpClass, u64)>,
    /// Writes fail for a while.
    pub spell: Option<Spell>,
    /// Whether readers no longer see the lost writes after a failed flush. Otherwise they see them
    /// until power is lost.
    pub lose_at_failed_flush: bool,
    /// Trouble that begins with its n-th operation, of any kind, counted from one since the plan
    /// was set.
    pub from_nth: Option<(u64, Trouble)>,
    /// Reads that touch this range fail: a medium error.
    pub bad_range: Option<Range<u64>>,
}

/// Failure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It does not.
    No,
    /// A failed write's effects stay.
    Once,
    /// It is one of a [`Spell`]: a failed write's effects can be read, and no flush covers them.
    InSpell,
}

impl FaultPlan {
    /// Returns whether a request fails, after so many of each class with it.
    pub(super) fn meet(&self, request: &Request, seen: [u64; 4]) -> Failure {
        let class = OpClass::of(request.op);
        let touches =
            |bad: &Range<u64>| request.offset < bad.end && bad.start < request.offset + request.len;
        let bad = class == OpClass::Read && self.bad_range.as_ref().is_some_and(touches);
        if bad || self.fail_nth == Some((class, seen[class as usize])) {
            return Failure::Once;
        }
        let changes = seen.iter().sum::<u64>() - seen[OpClass::Read as usize];
        let covers = |spell: &Spell| match class {
            OpClass::Read => false,
            OpClass::Flush if !spell.flushes => false,
            _ => spell.changes.contains(&changes),
        };
        match self.spell.as_ref().is_some_and(covers) {
            true => Failure::InSpell,
            false => Failure::No,
        }
    }
}
