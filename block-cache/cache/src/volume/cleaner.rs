//! State of a volume's cleaner: its policy, the blocks that the reclaimer wants clean, and its
//! turns.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_policy::BlockId;
use forebay_policy::cleaning::{Cleaner as Policy, Cleaning, Ended, IoDevice, PolicyInput, Turn};

/// Time after which a turn counts as blocked. A disk writes a batch of the largest blocks in a
/// tenth of it.
const STALLED: Duration = Duration::from_secs(10);

/// A volume's cleaner.
#[derive(Debug)]
pub(crate) struct VolumeCleaner {
    policy: RefCell<Policy>,
    /// Blocks that the reclaimer wants clean, in the order of the backing device.
    wanted: RefCell<VecDeque<BlockId>>,
    /// Whether some of the blocks that the reclaimer wants clean were not tried yet.
    is_wanted: Cell<bool>,
    /// Whether the reclaimer no longer wants the blocks that it wanted.
    withdrawn: Cell<bool>,
    /// Number of changes of the policy.
    policy_changes: Cell<u64>,
    /// Woken when the reclaimer wants blocks, when the policy changes, and when the task may have
    /// to end.
    asked: WaitList,
    /// Number of callers that write the volume back by themselves; the task pauses.
    suspended: Cell<u32>,
    /// Turns begun and ended: odd while a turn runs.
    turns: Cell<u64>,
    /// Time at which the last turn began.
    turn_began: Cell<Duration>,
    /// Whether a write-back of the last turn failed.
    has_failed: Cell<bool>,
    /// Requests that were counted at the last look.
    requests: Cell<u64>,
    /// Time at which the number of requests changed last.
    requested: Cell<Duration>,
    /// End of the part that is written back because most of it is dirty, in windows.
    part_end: Cell<usize>,
}

impl VolumeCleaner {
    /// Returns the cleaner of a new volume.
    pub(crate) fn new(cleaning: Cleaning) -> Self {
        Self {
            policy: RefCell::new(Policy::new(cleaning)),
            wanted: RefCell::default(),
            is_wanted: Cell::new(false),
            withdrawn: Cell::new(false),
            policy_changes: Cell::new(0),
            asked: WaitList::new(),
            suspended: Cell::new(0),
            turns: Cell::new(0),
            turn_began: Cell::new(Duration::ZERO),
            has_failed: Cell::new(false),
            requests: Cell::new(0),
            requested: Cell::new(rt::now()),
            part_end: Cell::new(0),
        }
    }

    /// Changes the policy.
    pub(crate) fn set_policy(&self, cleaning: Cleaning) {
        *self.policy.borrow_mut() = Policy::new(cleaning);
        self.policy_changes.set(self.policy_changes.get() + 1);
        self.asked.wake_all();
    }

    /// Wakes the task, which looks whether it is to end.
    pub(crate) fn wake(&self) {
        self.asked.wake_all();
    }

    /// Returns the number of turns begun and ended.
    pub(crate) const fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// Returns whether something was written back since there had been so many turns.
    #[inline]
    pub(crate) const fn has_cleaned_since(&self, turns: u64) -> bool {
        turns % 2 == 1 || turns != self.turns.get()
    }

    /// Notes the begin of a turn.
    pub(crate) fn begin_turn(&self) {
        self.turns.set(self.turns.get() + 1);
        self.turn_began.set(rt::now());
    }

    /// Notes the end of a turn, and whether a write-back failed in it.
    pub(crate) fn end_turn(&self, has_failed: bool) {
        self.turns.set(self.turns.get() + 1);
        self.has_failed.set(has_failed);
    }

    /// Returns whether the backing device seems to take no data: a write-back of the last turn
    /// failed, or the present turn lasts very long. An error of the cache device counts, too.
    pub(crate) fn is_blocked(&self) -> bool {
        let is_running = self.turns.get() % 2 == 1;
        self.has_failed.get() || (is_running && rt::now() > self.turn_began.get() + STALLED)
    }

    /// Notes an I/O that a client waited for; `during_cleaning` where a turn ran at the time.
    pub(crate) fn note_io(&self, device: IoDevice, took: Duration, during_cleaning: bool) {
        self.policy.borrow_mut().note(device, took, during_cleaning);
    }

    /// Returns how long no request has come, of which there are so many and so many in flight.
    pub(crate) fn idle_time(&self, requests: u64, in_flight: u64) -> Duration {
        if self.requests.replace(requests) != requests || in_flight > 0 {
            self.requested.set(rt::now());
        }
        rt::now() - self.requested.get()
    }

