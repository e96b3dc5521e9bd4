//! `alru`: by age. A pass over the volume begins every half minute. It writes back blocks that were
//! not written since the pass before, which are half a minute old or older. The policy needs only a
//! bit a block.
//!
//! It ignores the clients, except that it has few blocks in flight at a time. Above the high mark,
//! and when room is needed, passes follow each other without a pause, so the oldest data is still
//! written first.

use std::time::Duration;

use super::{Ended, GENTLE, PolicyInput, Turn, WIDEST};

/// From the beginning of a pass to that of the next.
const PASS: Duration = Duration::from_secs(30);

/// A volume's passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alru {
    /// When the next pass begins.
    next: Duration,
    /// The pass that is under way: how often the hand had come to the end when it began.
    pass: Option<u64>,
}

impl Alru {
    pub(super) fn turn(&mut self, input: &PolicyInput) -> Option<Turn> {
        let pressed = input.wanted || input.is_above_high();
        if self.pass.is_some_and(|rounds| rounds != input.rounds) {
            self.pass = None;
        }
        if self.pass.is_none() && input.now >= self.next {
            self.pass = Some(input.rounds);
            self.next = input.now + PASS;
        }
        (pressed || self.pass.is_some()).then_some(Turn {
            width: if pressed { WIDEST } else { GENTLE },
            spare: !pressed,
            fullest: false,
            only_wanted: false,
        })
    }

    pub(super) fn ended(&mut self, ended: &Ended) -> Duration {
        if ended.empty {
            self.pass = None;
        }
        Duration::ZERO
    }
}
