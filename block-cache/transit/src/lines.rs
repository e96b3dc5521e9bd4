//! Writes that wait for slots, in order of arrival. The code that frees a slot places the first of
//! them itself. So no write overtakes, and no task is woken in vain.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use forebay_block::{Buf, Completion, ErrorKind, completion_pair};

use crate::policy::LINES;

/// One block of a write that waits.
#[derive(Debug)]
struct Waiter {
    block: u64,
    data: Buf,
    done: Completion,
}

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The block has its slot.
    Placed,
    /// The state of its block changed meanwhile: retry.
    Retry,
    /// There will be no slot.
    Bypass,
}

/// The lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: RefCell<[VecDeque<Waiter>; LINES]>,
    waiting: Cell<usize>,
}

impl Lines {
    /// How many wait.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Returns whether no write waits in a line.
    pub(crate) fn is_empty(&self, line: usize) -> bool {
        self.waiting.get() == 0 || self.lines.borrow()[line].is_empty()
    }

    /// Waits in a line, from now on.
    pub(crate) fn wait(
        &self,
        line: usize,
        block: u64,
        data: Buf,
    ) -> impl Future<Output = Outcome> + use<> {
        let (done, answer) = completion_pair();
        self.lines.borrow_mut()[line].push_back(Waiter { block, data, done });
        self.waiting.set(self.waiting.get() + 1);
        async {
            match answer.await {
                Ok(()) => Outcome::Placed,
                Err(error) if error.kind() == ErrorKind::Busy => Outcome::Retry,
                Err(_) => Outcome::Bypass,
            }
        }
    }

    /// Returns the next write of a line.
    pub(crate) fn first(&self, line: usize) -> Option<(u64, Buf)> {
        let lines = self.lines.borrow();
        let first = lines[line].front()?;
        Some((first.block, first.data.clone()))
    }

    /// The first of a line leaves it.
    pub(crate) fn leave(&self, line: usize, outcome: Outcome) {
        let first = self.lines.borrow_mut()[line].pop_front();
        let Some(waiter) = first else { return };
        self.waiting.set(self.waiting.get() - 1);
        waiter.done.complete(match outcome {
            Outcome::Placed => Ok(()),
            Outcome::Retry => Err(ErrorKind::Busy.into()),
            Outcome::Bypass => Err(ErrorKind::NoSpace.into()),
        });
    }
}
