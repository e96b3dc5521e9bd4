//! The crash drivers. Each takes a [`Target`] and returns at the first violation, with the one
//! command that replays it.
//!
//! - `sweep`: a crash at each I/O of one workload.
//! - `fault`: a failure of each operation, followed by a crash.
//! - `random`: random lives and crashes.
//! - `recovery`: the recovery from a crash, with its checks.

mod fault;
mod random;
mod recovery;
mod sweep;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use forebay_io::sim::Stop;

use crate::case::Case;
use crate::machine::{Life, Machine};
use crate::stack::Stack;
use crate::workload::Plan;

/// The subject of a test, and its name in a failure.
#[derive(Debug)]
pub struct Target<S> {
    /// The stack.
    pub stack: Rc<S>,
    /// The clients' plan.
    pub plan: Plan,
    /// Largest number of lives that a random seed draws, at least two.
    pub lives: u64,
    /// Whether an operation of a device fails in some of them.
    pub failing: bool,
    /// Whether each of their crashes is also tried with other outcomes, and without the process
    /// journal.
    pub forks: bool,
    /// Names the stack's configuration in the replay command.
    pub label: String,
    /// The command that replays a case which it finds in `FOREBAY_REPLAY`.
    pub command: &'static str,
}

/// Amount of work that a driver did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Number of points at which a run was cut off.
    pub points: u64,
    /// Number of crashes from which the stack recovered.
    pub crashes: u64,
    /// Number of further crashes with an outcome equal to another one, which were not run.
    pub alike: u64,
    /// Digest of all I/O of the last machine, the same for two runs of one case.
    pub digest: u64,
}

/// A violation.
#[derive(Debug)]
pub struct Failure {
    /// Description of the violation.
    pub message: String,
    /// The run with the violation.
    pub case: Case,
    /// The command that replays it.
    pub replay: String,
}

thread_local! {
    static CURRENT: Cell<Option<Case>> = const { Cell::new(None) };
}

/// Returns the run that this thread's drivers began last: after a panic, the run that panicked.
#[must_use]
pub fn last_case() -> Option<Case> {
    CURRENT.get()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nreplay with: {}", self.message, self.replay)
    }
}

impl<S: Stack> Target<S> {
    fn replay_command(&self, case: Case) -> String {
        format!("FOREBAY_REPLAY='{}: {case}' {}", self.label, self.command)
    }

    /// Runs a step of a case. A violation or a panic in it names the case.
    pub(crate) fn within<T>(
        &self,
        case: Case,
        step: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, Failure> {
        struct Announce<F: Fn()>(F);
        impl<F: Fn()> Drop for Announce<F> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    (self.0)();
                }
            }
        }
        let _announce = Announce(|| eprintln!("replay with: {}", self.replay_command(case)));
        CURRENT.set(Some(case));
        step().map_err(|message| Failure {
            message,
            case,
            replay: self.replay_command(case),
        })
    }

    pub(crate) fn first_life(&self, seed: u64) -> Life {
        Life {
            seed,
            verify: false,
            work: Some(self.plan),
            close: true,
            errors_allowed: false,
        }
    }

    /// Runs one case.
    ///
    /// # Errors
    /// Returns the violation.
    pub fn replay(&self, case: Case) -> Result<(), Failure> {
        self.within(case, || match case {
            Case::Random { seed } => self.random_lives(seed).map(|_| ()),
            Case::Rot { seed } => self.rotting_lives(seed).map(|_| ()),
            Case::Fault { seed, .. } => {
                let fresh = Machine::new(&self.stack, seed)?;
                let (mut machine, _) = self.fail(&fresh, case)?;
                if let Case::Fault { crash, .. } = case {
                    machine.crash(crash);
                }
                self.recover_from_fault(&mut machine, case)
            }
            Case::Sweep { seed, stop, crash } => {
                let crashed = Machine::new(&self.stack, seed)?.fork();
                crashed.world.set_stop(Some(stop));
                crashed.live(self.first_life(seed))?;
                let (Stop::BeforeIo(nth) | Stop::AfterIo(nth) | Stop::BeforePoll(nth)) = stop;
                let mut machine = crashed.fork();
                machine.crash(crash);
                self.recover_from(&mut machine, crash, seed ^ nth, true)
            }
        })
    }
}