    /// Returns the next turn of the policy.
    pub(crate) fn next_turn(&self, input: &PolicyInput) -> Option<Turn> {
        self.policy.borrow_mut().turn(input)
    }

    /// Notes the end of a turn. Returns the time to rest.
    pub(crate) fn rest_after(&self, ended: &Ended) -> Duration {
        self.policy.borrow_mut().ended(ended)
    }

    /// Pauses the task while a caller writes the volume back, or ends the pause.
    pub(crate) fn suspend(&self, by: i32) {
        let suspended = self.suspended.get().saturating_add_signed(by);
        self.suspended.set(suspended);
    }

    /// Returns whether the task pauses.
    pub(crate) const fn is_suspended(&self) -> bool {
        self.suspended.get() > 0
    }

    /// Takes blocks over that the reclaimer wants clean.
    pub(crate) fn want(&self, blocks: &[BlockId]) {
        self.wanted.borrow_mut().extend(blocks);
        self.is_wanted.set(true);
        self.asked.wake_all();
    }

    /// Forgets the blocks that the reclaimer wanted; `for_good` if it wants no others in their
    /// place.
    pub(crate) fn withdraw(&self, for_good: bool) {
        self.wanted.borrow_mut().clear();
        self.withdrawn.set(for_good);
    }

    /// Returns whether the reclaimer withdrew its wanted blocks since the last call.
    pub(crate) const fn take_withdrawn(&self) -> bool {
        self.withdrawn.replace(false)
    }

    /// Returns whether some of the blocks that the reclaimer wants clean were not tried yet.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.is_wanted.get()
    }

    /// Notes that all wanted blocks were tried. Returns whether there were any.
    pub(crate) const fn finish_wanted(&self) -> bool {
        self.is_wanted.replace(false)
    }

    /// Returns the next block that the reclaimer wants clean.
    pub(crate) fn pop_wanted(&self) -> Option<BlockId> {
        self.wanted.borrow_mut().pop_front()
    }

    /// Forgets the wanted blocks behind a write-back that failed.
    pub(crate) fn clear_wanted(&self) {
        self.wanted.borrow_mut().clear();
    }

    /// Returns whether no block is wanted any more.
    pub(crate) fn has_tried_all(&self) -> bool {
        self.wanted.borrow().is_empty()
    }

    /// Returns the end of the part that is written back because most of it is dirty, in windows.
    pub(crate) const fn part_end(&self) -> usize {
        self.part_end.get()
    }

    /// Sets the end of the part that is written back because most of it is dirty, in windows.
    pub(crate) fn set_part_end(&self, end: usize) {
        self.part_end.set(end);
    }

    /// Rests. Ends early if the reclaimer begins to want blocks, if the policy changes, or if
    /// `is_stopping`. Returns whether it rested to the end.
    pub(crate) async fn rest(&self, rest: Duration, is_stopping: impl Fn() -> bool) -> bool {
        if rest.is_zero() {
            return true;
        }
        let (was, changes) = (self.is_wanted.get(), self.policy_changes.get());
        let is_asked = || {
            is_stopping() || (!was && self.is_wanted.get()) || changes != self.policy_changes.get()
        };
        let asked = &is_asked;
        let (mut over, mut asked) = (pin!(rt::sleep(rest)), pin!(self.asked.until(asked)));
        std::future::poll_fn(|cx| {
            match over.as_mut().poll(cx).is_ready() || asked.as_mut().poll(cx).is_ready() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        !is_asked()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use forebay_io::rt::block_on_simulated;

    use super::*;

    #[test]
    fn a_change_of_the_policy_ends_a_rest() {
        block_on_simulated(1, async {
            let cleaner = Rc::new(VolumeCleaner::new(Cleaning::Auto));
            let began = rt::now();
            assert!(cleaner.rest(Duration::from_secs(5), || false).await);
            assert_eq!(rt::now() - began, Duration::from_secs(5));
            let changed = Rc::clone(&cleaner);
            rt::spawn(async move {
                rt::sleep(Duration::from_secs(1)).await;
                changed.set_policy(Cleaning::Acp);
            });
            let began = rt::now();
            assert!(!cleaner.rest(Duration::from_secs(3600), || false).await);
            assert_eq!(rt::now() - began, Duration::from_secs(1));
        });
    }
}
