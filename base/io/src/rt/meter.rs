//! Meter of the time that a reactor spends in the engine's own code, separate from that of devices
//! and clients.
//!
//! Time is charged to an [`Account`]: that of the running task (its spawner's, at the time), or of
//! the innermost [`within`]. Waiting time is not charged to a task. All times are by the clock,
//! less the cost of reading the clock. A stretch longer than any of our code takes at a time means
//! that the processor was preempted, and is counted separately. A disabled meter costs a branch for
//! each task that runs.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{try_with_current, with_current};

/// A stretch longer than this is not charged: the processor was somewhere else.
const TAKEN_AWAY: Duration = Duration::from_micros(300);
/// Looks at the clock from which their cost is taken.
const LOOKS: u32 = 1000;

/// On whose behalf code runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Account {
    /// None of the others': clients of I/O, and the reactor itself.
    #[default]
    Other,
    /// The engine's.
    Engine,
    /// The devices' under the engine.
    Device,
}

const ACCOUNTS: usize = 3;

/// Time charged since the meter was started or reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The engine's own code.
    pub engine: Duration,
    /// Code of devices.
    pub device: Duration,
    /// Time charged to neither of the two, because the stretch was too long.
    pub taken_away: Duration,
}

/// The clock by which time is charged.
fn clock() -> Instant {
    #[cfg(test)]
    if let Some(now) = tests::CLOCK.get() {
        return now;
    }
    Instant::now()
}

#[derive(Debug, Default)]
pub(super) struct Meter {
    on: Cell<bool>,
    account: Cell<Account>,
    since: Cell<Option<Instant>>,
    spent: [Cell<Duration>; ACCOUNTS],
    taken_away: Cell<Duration>,
    look: Cell<Duration>,
}

impl Meter {
    pub(super) fn is_on(&self) -> bool {
        self.on.get()
    }

    pub(super) fn account(&self) -> Account {
        self.account.get()
    }

    /// Charges the time since the last look.
    fn charge(&self) {
        let now = clock();
        let Some(since) = self.since.replace(Some(now)) else {
            return;
        };
        let passed = (now - since).saturating_sub(self.look.get());
        let account = self.account.get();
        let to = match passed > TAKEN_AWAY && account != Account::Other {
            true => &self.taken_away,
            false => &self.spent[account as usize],
        };
        to.set(to.get() + passed);
    }

    pub(super) fn within<T>(&self, account: Account, run: impl FnOnce() -> T) -> T {
        self.charge();
        let before = self.account.replace(account);
        let value = run();
        self.charge();
        self.account.set(before);
        value
    }
}

/// Starts to meter this thread's executor. Tasks that there are already run on [`Account::Other`].
///
/// # Panics
/// On a thread that runs none.
pub fn start() {
    let begin = clock();
    let last = (0..LOOKS).fold(begin, |_, _| clock());
    with_current(|executor| {
        let meter = &executor.meter;
        meter.look.set((last - begin) / LOOKS);
        meter.on.set(true);
    });
    reset();
}

/// Resets the charged time.
///
/// # Panics
/// On a thread that runs no executor.
pub fn reset() {
    with_current(|executor| {
        let meter = &executor.meter;
        meter.since.set(Some(clock()));
        for spent in meter.spent.iter().chain([&meter.taken_away]) {
            spent.set(Duration::ZERO);
        }
    });
}

/// Returns the time charged so far.
///
/// # Panics
/// On a thread that runs no executor.
#[must_use]
pub fn spent() -> Spent {
    with_current(|executor| {
        let meter = &executor.meter;
        Spent {
            engine: meter.spent[Account::Engine as usize].get(),
            device: meter.spent[Account::Device as usize].get(),
            taken_away: meter.taken_away.get(),
        }
    })
}

/// Returns whether this thread's executor is metered.
#[must_use]
pub fn is_on() -> bool {
    try_with_current(|executor| executor.meter.is_on()).unwrap_or(false)
}

/// Runs `run`, and the tasks that it spawns, on an account.
pub fn within<T>(account: Account, run: impl FnOnce() -> T) -> T {
    let mut run = Some(run);
    let metered = try_with_current(|executor| {
        let meter = &executor.meter;
        let run = run.take_if(|_| meter.is_on())?;
        Some(meter.within(account, run))
    });
    match (metered.flatten(), run) {
        (Some(value), _) => value,
        (None, Some(run)) => run(),
        (None, None) => unreachable!("what was run gave a value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{block_on_simulated, sleep, spawn, yield_now};
    use crate::sync::Promise;

    thread_local! {
        /// The time that [`clock`] returns in place of the processor's. It passes in [`work`]
        /// alone.
        pub(super) static CLOCK: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Takes `time` by the test's clock.
    fn work(time: Duration) {
        let now = CLOCK.get().unwrap_or_else(Instant::now);
        CLOCK.set(Some(now + time));
    }

    const PIECE: Duration = Duration::from_micros(100);

    #[test]
    fn time_goes_to_whose_code_runs() {
        block_on_simulated(1, async {
            work(PIECE);
            start();
            assert!(is_on());
            let done = Promise::new();
            let promise = done.clone();
            work(PIECE);
            within(Account::Engine, || {
                work(PIECE);
                spawn(async move {
                    work(PIECE);
                    yield_now().await;
                    within(Account::Device, || work(PIECE));
                    sleep(Duration::from_secs(3)).await;
                    work(PIECE);
                    promise.set(());
                });
            });
            work(PIECE);
            done.get().await;
            let expected = Spent {
                engine: PIECE * 3,
                device: PIECE,
                taken_away: Duration::ZERO,
            };
            assert_eq!(spent(), expected);
        });
    }

    #[test]
    fn overlong_spans_count_as_time_taken_away() {
        block_on_simulated(1, async {
            work(PIECE);
            start();
            within(Account::Engine, || {
                work(TAKEN_AWAY * 2);
                within(Account::Engine, || work(PIECE));
            });
            let spent = spent();
            assert_eq!(spent.taken_away, TAKEN_AWAY * 2);
            assert_eq!(spent.engine, PIECE);
            reset();
            assert_eq!(super::spent().taken_away, Duration::ZERO);
        });
    }

    #[test]
    fn a_meter_that_is_off_charges_nothing() {
        block_on_simulated(1, async {
            assert_eq!(within(Account::Engine, || 7), 7);
            assert!(!is_on());
            assert_eq!(spent(), Spent::default());
        });
    }
}
